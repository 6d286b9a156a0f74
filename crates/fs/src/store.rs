//! The store of one datastore on one node: what it holds and what can be done to it.
//!
//! A store is a namespace (key-value records), the content of files (one sparse file each, bytes in
//! place), an intent log, and a table of unflushed file times. It knows nothing of peers: whoever
//! drives it says in which order operations come. It does no locking between operations on the
//! same file; that is the lock manager's duty (paper, section 4.1).
//!
//! Invariants:
//! - Metadata operations are applied one at a time, in the order of their log records, and each
//!   record is in the log before its first effect. Hence after a crash of the process only the last
//!   record of the log may have effects missing.
//! - The namespace in memory is the last checkpoint plus the log since; a checkpoint is atomic.
//! - Once a sync has failed the store is poisoned: it refuses to promise durability ever again. Over
//!   a [guarded](crate::poison) disk it stays so when it is opened anew.

mod apply;
mod changes;
mod checkpoint;
mod content;
mod create;
mod emptied;
mod image;
mod mirror;
mod open;
mod read;
mod replay;
mod room;
mod turns;
mod unsynced;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_intentlog::{IntentLog, Usage};
use lockstep_types::backing::{Backing, Space};
use lockstep_types::{BootId, DatastoreUuid, Ino, MetaOp, Osn};
use parking_lot::Mutex;

pub use apply::{Applied, Intent};
pub use changes::{Changes, ImageChange};
pub use content::WriteTicket;
pub use image::{ImageChunk, ImageRecord};
pub use mirror::{Census, Facts};
pub use open::{Access, Checked, OpenOptions, Opened};
pub use read::SeekFor;

use crate::error::StoreError;
use crate::files::FileTable;
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::times::TimeTable;

/// Numbers of operations of one opening: so many bits.
const EPOCH_SHIFT: u32 = 40;
/// Inode numbers reserved at a time: each reservation costs one sync.
const INO_RESERVE: u64 = 1 << 20;

/// One node's copy of a datastore. Safe to use from many threads at once.
pub struct Store {
    backing: Arc<dyn Backing>,
    uuid: DatastoreUuid,
    boot: BootId,
    /// `None` in a store opened only to be looked at.
    log: Option<IntentLog>,
    names: Memtable<RedbKv>,
    files: FileTable,
    times: TimeTable,
    /// Held while operations are applied and while a checkpoint takes its cut.
    applying: Mutex<Applying>,
    /// What `applying` says was applied, for those who must not wait for the disk.
    applied: Mutex<Osn>,
    /// Held by the one checkpoint that may run.
    checkpointing: Mutex<()>,
    /// Held while the content of freed inodes is removed.
    collecting: Mutex<()>,
    next_ino: AtomicU64,
    ino_limit: AtomicU64,
    poisoned: AtomicBool,
    garbage: Mutex<Vec<Ino>>,
    emptied: emptied::Emptied,
    unsynced: Arc<unsynced::Unsynced>,
    /// The syncs of content under way.
    turns: turns::Turns,
    /// An earlier process left content that may not be on stable storage.
    inherited_doubt: bool,
}

/// What changes as operations are applied.
struct Applying {
    /// Highest OSN of a metadata operation applied or rolled back.
    applied: Osn,
    /// Intents logged and not yet committed or rolled back, with where their records lie.
    pending: Vec<PendingIntent>,
    /// How often the store was opened.
    epoch: u32,
    /// The records that operations change, while somebody follows them.
    changed: changes::Changed,
}

/// An intent that waits for the peer's word.
struct PendingIntent {
    op: MetaOp,
    /// The metadata operation before it.
    previous: Osn,
    position: lockstep_intentlog::Position,
}

impl Store {
    /// Which datastore this is.
    pub const fn uuid(&self) -> DatastoreUuid {
        self.uuid
    }

    /// The disk below, for tables of the same store that others keep.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// Highest OSN of a metadata operation applied here.
    pub fn applied(&self) -> Osn {
        self.applying.lock().applied
    }

    /// The same, but for one that is being applied at this moment: never waits for the disk.
    pub fn applied_lately(&self) -> Osn {
        *self.applied.lock()
    }

    fn note_applied(&self, applying: &mut Applying, osn: Osn) {
        applying.applied = osn;
        *self.applied.lock() = osn;
    }

    /// Room on this node's disk.
    pub fn space(&self) -> Result<Space, StoreError> {
        self.backing.space().map_err(StoreError::disk("stat", "."))
    }

    /// Whether a sync failed: nothing more may be promised.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire) || self.backing.is_poisoned()
    }

    fn log(&self) -> Result<&IntentLog, StoreError> {
        self.log.as_ref().ok_or(StoreError::ReadOnly)
    }

    /// Refuses once a sync has failed.
    fn check_trust(&self) -> Result<(), StoreError> {
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        Ok(())
    }

    /// Passes a result of a sync on, and remembers a failure for ever.
    fn trust<T, E: Into<StoreError>>(&self, result: Result<T, E>) -> Result<T, StoreError> {
        result.map_err(|error| {
            let error = error.into();
            if error.poisons() {
                self.backing.poison(&error.to_string());
                self.poisoned.store(true, Ordering::Release);
            }
            error
        })
    }

    /// A number for a new inode; never given twice, whatever is lost with power (rule P13).
    pub fn next_ino(&self) -> Result<Ino, StoreError> {
        let number = self.next_ino.fetch_add(1, Ordering::Relaxed);
        if number >= self.ino_limit.load(Ordering::Acquire) {
            self.reserve_inos(number)?;
        }
        Ino::new(number).ok_or_else(|| StoreError::Damaged {
            what: "the counter of inode numbers is zero".to_owned(),
        })
    }

    fn reserve_inos(&self, number: u64) -> Result<(), StoreError> {
        let _alone = self.checkpointing.lock();
        let limit = self.ino_limit.load(Ordering::Acquire);
        if number < limit {
            return Ok(());
        }
        self.checkpoint_with_limit(number.saturating_add(INO_RESERVE))
    }

    /// First OSN sequence of this opening: higher than any given out before, even if the highest
    /// were lost with power, because the count of openings is made durable before the first use (P13).
    pub fn first_sequence(&self) -> u64 {
        u64::from(self.applying.lock().epoch) << EPOCH_SHIFT
    }

    /// How full the intent log is; `None` for a store that is only read.
    pub fn log_usage(&self) -> Option<Usage> {
        self.log.as_ref().map(IntentLog::usage)
    }

    /// Whether a checkpoint is due.
    pub fn needs_checkpoint(&self) -> bool {
        self.log.as_ref().is_some_and(IntentLog::needs_checkpoint)
            || self.times.is_filling()
            || self.names.bytes() > checkpoint::MEMORY_BYTES_MAX
    }
}
