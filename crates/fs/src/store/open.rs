//! Opening a store, and bringing it back to where a crash left it.
//!
//! A refusal comes before the first write: the whole store is first read through an overlay. Recovery after a crash of
//! the process takes the last checkpoint, applies the committed operations of the log since, and takes sizes and times
//! of files that were being written from the table of unflushed times. After a power loss the lengths of all content
//! files are compared, because unsynced files may be shorter than recorded.

use std::sync::Arc;

use lockstep_intentlog::{IntentLog, LogOptions, Position, Replay};
use lockstep_types::backing::Backing;
use lockstep_types::{BootId, DatastoreUuid};

use super::facade::Store;
use super::format::{FORMAT, Format, read_format, write_format};
use crate::backing::overlay::Overlay;
use crate::content::before_change::{ByteObserver, Observers};
use crate::content::{ContentStore, LeftoverSlots, TABLE_BYTES, UnflushedSlot, UnflushedTable};
use crate::delta::{ChangeReaders, DeltaTracker, MarkTableSizes, MarkTables};
use crate::error::StoreError;
use crate::metadata_log::{self, Leftover, MetadataLog};
use crate::namespace::Namespace;
use crate::namespace::last_use::LastUse;
use crate::namespace::record::Checkpoint;
use crate::paths::{CONTENT_DIR, FORMAT_FILE, LOG_DIR, TIMES_FILE};
use crate::snapshots::bodies::Bodies;
use crate::snapshots::content_at::KeptSource;
use crate::snapshots::given_up::GivenUpMarks;
use crate::snapshots::keeper::BlockKeeper;
use crate::snapshots::packs::Packs;
use crate::snapshots::packs::index::BlockIndex;
use crate::store_disk::StoreDisk;
use crate::sums::SumKeeper;
use crate::tree::Tree;

/// Whether a store is opened for use or for reading only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For use: recovery is written to the disk.
    Write,
    /// For reading only, as by an export: nothing on the disk changes.
    Read,
}

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The datastore that the store must belong to, if it is known.
    pub datastore: Option<DatastoreUuid>,
    /// A value that changes when the machine restarts, to tell a crash from a power loss.
    pub boot: BootId,
    /// For use, or for reading only.
    pub access: Access,
    /// Options of the intent log.
    pub log: LogOptions,
    /// Sizes of the tables of marks that the store does not have yet.
    pub marks: MarkTableSizes,
}

#[cfg(test)]
impl OpenOptions {
    /// Opens the store of a test for use.
    pub(super) fn for_test(datastore: DatastoreUuid) -> Self {
        Self {
            datastore: Some(datastore),
            boot: BootId::from_bytes([1; 16]),
            access: Access::Write,
            log: LogOptions::default(),
            marks: MarkTableSizes::default(),
        }
    }
}

/// A store that was read completely and found good. Nothing in its directory was changed.
pub struct Checked {
    backing: Arc<dyn Backing>,
    format: Format,
    options: OpenOptions,
}

impl Checked {
    /// Opens the store. Its directory changes from now on.
    pub fn open(self) -> Result<Opened, StoreError> {
        // The process that made the store may have stopped before it synced this name: a power loss must not take the
        // format file from a store that is in use.
        let named = self.backing.sync_dir(".");
        named.map_err(StoreError::disk("sync the names in", "."))?;
        let uuid = self.format.datastore;
        if self.format.lockstep_store < FORMAT {
            write_format(self.backing.as_ref(), uuid)?;
        }
        open_on(&self.backing, uuid, &self.options, SumKeeper::open)
    }
}

/// An opened store.
pub struct Opened {
    /// The store.
    pub store: Store,
    /// The machine lost power, or was reset, while the store was in use: unsynced changes may be missing.
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
    /// If several threads use the store, `backing` must be fenced ([`crate::backing::poison::FencedBacking`]). Then a
    /// failed sync is noted before it returns, and no later sync tells another thread of success.
    pub fn open(backing: Arc<dyn Backing>, options: &OpenOptions) -> Result<Opened, StoreError> {
        match options.access {
            Access::Read => open_in_memory(&backing, options).map(|(opened, _)| opened),
            Access::Write => Self::check(backing, options)?.open(),
        }
    }

