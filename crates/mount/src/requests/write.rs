//! Writes of programs, and write-backs of the pages of mappings.
//!
//! Invariants:
//! - A write that conflicts with another change of the same page waits in [`crate::kernel_cache::page_cache`]; the service
//!   keeps its bytes meanwhile.
//! - Stale bytes of a write-back do not reach the file.
//! - The set-id bits that a write clears are gone before the write is answered.
//! - An append overwrites nothing that the other node has appended. The kernel chooses the place of an append by the size
//!   that it knows, before this node may serve, and keeps that size until something else asks for it.

use std::ops::Range;
use std::sync::Arc;

use fuser::{INodeNo, OpenFlags, ReplyWrite, WriteFlags};
use lockstep_driver::client::{Done, FileService, WriteData, WriteOptions};
use lockstep_types::{Attr, Errno, Ino, MetaRequest};
use parking_lot::Mutex;

use super::attributes::{appends, ino, is_durable};
use super::privileges::{self, Caller};
use super::reply;
use crate::admission::context::Context;
use crate::admission::delayed_change::{DelayedChange, DelayedTurn};
use crate::admission::refuse::Refuse;
use crate::admission::request_info::RequestInfo;
use crate::admission::tenure_bond::TenureBond;
use crate::device::request_queue::RequestQueue;
use crate::kernel_cache::page_cache::{ChangeEnd, ChangeKind, ContentChange};
use crate::memory::delivery::RequestDelivery;

/// How a write is to be done, and for which caller.
#[derive(Clone, Copy)]
pub(crate) struct WriteRequest<'a> {
    caller: Caller,
    kind: ChangeKind,
    place: WritePlace,
    durable: bool,
    drop_set_id: bool,
    delivery: RequestDelivery,
    queue: Option<&'a RequestQueue>,
}

/// Where the bytes of a write go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WritePlace {
    /// To the offset of the request.
    Given,
    /// To the end of the file, which is the offset of the request as far as the kernel knows.
    End,
}

impl<'a> WriteRequest<'a> {
    /// Reads the flags of the request and of the open file.
    pub fn new(
        caller: Caller,
        delivery: RequestDelivery,
        write_flags: WriteFlags,
        flags: OpenFlags,
        queue: &'a RequestQueue,
    ) -> Self {
        let is_write_back = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        Self {
            caller,
            kind: if is_write_back {
                ChangeKind::WriteBack
            } else {
                ChangeKind::Direct
            },
            place: if appends(flags) && !is_write_back {
                WritePlace::End
            } else {
                WritePlace::Given
            },
            durable: is_durable(flags),
            drop_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            delivery,
            queue: Some(queue),
        }
    }

    /// The request, as its admission sees it.
    pub fn info(&self) -> RequestInfo {
        RequestInfo {
            kind: self.kind.admission_kind(),
            bond: TenureBond::Change(self.delivery),
            .."write".into()
        }
    }

    /// The same request without the queue: when a delayed write begins, the queue says nothing about the requests
    /// after it.
    pub const fn delayed(self) -> WriteRequest<'static> {
        let Self {
            caller,
            kind,
            place,
            durable,
            drop_set_id,
            delivery,
            queue: _,
        } = self;
        WriteRequest {
            caller,
            kind,
            place,
            durable,
            drop_set_id,
            delivery,
            queue: None,
        }
    }

    /// The bytes of the file that the write changes. `given` is the choice of the kernel, which lets one append of a file
    /// run at a time.
    fn range(self, context: &Context, ino: Ino, given: Range<u64>) -> Result<Range<u64>, Errno> {
        if self.place == WritePlace::Given || !context.known.has_old_sizes() {
            return Ok(given);
        }
        let size = context.service.getattr(ino)?.size;
        if !self.delivery.is_resent {
            return Ok(size..size.saturating_add(given.end - given.start));
        }
        // An earlier process may have executed it. If the end is elsewhere, the bytes may be those of the other node.
        let is_place_known = size == given.start || size == given.end;
        is_place_known.then_some(given).ok_or(Errno::Io)
    }

    fn options(self) -> WriteOptions<'a> {
        WriteOptions {
            durable: self.durable,
            drop_set_id: self.drop_set_id,
            is_resent_append: self.place == WritePlace::End && self.delivery.is_resent,
            waiting: self.queue.map(|queue| queue as _),
        }
    }
}

