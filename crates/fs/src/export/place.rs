//! Making nodes of the exported tree with all their attributes.
//!
//! Every inode is reached from the descriptor of its new directory, by one name: no path gets too long, and no symbolic
//! link is followed. The order matters: an owner before a mode (changing the owner drops set-id bits), attributes
//! before the mode (a list changes it), times last.
//!
//! A part that the destination cannot hold is reported ([`Loss`]) and left out. If a name or content is left out, no
//! file is created, or the new file is removed. Invariants: the name of another inode is never taken over, even if two
//! names are one to the destination, as in a file system that ignores case. A loss never gives a user more rights than
//! the datastore gives. A file whose owner is lost has no set-id bits. A file whose access control list is lost gives
//! its group the rights that the list gives.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lockstep_types::mode::SET_ID;
use lockstep_types::{Attr, NodeKind, Timestamp};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::namespace::acl::{self, Acl};

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
/// Lists that a directory may have inherited from its parent.
const LISTS: [&[u8]; 2] = [acl::ACCESS, acl::DEFAULT];
const GROUP_BITS: u32 = 0o070;

/// Extended attributes with their values.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The failed operation on an inode, and its error.
pub(super) type FailedCall = (&'static str, Errno);

/// A part of an inode that the destination could not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The inode itself: a device, a pipe, a socket or a symbolic link.
    Node,
    /// A regular file by its name.
    Name,
    /// A regular file of its size.
    Content,
    /// A directory by its name, with its content.
    Directory,
    /// An inode in a directory that could not be created.
    Below,
    /// The link between several names of one inode: each name leads to a copy.
    Links,
    /// Owner and group, and with them the set-id bits.
    Owner,
    /// The extended attribute of this name, access control lists among them.
    Xattr(Vec<u8>),
    /// The permission bits.
    Mode,
    /// The times of access and modification.
    Times,
}

impl Loss {
    /// Whether a name is missing from the destination.
    pub(super) const fn is_of_name(&self) -> bool {
        use Loss::{Below, Content, Directory, Name, Node};
        matches!(self, Node | Name | Content | Directory | Below)
    }
}

/// Losses, each with the error of the operating system.
pub(super) type Losses = Vec<(Loss, Errno)>;

/// A new inode, or the error that shows that the destination cannot hold it.
pub(super) type Created<T> = Result<T, Errno>;

/// Whether an error shows a limit of the destination, and no failure.
pub(super) fn is_unable(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PERM
            | Errno::ACCESS
            | Errno::INVAL
            | Errno::NOSYS
            | Errno::OPNOTSUPP
            | Errno::OVERFLOW
            | Errno::RANGE
            | Errno::TOOBIG
            | Errno::MLINK
    )
}

/// The same for an extended attribute. File systems with little room for the attributes of a file report missing space.
/// If the disk is really full, the next content reports it.
fn is_unable_to_keep_xattr(errno: Errno) -> bool {
    is_unable(errno) || matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::NAMETOOLONG)
}

/// Whether `done` succeeded; notes a loss.
fn kept(
    done: Result<(), Errno>,
    operation: &'static str,
    loss: Loss,
    losses: &mut Losses,
) -> Result<bool, FailedCall> {
    match done {
        Ok(()) => Ok(true),
        Err(errno) if is_unable(errno) => {
            losses.push((loss, errno));
            Ok(false)
        }
        Err(errno) => Err((operation, errno)),
    }
}

/// Whether an error shows that the destination cannot hold a name or that much content: too long, with bytes or
/// characters that it does not take (vfat answers `ENOENT` to a name of dots only), or equal to another name.
fn is_unable_to_hold(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::ILSEQ
            | Errno::NOENT
            | Errno::EXIST
            | Errno::MLINK
            | Errno::FBIG
    )
}

/// Tells a limit of the destination from its failure.
pub(super) fn classify<T>(
    done: Result<T, Errno>,
    operation: &'static str,
) -> Result<Created<T>, FailedCall> {
    match done {
        Err(errno) if is_unable_to_hold(errno) => Ok(Err(errno)),
        done => done.map(Ok).map_err(failed(operation)),
    }
}

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> FailedCall {
    move |errno| (operation, errno)
}

