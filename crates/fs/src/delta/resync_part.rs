//! The part of the delta that a resync has taken, and the rest of that part: a resync that loses its connection goes on there.
//!
//! A resync first moves the notes that it is about to send to a place of their own, and removes them when the secondary has their
//! data. A change meanwhile is noted in the delta as ever, and stays there: an answer takes no newer note away.
//!
//! Each resync has a job for its namespace, and one for its content. A job whose connection was lost may be late: its word
//! counts only while no other job has begun, and no other delta.

use std::collections::BTreeSet;
use std::ops::Range;

use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};

use super::changes::{ChangedContent, ChangedRegions, RECORDS_MAX, RUNS_MAX};
use crate::namespace::keys;

/// A part of a resync that takes from the delta what the secondary has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaJob(pub(super) u64);

/// Changed records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedRecords {
    /// Their keys.
    pub keys: BTreeSet<Vec<u8>>,
    /// Any record may have changed: there were too many.
    pub all: bool,
}

impl ChangedRecords {
    /// Any record.
    pub const fn any() -> Self {
        Self {
            keys: BTreeSet::new(),
            all: true,
        }
    }

    /// Keeps no keys if there are too many. Returns whether there were.
    pub(super) fn limit(&mut self) -> bool {
        let are_too_many = self.keys.len() > RECORDS_MAX;
        self.all |= are_too_many;
        if self.all {
            self.keys.clear();
        }
        are_too_many
    }

    fn add(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.all |= other.all;
        self.limit();
    }
}

/// The files that a resync has to compare by their numbers, and has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestOfFiles {
    /// The number of the first of them.
    pub next: u64,
    /// The number of the last one. It is not known before the walk begins.
    pub last: Option<u64>,
}

impl RestOfFiles {
    fn has(self, ino: Ino) -> bool {
        (self.next..=self.last.unwrap_or(u64::MAX)).contains(&ino.get())
    }
}

/// The content that a resync has to make equal.
#[derive(Clone, Debug)]
pub struct DeltaWalk {
    /// The job that tells what is equal.
    pub job: DeltaJob,
    /// The bytes that may differ. A file without bytes may differ in its times.
    pub content: ChangedContent,
    /// In a resync of everything, and if too much has changed: the files that may differ in anything, besides.
    pub rest: Option<RestOfFiles>,
    /// The times of any file may differ.
    pub all_times: bool,
    /// The inodes that the resync has touched, or touches for a change: they are compared after it.
    pub touched: BTreeSet<Ino>,
    /// An earlier walk of the same resync was interrupted. It may have been one of an earlier process.
    pub goes_on: bool,
}

/// A step of a walk, by which less of the content is left to make equal.
#[derive(Clone, Copy, Debug)]
pub enum WalkProgress<'a> {
    /// The walk begins with files of the rest.
    Begun {
        /// The files.
        files: &'a [Ino],
        /// The files that are left then.
        rest: RestOfFiles,
    },
    /// Bytes are equal on both nodes, and no write to them is under way.
    Equal {
        /// Their file.
        ino: Ino,
        /// The bytes.
        bytes: &'a Range<u64>,
    },
    /// The walk is over with a file.
    Done(Ino),
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct ResyncPart {
    /// Records that were sent, and may not have arrived.
    sent: ChangedRecords,
    /// All records were sent, so the times of any file may differ.
    all_times: bool,
    /// The bytes that the walk over the content has not made equal.
    open: ChangedContent,
    /// In a resync of everything, and if too much has changed: the files that the walk has not come to.
    rest: Option<RestOfFiles>,
    /// The secondary does not have the namespace of the resync of everything.
    lacks_namespace: bool,
    /// Inodes that were sent for a change.
    touched: BTreeSet<Ino>,
    has_walked: bool,
}

impl ResyncPart {
    /// The begin of the content in a resync of everything.
    pub fn of_everything() -> Self {
        Self {
            rest: Some(RestOfFiles {
                next: 1,
                last: None,
            }),
            lacks_namespace: true,
            ..Self::default()
        }
    }

    /// The begin of a resync of the changes that an earlier process has left. `has_walked`: that process may have made content equal.
    pub fn left(rest: Option<u64>, lacks_namespace: bool, has_walked: bool) -> Self {
        Self {
            rest: rest.map(|next| RestOfFiles { next, last: None }),
            lacks_namespace,
            has_walked,
            ..Self::default()
        }
    }

