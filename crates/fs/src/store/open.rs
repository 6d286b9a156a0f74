//! Opening a store, and bringing it back to where a crash left it.
//!
//! What is refused is refused before anything is written: all is first looked at through an
//! overlay. Recovery after a crash of the process takes the last checkpoint, applies the committed
//! operations of the log since, and takes sizes and times of files that were being written from the
//! time table. After a power loss the lengths of all content files are looked at, because those that
//! were not synced may be shorter than recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use lockstep_intentlog::{IntentLog, LogOptions, Position, Replay};
use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{BootId, DatastoreUuid};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::changes::Changed;
use super::emptied::Emptied;
use super::turns::Turns;
use super::unsynced::Unsynced;
use super::{Applying, INO_RESERVE, Store};
use crate::error::{OpError, StoreError};
use crate::files::{CONTENT_DIR, FileTable};
use crate::keys;
use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::overlay::Overlay;
use crate::record::{self, Checkpoint};
use crate::times::{Left, Slot, TABLE_BYTES, TimeTable};

/// The format this program makes, and the only one it opens.
pub(super) const FORMAT: u32 = 2;
pub(super) const FORMAT_FILE: &str = "format.json";
pub(super) const NAMESPACE_FILE: &str = "namespace.redb";
pub(super) const LOG_DIR: &str = "log";
const TIMES_FILE: &str = "tables/times";

/// What the format file says.
#[derive(Serialize, Deserialize)]
pub(super) struct Format {
    pub lockstep_store: u32,
    pub datastore: DatastoreUuid,
}

/// Whether a store is opened to be used or only to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be used: recovery is written down.
    Write,
    /// To be looked at, for export: nothing on disk changes.
    Read,
}

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Which datastore it must belong to, if that is known.
    pub datastore: Option<DatastoreUuid>,
    /// A value that changes when the machine restarts, to tell a crash from a power loss.
    pub boot: BootId,
    /// To use it, or to look at it.
    pub access: Access,
    /// Options of the intent log.
    pub log: LogOptions,
}

/// A store of which all was looked at and found good. Nothing in its directory was changed.
pub struct Checked {
    backing: Arc<dyn Backing>,
    uuid: DatastoreUuid,
    options: OpenOptions,
}

impl Checked {
    /// Opens the store. From here on its directory changes.
    pub fn open(self) -> Result<Opened, StoreError> {
        // The process that made the store may have stopped before this: a power loss must not take
        // the name of the format file from a store that is in use.
        let named = self.backing.sync_dir(".");
        named.map_err(StoreError::disk("sync the names in", "."))?;
        Store::open_on(self.backing, self.uuid, &self.options)
    }
}

/// An opened store and what was found on the way.
pub struct Opened {
    /// The store.
    pub store: Store,
    /// The machine lost power, or was reset, while the store was in use: what was not synced may
    /// be missing.
    pub power_lost: bool,
}

impl Store {
    /// Whether the directory holds a store at all.
    pub fn exists(backing: &dyn Backing) -> Result<bool, StoreError> {
        backing
            .exists(FORMAT_FILE)
            .map_err(StoreError::disk("look for", FORMAT_FILE))
    }

    /// Opens a store.
    ///
    /// `backing` is to be guarded ([`crate::poison::Guarded`]) where several threads use the store: then a
    /// sync that failed is noted before its turn is over, and no other thread is told of success by one
    /// that came after it.
    pub fn open(backing: Arc<dyn Backing>, options: &OpenOptions) -> Result<Opened, StoreError> {
        match options.access {
            Access::Read => Self::open_in_memory(&backing, options),
            Access::Write => Self::check(backing, options)?.open(),
        }
    }

    /// Looks at all of a store, by opening it on a copy in memory: one that cannot be opened stays
    /// as it was found. For owners who have something of their own to write down before the store
    /// changes.
    pub fn check(backing: Arc<dyn Backing>, options: &OpenOptions) -> Result<Checked, StoreError> {
        let opened = Self::open_in_memory(&backing, options)?;
        Ok(Checked {
            backing,
            uuid: opened.store.uuid,
            options: *options,
        })
    }

