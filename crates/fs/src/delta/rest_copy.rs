//! A copy of the rest of the source of a resync, on stable storage with the names of a barrier (rule P30): the files `tables/rest.0` and
//! `tables/rest.1`.
//!
//! A file has the length of the body (8 bytes), the body (postcard), and the hash of the body (16 bytes). The body has the number of the
//! copy. Copies take the files in turn, so the copy that the names on stable storage belong to stays until they belong to the next one.
//!
//! Invariant: a file that cannot be read, or that has another number, is no copy. Then the names that need the copy count no more.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::Hash128;
use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::kept::Lead;
use crate::error::StoreError;
use crate::paths::{REST_FILES, TABLES_DIR};

/// The version of this form.
const VERSION: u16 = 1;
/// Bytes of the length before the body.
const LENGTH_BYTES: usize = 8;
/// Most bytes of a file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The places of a rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RestCopy {
    /// The copies of which the rest speaks.
    pub lead: Lead,
    /// All files from this number on.
    pub files_from: Option<u64>,
    pub all_records: bool,
    /// Bytes of files: the number of the inode, the first byte, and the first one beyond.
    pub bytes: Vec<(u64, u64, u64)>,
    /// The keys of records.
    pub keys: Vec<Vec<u8>>,
}

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct RestNote {
    version: u16,
    /// The number of the copy.
    number: u64,
    rest: RestCopy,
}

impl RestCopy {
    /// Puts the copy with this number on stable storage.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn write(self, backing: &dyn Backing, number: u64) -> Result<(), StoreError> {
        let path = path_of(number);
        let note = RestNote {
            version: VERSION,
            number,
            rest: self,
        };
        let body = postcard::to_allocvec(&note).unwrap_or_default();
        let bytes = with_hash(&body);
        let written = backing.open_or_create(path).and_then(|file| {
            file.set_len(0)?;
            file.write_at(0, &bytes)?;
            if is_active(Mutant::RestUnsyncedAtBarrier) {
                return Ok(());
            }
            file.sync()?;
            backing.sync_dir(TABLES_DIR)
        });
        written.map_err(StoreError::disk("write", path))
    }

    /// The copy with this number; `None` if there is none that can be read.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn read(backing: &dyn Backing, number: u64) -> Result<Option<Self>, StoreError> {
        let path = path_of(number);
        let content = match backing.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.and_then(|file| read_all(&*file)),
        };
        let content = content.map_err(StoreError::disk("read", path))?;
        let note = body_of(&content).and_then(|body| postcard::from_bytes::<RestNote>(body).ok());
        let note = note.filter(|note| note.version == VERSION && note.number == number);
        Ok(note.map(|note| note.rest))
    }
}

fn path_of(number: u64) -> &'static str {
    let [even, odd] = REST_FILES;
    if number.is_multiple_of(2) { even } else { odd }
}

fn read_all(file: &dyn BackingFile) -> io::Result<Vec<u8>> {
    let length = file.stat()?.length;
    if length > FILE_BYTES_MAX {
        return Ok(Vec::new());
    }
    let mut content = vec![0; usize::try_from(length).unwrap_or(0)];
    let count = file.read_at(0, &mut content)?;
    content.truncate(count);
    Ok(content)
}

/// The content of a file with this body.
fn with_hash(body: &[u8]) -> Vec<u8> {
    [
        &(body.len() as u64).to_le_bytes()[..],
        body,
        &Hash128::of(body).0,
    ]
    .concat()
}

fn body_of(content: &[u8]) -> Option<&[u8]> {
    let (length, rest) = content.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (body, rest) = rest.split_at_checked(length)?;
    (*rest.first_chunk()? == Hash128::of(body).0).then_some(body)
}

/// A copy of a rest, for the names of a barrier; `None` of a node without a rest.
#[derive(Default)]
pub struct CopiedRest(pub(super) Option<RestCopy>);

/// The next change of the names, in memory.
#[derive(Default)]
pub(crate) struct NextNames {
    /// The names must be hidden before the next change of this node.
    must_hide: AtomicBool,
    /// The copy of the rest for the names that are noted next.
    copied: Mutex<CopiedRest>,
}

impl NextNames {
    /// The names of the sync that has ended get this copy of the rest.
    pub fn keep_copy(&self, rest: CopiedRest) {
        *self.copied.lock() = rest;
    }

    pub(super) fn take_copy(&self) -> Option<RestCopy> {
        std::mem::take(&mut *self.copied.lock()).0
    }

    /// Whether the next change hides the names first.
    pub fn set_hiding(&self, must_hide: bool) {
        let is_left_out = is_active(Mutant::NamesOutliveResync);
        self.must_hide
            .store(must_hide && !is_left_out, Ordering::Release);
    }

    pub(super) fn must_hide(&self) -> bool {
        self.must_hide.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_or_changed_has_no_body() {
        let whole = with_hash(b"places");
        assert_eq!(body_of(&whole), Some(&b"places"[..]));
        for length in 0..whole.len() {
            assert_eq!(body_of(&whole[..length]), None, "{length} bytes");
        }
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(body_of(&flipped), None, "bit {bit}");
        }
    }
}
