//! The marks of one change reader: two columns, one of which gets the changes of this moment.
//!
//! | moment | column that is open | other column |
//! |---|---|---|
//! | confirmed up to N | changes since N | empty |
//! | asked at M | changes since M | changes from N to M |
//! | asked again at M2 | changes since M2 | changes from N to M2: the marks of the open one are added, then it is emptied |
//! | confirmed up to M | changes since M | empty |
//!
//! Invariants:
//! - A change is marked in the open column before it is made.
//! - A column is emptied only after its marks are in the other one, or after the reader has confirmed their point. The header of the
//!   first table says so before: a process that is killed in between leaves more marks than needed, and no fewer.
//!
//! Locks, in this order: the state, the first column, the second column. A mark that is there already takes the lock of one stripe
//! only ([`super::super::region_marks`]).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::{Mutex, MutexGuard};

use super::super::region_marks::RegionNotes;
use super::super::table::MarkTable;
use super::column::{ReaderColumn, ReaderWords};
use super::point::ChangePoint;

/// See the head of this file.
pub(super) struct ChangeReader {
    registration: u64,
    state: Mutex<ReaderPoints>,
    columns: [Mutex<ReaderColumn>; 2],
    /// The marks in memory of either column.
    notes: [Arc<RegionNotes>; 2],
    /// The column of the changes of this moment.
    open: AtomicUsize,
}

/// The points of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReaderPoints {
    /// The confirmed one.
    pub since: Option<ChangePoint>,
    /// The one of the last question, which is not confirmed.
    pub turned: Option<ChangePoint>,
}

/// The tables of a reader, as columns.
pub(super) type ReaderColumns = [ReaderColumn; 2];

/// Begin and end.
impl ChangeReader {
    /// The reader of a registration, as the last process has left it; `None` if its marks do not count.
    pub fn left(registration: u64, tables: [MarkTable; 2]) -> Option<Self> {
        let columns = tables.map(ReaderColumn::open);
        let [first, second] = columns.each_ref().map(ReaderColumn::words);
        let (words, other) = (first?, second?);
        if words.registration != registration || other.registration != registration {
            return None;
        }
        let points = ReaderPoints {
            since: words.since,
            turned: words.turned,
        };
        let reader = Self::of(registration, columns, points, usize::from(words.open % 2));
        if points.turned.is_none() {
            // A process was killed before it had emptied the column.
            reader.older().clear();
        }
        Some(reader)
    }

    /// A reader without marks, which has asked at `turned` for the first time. The tables may be those of an earlier one.
    pub fn register(
        registration: u64,
        tables: [MarkTable; 2],
        epoch: u32,
        turned: ChangePoint,
    ) -> Self {
        let mut columns = tables.map(ReaderColumn::open);
        for column in &mut columns {
            column.reset();
            column.opened(epoch);
        }
        let points = ReaderPoints {
            since: None,
            turned: Some(turned),
        };
        let reader = Self::of(registration, columns, points, 1);
        let words = ReaderWords {
            registration,
            since: None,
            turned: None,
            open: 0,
        };
        let [_, second] = &reader.columns;
        second.lock().set_words(words);
        reader.note_points(points, 1);
        reader
    }

    fn of(registration: u64, columns: ReaderColumns, points: ReaderPoints, open: usize) -> Self {
        let notes = columns.each_ref().map(|column| Arc::clone(column.notes()));
        Self {
            registration,
            state: Mutex::new(points),
            columns: columns.map(Mutex::new),
            notes,
            open: AtomicUsize::new(open),
        }
    }

    /// The store has noted that this is the opening `epoch`.
    pub fn opened(&self, epoch: u32) {
        for column in &self.columns {
            column.lock().opened(epoch);
        }
    }

    /// The opening ends, and the tables are about to be put on stable storage.
    pub fn close(&self) {
        for column in &self.columns {
            column.lock().close();
        }
    }
}

/// Marks.
impl ChangeReader {
    fn column(&self, number: usize) -> MutexGuard<'_, ReaderColumn> {
        let [first, second] = &self.columns;
        if number == 0 { first } else { second }.lock()
    }

    /// The column of the answer.
    pub fn older(&self) -> MutexGuard<'_, ReaderColumn> {
        self.column(1 - self.open.load(Ordering::SeqCst))
    }

    /// Has `note` note something in the open column.
    fn mark(&self, note: impl Fn(&mut ReaderColumn)) {
        loop {
            let open = self.open.load(Ordering::SeqCst);
            let mut column = self.column(open);
            // Another column may have been opened before this thread had the lock.
            if self.open.load(Ordering::SeqCst) == open {
                return note(&mut column);
            }
        }
    }

    /// Marks bytes that are about to change.
    pub fn mark_bytes(&self, ino: Ino, bytes: &Range<u64>) {
        let notes = self.notes.get(self.open.load(Ordering::SeqCst));
        if notes.is_none_or(|notes| !notes.cover(ino, bytes)) {
            self.mark(|column| column.note_bytes(ino, bytes));
        }
    }

    /// Marks keys of records that are about to change.
    pub fn mark_keys(&self, keys: &[&Vec<u8>]) {
        if !is_active(Mutant::ReaderForgetsKeys) {
            self.mark(|column| column.note_keys(keys.iter().copied()));
        }
    }
}

/// Questions. The caller keeps other questions away.
impl ChangeReader {
    pub fn points(&self) -> ReaderPoints {
        *self.state.lock()
    }

    fn note_points(&self, points: ReaderPoints, open: usize) {
        self.column(0).set_words(self.words(points, open));
    }

    fn words(&self, points: ReaderPoints, open: usize) -> ReaderWords {
        ReaderWords {
            registration: self.registration,
            since: points.since,
            turned: points.turned,
            open: u8::from(open == 1),
        }
    }

    /// The reader asks: changes from now on are not in its answer.
    pub fn turn(&self, turned: ChangePoint) {
        let mut state = self.state.lock();
        let points = ReaderPoints {
            turned: Some(turned),
            ..*state
        };
        let open = self.open.load(Ordering::SeqCst);
        if state.turned.is_some() {
            self.move_open_marks(&self.words(points, open), open);
        } else {
            let open = 1 - open;
            self.note_points(points, open);
            self.open.store(open, Ordering::SeqCst);
        }
        *state = points;
    }

    /// The answer before was not confirmed: its changes, and those since, are in the next answer.
    fn move_open_marks(&self, words: &ReaderWords, open: usize) {
        let [first, second] = &self.columns;
        let (mut first, mut second) = (first.lock(), second.lock());
        if open == 0 {
            second.take_from(&first);
        } else {
            first.take_from(&second);
        }
        // Before the open column is emptied: the point of the answer before counts no more.
        first.set_words(words.clone());
        if open == 0 {
            first.clear();
        } else {
            second.clear();
        }
    }

    /// The reader has everything up to `point`. Returns false, and changes nothing, if `point` is neither that of its last question
    /// nor the one that it has confirmed before.
    pub fn confirm(&self, point: ChangePoint) -> bool {
        let mut state = self.state.lock();
        if state.turned != Some(point) {
            return state.since == Some(point) || is_active(Mutant::ReaderTrustsAnyPoint);
        }
        let points = ReaderPoints {
            since: Some(point),
            turned: None,
        };
        self.note_points(points, self.open.load(Ordering::SeqCst));
        self.older().clear();
        if is_active(Mutant::ReaderTurnDropsMarks) {
            self.column(self.open.load(Ordering::SeqCst)).clear();
        }
        *state = points;
        true
    }
}
