//! The delta: the records and the bytes that this store has changed since both copies of the datastore were last equal
//! (rule P21).
//!
//! With a delta, the other copy is brought up to date without a comparison of everything. A delta has a *base*, the
//! generation in which the copies were equal but for the operations in flight. It is kept in two ways:
//!
//! - A secondary in sync *follows*: it remembers the operations of its primary that the primary may not have applied yet.
//!   Its writes are in the SAW table. This delta ends with the process.
//! - A primary without its secondary, and a secondary that has become the primary, is *alone*: everything that changes is
//!   noted, from the moment at which the connection was lost. This delta outlives the process ([`kept`]), and a loss of power if the
//!   node has a trace ([`trace`]): a node that leads again in the same generation goes on with it.
//!
//! The marks of mirrored operations are in the columns ([`interval_marks`]); the delta of a node that is alone is its *rest*. While
//! the coverage of the columns lasts, each change is in the rest or in the columns, and a rest that is dropped goes into the columns
//! first. So a base by a barrier needs both.
//!
//! A delta over its limits becomes coarser: "all records", "everything of this file from here on", "all files from this number
//! on". It never ends for its length.
//!
//! A resync takes from the delta what it has sent and the other copy has ([`resync_part`]), so that a resync that loses its
//! connection goes on where it was. A resync of everything has a delta from the end of its namespace on.
//!
//! Invariants: a change is noted before it is made. A place that a delta lacks is equal in both copies, unless the other copy has
//! changed it; the other copy names its own writes in flight.
//!
//! *A begin or an end that must wait for no disk* ([`DeltaTracker::begin_alone`], [`DeltaTracker::end`],
//! [`DeltaTracker::end_equal`]) is a request in memory. The table hears of the requests from the next thread that changes or asks
//! anything, before anything else, or from [`DeltaTracker::settle`]. So every thread sees the delta as if the request had been
//! carried out at once. A process that is killed in between leaves the table of before. That is sound if the driver settles before
//! it makes the mark "out of sync" durable:
//!
//! - A process that starts with the mark "in sync" begins another delta, without a look at the table.
//! - A process that starts with the mark "out of sync" finds a table that was settled before that mark. So the begin is in the
//!   table with every change since: a change settles, too. And an end that came after that mark comes with the mark "in sync", or
//!   is of a failure after which no change was made.
//! - Until that mark no operation is answered that the secondary lacks (P1), and PAW and the log have those under way.

mod barrier_file;
mod changes;
mod form;
mod interval_marks;
mod kept;
mod kept_column;
mod kept_marks;
mod mark_tables;
mod readers;
mod region_marks;
mod requests;
mod rest;
mod rest_copy;
mod resync_part;
mod table;
#[cfg(test)]
mod tests;
mod told_marks;
mod trace;
mod trace_file;
mod traced_places;
mod traced_rest;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_delta::Interval;
use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Ino, Osn};
use parking_lot::Mutex;

use crate::content::before_change::{ByteChange, ByteEdit, ByteObserver};
use crate::error::StoreError;
use crate::namespace::plan::Plan;
pub use changes::{ChangedContent, ChangedRegions};
use changes::{Changes, changed_bytes, replicated_keys};
pub(crate) use interval_marks::IntervalMarks;
use interval_marks::LeftColumns;
use kept::{DeltaWords, KeptDelta, Lead};
pub use mark_tables::MarkTables;
pub use readers::{
    AnswerReplaced, ChangeAsk, ChangePoint, ChangeQuestion, ChangeReaders, ChangeWalk,
    ChangedEntry, EntryChange, LostMarks, NotAPoint, READER_KEPT_DAYS, READER_NAME_MAX,
    READERS_MAX, ReaderError, ReaderRecord, WholeAnswer,
};
use region_marks::RegionNotes;
use requests::{DeltaRequest, DeltaRequests, RestEnd};
use resync_part::ResyncPart;
pub use resync_part::{ChangedRecords, DeltaJob, DeltaWalk, RestOfFiles, WalkProgress};
use table::sync_tables;
pub use table::{MarkTableSizes, make_table};
pub use trace::Trace;
use trace_file::LeftTrace;