    /// Opens a store through an overlay: what it writes is lost with it.
    fn open_in_memory(
        backing: &Arc<dyn Backing>,
        options: &OpenOptions,
    ) -> Result<Opened, StoreError> {
        let format = read_format(backing.as_ref())?;
        if let Some(expected) = options.datastore
            && expected != format.datastore
        {
            return Err(StoreError::OtherDatastore {
                found: format.datastore.to_string(),
                expected: expected.to_string(),
            });
        }
        let overlay = Arc::new(Overlay::new(Arc::clone(backing)));
        Self::open_on(overlay, format.datastore, options)
    }

    /// Opens what lies on `backing`, and brings it back to where a crash left it.
    fn open_on(
        backing: Arc<dyn Backing>,
        uuid: DatastoreUuid,
        options: &OpenOptions,
    ) -> Result<Opened, StoreError> {
        let (names, checkpoint) = open_namespace(backing.as_ref())?;
        let power_lost = checkpoint.boot.is_some_and(|boot| boot != options.boot);
        let was_killed = checkpoint.boot == Some(options.boot);
        check_table(backing.as_ref(), &checkpoint, options)?;
        let (log, replay) = open_log(backing.as_ref(), &checkpoint, options)?;
        let table = backing
            .open_table(TIMES_FILE, TABLE_BYTES)
            .map_err(StoreError::disk("open", TIMES_FILE))?;
        let (times, left) = TimeTable::open(table);
        let store = Self {
            uuid,
            boot: options.boot,
            log,
            names,
            files: FileTable::default(),
            times,
            applying: Mutex::new(Applying {
                applied: checkpoint.applied,
                pending: Vec::new(),
                epoch: checkpoint.epoch,
                changed: Changed::default(),
            }),
            applied: Mutex::new(checkpoint.applied),
            checkpointing: Mutex::new(()),
            collecting: Mutex::new(()),
            next_ino: AtomicU64::new(checkpoint.ino_limit),
            ino_limit: AtomicU64::new(checkpoint.ino_limit),
            poisoned: AtomicBool::new(false),
            garbage: Mutex::new(Vec::new()),
            emptied: Emptied::default(),
            unsynced: Arc::new(Unsynced::default()),
            turns: Turns::default(),
            inherited_doubt: was_killed,
            backing,
        };
        // Whatever else the machine did since: the table is what some moment left on the disk, and
        // would put older times over newer ones that were synced.
        if !was_killed {
            // Before the checkpoint names this run of the machine: from then on the table counts,
            // also for a process that follows one which is killed right after it.
            store.clear_slots(&left);
        }
        let slots = left.slots.iter().filter(|_| was_killed);
        let slots: Vec<Slot> = slots.map(|(_, slot)| *slot).collect();
        let content_decides = power_lost || (was_killed && !left.torn.is_empty());
        store.recover(checkpoint, replay, &slots, content_decides)?;
        if options.access == Access::Write {
            if checkpoint.boot.is_some() {
                store.doubt_names()?;
            }
            if power_lost {
                store.find_lost_content()?;
            }
            store.start_epoch()?;
            if was_killed {
                store.clear_slots(&left);
            }
            store.backing.scatter(CONTENT_DIR);
            store.doubt_directories()?;
        }
        Ok(Opened { store, power_lost })
    }

    /// Makes the recovered state durable, with a new epoch, before anything new is numbered (P13).
    fn start_epoch(&self) -> Result<(), StoreError> {
        if !is_active(Mutant::NumbersAgain) {
            let mut applying = self.applying.lock();
            // One opening may have lasted for longer than its numbers do.
            applying.epoch = applying.epoch.max(applying.epoch_reached()) + 1;
        }
        let limit = self.next_ino.load(std::sync::atomic::Ordering::Relaxed);
        let _alone = self.checkpointing.lock();
        self.checkpoint_with_limit(limit.saturating_add(INO_RESERVE))
    }

