//! What the kernel and we agree on when the file system is mounted.

use std::io;

use fuser::{InitFlags, KernelConfig};
use lockstep_types::limits::WRITE_BYTES_MAX;

use super::MountError;

/// The first Linux whose FUSE has all of [`NEEDED`].
pub(super) const OLDEST_KERNEL: (u32, u32) = (6, 6);

/// Without one of these the mount would not keep what `docs/semantics.md` promises. All are there
/// since [`OLDEST_KERNEL`].
const NEEDED: InitFlags = InitFlags::FUSE_EXPORT_SUPPORT
    // a umask must wait for the default ACL of the directory
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES);

/// These make it faster.
///
/// Not among them, on purpose: `WRITEBACK_CACHE` (acknowledges before the peer has the bytes),
/// `ATOMIC_O_TRUNC` (a truncation is an operation of its own), `POSIX_LOCKS` and `FLOCK_LOCKS`
/// (the kernel keeps the locks of the one mount itself), `AUTO_INVAL_DATA` (nobody changes a file
/// behind the kernel).
const WANTED: [InitFlags; 6] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// Most requests that nobody waits for in person (read-ahead, asynchronous input and output).
pub(super) const BACKGROUND_MAX: u16 = 256;

/// Looks whether the kernel of this release (as `uname -r` has it) has what is needed, before it is
/// asked. What a release that says nothing has, shows when it is asked.
pub(super) fn check_kernel(release: &str) -> Result<(), MountError> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    match (number(), number()) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST_KERNEL => {
            let found = release.to_owned();
            Err(MountError::KernelTooOld { found })
        }
        _ => Ok(()),
    }
}

/// Sets up the connection.
pub(super) fn negotiate(config: &mut KernelConfig) -> io::Result<()> {
    config.add_capabilities(NEEDED).map_err(too_old)?;
    for flag in WANTED {
        // a kernel without it works, only slower
        let _ = config.add_capabilities(flag);
    }
    let write_max = u32::try_from(WRITE_BYTES_MAX).unwrap_or(u32::MAX);
    config.set_max_write(write_max).map_err(refused)?;
    config.set_max_background(BACKGROUND_MAX).map_err(refused)?;
    Ok(())
}

fn too_old(missing: InitFlags) -> io::Error {
    let names: Vec<_> = missing.iter_names().map(|(name, _)| name).collect();
    let text = format!(
        "this kernel's FUSE lacks {}: use Linux {}.{} or newer",
        names.join(", "),
        OLDEST_KERNEL.0,
        OLDEST_KERNEL.1
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
}

fn refused<T: std::fmt::Display>(nearest: T) -> io::Error {
    io::Error::other(format!("a limit is out of range, nearest is {nearest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_too_old_is_refused_before_it_is_asked() {
        for fine in ["6.6.0", "6.12.41+deb13-amd64", "7.0-rc1", "mine"] {
            check_kernel(fine).unwrap();
        }
        for old in ["6.1.0-37-amd64", "5.15.0", "6.5"] {
            let refused = check_kernel(old).unwrap_err().to_string();
            assert!(
                refused.contains(old) && refused.contains("6.6 or newer"),
                "{refused}"
            );
        }
    }
}