    /// Reads all of a store, by opening it on a copy in memory: a store that cannot be opened stays unchanged. For an
    /// owner that has notes of its own to write before the store changes.
    pub fn check(backing: Arc<dyn Backing>, options: &OpenOptions) -> Result<Checked, StoreError> {
        let (_, format) = open_in_memory(&backing, options)?;
        Ok(Checked {
            backing,
            format,
            options: *options,
        })
    }
}

/// Opens a store through an overlay: its writes are lost with the overlay.
fn open_in_memory(
    backing: &Arc<dyn Backing>,
    options: &OpenOptions,
) -> Result<(Opened, Format), StoreError> {
    let format = read_format(backing.as_ref())?;
    if let Some(expected) = options.datastore
        && expected != format.datastore
    {
        return Err(StoreError::OtherDatastore {
            found: format.datastore.to_string(),
            expected: expected.to_string(),
        });
    }
    let overlay: Arc<dyn Backing> = Arc::new(Overlay::new(Arc::clone(backing)));
    let open_sums = |backing, run| match options.access {
        Access::Write => SumKeeper::open(backing, run),
        Access::Read => Ok(SumKeeper::idle(backing, run)),
    };
    let opened = open_on(&overlay, format.datastore, options, open_sums)?;
    Ok((opened, format))
}

/// Opens the store on `backing`, and brings it back to where a crash left it. The sums come first, as they may be of the bytes
/// before the recovery (P32).
fn open_on(
    backing: &Arc<dyn Backing>,
    uuid: DatastoreUuid,
    options: &OpenOptions,
    open_sums: impl FnOnce(Arc<dyn Backing>, LastUse) -> Result<SumKeeper, StoreError>,
) -> Result<Opened, StoreError> {
    let (namespace, checkpoint) = Namespace::open(backing.as_ref())?;
    let namespace = Arc::new(namespace);
    let disk = Arc::new(StoreDisk::new(Arc::clone(backing)));
    let kept = open_kept(&disk, &namespace)?;
    let sums = open_sums(Arc::clone(backing), last_use(&checkpoint, options))?;
    let was_killed = checkpoint.boot == Some(options.boot);
    let (unflushed, leftover) = open_times(backing.as_ref(), &checkpoint, options)?;
    let (log, replay) = open_log(backing.as_ref(), &checkpoint, options)?;
    let marks = open_marks(backing, &checkpoint, options)?;
    let keeper = Arc::new(BlockKeeper::new(kept.clone()));
    let content = ContentStore::new(
        disk,
        unflushed,
        was_killed,
        observers(&marks, &keeper, sums),
    );
    // Unless the previous process of this run of the machine was killed, the table is of some earlier moment: it would
    // put older times over newer ones that were synced.
    if !was_killed {
        // Before the checkpoint names this run of the machine. From then on the table is valid, also for a process that
        // follows one which is killed right after the checkpoint.
        content.clear_slots(&leftover);
    }
    let tree = Tree {
        namespace: &namespace,
        content: &content,
    };
    let power_lost = checkpoint.boot.is_some() && !was_killed;
    let slots = leftover.slots.iter().filter(|_| was_killed);
    let slots: Vec<UnflushedSlot> = slots.map(|(_, slot)| *slot).collect();
    let leftover_state = Leftover {
        checkpoint,
        log: replay,
        slots: &slots,
        delta: &marks.0,
        power_lost,
        content_decides: power_lost || (was_killed && !leftover.torn.is_empty()),
    };
    let recovered = metadata_log::recover(tree, leftover_state)?;
    kept.bodies.recover(&content)?;
    let of_log = (marks.clone(), Arc::clone(&kept.packs));
    let store = Store {
        uuid,
        metadata_log: MetadataLog::new(log, recovered, options.boot, of_log),
        delta: marks.0,
        readers: marks.1,
        namespace,
        content,
        kept,
        keeper,
    };
    if options.access == Access::Write {
        start_use(&store, &checkpoint, options, &leftover)?;
    }
    Ok(Opened { store, power_lost })
}

