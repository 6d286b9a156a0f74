//! Extended attributes: the checks that the kernel leaves to the file system.
//!
//! Before a request arrives, the kernel (`fs/xattr.c`, and its capability module) checks the caller's right to
//! use `user.*`, `trusted.*`, `security.*` and the access control lists. The kernel checks nothing for other
//! names that begin with `system.`, and knows no other namespaces: this module refuses both, as ext4 does.
//! Values of the access control lists pass through to the service, which keeps them consistent with the
//! permission bits.

use std::cell::LazyCell;
use std::sync::Arc;

use fuser::{INodeNo, ReplyEmpty, ReplyXattr};
use lockstep_driver::client::FileService;
use lockstep_types::xattr::ACCESS_ACL;
use lockstep_types::{Errno, Ino, MetaRequest, XattrNamespace};

use super::attributes::{ino, xattr_mode};
use super::privileges::{self, Caller};
use super::reply;
use crate::admission::context::Context;
use crate::memory::delivery::RequestDelivery;
use crate::resume::change_note;

/// Answers with the value of an attribute.
pub(crate) fn answer(
    service: &dyn FileService,
    node: INodeNo,
    name: &[u8],
    room: u32,
    reply: ReplyXattr,
) {
    service.flush_deferred_writes();
    reply::sized(reply, room, get(service, node, name));
}

fn get(service: &dyn FileService, node: INodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
    XattrNamespace::of(name)?;
    service.getxattr(ino(node)?, name)
}

/// The change that removes an attribute.
pub(crate) fn remove_change(node: INodeNo, name: Vec<u8>) -> Result<Vec<MetaRequest>, Errno> {
    XattrNamespace::of(&name)?;
    let ino = ino(node)?;
    Ok(vec![MetaRequest::RemoveXattr { ino, name }])
}

/// Submits the changes of a request. The last one is the change of the attribute.
pub(crate) fn submit(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    changes: Result<Vec<MetaRequest>, Errno>,
    reply: ReplyEmpty,
) {
    match changes {
        Ok(changes) => {
            let done = Box::new(|outcome| reply::empty(reply, outcome));
            change_note::submit(context, delivery, changes, done);
        }
        Err(errno) => reply::empty::<()>(reply, Err(errno)),
    }
}

/// The changes that set an attribute. If it is an access ACL, the file loses its set-group-id bit unless the caller may
/// set that bit.
pub(crate) fn set_changes(
    service: &dyn FileService,
    caller: Caller,
    node: INodeNo,
    (name, value): (Vec<u8>, Vec<u8>),
    flags: i32,
) -> Result<Vec<MetaRequest>, Errno> {
    XattrNamespace::of(&name)?;
    let ino = ino(node)?;
    let mode = xattr_mode(flags)?;
    let first = if name == ACCESS_ACL {
        without_set_gid(service, caller, ino)?
    } else {
        None
    };
    let set = MetaRequest::SetXattr {
        ino,
        name,
        value,
        mode,
    };
    Ok(first.into_iter().chain([set]).collect())
}

fn without_set_gid(
    service: &dyn FileService,
    caller: Caller,
    ino: Ino,
) -> Result<Option<MetaRequest>, Errno> {
    let attr = service.getattr(ino)?;
    let mode = privileges::mode_after_acl(caller, &attr);
    Ok(mode.map(|mode| MetaRequest::SetAttr {
        ino,
        mode: Some(mode),
        uid: None,
        gid: None,
        atime: None,
        mtime: None,
    }))
}

/// Returns the names in `list` that `caller` may see. An old store may hold a name outside all namespaces, set
/// before namespaces were checked. Such a name is never listed, because its value cannot be read.
pub(crate) fn visible(list: &[u8], caller: Caller) -> Vec<u8> {
    let sees_trusted = LazyCell::new(|| caller.sees_trusted());
    let is_visible = |name: &&[u8]| match namespace_of_listed(name) {
        Ok(XattrNamespace::Trusted) => *sees_trusted,
        known => known.is_ok(),
    };
    let names = list.split_inclusive(|&byte| byte == 0);
    names.filter(is_visible).flatten().copied().collect()
}

/// The namespace of a name that a NUL byte ends.
fn namespace_of_listed(name: &[u8]) -> Result<XattrNamespace, Errno> {
    XattrNamespace::of(name.strip_suffix(b"\0").unwrap_or(name))
}
