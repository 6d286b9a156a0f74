//! A POSIX file system in memory that is obviously right. Tests compare the product with it. Never shipped.
//!
//! The model says what each operation does and how each refused operation fails. It knows no durability, no locks
//! and no limits of time, and shares no code with the product but `lockstep-types`. Most operations are as slow as
//! the simplest code makes them.
//!
//! Invariants:
//! - A refused operation changes nothing.
//! - Link counts and parents are never stored. They follow from [`Node::links`], which [`Model`] changes together
//!   with the directories.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // A broken model may panic.

mod acl;
mod attributes;
mod change;
mod content;
mod names;
mod node;
mod snapshots;
mod trash;

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_types::{
    Attr, Errno, FileName, Ino, InodeFlags, NodeKind, SnapshotId, SnapshotKind, SnapshotName,
    Timestamp,
};

pub use acl::Acl;
pub use content::Content;
pub use names::Names;
pub use node::{Body, Node};

/// The size that a directory shows.
const DIRECTORY_BYTES: u64 = 4096;

/// Result of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The inode whose attributes answer the operation, if any do.
    pub subject: Option<Ino>,
    /// The inode that lost its last name, if one did.
    pub orphaned: Option<Ino>,
}

type Done<T = ()> = Result<T, Errno>;

/// A snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its name.
    pub name: SnapshotName,
    /// The user or the schedule of the datastore.
    pub kind: SnapshotKind,
    /// The holds that keep it, the oldest first.
    pub holds: Vec<SnapshotName>,
    /// The file system of its moment, without snapshots.
    pub copy: Arc<Model>,
}

/// All snapshots.
pub type Snapshots = BTreeMap<SnapshotId, Snapshot>;

/// A file system.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<Ino, Node>,
    last_cookie: u64,
    /// Time of the present operation.
    now: Timestamp,
    snapshots: Snapshots,
}

impl Default for Model {
    fn default() -> Self {
        let root = Node::new(
            NodeKind::Directory,
            Body::Directory(Names::default()),
            Timestamp::default(),
        );
        Self {
            nodes: BTreeMap::from([(
                Ino::ROOT,
                Node {
                    mode: 0o755,
                    ..root
                },
            )]),
            // The cookies up to 2 belong to `.` and `..`.
            last_cookie: 2,
            now: Timestamp::default(),
            snapshots: Snapshots::new(),
        }
    }
}

/// Lookups.
impl Model {
    /// Returns all inodes, with or without a name.
    pub fn nodes(&self) -> impl Iterator<Item = (Ino, &Node)> {
        self.nodes.iter().map(|(ino, node)| (*ino, node))
    }

    /// Returns the snapshots.
    pub const fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// Returns an inode.
    pub fn node(&self, ino: Ino) -> Done<&Node> {
        self.nodes.get(&ino).ok_or(Errno::Stale)
    }

    /// Returns the names in a directory.
    pub fn names(&self, directory: Ino) -> Done<&Names> {
        match &self.node(directory)?.body {
            Body::Directory(names) => Ok(names),
            _ => Err(Errno::NotDirectory),
        }
    }

    /// Returns the content of a file.
    pub fn content(&self, ino: Ino) -> Done<&Content> {
        match &self.node(ino)?.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Errno::IsDirectory),
            _ => Err(Errno::Invalid),
        }
    }

    /// Returns the target of a symbolic link.
    pub fn target(&self, ino: Ino) -> Done<&[u8]> {
        match &self.node(ino)?.body {
            Body::Symlink(target) => Ok(target),
            _ => Err(Errno::Invalid),
        }
    }

    /// Returns the inode to which a name leads.
    pub fn find(&self, directory: Ino, name: &FileName) -> Done<Ino> {
        self.names(directory)?.get(name).ok_or(Errno::NoEntry)
    }

    /// Returns the directory that holds a name of an inode.
    pub fn parent(&self, ino: Ino) -> Option<Ino> {
        let first = self.nodes.get(&ino)?.links.first();
        first.map(|(directory, _)| *directory)
    }

    /// Returns the number of hard links. A directory has one for its name, one for its `.`, and one for the `..` of
    /// each subdirectory.
    pub fn nlink(&self, ino: Ino) -> u32 {
        let node = &self.nodes[&ino];
        let count = match &node.body {
            Body::Directory(_) if self.is_orphan(ino) => 0,
            Body::Directory(names) => 2 + names.subdirectories(),
            _ => node.links.len(),
        };
        u32::try_from(count).unwrap()
    }

    /// Returns the inodes without a name that are not in the trash.
    pub fn orphans(&self) -> impl Iterator<Item = Ino> {
        let inos = self.nodes.keys().copied();
        inos.filter(|ino| self.is_orphan(*ino) && !self.is_in_trash(*ino))
    }

    /// Whether an existing inode is in the trash.
    pub fn is_in_trash(&self, ino: Ino) -> bool {
        self.nodes[&ino].trashed.is_some()
    }

    /// Whether an existing inode has no name.
    pub fn is_orphan(&self, ino: Ino) -> bool {
        ino != Ino::ROOT && self.nodes[&ino].links.is_empty()
    }

    /// Returns all attributes.
    pub fn attr(&self, ino: Ino) -> Done<Attr> {
        let node = self.node(ino)?;
        let (size, blocks) = match &node.body {
            Body::File(content) => (content.size(), content.blocks()),
            Body::Directory(_) => (DIRECTORY_BYTES, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Nothing => (0, 0),
        };
        Ok(Attr {
            ino,
            kind: node.kind,
            mode: node.mode,
            flags: node.flags,
            uid: node.uid,
            gid: node.gid,
            nlink: self.nlink(ino),
            rdev: node.rdev,
            size,
            blocks,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
        })
    }

    /// Refuses what an immutable inode forbids.
    fn check_mutable(&self, ino: Ino) -> Done {
        if self.node(ino)?.flags.intersects(InodeFlags::IMMUTABLE) {
            return Err(Errno::NotPermitted);
        }
        Ok(())
    }

    /// Refuses what an immutable or append-only inode forbids.
    fn check_unrestricted(&self, ino: Ino) -> Done {
        self.check_mutable(ino)?;
        if self.node(ino)?.flags.intersects(InodeFlags::APPEND_ONLY) {
            return Err(Errno::NotPermitted);
        }
        Ok(())
    }

    fn is_directory(&self, ino: Ino) -> bool {
        self.nodes[&ino].kind == NodeKind::Directory
    }

    fn node_mut(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("the caller has checked")
    }
}
