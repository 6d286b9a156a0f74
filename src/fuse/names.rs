//! `lookup` and `link` requests.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, ReplyEntry};
use lockstep_types::{Attr, Errno, Ino, MetaRequest};

use super::attributes::{file_name, ino};
use super::context::Context;
use super::refuse::Refuse;
use super::reply;
use super::resent::RequestDelivery;

/// Looks up `name`. The kernel sends `.` and `..` to find an inode of a file handle after it has forgotten the
/// inode.
pub(super) fn look_up(context: &Context, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
    let service = context.service();
    let found = ino(parent).and_then(|parent| match name.as_bytes() {
        b"." => revive(context, parent),
        b".." => service.lookup_parent(parent),
        _ => service.lookup(parent, &file_name(name)?),
    });
    match found {
        Err(Errno::NoEntry) if name != "." && name != ".." => reply::no_entry(reply),
        found => reply::entry(context, reply, found),
    }
}

/// Finds an inode by its number. No directory is locked, so the inode could be removed at any moment: a reference
/// keeps it alive while its attributes are read.
fn revive(context: &Context, ino: Ino) -> Result<Attr, Errno> {
    let service = context.service();
    service.remembered(ino, 1);
    let found = service.getattr(ino);
    service.forgotten(ino, 1);
    found
}

/// Gives an inode one more name, in a directory.
pub(super) fn link(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    node: INodeNo,
    (parent, name): (INodeNo, &OsStr),
    reply: ReplyEntry,
) {
    let planned = || {
        let (ino, parent, name) = (ino(node)?, ino(parent)?, file_name(name)?);
        Ok((ino, MetaRequest::Link { ino, parent, name }))
    };
    let (ino, change) = match planned() {
        Ok(planned) => planned,
        Err(errno) => return Refuse::refuse(reply, errno),
    };
    let shared = Arc::clone(context);
    let done = move |outcome: Result<Option<Attr>, Errno>| {
        let attr = outcome.and_then(|attr| shared.attributes(ino, attr));
        reply::entry(&shared, reply, attr);
    };
    context.change_delivered(delivery, change, Box::new(done));
}
