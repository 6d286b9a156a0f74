//! The note of an adoption under way: which directory becomes the content of this store, and how.
//!
//! Invariant: while the note is there and `format.json` is not, the directory holds no store that can be opened or made
//! anew: it may have the only copy of adopted files. With both, the adoption is complete, and the note means nothing.

use std::io;

use lockstep_types::backing::{Backing, replace};
use lockstep_types::{DatastoreUuid, Ino};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::paths::ADOPTION_FILE;

/// How the content of an adopted file gets into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdoptWay {
    /// The file gets a name in the store, and then loses the one in the directory.
    Move,
    /// The store shares the blocks of the file, until one of them changes.
    Reflink,
    /// The store gets a copy.
    Copy,
}

impl AdoptWay {
    /// The word for it in options and in output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Move => "move",
            Self::Reflink => "reflink",
            Self::Copy => "copy",
        }
    }
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AdoptionNote {
    pub datastore: DatastoreUuid,
    /// The adopted directory, escaped.
    pub source: String,
    pub way: AdoptWay,
    /// File systems that are mounted below the directory are left out.
    pub one_file_system: bool,
    /// The content of all files with lower numbers is in the store, on stable storage. Counts for copies.
    pub taken_below: Ino,
    /// All moved files have their names in the store, and those in the directory are being removed.
    pub emptying: bool,
    pub totals: AdoptionTotals,
}

/// Counts of the adopted directory, by its listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AdoptionTotals {
    pub names: u64,
    pub directories: u64,
    pub files: u64,
    /// Bytes of data; holes are none.
    pub bytes: u64,
    /// File systems mounted below the directory.
    pub left_out: u64,
}

impl AdoptionNote {
    /// The note of a store; `None` if there is none.
    pub fn read(backing: &dyn Backing) -> Result<Option<Self>, StoreError> {
        let file = match backing.open(ADOPTION_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(StoreError::disk("open", ADOPTION_FILE))?,
        };
        let mut text = vec![0; 64 << 10];
        let length = file.read_at(0, &mut text);
        text.truncate(length.map_err(StoreError::disk("read", ADOPTION_FILE))?);
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidData, error);
            StoreError::disk("read", ADOPTION_FILE)(source)
        })
    }

    /// An error if there is a note.
    pub fn check_none(backing: &dyn Backing) -> Result<(), StoreError> {
        match Self::read(backing)? {
            None => Ok(()),
            Some(note) => Err(StoreError::AdoptionUnfinished {
                source_dir: note.source,
                is_emptying: note.emptying,
            }),
        }
    }

    /// Puts the note on stable storage.
    pub fn write(&self, backing: &dyn Backing) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        replace(backing, ADOPTION_FILE, &text).map_err(StoreError::disk("write", ADOPTION_FILE))
    }
}
