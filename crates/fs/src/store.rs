//! The store of one datastore on one node: the state that it holds, and the operations on it.
//!
//! A store is a namespace (key-value records), the content of files (one sparse file each, bytes in place), an intent
//! log, and a table of unflushed file times. It knows nothing of peers: its driver decides the order of operations. It
//! does not lock operations on one file against each other; the lock manager does (paper, section 4.1).
//!
//! [`Store`] composes its parts, each of which owns its state and states its invariants and lock order: `namespace` owns
//! the records, `content` the bytes of files, `metadata_log` the log and the progress of metadata operations, `delta` the
//! changes since both copies were equal, `snapshots` what snapshots see. The last two are told of each change of
//! bytes by `content` (`content/before_change.rs`): the store has no rule for them. [`Tree`] is namespace and content
//! together, and the [view](crate::view) of the present. Each kind of caller besides clients has functions of its own,
//! over the parts that it needs: [`ReplicaAccess`], [`ImageAccess`], [`Intents`], [`Capacity`], [`FallbackAccess`],
//! [`DeltaAccess`], [`BarrierAccess`], [`SumsAccess`], [`ChangeAccess`], [`SnapshotAccess`], [`DiffReader`],
//! [`ArrivalAccess`].
//!
//! Invariants:
//! - The namespace in memory is the last checkpoint plus the log since; a checkpoint is atomic.
//! - Once a sync has failed the store is poisoned: it refuses to promise durability ever again. Over a
//!   [fenced](crate::backing::poison) disk it stays poisoned when it is opened again.

pub(crate) mod adoption;
#[cfg(test)]
mod announced;
mod arrival_access;
mod barrier_access;
mod capacity;
mod change_access;
pub(crate) mod create;
mod delta_access;
mod diff_access;
mod facade;
mod fallback_access;
mod format;
mod image;
pub(crate) mod import_note;
mod open;
mod put_back;
mod replica_access;
mod snapshot_access;
mod sums_access;
mod trace_access;
mod whole_sync;

pub use crate::content::{SeekFor, SyncPoint, WriteTicket};
pub use crate::delta::{
    AnswerReplaced, ChangePoint, ChangeQuestion, ChangeWalk, ChangedContent, ChangedEntry,
    ChangedRecords, ChangedRegions, DeltaJob, DeltaWalk, EntryChange, LostMarks, MarkTableSizes,
    NotAPoint, READER_KEPT_DAYS, READER_NAME_MAX, READERS_MAX, ReaderError, ReaderRecord,
    RestOfFiles, WalkProgress, WholeAnswer, make_table as make_delta_table,
};
pub use crate::metadata_log::{Applied, ChangeFeed, ImageChange, Intent, Intents};
pub use crate::namespace::RecordsAt;
pub use crate::snapshots::arrival::{ArrivalItem, ArrivalPage, ArrivalPlace, ArrivalWindow};
pub use crate::snapshots::diff::{
    DiffAttribute, DiffChange, DiffCursor, DiffEntry, DiffPage, DiffPlace, DiffRange, DiffStage,
    DiffWish, NotACursor, SnapshotMark,
};
pub use crate::snapshots::packs::touch::NewTouch;
pub use crate::snapshots::view::SnapshotView;
pub use crate::sums::{KeptSum, SumTotals};
pub use crate::tree::Tree;
pub use crate::view::{Census, FileTimes, WholeContent};
pub use adoption::AdoptWay;
pub use arrival_access::ArrivalAccess;
pub use barrier_access::BarrierAccess;
pub use capacity::Capacity;
pub use change_access::ChangeAccess;
pub use delta_access::DeltaAccess;
pub use diff_access::DiffReader;
pub use facade::Store;
pub use fallback_access::{CopyBefore, FallbackAccess, FallbackEnd};
pub use image::{ImageAccess, ImageChunk, ImageRecord};
pub use import_note::SeedTotals;
pub use open::{Access, Checked, OpenOptions, Opened};
pub use replica_access::ReplicaAccess;
pub use snapshot_access::SnapshotAccess;
pub use sums_access::SumsAccess;
pub use trace_access::TraceAccess;
