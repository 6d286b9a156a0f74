//! One inode of the directory that is adopted, and its record in the store.
//!
//! An inode is reached from the descriptor of its directory, by one name: no path gets too long, and no symbolic link is
//! followed. Only regular files and directories are opened. Nothing here changes the directory, not even access times
//! if the process may keep them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lockstep_types::mode::MODE_BITS;
use lockstep_types::xattr::{ACCESS_ACL, DEFAULT_ACL, XattrNamespace};
use lockstep_types::{Generation, Ino, InodeFlags, NodeKind, Osn, Timestamp, limits};
use rustix::fs::{
    AtFlags, IFlags, Mode, OFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp, makedev,
};
use rustix::io::Errno;

use super::error::{FailedSourceCall, Reason};
use crate::backing::os_backing::MountPlace;
use crate::namespace::acl::Acl;
use crate::namespace::record::{Body, FIRST_COOKIE, Inode, ModeAndFlags};
use crate::text::escaped;

/// The number of all records of an adoption: before any operation, and yet not that of an empty store.
pub(super) const ADOPTED: Osn = Osn {
    generation: Generation::FIRST,
    sequence: 1,
};

const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// Flags that a store keeps, as the file system and as the store number them.
const FLAGS: [(IFlags, InodeFlags); 4] = [
    (IFlags::IMMUTABLE, InodeFlags::IMMUTABLE),
    (IFlags::APPEND, InodeFlags::APPEND_ONLY),
    (IFlags::NODUMP, InodeFlags::NO_DUMP),
    (IFlags::NOATIME, InodeFlags::NO_ATIME),
];

/// Extended attributes with their values.
pub(super) type SourceXattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// An inode as its file system shows it.
pub(super) struct SourceInode {
    stat: Statx,
    /// Open, if it is a regular file or a directory.
    pub fd: Option<OwnedFd>,
    flags: InodeFlags,
    xattrs: SourceXattrs,
    target: Vec<u8>,
}

/// Opens a file or directory without touching access times if that is permitted.
pub(super) fn open(at: BorrowedFd<'_>, name: &[u8], more: OFlags) -> Result<OwnedFd, Errno> {
    let open = |flags| rustix::fs::openat(at, name, flags, Mode::empty());
    match open(OPEN | more | OFlags::NOATIME) {
        Err(Errno::PERM) => open(OPEN | more),
        opened => opened,
    }
}

/// The attributes of an inode, without its flags and extended attributes.
pub(super) fn stat(at: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
    let how = if name.is_empty() {
        AtFlags::EMPTY_PATH
    } else {
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT
    };
    let what = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    rustix::fs::statx(at, name, how, what)
}

/// Device and inode number.
pub(super) fn identity_of(stat: &Statx) -> (u64, u64) {
    (
        makedev(stat.stx_dev_major, stat.stx_dev_minor),
        stat.stx_ino,
    )
}

/// Where the inode lies.
pub(super) fn place_of(stat: &Statx) -> MountPlace {
    MountPlace {
        device: identity_of(stat).0,
        mount: stat.stx_mnt_id,
    }
}

/// The kind of inode.
pub(super) fn kind_of(stat: &Statx) -> Option<NodeKind> {
    NodeKind::from_mode(stat.stx_mode.into())
}

/// Bytes of data, roughly; holes are none.
pub(super) fn data_bytes(stat: &Statx) -> u64 {
    stat.stx_size.min(stat.stx_blocks.saturating_mul(512))
}

impl SourceInode {
    /// Reads the inode of a name, of which `stat` is known; the directory itself with an empty name.
    pub fn read(at: BorrowedFd<'_>, name: &[u8], stat: Statx) -> Result<Self, FailedSourceCall> {
        let mut inode = Self {
            stat,
            fd: None,
            flags: InodeFlags::NONE,
            xattrs: Vec::new(),
            target: Vec::new(),
        };
        let kind = kind_of(&stat);
        if let Some(NodeKind::File | NodeKind::Directory) = kind {
            let name = if name.is_empty() { b"." } else { name };
            let fd = open(at, name, OFlags::empty()).map_err(|errno| ("open", errno))?;
            inode.flags = flags_of(&fd);
            inode.xattrs = xattrs(&Attributes::Open(fd.as_fd()))?;
            inode.fd = Some(fd);
        } else {
            inode.xattrs = xattrs(&Attributes::Named(path_of(at, name)))?;
        }
        if kind == Some(NodeKind::Symlink) {
            let target = rustix::fs::readlinkat(at, name, Vec::new());
            inode.target = target
                .map_err(|errno| ("read the link", errno))?
                .into_bytes();
        }
        Ok(inode)
    }

