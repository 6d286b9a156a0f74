//! The marks of the mirrored intervals: the places that the secondary may lose with its power, since the barriers that both nodes know
//! (rules P27 and P29, as far as they are in force).
//!
//! [`IntervalMarks`] owns the barriers' machine, the two columns of marks in their tables, the coverage and the names. While the
//! coverage lasts, each change of this primary is noted in the open column, or in the rest ([`delta`](super)), or in both. The rest
//! goes into the open column before it is dropped ([`super::rest`]).
//!
//! Invariants:
//! - A mark is in the table before the operation is sent, in the interval that is open when the mark is made. The operation was
//!   numbered before, so its own interval is that one or an earlier one, and its column is not dropped before it is over.
//! - The header of a column names the youngest interval before the column has a mark of it, and less coverage before marks go.
//! - A column that the machine has given free is emptied before the next mark is made in it ([`PendingClears`]), under the lock of the
//!   tables: by the thread that marks, or by the barrier's worker, if the worker comes first. Until then no thread takes an old mark
//!   for one of the open interval: the holder of that lock says which column the open interval has (`marked`), once the column is
//!   empty.
//! - Coverage that is lost is gone in memory at once. Its headers are void before the next change of the store: the thread that
//!   changes settles the tables first. So no process that starts counts marks that lack a change.
//! - The machine's lock is never held across a call of a table or a disk, so a disk that hangs stops no status.
//!
//! Locks, in this order: the delta, the tables of the columns, the machine. A mark in a part that the open column has already takes
//! none of them, but the lock of one stripe ([`super::region_marks`]).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lockstep_delta::{
    BarrierEffect, BarrierEvent, BarrierMachine, BarrierName, BarrierNames, Column, Interval,
    MarkAccount, MarkColumns, MarkCoverage,
};
use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use super::barrier_file::{BarrierFile, LeftNames, NameStanding};
use super::kept_column::{ColumnWords, KeptColumn};
use super::region_marks::RegionNotes;
use super::rest_copy::NextNames;
use super::resync_part::ChangedRecords;
use super::table::MarkTable;
use super::trace_file::TracedIntervals;
use crate::error::StoreError;

/// The open interval has no column whose marks count without a look at the machine.
const NO_COLUMN: usize = usize::MAX;

/// The barriers of this node, in memory.
struct IntervalState {
    machine: BarrierMachine,
    coverage: MarkCoverage,
    /// The interval before the first covered one; `None` without coverage.
    live_after: Option<Interval>,
    /// How often coverage was lost.
    losses: u64,
    /// The names on stable storage. Hidden: this node has served alone since its last barrier, or is about to.
    standing: NameStanding,
}

/// The marks that the last process has left beside the columns.
#[derive(Clone, Copy)]
pub(super) struct LeftColumns {
    /// Nothing of the rest of the last process is lost.
    pub has_rest: bool,
    /// The columns are lost, and the rest has their marks by the trace (rule P28).
    pub traced: Option<TracedIntervals>,
}

/// The columns that are to be emptied before their next mark.
#[derive(Default)]
struct PendingClears([AtomicBool; 2]);

/// See the head of this file.
pub(crate) struct IntervalMarks {
    state: Mutex<IntervalState>,
    tables: Mutex<[KeptColumn; 2]>,
    names: BarrierFile,
    /// The marks in memory of either column.
    notes: [Arc<RegionNotes>; 2],
    /// The column of the open interval, once it has the interval in its header and is free of older marks.
    marked: AtomicUsize,
    /// There is coverage.
    is_live: AtomicBool,
    /// Odd while every change is noted in the open column, also those of a node with a rest. Changes with each begin and end.
    mirroring: AtomicU64,
    pending: PendingClears,
    /// Coverage was lost, and the headers do not say so yet.
    is_stale: AtomicBool,
    pub next_names: NextNames,
    /// The used part of the fuller table, in thousandths.
    fill: AtomicU32,
}

const fn index_of(column: Column) -> usize {
    match column {
        Column::First => 0,
        Column::Second => 1,
    }
}

fn pick<T>(columns: &mut [T; 2], column: Column) -> &mut T {
    let [first, second] = columns;
    match column {
        Column::First => first,
        Column::Second => second,
    }
}

