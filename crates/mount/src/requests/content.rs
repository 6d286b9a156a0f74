//! Requests about the content of files: read, sync, allocate, seek and copy.

use std::ops::Range;
use std::sync::Arc;

use fuser::{FileHandle, INodeNo, LockOwner, ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite};
use lockstep_driver::client::{FileService, Seek};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{AllocateMode, Errno, Ino, MetaRequest, SnapshotIno};

use super::attributes::{allocate_mode, ino};
use super::privileges::{self, Caller};
use super::reply;
use crate::admission::context::Context;
use crate::admission::delayed_change::{DelayedChange, DelayedTurn};
use crate::admission::refuse::Refuse;
use crate::admission::request_info::RequestInfo;
use crate::kernel_cache::file_pages::PageRead;
use crate::kernel_cache::page_cache::{ChangeEnd, ChangeKind, ContentChange};
use crate::memory::delivery::RequestDelivery;

/// `lseek`'s numbers for the two modes that the kernel does not handle itself.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// A read, as its admission sees it. A read without a lock owner fills pages of the kernel's cache.
pub(crate) fn read_info(
    node: INodeNo,
    offset: u64,
    size: u32,
    owner: Option<LockOwner>,
) -> RequestInfo {
    let ino = ino(node).ok().filter(|_| owner.is_none());
    let bytes = offset..offset.saturating_add(size.into());
    RequestInfo {
        page_read: ino.map(|ino| PageRead::new(ino, &bytes)),
        .."read".into()
    }
}

/// Reads; fewer bytes only at the end of the file. A program that has read bytes of an append sees the new size from then on.
pub(crate) fn read(
    context: &Arc<Context>,
    (node, handle): (INodeNo, FileHandle),
    (offset, size): (u64, u32),
    owner: Option<LockOwner>,
    reply: ReplyData,
) {
    let ino = match readable(context, node, handle) {
        Ok(ino) => ino,
        Err(errno) => return reply.refuse(errno),
    };
    if owner.is_none() {
        let bytes = offset..offset.saturating_add(size.into());
        context.page_cache.changes().page_read(ino, bytes);
    }
    let shared = Arc::clone(context);
    let done = Box::new(move |outcome: Result<&[u8], Errno>| match outcome {
        Ok(bytes) => {
            show_size(&shared, ino, offset.saturating_add(bytes.len() as u64));
            reply.data(bytes);
        }
        Err(errno) => reply.refuse(errno),
    });
    context.service.read(ino, offset, size as usize, done);
}

/// The inode of a read. The number of a file of a snapshot may be that of another file by now ([`reply::open`]).
fn readable(context: &Context, node: INodeNo, handle: FileHandle) -> Result<Ino, Errno> {
    let ino = ino(node)?;
    if SnapshotIno::of(ino).is_some() && context.service.generation(ino)? != handle.0 {
        return Err(Errno::Stale);
    }
    Ok(ino)
}

/// Makes the kernel show no smaller size of a file than `end`. Call it while no other request can cut the file.
fn show_size(context: &Context, ino: Ino, end: u64) {
    let changes = context.page_cache.changes();
    if changes.hides_growth(ino, end) {
        context.kernel_cache.expire(ino);
        // Another read must not rely on this one earlier.
        changes.size_shown(ino, end);
    }
}

/// Syncs a file or a directory.
pub(crate) fn sync(service: &dyn FileService, node: INodeNo, reply: ReplyEmpty) {
    match ino(node) {
        Ok(ino) => {
            let done = Box::new(|outcome| reply::empty(reply, outcome));
            service.sync(ino, done);
        }
        Err(errno) => reply.refuse(errno),
    }
}

/// Carries out a `fallocate` of a range, given by offset and length.
pub(crate) fn allocate(
    context: &Arc<Context>,
    (caller, delivery): (Caller, RequestDelivery),
    node: INodeNo,
    range: (u64, u64),
    mode: i32,
    reply: ReplyEmpty,
) {
    let planned = || Ok((ino(node)?, allocate_mode(mode)?));
    let (ino, mode) = match planned() {
        Ok(planned) => planned,
        Err(errno) => return reply.refuse(errno),
    };
    let bytes = range.0..range.0.saturating_add(range.1);
    change_directly(context, delivery, (ino, bytes), move |context, change| {
        let change = match change {
            Ok(change) => change,
            Err(errno) => return reply.refuse(errno),
        };
        let operations = match allocate_operations(&*context.service, caller, ino, range, mode) {
            Ok(operations) => operations,
            Err(errno) => {
                context.page_cache.abandon(&change);
                return reply.refuse(errno);
            }
        };
        let clears_set_id = operations.iter().any(|change| !is_allocation(change));
        let shared = Arc::clone(context);
        let done = Box::new(move |outcome: Result<_, Errno>| {
            if clears_set_id {
                shared.kernel_cache.expire(ino);
            }
            let end = ChangeEnd::of_change(&outcome);
            let answer = move || reply::empty(reply, outcome);
            let cache = &shared.page_cache;
            cache.finish(change, end, answer);
        });
        context.change_in_order(operations, done);
    });
}

