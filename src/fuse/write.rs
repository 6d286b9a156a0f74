//! The writes of programs, and the pages of mappings that the kernel writes back.
//!
//! Invariants: a write that meets another one of the same page in [`super::page_cache`] waits there, and its
//! bytes are copied first; stale bytes of a write-back do not reach the file; set-id bits that a write takes
//! away are gone before the write is answered.

use std::ops::Range;
use std::sync::Arc;

use fuser::{INodeNo, OpenFlags, ReplyWrite, WriteFlags};
use lockstep_types::{Attr, Errno, Ino, MetaRequest};
use parking_lot::Mutex;

use super::attributes::{ino, is_durable};
use super::context::Context;
use super::page_cache::{self, Change, Kind};
use super::privileges::{self, Caller};
use super::queue::Queue;
use super::reply::{self, Refuse};
use crate::client::{Done, FileService, WriteOptions};

/// How the kernel wants a write done, and for whom.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    caller: Caller,
    kind: Kind,
    durable: bool,
    drop_set_id: bool,
    queue: Option<&'a Queue>,
}

impl<'a> How<'a> {
    /// As the flags of the request and of the open file say.
    pub fn new(caller: Caller, how: WriteFlags, flags: OpenFlags, queue: &'a Queue) -> Self {
        Self {
            caller,
            kind: if how.contains(WriteFlags::FUSE_WRITE_CACHE) {
                Kind::WriteBack
            } else {
                Kind::Direct
            },
            durable: is_durable(flags),
            drop_set_id: how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            queue: Some(queue),
        }
    }

    /// The same for a write that is done later, when other requests wait behind it or none.
    const fn later(self) -> How<'static> {
        let Self {
            caller,
            kind,
            durable,
            drop_set_id,
            queue: _,
        } = self;
        How {
            caller,
            kind,
            durable,
            drop_set_id,
            queue: None,
        }
    }

    fn options(self) -> WriteOptions<'a> {
        WriteOptions {
            durable: self.durable,
            drop_set_id: self.drop_set_id,
            waiting: self.queue.map(|queue| queue as _),
        }
    }
}

/// Writes. The kernel does not know that a write can change permission bits, and would go on to
/// run the new content with the old set-id bits: it is told before the write is answered.
pub(super) fn write(
    context: &Arc<Context>,
    how: How<'_>,
    node: INodeNo,
    offset: u64,
    data: &[u8],
    reply: ReplyWrite,
) {
    let ino = match ino(node) {
        Ok(ino) => ino,
        Err(errno) => return reply.refuse(errno),
    };
    let bytes = offset..offset.saturating_add(data.len() as u64);
    let changes = context.page_cache().changes();
    match changes.begin(ino, how.kind, bytes.clone()) {
        Some(change) => begin(context, how, change, data, reply),
        None => begin_later(context, how, (ino, bytes), data, reply),
    }
}

/// Writes once the changes of the same pages are done that came before.
fn begin_later(
    context: &Arc<Context>,
    how: How<'_>,
    (ino, bytes): (Ino, Range<u64>),
    data: &[u8],
    reply: ReplyWrite,
) {
    context.service().hurry();
    let (shared, how, data) = (Arc::clone(context), how.later(), data.to_vec());
    let start = move |change| {
        shared.answer("write", reply, |reply| {
            begin(&shared, how, change, &data, reply);
        });
    };
    let cache = context.page_cache();
    cache.begin_later(ino, how.kind, bytes, Box::new(start));
}

/// Begins a write that meets no other.
fn begin(context: &Arc<Context>, how: How<'_>, change: Change, data: &[u8], reply: ReplyWrite) {
    let ino = change.ino;
    let parts = Parts::of(context, &change);
    let set_id = with_set_id(context, ino, how);
    let expires = set_id.is_some();
    let count = data.len() as u64;
    let shared = Arc::clone(context);
    let done = Box::new(move |outcome: Result<(), Errno>| {
        if expires {
            shared.expire(ino);
        }
        let answer = move || reply::written(reply, outcome.map(|()| count));
        page_cache::finish(&shared, change, outcome.is_ok(), answer);
    });
    match set_id.and_then(|attr| privileges::before_write(how.caller, &attr)) {
        None => parts.write(context.service(), data, how.options(), done),
        Some(first) => write_after(context, how, first, parts, data, done),
    }
}

/// The attributes of a file that a write is about to take set-id bits from.
fn with_set_id(context: &Context, ino: Ino, how: How<'_>) -> Option<Attr> {
    let attr = || context.service().getattr(ino).ok();
    let attr = how.drop_set_id.then(attr).flatten();
    attr.filter(privileges::has_set_id)
}

/// Changes the file, then writes.
fn write_after(
    context: &Arc<Context>,
    how: How<'_>,
    first: MetaRequest,
    parts: Parts,
    data: &[u8],
    done: Done<()>,
) {
    context.service().hurry();
    let (shared, how, data) = (Arc::clone(context), how.later(), data.to_vec());
    context.change(Ok(first), move |changed| match changed {
        Ok(_) => parts.write(shared.service(), &data, how.options(), done),
        Err(errno) => done(Err(errno)),
    });
}

/// What of a write reaches the file.
struct Parts {
    ino: Ino,
    bytes: Range<u64>,
    /// The ranges that a write-back may change; all of `bytes` where nothing is left out.
    fresh: Option<Vec<Range<u64>>>,
}

/// The parts of a write that are not written yet.
struct Left {
    count: usize,
    failed: Option<Errno>,
    done: Option<Done<()>>,
}

impl Parts {
    fn of(context: &Context, change: &Change) -> Self {
        let fresh = || context.page_cache().changes().fresh_parts(change);
        let fresh = (change.kind == Kind::WriteBack).then(fresh);
        Self {
            ino: change.ino,
            bytes: change.bytes.clone(),
            fresh: fresh.filter(|fresh| *fresh != [change.bytes.clone()]),
        }
    }

    fn write(
        self,
        service: &dyn FileService,
        data: &[u8],
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        match &self.fresh {
            None => service.write(self.ino, self.bytes.start, data, options, done),
            Some(fresh) => self.write_each(fresh, service, data, options, done),
        }
    }

    /// Each part is a write of its own. The answer is that of all; the first error counts. Without parts there
    /// is nothing to write.
    fn write_each(
        &self,
        parts: &[Range<u64>],
        service: &dyn FileService,
        data: &[u8],
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let left = Arc::new(Mutex::new(Left {
            // One more, for the end of this function.
            count: parts.len() + 1,
            failed: None,
            done: Some(done),
        }));
        for part in parts {
            let at = |offset: u64| usize::try_from(offset - self.bytes.start).unwrap_or(usize::MAX);
            let bytes = data.get(at(part.start)..at(part.end)).unwrap_or_default();
            let left = Arc::clone(&left);
            let done = Box::new(move |outcome| Left::end_one(&left, outcome));
            service.write(self.ino, part.start, bytes, options, done);
        }
        Left::end_one(&left, Ok(()));
    }
}

impl Left {
    /// One part is over; after the last one the whole write is.
    fn end_one(left: &Mutex<Self>, outcome: Result<(), Errno>) {
        let ended = {
            let mut left = left.lock();
            left.count -= 1;
            left.failed = left.failed.or(outcome.err());
            let is_last = left.count == 0;
            let outcome = left.failed.map_or(Ok(()), Err);
            let done = left.done.take_if(|_| is_last);
            done.map(|done| (done, outcome))
        };
        if let Some((done, outcome)) = ended {
            done(outcome);
        }
    }
}
