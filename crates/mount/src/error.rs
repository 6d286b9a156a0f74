//! Errors of a mount. Every message names the cause and the cure.

use std::io;
use std::path::PathBuf;

use crate::hold::HoldError;

fn device_cure(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        return "run as root (CAP_SYS_ADMIN)";
    }
    "load the kernel module (modprobe fuse), or give the container the device (--device /dev/fuse)"
}

/// Why a datastore could not be mounted, kept mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each is documented by its message
pub enum MountError {
    #[error("/dev/fuse cannot be used ({source}): {}", device_cure(source))]
    NoFuse { source: io::Error },
    #[error(
        "this kernel is Linux {found}, whose FUSE lacks features that Lockstep needs: use {oldest} or newer (on Debian 12 \
         from bookworm-backports)"
    )]
    KernelTooOld { found: String, oldest: String },
    #[error("mount point {} does not exist: create it (mkdir -p {0})", mount_point.display())]
    Missing { mount_point: PathBuf },
    #[error("mount point {} is not a directory: name a directory", mount_point.display())]
    NotADirectory { mount_point: PathBuf },
    #[error(
        "mount point {} holds {what}, whose process is gone: remove it (umount -l {0})",
        mount_point.display()
    )]
    Dead { mount_point: PathBuf, what: String },
    #[error(
        "mount point {} already has {what} mounted: unmount that (umount {0}), or name another \
         directory",
        mount_point.display()
    )]
    AlreadyMounted { mount_point: PathBuf, what: String },
    #[error(
        "mount point {} already has {what} mounted: another node serves it there; stop that node first",
        mount_point.display()
    )]
    Served { mount_point: PathBuf, what: String },
    #[error("not allowed to mount on {}: run as root (CAP_SYS_ADMIN)", mount_point.display())]
    NotPermitted { mount_point: PathBuf },
    #[error("cannot look at mount point {}: {source}", mount_point.display())]
    Inspect {
        mount_point: PathBuf,
        source: io::Error,
    },
    #[error("cannot get the mount that an earlier process has left: {source}")]
    Held { source: HoldError },
    #[error("cannot read the mount table /proc/self/mountinfo (is /proc mounted?): {source}")]
    Table { source: io::Error },
    #[error("cannot mount on {}: {source}", mount_point.display())]
    Mount {
        mount_point: PathBuf,
        source: io::Error,
    },
    #[error("the kernel and Lockstep did not agree on {}: {source}", mount_point.display())]
    Init {
        mount_point: PathBuf,
        source: io::Error,
    },
    #[error("the mount on {} has failed: {source}", mount_point.display())]
    Session {
        mount_point: PathBuf,
        source: io::Error,
    },
    #[error(
        "answering a {operation} request broke an invariant of Lockstep (the program got an I/O \
         error): {message}"
    )]
    Panicked {
        operation: &'static str,
        message: String,
    },
    #[error(
        "cannot unmount {}: {source}; end the programs that use it, then umount -l it",
        mount_point.display()
    )]
    Unmount {
        mount_point: PathBuf,
        source: io::Error,
    },
    #[error(
        "another file system has been mounted over {}: unmount that first (umount {0})",
        mount_point.display()
    )]
    Covered { mount_point: PathBuf },
}