/// Begins a direct change other than a write: now, or when the write-backs of its pages are done. `begin` gets an error if
/// the change must not begin.
pub(crate) fn change_directly(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    (ino, bytes): (Ino, Range<u64>),
    begin: impl FnOnce(&Arc<Context>, Result<ContentChange, Errno>) + Send + 'static,
) {
    let cache = &context.page_cache;
    if let Some(change) = cache
        .changes()
        .begin(ino, ChangeKind::Direct, bytes.clone())
    {
        return begin(context, Ok(change));
    }
    let (shared, range) = (Arc::clone(context), bytes.clone());
    let start = move |change| {
        let request = RequestInfo::change("change of content", delivery);
        let delayed = DelayedChange::new(request, change);
        delayed.start(&shared, move |context, turn| match turn {
            DelayedTurn::Begin(change) => begin(context, Ok(change)),
            DelayedTurn::Again => change_directly(context, delivery, (ino, range), begin),
            DelayedTurn::Refused(errno) => begin(context, Err(errno)),
        });
    };
    cache.begin_later(ino, ChangeKind::Direct, bytes, Box::new(start));
}

fn allocate_operations(
    service: &dyn FileService,
    caller: Caller,
    ino: Ino,
    (offset, length): (u64, u64),
    mode: AllocateMode,
) -> Result<Vec<MetaRequest>, Errno> {
    let mut operations = privileges::drop_before(service, caller, ino)?;
    let parts = service.parts(ino, offset..offset.saturating_add(length));
    operations.extend(parts.into_iter().map(|part| MetaRequest::Allocate {
        ino,
        offset: part.start,
        length: part.end - part.start,
        mode,
    }));
    Ok(operations)
}

const fn is_allocation(change: &MetaRequest) -> bool {
    matches!(change, MetaRequest::Allocate { .. })
}

/// Finds the next data or hole.
pub(crate) fn seek(
    service: &dyn FileService,
    node: INodeNo,
    offset: i64,
    whence: i32,
    reply: ReplyLseek,
) {
    match find(service, node, offset, whence) {
        Ok(found) => reply.offset(found),
        Err(errno) => reply.refuse(errno),
    }
}

fn find(service: &dyn FileService, node: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
    let target = match whence {
        SEEK_DATA => Seek::Data,
        SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::Invalid),
    };
    let offset = u64::try_from(offset).map_err(|_| Errno::NoDevice)?;
    let found = service.seek(ino(node)?, offset, target)?;
    i64::try_from(found).map_err(|_| Errno::TooBig)
}

/// Carries out a `copy_file_range`.
pub(crate) fn copy(
    context: &Arc<Context>,
    (caller, delivery): (Caller, RequestDelivery),
    from: (INodeNo, u64),
    to: (INodeNo, u64),
    length: u64,
    reply: ReplyWrite,
) {
    let plan = || {
        let (from, to) = ((ino(from.0)?, from.1), (ino(to.0)?, to.1));
        check_copy(context, to, length)?;
        let operations = privileges::drop_before(&*context.service, caller, to.0)?;
        Ok((from, to, operations))
    };
    let (from, to, operations) = match plan() {
        Ok(plan) => plan,
        Err(errno) => return Refuse::refuse(reply, errno),
    };
    let shared = Arc::clone(context);
    let clears_set_id = !operations.is_empty();
    let then = Box::new(move |outcome: Result<_, Errno>| {
        if clears_set_id {
            shared.kernel_cache.expire(to.0);
        }
        match outcome {
            Ok(_) => begin_copy(&shared, delivery, (from, to), length, reply),
            Err(errno) => reply.refuse(errno),
        }
    });
    context.change_in_order(operations, then);
}

/// Refuses a copy that would lose bytes that a mapping has stored beside the copied range: after a copy the
/// kernel drops all pages that the range touches, dirty or not. After the refusal the kernel copies by reads and
/// writes.
fn check_copy(context: &Context, to: (Ino, u64), length: u64) -> Result<(), Errno> {
    let page = BLOCK_BYTES as u64;
    let end = to.1.saturating_add(length);
    let touches_more = || {
        let size = context.service.getattr(to.0)?.size;
        Ok(!to.1.is_multiple_of(page) || (end < size && !end.is_multiple_of(page)))
    };
    if context.page_cache.changes().is_cached(to.0) || touches_more()? {
        return Err(Errno::NotSupported);
    }
    Ok(())
}

fn begin_copy(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    (from, to): ((Ino, u64), (Ino, u64)),
    length: u64,
    reply: ReplyWrite,
) {
    let bytes = to.1..to.1.saturating_add(length);
    change_directly(context, delivery, (to.0, bytes), move |context, change| {
        let change = match change {
            Ok(change) => change,
            Err(errno) => return Refuse::refuse(reply, errno),
        };
        let shared = Arc::clone(context);
        let done = Box::new(move |outcome: Result<u64, Errno>| {
            // Fewer bytes may be copied.
            let end = ChangeEnd::of_change(&outcome);
            let answer = move || reply::written(reply, outcome);
            let cache = &shared.page_cache;
            cache.finish(change, end, answer);
        });
        context.service.copy(from, to, length, done);
    });
}
