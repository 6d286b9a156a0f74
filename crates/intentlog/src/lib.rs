//! The intent log: the write-ahead log of metadata operations of one store (paper, section 5).
//!
//! Between two checkpoints of the key-value store behind it, a metadata operation is recorded only in this
//! log. The log does not interpret its records. It starts no thread, reads no clock and touches the disk only
//! through [`lockstep_types::backing`], so a simulator can crash it at every call.
//!
//! # Layout
//!
//! Two segment files of equal, fixed size, `intent.0` and `intent.1`, are filled alternately. A segment has
//! one page for its header, which lies alternately at the start or in the middle of the page. Frames follow,
//! one per record, each at a multiple of 8 bytes:
//!
//! | bytes | frame | | bytes | segment header |
//! |---|---|---|---|---|
//! | 16 | hash of all following bytes | | 8 | magic `LSINTENT` |
//! | 8 | position | | 4 + 4 | format version, and its complement |
//! | 8 | durable: all before this position was synced | | 8 | number; counts up by one, even in `intent.0` |
//! | 4 | bytes of payload | | 8 | bytes of the segment file |
//! | 1 + 3 | kind, zeros | | 8 | base: position of the first frame |
//! | | payload, zeros up to a multiple of 8 | | 8 | position where the segment before ended |
//! | | | | 8 | cut: nothing before this position is needed |
//! | | | | 16 + 16 | salt; hash of all before |
//!
//! All numbers are little endian. A frame's hash starts from the log's salt, so no payload of a client can
//! pass for a frame.
//!
//! # Positions
//!
//! A [`Position`] grows by the length of each frame. No two records in the life of the log get the same
//! position, even if a power loss took the first record back. Every opening, and every change of segment,
//! jumps ahead by the capacity of the whole log, further than any lost record can lie. The frame for the jump
//! (`Opened`) is synced before the opening returns the log. A frame is therefore valid at one place only. A
//! leftover of an earlier use of the space, or of an earlier opening, is never valid.
//!
//! # Torn tails and damage
//!
//! Reading stops at the first invalid frame. That frame is the *torn tail* that a crash may leave, if no
//! later part of the log had been synced: a power loss keeps an arbitrary subset of unsynced pages, so valid
//! frames may even follow the torn tail. The frame is *damage* ([`LogError::Damaged`]) if the log itself
//! proves that this place had been synced: some valid frame anywhere carries a `durable` position beyond it.
//! An owner that knows that no power was lost (the machine did not start again) says so
//! ([`LogOptions::is_whole`]). Then only the last record may be torn, and any valid frame behind an invalid
//! one shows damage.
//!
//! Each record carries the position that was known to be durable at its append. Each sync is followed by a
//! mark at the tail that carries the newest durable position. The mark is not synced, and the next record
//! overwrites it. So after a crash of the process, damage to any synced record is noticed. After a power
//! loss, damage is noticed to all synced records, except perhaps to records of the last sync before the loss.
//! The log never cuts damage away, and writes nothing to a damaged log.
//!
//! # Promises
//!
//! - Records that [`IntentLog::sync`] covered are replayed after any crash.
//! - The replayed records are a prefix of the appended records: no gap, no other order, no invented record.
//! - All replayed records are durable before [`IntentLog::open`] returns, so a second crash cannot take back
//!   records on which the owner has acted. A sync may have failed before the crash, and the pages of a failed
//!   sync are treated as clean. So opening first writes all records again that are not proven durable.
//! - An append or sync that failed with an input or output error has an unknown outcome: a later replay may
//!   or may not return the record. From then on the log refuses every operation ([`LogError::Poisoned`])
//!   until it is opened again.

mod error;
mod flush;
mod frame;
mod log;
mod position;
mod reader;
mod record;
mod replay;
mod scan;
mod segment;

pub use error::LogError;
pub use log::{IntentLog, Usage};
pub use position::Position;
pub use record::{FOLDED_MAX, FoldedTimes, PAYLOAD_BYTES_MAX, Record};
pub use replay::Replay;
pub use segment::{LogOptions, SEGMENT_BYTES};
