//! The files and directories that the kernel knows, by number.
//!
//! Invariants: a path that is seen has at most one node. A file keeps its node, and stays open, as long as
//! the kernel remembers it, even if the file is renamed, replaced or removed meanwhile. A directory keeps its
//! path until it is removed, as the disk cannot rename it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use fuser::INodeNo;
use lockstep_types::Errno;
use lockstep_types::backing::{Backing, BackingFile};

use crate::disk::{Kind, Mount};

/// All nodes of one mount.
pub(super) struct Nodes {
    disk: Mount,
    known: HashMap<u64, Node>,
    by_path: HashMap<String, u64>,
    last: u64,
}

struct Node {
    /// `None` after the name was removed.
    path: Option<String>,
    /// `None` for a directory.
    file: Option<Arc<dyn BackingFile>>,
    /// How often the kernel got this node as an answer.
    lookups: u64,
}

/// A known node.
pub(super) struct Found {
    pub number: u64,
    /// `None` for a directory.
    pub file: Option<Arc<dyn BackingFile>>,
    pub has_name: bool,
}

fn refused(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.code())
}

/// The path of a name in a directory.
pub(super) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() {
        return name.to_owned();
    }
    format!("{directory}/{name}")
}

impl Nodes {
    /// The nodes of a new mount: only the top, which is never forgotten.
    pub(super) fn new(disk: Mount) -> Self {
        let top = Node {
            path: Some(String::new()),
            file: None,
            lookups: 1,
        };
        let number = INodeNo::ROOT.0;
        Self {
            disk,
            known: HashMap::from([(number, top)]),
            by_path: HashMap::from([(String::new(), number)]),
            last: number,
        }
    }

    fn node(&self, number: u64) -> io::Result<&Node> {
        let node = self.known.get(&number);
        node.ok_or_else(|| refused(Errno::BadHandle))
    }

    /// A node that the kernel knows.
    pub(super) fn find(&self, number: u64) -> io::Result<Found> {
        let node = self.node(number)?;
        Ok(Found {
            number,
            file: node.file.clone(),
            has_name: node.path.is_some(),
        })
    }

    /// The file of a node.
    pub(super) fn file(&self, number: u64) -> io::Result<Arc<dyn BackingFile>> {
        let file = self.node(number)?.file.clone();
        file.ok_or_else(|| refused(Errno::IsDirectory))
    }

    /// The path of a node; `None` for a file whose name was removed.
    pub(super) fn path(&self, number: u64) -> Option<String> {
        self.known.get(&number)?.path.clone()
    }

    /// The path of a directory.
    pub(super) fn directory(&self, number: u64) -> io::Result<String> {
        match self.node(number)? {
            Node {
                path: Some(path),
                file: None,
                ..
            } => Ok(path.clone()),
            // The kernel gets the same error in a removed directory.
            Node { path: None, .. } => Err(refused(Errno::NoEntry)),
            _ => Err(refused(Errno::NotDirectory)),
        }
    }

    /// The path of a directory to be synced; `None` for a removed directory, which needs no sync.
    pub(super) fn synced_directory(&self, number: u64) -> io::Result<Option<String>> {
        match self.node(number)? {
            Node {
                file: None, path, ..
            } => Ok(path.clone()),
            Node { file: Some(_), .. } => Err(refused(Errno::NotDirectory)),
        }
    }

    /// The path of a name in a directory. Names are text, as the names of a store are.
    pub(super) fn path_in(&self, directory: u64, name: &OsStr) -> io::Result<String> {
        let directory = self.directory(directory)?;
        let name = name.to_str().ok_or_else(|| refused(Errno::Invalid))?;
        Ok(join(&directory, name))
    }

    /// The node of a path, as an answer for the kernel.
    pub(super) fn look_up(&mut self, path: &str) -> io::Result<Found> {
        if let Some(number) = self.by_path.get(path).copied() {
            if let Some(node) = self.known.get_mut(&number) {
                node.lookups += 1;
            }
            return self.find(number);
        }
        let file = match self.disk.kind(path)? {
            Kind::File => Some(self.disk.open(path)?),
            Kind::Directory => None,
        };
        self.last += 1;
        self.by_path.insert(path.to_owned(), self.last);
        let path = Some(path.to_owned());
        let node = Node {
            path,
            file,
            lookups: 1,
        };
        self.known.insert(self.last, node);
        self.find(self.last)
    }

    /// The kernel forgets `count` answers. A node without remaining answers is dropped.
    pub(super) fn forget(&mut self, number: u64, count: u64) {
        let Some(node) = self.known.get_mut(&number) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 || number == INodeNo::ROOT.0 {
            return;
        }
        let path = self.known.remove(&number).and_then(|node| node.path);
        if let Some(path) = path {
            self.by_path.remove(&path);
        }
    }

    /// A name was removed.
    pub(super) fn removed(&mut self, path: &str) {
        self.name(path, None);
    }

    /// A file was renamed, and may have replaced another file.
    pub(super) fn renamed(&mut self, from: &str, to: &str) {
        if from != to {
            self.name(to, None);
            self.name(from, Some(to));
        }
    }

    fn name(&mut self, from: &str, to: Option<&str>) {
        let Some(number) = self.by_path.remove(from) else {
            return;
        };
        if let Some(node) = self.known.get_mut(&number) {
            node.path = to.map(str::to_owned);
        }
        if let Some(to) = to {
            self.by_path.insert(to.to_owned(), number);
        }
    }
}
