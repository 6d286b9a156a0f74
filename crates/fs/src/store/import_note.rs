//! The note of an import under way: which seed becomes the content of this store, and how.
//!
//! Invariant: while the note is there, the directory holds no store that can be opened or made anew. The note goes last.

use std::io;

use lockstep_types::backing::{Backing, replace};
use lockstep_types::{DatastoreUuid, Ino};
use serde::{Deserialize, Serialize};

use super::adoption::AdoptWay;
use crate::error::StoreError;
use crate::paths::{FORMAT_FILE, IMPORT_FILE};

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImportNote {
    pub datastore: DatastoreUuid,
    /// The directory of the seed, escaped. For people: the disk may be mounted elsewhere by the next call.
    pub seed: String,
    /// The sum of the seed's manifest, which tells the seed from others.
    pub sum: String,
    pub way: AdoptWay,
    /// The content of all files with lower numbers is in the store, on stable storage.
    pub taken_below: Ino,
    pub totals: SeedTotals,
}

/// Counts of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedTotals {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Regular files that are not empty: each has a file of content.
    pub contents: u64,
    /// Bytes of data in these; holes are none.
    pub bytes: u64,
}

impl ImportNote {
    /// The note of a store; `None` if there is none.
    pub fn read(backing: &dyn Backing) -> Result<Option<Self>, StoreError> {
        let file = match backing.open(IMPORT_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(StoreError::disk("open", IMPORT_FILE))?,
        };
        let mut text = vec![0; 64 << 10];
        let length = file.read_at(0, &mut text);
        text.truncate(length.map_err(StoreError::disk("read", IMPORT_FILE))?);
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidData, error);
            StoreError::disk("read", IMPORT_FILE)(source)
        })
    }

    /// An error if there is a note.
    pub fn check_none(backing: &dyn Backing) -> Result<(), StoreError> {
        match Self::read(backing)? {
            None => Ok(()),
            Some(note) => {
                let has_store = backing.exists(FORMAT_FILE);
                let has_store = has_store.map_err(StoreError::disk("look for", FORMAT_FILE))?;
                Err(StoreError::ImportUnfinished {
                    seed: note.seed,
                    is_emptying: has_store && note.way == AdoptWay::Move,
                })
            }
        }
    }

    /// Puts the note on stable storage.
    pub fn write(&self, backing: &dyn Backing) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        replace(backing, IMPORT_FILE, &text).map_err(StoreError::disk("write", IMPORT_FILE))
    }
}
