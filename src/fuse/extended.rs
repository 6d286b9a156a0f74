//! Extended attributes: what the kernel leaves to the file system.
//!
//! The kernel (`fs/xattr.c`, and its capability module) checks before a request arrives who may use
//! `user.*`, `trusted.*`, `security.*` and the access control lists. It checks nothing for other names
//! that begin with `system.`, and knows nothing of other namespaces: those are refused, as ext4 does.
//! Values of the access control lists pass through to the service, which keeps them in step with
//! the permission bits.

use std::cell::LazyCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, ReplyEmpty};
use lockstep_types::xattr::ACCESS_ACL;
use lockstep_types::{Errno, Ino, MetaRequest, XattrNamespace};

use super::attributes::{ino, xattr_mode};
use super::context::Context;
use super::privileges::{self, Caller};
use super::{reply, steps};

/// The value of an attribute.
pub(super) fn get(context: &Context, node: INodeNo, name: &OsStr) -> Result<Vec<u8>, Errno> {
    let name = name.as_bytes();
    XattrNamespace::of(name)?;
    context.service().getxattr(ino(node)?, name)
}

/// Sets an attribute. Setting an access ACL costs the set-group-id bit those who may not have it.
pub(super) fn set(
    context: &Arc<Context>,
    caller: Caller,
    node: INodeNo,
    name: &OsStr,
    value: &[u8],
    flags: i32,
    reply: ReplyEmpty,
) {
    let steps = set_steps(context, caller, node, name, value, flags);
    run(context, steps, reply);
}

/// Removes an attribute.
pub(super) fn remove(context: &Arc<Context>, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    let steps = || {
        XattrNamespace::of(name.as_bytes())?;
        let (ino, name) = (ino(node)?, name.as_bytes().to_vec());
        Ok(vec![MetaRequest::RemoveXattr { ino, name }])
    };
    let steps = steps();
    run(context, steps, reply);
}

fn run(context: &Arc<Context>, steps: Result<Vec<MetaRequest>, Errno>, reply: ReplyEmpty) {
    match steps {
        Ok(steps) => steps::run(
            context,
            steps,
            Box::new(|outcome| reply::empty(reply, outcome)),
        ),
        Err(errno) => reply::empty::<()>(reply, Err(errno)),
    }
}

fn set_steps(
    context: &Context,
    caller: Caller,
    node: INodeNo,
    name: &OsStr,
    value: &[u8],
    flags: i32,
) -> Result<Vec<MetaRequest>, Errno> {
    XattrNamespace::of(name.as_bytes())?;
    let ino = ino(node)?;
    let set = MetaRequest::SetXattr {
        ino,
        name: name.as_bytes().to_vec(),
        value: value.to_vec(),
        mode: xattr_mode(flags)?,
    };
    let mut steps = vec![set];
    if name.as_bytes() == ACCESS_ACL {
        steps.splice(0..0, without_set_gid(context, caller, ino)?);
    }
    Ok(steps)
}

fn without_set_gid(
    context: &Context,
    caller: Caller,
    ino: Ino,
) -> Result<Option<MetaRequest>, Errno> {
    let attr = context.service().getattr(ino)?;
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

/// The names in `list` that `caller` may see. A name outside all namespaces, which a store may hold
/// from before they were checked, is shown to nobody: it cannot be read.
pub(super) fn visible(list: &[u8], caller: Caller) -> Vec<u8> {
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
