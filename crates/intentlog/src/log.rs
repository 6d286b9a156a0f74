//! The log as its owner uses it: append, sync, cut.
//!
//! Invariants: records are written one after another under one lock, so a crash of the process leaves no gap.
//! Positions are assigned in the same order. Locks are taken in the order head, flush. A thread that syncs
//! for the group does not hold the head, so appending continues while a sync runs.

use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::backing::Backing;
use parking_lot::Mutex;

use crate::error::LogError;
use crate::flush::{Batch, Flush, IsPoisoned, Turn};
use crate::frame::{Draft, MARK_BYTES};
use crate::position::Position;
use crate::record::Record;
use crate::replay::Replay;
use crate::scan::{Scan, scan};
use crate::segment::create;
use crate::segment::{FRAMES_START, LogOptions, SegmentFile, SegmentHeader, Segments, capacity};

/// Bytes of a frame that tells the outcome of an earlier record: [`Record::Done`] or [`Record::RolledBack`].
pub(crate) const OUTCOME_BYTES_MAX: u64 = 128;

/// Bytes copied at a time when undurable frames are written again.
const REWRITE_BYTES: usize = 256 << 10;

/// The fill level of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that cannot take records until the log is cut.
    pub used_bytes: u64,
    /// Bytes of both segments.
    pub capacity_bytes: u64,
}

/// The log of one store, open for writing. Many threads may use it at once. Only one process may have it
/// open, which the owner of the store ensures.
pub struct IntentLog {
    dir: String,
    segments: Segments,
    head: Mutex<Head>,
    /// See [`Usage`]: readable without waiting for a disk that is being written to.
    used_bytes: AtomicU64,
    segment_bytes: u64,
    flush: Flush,
}

/// The place of the next record.
struct Head {
    current: SegmentHeader,
    /// Offset in the current segment's file.
    offset: u64,
    /// The header of the next segment may already be written: this segment takes no more records.
    has_ended: bool,
    tail: Position,
    cut: Position,
}

impl Head {
    /// Leaves room for the mark behind the frame.
    const fn fits(&self, frame_bytes: u64) -> bool {
        !self.has_ended && self.offset + frame_bytes + MARK_BYTES <= self.current.segment_bytes
    }

    fn other_is_free(&self) -> bool {
        self.cut >= self.current.before_end
    }

    fn used_bytes(&self) -> u64 {
        let other = if self.other_is_free() {
            0
        } else {
            self.current.segment_bytes
        };
        self.offset + other
    }
}

impl IntentLog {
    /// Creates an empty log in `dir` (and the directories above it), durably, and opens it.
    ///
    /// A creation that a crash interrupted can simply be repeated. An existing log is refused with
    /// [`LogError::Exists`].
    pub fn create(
        backing: &dyn Backing,
        dir: &str,
        options: &LogOptions,
    ) -> Result<Self, LogError> {
        create(backing, dir, options)?;
        let options = LogOptions {
            keep_from: None,
            ..*options
        };
        Ok(Self::open(backing, dir, &options)?.0)
    }

    /// Opens a log and returns its records, all of them durable by now.
    ///
    /// Refuses a damaged, foreign, newer or truncated log without changing anything.
    pub fn open(
        backing: &dyn Backing,
        dir: &str,
        options: &LogOptions,
    ) -> Result<(Self, Replay), LogError> {
        let scan = scan(backing, dir, options)?;
        let replay = Replay::new(&scan);
        let head = begin_opening(&scan)?;
        let log = Self {
            dir: dir.to_owned(),
            flush: Flush::new(scan.current.number, head.tail),
            used_bytes: AtomicU64::new(head.used_bytes()),
            segment_bytes: head.current.segment_bytes,
            head: Mutex::new(head),
            segments: scan.segments,
        };
        log.mark()?;
        Ok((log, replay))
    }

    /// Returns the records of a log without writing, to read a store offline. The records are not necessarily
    /// durable.
    pub fn read(
        backing: &dyn Backing,
        dir: &str,
        options: &LogOptions,
    ) -> Result<Replay, LogError> {
        Ok(Replay::new(&scan(backing, dir, options)?))
    }