    /// The kind of inode; `None` for a kind that Linux did not have so far.
    pub fn kind(&self) -> Option<NodeKind> {
        kind_of(&self.stat)
    }

    /// Whether the file system lets no rename take the file out of its directory, or no program change it.
    pub fn is_sealed(&self) -> bool {
        let sealed = StatxAttributes::ENCRYPTED.union(StatxAttributes::VERITY);
        self.stat.stx_attributes.intersects(sealed)
    }

    /// Why a store cannot hold the inode.
    pub fn problem(&self) -> Option<Reason> {
        let problem = match self.kind() {
            None => Some(Reason::UnknownKind),
            Some(NodeKind::File) if self.stat.stx_size > limits::FILE_BYTES_MAX => {
                Some(Reason::TooLarge(self.stat.stx_size))
            }
            Some(NodeKind::Symlink)
                if !(1..=limits::SYMLINK_BYTES_MAX).contains(&self.target.len()) =>
            {
                Some(Reason::TargetTooLong)
            }
            Some(NodeKind::CharDevice | NodeKind::BlockDevice) if self.rdev().is_none() => Some(
                Reason::DeviceNumber(self.stat.stx_rdev_major, self.stat.stx_rdev_minor),
            ),
            _ => None,
        };
        problem.or_else(|| self.xattr_problem())
    }

    fn xattr_problem(&self) -> Option<Reason> {
        let listed: usize = self.xattrs.iter().map(|(name, _)| name.len() + 1).sum();
        let is_held = |(name, value): &&(Vec<u8>, Vec<u8>)| {
            XattrNamespace::of(name).is_ok()
                && name.len() <= limits::XATTR_NAME_BYTES_MAX
                && value.len() <= limits::XATTR_VALUE_BYTES_MAX
                && (!is_list(name) || Acl::parse(value).is_ok())
        };
        let refused = self.xattrs.iter().find(|xattr| !is_held(xattr));
        let refused = refused.map(|(name, _)| Reason::Xattr(escaped(name)));
        let fits = listed <= limits::XATTR_LIST_BYTES_MAX;
        refused.or_else(|| (!fits).then(|| Reason::Xattr("names, which are too many".to_owned())))
    }

    /// The device number, as a store keeps it.
    fn rdev(&self) -> Option<u32> {
        let (major, minor) = (self.stat.stx_rdev_major, self.stat.stx_rdev_minor);
        let fits = major < 1 << 12 && minor < 1 << 20;
        fits.then_some(minor & 0xff | major << 8 | (minor & !0xff) << 12)
    }

    /// The record of the inode with one name, in the directory `parent` if it is a directory itself. It has no entries yet.
    pub fn record(&self, parent: Ino) -> Inode {
        let kind = self.kind().unwrap_or(NodeKind::File);
        let stat = &self.stat;
        let mut mode = u32::from(stat.stx_mode) & MODE_BITS;
        if kind == NodeKind::Symlink {
            mode = 0o777;
        } else if let Some(list) = self.list(ACCESS_ACL) {
            mode = mode & 0o7000 | list.mode_bits();
        }
        Inode {
            bits: ModeAndFlags {
                mode,
                flags: self.flags,
            },
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            nlink: if kind == NodeKind::Directory { 2 } else { 1 },
            atime: time(&stat.stx_atime),
            mtime: time(&stat.stx_mtime),
            ctime: time(&stat.stx_ctime),
            osn: ADOPTED,
            body: self.body(kind, parent),
            named_at: None,
        }
    }

