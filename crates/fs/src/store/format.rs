//! The format file of a store, which says how the store is laid out and which datastore it belongs to.

use lockstep_types::DatastoreUuid;
use lockstep_types::backing::{Backing, replace};
use serde::{Deserialize, Serialize};

use super::adoption::AdoptionNote;
use super::import_note::ImportNote;
use crate::error::StoreError;
use crate::paths::FORMAT_FILE;

/// The format that this program makes, and opens.
pub(super) const FORMAT: u32 = 4;
/// The oldest format that this program opens. Stores of format 2 have no delta that outlives the process, stores of formats 2 and 3
/// no sums. Such a store becomes one of the new format when it is opened for use, so that no older program changes its content
/// without a word to its delta and its sums.
const FORMAT_WITHOUT_DELTA: u32 = 2;

/// The content of the format file.
#[derive(Serialize, Deserialize)]
pub(super) struct Format {
    pub lockstep_store: u32,
    pub datastore: DatastoreUuid,
}

/// Reads `format.json`. A format that this program does not open is an error.
pub(super) fn read_format(backing: &dyn Backing) -> Result<Format, StoreError> {
    let not_a_store = |why: String| StoreError::NotAStore { why };
    ImportNote::check_none(backing)?;
    let file = match backing.open(FORMAT_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            AdoptionNote::check_none(backing)?;
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
        Ok(found) if found < FORMAT_WITHOUT_DELTA => {
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

/// Writes `format.json` atomically. A new store gets it last.
pub(super) fn write_format(
    backing: &dyn Backing,
    datastore: DatastoreUuid,
) -> Result<(), StoreError> {
    let format = Format {
        lockstep_store: FORMAT,
        datastore,
    };
    let text = serde_json::to_vec_pretty(&format).unwrap_or_default();
    replace(backing, FORMAT_FILE, &text).map_err(StoreError::disk("write", FORMAT_FILE))
}
