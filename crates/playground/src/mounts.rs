//! Finding and removing mounts.
//!
//! No function here calls a mounted file system: its process may be dead.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// Whether something is mounted at exactly `path`, which must be free of symbolic links.
pub(crate) fn is_mounted(path: &Path) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(true);
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |directory: BorrowedFd<'_>, path: &Path, resolve| {
        openat2(directory, path, flags, Mode::empty(), resolve)
    };
    // The kernel refuses the step from the parent onto a mount before it asks the mounted file system.
    let opened = open(CWD, parent, ResolveFlags::empty())
        .and_then(|parent| open(parent.as_fd(), Path::new(name), ResolveFlags::NO_XDEV));
    match opened {
        Ok(_) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::XDEV) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Removes every mount at `path`, also one whose process is dead. Calls that wait in it end with an error.
pub(crate) fn unmount_all(path: &Path) -> io::Result<()> {
    while is_mounted(path)? {
        unmount(path, UnmountFlags::FORCE | UnmountFlags::DETACH)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_recognized() {
        assert!(is_mounted(Path::new("/")).unwrap());
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/proc/self")).unwrap());
        assert!(!is_mounted(Path::new("/proc/missing/missing")).unwrap());
        unmount_all(Path::new("/proc/sys")).unwrap();
    }
}