fn last_use(checkpoint: &Checkpoint, options: &OpenOptions) -> LastUse {
    LastUse {
        boot: options.boot,
        last_boot: checkpoint.boot,
        epoch: checkpoint.epoch,
    }
}

/// The observers of changed bytes, and the keeper of the sums.
fn observers(
    (delta, readers): &StoreMarks,
    keeper: &Arc<BlockKeeper>,
    sums: SumKeeper,
) -> Observers {
    let list: Vec<Arc<dyn ByteObserver>> = vec![
        Arc::clone(delta) as Arc<dyn ByteObserver>,
        Arc::clone(readers) as Arc<dyn ByteObserver>,
        Arc::clone(keeper) as Arc<dyn ByteObserver>,
    ];
    Observers::new(list, Arc::new(sums))
}

/// The packs and their index, with the groups that the last checkpoint lacks.
fn open_kept(disk: &Arc<StoreDisk>, namespace: &Arc<Namespace>) -> Result<KeptSource, StoreError> {
    let index = BlockIndex::new(Arc::clone(namespace));
    let packs = Packs::open(Arc::clone(disk), index)?;
    let given_up = GivenUpMarks::new(Arc::clone(disk));
    for id in given_up.all()? {
        let _later = namespace.delete_snapshot(id);
    }
    Ok(KeptSource {
        snapshots: Arc::clone(namespace.snapshots()),
        namespace: Arc::clone(namespace),
        packs: Arc::new(packs),
        bodies: Bodies::new(Arc::clone(namespace)),
        given_up,
    })
}

/// The delta and the change readers of a store.
type StoreMarks = (Arc<DeltaTracker>, Arc<ChangeReaders>);

/// The marks, as the last process has left them. Recovery notes the content that it changes again.
fn open_marks(
    backing: &Arc<dyn Backing>,
    checkpoint: &Checkpoint,
    options: &OpenOptions,
) -> Result<StoreMarks, StoreError> {
    let last_use = last_use(checkpoint, options);
    let tables = MarkTables::open(backing, options.marks, last_use)?;
    let readers = ChangeReaders::open(backing, options.marks, last_use)?;
    Ok((Arc::new(DeltaTracker::open(tables)?), Arc::new(readers)))
}

/// Makes the recovered state durable.
fn start_use(
    store: &Store,
    checkpoint: &Checkpoint,
    options: &OpenOptions,
    leftover: &LeftoverSlots,
) -> Result<(), StoreError> {
    let was_killed = checkpoint.boot == Some(options.boot);
    if checkpoint.boot.is_some() {
        let disk = store.content.disk();
        store.content.sync().mark_names_dirty(disk)?;
        if !was_killed {
            // Power was lost.
            store.tree().find_lost_content()?;
        }
    }
    store.metadata_log.start_epoch(store.tree())?;
    if was_killed {
        store.content.clear_slots(leftover);
    }
    store.backing().scatter(CONTENT_DIR);
    let disk = store.content.disk();
    store.content.removal().all_may_be_empty(disk)
}

/// The log, if the store is opened for use, and the records of the log.
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

/// The table of unflushed times, and the slots that the last process has left in it.
fn open_times(
    backing: &dyn Backing,
    checkpoint: &Checkpoint,
    options: &OpenOptions,
) -> Result<(UnflushedTable, LeftoverSlots), StoreError> {
    check_table(backing, checkpoint, options)?;
    let table = backing.open_table(TIMES_FILE, TABLE_BYTES);
    Ok(UnflushedTable::open(
        table.map_err(StoreError::disk("open", TIMES_FILE))?,
    ))
}

/// Checks that the table of unflushed times is whole. As long as the machine runs, only this program changes the table.
/// A power loss may cut it.
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