/// The operations that the primary may not have applied.
struct Following {
    base: Generation,
    /// The primary has applied every operation up to this one; `None` until the primary has said so of the operations
    /// before the delta.
    applied: Option<Osn>,
    /// The last operation in `older`.
    split: Osn,
    older: Changes,
    newer: Changes,
}

impl Following {
    /// The changes of the next primary.
    fn changes(self) -> Changes {
        let mut changes = self.older;
        changes.join(self.newer);
        if is_active(Mutant::DeltaForgetsUnapplied) {
            changes = Changes::default();
        }
        changes
    }
}

/// The changes of a node that is alone. Its bytes are in [`KeptDelta`].
struct Alone {
    lead: Lead,
    records: ChangedRecords,
    resync: ResyncPart,
    /// The time of mirroring, and the interval, in which the open column has got the whole rest, and gets what is added ([`rest`]).
    is_in_columns: Option<(u64, Interval)>,
}

impl Alone {
    fn of(lead: Lead) -> Self {
        Self {
            lead,
            records: ChangedRecords::default(),
            resync: ResyncPart::default(),
            is_in_columns: None,
        }
    }
}

/// See the head of this file.
#[derive(Default)]
enum Delta {
    #[default]
    Off,
    Following(Following),
    Alone(Alone),
}

/// The delta of a store, and its marks of mirrored intervals.
pub struct DeltaTracker {
    /// Whether changes of bytes are noted, for threads that must not wait for the lock.
    notes_bytes: AtomicBool,
    /// The noted bytes, for the same threads.
    notes: Arc<RegionNotes>,
    /// Begins and ends of which the table has not heard. Locked after the delta.
    requests: DeltaRequests,
    delta: Mutex<DeltaState>,
    intervals: IntervalMarks,
    /// The rest on stable storage.
    trace: Trace,
}

/// The delta, and the job of a resync that may take from it.
struct DeltaState {
    delta: Delta,
    /// The delta of a node that is alone, in memory that outlives the process.
    kept: KeptDelta,
    job: u64,
}

