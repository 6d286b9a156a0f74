//! The directories of a snapshot by path. A snapshot never changes, so no program leads a path elsewhere.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::inodes::{InodeTable, PLACE};

/// The paths of one snapshot.
pub(crate) struct PastPaths<'a> {
    table: &'a InodeTable,
    /// The directory that was looked up last, by path.
    last: RefCell<Option<(Vec<u8>, u64)>>,
}

impl<'a> PastPaths<'a> {
    /// The paths of a snapshot.
    pub const fn new(table: &'a InodeTable) -> Self {
        Self {
            table,
            last: RefCell::new(None),
        }
    }

    /// The inode of a directory, by a path of any length; `None` if the snapshot has no such directory.
    pub fn directory(&self, path: &[u8]) -> io::Result<Option<u64>> {
        if let Some((last, ino)) = &*self.last.borrow()
            && last == path
        {
            return Ok(Some(*ino));
        }
        let mut at = below(self.table.root(), b".")?;
        for step in path.split(|byte| *byte == b'/').filter(|it| !it.is_empty()) {
            at = match below(&at, step) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                opened => opened?,
            };
        }
        let ino = self.table.ino_of(&at)?;
        *self.last.borrow_mut() = Some((path.to_vec(), ino));
        Ok(Some(ino))
    }

    /// Whether the root has a name.
    pub fn has_in_root(&self, name: &str) -> bool {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(self.table.root(), name, flags).is_ok()
    }
}

fn below(above: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = PLACE | OFlags::DIRECTORY;
    rustix::fs::openat2(above, name, flags, Mode::empty(), within)
}

/// The directory and the last name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => {
            let (above, rest) = path.split_at(at);
            (above, rest.get(1..).unwrap_or_default())
        }
        None => (&[], path),
    }
}
