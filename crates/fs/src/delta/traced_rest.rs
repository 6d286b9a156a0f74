//! The trace of a node that serves alone, and its rest: how a trace begins with the rest and the columns, and how the rest of a node that
//! has lost its power begins with the trace (rule P28). And the rest of the source of a resync: its copy at a barrier, and the rest that begins
//! with that copy (rule P30).
//!
//! Invariants:
//! - A trace begins only while each change of this node goes into its rest, and into no column that the other node may ask for: the node
//!   is alone and does not mirror. No operation is pending that the other node may have done.
//! - Changes are noted in the trace before the marks from before are copied. A thread that has not seen the trace has made its mark
//!   in the rest before, and so the copy has that mark.
//! - The rest of a trace or of a copy counts for no copy of the other node by its generation: this node may have lost mirrored changes, which the trace names, and
//!   such a copy needs a base by a barrier.

use lockstep_delta::BarrierMachine;
use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};

use super::changes::replicated_keys;
use super::kept::{KeptDelta, LeftChanges};
use super::kept_column::KeptColumn;
use super::rest_copy::{CopiedRest, RestCopy};
use super::resync_part::{ChangedRecords, ResyncPart};
use super::trace::{Trace, TraceSubject};
use super::trace_file::LeftTrace;
use super::traced_places::bytes_of;
use super::{Alone, Delta, DeltaState, DeltaTracker};
use crate::error::StoreError;
use crate::namespace::keys;
use crate::namespace::plan::Plan;

/// A trace that has begun, and does not count yet.
pub struct BegunTrace {
    about: TraceSubject,
    /// The inodes of the keys from before. The other node may have freed them: their content is in the trace if this node has, too.
    inodes: Vec<Ino>,
}

impl BegunTrace {
    /// The inodes whose records may differ.
    pub fn inodes(&self) -> &[Ino] {
        &self.inodes
    }
}

/// Begin and end.
impl DeltaTracker {
    /// Whether this node serves alone, knows a barrier, and has no trace.
    pub fn lacks_trace(&self) -> bool {
        let is_alone = matches!(self.state().delta, Delta::Alone(_));
        is_alone
            && !self.trace.is_active()
            && self.intervals.mirroring().is_multiple_of(2)
            && self.intervals.account(true).oldest_covered().is_some()
    }

    /// Each change is noted in the trace from now on, which has all marks from before. `ino_limit`: no inode has this number or a later
    /// one. The caller lets no operation begin meanwhile, and none is pending. Returns `None`, and begins nothing, if the marks are
    /// not enough.
    pub fn begin_trace(&self, ino_limit: u64) -> Option<BegunTrace> {
        let mut state = self.state();
        let name = self.intervals.account(true).oldest_covered()?;
        let Delta::Alone(alone) = &state.delta else {
            return None;
        };
        if self.intervals.mirroring() % 2 == 1 || self.trace.is_active() {
            return None;
        }
        let mut records = alone.resync.with_sent(&alone.records);
        let lead = alone.lead;
        self.trace.begin(ino_limit);
        let kept = &mut state.kept;
        if let Some(number) = kept.files_from() {
            self.trace.add_files_from(number);
        }
        kept.kept
            .marks
            .each(|ino, bytes| self.trace.add(ino, bytes));
        self.intervals
            .each_after(name, |column| self.trace.add_column(column, &mut records));
        // Coverage that was lost meanwhile has taken marks along.
        if !self.intervals.account(true).covers(name) {
            self.trace.note_over();
            return None;
        }
        if records.all {
            // Nothing says which inodes were freed.
            self.trace.add_files_from(1);
        }
        self.trace.owe_records(&records);
        let inodes = records.keys.iter().filter(|key| is_inode(key));
        Some(BegunTrace {
            about: TraceSubject {
                live_after: name.through,
                open: self.intervals.machine(BarrierMachine::open),
                lead,
            },
            inodes: inodes.filter_map(|key| keys::ino_of(key)).collect(),
        })
    }

    /// The trace.
    pub(crate) const fn trace(&self) -> &Trace {
        &self.trace
    }
}

impl BegunTrace {
    /// The trace counts from now on. `freed`: inodes that are gone. This node may get them back with a loss of its power, and the other
    /// one may not have their content.
    ///
    /// # Errors
    /// If the disk fails or is full. Then there is no trace.
    pub(crate) fn complete(
        &self,
        trace: &Trace,
        freed: impl Iterator<Item = Ino>,
    ) -> Result<(), StoreError> {
        freed.for_each(|ino| trace.add(ino, &(0..u64::MAX)));
        trace.complete(self.about)
    }
}

impl Trace {
    /// Adds the marks of a column, and its records to `records`.
    fn add_column(&self, column: &KeptColumn, records: &mut ChangedRecords) {
        if is_active(Mutant::ColumnsUnsyncedAlone) {
            return;
        }
        if let Some(number) = column.noted_from() {
            self.add_files_from(number);
        }
        column.each(|ino, bytes| self.add(ino, bytes));
        records.keys.extend(column.records().keys.iter().cloned());
        records.all |= column.records().all;
    }
}