    /// Empties what an earlier process left in the table of times.
    fn clear_slots(&self, left: &Left) {
        for number in left.numbers() {
            self.times.clear(number);
        }
    }
}

impl OpError {
    /// The error as one of the store: for readings that cannot be refused.
    pub(crate) fn into_store(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Refused(errno) => StoreError::Damaged {
                what: format!("a record that exists was refused: {errno}"),
            },
        }
    }
}

fn open_namespace(backing: &dyn Backing) -> Result<(Memtable<RedbKv>, Checkpoint), StoreError> {
    let kv = RedbKv::open(backing, NAMESPACE_FILE, RedbOptions::default())?;
    let names = Memtable::new(kv);
    let checkpoint = read_checkpoint(&names)?;
    Ok((names, checkpoint))
}

/// The log, if it is to be written to, and what it holds.
fn open_log(
    backing: &dyn Backing,
    checkpoint: &Checkpoint,
    options: &OpenOptions,
) -> Result<(Option<IntentLog>, Replay), StoreError> {
    let log_options = log_options(checkpoint, options);
    Ok(match options.access {
        Access::Write => {
            let (log, replay) = IntentLog::open(backing, LOG_DIR, &log_options)?;
            (Some(log), replay)
        }
        Access::Read => (None, IntentLog::read(backing, LOG_DIR, &log_options)?),
    })
}

fn log_options(checkpoint: &Checkpoint, options: &OpenOptions) -> LogOptions {
    LogOptions {
        keep_from: Some(Position::new(checkpoint.log_keep_from)),
        is_whole: checkpoint.boot == Some(options.boot),
        ..options.log
    }
}

/// As long as the machine runs, nothing but our own code can take anything from the time table. A
/// power loss may.
fn check_table(
    backing: &dyn Backing,
    checkpoint: &Checkpoint,
    options: &OpenOptions,
) -> Result<(), StoreError> {
    if checkpoint.boot != Some(options.boot) {
        return Ok(());
    }
    let length = match backing.stat(TIMES_FILE) {
        Ok(stat) => stat.length,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(StoreError::disk("stat", TIMES_FILE)(error)),
    };
    if length < TABLE_BYTES as u64 {
        let what = format!("{TIMES_FILE} has {length} bytes of {TABLE_BYTES}");
        return Err(StoreError::Damaged { what });
    }
    Ok(())
}

fn read_checkpoint(names: &Memtable<RedbKv>) -> Result<Checkpoint, StoreError> {
    names
        .get(keys::CHECKPOINT)?
        .as_deref()
        .and_then(record::decode)
        .ok_or_else(|| StoreError::Damaged {
            what: "the checkpoint record is missing or cannot be read".to_owned(),
        })
}

fn read_format(backing: &dyn Backing) -> Result<Format, StoreError> {
    let not_a_store = |why: String| StoreError::NotAStore { why };
    let file = match backing.open(FORMAT_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(not_a_store("there is no format.json in it".to_owned()));
        }
        opened => opened.map_err(StoreError::disk("open", FORMAT_FILE))?,
    };
    let mut text = vec![0; 4096];
    let length = file
        .read_at(0, &mut text)
        .map_err(StoreError::disk("read", FORMAT_FILE))?;
    text.truncate(length);
    let number: Result<FormatNumber, _> = serde_json::from_slice(&text);
    match number.map(|number| number.lockstep_store) {
        Ok(0) => return Err(not_a_store("format.json: there is no format 0".to_owned())),
        Ok(found) if found > FORMAT => {
            return Err(StoreError::NewerFormat {
                found,
                known: FORMAT,
            });
        }
        Ok(found) if found < FORMAT => {
            return Err(StoreError::OlderFormat {
                found,
                known: FORMAT,
            });
        }
        _ => {}
    }
    serde_json::from_slice(&text).map_err(|error| not_a_store(format!("format.json: {error}")))
}

/// The one field that every format has.
#[derive(Deserialize)]
struct FormatNumber {
    lockstep_store: u32,
}
