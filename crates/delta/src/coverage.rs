//! The intervals whose region marks a node has in full.
//!
//! Invariant: a coverage never says more than the marks do. So marks are written before the coverage that counts on them, and a
//! coverage is narrowed before an interval begins whose marks may be lost.

use crate::interval::Interval;

/// The marks of numbered intervals on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DurableMarks {
    /// The interval before the first one.
    pub after: Interval,
    /// The last interval.
    pub through: Interval,
    /// The node has not mirrored since `through`. So no later interval has changed its copy or the other one.
    pub is_last: bool,
}

/// The numbered intervals whose marks a node has. The marks of the time without mirroring are on stable storage before the
/// change, so they are always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkCoverage {
    /// Each interval after this one is covered by memory that a loss of power takes.
    live_after: Option<Interval>,
    durable: Option<DurableMarks>,
}

impl MarkCoverage {
    /// The marks of each interval after a barrier, in memory.
    pub const fn since(barrier: Interval) -> Self {
        Self {
            live_after: Some(barrier),
            durable: None,
        }
    }

    /// A loss of power leaves what stable storage has.
    pub const fn after_power_loss(durable: Option<DurableMarks>) -> Self {
        Self {
            live_after: None,
            durable,
        }
    }

    /// The part on stable storage.
    pub const fn durable(&self) -> Option<DurableMarks> {
        self.durable
    }

    /// The node has lost power, and has not mirrored since.
    pub const fn is_lost(&self) -> bool {
        self.live_after.is_none()
    }

    /// The marks of numbered intervals have been written to stable storage.
    pub const fn write(&mut self, durable: DurableMarks) {
        self.durable = Some(durable);
    }

    /// The node has mirrored until `through`, and has written all marks in memory to stable storage, beside earlier ones there.
    pub fn write_live(&mut self, through: Interval) {
        if let Some(live_after) = self.live_after {
            let before = self.durable.filter(|it| it.through >= live_after);
            let after = before.map_or(live_after, |it| it.after.min(live_after));
            self.durable = Some(DurableMarks {
                after,
                through,
                is_last: true,
            });
        }
    }

    /// Mirroring begins with this interval. The caller first notes on stable storage that its marks there are not the last ones.
    pub fn mirror_from(&mut self, from: Interval) {
        let before = Interval::new(from.get().saturating_sub(1));
        self.live_after.get_or_insert(before);
        self.durable = self.durable.map(|durable| DurableMarks {
            is_last: false,
            ..durable
        });
    }

    /// A barrier is complete: no mark up to `through` is needed or kept.
    pub fn drop_through(&mut self, through: Interval) {
        self.live_after = self.live_after.map(|after| after.max(through));
        self.durable = self.durable.filter(|durable| durable.through > through);
    }

    /// Whether this coverage and that of the other node have each interval after `base` between them.
    pub fn covers_with(&self, other: &Self, base: Interval) -> bool {
        let durable = || [self.durable, other.durable].into_iter().flatten();
        let mut at = base;
        while let Some(next) = durable().find(|it| it.after <= at && it.through > at) {
            at = next.through;
        }
        let is_live = [self.live_after, other.live_after]
            .into_iter()
            .flatten()
            .any(|after| after <= at);
        is_live || durable().any(|it| it.is_last && it.through <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> Interval {
        Interval::new(number)
    }

    fn durable(after: u64, through: u64, is_last: bool) -> MarkCoverage {
        let (after, through) = (at(after), at(through));
        MarkCoverage::after_power_loss(Some(DurableMarks {
            after,
            through,
            is_last,
        }))
    }

    const NONE: MarkCoverage = MarkCoverage::after_power_loss(None);

    #[test]
    fn one_node_in_memory_is_enough_for_what_it_has() {
        let live = MarkCoverage::since(at(3));
        assert!(live.covers_with(&NONE, at(3)));
        assert!(NONE.covers_with(&live, at(4)));
        assert!(!live.covers_with(&NONE, at(2)));
        assert!(!NONE.covers_with(&NONE, at(9)));
    }

    #[test]
    fn each_interval_needs_a_node_and_not_the_same_one() {
        // The other node has lost power at 5, and has mirrored again from 6 on.
        let mut back = NONE;
        back.mirror_from(at(6));
        assert!(!NONE.covers_with(&back, at(3)));
        assert!(!durable(3, 4, false).covers_with(&back, at(3)));
        assert!(durable(3, 5, false).covers_with(&back, at(3)));
        assert!(back.covers_with(&durable(2, 7, false), at(3)));
        assert!(!durable(4, 5, false).covers_with(&back, at(3)));
        assert!(durable(3, 4, false).covers_with(&durable(4, 8, true), at(3)));
    }

    #[test]
    fn marks_on_stable_storage_are_all_until_the_node_mirrors_again() {
        let mut left = MarkCoverage::since(at(3));
        left.write_live(at(5));
        let lost = MarkCoverage::after_power_loss(left.durable());
        assert!(lost.covers_with(&NONE, at(3)));
        assert!(lost.covers_with(&NONE, at(7)));
        left.mirror_from(at(6));
        let lost = MarkCoverage::after_power_loss(left.durable());
        assert!(!lost.covers_with(&NONE, at(3)));
        assert!(!lost.is_lost() || left.covers_with(&NONE, at(3)));
    }

    #[test]
    fn marks_are_written_beside_those_that_were_asked_for() {
        let mut asker = NONE;
        let (after, through) = (at(3), at(5));
        asker.write(DurableMarks {
            after,
            through,
            is_last: false,
        });
        asker.mirror_from(at(6));
        asker.write_live(at(6));
        let through = at(6);
        let written = DurableMarks {
            after,
            through,
            is_last: true,
        };
        assert_eq!(asker.durable(), Some(written));
    }

    #[test]
    fn a_barrier_ends_a_coverage() {
        let mut left = MarkCoverage::since(at(3));
        left.write_live(at(5));
        left.mirror_from(at(6));
        left.drop_through(at(6));
        assert_eq!(left, MarkCoverage::since(at(6)));
    }

    #[test]
    fn a_node_without_marks_in_memory_writes_none() {
        let mut lost = NONE;
        lost.write_live(at(5));
        assert_eq!(lost, NONE);
        lost.write(DurableMarks {
            after: at(1),
            through: at(5),
            is_last: false,
        });
        assert!(lost.durable().is_some());
    }
}
