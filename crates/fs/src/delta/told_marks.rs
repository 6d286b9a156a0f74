//! The marks of the other node: those that this node tells the source of a resync, and those that this node is told as the source
//! (rule P29).
//!
//! Invariants:
//! - A node tells its barriers only if its marks and its rest have each change since then, or if it has changed nothing alone. A loss of
//!   power is no change: the other node has the marks of these places.
//! - The marks of the other node are in the rest of the source before the other copy takes anything.

use lockstep_delta::{BarrierName, MarkAccount, MarkPage, ResyncBase};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, Ino, Osn};

use super::kept::{KeptDelta, Lead};
use super::requests::RestEnd;
use super::resync_part::ChangedRecords;
use super::{Alone, Delta, DeltaState, DeltaTracker};

/// Most marks of bytes, and most keys, that a node tells; more become "all content" and "all records".
const TOLD_MAX: usize = MarkPage::MARKS_MAX * MarkPage::PAGES_MAX / 2;

/// All marks of a node since a barrier.
#[derive(Default)]
struct ToldMarks {
    files_from: Option<u64>,
    bytes: Vec<(u64, u64, u64)>,
    records: ChangedRecords,
}

impl ToldMarks {
    fn note_files_from(&mut self, number: Option<u64>) {
        self.files_from = self.files_from.into_iter().chain(number).min();
    }

    fn note_records(&mut self, records: &ChangedRecords) {
        self.records.all |= records.all;
        self.records.keys.extend(records.keys.iter().cloned());
    }

    /// The page behind as many marks, which were told before.
    fn page(mut self, told: u64) -> MarkPage {
        if self.bytes.len() > TOLD_MAX {
            self.files_from = Some(1);
            self.bytes.clear();
        }
        if self.records.all || self.records.keys.len() > TOLD_MAX {
            self.records = ChangedRecords::any();
        }
        let skipped = usize::try_from(told).unwrap_or(usize::MAX);
        let mut page = MarkPage {
            files_from: self.files_from,
            all_records: self.records.all,
            ..MarkPage::default()
        };
        let of_bytes = self.bytes.len();
        let bytes = self.bytes.into_iter().skip(skipped);
        page.bytes = bytes.take(MarkPage::MARKS_MAX).collect();
        let left = MarkPage::MARKS_MAX - page.bytes.len();
        let keys = self.records.keys;
        let all = of_bytes + keys.len();
        let keys = keys.into_iter().skip(skipped.saturating_sub(of_bytes));
        page.keys = keys.take(left).collect();
        let end = skipped.saturating_add(page.bytes.len() + page.keys.len());
        page.next = u64::try_from(end).ok().filter(|_| end < all);
        page
    }
}

/// As the secondary.
impl DeltaTracker {
    /// The barriers and the marks of this node, for the greeting.
    pub fn account(&self) -> MarkAccount {
        let has_rest = matches!(self.state().delta, Delta::Alone(_));
        self.intervals.account(has_rest)
    }

    /// The marks of this node in each interval after a barrier, and its rest: the page behind `told` marks. Nothing changes between two
    /// pages, since a resync has not begun.
    pub fn tell_marks(&self, since: BarrierName, told: u64) -> MarkPage {
        let state = self.state();
        let mut marks = ToldMarks::default();
        self.intervals.each_after(since, |column| {
            column.each(|ino, bytes| marks.bytes.push((ino.get(), bytes.start, bytes.end)));
            marks.note_files_from(column.noted_from());
            marks.note_records(column.records());
        });
        if let Delta::Alone(alone) = &state.delta {
            let kept = &state.kept;
            let each = |ino: Ino, bytes: &std::ops::Range<u64>| {
                marks.bytes.push((ino.get(), bytes.start, bytes.end));
            };
            kept.kept.marks.each(each);
            marks.note_files_from(kept.files_from());
            marks.note_records(&alone.resync.with_sent(&alone.records));
        }
        marks.page(told)
    }
}

/// As the source of a resync.
impl DeltaTracker {
    /// The youngest barrier that both nodes know by name, and since which the marks of both name each place at which the copies may
    /// differ. `peer`: the account of the other node.
    pub fn base_with(&self, peer: &MarkAccount) -> Option<ResyncBase> {
        let has_rest = matches!(self.state().delta, Delta::Alone(_));
        let own = self.intervals.account(has_rest);
        let name = common_base(&own, has_rest, peer)?;
        let needs_marks = peer.served_alone || !own.covers(name);
        Some(ResyncBase {
            name,
            needs_marks: needs_marks && !is_active(Mutant::MarksUnasked),
        })
    }
}

