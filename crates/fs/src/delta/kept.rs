//! The delta of a node that is alone, in memory that outlives the process (rule P21).
//!
//! [`KeptDelta`] owns the table: its header, the region marks and the keys. The table says at each moment at least as much as the
//! memory: a kill, a restart and an upgrade cost no more than a comparison of the changes. After a loss of power the table
//! says nothing. A clean stop of the machine puts it on stable storage.
//!
//! Keys are added before the records change, and stay until the delta ends: a resync that goes on after a restart sends the
//! records once more that the other copy has already. Too many keys become "all records".
//!
//! Invariants:
//! - The header is stored last when a delta begins, and goes first when it ends. A table without a header says nothing.
//! - Files that are marked by their numbers are in the header before their slots are free.

use std::ops::Range;
use std::sync::Arc;

use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Ino, Osn};

use super::changes::{ChangedContent, ChangedRegions};
use super::form::{Header, VERSION, add_key};
use super::region_marks::{RegionMarks, RegionNotes};
use super::table::{DeltaTable, sync_table};
use crate::error::StoreError;

/// The copies of which a delta speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    /// The generation in which this node leads.
    pub led: Generation,
    /// The generation in which the copies were equal but for the operations in flight.
    pub base: Generation,
    /// The other copy has every operation up to this one, or it does not belong to this delta.
    pub applied: Osn,
}

/// The delta that the last process has left.
pub(super) struct LeftChanges {
    pub lead: Lead,
    pub keys: Vec<Vec<u8>>,
    pub all_records: bool,
    pub lacks_namespace: bool,
    pub rest: Option<u64>,
}

/// See the head of this file.
pub(super) struct KeptDelta {
    table: Arc<DeltaTable>,
    marks: RegionMarks,
    /// `None` without a delta.
    lead: Option<Lead>,
    key_bytes: usize,
    all_records: bool,
    lacks_namespace: bool,
    /// All files from this number on are noted, because the table is full.
    noted_from: Option<u64>,
    /// A resync has to compare all files from this number on.
    rest: Option<u64>,
}

/// Begin and end.
impl KeptDelta {
    /// Takes the table over, with the delta in it.
    pub fn open(table: DeltaTable) -> (Self, Option<LeftChanges>) {
        let table = Arc::new(table);
        let mut kept = Self {
            marks: RegionMarks::new(Arc::clone(&table)),
            table,
            lead: None,
            key_bytes: 0,
            all_records: false,
            lacks_namespace: false,
            noted_from: None,
            rest: None,
        };
        let Some(left) = kept.table.left() else {
            kept.table.clear();
            return (kept, None);
        };
        let header = left.header;
        kept.lead = Some(Lead {
            led: header.led,
            base: header.base,
            applied: header.applied,
        });
        kept.all_records = header.all_records || left.keys.is_broken;
        kept.key_bytes = left.keys.length;
        kept.lacks_namespace = header.lacks_namespace;
        let is_whole = kept.marks.take(&left.slots);
        kept.rest = if is_whole { header.rest } else { Some(1) };
        let found = kept.lead.map(|lead| LeftChanges {
            lead,
            keys: left.keys.keys,
            all_records: kept.all_records,
            lacks_namespace: kept.lacks_namespace,
            rest: kept.rest,
        });
        kept.store_header();
        kept.marks.free_broken(&left.slots);
        (kept, found)
    }

    pub const fn notes(&self) -> &Arc<RegionNotes> {
        self.marks.notes()
    }

    /// Ends the delta of before, and begins one without changes. It counts from [`Self::begun`] on.
    pub fn begin(&mut self) {
        if self.lead.take().is_some() {
            self.table.void();
        }
        let slots = self.marks.clear();
        let key_bytes = std::mem::take(&mut self.key_bytes);
        self.table.clear_used(slots, key_bytes);
        (self.all_records, self.lacks_namespace) = (false, false);
        (self.noted_from, self.rest) = (None, None);
    }

    /// The delta counts, with the changes that were noted since [`Self::begin`].
    pub fn begun(&mut self, lead: Lead) {
        self.lead = Some(lead);
        self.store_header();
    }

    /// The delta counts as one of a resync of everything, whose namespace the other copy does not have yet.
    pub fn begun_whole(&mut self, lead: Lead) {
        self.lacks_namespace = true;
        self.rest = Some(1);
        self.begun(lead);
    }

    /// Puts the delta on stable storage, before the opening `epoch` of the store ends cleanly.
    pub fn close(&self, backing: &dyn Backing, epoch: u32) -> Result<(), StoreError> {
        if let Some(mut header) = self.header() {
            header.closed = Some(epoch);
            self.table.store_header(&header);
        }
        sync_table(backing)
    }

    fn header(&self) -> Option<Header> {
        let lead = self.lead?;
        Some(Header {
            version: VERSION,
            slots: self.table.slots(),
            boot: self.table.last_use().boot,
            closed: None,
            led: lead.led,
            base: lead.base,
            applied: lead.applied,
            all_records: self.all_records,
            lacks_namespace: self.lacks_namespace,
            rest: self.noted_from.into_iter().chain(self.rest).min(),
        })
    }

    fn store_header(&self) {
        if let Some(header) = self.header() {
            self.table.store_header(&header);
        }
    }
}

/// Notes.
impl KeptDelta {
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
        self.all_records = true;
        self.store_header();
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
    fn note_files(&mut self) {
        self.note_files_from(self.marks.number_to_free());
    }
}

/// A resync.
impl KeptDelta {
    /// The noted bytes, and the number from which on all files are noted. They are open from now on.
    pub fn open_noted(&mut self) -> (ChangedContent, Option<u64>) {
        let noted_from = self.noted_from.take();
        self.rest = self.rest.into_iter().chain(noted_from).min();
        (self.marks.open_noted(), noted_from)
    }

    /// A resync of everything begins with these files; it has to compare all files from `rest` on besides.
    pub fn files_begun(&mut self, files: &[Ino], rest: Option<u64>) {
        for ino in files {
            while !self.marks.open_file(*ino) {
                self.note_files();
            }
        }
        self.rest = rest;
        self.store_header();
    }

    /// The open bytes of a file among `bytes` are these.
    pub fn set_open(&mut self, ino: Ino, bytes: &Range<u64>, left: &ChangedRegions) {
        self.marks.set_open(ino, bytes, left);
    }

    /// The other copy has the namespace.
    pub fn arrived(&mut self) {
        if std::mem::take(&mut self.lacks_namespace) {
            self.store_header();
        }
    }
}
