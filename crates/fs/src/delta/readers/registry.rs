//! The list of the change readers of a store, on stable storage: the file `tables/readers`.
//!
//! A change of the list replaces the file as a whole. A list that cannot be read is empty: its readers are then told of everything.
//! The marks of a reader are in tables of their own ([`super::reader`]), which name the registration.

use lockstep_types::Timestamp;
use lockstep_types::backing::{Backing, replace};
use serde::{Deserialize, Serialize};

use super::super::form::{seal, unseal};
use super::point::ChangePoint;
use crate::error::StoreError;
use crate::paths::{READERS_FILE, TABLES_DIR};

/// The version of this form.
const VERSION: u16 = 1;
/// Most readers of a store.
pub const READERS_MAX: usize = 4;

/// Why the marks of a reader say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LostMarks {
    /// The machine has lost power or was reset, or its disk had failed: the changes that were lost by that are marked nowhere.
    PowerLoss,
    /// The tables are missing, damaged, or of another opening of the store, as beside an older copy.
    OtherTables,
}

/// A reader in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderRecord {
    /// Its name.
    pub name: String,
    /// Random: the same in the tables of the reader.
    pub registration: u64,
    /// When it was registered.
    pub registered: Timestamp,
    /// When it has last asked or confirmed.
    pub heard: Timestamp,
    /// The point that it has confirmed. The tables decide.
    pub since: Option<ChangePoint>,
    /// Why its marks say nothing, if they do not.
    pub lost: Option<LostMarks>,
}

/// The readers of a store, by the numbers of their tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registry {
    version: u16,
    pub slots: [Option<ReaderRecord>; READERS_MAX],
}

impl Registry {
    /// The list of a store.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn read(backing: &dyn Backing) -> Result<Self, StoreError> {
        let file = match backing.open(READERS_FILE) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            opened => opened.map_err(StoreError::disk("open", READERS_FILE))?,
        };
        let mut bytes = vec![0; 4096];
        let read = file.read_at(0, &mut bytes);
        read.map_err(StoreError::disk("read", READERS_FILE))?;
        let found: Option<Self> = unseal(&bytes).and_then(|body| postcard::from_bytes(body).ok());
        let found = found.filter(|found| found.version == VERSION);
        Ok(found.unwrap_or_default())
    }

    /// Puts the list on stable storage.
    ///
    /// # Errors
    /// If the disk fails or is full. Then the old list stays, or the new one is there.
    pub fn write(&self, backing: &dyn Backing) -> Result<(), StoreError> {
        let list = Self {
            version: VERSION,
            ..self.clone()
        };
        let bytes = seal(&postcard::to_allocvec(&list).unwrap_or_default());
        let replaced = replace(backing, READERS_FILE, &bytes);
        replaced.map_err(StoreError::disk("write", READERS_FILE))?;
        let synced = backing.sync_dir(TABLES_DIR);
        synced.map_err(StoreError::disk("sync the names in", TABLES_DIR))
    }

    /// The number of the reader with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        let has_name =
            |slot: &Option<ReaderRecord>| slot.as_ref().is_some_and(|it| it.name == name);
        self.slots.iter().position(has_name)
    }

    /// The record of a reader.
    pub fn get(&self, number: usize) -> Option<&ReaderRecord> {
        self.slots.get(number)?.as_ref()
    }

    /// A number that no reader has.
    pub fn free(&self) -> Option<usize> {
        self.slots.iter().position(Option::is_none)
    }

    pub fn set(&mut self, number: usize, record: Option<ReaderRecord>) {
        if let Some(slot) = self.slots.get_mut(number) {
            *slot = record;
        }
    }
}