    fn body(&self, kind: NodeKind, parent: Ino) -> Body {
        let rdev = self.rdev().unwrap_or(0);
        match kind {
            NodeKind::File => Body::File {
                size: self.stat.stx_size,
            },
            NodeKind::Directory => Body::Directory {
                parent,
                next_cookie: FIRST_COOKIE,
                entries: 0,
            },
            NodeKind::Symlink => Body::Symlink {
                target: self.target.clone(),
            },
            NodeKind::Fifo => Body::Fifo,
            NodeKind::Socket => Body::Socket,
            NodeKind::CharDevice => Body::CharDevice { rdev },
            NodeKind::BlockDevice => Body::BlockDevice { rdev },
        }
    }

    fn list(&self, name: &[u8]) -> Option<Acl> {
        let (_, value) = self.xattrs.iter().find(|(found, _)| found == name)?;
        Acl::parse(value).ok().flatten()
    }

    /// The extended attributes, as a store keeps them: an access control list that says no more than the mode is none.
    pub fn kept_xattrs(&self) -> impl Iterator<Item = (&[u8], Vec<u8>)> {
        let kept = |(name, value): &'_ (Vec<u8>, Vec<u8>)| match &name[..] {
            ACCESS_ACL => {
                let list = self.list(ACCESS_ACL).filter(|list| !list.is_only_mode());
                list.map(|list| list.to_bytes())
            }
            DEFAULT_ACL => self.list(DEFAULT_ACL).map(|list| list.to_bytes()),
            _ => Some(value.clone()),
        };
        let xattrs = self.xattrs.iter();
        xattrs.filter_map(move |xattr| Some((&xattr.0[..], kept(xattr)?)))
    }
}

fn is_list(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

pub(super) fn time(time: &StatxTimestamp) -> Timestamp {
    Timestamp {
        secs: time.tv_sec,
        nanos: time.tv_nsec,
    }
}

/// The flags that a store keeps. A file system without flags has none.
fn flags_of(fd: &OwnedFd) -> InodeFlags {
    let found = rustix::fs::ioctl_getflags(fd).unwrap_or(IFlags::empty());
    FLAGS
        .iter()
        .filter(|(theirs, _)| found.contains(*theirs))
        .fold(InodeFlags::NONE, |all, (_, own)| all.union(*own))
}

/// Sets or clears the flags of an open inode that keep its names and its bytes as they are.
pub(super) fn set_restricting(fd: BorrowedFd<'_>, flags: InodeFlags) -> Result<(), Errno> {
    let mut all = rustix::fs::ioctl_getflags(fd)?;
    for (theirs, own) in FLAGS {
        if own.intersects(InodeFlags::RESTRICTING) {
            all.set(theirs, flags.intersects(own));
        }
    }
    rustix::fs::ioctl_setflags(fd, all)
}

/// A path to a name of an open directory that is never too long.
fn path_of(at: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let directory = format!("/proc/self/fd/{}/", at.as_raw_fd());
    [directory.as_bytes(), name].concat()
}

/// How the extended attributes of an inode are reached.
enum Attributes<'a> {
    Open(BorrowedFd<'a>),
    Named(Vec<u8>),
}

impl Attributes<'_> {
    fn list(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => rustix::fs::flistxattr(fd, buffer),
            Self::Named(path) => rustix::fs::llistxattr(&path[..], buffer),
        }
    }

    fn get(&self, name: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => rustix::fs::fgetxattr(fd, name, buffer),
            Self::Named(path) => rustix::fs::lgetxattr(&path[..], name, buffer),
        }
    }
}

fn xattrs(attributes: &Attributes<'_>) -> Result<SourceXattrs, FailedSourceCall> {
    let failed = |errno| ("read the extended attributes", errno);
    let names = match filled(|buffer| attributes.list(buffer)) {
        Err(Errno::OPNOTSUPP) => Vec::new(),
        names => names.map_err(failed)?,
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|it| !it.is_empty()) {
        match filled(|buffer| attributes.get(name, buffer)) {
            Ok(value) => found.push((name.to_vec(), value)),
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The bytes of a call that fails while the buffer is too short.
fn filled(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match call(&mut buffer) {
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            filled => {
                buffer.truncate(filled?);
                return Ok(buffer);
            }
        }
    }
}
