//! The directory of the source at which a walk is, and its path.
//!
//! One descriptor is open, however deep the directory is. The way up goes by `..`, and ends with an error if another
//! directory is there: the directory was moved meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::error::FailedSourceCall;
use super::source;
use crate::text::escaped;

/// See the head of this file.
pub(super) struct Descent {
    current: OwnedFd,
    /// The directories above, up to the top: device, inode, and the length of the path before the name below.
    above: Vec<((u64, u64), usize)>,
    path: Vec<u8>,
}

impl Descent {
    /// Starts at the top.
    pub fn open(top: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            current: rustix::fs::openat(CWD, top, flags, Mode::empty())?,
            above: Vec::new(),
            path: Vec::new(),
        })
    }

    /// The directory.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// The path of a name in the directory, escaped; of the directory itself for an empty name.
    pub fn name(&self, name: &[u8]) -> String {
        let separator: &[u8] = if self.path.is_empty() || name.is_empty() {
            b""
        } else {
            b"/"
        };
        let path = [&self.path, separator, name].concat();
        if path.is_empty() {
            ".".to_owned()
        } else {
            escaped(&path)
        }
    }

    /// Goes into a directory of the directory.
    pub fn enter(&mut self, name: &[u8]) -> Result<(), Errno> {
        let above = source::identity_of(&source::stat(self.fd(), b"")?);
        self.current = source::open(self.fd(), name, OFlags::DIRECTORY)?;
        self.above.push((above, self.path.len()));
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        Ok(())
    }

    /// Goes back to the directory above.
    pub fn leave(&mut self) -> Result<(), FailedSourceCall> {
        let Some((expected, length)) = self.above.pop() else {
            return Ok(());
        };
        let failed = |errno| ("go up from", errno);
        let above = source::open(self.fd(), b"..", OFlags::DIRECTORY).map_err(failed)?;
        let found = source::stat(above.as_fd(), b"").map_err(failed)?;
        if source::identity_of(&found) != expected {
            return Err((
                "find the directory above, which was moved, from",
                Errno::STALE,
            ));
        }
        self.current = above;
        self.path.truncate(length);
        Ok(())
    }

    /// The names in the directory, in the order of their inodes on the disk.
    pub fn names(&self) -> Result<Vec<Vec<u8>>, FailedSourceCall> {
        let failed = |errno| ("list", errno);
        let mut found = Vec::new();
        for entry in Dir::read_from(self.fd()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                found.push((entry.ino(), name.to_vec()));
            }
        }
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }
}
