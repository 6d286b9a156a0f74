//! The log as its owner uses it: append, sync, cut.
//!
//! Invariants: records are written one after another under one lock, so that a stop of the process
//! leaves no gap; positions are given in that order. Locks are taken in the order head, flush, and
//! no thread that syncs for the group holds the head, so appending goes on while a sync runs.

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

/// Bytes of a frame that says what became of another: [`Record::Done`] or [`Record::RolledBack`].
pub(crate) const OUTCOME_BYTES_MAX: u64 = 128;

/// Bytes copied at a time when undurable frames are written again.
const REWRITE_BYTES: usize = 256 << 10;

/// How full a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that cannot take records until the log is cut.
    pub used_bytes: u64,
    /// Bytes of both segments.
    pub capacity_bytes: u64,
}

/// The log of one store, open for writing. Safe to use from many threads at once. One at a time
/// may have it open; the owner of the store sees to that.
pub struct IntentLog {
    dir: String,
    segments: Segments,
    head: Mutex<Head>,
    /// See [`Usage`]: for those who must not wait for a disk that is being written to.
    used_bytes: AtomicU64,
    segment_bytes: u64,
    flush: Flush,
}

/// Where the next record goes.
struct Head {
    current: SegmentHeader,
    /// Place in the current segment's file.
    offset: u64,
    /// The header of the next segment may be written: nothing more goes into this one.
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
    /// Makes an empty log in `dir` (and the directories above it), durably, and opens it.
    ///
    /// A creation that a crash interrupted is simply done again; a log that exists is refused with
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

    /// Opens a log and gives the records in it, all of them durable by now.
    ///
    /// Refuses what is damaged, foreign, newer or truncated without changing anything.
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

    /// The records of a log, without writing anything: for reading a store offline. What is read
    /// is not necessarily durable.
    pub fn read(
        backing: &dyn Backing,
        dir: &str,
        options: &LogOptions,
    ) -> Result<Replay, LogError> {
        Ok(Replay::new(&scan(backing, dir, options)?))
    }

    /// Appends a record and gives its position. It survives a stop of the process from here on,
    /// and a power loss once [`Self::sync`] has covered it.
    ///
    /// One write to the page cache, without waiting for a sync that runs; once per segment, two
    /// syncs. [`LogError::Full`] if that segment is still needed: the owner did not heed
    /// [`Self::needs_checkpoint`].
    pub fn append(&self, record: &Record) -> Result<Position, LogError> {
        self.append_leaving(record, 0)
    }

    /// The same for a record that will be followed by one which says what became of it: there is room
    /// for that one behind it.
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
        // What was written of the frame before the disk was full lies beyond the tail, where the next
        // one is put.
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

    /// Returns once the record at `up_to`, and all before it, survive a power loss; a position not
    /// given out yet stands for everything appended so far.
    ///
    /// Group commit: one thread syncs; those that arrive meanwhile share the next sync.
    pub fn sync(&self, up_to: Position) -> Result<(), LogError> {
        match self.flush.join(up_to) {
            Ok(Turn::Durable) => Ok(()),
            Ok(Turn::Sync(batch)) => self.sync_batch(batch),
            Err(poison) => Err(self.refuse(poison)),
        }
    }

    /// Everything before this position is durable.
    pub fn durable(&self) -> Position {
        self.flush.durable()
    }

    /// Everything appended so far lies before this position; the next record at or after it.
    pub fn tail(&self) -> Position {
        self.head.lock().tail
    }

    /// Everything before `keep_from` is in a durable checkpoint and its space may be used again.
    ///
    /// Not recorded at once: the owner keeps the position with its checkpoint and passes it to
    /// [`Self::open`].
    pub fn cut(&self, keep_from: Position) {
        let mut head = self.head.lock();
        head.cut = head.cut.max(keep_from.min(head.tail));
        self.note_usage(&head);
    }

    /// How full the log is. Never waits for the disk.
    pub fn usage(&self) -> Usage {
        Usage {
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            capacity_bytes: capacity(self.segment_bytes),
        }
    }

    /// To be called wherever it changes.
    fn note_usage(&self, head: &Head) {
        self.used_bytes.store(head.used_bytes(), Ordering::Relaxed);
    }

    /// Whether half the log is used: time for the owner to make a checkpoint and cut. The other half is
    /// left for what is appended meanwhile.
    pub fn needs_checkpoint(&self) -> bool {
        let usage = self.usage();
        usage.used_bytes >= usage.capacity_bytes / 2
    }

    /// Whether three quarters of the log are used: whoever is about to begin something new should wait
    /// for the owner's checkpoint. The last quarter is left for what is under way.
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

    /// Writes down at the tail what is durable. Not synced: it is of use after a stop of the
    /// process, and after a power loss if it happens to survive.
    fn mark(&self) -> Result<(), LogError> {
        let mut draft = Draft::mark()?;
        let head = self.head.lock();
        let durable = self.flush.healthy().map_err(|poison| self.refuse(poison))?;
        if !head.fits(0) {
            return Ok(());
        }
        let bytes = draft.finish(&head.current.salt, head.tail, durable);
        match self.current(&head).write(head.offset, bytes) {
            // It can be done without.
            Err(error) if error.is_full_disk() => Ok(()),
            written => self.poison_on_error(written),
        }
    }

    /// Goes on in the other segment, to make room for `draft`.
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
        // our turn: a sync that runs now may be the one that is told of a failure
        let turn = self.flush.take_turn();
        let batch = turn.map_err(|poison| self.refuse(poison))?;
        let next = head.current.next(head.tail, head.cut);
        let completed = self.current(head).sync();
        self.poison_on_error(completed)?;
        let file = self.segments.of(next.number);
        match file.write_header(&next) {
            // A disk that copies what is written over may be full here too. A header that was written all
            // the same says that the current segment has ended; so it has, for the next attempt too.
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

/// Makes all that was found durable, and jumps ahead of every position ever given out. Gives the place
/// of the next record.
///
/// If the frame for the jump does not fit, no record does, and the change of segment jumps.
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

/// Writes what is there again: pages whose sync failed before a crash read well, count as clean,
/// and are not on the disk.
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
