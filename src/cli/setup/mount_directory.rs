//! Write protection of the mount directory while nothing is mounted there.
//!
//! A file that a program writes into the bare directory lands on another disk than the datastore and on one
//! server only. The mount of the datastore then hides the file.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{IFlags, Mode, fchmod, ioctl_getflags, ioctl_setflags};

/// The protection of a mount directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Protection {
    /// No user can write into it, not even root, until `chattr -i`.
    Immutable,
    /// Only root can write into it.
    ReadOnly,
    /// None: the directory is not empty, or something is mounted there.
    InUse,
    /// None: the file system supports neither.
    Refused,
}

impl Protection {
    /// The word in JSON.
    pub(in crate::cli) const fn word(self) -> &'static str {
        match self {
            Self::Immutable => "immutable",
            Self::ReadOnly => "read-only",
            Self::InUse => "in-use",
            Self::Refused => "refused",
        }
    }

    /// The text for people.
    pub(in crate::cli) fn text(self, mount: &Path) -> String {
        let mount = mount.display();
        match self {
            Self::Immutable => format!(
                "immutable: no user can write into {mount} while nothing is mounted there \
                 (undo: chattr -i {mount})"
            ),
            Self::ReadOnly => format!(
                "read-only: while nothing is mounted on {mount}, only root can write into it \
                 (undo: chmod 755 {mount})"
            ),
            Self::InUse => format!(
                "unchanged, because it is not empty: the files in {mount} are not part of the datastore, and hidden \
                 while the datastore is mounted"
            ),
            Self::Refused => format!(
                "writable: the file system of {mount} supports no protection; files that programs write \
                 there while nothing is mounted are not part of the datastore"
            ),
        }
    }
}

/// Makes an existing, empty mount directory immutable. If the file system does not support that, makes it read-only.
pub(in crate::cli) fn protect(mount: &Path) -> Protection {
    if !is_bare_and_empty(mount) {
        return Protection::InUse;
    }
    let Ok(directory) = File::open(mount) else {
        return Protection::Refused;
    };
    if is_immutable(&directory) || set_immutable(&directory, true).is_ok() {
        return Protection::Immutable;
    }
    match fchmod(&directory, Mode::from_raw_mode(0o555)) {
        Ok(()) => Protection::ReadOnly,
        Err(_) => Protection::Refused,
    }
}

fn is_bare_and_empty(mount: &Path) -> bool {
    let Ok(path) = mount.canonicalize() else {
        return false;
    };
    let mounts = lockstep_mount::mount_table::mounts_on(&path);
    let is_bare = mounts.is_ok_and(|mounts| mounts.is_empty());
    is_bare
        && path
            .read_dir()
            .is_ok_and(|mut entries| entries.next().is_none())
}

fn is_immutable(directory: &File) -> bool {
    ioctl_getflags(directory).is_ok_and(|flags| flags.contains(IFlags::IMMUTABLE))
}

fn set_immutable(directory: &File, immutable: bool) -> io::Result<()> {
    let mut flags = ioctl_getflags(directory)?;
    flags.set(IFlags::IMMUTABLE, immutable);
    Ok(ioctl_setflags(directory, flags)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Root may write into a directory of any mode, but not into an immutable one.
    #[test]
    fn an_empty_directory_is_protected_and_can_be_released() {
        let root = tempfile::tempdir().unwrap();
        let mount = root.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        let protection = protect(&mount);
        assert_eq!(protect(&mount), protection, "a second time");
        let written = std::fs::write(mount.join("file"), "");
        let directory = File::open(&mount).unwrap();
        match protection {
            Protection::Immutable => {
                assert_eq!(written.unwrap_err().raw_os_error(), Some(1));
                set_immutable(&directory, false).unwrap();
            }
            Protection::ReadOnly => {
                let mode = mount.metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o555);
                return;
            }
            other => panic!("{other:?}"),
        }
        std::fs::write(mount.join("file"), "").unwrap();
        assert_eq!(protect(&mount), Protection::InUse);
        std::fs::write(mount.join("file"), "still writable").unwrap();
    }
}
