//! One column of marks of mirrored intervals, in memory that outlives the process, with its keys.
//!
//! Invariant: the header names the youngest interval of the column, and from where on the marks of both columns are complete. A
//! column without a header has no coverage.

use std::ops::Range;
use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use serde::{Deserialize, Serialize};

use super::changes::{changed_bytes, replicated_keys};
use super::kept_marks::KeptMarks;
use super::region_marks::RegionNotes;
use super::resync_part::ChangedRecords;
use super::table::MarkTable;
use crate::namespace::plan::Plan;

/// The words of a column in the header of its table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ColumnWords {
    /// The youngest interval with marks in the column; `None` if the column has none.
    pub youngest: Option<u64>,
    /// Each interval after this one is covered, by this column or the other one.
    pub live_after: u64,
}

/// See the head of this file.
pub(super) struct KeptColumn {
    kept: KeptMarks<ColumnWords>,
    records: ChangedRecords,
}

/// Begin and end.
impl KeptColumn {
    pub fn open(table: MarkTable) -> Self {
        let (kept, keys) = KeptMarks::open(table);
        let records = ChangedRecords {
            keys: keys.into_iter().collect(),
            all: kept.all_records(),
        };
        Self { kept, records }
    }

    /// The words of the last process; `None` without coverage.
    pub const fn words(&self) -> Option<&ColumnWords> {
        self.kept.owner()
    }

    pub fn set_words(&mut self, words: ColumnWords) {
        self.kept.set_owner(words);
    }

    /// Takes the header away.
    pub fn void(&mut self) {
        self.kept.void();
    }

    /// Drops all marks and keys.
    pub fn clear(&mut self) {
        self.records = ChangedRecords::default();
        self.kept.clear();
    }

    pub fn opened(&mut self, epoch: u32) {
        self.kept.opened(epoch);
    }

    pub fn close(&mut self) {
        self.kept.close();
    }
}

/// Notes.
impl KeptColumn {
    pub fn note_bytes(&mut self, ino: Ino, bytes: &Range<u64>) {
        self.kept.note_bytes(ino, bytes);
    }

    pub fn note_files_from(&mut self, number: u64) {
        if self.kept.noted_from().is_none_or(|from| number < from) {
            self.kept.note_files_from(number);
        }
    }

    /// Notes the keys of an operation, and the bytes that it changes. A new file is marked as a whole: its primary writes there without an
    /// announcement (P26).
    pub fn note_plan(&mut self, plan: &Plan) {
        self.note_keys(replicated_keys(plan));
        if let Some((ino, bytes)) = changed_bytes(plan) {
            self.note_bytes(ino, &bytes);
        }
        if let Some(ino) = plan.new_file
            && !is_active(Mutant::NewFileUnmarked)
        {
            self.note_bytes(ino, &(0..u64::MAX));
        }
    }

    /// Notes keys of records.
    pub fn note_keys<'a>(&mut self, keys: impl Iterator<Item = &'a Vec<u8>>) {
        if self.records.all || is_active(Mutant::KeysNotInColumns) {
            return;
        }
        let known = &self.records.keys;
        let new: Vec<&Vec<u8>> = keys.filter(|key| !known.contains(*key)).collect();
        self.records.all = !self.kept.note_keys(new.iter().copied());
        self.records.keys.extend(new.into_iter().cloned());
        if self.records.limit() {
            self.kept.note_all_records();
        }
    }

    pub fn note_records(&mut self, records: &ChangedRecords) {
        self.note_keys(records.keys.iter());
        if records.all && !is_active(Mutant::KeysNotInColumns) {
            self.kept.note_all_records();
            self.records = ChangedRecords::any();
        }
    }
}

/// Questions.
impl KeptColumn {
    pub const fn notes(&self) -> &Arc<RegionNotes> {
        self.kept.notes()
    }

    pub const fn records(&self) -> &ChangedRecords {
        &self.records
    }

    pub const fn noted_from(&self) -> Option<u64> {
        self.kept.noted_from()
    }

    /// Calls `each` with all marked bytes, but for files that are marked by their numbers.
    pub fn each(&self, each: impl FnMut(Ino, &Range<u64>)) {
        self.kept.marks.each(each);
    }

    /// The used part of the table, in thousandths.
    pub fn fill(&self) -> u32 {
        self.kept.fill()
    }
}