/// Begin and end.
impl DeltaTracker {
    /// The delta and the columns in these tables, as the last process has left them. After a loss of power the trace has them.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(tables: MarkTables) -> Result<Self, StoreError> {
        let has_rest = tables.delta.has_kept_words::<DeltaWords>();
        let (mut kept, left) = KeptDelta::open(tables.delta);
        let (file, left_trace) = tables.trace;
        let trace = Trace::open(file, left_trace.as_ref())?;
        let traced = Trace::base_of(left_trace.as_ref(), has_rest);
        if tables.rest.is_some() {
            trace.note_rest_of_copy();
        }
        let delta = Delta::left(traced, left, tables.rest, &mut kept);
        if traced.is_some() {
            trace.note_begin_of_rest();
        }
        let left = LeftColumns {
            has_rest,
            traced: traced.map(LeftTrace::intervals),
        };
        let intervals = IntervalMarks::open(tables.columns, tables.names, left);
        let is_alone = matches!(delta, Delta::Alone(_));
        if !is_alone || !intervals.is_live() {
            trace.note_over();
        }
        Ok(Self {
            notes_bytes: AtomicBool::new(is_alone),
            notes: Arc::clone(kept.notes()),
            requests: DeltaRequests::default(),
            delta: Mutex::new(DeltaState {
                delta,
                kept,
                job: 0,
            }),
            intervals,
            trace,
        })
    }

    /// The store has noted that this is the opening `epoch`.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn opened(&self, epoch: u32) -> Result<(), StoreError> {
        self.state().kept.kept.opened(epoch);
        self.intervals.opened(epoch);
        self.trace.opened(epoch)
    }

    /// A secondary in sync begins to follow, in generation `base`. `applied`: its last operation.
    pub fn follow(&self, base: Generation, applied: Osn) {
        let mut state = self.state();
        // Marks of the intervals stay (P29).
        let rest = if matches!(state.delta, Delta::Alone(_)) {
            RestEnd::Lost
        } else {
            RestEnd::Contained
        };
        self.end_in(&mut state, rest);
        state.delta = Delta::Following(Following {
            base,
            applied: None,
            split: applied,
            older: Changes::default(),
            newer: Changes::default(),
        });
    }

    /// A primary has lost the connection with its secondary, with which it was in sync. `applied`: its last operation. Changes
    /// memory only.
    pub fn begin_alone(&self, base: Generation, applied: Osn) {
        let lead = Lead {
            led: base,
            base,
            applied,
        };
        self.requests
            .push(DeltaRequest::BeginAlone(lead), &self.notes_bytes);
    }

    /// This node leads in generation `led`, without the other node. A secondary goes on from the operations that it followed; a
    /// node that led in this generation before it was stopped goes on with its delta. A delta that does not know yet which
    /// operations the old primary has applied ends. After a loss of power of this node a delta begins that counts beside the marks of
    /// the other node.
    pub fn lead_alone(&self, led: Generation, has_lost_power: bool) {
        let mut state = self.state();
        match std::mem::take(&mut state.delta) {
            Delta::Alone(alone) if alone.lead.led == led => state.delta = Delta::Alone(alone),
            // Without this rest, no barrier is a base.
            Delta::Alone(_) => self.end_in(&mut state, RestEnd::Lost),
            _ if has_lost_power => self.begin_after_power_loss(&mut state, led),
            Delta::Following(following) => {
                self.end_in(&mut state, RestEnd::Contained);
                if let Some(applied) = following.applied {
                    let taken = Lead {
                        led,
                        base: following.base,
                        applied,
                    };
                    self.go_on_alone(&mut state, taken, following.changes());
                }
            }
            Delta::Off => self.end_in(&mut state, RestEnd::Contained),
        }
    }

    /// Begins a delta with changes. The table has them before it has a delta.
    fn go_on_alone(&self, state: &mut DeltaState, lead: Lead, changes: Changes) {
        let DeltaState { kept, .. } = state;
        let marks = &mut kept.kept;
        for (ino, regions) in &changes.content {
            for run in regions.iter() {
                marks.note_bytes(*ino, &run);
            }
        }
        if changes.all_content {
            marks.note_files_from(1);
        }
        let all = changes.all_records || !marks.note_keys(&changes.records);
        if all {
            marks.note_all_records();
        }
        kept.begun(lead);
        let records = ChangedRecords {
            keys: changes.records,
            all,
        };
        self.note_alone(
            state,
            Alone {
                records,
                ..Alone::of(lead)
            },
        );
    }

    /// The delta says nothing about the other copy any more, nor do the marks of mirrored intervals. Changes memory only.
    pub fn end(&self) {
        // At once, so that no thread takes a base meanwhile.
        self.intervals.lose_coverage();
        self.trace.note_over();
        self.requests
            .push(DeltaRequest::End(RestEnd::Lost), &self.notes_bytes);
    }

    /// The copies are equal again. Changes memory only.
    pub fn end_equal(&self) {
        self.requests
            .push(DeltaRequest::End(RestEnd::Equal), &self.notes_bytes);
    }

    /// No job of a resync that began before takes anything from the next delta.
    fn end_in(&self, state: &mut DeltaState, rest: RestEnd) {
        self.trace.note_over();
        match rest {
            RestEnd::Equal => self.keep_rest(state),
            RestEnd::Lost => self.intervals.lose_coverage(),
            RestEnd::Contained => {}
        }
        if self.intervals.is_stale() {
            // Before the rest goes: no process finds the columns without it.
            self.intervals.settle();
        }
        state.delta = Delta::Off;
        state.job += 1;
        state.kept.begin();
        self.publish(state);
    }

    fn note_alone(&self, state: &mut DeltaState, alone: Alone) {
        state.delta = Delta::Alone(alone);
        self.publish(state);
    }

    /// Puts the delta and the columns on stable storage, before the present opening of the store ends cleanly.
    pub fn close(&self, backing: &dyn Backing) -> Result<(), StoreError> {
        let mut state = self.state();
        state.kept.kept.close();
        self.intervals.close();
        sync_tables(backing)
    }
}

/// Barriers.
impl DeltaTracker {
    /// The marks of mirrored intervals, and the barriers.
    pub(crate) const fn barriers(&self) -> &IntervalMarks {
        &self.intervals
    }
}