/// An existing directory, by its place.
pub(super) fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, FailedCall> {
    rustix::fs::openat(at, name, DIRECTORY, Mode::empty()).map_err(failed("open"))
}

/// Makes a directory and opens it.
pub(super) fn make_directory(
    at: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Created<OwnedFd>, FailedCall> {
    let made = rustix::fs::mkdirat(at, name, PRIVATE_DIRECTORY);
    match classify(made, "make directory")? {
        Ok(()) => open_directory(at, name).map(Ok),
        Err(errno) => Ok(Err(errno)),
    }
}

/// Makes an empty file.
pub(super) fn make_file(at: BorrowedFd<'_>, name: &[u8]) -> Result<Created<File>, FailedCall> {
    let made = rustix::fs::openat(at, name, NEW_FILE, PRIVATE);
    classify(made.map(File::from), "make")
}

/// Removes a new file that cannot be completed.
pub(super) fn remove(at: BorrowedFd<'_>, name: &[u8]) -> Result<(), FailedCall> {
    rustix::fs::unlinkat(at, name, AtFlags::empty()).map_err(failed("remove"))
}

/// Gives a file or directory an unused name. Not every file system can do this in one call.
pub(super) fn rename_to_new(
    (from, old): (impl AsFd, &[u8]),
    (to, new): (impl AsFd, &[u8]),
) -> Result<(), Errno> {
    let at_once = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(&from, old, &to, new, at_once) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        done => return done,
    }
    match rustix::fs::statat(&to, new, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(_) => rustix::fs::renameat(&from, old, &to, new),
    }
}

/// Makes anything but a file or a directory, with its attributes.
pub(super) fn make_node(
    at: BorrowedFd<'_>,
    name: &[u8],
    attr: &Attr,
    target: &[u8],
    xattrs: &Xattrs,
) -> Result<Created<Losses>, FailedCall> {
    let no_follow = AtFlags::SYMLINK_NOFOLLOW;
    match make_bare_node(at, name, attr, target) {
        Err(errno) if is_unable_to_hold(errno) || is_unable(errno) => {
            return Ok(Err(errno));
        }
        made => made.map_err(failed("make"))?,
    }
    let mut losses = Losses::new();
    let path = [
        format!("/proc/self/fd/{}/", at.as_raw_fd()).as_bytes(),
        name,
    ]
    .concat();
    let (uid, gid) = owner(attr);
    let node = Setters {
        owner: &|| rustix::fs::chownat(at, name, uid, gid, no_follow),
        xattr: &|key, value| rustix::fs::lsetxattr(&path[..], key, value, XattrFlags::empty()),
        mode: &|mode| match attr.kind {
            NodeKind::Symlink => Ok(()),
            _ => rustix::fs::chmodat(at, name, mode, AtFlags::empty()),
        },
        times: &|times| rustix::fs::utimensat(at, name, times, no_follow),
    };
    node.apply(attr, xattrs, &mut losses)?;
    Ok(Ok(losses))
}

fn make_bare_node(
    at: BorrowedFd<'_>,
    name: &[u8],
    attr: &Attr,
    target: &[u8],
) -> Result<(), Errno> {
    let kind = match attr.kind {
        NodeKind::Symlink => return rustix::fs::symlinkat(target, at, name),
        NodeKind::Fifo => FileType::Fifo,
        NodeKind::Socket => FileType::Socket,
        NodeKind::CharDevice => FileType::CharacterDevice,
        NodeKind::BlockDevice => FileType::BlockDevice,
        // Made by `make_file` and `make_directory`.
        NodeKind::File | NodeKind::Directory => return Err(Errno::ISDIR),
    };
    rustix::fs::mknodat(at, name, kind, PRIVATE, attr.rdev.into())
}

/// Sets one extended attribute.
type SetXattr<'a> = dyn Fn(&[u8], &[u8]) -> Result<(), Errno> + 'a;

/// How one inode gets its attributes.
struct Setters<'a> {
    owner: &'a dyn Fn() -> Result<(), Errno>,
    xattr: &'a SetXattr<'a>,
    mode: &'a dyn Fn(Mode) -> Result<(), Errno>,
    times: &'a dyn Fn(&Timestamps) -> Result<(), Errno>,
}

