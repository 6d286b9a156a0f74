//! Extended attributes: what the kernel leaves to the file system.
//!
//! The kernel itself checks who may use which name space; values of the access control lists pass
//! through to the service, which keeps them in step with the permission bits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, ReplyEmpty};
use lockstep_types::{Errno, Ino, MetaRequest};

use super::attributes::{ino, xattr_mode};
use super::context::Context;
use super::privileges::{self, Caller};
use super::{reply, steps};

/// The access control list that is one with the permission bits.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// Names that only root sees in a listing.
const TRUSTED: &[u8] = b"trusted.";

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
    let steps = ino(node).map(|ino| {
        let name = name.as_bytes().to_vec();
        vec![MetaRequest::RemoveXattr { ino, name }]
    });
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

/// The names in `list` that `caller` may see.
pub(super) fn visible(list: Vec<u8>, caller: Caller) -> Vec<u8> {
    if caller.is_root() {
        return list;
    }
    let names = list.split_inclusive(|&byte| byte == 0);
    names
        .filter(|name| !name.starts_with(TRUSTED))
        .flatten()
        .copied()
        .collect()
}
