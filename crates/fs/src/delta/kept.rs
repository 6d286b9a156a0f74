//! The rest of a node that is alone, in memory that outlives the process (rule P21): the marks of its delta, and the copies of which
//! the delta speaks.
//!
//! Keys stay until the delta ends: a resync that goes on after a restart sends the records once more that the other copy has already.
//!
//! Invariant: the header is stored last when a delta begins, and goes first when it ends. A table without a header says nothing.

use std::ops::Range;
use std::sync::Arc;

use lockstep_types::{Generation, Ino, Osn};
use serde::{Deserialize, Serialize};

use super::changes::{ChangedContent, ChangedRegions};
use super::kept_marks::KeptMarks;
use super::region_marks::RegionNotes;
use super::table::MarkTable;

/// The copies of which a delta speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lead {
    /// The generation in which this node leads.
    pub led: Generation,
    /// The generation in which the copies were equal but for the operations in flight.
    pub base: Generation,
    /// The other copy has every operation up to this one, or it does not belong to this delta.
    pub applied: Osn,
}

/// The words of a delta in the header of its table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeltaWords {
    lead: Lead,
    resync: KeptResync,
    /// A resync has to compare all files from this number on.
    rest: Option<u64>,
}

/// How far a resync has got. The first two have the bytes of the two values that earlier versions knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum KeptResync {
    /// The other copy has the namespace, and no content was made equal.
    Namespace,
    /// The other copy does not have the namespace of its resync.
    LacksNamespace,
    /// Content may have been made equal, and is not proved.
    Content,
    /// Content may have been made equal in an earlier part, and the other copy does not have the namespace of this one.
    ContentLacksNamespace,
}

impl KeptResync {
    const fn of(lacks_namespace: bool, has_walked: bool) -> Self {
        match (lacks_namespace, has_walked) {
            (false, false) => Self::Namespace,
            (true, false) => Self::LacksNamespace,
            (false, true) => Self::Content,
            (true, true) => Self::ContentLacksNamespace,
        }
    }

    const fn lacks_namespace(self) -> bool {
        matches!(self, Self::LacksNamespace | Self::ContentLacksNamespace)
    }

    const fn has_walked(self) -> bool {
        matches!(self, Self::Content | Self::ContentLacksNamespace)
    }
}

/// The delta that the last process has left.
pub(super) struct LeftChanges {
    pub lead: Lead,
    pub keys: Vec<Vec<u8>>,
    pub all_records: bool,
    pub lacks_namespace: bool,
    /// A resync may have made content equal.
    pub has_walked: bool,
    pub rest: Option<u64>,
}

/// See the head of this file.
pub(super) struct KeptDelta {
    pub kept: KeptMarks<DeltaWords>,
    /// `None` without a delta.
    lead: Option<Lead>,
    lacks_namespace: bool,
    has_walked: bool,
    /// A resync has to compare all files from this number on.
    rest: Option<u64>,
}

/// Begin and end.
impl KeptDelta {
    /// Takes the table over, with the delta in it.
    pub fn open(table: MarkTable) -> (Self, Option<LeftChanges>) {
        let (kept, keys) = KeptMarks::open(table);
        let Some(words) = kept.owner().cloned() else {
            let none = Self {
                kept,
                lead: None,
                lacks_namespace: false,
                has_walked: false,
                rest: None,
            };
            return (none, None);
        };
        let found = LeftChanges {
            lead: words.lead,
            keys,
            all_records: kept.all_records(),
            lacks_namespace: words.resync.lacks_namespace(),
            has_walked: words.resync.has_walked(),
            rest: words.rest.into_iter().chain(kept.noted_from()).min(),
        };
        let delta = Self {
            kept,
            lead: Some(words.lead),
            lacks_namespace: words.resync.lacks_namespace(),
            has_walked: words.resync.has_walked(),
            rest: words.rest,
        };
        (delta, Some(found))
    }

    pub const fn notes(&self) -> &Arc<RegionNotes> {
        self.kept.notes()
    }

    /// Ends the delta of before, and begins one without changes. It counts from [`Self::begun`] on.
    pub fn begin(&mut self) {
        self.lead = None;
        self.kept.void();
        self.kept.clear();
        (self.lacks_namespace, self.has_walked, self.rest) = (false, false, None);
    }

    /// The delta counts, with the changes that were noted since [`Self::begin`].
    pub fn begun(&mut self, lead: Lead) {
        self.lead = Some(lead);
        self.store_words();
    }

    /// The delta counts as one of a resync of everything, whose namespace the other copy does not have yet.
    pub fn begun_whole(&mut self, lead: Lead) {
        self.rest = Some(1);
        self.begun_without_namespace(lead);
    }

    /// The delta counts, once the other copy has the namespace.
    pub fn begun_without_namespace(&mut self, lead: Lead) {
        self.lacks_namespace = true;
        self.begun(lead);
    }

    fn store_words(&mut self) {
        if let Some(lead) = self.lead {
            self.kept.set_owner(DeltaWords {
                lead,
                resync: KeptResync::of(self.lacks_namespace, self.has_walked),
                rest: self.rest,
            });
        }
    }
}

/// A resync.
impl KeptDelta {
    /// All files from this number on may differ.
    pub fn files_from(&self) -> Option<u64> {
        self.rest.into_iter().chain(self.kept.noted_from()).min()
    }

    /// A resync begins to make content equal. Returns the noted bytes, and the number from which on all files are noted. They are open
    /// from now on.
    pub fn open_noted(&mut self) -> (ChangedContent, Option<u64>) {
        let (noted, noted_from) = self.kept.open_noted();
        self.rest = self.rest.into_iter().chain(noted_from).min();
        self.has_walked = true;
        self.store_words();
        (noted, noted_from)
    }

    /// A resync of everything begins with these files; it has to compare all files from `rest` on besides.
    pub fn files_begun(&mut self, files: &[Ino], rest: Option<u64>) {
        for ino in files {
            while !self.kept.marks.open_file(*ino) {
                self.kept.note_files();
            }
        }
        self.rest = rest;
        self.store_words();
    }

    /// The open bytes of a file among `bytes` are these.
    pub fn set_open(&mut self, ino: Ino, bytes: &Range<u64>, left: &ChangedRegions) {
        self.kept.marks.set_open(ino, bytes, left);
    }

    /// The other copy has the namespace.
    pub fn arrived(&mut self) {
        if std::mem::take(&mut self.lacks_namespace) {
            self.store_words();
        }
    }
}