    /// The resync of a copy that may lack records begins: the copy counts once it has the namespace.
    pub const fn begin_without_namespace(&mut self) {
        self.lacks_namespace = true;
    }

    pub const fn has_namespace(&self) -> bool {
        !self.lacks_namespace
    }

    /// The records that were sent, and may not have arrived.
    pub const fn sent(&self) -> &ChangedRecords {
        &self.sent
    }

    /// The bytes of a file that the walk has not made equal.
    pub fn open_of(&self, ino: Ino) -> Vec<Range<u64>> {
        let open = self.open.get(&ino);
        open.map_or_else(Vec::new, |open| open.iter().collect())
    }

    /// The files with which a walk is not done.
    pub fn open_files(&self) -> impl Iterator<Item = Ino> {
        self.open.keys().copied()
    }

    /// Whether the times of any file may differ.
    pub const fn has_all_times(&self) -> bool {
        self.all_times
    }

    /// Whether this record was sent, and may not have arrived.
    pub fn has_sent(&self, key: &Vec<u8>) -> bool {
        self.sent.keys.contains(key)
    }

    /// The records that may differ, if `noted` have changed since.
    pub fn with_sent(&self, noted: &ChangedRecords) -> ChangedRecords {
        ChangedRecords {
            keys: self.sent.keys.union(&noted.keys).cloned().collect(),
            all: self.sent.all || noted.all,
        }
    }

    /// Adds noted bytes to those that the next walk makes equal, and all files from a number on.
    pub fn open(&mut self, noted: ChangedContent, noted_from: Option<u64>) {
        for (ino, regions) in noted {
            let open = self.open.entry(ino).or_default();
            for run in regions.iter() {
                open.insert(&run);
            }
        }
        if let Some(number) = noted_from {
            self.open_from(number);
        }
    }

    fn open_from(&mut self, number: u64) {
        let next = self.rest.map_or(number, |rest| rest.next.min(number));
        self.rest = Some(RestOfFiles { next, last: None });
    }

    /// The files whose records have changed differ in their times, too.
    pub fn open_files_of(&mut self, records: &ChangedRecords) {
        for key in &records.keys {
            if let Some(ino) = keys::ino_of(key) {
                self.touched.insert(ino);
                if key.first() == Some(&keys::INODES) {
                    self.open.entry(ino).or_default();
                }
            }
        }
        self.all_times |= records.all;
    }

    pub fn begin_walk(&mut self, job: DeltaJob) -> DeltaWalk {
        if let Some(rest) = self.rest {
            self.open.retain(|ino, _| !rest.has(*ino));
        }
        self.touched.extend(self.open.keys());
        let runs: usize = self.open.values().map(ChangedRegions::runs).sum();
        if runs + self.open.len() > RUNS_MAX || self.touched.len() > RUNS_MAX {
            self.open_from(1);
            self.open.clear();
        }
        let is_of_all = RestOfFiles {
            next: 1,
            last: None,
        };
        if self.rest == Some(is_of_all) {
            // The walk compares every file.
            self.touched.clear();
        }
        DeltaWalk {
            job,
            content: self.open.clone(),
            rest: self.rest,
            all_times: self.all_times,
            touched: self.touched.clone(),
            goes_on: std::mem::replace(&mut self.has_walked, true),
        }
    }

    /// These records are about to be sent.
    pub fn send(&mut self, records: ChangedRecords) {
        self.sent.add(records);
    }

    /// The secondary has every record that was sent before.
    pub fn arrived(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        self.open_files_of(&sent);
        self.lacks_namespace = false;
    }

    /// The walk begins with files of the rest; `rest` is what is left then.
    pub fn files_begun(&mut self, files: &[Ino], rest: RestOfFiles) {
        self.rest = Some(rest);
        if is_active(Mutant::ResumeTooFar) {
            return;
        }
        for ino in files {
            self.open.entry(*ino).or_default().insert(&(0..u64::MAX));
        }
    }

    /// These bytes are equal. Returns the bytes of the file that are not.
    pub fn compared(&mut self, ino: Ino, bytes: &Range<u64>) -> Option<&ChangedRegions> {
        let open = self.open.get_mut(&ino)?;
        open.remove(bytes);
        Some(open)
    }

    /// The walk is over with a file.
    pub fn file_done(&mut self, ino: Ino) {
        self.open.remove(&ino);
    }
}
