//! The rest of a node that is alone, beside the columns of mirrored intervals: how the rest goes into the open column, how marks of
//! the columns come into the rest, and the begins and ends that wait for no disk (head of [`delta`](super)).
//!
//! Invariants:
//! - A place that leaves the rest is in the open column first: when a resync has made the place equal, and when the copies are
//!   equal again. The open column is dropped by a barrier, which makes the place stable on both nodes.
//! - Requests are carried out before anything else is done with the delta.

use lockstep_delta::{BarrierName, MarkAccount, MarkPage};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Osn};
use parking_lot::MutexGuard;

use super::kept::{KeptDelta, Lead};
use super::kept_column::KeptColumn;
use super::requests::{DeltaRequest, RestEnd};
use super::resync_part::ChangedRecords;
use super::told_marks::{adopt_page, common_base};
use super::{Alone, Delta, DeltaState, DeltaTracker};

/// Begins and ends that wait for no disk.
impl DeltaTracker {
    /// Tells the tables of the begins and ends since the last call.
    pub fn settle(&self) {
        drop(self.state());
        self.intervals.settle();
    }

    /// The delta, once the table has heard of each begin and end.
    pub(super) fn state(&self) -> MutexGuard<'_, DeltaState> {
        let mut state = self.delta.lock();
        while self.requests.are_waiting() {
            match self.requests.next() {
                Some(request) => self.carry_out(&mut state, request),
                None => self.publish(&state),
            }
        }
        state
    }

    fn carry_out(&self, state: &mut DeltaState, request: DeltaRequest) {
        match request {
            DeltaRequest::End(rest) => self.end_in(state, rest),
            DeltaRequest::BeginAlone(lead) => {
                self.end_in(state, RestEnd::Equal);
                state.kept.begun(lead);
                let alone = Alone {
                    // The rest is empty, and each later change is in both.
                    is_in_columns: self.intervals.present(),
                    ..Alone::of(lead)
                };
                self.note_alone(state, alone);
            }
        }
    }

    /// Tells the threads that take no lock whether this node is alone.
    pub(super) fn publish(&self, state: &DeltaState) {
        let is_alone = matches!(state.delta, Delta::Alone(_));
        self.requests.publish(is_alone, &self.notes_bytes);
    }
}

/// From the rest into the columns.
impl DeltaTracker {
    /// Notes the whole rest in the open column, unless the column has it. From now on, each change is noted there, too.
    pub fn keep_in_columns(&self) {
        self.intervals.set_mirroring(true);
        self.keep_rest(&mut self.state());
    }

    /// Notes the whole rest in the open column, unless the column has it.
    pub(super) fn keep_rest(&self, state: &mut DeltaState) {
        let DeltaState { delta, kept, .. } = state;
        let Delta::Alone(alone) = delta else { return };
        let present = self.intervals.present();
        let is_there = present.is_some() && alone.is_in_columns == present;
        if is_there || !self.intervals.is_live() || is_active(Mutant::ColumnsLackRest) {
            return;
        }
        alone.is_in_columns = present;
        let records = alone.resync.with_sent(&alone.records);
        self.intervals.mark(|column| {
            if let Some(number) = kept.files_from() {
                column.note_files_from(number);
            }
            kept.kept
                .marks
                .each(|ino, bytes| column.note_bytes(ino, bytes));
            column.note_records(&records);
        });
    }
}

/// From the columns into the rest.
impl DeltaTracker {
    /// Adds all marks since a barrier to the rest, as the begin of a resync whose namespace has not arrived. `led`: the generation in
    /// which this node leads. `applied`: its last operation. `peer`: the account of the other node. `told`: its marks, if this node needs
    /// them. Returns false if the barrier is no base.
    pub fn adopt_base(
        &self,
        name: BarrierName,
        led: Generation,
        applied: Osn,
        peer: &MarkAccount,
        told: &[MarkPage],
    ) -> bool {
        let mut state = self.state();
        let is_base = |has_rest| {
            let own = self.intervals.account(has_rest);
            common_base(&own, has_rest, peer) == Some(name)
        };
        if !is_base(matches!(state.delta, Delta::Alone(_))) {
            return false;
        }
        let taken = Lead {
            led,
            base: led,
            applied,
        };
        let DeltaState { delta, kept, .. } = &mut *state;
        let mut alone = match std::mem::take(delta) {
            Delta::Alone(alone) => alone,
            Delta::Off | Delta::Following(_) => {
                kept.begin();
                Alone::of(taken)
            }
        };
        self.intervals
            .each_after(name, |column| adopt(kept, &mut alone, column));
        for page in told {
            adopt_page(kept, &mut alone, page);
        }
        // Coverage that was lost meanwhile has taken marks along.
        let is_base = is_base(true);
        alone.lead = taken;
        alone.resync.begin_without_namespace();
        alone.is_in_columns = None;
        if is_base {
            kept.begun_without_namespace(taken);
        }
        self.note_alone(&mut state, alone);
        is_base
    }
}

/// Adds the marks of a column to the rest.
fn adopt(kept: &mut KeptDelta, alone: &mut Alone, column: &KeptColumn) {
    column.each(|ino, bytes| kept.kept.note_bytes(ino, bytes));
    if let Some(number) = column.noted_from() {
        kept.kept.note_files_from(number);
    }
    let records = column.records();
    alone.note_keys(kept, records.keys.iter());
    if records.all {
        kept.kept.note_all_records();
        alone.records = ChangedRecords::any();
    }
}