    /// Appends a record and returns its position. From now on the record survives a crash of the process, and
    /// a power loss once [`Self::sync`] has covered it.
    ///
    /// An append is one write to the page cache. It does not wait for a running sync, except for two syncs
    /// once per segment. [`LogError::Full`] means that the next segment is still needed: the owner did not
    /// heed [`Self::needs_checkpoint`].
    pub fn append(&self, record: &Record) -> Result<Position, LogError> {
        self.append_leaving(record, 0)
    }

    /// Appends a record that a record of its outcome will follow. The log keeps room for that second record.
    pub fn append_before_outcome(&self, record: &Record) -> Result<Position, LogError> {
        self.append_leaving(record, OUTCOME_BYTES_MAX)
    }

    fn append_leaving(&self, record: &Record, room: u64) -> Result<Position, LogError> {
        let mut draft = Draft::of(record)?;
        let mut head = self.head.lock();
        let durable = self.flush.healthy().map_err(|poison| self.refuse(poison))?;
        let durable = if head.fits(draft.frame_bytes() + room) {
            durable
        } else {
            self.switch(&mut head, &draft)?;
            head.tail
        };
        let position = head.tail;
        let bytes = draft.finish(&head.current.salt, position, durable);
        let written = self.current(&head).write(head.offset, bytes);
        // A full disk may have taken a part of the frame. That part lies beyond the tail, where the next
        // frame is written.
        match written {
            Err(error) if error.is_full_disk() => return Err(error),
            written => self.poison_on_error(written)?,
        }
        head.offset += draft.frame_bytes();
        head.tail = position.plus(draft.frame_bytes());
        self.note_usage(&head);
        self.flush.wrote(head.tail);
        Ok(position)
    }

    /// Returns once the record at `up_to` and all earlier records survive a power loss. A position beyond the
    /// tail stands for the tail.
    ///
    /// Group commit: one thread syncs. Threads that arrive meanwhile share the next sync.
    pub fn sync(&self, up_to: Position) -> Result<(), LogError> {
        match self.flush.join(up_to) {
            Ok(Turn::Durable) => Ok(()),
            Ok(Turn::Sync(batch)) => self.sync_batch(batch),
            Err(poison) => Err(self.refuse(poison)),
        }
    }

    /// All records before this position are durable.
    pub fn durable(&self) -> Position {
        self.flush.durable()
    }

    /// All appended records lie before this position. The next record lies at or after it.
    pub fn tail(&self) -> Position {
        self.head.lock().tail
    }

    /// Frees the space of all records before `keep_from`, which are in a durable checkpoint.
    ///
    /// The log does not record the cut at once: the owner keeps the position with its checkpoint and passes
    /// it to [`Self::open`].
    pub fn cut(&self, keep_from: Position) {
        let mut head = self.head.lock();
        head.cut = head.cut.max(keep_from.min(head.tail));
        self.note_usage(&head);
    }

    /// The fill level of the log. Never waits for the disk.
    pub fn usage(&self) -> Usage {
        Usage {
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            capacity_bytes: capacity(self.segment_bytes),
        }
    }

    /// Must be called after each change of the fill level.
    fn note_usage(&self, head: &Head) {
        self.used_bytes.store(head.used_bytes(), Ordering::Relaxed);
    }

    /// Whether half of the log is used: time for the owner to make a checkpoint and cut. The other half is
    /// for records that are appended meanwhile.
    pub fn needs_checkpoint(&self) -> bool {
        let usage = self.usage();
        usage.used_bytes >= usage.capacity_bytes / 2
    }

    /// Whether three quarters of the log are used: a thread that is about to begin a new operation should
    /// wait for the owner's checkpoint. The last quarter is for operations in progress.
    pub fn is_filling(&self) -> bool {
        let usage = self.usage();
        usage.used_bytes >= usage.capacity_bytes / 4 * 3
    }

    fn current(&self, head: &Head) -> &SegmentFile {
        self.segments.of(head.current.number)
    }

    fn refuse(&self, _: IsPoisoned) -> LogError {
        LogError::Poisoned {
            path: self.dir.clone(),
        }
    }

    fn poison_on_error<T>(&self, result: Result<T, LogError>) -> Result<T, LogError> {
        if result.is_err() {
            self.flush.poison();
        }
        result
    }

    fn sync_batch(&self, batch: Batch) -> Result<(), LogError> {
        let synced = self.segments.of(batch.number).sync();
        self.poison_on_error(synced)?;
        self.flush.finish(batch);
        self.mark()
    }

