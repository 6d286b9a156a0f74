//! The content of files: reading, syncing, allocating, seeking, copying.

use std::ops::Range;
use std::sync::Arc;

use fuser::{INodeNo, LockOwner, ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite};
use lockstep_driver::client::Seek;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Errno, Ino, MetaRequest};

use super::attributes::{allocate_mode, ino};
use super::context::Context;
use super::page_cache::{self, Change, Kind};
use super::privileges::{self, Caller};
use super::reply::{self, Refuse};
use super::steps;

/// `lseek`'s numbers for the two ways that are not the kernel's own business.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Reads; fewer bytes only at the end of the file. A read without an owner fills pages of the kernel's cache.
pub(super) fn read(
    context: &Context,
    node: INodeNo,
    offset: u64,
    size: u32,
    owner: Option<LockOwner>,
    reply: ReplyData,
) {
    let ino = match ino(node) {
        Ok(ino) => ino,
        Err(errno) => return reply.refuse(errno),
    };
    if owner.is_none() {
        let bytes = offset..offset.saturating_add(size.into());
        context.page_cache().changes().page_read(ino, bytes);
    }
    let done = Box::new(|outcome: Result<&[u8], Errno>| match outcome {
        Ok(bytes) => reply.data(bytes),
        Err(errno) => reply.refuse(errno),
    });
    context.service().read(ino, offset, size as usize, done);
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
    let bytes = range.0..range.0.saturating_add(range.1);
    change_directly(context, ino, bytes, move |context, change| {
        let expires = steps.len() > 1;
        let shared = Arc::clone(context);
        let done = Box::new(move |outcome: Result<_, Errno>| {
            if expires {
                shared.expire(ino);
            }
            let answer = move || reply::empty(reply, outcome);
            page_cache::finish(&shared, change, outcome.is_ok(), answer);
        });
        steps::run(context, steps, done);
    });
}

/// Begins a direct change that is no write, now or once the write-backs of its pages are done.
fn change_directly(
    context: &Arc<Context>,
    ino: Ino,
    bytes: Range<u64>,
    begin: impl FnOnce(&Arc<Context>, Change) + Send + 'static,
) {
    let cache = context.page_cache();
    if let Some(change) = cache.changes().begin(ino, Kind::Direct, bytes.clone()) {
        return begin(context, change);
    }
    let shared = Arc::clone(context);
    let start = move |change| shared.tell("write", || begin(&shared, change));
    cache.begin_later(ino, Kind::Direct, bytes, Box::new(start));
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
        check_copy(context, to, length)?;
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

/// Refuses a copy after which the kernel would drop bytes that a mapping stored beside the copied range: the
/// kernel drops all pages that the range touches, dirty or not. The kernel then copies by reads and writes.
fn check_copy(context: &Context, to: (Ino, u64), length: u64) -> Result<(), Errno> {
    let page = BLOCK_BYTES as u64;
    let end = to.1.saturating_add(length);
    let touches_more = || {
        let size = context.service().getattr(to.0)?.size;
        Ok(!to.1.is_multiple_of(page) || (end < size && !end.is_multiple_of(page)))
    };
    if context.page_cache().changes().is_cached(to.0) || touches_more()? {
        return Err(Errno::NotSupported);
    }
    Ok(())
}

fn begin_copy(
    context: &Arc<Context>,
    from: (Ino, u64),
    to: (Ino, u64),
    length: u64,
    reply: ReplyWrite,
) {
    let bytes = to.1..to.1.saturating_add(length);
    change_directly(context, to.0, bytes, move |context, change| {
        let shared = Arc::clone(context);
        let done = Box::new(move |outcome: Result<u64, Errno>| {
            let answer = move || reply::written(reply, outcome);
            page_cache::finish(&shared, change, outcome.is_ok(), answer);
        });
        context.service().copy(from, to, length, done);
    });
}
