//! The content of files: reading, writing, syncing, allocating, seeking, copying.

use std::sync::Arc;

use fuser::{INodeNo, OpenFlags, ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite, WriteFlags};
use lockstep_types::{Attr, Errno, Ino, MetaRequest};

use super::attributes::{allocate_mode, ino, is_durable};
use super::context::Context;
use super::privileges::{self, Caller};
use super::queue::Queue;
use super::reply::{self, Refuse};
use super::steps;
use crate::client::{Done, Seek, WriteOptions};

/// `lseek`'s numbers for the two ways that are not the kernel's own business.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Reads; fewer bytes only at the end of the file.
pub(super) fn read(context: &Context, node: INodeNo, offset: u64, size: u32, reply: ReplyData) {
    let ino = match ino(node) {
        Ok(ino) => ino,
        Err(errno) => return reply.refuse(errno),
    };
    let done = Box::new(|outcome: Result<&[u8], Errno>| match outcome {
        Ok(bytes) => reply.data(bytes),
        Err(errno) => reply.refuse(errno),
    });
    context.service().read(ino, offset, size as usize, done);
}

/// How the kernel wants a write done.
pub(super) fn write_options(how: WriteFlags, flags: OpenFlags, queue: &Queue) -> WriteOptions<'_> {
    WriteOptions {
        durable: is_durable(flags),
        drop_set_id: how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        waiting: Some(queue),
    }
}

/// Writes. The kernel does not know that a write can change permission bits, and would go on to
/// run the new content with the old set-id bits: it is told before the write is answered.
pub(super) fn write(
    context: &Arc<Context>,
    caller: Caller,
    node: INodeNo,
    offset: u64,
    data: &[u8],
    options: WriteOptions<'_>,
    reply: ReplyWrite,
) {
    let ino = match ino(node) {
        Ok(ino) => ino,
        Err(errno) => return reply.refuse(errno),
    };
    let count = data.len() as u64;
    let set_id = with_set_id(context, ino, options);
    let expiring = set_id.is_some().then(|| Arc::clone(context));
    let done = Box::new(move |outcome: Result<(), Errno>| {
        if let Some(context) = expiring {
            context.expire(ino);
        }
        reply::written(reply, outcome.map(|()| count));
    });
    match set_id.and_then(|attr| privileges::before_write(caller, &attr)) {
        None => context.service().write(ino, offset, data, options, done),
        Some(first) => write_after(context, first, (ino, offset, data), options.durable, done),
    }
}

/// The attributes of a file that a write is about to take set-id bits from.
fn with_set_id(context: &Context, ino: Ino, options: WriteOptions<'_>) -> Option<Attr> {
    let attr = || context.service().getattr(ino).ok();
    let attr = options.drop_set_id.then(attr).flatten();
    attr.filter(privileges::has_set_id)
}

/// Changes the file, then writes.
fn write_after(
    context: &Arc<Context>,
    first: MetaRequest,
    (ino, offset, data): (Ino, u64, &[u8]),
    durable: bool,
    done: Done<()>,
) {
    context.service().hurry();
    let (shared, data) = (Arc::clone(context), data.to_vec());
    context.change(Ok(first), move |changed| {
        let options = WriteOptions {
            durable,
            drop_set_id: true,
            waiting: None,
        };
        match changed {
            Ok(_) => shared.service().write(ino, offset, &data, options, done),
            Err(errno) => done(Err(errno)),
        }
    });
}

/// Syncs a file or a directory.
pub(super) fn sync(context: &Context, node: INodeNo, reply: ReplyEmpty) {
    match ino(node) {
        Ok(ino) => {
            let done = Box::new(|outcome| reply::empty(reply, outcome));
            context.service().sync(ino, done);
        }
        Err(errno) => reply.refuse(errno),
    }
}

/// `fallocate` of a range given by offset and length.
pub(super) fn allocate(
    context: &Arc<Context>,
    caller: Caller,
    node: INodeNo,
    range: (u64, u64),
    mode: i32,
    reply: ReplyEmpty,
) {
    let planned = allocate_steps(context, caller, node, range, mode);
    let (ino, steps) = match planned {
        Ok(planned) => planned,
        Err(errno) => return reply.refuse(errno),
    };
    let expiring = (steps.len() > 1).then(|| Arc::clone(context));
    let done = Box::new(move |outcome| {
        if let Some(context) = expiring {
            context.expire(ino);
        }
        reply::empty(reply, outcome);
    });
    steps::run(context, steps, done);
}

fn allocate_steps(
    context: &Context,
    caller: Caller,
    node: INodeNo,
    (offset, length): (u64, u64),
    mode: i32,
) -> Result<(Ino, Vec<MetaRequest>), Errno> {
    let mode = allocate_mode(mode)?;
    let ino = ino(node)?;
    let mut steps = privileges::drop_before(context.service(), caller, ino)?;
    steps.push(MetaRequest::Allocate {
        ino,
        offset,
        length,
        mode,
    });
    Ok((ino, steps))
}

/// The next data or hole.
pub(super) fn seek(context: &Context, node: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
    match find(context, node, offset, whence) {
        Ok(found) => reply.offset(found),
        Err(errno) => reply.refuse(errno),
    }
}

fn find(context: &Context, node: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
    let what = match whence {
        SEEK_DATA => Seek::Data,
        SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::Invalid),
    };
    let offset = u64::try_from(offset).map_err(|_| Errno::NoDevice)?;
    let found = context.service().seek(ino(node)?, offset, what)?;
    i64::try_from(found).map_err(|_| Errno::TooBig)
}

/// Copies from one file to another.
pub(super) fn copy(
    context: &Arc<Context>,
    caller: Caller,
    from: (INodeNo, u64),
    to: (INodeNo, u64),
    length: u64,
    reply: ReplyWrite,
) {
    let plan = || {
        let (from, to) = ((ino(from.0)?, from.1), (ino(to.0)?, to.1));
        let steps = privileges::drop_before(context.service(), caller, to.0)?;
        Ok((from, to, steps))
    };
    let (from, to, steps) = match plan() {
        Ok(plan) => plan,
        Err(errno) => return Refuse::refuse(reply, errno),
    };
    let shared = Arc::clone(context);
    let dropped = !steps.is_empty();
    let then = Box::new(move |outcome: Result<_, Errno>| {
        if dropped {
            shared.expire(to.0);
        }
        match outcome {
            Ok(_) => begin_copy(&shared, from, to, length, reply),
            Err(errno) => reply.refuse(errno),
        }
    });
    steps::run(context, steps, then);
}

fn begin_copy(context: &Context, from: (Ino, u64), to: (Ino, u64), length: u64, reply: ReplyWrite) {
    let done = Box::new(|outcome| reply::written(reply, outcome));
    context.service().copy(from, to, length, done);
}