impl PendingClears {
    fn of(&self, column: Column) -> &AtomicBool {
        let [first, second] = &self.0;
        match column {
            Column::First => first,
            Column::Second => second,
        }
    }

    fn note(&self, column: Column) {
        self.of(column).store(true, Ordering::Release);
    }

    fn take(&self, column: Column) -> bool {
        self.of(column).swap(false, Ordering::AcqRel)
    }

    fn has(&self, column: Column) -> bool {
        self.of(column).load(Ordering::Acquire)
    }
}

impl IntervalState {
    fn of(names: BarrierNames, columns: MarkColumns, live_after: Option<Interval>) -> Self {
        Self {
            machine: BarrierMachine::of_process(names, columns),
            coverage: live_after.map_or(MarkCoverage::after_power_loss(None), MarkCoverage::since),
            live_after,
            losses: 0,
            standing: NameStanding::Plain,
        }
    }

    fn is_hidden(&self) -> bool {
        self.standing == NameStanding::Hidden
    }

    /// The words that the header of a column is to have.
    fn words(&self, column: Column) -> Option<ColumnWords> {
        let youngest = self.machine.columns().youngest(column);
        self.live_after.map(|after| ColumnWords {
            youngest: youngest.map(Interval::get),
            live_after: after.get(),
        })
    }

    fn known_youngest(&self) -> Interval {
        let known = self.machine.known().map(|name| name.through);
        known.fold(Interval::ZERO, Ord::max)
    }

    /// Coverage begins, unless it lasts: after each barrier that any node may know by name, since no mark counts for those.
    fn begin_coverage(&mut self, from: Interval) -> Interval {
        if self.live_after.is_some() {
            return from;
        }
        let after = Interval::new(from.get().saturating_sub(1));
        let after = after.max(self.known_youngest().next());
        self.live_after = Some(after);
        self.coverage = MarkCoverage::since(after);
        after.next()
    }
}

/// Begin and end.
impl IntervalMarks {
    /// The columns in these tables, as the last process has left them.
    pub(super) fn open(
        tables: [MarkTable; 2],
        file: (BarrierFile, LeftNames),
        beside: LeftColumns,
    ) -> Self {
        let [first, second] = tables.map(KeptColumn::open);
        let words = [&first, &second].map(|column| column.words().cloned());
        let notes = [&first, &second].map(|column| Arc::clone(column.notes()));
        let (live_after, columns) = match (words, beside.traced) {
            (_, Some(traced)) => {
                // No later interval gets a lower number than the open one.
                let columns = MarkColumns::left(Some(traced.open), None);
                (Some(traced.live_after), columns)
            }
            ([Some(first), Some(second)], None) if beside.has_rest => {
                let of = |words: &ColumnWords| words.youngest.map(Interval::new);
                let after = Interval::new(first.live_after.max(second.live_after));
                (Some(after), MarkColumns::left(of(&first), of(&second)))
            }
            _ => (None, MarkColumns::default()),
        };
        let (names, left) = file;
        let known = left.that_count(live_after.is_some());
        if known != left.names {
            // A name that is left there counts only with the coverage of a later process, which begins above that name.
            let _left = names.lock().forget().is_err();
        }
        let marks = Self {
            state: Mutex::new(IntervalState {
                standing: left.standing,
                ..IntervalState::of(known, columns, live_after)
            }),
            tables: Mutex::new([first, second]),
            names,
            notes,
            marked: AtomicUsize::new(NO_COLUMN),
            is_live: AtomicBool::new(live_after.is_some()),
            mirroring: AtomicU64::new(0),
            pending: PendingClears::default(),
            is_stale: AtomicBool::new(false),
            next_names: NextNames::default(),
            fill: AtomicU32::new(0),
        };
        if live_after.is_none() {
            marks.lose_coverage();
        }
        if beside.traced.is_some() || live_after.is_none() {
            // The columns that were left say less, or nothing.
            for column in Column::BOTH {
                marks.pending.note(column);
            }
            marks.settle();
        }
        marks
    }

