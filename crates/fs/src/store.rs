//! The store of one datastore on one node: the state that it holds, and the operations on it.
//!
//! A store is a namespace (key-value records), the content of files (one sparse file each, bytes in place), an intent
//! log, and a table of unflushed file times. It knows nothing of peers: its driver decides the order of operations. It
//! does not lock operations on one file against each other; the lock manager does (paper, section 4.1).
//!
//! [`Store`] composes three parts, each of which owns its state and states its invariants and lock order: `namespace`
//! owns the records, `content` the bytes of files, `metadata_log` the log and the progress of metadata operations. [`Tree`]
//! is the clients' view of namespace and content together. Operations for one kind of caller have separate views:
//! [`ReplicaAccess`], [`ImageAccess`], [`Intents`], [`Capacity`], [`LostFoundAccess`], [`DeltaAccess`].
//!
//! Invariants:
//! - The namespace in memory is the last checkpoint plus the log since; a checkpoint is atomic.
//! - Once a sync has failed the store is poisoned: it refuses to promise durability ever again. Over a
//!   [fenced](crate::backing::poison) disk it stays poisoned when it is opened again.

#[cfg(test)]
mod announced;
mod capacity;
mod create;
mod delta_access;
mod facade;
mod image;
mod intents;
mod lost_found_access;
mod open;
mod places;
mod replica_access;

pub use crate::content::{SeekFor, SyncPoint, WriteTicket};
pub use crate::delta::{ChangedContent, ChangedRegions, DeltaJob, DeltaWalk, RestOfFiles};
pub use crate::lost_found::{OwnBytes, PreservedTotals};
pub use crate::metadata_log::{Applied, ChangeFeed, ImageChange, Intent};
pub use crate::tree::{FileTimes, Tree};
pub use capacity::Capacity;
pub use delta_access::DeltaAccess;
pub use facade::Store;
pub use image::{ImageAccess, ImageChunk, ImageRecord};
pub use intents::Intents;
pub use lost_found_access::LostFoundAccess;
pub use open::{Access, Checked, OpenOptions, Opened};
pub use replica_access::{Census, ReplicaAccess};
