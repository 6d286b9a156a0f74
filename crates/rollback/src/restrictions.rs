//! Flags that forbid changes (`chattr +i`, `chattr +a`): taken off where a call needs that, and set as in the snapshot at the end.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, IFlags, OFlags};
use rustix::io::Errno;

use crate::inodes::{InodeTable, PLACE};

/// Flags that forbid changes.
const RESTRICTING: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// The inodes of the present whose flags are set at the end.
pub(crate) struct Restrictions<'a> {
    present: &'a InodeTable,
    past: &'a InodeTable,
    touched: RefCell<BTreeSet<u64>>,
}

impl<'a> Restrictions<'a> {
    /// None is touched yet.
    pub const fn new(present: &'a InodeTable, past: &'a InodeTable) -> Self {
        Self {
            present,
            past,
            touched: RefCell::new(BTreeSet::new()),
        }
    }

    /// Has an inode get the flags of the snapshot at the end.
    pub fn note(&self, ino: u64) {
        self.touched.borrow_mut().insert(ino);
    }

    /// Makes a call; once more without the flags of these inodes, if it is not permitted.
    pub fn lifted<T>(
        &self,
        inodes: &[u64],
        mut call: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        match call() {
            Err(error) if is(&error, Errno::PERM) => {}
            done => return done,
        }
        for ino in inodes {
            self.lift(*ino)?;
        }
        call()
    }

    fn lift(&self, ino: u64) -> io::Result<()> {
        if let Some((file, now)) = flags_of(self.present, ino)? {
            self.note(ino);
            set(&file, now, now.difference(RESTRICTING))?;
        }
        Ok(())
    }

    /// Gives each noted inode that the snapshot has its flags of then.
    pub fn finish(&self) -> io::Result<()> {
        for ino in self.touched.borrow().iter() {
            bring_flags_back((self.present, *ino), (self.past, *ino))?;
        }
        Ok(())
    }
}

/// Whether an error is one of the system.
pub(crate) fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

/// Gives an inode of the present the flags of one of the snapshot, if both are there and have flags.
pub(crate) fn bring_flags_back(
    (present, number): (&InodeTable, u64),
    (past, ino): (&InodeTable, u64),
) -> io::Result<()> {
    let (now, then) = (flags_of(present, number)?, flags_of(past, ino)?);
    if let (Some((file, now)), Some((_, then))) = (now, then) {
        set(&file, now, then)?;
    }
    Ok(())
}

/// The flags of an inode, which is open; `None` if there is none, or one that has no flags.
fn flags_of(table: &InodeTable, ino: u64) -> io::Result<Option<(OwnedFd, IFlags)>> {
    let Some(place) = table.open(ino, PLACE)? else {
        return Ok(None);
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(None);
    }
    let Some(file) = table.open(ino, OFlags::RDONLY)? else {
        return Ok(None);
    };
    let flags = rustix::fs::ioctl_getflags(&file)?;
    Ok(Some((file, flags)))
}

/// Gives an inode other flags, if they differ.
fn set(file: &OwnedFd, now: IFlags, wanted: IFlags) -> io::Result<()> {
    if now != wanted {
        rustix::fs::ioctl_setflags(file, wanted)?;
    }
    Ok(())
}
