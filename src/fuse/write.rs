//! The writes of programs, and the pages of mappings that the kernel writes back.
//!
//! Invariants: a write that meets another one of the same page in [`super::page_cache`] waits there, and the
//! service keeps its bytes meanwhile; stale bytes of a write-back do not reach the file; set-id bits that a write takes
//! away are gone before the write is answered.

use std::ops::Range;
use std::sync::Arc;

use fuser::{INodeNo, OpenFlags, ReplyWrite, WriteFlags};
use lockstep_driver::client::{Done, FileService, KeptBytes, WriteOptions};
use lockstep_types::{Attr, Errno, Ino, MetaRequest};
use parking_lot::Mutex;

use super::attributes::{ino, is_durable};
use super::context::Context;
use super::page_cache::{self, Change, Kind};
use super::privileges::{self, Caller};
use super::queue::Queue;
use super::reply::{self, Refuse};

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

/// The bytes of a write.
enum Bytes<'a> {
    /// In the buffer of this thread.
    Here(&'a [u8]),
    /// Kept by the service.
    Kept(Arc<dyn KeptBytes>),
}

impl Bytes<'_> {
    /// Has the service keep them, as they are past the door.
    fn keep(self, context: &Context) -> Arc<dyn KeptBytes> {
        match self {
            Self::Here(data) => context.service().keep_past_door(data),
            Self::Kept(kept) => kept,
        }
    }

    /// Some of them.
    fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Here(data) => Self::Here(data.get(range).unwrap_or_default()),
            Self::Kept(whole) => Self::Kept(Arc::new(KeptPart {
                whole: Arc::clone(whole),
                range,
            })),
        }
    }

    /// Has the service write them at an offset of a file.
    fn write(
        self,
        service: &dyn FileService,
        (ino, offset): (Ino, u64),
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        match self {
            Self::Here(data) => service.write(ino, offset, data, options, done),
            Self::Kept(kept) => service.write_kept(ino, offset, kept, options, done),
        }
    }
}

/// Some of the bytes that are kept of a write.
struct KeptPart {
    whole: Arc<dyn KeptBytes>,
    range: Range<usize>,
}

impl KeptBytes for KeptPart {
    fn length(&self) -> usize {
        self.range.len()
    }

    fn load(&self) -> Result<Arc<[u8]>, Errno> {
        let whole = self.whole.load()?;
        let part = whole.get(self.range.clone());
        part.map(Arc::from).ok_or(Errno::Io)
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
    // Nothing is registered or locked yet: this thread may wait for room.
    let door = context.service();
    let bytes = match door.keep_at_door(ino, offset, data, how.options()) {
        Ok(Some(kept)) => Bytes::Kept(kept),
        Ok(None) => Bytes::Here(data),
        Err(errno) => return reply.refuse(errno),
    };
    let range = offset..offset.saturating_add(data.len() as u64);
    let changes = context.page_cache().changes();
    match changes.begin(ino, how.kind, range.clone()) {
        Some(change) => begin(context, how, change, bytes, reply),
        None => begin_later(context, how, (ino, range), bytes, reply),
    }
}

/// Writes once the changes of the same pages are done that came before.
fn begin_later(
    context: &Arc<Context>,
    how: How<'_>,
    (ino, range): (Ino, Range<u64>),
    bytes: Bytes<'_>,
    reply: ReplyWrite,
) {
    context.service().hurry();
    // Nothing is registered yet: this is still the door.
    let kept = match bytes {
        Bytes::Kept(kept) => Ok(kept),
        Bytes::Here(data) => context.service().keep(data, how.options().waiting),
    };
    let kept = match kept {
        Ok(kept) => kept,
        Err(errno) => return reply.refuse(errno),
    };
    let (shared, how) = (Arc::clone(context), how.later());
    let start = move |change| {
        shared.answer("write", reply, |reply| {
            begin(&shared, how, change, Bytes::Kept(kept), reply);
        });
    };
    let cache = context.page_cache();
    cache.begin_later(ino, how.kind, range, Box::new(start));
}

/// Begins a write that meets no other.
fn begin(
    context: &Arc<Context>,
    how: How<'_>,
    change: Change,
    bytes: Bytes<'_>,
    reply: ReplyWrite,
) {
    let ino = change.ino;
    let parts = Parts::of(context, &change);
    let set_id = with_set_id(context, ino, how);
    let expires = set_id.is_some();
    let count = change.bytes.end - change.bytes.start;
    let shared = Arc::clone(context);
    let done = Box::new(move |outcome: Result<(), Errno>| {
        if expires {
            shared.expire(ino);
        }
        let answer = move || reply::written(reply, outcome.map(|()| count));
        page_cache::finish(&shared, change, outcome.is_ok(), answer);
    });
    match set_id.and_then(|attr| privileges::before_write(how.caller, &attr)) {
        None => parts.write(context.service(), bytes, how.options(), done),
        Some(first) => write_after(context, how, first, parts, bytes, done),
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
    bytes: Bytes<'_>,
    done: Done<()>,
) {
    context.service().hurry();
    let kept = bytes.keep(context);
    let (shared, how) = (Arc::clone(context), how.later());
    context.change(Ok(first), move |changed| match changed {
        Ok(_) => parts.write(shared.service(), Bytes::Kept(kept), how.options(), done),
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
        bytes: Bytes<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let (ino, offset) = (self.ino, self.bytes.start);
        match &self.fresh {
            None => bytes.write(service, (ino, offset), options, done),
            Some(fresh) => self.write_each(fresh, service, &bytes, options, done),
        }
    }

    /// Each part is a write of its own. The answer is that of all; the first error counts. Without parts there
    /// is nothing to write.
    fn write_each(
        &self,
        parts: &[Range<u64>],
        service: &dyn FileService,
        bytes: &Bytes<'_>,
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
            let bytes = bytes.part(at(part.start)..at(part.end));
            let left = Arc::clone(&left);
            let done = Box::new(move |outcome| Left::end_one(&left, outcome));
            bytes.write(service, (self.ino, part.start), options, done);
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
