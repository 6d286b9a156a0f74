//! One column of marks of a change reader, in memory that outlives the process.
//!
//! A column has the keys of names, inodes and extended attributes, and the parts of files that have changed. The other tables of the
//! namespace say nothing more to a reader. A full column is coarser, and lacks no mark: its owner sees "any name may have changed"
//! ([`ReaderColumn::has_all_names`]), or the whole content of a file, or that of all files from a number on.

use std::collections::BTreeSet;
use std::ops::{Bound, Range};
use std::sync::Arc;

use lockstep_types::Ino;
use serde::{Deserialize, Serialize};

use super::super::kept_marks::KeptMarks;
use super::super::region_marks::RegionNotes;
use super::super::table::MarkTable;
use super::point::ChangePoint;
use crate::namespace::keys;

/// The words of a reader in the headers of its tables. Those of the first table count; the second one has its registration only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReaderWords {
    /// Random: names the registration in the list of readers to which the table belongs.
    pub registration: u64,
    /// The point that the reader has confirmed.
    pub since: Option<ChangePoint>,
    /// The point of the last question, which is not confirmed yet.
    pub turned: Option<ChangePoint>,
    /// The column of the changes of this moment.
    pub open: u8,
}

/// See the head of this file.
pub(super) struct ReaderColumn {
    kept: KeptMarks<ReaderWords>,
    keys: BTreeSet<Vec<u8>>,
}

/// Whether a reader is told of the record under this key.
pub(super) fn is_told(key: &[u8]) -> bool {
    let told = [keys::ENTRIES, keys::INODES, keys::XATTRS];
    key.first().is_some_and(|table| told.contains(table))
}

/// Begin and end.
impl ReaderColumn {
    /// Takes a table over.
    pub fn open(table: MarkTable) -> Self {
        let (kept, keys) = KeptMarks::open(table);
        let keys = keys.into_iter().collect();
        Self { kept, keys }
    }

    /// The words of the last process; `None` if the marks of the table do not count.
    pub fn words(&self) -> Option<ReaderWords> {
        self.kept.owner().cloned()
    }

    pub fn set_words(&mut self, words: ReaderWords) {
        self.kept.set_owner(words);
    }

    /// Drops all marks, and the words.
    pub fn reset(&mut self) {
        self.kept.void();
        self.clear();
    }

    /// Drops all marks. The words stay.
    pub fn clear(&mut self) {
        self.keys.clear();
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
impl ReaderColumn {
    pub fn note_bytes(&mut self, ino: Ino, bytes: &Range<u64>) {
        self.kept.note_bytes(ino, bytes);
    }

    pub fn note_keys<'a>(&mut self, keys: impl Iterator<Item = &'a Vec<u8>>) {
        if self.kept.all_records() {
            return;
        }
        let known = &self.keys;
        let new: Vec<&Vec<u8>> = keys
            .filter(|key| is_told(key) && !known.contains(*key))
            .collect();
        if self.kept.note_keys(new.iter().copied()) {
            self.keys.extend(new.into_iter().cloned());
        } else {
            self.keys.clear();
        }
    }

    /// Takes all marks of another column besides.
    pub fn take_from(&mut self, other: &Self) {
        if let Some(number) = other.kept.noted_from() {
            self.kept.note_files_from(number);
        }
        other
            .kept
            .marks
            .each(|ino, bytes| self.note_bytes(ino, bytes));
        self.note_keys(other.keys.iter());
        if other.has_all_names() {
            self.kept.note_all_records();
            self.keys.clear();
        }
    }
}

/// Questions.
impl ReaderColumn {
    pub const fn notes(&self) -> &Arc<RegionNotes> {
        self.kept.notes()
    }

    /// Any name or attribute may have changed: there were too many.
    pub const fn has_all_names(&self) -> bool {
        self.kept.all_records()
    }

    pub fn has_key(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }

    /// Whether the attributes or extended attributes of an inode may have changed.
    pub fn has_attributes(&self, ino: Ino) -> bool {
        let xattrs = keys::of_ino(keys::XATTRS, ino);
        let mut named = self.keys.range::<[u8], _>((xattrs.from(), xattrs.to()));
        self.has_key(&keys::inode(ino)) || named.next().is_some()
    }

    /// The marked keys of names after `after`, in order.
    pub fn names_after<'a>(&'a self, after: &'a [u8]) -> impl Iterator<Item = &'a Vec<u8>> {
        let end = [keys::ENTRIES + 1];
        let after = if after.is_empty() {
            Bound::Included(&[keys::ENTRIES] as &[u8])
        } else {
            Bound::Excluded(after)
        };
        self.keys
            .range::<[u8], _>((after, Bound::Unbounded))
            .take_while(move |key| key.as_slice() < end.as_slice())
    }
}
