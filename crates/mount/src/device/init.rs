//! `FUSE_INIT`: the capabilities and limits that the kernel and Lockstep agree on when a datastore is mounted.

use std::io;

use fuser::{Filesystem, InitFlags, KernelConfig, Request};
use lockstep_types::limits::WRITE_BYTES_MAX;

use crate::error::MountError;

/// The first Linux whose FUSE has all of [`NEEDED`].
const OLDEST_KERNEL: (u32, u32) = (6, 6);

/// The first Linux that can drop all names which it caches (`FUSE_NOTIFY_INC_EPOCH`).
const EPOCHS_SINCE: (u32, u32) = (6, 16);

/// Capabilities without which a mount would break a promise of `docs/semantics.md`. The kernel has all of
/// them since [`OLDEST_KERNEL`].
const NEEDED: InitFlags = InitFlags::FUSE_EXPORT_SUPPORT
    // The default ACL of a directory replaces the umask, so the kernel must not apply the umask.
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    // `chattr` and `lsattr` of directories.
    .union(InitFlags::FUSE_HAS_IOCTL_DIR)
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES);

/// Capabilities that only make the mount faster.
///
/// Left out on purpose: `WRITEBACK_CACHE` (acknowledges a write before the peer has the bytes),
/// `ATOMIC_O_TRUNC` (a truncation is an operation of its own), `POSIX_LOCKS` and `FLOCK_LOCKS`
/// (the kernel keeps the locks of the one mount itself), `AUTO_INVAL_DATA` (no file changes behind the
/// kernel's back).
const WANTED: [InitFlags; 6] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// Most background requests of the kernel at a time (read-ahead, asynchronous input and output): no program
/// blocks in them.
pub(crate) const BACKGROUND_MAX: u16 = 256;

/// Checks by its release (as `uname -r` prints it) whether the kernel has the needed capabilities, before the
/// device is opened. A release that cannot be parsed passes: [`negotiate`] checks the capabilities themselves.
pub(crate) fn check_kernel(release: &str) -> Result<(), MountError> {
    match version(release) {
        Some(version) if version < OLDEST_KERNEL => {
            let (major, minor) = OLDEST_KERNEL;
            Err(MountError::KernelTooOld {
                found: release.to_owned(),
                oldest: format!("{major}.{minor}"),
            })
        }
        _ => Ok(()),
    }
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Whether the kernel can drop all names that it caches, by its release.
pub(crate) fn has_epochs() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    version(&release).is_some_and(|version| version >= EPOCHS_SINCE)
}

/// All capabilities that Lockstep asks for.
pub(crate) fn asked_for() -> InitFlags {
    WANTED.into_iter().fold(NEEDED, InitFlags::union)
}

/// Answers the INIT of the kernel, and nothing else.
pub(crate) struct Negotiator;

impl Filesystem for Negotiator {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config)
    }
}

/// Requests the capabilities and sets the limits of the session.
pub(crate) fn negotiate(config: &mut KernelConfig) -> io::Result<()> {
    config.add_capabilities(NEEDED).map_err(too_old)?;
    for flag in WANTED {
        // A kernel without the capability works too, only slower.
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
    fn a_kernel_that_is_too_old_is_refused_by_its_release() {
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