    /// Some change may be in no column and in no rest from now on, or the columns are not about the other copy any more. Changes
    /// memory only: [`Self::settle`] tells the tables.
    pub fn lose_coverage(&self) {
        let mut state = self.state.lock();
        state.losses += 1;
        state.live_after = None;
        state.coverage = MarkCoverage::after_power_loss(None);
        state.machine.forget_marks();
        for column in Column::BOTH {
            self.pending.note(column);
        }
        self.marked.store(NO_COLUMN, Ordering::Release);
        // A thread that finds no coverage finds the tables stale.
        self.is_stale.store(true, Ordering::Release);
        self.is_live.store(false, Ordering::Release);
    }

    /// Brings the tables up to the memory.
    pub fn settle(&self) {
        self.settle_in(&mut self.tables.lock());
    }

    /// Whether the tables must be settled before the next change.
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Acquire)
    }

    /// Gives the headers the words of this moment, and empties the columns that are over.
    fn settle_in(&self, tables: &mut [KeptColumn; 2]) {
        loop {
            // Taken before the words are read: a drop takes coverage first, and so the words lack the intervals of these columns.
            let cleared = Column::BOTH.map(|column| self.pending.take(column));
            let is_stale = self.is_stale();
            let (words, losses) = {
                let state = self.state.lock();
                let words = Column::BOTH.map(|column| state.words(column));
                (words, state.losses)
            };
            if is_stale {
                tables.iter_mut().for_each(KeptColumn::void);
            }
            for (kept, words) in tables.iter_mut().zip(words) {
                match words {
                    Some(words) => kept.set_words(words),
                    None => kept.void(),
                }
            }
            for (kept, is_cleared) in tables.iter_mut().zip(cleared) {
                if is_cleared {
                    kept.clear();
                }
            }
            let state = self.state.lock();
            if state.losses == losses {
                self.is_stale.store(false, Ordering::Release);
                return;
            }
        }
    }

    /// The store has noted that this is the opening `epoch`.
    pub fn opened(&self, epoch: u32) {
        let mut tables = self.tables.lock();
        tables.iter_mut().for_each(|column| column.opened(epoch));
    }

    /// The opening ends, and the tables are about to be put on stable storage.
    pub fn close(&self) {
        let mut tables = self.tables.lock();
        self.settle_in(&mut tables);
        tables.iter_mut().for_each(KeptColumn::close);
    }
}

/// Marks.
impl IntervalMarks {
    /// Whether there is coverage.
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire)
    }

    /// Counts the begins and ends of mirroring. Odd: every change is noted in the open column.
    pub fn mirroring(&self) -> u64 {
        self.mirroring.load(Ordering::Acquire)
    }

    /// Whether a change is to be noted in the open column, of a node that notes the change in its rest as well or not.
    pub fn notes_changes(&self, is_alone: bool) -> bool {
        self.is_live() && (!is_alone || self.mirroring() % 2 == 1)
    }

    /// Whether every change is noted in the open column from now on.
    pub fn set_mirroring(&self, mirrors: bool) {
        let wanted = u64::from(mirrors);
        let step = |count: u64| (count % 2 != wanted).then_some(count + 1);
        // An error says that nothing changes.
        let _unchanged = self
            .mirroring
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
    }

    /// Marks bytes in the open interval.
    pub fn mark_bytes(&self, ino: Ino, bytes: &Range<u64>) {
        if !self.is_live() {
            return;
        }
        let marked = self.notes.get(self.marked.load(Ordering::Acquire));
        if marked.is_none_or(|notes| !notes.cover(ino, bytes)) {
            self.mark(|column| column.note_bytes(ino, bytes));
        }
    }

    /// Has `note` mark something in the column of the open interval.
    pub(super) fn mark(&self, note: impl FnOnce(&mut KeptColumn)) {
        let mut tables = self.tables.lock();
        let (interval, column) = {
            let mut state = self.state.lock();
            if state.live_after.is_none() {
                return;
            }
            let interval = state.machine.open();
            (interval, state.machine.mark(interval))
        };
        self.settle_in(&mut tables);
        let kept = pick(&mut tables, column);
        note(kept);
        self.fill.fetch_max(kept.fill(), Ordering::Relaxed);
        let state = self.state.lock();
        let (machine, is_clear) = (&state.machine, !self.pending.has(column));
        if is_clear
            && machine.open() == interval
            && machine.columns().youngest(column) == Some(interval)
        {
            self.marked.store(index_of(column), Ordering::Release);
        }
    }
}