/// Keys.
impl DeltaTracker {
    /// The log has had an operation since the last checkpoint, of this process or of one before.
    pub fn note_replayed(&self, plan: &Plan) {
        if !self.trace.is_active() {
            return;
        }
        self.trace.owe_keys(replicated_keys(plan));
        let mut state = self.state();
        let DeltaState { delta, kept, .. } = &mut *state;
        if let Delta::Alone(alone) = delta {
            alone.note_keys(kept, replicated_keys(plan));
        }
    }
}

impl Trace {
    /// Keys of records are about to change, of a node that is alone or not.
    pub(super) fn before_operation(&self, plan: &Plan, is_alone: bool) -> Result<(), StoreError> {
        if !self.is_active() {
            return Ok(());
        }
        if !is_alone || self.is_over() {
            return self.end();
        }
        self.owe_keys(replicated_keys(plan));
        Ok(())
    }
}

fn is_inode(key: &[u8]) -> bool {
    key.first() == Some(&keys::INODES)
}

impl Delta {
    /// The delta that the last process has left: by the trace of use, by the table, or by the copy of its rest.
    pub(super) fn left(
        traced: Option<&LeftTrace>,
        left: Option<LeftChanges>,
        copy: Option<RestCopy>,
        kept: &mut KeptDelta,
    ) -> Self {
        match (traced, left, copy) {
            (Some(traced), ..) => Self::Alone(rest_of(traced, kept)),
            (None, None, Some(copy)) => Self::Alone(copy.into_rest(kept)),
            (None, Some(left), _) => Self::Alone(Alone {
                records: ChangedRecords {
                    keys: left.keys.into_iter().collect(),
                    all: left.all_records,
                },
                resync: ResyncPart::left(left.rest, left.lacks_namespace, left.has_walked),
                ..Alone::of(left.lead)
            }),
            (None, None, None) => Self::Off,
        }
    }
}

/// The rest of a node that has lost its power, as its trace names it.
fn rest_of(left: &LeftTrace, kept: &mut KeptDelta) -> Alone {
    kept.begin();
    let mut alone = Alone::of(left.words.lead);
    for slot in &left.slots {
        for bytes in bytes_of(slot.mark) {
            kept.kept.note_bytes(slot.ino, &bytes);
        }
    }
    let files_from = if left.has_broken_slot {
        1
    } else {
        left.words.files_from
    };
    kept.kept.note_files_from(files_from);
    alone.note_keys(kept, left.keys.keys.iter());
    if left.words.all_records || left.keys.is_broken {
        kept.kept.note_all_records();
        alone.records = ChangedRecords::any();
    }
    alone.resync.begin_without_namespace();
    kept.begun_without_namespace(left.words.lead);
    alone
}

impl Trace {
    /// The interval after which the trace that was left has all marks; `None` if it is of no use: the tables of before have their words.
    pub(super) fn base_of(left: Option<&LeftTrace>, has_tables: bool) -> Option<&LeftTrace> {
        left.filter(|left| left.is_of_lost_run || !has_tables)
    }
}

/// The copy of this moment.
impl DeltaTracker {
    /// A copy of the rest; `None` without a rest.
    pub(crate) fn copy_rest(&self) -> CopiedRest {
        let state = self.state();
        let Delta::Alone(alone) = &state.delta else {
            return CopiedRest(None);
        };
        let kept = &state.kept;
        let mut bytes = Vec::new();
        if !is_active(Mutant::RestLacksContent) {
            kept.kept
                .marks
                .each(|ino, run| bytes.push((ino.get(), run.start, run.end)));
        }
        // The marks are in no order, and the same rest makes the same file.
        bytes.sort_unstable();
        let mut records = alone.resync.with_sent(&alone.records);
        // A file that is not done may differ in its size and times.
        records
            .keys
            .extend(alone.resync.open_files().map(keys::inode));
        records.all |= alone.resync.has_all_times();
        records.limit();
        CopiedRest(Some(RestCopy {
            lead: alone.lead,
            files_from: kept.files_from(),
            all_records: records.all,
            bytes,
            keys: records.keys.into_iter().collect(),
        }))
    }
}

/// After a loss of power.
impl RestCopy {
    /// The rest of a node that has lost its power.
    pub fn into_rest(self, kept: &mut KeptDelta) -> Alone {
        kept.begin();
        let mut alone = Alone::of(self.lead);
        for (ino, start, end) in self.bytes {
            if let Some(ino) = Ino::new(ino) {
                kept.kept.note_bytes(ino, &(start..end));
            }
        }
        if let Some(number) = self.files_from {
            kept.kept.note_files_from(number);
        }
        alone.note_keys(kept, self.keys.iter());
        if self.all_records {
            kept.kept.note_all_records();
            alone.records = ChangedRecords::any();
        }
        alone.resync.begin_without_namespace();
        kept.begun_without_namespace(self.lead);
        alone
    }
}