impl Setters<'_> {
    /// Sets all attributes, in the order given at the head of this file.
    fn apply(&self, attr: &Attr, xattrs: &Xattrs, losses: &mut Losses) -> Result<(), FailedCall> {
        let owned = kept((self.owner)(), "set the owner of", Loss::Owner, losses)?;
        let mut mode = attr.mode;
        if !owned && attr.kind != NodeKind::Directory {
            mode &= !SET_ID;
        }
        for (name, value) in xattrs {
            if !self.keep_xattr(name, value, losses)? && name == acl::ACCESS {
                mode = mode_without_list(mode, value);
            }
        }
        let set = (self.mode)(Mode::from_raw_mode(mode));
        kept(set, "set the mode of", Loss::Mode, losses)?;
        let set = (self.times)(&times(attr));
        kept(set, "set the times of", Loss::Times, losses)?;
        Ok(())
    }

    fn keep_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        losses: &mut Losses,
    ) -> Result<bool, FailedCall> {
        match (self.xattr)(name, value) {
            Err(errno) if is_unable_to_keep_xattr(errno) => {
                losses.push((Loss::Xattr(name.to_vec()), errno));
                Ok(false)
            }
            done => {
                done.map_err(failed("set an extended attribute of"))?;
                Ok(true)
            }
        }
    }
}

/// Permission bits that give the group no more than the access control list gives it.
fn mode_without_list(mode: u32, list: &[u8]) -> u32 {
    match Acl::parse(list) {
        Ok(Some(list)) => mode & !GROUP_BITS | list.group_bits(),
        _ => mode,
    }
}

/// Gives an open file or directory its attributes.
pub(super) fn finish(
    fd: BorrowedFd<'_>,
    attr: &Attr,
    xattrs: &Xattrs,
) -> Result<Losses, FailedCall> {
    let (uid, gid) = owner(attr);
    let mut losses = Losses::new();
    let node = Setters {
        owner: &|| rustix::fs::fchown(fd, uid, gid),
        xattr: &|key, value| rustix::fs::fsetxattr(fd, key, value, XattrFlags::empty()),
        mode: &|mode| rustix::fs::fchmod(fd, mode),
        times: &|times| rustix::fs::futimens(fd, times),
    };
    node.apply(attr, xattrs, &mut losses)?;
    Ok(losses)
}

/// Removes inherited access control lists: every new inode below would inherit them too.
pub(super) fn drop_lists(fd: impl AsFd) -> Result<(), FailedCall> {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use lockstep_types::Ino;

    use super::*;

    /// `user::rwx user:5:rwx group::r-- mask::rwx other::---`, so mode 0770.
    const LIST: [u8; 44] = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 5, 0, 0, 0, 4, 0, 4, 0, 255, 255,
        255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];

    /// The mode that a file of mode 6770 with the list gets, and its losses.
    fn applied(owner: Result<(), Errno>, list: Result<(), Errno>) -> (u32, Losses) {
        let attr = Attr {
            mode: 0o6770,
            uid: 1,
            gid: 2,
            ..Attr::plain(Ino::ROOT.next(), NodeKind::File)
        };
        let given = Cell::new(0);
        let node = Setters {
            owner: &|| owner,
            xattr: &|_, _| list,
            mode: &|mode| {
                given.set(mode.as_raw_mode());
                Ok(())
            },
            times: &|_| Ok(()),
        };
        let mut losses = Losses::new();
        let xattrs = vec![(acl::ACCESS.to_vec(), LIST.to_vec())];
        node.apply(&attr, &xattrs, &mut losses).unwrap();
        (given.get(), losses)
    }

    #[test]
    fn a_loss_gives_no_user_more_rights() {
        assert_eq!(applied(Ok(()), Ok(())), (0o6770, vec![]));
        let lost = (Loss::Owner, Errno::PERM);
        assert_eq!(applied(Err(Errno::PERM), Ok(())), (0o770, vec![lost]));
        let lost = (Loss::Xattr(acl::ACCESS.to_vec()), Errno::OPNOTSUPP);
        assert_eq!(applied(Ok(()), Err(Errno::OPNOTSUPP)), (0o6740, vec![lost]));
    }
}