/// The rest of a node that is alone.
impl IntervalMarks {
    /// The present time of mirroring, and the open interval; `None` while a change of a node with a rest is in the rest only.
    pub fn present(&self) -> Option<(u64, Interval)> {
        let open = || (self.mirroring(), self.machine(BarrierMachine::open));
        self.notes_changes(true).then(open)
    }

    /// A resync has made bytes equal, which leave the rest.
    pub fn keep_bytes(&self, ino: Ino, bytes: &Range<u64>) {
        if !is_active(Mutant::ColumnsLackRest) {
            self.mark_bytes(ino, bytes);
        }
    }

    /// The other copy has these records, which leave the rest.
    pub fn keep_records(&self, records: &ChangedRecords) {
        if self.is_live() && !is_active(Mutant::ColumnsLackRest) {
            self.mark(|column| column.note_records(records));
        }
    }
}

/// Barriers.
impl IntervalMarks {
    /// Takes an event of the barriers. Changes memory only.
    pub fn handle(&self, event: BarrierEvent) -> Vec<BarrierEffect> {
        let mut state = self.state.lock();
        let open = state.machine.open();
        let event = match event {
            BarrierEvent::MirroringBegun { from } => BarrierEvent::MirroringBegun {
                from: state.begin_coverage(from),
            },
            // Writes of the open interval may be under way, and the marks of them lost. The barrier of that interval waits for them,
            // so that interval is the first base.
            BarrierEvent::Turned { to }
                if state.live_after.is_none() && !state.machine.mirrors() =>
            {
                let from = to.max(open).next();
                BarrierEvent::Turned {
                    to: state.begin_coverage(from),
                }
            }
            _ => event,
        };
        let effects = state.machine.handle(event);
        for effect in &effects {
            if let BarrierEffect::Drop {
                through, columns, ..
            } = effect
            {
                self.note_drop(&mut state, *through, columns);
            }
        }
        if state.machine.open() != open {
            self.marked.store(NO_COLUMN, Ordering::Release);
        }
        // After the interval of the coverage is open: no mark of it is made in an earlier one.
        self.is_live
            .store(state.live_after.is_some(), Ordering::Release);
        match event {
            BarrierEvent::MirroringBegun { .. } => self.set_mirroring(true),
            BarrierEvent::MirroringEnded => self.set_mirroring(false),
            BarrierEvent::FollowingBegun { .. } => {
                self.set_mirroring(false);
                // A secondary changes nothing alone.
                self.next_names.set_hiding(false);
            }
            _ => {}
        }
        effects
    }

    fn note_drop(&self, state: &mut IntervalState, through: Interval, columns: &[Column]) {
        state.live_after = state.live_after.map(|after| after.max(through));
        state.coverage.drop_through(through);
        let columns = if is_active(Mutant::BarrierDropsNewMarks) {
            &Column::BOTH
        } else {
            columns
        };
        for column in columns {
            self.pending.note(*column);
        }
    }

    /// Empties the columns of a complete barrier, unless a thread that marks has done so.
    pub fn drop_columns(&self) {
        let mut tables = self.tables.lock();
        self.settle_in(&mut tables);
        let fill = tables.iter().map(KeptColumn::fill).max();
        self.fill.store(fill.unwrap_or(0), Ordering::Relaxed);
    }

    /// The process goes on in another session: the operations and the barrier under way are gone.
    pub fn restarted(&self) {
        let mut state = self.state.lock();
        let names = state.machine.names();
        state.machine = state.machine.clone().restarted(names);
        self.set_mirroring(false);
    }

    /// Asks the machine. Changes nothing.
    pub fn machine<T>(&self, ask: impl FnOnce(&BarrierMachine) -> T) -> T {
        ask(&self.state.lock().machine)
    }

