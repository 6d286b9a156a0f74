//! The intent log: the write-ahead log of metadata operations of one store (paper, section 5).
//!
//! Between two checkpoints of the key-value store behind it, it is the only place a metadata
//! operation is recorded. It knows nothing of what its records mean; it starts no thread, reads no
//! clock and touches the disk through [`lockstep_types::backing`] alone, so that a simulator can
//! crash it at every call.
//!
//! # Layout
//!
//! Two segment files of equal, fixed size, `intent.0` and `intent.1`, filled in turn. A segment is
//! a page for its header, which lies at its start or at its middle by turns, and then frames, one
//! per record, each at a multiple of 8 bytes:
//!
//! | bytes | frame | | bytes | segment header |
//! |---|---|---|---|---|
//! | 16 | hash of all that follows | | 8 | magic `LSINTENT` |
//! | 8 | position | | 4 + 4 | format version, and its complement |
//! | 8 | durable: all before this position was synced | | 8 | number; counts up by one, even in `intent.0` |
//! | 4 | bytes of payload | | 8 | bytes of the segment file |
//! | 1 + 3 | kind, zeros | | 8 | base: position of the first frame |
//! | | payload, zeros up to a multiple of 8 | | 8 | position where the segment before ended |
//! | | | | 8 | cut: nothing before this position is needed |
//! | | | | 16 + 16 | salt; hash of all before |
//!
//! All numbers are little endian. A frame's hash starts from the log's salt, so nothing that a
//! client puts into a payload can pass for a frame.
//!
//! # Positions
//!
//! A [`Position`] grows by the length of each frame and is never given to two records in the life
//! of the log, not even when a power loss took the first back: every opening, and every change of
//! segment, jumps ahead by the capacity of the whole log, further than anything lost can lie. The
//! frame that says so (`Opened`) is synced before the log is handed out. A frame is therefore
//! valid at one place only, and a leftover of an earlier use of the space, or of an earlier
//! opening, never is.
//!
//! # What a crash leaves, and what is damage
//!
//! Reading stops at the first invalid frame. That is the *torn tail* that a crash may leave, as
//! long as nothing from there on had been synced: a power loss keeps an arbitrary subset of
//! unsynced pages, so valid frames may even follow it. It is *damage* ([`LogError::Damaged`]) if
//! the log itself proves that this place had been synced: some valid frame anywhere carries a
//! `durable` position beyond it. An owner who knows that no power was lost (the machine did not start
//! anew) says so ([`LogOptions::is_whole`]): then only the last record may be torn, and any valid
//! frame behind an invalid one shows damage.
//!
//! Each record carries the position known durable when it was appended, and each sync is followed by
//! a mark at the tail (not itself synced; the next record overwrites it) that carries the newest. So
//! after a stop of the process, damage to any synced record is noticed; after a power loss, to any but
//! perhaps those of the last sync before it. Damage is never cut away, and nothing is written to a log
//! that has some.
//!
//! # What is promised
//!
//! - What [`IntentLog::sync`] covered is replayed after any crash.
//! - What is replayed is a prefix of what was appended: no gap, no other order, nothing invented.
//! - All of it is durable before [`IntentLog::open`] returns, so a second crash cannot take back
//!   what the owner has acted on. Since a sync may have failed before the crash, and pages that
//!   failed count as clean, whatever is not proven durable is written again first.
//! - An append or sync that failed with an input or output error has an unknown outcome: the
//!   record may or may not be replayed later. From then on the log refuses everything
//!   ([`LogError::Poisoned`]) until it is opened anew.

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
pub use record::{PAYLOAD_BYTES_MAX, Record};
pub use replay::Replay;
pub use segment::{LogOptions, SEGMENT_BYTES};
