//! The directory of the control socket: whether only this user and root can change the names in it.
//!
//! Programs that run as root open files beside the socket. Where others may write, they could put symbolic links and forged
//! files there.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Write permission of the group and of all others.
const OTHERS_WRITE: u32 = 0o022;
/// Write permission of all others.
const WORLD_WRITES: u32 = 0o002;
/// Only the owner of a name may remove it.
const STICKY: u32 = 0o1000;

/// Makes the directory, and those above it, for this user alone. A directory that is there stays as it is.
///
/// # Errors
/// The error of the system.
pub fn make(directory: &Path) -> io::Result<()> {
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700).create(directory)
}

/// Checks that no other user can change names in the directory, or replace a directory above it.
///
/// # Errors
/// `PermissionDenied` with the directory that others may change, or the error of a look at a directory.
pub fn check(directory: &Path) -> io::Result<()> {
    let directory = directory.canonicalize()?;
    for (depth, path) in directory.ancestors().enumerate() {
        let found = path.metadata()?;
        let is_safe = is_ours(&found)
            && if depth == 0 {
                found.mode() & OTHERS_WRITE == 0
            } else {
                found.mode() & WORLD_WRITES == 0 || found.mode() & STICKY != 0
            };
        if !is_safe {
            let why = format!(
                "other users may change names in {}: choose a directory that only its owner may write",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

fn is_ours(found: &Metadata) -> bool {
    found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_others_may_write_is_refused_wherever_it_is_on_the_way() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("inner");
        create_dir(&inner).unwrap();
        let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (outer_mode, inner_mode, is_safe) in [
            (0o755, 0o755, true),
            (0o755, 0o700, true),
            (0o755, 0o775, false),
            (0o755, 0o1777, false),
            (0o1777, 0o755, true),
            (0o777, 0o755, false),
        ] {
            mode(root.path(), outer_mode);
            mode(&inner, inner_mode);
            let checked = check(&inner);
            assert_eq!(checked.is_ok(), is_safe, "{outer_mode:o}, {inner_mode:o}");
        }
        mode(root.path(), 0o700);
        check(&inner.join("missing")).unwrap_err();
    }
}