    /// The used part of the fuller table, in thousandths.
    pub fn fill(&self) -> u32 {
        self.fill.load(Ordering::Relaxed)
    }
}

/// Names on stable storage.
impl IntervalMarks {
    /// Notes the names of a sync that is over. Returns false, and notes nothing, if the sync is not the machine's any more.
    pub fn note_names(&self, names: BarrierNames) -> Result<bool, StoreError> {
        let file = self.names.lock();
        if self.machine(BarrierMachine::syncing) != Some(names) {
            return Ok(false);
        }
        let standing = file.write_reached(names, self.next_names.take_copy())?;
        self.state.lock().standing = standing;
        Ok(true)
    }

    /// Hides the names, if that must be before a change.
    pub fn before_change(&self) -> Result<(), StoreError> {
        if !self.next_names.must_hide() {
            return Ok(());
        }
        let hidden = self.hide_names();
        hidden.inspect_err(|error| self.names.poison(error))
    }

    /// Notes that the last barrier is complete, before its marks are dropped ([`Self::drop_columns`]).
    pub fn note_complete(&self) -> Result<(), StoreError> {
        let file = self.names.lock();
        let (names, is_hidden) = {
            let mut state = self.state.lock();
            (state.machine.take_complete(), state.is_hidden())
        };
        match names {
            Some(names) if is_hidden => file.hide(names),
            Some(names) => file.write(names),
            None => Ok(()),
        }
    }

    /// The names count only with the coverage from now on, as this node is about to serve alone. The barrier under way ends.
    pub fn hide_names(&self) -> Result<(), StoreError> {
        let file = self.names.lock();
        let names = {
            let mut state = self.state.lock();
            state.machine.end_attempt();
            state.standing = NameStanding::Hidden;
            state.machine.names()
        };
        file.hide(names)?;
        self.next_names.set_hiding(false);
        Ok(())
    }

    /// Whether this node has served alone since its last barrier, or is about to.
    pub fn are_hidden(&self) -> bool {
        self.state.lock().is_hidden()
    }

    /// The names count after a loss of power again: the source of a resync has the marks of all changes that this node has made alone.
    pub fn reveal_names(&self) -> Result<(), StoreError> {
        let file = self.names.lock();
        let names = self.machine(BarrierMachine::names);
        let standing = file.write_reached(names, None)?;
        self.state.lock().standing = standing;
        Ok(())
    }

    /// Removes the names from stable storage, and drops all marks and the coverage.
    pub fn forget(&self) -> Result<(), StoreError> {
        self.lose_coverage();
        self.settle();
        let file = self.names.lock();
        file.forget()?;
        let mut state = self.state.lock();
        state.machine.forget_names();
        state.standing = NameStanding::Plain;
        self.next_names.set_hiding(false);
        Ok(())
    }
}

/// The base of a resync.
impl IntervalMarks {
    /// The account of this node. `has_rest`: the delta has each change that the columns lack.
    pub(super) fn account(&self, has_rest: bool) -> MarkAccount {
        let state = self.state.lock();
        let knows_changes = !state.is_hidden() || state.live_after.is_some() || has_rest;
        let known = state.machine.known().filter(|_| knows_changes);
        MarkAccount {
            known: known.collect(),
            covered_after: state.live_after,
            // The rest of the source of a resync is its own, too.
            served_alone: state.standing != NameStanding::Plain,
        }
    }

    /// Calls `take` with each column that may have marks after a barrier.
    pub(super) fn each_after(&self, name: BarrierName, mut take: impl FnMut(&KeptColumn)) {
        let mut tables = self.tables.lock();
        // A column that a barrier has dropped has no marks after it.
        self.settle_in(&mut tables);
        let mut after: Vec<(Option<Interval>, Column)> = {
            let state = self.state.lock();
            let columns = state.machine.columns();
            let after = columns.after(name.through);
            after.map(|it| (columns.youngest(it), it)).collect()
        };
        after.sort_unstable_by_key(|(youngest, _)| *youngest);
        if is_active(Mutant::AdoptForgetsColumn) {
            after = after.pop().into_iter().collect();
        }
        for (_, column) in after {
            take(pick(&mut tables, column));
        }
    }
}
