//! The staging directory: a directory in the root that only root can enter. Files that wait for their place are there, and files that are made anew
//! are complete before other users can reach them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::inodes::{InodeTable, ROOT};
use crate::past_paths::PastPaths;
use crate::restrictions::{Restrictions, is};

/// The name of a staging directory: this, or with a number behind.
const NAME: &str = ".lockstep-rollback";

/// Access control lists that a new directory may have inherited.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// See the head of this file.
pub(crate) struct Staging {
    directory: OwnedFd,
    name: String,
    used: u64,
}

impl Staging {
    /// Makes the staging directory, with a name that neither the present nor a snapshot has.
    pub fn make(
        present: &InodeTable,
        pasts: [&PastPaths<'_>; 2],
        restrictions: &Restrictions<'_>,
    ) -> io::Result<Self> {
        let mut number = 0_u64;
        loop {
            let name = match number {
                0 => NAME.to_owned(),
                number => format!("{NAME}-{number}"),
            };
            number += 1;
            if pasts.iter().any(|past| past.has_in_root(&name)) {
                continue;
            }
            let root = present.root();
            let make_it = || Ok(rustix::fs::mkdirat(root, &name, Mode::RWXU)?);
            match restrictions.lifted(&[ROOT], make_it) {
                Err(error) if is(&error, Errno::EXIST) => {}
                outcome => {
                    outcome?;
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                    let flags = flags | OFlags::CLOEXEC;
                    let directory = rustix::fs::openat(root, &name, flags, Mode::empty())?;
                    close(&directory)?;
                    return Ok(Self {
                        directory,
                        name,
                        used: 0,
                    });
                }
            }
        }
    }

    /// Whether a path is that of a staging directory, or below: a rollback that was killed has left it.
    pub fn has(path: &[u8]) -> bool {
        let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
        match first.strip_prefix(NAME.as_bytes()) {
            Some([]) => true,
            Some([b'-', digits @ ..]) => {
                !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
            }
            _ => false,
        }
    }

    /// The directory.
    pub const fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// A name in the directory that is not used yet.
    pub fn next_name(&mut self) -> String {
        self.used += 1;
        self.used.to_string()
    }

    /// Moves a file to its place, where no file may be.
    pub fn place(&self, staged: &str, (parent, name): (&OwnedFd, &[u8])) -> io::Result<()> {
        let flags = RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(
            &self.directory,
            staged,
            parent,
            name,
            flags,
        )?)
    }

    /// Removes the files that have no place, and the directory.
    pub fn remove(&self, present: &InodeTable) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(&self.directory, c".", flags, Mode::empty())?;
        for entry in rustix::fs::Dir::new(listed)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                rustix::fs::unlinkat(&self.directory, entry.file_name(), AtFlags::empty())?;
            }
        }
        Ok(rustix::fs::unlinkat(
            present.root(),
            &self.name,
            AtFlags::REMOVEDIR,
        )?)
    }
}

/// Keeps all other users out, whatever the root passes on.
fn close(directory: &OwnedFd) -> io::Result<()> {
    for list in LISTS {
        match rustix::fs::fremovexattr(directory, list) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(rustix::fs::fchmod(directory, Mode::RWXU)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_are_those_of_a_staging_directory() {
        for ours in [".lockstep-rollback", ".lockstep-rollback-7/12"] {
            assert!(Staging::has(ours.as_bytes()), "{ours}");
        }
        for other in [
            ".lockstep-rollback.log",
            ".lockstep-rollback-",
            "a/.lockstep-rollback",
        ] {
            assert!(!Staging::has(other.as_bytes()), "{other}");
        }
    }
}