/// Carries out a write. The kernel does not know that a write can change permission bits, and would run the new
/// content with the old set-id bits: it is notified before the write is answered.
pub(crate) fn write(
    context: &Arc<Context>,
    request: WriteRequest<'_>,
    node: INodeNo,
    offset: u64,
    data: &[u8],
    reply: ReplyWrite,
) {
    let ino = match ino(node) {
        Ok(ino) => ino,
        Err(errno) => return reply.refuse(errno),
    };
    // Nothing is registered or locked yet: this thread may wait for memory.
    let service = &context.service;
    let range = offset..offset.saturating_add(data.len() as u64);
    match service.admit(ino, offset, data, request.options()) {
        Ok(data) => begin_or_wait(context, request, (ino, range), data, reply),
        Err(errno) => reply.refuse(errno),
    }
}

/// Begins an admitted write: now, or after the earlier changes of the same pages.
fn begin_or_wait(
    context: &Arc<Context>,
    request: WriteRequest<'_>,
    (ino, given): (Ino, Range<u64>),
    data: WriteData<'_>,
    reply: ReplyWrite,
) {
    let range = match request.range(context, ino, given) {
        Ok(range) => range,
        Err(errno) => return reply.refuse(errno),
    };
    let changes = context.page_cache.changes();
    match changes.begin(ino, request.kind, range.clone()) {
        Some(change) => begin(context, request, change, data, reply),
        None => begin_later(context, request, (ino, range), data, reply),
    }
}

/// Begins a write after the earlier changes of the same pages are done.
fn begin_later(
    context: &Arc<Context>,
    request: WriteRequest<'_>,
    (ino, range): (Ino, Range<u64>),
    data: WriteData<'_>,
    reply: ReplyWrite,
) {
    context.service.flush_deferred_writes();
    // Nothing is registered yet: this thread may still wait for memory.
    let data = match context.service.keep(data, request.options().waiting) {
        Ok(data) => data,
        Err(errno) => return reply.refuse(errno),
    };
    let (shared, request) = (Arc::clone(context), request.delayed());
    let place = (ino, range.clone());
    let start = move |change| {
        let delayed = DelayedChange::new(request.info(), change);
        delayed.start(&shared, move |context, turn| match turn {
            DelayedTurn::Begin(change) => begin(context, request, change, data, reply),
            DelayedTurn::Again => begin_or_wait(context, request, place, data, reply),
            DelayedTurn::Refused(errno) => reply.refuse(errno),
        });
    };
    let cache = &context.page_cache;
    cache.begin_later(ino, request.kind, range, Box::new(start));
}

/// Begins a write that conflicts with no other change.
fn begin(
    context: &Arc<Context>,
    request: WriteRequest<'_>,
    change: ContentChange,
    data: WriteData<'_>,
    reply: ReplyWrite,
) {
    let ino = change.ino;
    let parts = WriteParts::of(context, &change);
    let set_id = with_set_id(&*context.service, ino, request);
    // An earlier process may have cleared the bits, and not told the kernel.
    let clears_set_id = set_id.is_some() || request.delivery.is_resent;
    let count = change.bytes.end - change.bytes.start;
    let shared = Arc::clone(context);
    let done = Box::new(move |outcome: Result<(), Errno>| {
        if clears_set_id {
            shared.kernel_cache.expire(ino);
        }
        let end = ChangeEnd::of_write(&outcome);
        let answer = move || reply::written(reply, outcome.map(|()| count));
        let cache = &shared.page_cache;
        cache.finish(change, end, answer);
    });
    match set_id.and_then(|attr| privileges::before_write(request.caller, &attr)) {
        None => parts.write(&*context.service, data, request.options(), done),
        Some(first) => write_after(context, request, first, parts, data, done),
    }
}

