//! Region marks and keys in one table: memory that outlives the process. Of the rest of a node that is alone ([`kept`](super::kept)),
//! and of the two columns of mirrored intervals ([`interval_marks`](super::interval_marks)).
//!
//! [`KeptMarks`] owns the table: its header, the region marks and the keys. The table says at each moment at least as much as the
//! memory: a kill, a restart and an upgrade cost no more than a comparison of the changes. After a loss of power the table
//! says nothing. A clean stop of the machine puts the table on stable storage.
//!
//! Keys are added before the records change, and stay until the marks are cleared. Too many keys become "all records". The owner of
//! the marks has words of its own in the header. Without them the header is void.
//!
//! Invariants:
//! - A table without a header says nothing. The marks of before are gone when a header counts for the first time, or the new
//!   marks are beside them.
//! - Files that are marked by their numbers are in the header before their slots are free.
//!
//! Locks: the caller holds the lock of the table's owner.

use std::ops::Range;
use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::changes::ChangedContent;
use super::form::{Header, TableStamp, VERSION, add_key};
use super::region_marks::{RegionMarks, RegionNotes};
use super::table::MarkTable;

/// See the head of this file.
pub(super) struct KeptMarks<T> {
    table: Arc<MarkTable>,
    pub marks: RegionMarks,
    stamp: TableStamp,
    /// The owner's words; `None` while the table says nothing.
    owner: Option<T>,
    key_bytes: usize,
    all_records: bool,
    /// All files from this number on are noted, because the table is full.
    noted_from: Option<u64>,
}

/// Begin and end.
impl<T: Clone + PartialEq + Serialize + DeserializeOwned> KeptMarks<T> {
    /// Takes the table over, with the marks in it. Returns the keys that the last process has left.
    pub fn open(table: MarkTable) -> (Self, Vec<Vec<u8>>) {
        let table = Arc::new(table);
        let mut kept = Self {
            marks: RegionMarks::new(Arc::clone(&table)),
            stamp: table.stamp(),
            table,
            owner: None,
            key_bytes: 0,
            all_records: false,
            noted_from: None,
        };
        let Some(left) = kept.table.left::<T>() else {
            kept.table.clear();
            return (kept, Vec::new());
        };
        kept.owner = Some(left.header.owner);
        kept.all_records = left.header.all_records || left.keys.is_broken;
        kept.key_bytes = left.keys.length;
        let is_whole = kept.marks.take(&left.slots);
        kept.noted_from = if is_whole {
            left.header.files_from
        } else {
            Some(1)
        };
        kept.store_header();
        if let Some(number) = kept.noted_from {
            kept.marks.note_files_from(number);
        }
        kept.marks.free_broken(&left.slots);
        (kept, left.keys.keys)
    }

    pub const fn notes(&self) -> &Arc<RegionNotes> {
        self.marks.notes()
    }

    /// The owner's words; `None` while the table says nothing.
    pub const fn owner(&self) -> Option<&T> {
        self.owner.as_ref()
    }

    /// Gives the table the owner's words, if they are others. From now on the table counts.
    pub fn set_owner(&mut self, owner: T) {
        let owner = Some(owner);
        if self.owner != owner {
            self.owner = owner;
            self.store_header();
        }
    }

    /// Takes the owner's words away. The table says nothing from now on.
    pub fn void(&mut self) {
        if self.owner.take().is_some() {
            self.table.void();
        }
    }

    /// Drops all marks and keys. The owner's words stay.
    pub fn clear(&mut self) {
        let slots = self.marks.clear();
        let key_bytes = std::mem::take(&mut self.key_bytes);
        self.table.clear_used(slots, key_bytes);
        let is_coarse = self.all_records || self.noted_from.is_some();
        (self.all_records, self.noted_from) = (false, None);
        if is_coarse {
            self.store_header();
        }
    }

    /// The store has noted that this is the opening `epoch`.
    pub fn opened(&mut self, epoch: u32) {
        self.stamp = TableStamp {
            epoch,
            is_opening: false,
            ..self.stamp
        };
        self.store_header();
    }

    /// The opening ends, and the table is about to be put on stable storage.
    pub fn close(&mut self) {
        (self.stamp.is_opening, self.stamp.is_closed) = (false, true);
        self.store_header();
    }

    fn store_header(&self) {
        if let Some(owner) = self.owner.clone() {
            self.table.store_header(&Header {
                version: VERSION,
                slots: self.table.slots(),
                stamp: self.stamp,
                all_records: self.all_records,
                files_from: self.noted_from,
                owner,
            });
        }
    }
}

/// Notes.
impl<T: Clone + PartialEq + Serialize + DeserializeOwned> KeptMarks<T> {
    /// Notes keys of records that are about to change. Returns false if any record may differ from now on.
    pub fn note_keys<'a>(&mut self, keys: impl IntoIterator<Item = &'a Vec<u8>>) -> bool {
        if self.all_records {
            return false;
        }
        let mut run = Vec::new();
        keys.into_iter().for_each(|key| add_key(&mut run, key));
        if self.key_bytes + run.len() > self.table.key_bytes() {
            if !is_active(Mutant::FullTableForgets) {
                self.note_all_records();
            }
            return false;
        }
        if !run.is_empty() {
            self.table.store_keys(self.key_bytes, &run);
            self.key_bytes += run.len();
        }
        true
    }

    /// Any record may differ.
    pub fn note_all_records(&mut self) {
        if !std::mem::replace(&mut self.all_records, true) {
            self.store_header();
        }
    }

    /// Notes bytes that are about to change.
    pub fn note_bytes(&mut self, ino: Ino, bytes: &Range<u64>) {
        while !self.marks.note(ino, bytes) {
            self.note_files();
        }
    }

    /// Notes all files from this number on.
    pub fn note_files_from(&mut self, number: u64) {
        let number = self.noted_from.map_or(number, |old| old.min(number));
        self.noted_from = Some(number);
        self.store_header();
        self.marks.note_files_from(number);
    }

    /// No slot is free: notes the files with the highest numbers by their numbers.
    pub fn note_files(&mut self) {
        self.note_files_from(self.marks.number_to_free());
    }
}

/// Questions.
impl<T> KeptMarks<T> {
    pub const fn all_records(&self) -> bool {
        self.all_records
    }

    /// All files from this number on are noted.
    pub const fn noted_from(&self) -> Option<u64> {
        self.noted_from
    }

    /// The used part of the table, in thousandths.
    pub fn fill(&self) -> u32 {
        let of = |used: usize, all: usize| 1000 * used / all.max(1);
        let slots = of(self.marks.used(), self.table.slots());
        let keys = of(self.key_bytes, self.table.key_bytes());
        u32::try_from(slots.max(keys)).unwrap_or(1000)
    }
}

/// A resync.
impl<T> KeptMarks<T> {
    /// The noted bytes, and the number from which on all files are noted. They are open from now on; the owner's words have the
    /// number.
    pub fn open_noted(&mut self) -> (ChangedContent, Option<u64>) {
        let noted_from = self.noted_from.take();
        (self.marks.open_noted(), noted_from)
    }
}
