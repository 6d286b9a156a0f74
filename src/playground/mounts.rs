//! What is mounted, and how to be rid of it.

use std::path::Path;

use anyhow::Result;
use lockstepfs::fuse::mount_table::mounts_on;
use rustix::mount::{UnmountFlags, unmount};

/// Whether something is mounted at exactly `path`, which must be free of symbolic links.
pub(super) fn is_mounted(path: &Path) -> Result<bool> {
    Ok(!mounts_on(path)?.is_empty())
}

/// Unmounts whatever is mounted at `path`, also when the process behind it is dead.
pub(super) fn unmount_all(path: &Path) -> Result<()> {
    while is_mounted(path)? {
        unmount(path, UnmountFlags::DETACH)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_is_seen() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/proc/self")).unwrap());
        unmount_all(Path::new("/proc/self")).unwrap();
    }
}