/// Notes.
impl DeltaTracker {
    /// An operation is about to change records, and perhaps content.
    ///
    /// # Errors
    /// If the disk fails, or is full and cannot end a trace. Then the operation must not be applied.
    pub fn note_operation(&self, osn: Osn, plan: &Plan) -> Result<(), StoreError> {
        self.intervals.before_change()?;
        let mut state = self.state();
        if self.intervals.is_stale() {
            self.intervals.settle();
        }
        let DeltaState { delta, kept, .. } = &mut *state;
        match delta {
            Delta::Off => {}
            Delta::Following(following) => following.newer.note(osn, plan),
            Delta::Alone(alone) => {
                alone.note_keys(kept, replicated_keys(plan));
                if let Some((ino, bytes)) = changed_bytes(plan) {
                    kept.kept.note_bytes(ino, &bytes);
                }
            }
        }
        let is_alone = matches!(delta, Delta::Alone(_));
        if self.intervals.notes_changes(is_alone) {
            self.intervals.mark(|column| column.note_plan(plan));
        }
        // Under the lock: a trace that begins has the keys, or they are owed to the trace.
        self.trace.before_operation(plan, is_alone)
    }

    /// Adds bytes that may differ. A node that is not alone notes none.
    pub fn add_bytes(&self, ino: Ino, bytes: &Range<u64>) {
        let mut state = self.state();
        if let Delta::Alone(_) = &state.delta {
            state.kept.kept.note_bytes(ino, bytes);
        }
    }

    /// The primary has done every operation below `below`. Operations that it has applied need no delta.
    pub fn note_done_below(&self, below: Osn) {
        let mut state = self.state();
        if let Delta::Following(following) = &mut state.delta
            && below > following.split
        {
            following.applied = Some(following.split);
            following.older = std::mem::take(&mut following.newer);
            if let Some(last) = following.older.last {
                following.split = following.split.max(last);
            }
        }
    }
}

impl Alone {
    /// Notes keys in the table and in memory.
    fn note_keys<'a>(&mut self, kept: &mut KeptDelta, keys: impl Iterator<Item = &'a Vec<u8>>) {
        if self.records.all {
            return;
        }
        let records = &self.records.keys;
        let new: Vec<&Vec<u8>> = keys.filter(|key| !records.contains(*key)).collect();
        let unsent = new.iter().copied();
        let unsent = unsent.filter(|key| !self.resync.has_sent(key));
        self.records.all = !kept.kept.note_keys(unsent);
        self.records.keys.extend(new.into_iter().cloned());
        if self.records.limit() {
            kept.kept.note_all_records();
        }
    }
}

/// Of a node that is alone, every change of bytes; of one that mirrors, too, in the open column. The bytes of a metadata operation
/// are noted with its records as well: a follower has to tell the operations apart. Bytes that are noted already need no lock of
/// the delta.
impl ByteObserver for DeltaTracker {
    fn before_change(
        &self,
        change: &ByteChange<'_>,
        _: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        let is_forgotten =
            matches!(change.edit, ByteEdit::Write { .. }) && is_active(Mutant::DeltaForgetsWrites);
        self.intervals.before_change()?;
        let bytes = change.edit.range();
        let is_alone = self.note_change(change.ino, &bytes, !is_forgotten);
        self.trace.before_change(change.ino, &bytes, is_alone)
    }
}

impl DeltaTracker {
    /// Notes bytes that are about to change. `in_rest`: also in the rest of a node that is alone. Returns whether this node is alone.
    fn note_change(&self, ino: Ino, bytes: &Range<u64>, in_rest: bool) -> bool {
        if self.intervals.is_stale() {
            self.settle();
        }
        let is_alone = self.notes_bytes.load(Ordering::Acquire);
        if is_alone && in_rest && (self.requests.are_waiting() || !self.notes.cover(ino, bytes)) {
            self.add_bytes(ino, bytes);
        }
        // After the rest: a rest that goes into the column meanwhile has the bytes.
        if self.intervals.notes_changes(is_alone) {
            self.intervals.mark_bytes(ino, bytes);
        }
        is_alone
    }
}

/// Questions.
impl DeltaTracker {
    /// The changed records, if the delta says how a copy differs that was equal in generation `base` and has `applied` now.
    pub fn records(&self, base: Generation, applied: Osn) -> Option<ChangedRecords> {
        let mut state = self.state();
        let alone = alone_since(&mut state.delta, base, applied)?;
        Some(alone.resync.with_sent(&alone.records))
    }
}

