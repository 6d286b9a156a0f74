//! The tables of writes in flight (PAW and SAW), and the count of the sync, as files of the store.
//!
//! The tables are mapped memory. A stop of the process leaves them whole. A power loss does so only after a clean
//! shutdown (rules P6, P7, P12).
//!
//! Invariant: entries that may be needed are never lost silently. While a copy is in sync, a damaged table is
//! refused, and a missing table makes the copy out of sync. While a copy is out of sync, the entries have no meaning,
//! because a resync compares everything; then the tables are recreated. The PAW table of a deposed primary that was in
//! sync keeps its meaning until a resync begins.

use std::io;
use std::sync::Arc;

use lockstep_fs::{Store, StoreError};
use lockstep_paw_saw::{
    COUNT_BYTES, Damage, InFlightEntry, InFlightTable, SyncCounter, TABLE_BYTES, count_in,
};
use lockstep_repl::message::WriteMessage;
use lockstep_types::backing::Backing;
use lockstep_types::{Ino, SyncCount};
use thiserror::Error;

const DIRECTORY: &str = "tables";
const PAW_FILE: &str = "tables/paw";
const SAW_FILE: &str = "tables/saw";
const COUNT_FILE: &str = "tables/count";

/// Why the tables could not be used.
#[derive(Debug, Error)]
pub enum TableError {
    /// The content of a table cannot be trusted. Nothing was changed.
    #[error(
        "{file} is damaged: {damage}. It says which writes were under way when this node stopped. \
         Check the disk and the memory of this machine, then remove {file}: this copy then counts \
         as out of sync, and a resync compares all of it with the other node's"
    )]
    Damaged {
        /// File of the store.
        file: &'static str,
        /// The damage.
        damage: Damage,
    },
    /// The disk below failed.
    #[error(transparent)]
    Disk(StoreError),
}

/// The two tables, open.
pub(crate) struct Tables {
    /// Primary: writes that wait for the secondary.
    pub paw: InFlightTable,
    /// Primary: the writes of the previous process in that table.
    pub old_paw: Vec<InFlightEntry>,
    /// Secondary: writes that wait for the primary.
    pub saw: InFlightTable,
}

impl Tables {
    /// Returns whether the tables hold all writes that were in flight when the last process stopped. They do not if
    /// one is missing. Changes nothing.
    pub fn look(backing: &dyn Backing) -> Result<bool, TableError> {
        Ok(look_at(backing, PAW_FILE)? & look_at(backing, SAW_FILE)? & has_count(backing)?)
    }

    /// Opens the tables of a copy in sync. [`Self::look`] has checked them.
    pub fn open(backing: &dyn Backing) -> Result<Self, TableError> {
        let open = |file| {
            InFlightTable::open(map(backing, file)?)
                .map_err(|damage| TableError::Damaged { file, damage })
        };
        let (paw, old_paw) = open(PAW_FILE)?;
        let (saw, _) = open(SAW_FILE)?;
        Ok(Self { paw, old_paw, saw })
    }

    /// The writes that were under way when the last session ended, as primary and as secondary; `None` if a table cannot be read.
    pub fn left_writes(backing: &dyn Backing) -> Option<Vec<InFlightEntry>> {
        let mut left = Vec::new();
        for file in [PAW_FILE, SAW_FILE] {
            let (_, entries) = InFlightTable::open(map(backing, file).ok()?).ok()?;
            left.extend(entries);
        }
        Some(left)
    }

    /// Makes empty tables for a copy out of sync.
    pub fn make(backing: &dyn Backing) -> Result<Self, TableError> {
        Ok(Self {
            paw: InFlightTable::make(map(backing, PAW_FILE)?),
            old_paw: Vec::new(),
            saw: InFlightTable::make(map(backing, SAW_FILE)?),
        })
    }
}

/// The count of a copy's sync. A secondary that is not in sync, and has no base, has none, nor has a primary that is not in sync
/// and has lost power: `is_of_use` says so.
pub(crate) fn open_count(
    backing: &dyn Backing,
    is_of_use: bool,
) -> Result<SyncCounter, TableError> {
    let mapped = backing.open_table(COUNT_FILE, COUNT_BYTES);
    let table =
        mapped.map_err(|source| TableError::Disk(StoreError::disk("open", COUNT_FILE)(source)))?;
    Ok(if is_of_use {
        SyncCounter::open(table)
    } else {
        SyncCounter::make(table)
    })
}

/// The count that the last process left in the store. Changes nothing.
pub(crate) fn left_count(backing: &dyn Backing) -> io::Result<SyncCount> {
    let mut bytes = [0; COUNT_BYTES];
    let length = backing.open(COUNT_FILE)?.read_at(0, &mut bytes)?;
    Ok(count_in(bytes.get(..length).unwrap_or_default()))
}

fn has_count(backing: &dyn Backing) -> Result<bool, TableError> {
    let found = backing.exists(COUNT_FILE);
    found.map_err(|source| TableError::Disk(StoreError::disk("look for", COUNT_FILE)(source)))
}

/// The entry of a write, for the table of either node.
pub(crate) fn entry_of(write: &WriteMessage, length: usize) -> InFlightEntry {
    InFlightEntry {
        ino: write.ino,
        osn: write.osn,
        offset: write.offset,
        length: u32::try_from(length).unwrap_or(u32::MAX),
    }
}

/// The bytes of a write: the file, the first byte and the number of bytes.
pub(crate) type WriteRange = (Ino, u64, u64);

/// The bytes of the writes of a table.
pub(crate) fn ranges_of(entries: &[InFlightEntry]) -> impl Iterator<Item = WriteRange> + '_ {
    let range = |entry: &InFlightEntry| (entry.ino, entry.offset, u64::from(entry.length));
    entries.iter().map(range)
}

/// Adds writes that may be on one node only to the delta of the store.
pub(crate) fn add_writes_to_delta(store: &Store, writes: impl IntoIterator<Item = WriteRange>) {
    for (ino, offset, length) in writes {
        store.delta().add_write(ino, offset, length);
    }
}

/// Puts the tables on stable storage. After a clean shutdown, a power loss must not take their entries.
pub(crate) fn sync(backing: &dyn Backing) -> Result<(), StoreError> {
    for file in [PAW_FILE, SAW_FILE, COUNT_FILE] {
        let synced = backing.open(file).and_then(|opened| opened.sync());
        synced.map_err(StoreError::disk("sync", file))?;
    }
    let synced = backing.sync_dir(DIRECTORY);
    synced.map_err(StoreError::disk("sync the names in", DIRECTORY))
}

/// Returns whether the file exists and is undamaged.
fn look_at(backing: &dyn Backing, file: &'static str) -> Result<bool, TableError> {
    let disk = |source| TableError::Disk(StoreError::disk("read", file)(source));
    let opened = match backing.open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(disk)?,
    };
    let mut bytes = vec![0; TABLE_BYTES];
    let length = opened.read_at(0, &mut bytes).map_err(disk)?;
    bytes.truncate(length);
    lockstep_paw_saw::check(&bytes).map_err(|damage| TableError::Damaged { file, damage })?;
    Ok(true)
}

fn map(
    backing: &dyn Backing,
    file: &'static str,
) -> Result<Arc<dyn lockstep_types::backing::BackingTable>, TableError> {
    let mapped = backing.open_table(file, TABLE_BYTES);
    mapped.map_err(|source| TableError::Disk(StoreError::disk("open", file)(source)))
}