    /// Writes a mark with the durable position at the tail. The mark is not synced. It helps after a crash of
    /// the process, and after a power loss if it happens to survive.
    fn mark(&self) -> Result<(), LogError> {
        let mut draft = Draft::mark()?;
        let head = self.head.lock();
        let durable = self.flush.healthy().map_err(|poison| self.refuse(poison))?;
        if !head.fits(0) {
            return Ok(());
        }
        let bytes = draft.finish(&head.current.salt, head.tail, durable);
        match self.current(&head).write(head.offset, bytes) {
            // The log works without the mark.
            Err(error) if error.is_full_disk() => Ok(()),
            written => self.poison_on_error(written),
        }
    }

    /// Continues in the other segment, to make room for `draft`.
    fn switch(&self, head: &mut Head, draft: &Draft) -> Result<(), LogError> {
        let room = head.current.segment_bytes - FRAMES_START - MARK_BYTES;
        if draft.frame_bytes() > room {
            return Err(LogError::TooLarge {
                bytes: draft.payload_bytes(),
                max: usize::try_from(room).unwrap_or(usize::MAX),
            });
        }
        if !head.other_is_free() {
            return Err(LogError::Full {
                path: self.dir.clone(),
                capacity: capacity(head.current.segment_bytes),
            });
        }
        // Waits for this thread's turn: a running sync may be the one that learns of a failure.
        let turn = self.flush.take_turn();
        let batch = turn.map_err(|poison| self.refuse(poison))?;
        let next = head.current.next(head.tail, head.cut);
        let completed = self.current(head).sync();
        self.poison_on_error(completed)?;
        let file = self.segments.of(next.number);
        match file.write_header(&next) {
            // A copy-on-write disk may be full here too. If the header was written all the same, it says that
            // the current segment has ended. The next attempt says the same.
            Err(error) if error.is_full_disk() => {
                head.has_ended = true;
                self.flush.finish(batch);
                return Err(error);
            }
            written => self.poison_on_error(written)?,
        }
        let begun = file.sync();
        self.poison_on_error(begun)?;
        self.flush.finish_switch(next.number, next.base);
        head.current = next;
        head.offset = FRAMES_START;
        head.has_ended = false;
        head.tail = next.base;
        self.note_usage(head);
        Ok(())
    }
}

/// Makes all found records durable, and jumps beyond every position ever assigned. Returns the place of the
/// next record.
///
/// If the frame for the jump does not fit, no record fits, and the change of segment jumps.
fn begin_opening(scan: &Scan) -> Result<Head, LogError> {
    let current = &scan.current;
    let file = scan.segments.of(current.number);
    file.write_header(current)?;
    rewrite(file, scan.durable_offset, scan.tail_offset)?;
    let mut draft = Draft::opened(scan.tail)?;
    let position = scan.tail.plus(capacity(current.segment_bytes));
    let end = scan.tail_offset + draft.frame_bytes();
    let fits = end + MARK_BYTES <= current.segment_bytes;
    if fits {
        let bytes = draft.finish(&current.salt, position, scan.durable);
        file.write(scan.tail_offset, bytes)?;
    }
    file.sync()?;
    let (offset, tail) = if fits {
        (end, position.plus(draft.frame_bytes()))
    } else {
        (scan.tail_offset, scan.tail)
    };
    Ok(Head {
        current: scan.current,
        offset,
        has_ended: !fits,
        tail,
        cut: scan.start,
    })
}

/// Writes existing frames again: pages whose sync failed before a crash read well, are treated as clean, and
/// are not on the disk.
fn rewrite(file: &SegmentFile, from: u64, to: u64) -> Result<(), LogError> {
    let mut buffer = vec![0; REWRITE_BYTES];
    let mut offset = from;
    while offset < to {
        let length = usize::try_from(to - offset).unwrap_or(usize::MAX);
        let piece = length.min(REWRITE_BYTES);
        let bytes = buffer.get_mut(..piece).unwrap_or_default();
        let read = file.file.read_at(offset, bytes);
        let read = read.map_err(LogError::io("read", &file.path))?;
        if read != piece {
            return Err(file.truncated(offset + read as u64, to));
        }
        file.write(offset, bytes)?;
        offset += piece as u64;
    }
    Ok(())
}
