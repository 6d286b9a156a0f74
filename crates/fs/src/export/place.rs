//! Making nodes of the exported tree with all their attributes.
//!
//! Everything is reached from descriptors of directories made here, one name at a time: no path
//! gets too long, and no symbolic link is followed. Order matters: an owner before a mode (changing
//! the owner drops set-id bits), attributes before the mode (a list changes it), times last.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lockstep_types::{Attr, NodeKind, Timestamp};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::from_raw_mode(0o600);
const PRIVATE_DIRECTORY: Mode = Mode::from_raw_mode(0o700);
/// Lists that a directory may have got from the one above it.
const LISTS: [&[u8]; 2] = [crate::acl::ACCESS, crate::acl::DEFAULT];

/// Extended attributes with their values.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What failed on a node.
pub(super) type Failure = (&'static str, Errno);

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> Failure {
    move |errno| (operation, errno)
}

/// An existing directory, by its place.
pub(super) fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Failure> {
    rustix::fs::openat(at, name, DIRECTORY, Mode::empty()).map_err(failed("open"))
}

/// Makes a directory and opens it.
pub(super) fn make_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Failure> {
    rustix::fs::mkdirat(at, name, PRIVATE_DIRECTORY).map_err(failed("make directory"))?;
    open_directory(at, name)
}

/// Makes an empty file.
pub(super) fn make_file(at: BorrowedFd<'_>, name: &[u8]) -> Result<File, Failure> {
    let made = rustix::fs::openat(at, name, NEW_FILE, PRIVATE);
    Ok(File::from(made.map_err(failed("make"))?))
}

/// Makes anything but a file or a directory, with its attributes.
pub(super) fn make_node(
    at: BorrowedFd<'_>,
    name: &[u8],
    attr: &Attr,
    target: &[u8],
    xattrs: &Xattrs,
) -> Result<(), Failure> {
    let no_follow = AtFlags::SYMLINK_NOFOLLOW;
    make_bare_node(at, name, attr, target)?;
    let (uid, gid) = owner(attr);
    rustix::fs::chownat(at, name, uid, gid, no_follow).map_err(failed("set the owner of"))?;
    let path = [
        format!("/proc/self/fd/{}/", at.as_raw_fd()).as_bytes(),
        name,
    ]
    .concat();
    for (name, value) in xattrs {
        rustix::fs::lsetxattr(&path[..], &name[..], value, XattrFlags::empty())
            .map_err(failed("set an extended attribute of"))?;
    }
    if attr.kind != NodeKind::Symlink {
        rustix::fs::chmodat(at, name, mode(attr), AtFlags::empty())
            .map_err(failed("set the mode of"))?;
    }
    rustix::fs::utimensat(at, name, &times(attr), no_follow).map_err(failed("set the times of"))
}

fn make_bare_node(
    at: BorrowedFd<'_>,
    name: &[u8],
    attr: &Attr,
    target: &[u8],
) -> Result<(), Failure> {
    let kind = match attr.kind {
        NodeKind::Symlink => {
            return rustix::fs::symlinkat(target, at, name).map_err(failed("make"));
        }
        NodeKind::Fifo => FileType::Fifo,
        NodeKind::Socket => FileType::Socket,
        NodeKind::CharDevice => FileType::CharacterDevice,
        NodeKind::BlockDevice => FileType::BlockDevice,
        NodeKind::File | NodeKind::Directory => return Err(("make", Errno::INVAL)),
    };
    rustix::fs::mknodat(at, name, kind, PRIVATE, attr.rdev.into()).map_err(failed("make"))
}

/// Gives an open file or directory its attributes.
pub(super) fn finish(fd: BorrowedFd<'_>, attr: &Attr, xattrs: &Xattrs) -> Result<(), Failure> {
    let (uid, gid) = owner(attr);
    rustix::fs::fchown(fd, uid, gid).map_err(failed("set the owner of"))?;
    for (name, value) in xattrs {
        rustix::fs::fsetxattr(fd, &name[..], value, XattrFlags::empty())
            .map_err(failed("set an extended attribute of"))?;
    }
    rustix::fs::fchmod(fd, mode(attr)).map_err(failed("set the mode of"))?;
    rustix::fs::futimens(fd, &times(attr)).map_err(failed("set the times of"))
}

/// Removes access control lists that were inherited: everything made below would get them.
pub(super) fn drop_lists(fd: impl AsFd) -> Result<(), Failure> {
    for name in LISTS {
        match rustix::fs::fremovexattr(&fd, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(("remove inherited access rules of", errno)),
        }
    }
    Ok(())
}

fn owner(attr: &Attr) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)))
}

fn mode(attr: &Attr) -> Mode {
    Mode::from_raw_mode(attr.mode)
}

fn times(attr: &Attr) -> Timestamps {
    let timespec = |time: Timestamp| Timespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    };
    Timestamps {
        last_access: timespec(attr.atime),
        last_modification: timespec(attr.mtime),
    }
}
