//! The names in requests, and `lookup`, `link` and `rename` requests.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, RenameFlags, ReplyEntry};
use lockstep_driver::client::FileService;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, SnapshotIno};

use super::attributes::{file_name, ino, rename_mode};
use super::create;
use super::reply;
use crate::admission::context::Context;
use crate::admission::refuse::Refuse;
use crate::memory::delivery::RequestDelivery;
use crate::resume::resent;

/// The inode that a `lookup` asks for.
#[derive(Clone, Debug)]
pub(crate) enum LookupTarget {
    /// The directory itself: `.`.
    Own,
    /// The directory above: `..`.
    Above,
    /// The inode behind a name.
    Entry(FileName),
}

impl LookupTarget {
    /// The target that a name means. The kernel sends `.` and `..` to find an inode of a file handle after it has
    /// forgotten the inode.
    pub fn of(name: &OsStr) -> Result<Self, Errno> {
        match name.as_bytes() {
            b"." => Ok(Self::Own),
            b".." => Ok(Self::Above),
            _ => file_name(name).map(Self::Entry),
        }
    }
}

impl LookupTarget {
    /// Whether the name leads to the snapshots, which each node shows.
    pub fn is_entrance(&self, parent: INodeNo) -> bool {
        match self {
            Self::Entry(name) => {
                ino(parent).is_ok_and(|parent| SnapshotIno::is_entrance(parent, name))
            }
            Self::Own | Self::Above => false,
        }
    }
}

/// A name in a directory, as a request gives them.
pub(crate) fn entry(parent: INodeNo, name: &OsStr) -> Result<(Ino, FileName), Errno> {
    Ok((ino(parent)?, file_name(name)?))
}

/// The change that a `rename` asks for, by a program of this user and group.
pub(crate) fn rename(
    service: &dyn FileService,
    (parent, name): (Ino, FileName),
    (new_parent, new_name): (Ino, FileName),
    flags: RenameFlags,
    owner: (u32, u32),
) -> Result<MetaRequest, Errno> {
    Ok(MetaRequest::Rename {
        parent,
        name,
        new_parent,
        new_name,
        mode: rename_mode(flags, || create::whiteout(service, owner))?,
    })
}

/// Looks up an inode.
pub(crate) fn look_up(
    context: &Context,
    parent: INodeNo,
    target: Result<LookupTarget, Errno>,
    reply: ReplyEntry,
) {
    let is_entry = !matches!(target, Ok(LookupTarget::Own | LookupTarget::Above));
    let found = ino(parent).and_then(|parent| match target? {
        LookupTarget::Own => context.service.revive(parent),
        LookupTarget::Above => context.service.lookup_parent(parent),
        LookupTarget::Entry(name) => context.service.lookup(parent, &name),
    });
    match found {
        Err(Errno::NoEntry) if is_entry => reply::no_entry(context, parent, reply),
        found => reply::entry(context, parent, reply, found),
    }
}

/// Gives an inode one more name, in a directory.
pub(crate) fn link(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    node: INodeNo,
    (parent, name): (INodeNo, Result<FileName, Errno>),
    reply: ReplyEntry,
) {
    let planned = || {
        let (ino, parent, name) = (ino(node)?, ino(parent)?, name?);
        Ok((ino, MetaRequest::Link { ino, parent, name }))
    };
    let (ino, change) = match planned() {
        Ok(planned) => planned,
        Err(errno) => return Refuse::refuse(reply, errno),
    };
    let shared = Arc::clone(context);
    let done = move |outcome: Result<Option<Attr>, Errno>| {
        let attr = outcome.and_then(|attr| shared.attributes(ino, attr));
        reply::entry(&shared, parent, reply, attr);
    };
    resent::submit(&context.service, delivery, change, Box::new(done));
}
