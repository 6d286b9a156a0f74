//! Inodes with several names: created at their first name, linked at the others.
//!
//! Until its last name is made, such an inode also has a name in a separate directory at the top of the destination. It
//! can be linked from there, however long its path is. The last name is moved, not linked, so no inode ever has more
//! links than in the store. If the destination cannot hold one of the names, the name in the separate directory is
//! removed at the end.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lockstep_types::{Attr, Ino};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::place::{self, Created, Loss, Losses};

/// Inodes whose names are not all made yet.
pub(super) struct Links {
    root: OwnedFd,
    dir: OwnedFd,
    name: String,
    names_left: HashMap<Ino, u32>,
}

impl Links {
    /// Makes the directory under a name for which `is_taken` does not hold.
    pub(super) fn new(
        root: BorrowedFd<'_>,
        is_taken: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, place::FailedCall> {
        let candidates = (0..=u64::MAX).map(|number| format!(".lockstep-export.{number}"));
        let mut free = candidates.filter(|name| !is_taken(name.as_bytes()));
        let name = free.next().unwrap_or_default();
        let duplicate = root.try_clone_to_owned();
        let duplicate = duplicate.map_err(|_| ("open", Errno::MFILE))?;
        let dir = place::make_directory(root, name.as_bytes())?;
        Ok(Self {
            dir: dir.map_err(|errno| ("make directory", errno))?,
            root: duplicate,
            name,
            names_left: HashMap::new(),
        })
    }

    /// Links an inode that was created before; `None` if it was not.
    pub(super) fn link(
        &mut self,
        ino: Ino,
        at: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Option<Created<()>>, place::FailedCall> {
        let Some(left) = self.names_left.get_mut(&ino) else {
            return Ok(None);
        };
        let kept = ino.to_string();
        let linked = if *left == 1 {
            place::rename_to_new((&self.dir, kept.as_bytes()), (at, name))
        } else {
            rustix::fs::linkat(&self.dir, kept, at, name, AtFlags::empty())
        };
        let linked = place::classify(linked, "link")?;
        if linked.is_ok() {
            *left -= 1;
        }
        if *left == 0 {
            self.names_left.remove(&ino);
        }
        Ok(Some(linked))
    }

    /// The inode has as many names as the destination allows: its further names lead to a copy.
    pub(super) fn forget(&mut self, ino: Ino) -> Result<(), place::FailedCall> {
        self.names_left.remove(&ino);
        place::remove(self.dir.as_fd(), ino.to_string().as_bytes())
    }

    /// Remembers an inode that has more names than the one just made. If the destination has no hard links, the inode
    /// is created again for each name.
    pub(super) fn remember(
        &mut self,
        attr: &Attr,
        at: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Losses, place::FailedCall> {
        if attr.nlink < 2 {
            return Ok(Losses::new());
        }
        let kept = attr.ino.to_string();
        match rustix::fs::linkat(at, name, self.dir.as_fd(), kept, AtFlags::empty()) {
            Ok(()) => {
                self.names_left.insert(attr.ino, attr.nlink - 1);
                Ok(Losses::new())
            }
            Err(errno) if place::is_unable(errno) => Ok(vec![(Loss::Links, errno)]),
            Err(errno) => Err(("link", errno)),
        }
    }

    /// Removes the directory, before the top gets its times.
    pub(super) fn finish(&self) -> Result<(), place::FailedCall> {
        for ino in self.names_left.keys() {
            place::remove(self.dir.as_fd(), ino.to_string().as_bytes())?;
        }
        rustix::fs::unlinkat(&self.root, &self.name, AtFlags::REMOVEDIR)
            .map_err(|errno| ("remove the names kept aside in", errno))
    }
}