/// The questions of a resync since a barrier.
impl DeltaTracker {
    /// The changed records, whether the other copy has the namespace of the resync or not; `None` without a delta.
    pub fn adopted_records(&self) -> Option<ChangedRecords> {
        match &self.state().delta {
            Delta::Alone(alone) => Some(alone.resync.with_sent(&alone.records)),
            Delta::Off | Delta::Following(_) => None,
        }
    }
}

/// The delta, if it says how a copy differs that was equal in generation `base` and has `applied` now.
fn alone_since(delta: &mut Delta, base: Generation, applied: Osn) -> Option<&mut Alone> {
    let Delta::Alone(alone) = delta else {
        return None;
    };
    let is_since = alone.lead.base == base && alone.lead.applied <= applied;
    (is_since && alone.resync.has_namespace()).then_some(alone)
}

/// The jobs of a resync.
impl DeltaTracker {
    /// A resync begins to send the namespace. `whole`: the copies may differ in anything, and a delta from before says
    /// nothing.
    pub fn begin_image(&self, whole: bool) -> DeltaJob {
        let mut state = self.state();
        if whole {
            self.end_in(&mut state, RestEnd::Lost);
        }
        begin_job(&mut state)
    }

    /// No metadata operation is under way, and every record that may differ is about to be sent. `whole`: the generation of a
    /// resync of everything. From here on its delta notes what changes; `applied`: the last operation.
    pub fn image_held(&self, job: DeltaJob, whole: Option<Generation>, applied: Osn) {
        let mut state = self.state();
        if job.0 != state.job {
            return;
        }
        if let Some(base) = whole {
            let lead = Lead {
                led: base,
                base,
                applied,
            };
            // The next one names everything.
            self.end_in(&mut state, RestEnd::Contained);
            state.kept.begun_whole(lead);
            let alone = Alone {
                resync: ResyncPart::of_everything(),
                ..Alone::of(lead)
            };
            self.note_alone(&mut state, alone);
            // It is the same job still.
            state.job = job.0;
        } else if let Delta::Alone(alone) = &mut state.delta {
            let records = std::mem::take(&mut alone.records);
            alone.resync.send(records);
        }
    }

    /// The secondary has every record that was sent before.
    pub fn image_arrived(&self, job: DeltaJob) {
        self.with_job(job, |alone, kept| {
            self.intervals.keep_records(alone.resync.sent());
            alone.resync.arrived();
            kept.arrived();
        });
    }

    /// A resync begins to make the content equal of a copy that was equal in generation `base` and has `applied` now; `None`
    /// if the delta does not say how it differs.
    pub fn begin_walk(&self, base: Generation, applied: Osn) -> Option<DeltaWalk> {
        let mut state = self.state();
        let job = begin_job(&mut state);
        let DeltaState { delta, kept, .. } = &mut *state;
        let alone = alone_since(delta, base, applied)?;
        let (noted, noted_from) = kept.open_noted();
        let records = alone.resync.with_sent(&alone.records);
        alone.resync.open(noted, noted_from);
        alone.resync.open_files_of(&records);
        Some(alone.resync.begin_walk(job))
    }

    /// The walk of a resync has gone on.
    pub fn walked(&self, job: DeltaJob, progress: WalkProgress<'_>) {
        self.with_job(job, |alone, kept| match progress {
            WalkProgress::Begun { files, rest } => {
                kept.files_begun(files, Some(rest.next));
                alone.resync.files_begun(files, rest);
            }
            WalkProgress::Equal { ino, bytes } => {
                self.intervals.keep_bytes(ino, bytes);
                if let Some(left) = alone.resync.compared(ino, bytes) {
                    kept.set_open(ino, bytes, left);
                }
            }
            WalkProgress::Done(ino) => {
                for run in alone.resync.open_of(ino) {
                    self.intervals.keep_bytes(ino, &run);
                }
                alone.resync.file_done(ino);
                kept.set_open(ino, &(0..u64::MAX), &ChangedRegions::default());
            }
        });
    }

    fn with_job(&self, job: DeltaJob, change: impl FnOnce(&mut Alone, &mut KeptDelta)) {
        let mut state = self.state();
        if job.0 != state.job {
            return;
        }
        let DeltaState { delta, kept, .. } = &mut *state;
        if let Delta::Alone(alone) = delta {
            change(alone, kept);
        }
    }
}

fn begin_job(state: &mut DeltaState) -> DeltaJob {
    state.job += 1;
    DeltaJob(state.job)
}