/// As [`DeltaTracker::base_with`], by the account of this node. `has_rest`: the node has a rest.
pub(super) fn common_base(
    own: &MarkAccount,
    has_rest: bool,
    peer: &MarkAccount,
) -> Option<BarrierName> {
    let knows_changes = has_rest || own.covered_after.is_some();
    own.base_with(peer).filter(|_| knows_changes)
}

/// After a loss of power of this node.
impl DeltaTracker {
    /// Begins the rest of a node that leads in generation `led` without the other node, which has the marks of all changes before. No rest
    /// begins if the node has served alone since its last barrier: then nothing names what it has done.
    pub(super) fn begin_after_power_loss(&self, state: &mut DeltaState, led: Generation) {
        let own = self.intervals.account(true);
        self.end_in(state, RestEnd::Lost);
        if own.served_alone || own.known.is_empty() {
            return;
        }
        // It counts for no copy by its generation: such a copy has mirrored changes that this node may have lost.
        let mut alone = Alone::of(Lead {
            led,
            base: led,
            applied: Osn::ZERO,
        });
        alone.resync.begin_without_namespace();
        state.kept.begun_without_namespace(alone.lead);
        self.note_alone(state, alone);
    }
}

/// Adds the marks of the other node to the rest.
pub(super) fn adopt_page(kept: &mut KeptDelta, alone: &mut Alone, page: &MarkPage) {
    for (ino, start, end) in &page.bytes {
        if let Some(ino) = Ino::new(*ino) {
            kept.kept.note_bytes(ino, &(*start..*end));
        }
    }
    if let Some(number) = page.files_from {
        kept.kept.note_files_from(number);
    }
    alone.note_keys(kept, page.keys.iter());
    if page.all_records {
        kept.kept.note_all_records();
        alone.records = ChangedRecords::any();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(bytes: usize, keys: usize) -> ToldMarks {
        let number = |it: usize| u64::try_from(it).unwrap();
        ToldMarks {
            files_from: None,
            bytes: (0..bytes).map(|it| (number(it), 0, 9)).collect(),
            records: ChangedRecords {
                keys: (0..keys)
                    .map(|it| number(it).to_be_bytes().into())
                    .collect(),
                all: false,
            },
        }
    }

    fn all_pages(of: impl Fn() -> ToldMarks) -> Vec<MarkPage> {
        let mut pages = vec![of().page(0)];
        while let Some(told) = pages.last().unwrap().next {
            pages.push(of().page(told));
        }
        pages
    }

    #[test]
    fn the_pages_have_each_mark_once() {
        for (bytes, keys) in [
            (0, 0),
            (3, 0),
            (0, 3),
            (256, 0),
            (200, 400),
            (256, 256),
            (700, 100),
        ] {
            let pages = all_pages(|| marks(bytes, keys));
            let whole = marks(bytes, keys);
            let of_bytes = pages.iter().flat_map(|page| page.bytes.clone());
            assert_eq!(of_bytes.collect::<Vec<_>>(), whole.bytes);
            let of_keys = pages.iter().flat_map(|page| page.keys.clone());
            assert!(of_keys.eq(whole.records.keys));
            let of_page = |page: &MarkPage| page.bytes.len() + page.keys.len();
            assert!(
                pages
                    .iter()
                    .map(of_page)
                    .all(|marks| marks <= MarkPage::MARKS_MAX)
            );
            assert_eq!(
                pages.len(),
                (bytes + keys).div_ceil(MarkPage::MARKS_MAX).max(1)
            );
        }
    }

    #[test]
    fn too_many_marks_become_coarse_ones() {
        let page = marks(TOLD_MAX + 1, TOLD_MAX + 1).page(0);
        assert_eq!((page.files_from, page.all_records), (Some(1), true));
        assert_eq!((page.bytes.len(), page.keys.len(), page.next), (0, 0, None));
    }

    #[test]
    fn a_question_behind_the_end_gets_no_marks() {
        for told in [5, u64::MAX] {
            let page = marks(2, 2).page(told);
            assert_eq!((page.bytes.len(), page.keys.len(), page.next), (0, 0, None));
        }
    }
}
