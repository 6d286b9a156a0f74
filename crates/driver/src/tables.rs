//! The tables of writes in flight (PAW and SAW) as files of the store.
//!
//! They are mapped memory: a stop of the process leaves them whole, a power loss does not, unless
//! the store was closed in order before (rules P6, P7, P12).
//!
//! Invariant: entries that may be needed are never lost in silence. While a copy counts as in sync,
//! a table that is damaged is refused and one that is missing makes the copy out of sync. While it
//! does not, nothing in the tables matters, for all is compared, and they are made anew.

use std::io;
use std::sync::Arc;

use lockstep_fs::StoreError;
use lockstep_paw_saw::{Damage, InFlightEntry, InFlightTable, TABLE_BYTES};
use lockstep_types::backing::Backing;
use thiserror::Error;

const DIRECTORY: &str = "tables";
const PAW_FILE: &str = "tables/paw";
const SAW_FILE: &str = "tables/saw";

/// Why the tables could not be used.
#[derive(Debug, Error)]
pub enum TableError {
    /// What a table says cannot be trusted. Nothing was changed.
    #[error(
        "{file} is damaged: {damage}. It says which writes were under way when this node stopped. \
         Check the disk and the memory of this machine, then remove {file}: this copy then counts \
         as out of sync, and a resync compares all of it with the other node's"
    )]
    Damaged {
        /// Which file of the store.
        file: &'static str,
        /// How that shows.
        damage: Damage,
    },
    /// The disk below failed.
    #[error(transparent)]
    Disk(StoreError),
}

/// The two tables, open.
pub(super) struct Tables {
    /// Primary: writes that wait for the secondary.
    pub paw: InFlightTable,
    /// Primary: the writes found in that table, of the process before.
    pub old_paw: Vec<InFlightEntry>,
    /// Secondary: writes that wait for the primary.
    pub saw: InFlightTable,
}

impl Tables {
    /// Looks whether the tables hold all that was in flight when the last process stopped; if one is
    /// missing they do not. Changes nothing.
    pub fn look(backing: &dyn Backing) -> Result<bool, TableError> {
        Ok(look_at(backing, PAW_FILE)? & look_at(backing, SAW_FILE)?)
    }

    /// Opens the tables of a copy in sync, which were looked at.
    pub fn open(backing: &dyn Backing) -> Result<Self, TableError> {
        let open = |file| {
            InFlightTable::open(map(backing, file)?)
                .map_err(|damage| TableError::Damaged { file, damage })
        };
        let (paw, old_paw) = open(PAW_FILE)?;
        let (saw, _) = open(SAW_FILE)?;
        Ok(Self { paw, old_paw, saw })
    }

    /// Makes empty tables for a copy out of sync, whatever there is.
    pub fn make(backing: &dyn Backing) -> Result<Self, TableError> {
        Ok(Self {
            paw: InFlightTable::make(map(backing, PAW_FILE)?),
            old_paw: Vec::new(),
            saw: InFlightTable::make(map(backing, SAW_FILE)?),
        })
    }
}

/// Puts both tables on stable storage: once the store counts as closed in order, a power loss must
/// not take what they hold.
pub(super) fn sync(backing: &dyn Backing) -> Result<(), StoreError> {
    for file in [PAW_FILE, SAW_FILE] {
        let synced = backing.open(file).and_then(|opened| opened.sync());
        synced.map_err(StoreError::disk("sync", file))?;
    }
    let synced = backing.sync_dir(DIRECTORY);
    synced.map_err(StoreError::disk("sync the names in", DIRECTORY))
}

/// Whether the file is there.
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