/// Returns the attributes of the file if the write is about to clear set-id bits.
fn with_set_id(service: &dyn FileService, ino: Ino, request: WriteRequest<'_>) -> Option<Attr> {
    let attr = || service.getattr(ino).ok();
    let attr = request.drop_set_id.then(attr).flatten();
    attr.filter(privileges::has_set_id)
}

/// Submits a change of the attributes, then writes.
fn write_after(
    context: &Arc<Context>,
    request: WriteRequest<'_>,
    first: MetaRequest,
    parts: WriteParts,
    data: WriteData<'_>,
    done: Done<()>,
) {
    context.service.flush_deferred_writes();
    let data = context.service.keep_admitted(data);
    let (shared, request) = (Arc::clone(context), request.delayed());
    let then = move |changed| match changed {
        Ok(_) => parts.write(&*shared.service, data, request.options(), done),
        Err(errno) => done(Err(errno)),
    };
    context.service.change(first, Box::new(then));
}

/// The parts of a write that reach the file.
struct WriteParts {
    ino: Ino,
    bytes: Range<u64>,
    /// The ranges that a write-back may change; `None` if that is all of `bytes`.
    fresh: Option<Vec<Range<u64>>>,
}

/// The parts of a write that are not done yet.
struct PendingParts {
    count: usize,
    failed: Option<Errno>,
    done: Option<Done<()>>,
}

impl WriteParts {
    fn of(context: &Context, change: &ContentChange) -> Self {
        let fresh = || context.page_cache.changes().fresh_parts(change);
        let fresh = (change.kind == ChangeKind::WriteBack).then(fresh);
        Self {
            ino: change.ino,
            bytes: change.bytes.clone(),
            fresh: fresh.filter(|fresh| *fresh != [change.bytes.clone()]),
        }
    }

    fn write(
        self,
        service: &dyn FileService,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let (ino, offset) = (self.ino, self.bytes.start);
        match &self.fresh {
            None => service.write(ino, offset, data, options, done),
            Some(fresh) => self.write_each(fresh, service, &data, options, done),
        }
    }

    /// Submits each part as a write of its own. `done` runs after all parts, with the first error, if there is
    /// one. Without parts nothing is written.
    fn write_each(
        &self,
        parts: &[Range<u64>],
        service: &dyn FileService,
        data: &WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let pending = Arc::new(Mutex::new(PendingParts {
            // One more for this function itself, so that no part ends the write too early.
            count: parts.len() + 1,
            failed: None,
            done: Some(done),
        }));
        for part in parts {
            let at = |offset: u64| usize::try_from(offset - self.bytes.start).unwrap_or(usize::MAX);
            let data = data.part(at(part.start)..at(part.end));
            let pending = Arc::clone(&pending);
            let done = Box::new(move |outcome| PendingParts::end_one(&pending, outcome));
            service.write(self.ino, part.start, data, options, done);
        }
        PendingParts::end_one(&pending, Ok(()));
    }
}

impl PendingParts {
    /// Ends one part, and the whole write after the last part.
    fn end_one(pending: &Mutex<Self>, outcome: Result<(), Errno>) {
        let ended = {
            let mut pending = pending.lock();
            pending.count -= 1;
            pending.failed = pending.failed.or(outcome.err());
            let is_last = pending.count == 0;
            let outcome = pending.failed.map_or(Ok(()), Err);
            let done = pending.done.take_if(|_| is_last);
            done.map(|done| (done, outcome))
        };
        if let Some((done, outcome)) = ended {
            done(outcome);
        }
    }
}
