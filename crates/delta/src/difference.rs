//! Where two copies may differ: the base of a resync, or everything.
//!
//! Invariant: a base is given only if the marks of both nodes since it name every place at which the copies may differ.

use lockstep_types::id::SyncId;

use crate::barrier::BarrierMachine;
use crate::coverage::MarkCoverage;
use crate::interval::BarrierName;

/// The word of a node about its copy and its marks when the nodes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyAccount {
    /// The barriers that the node knows. A node that lost power knows those of its stable storage, all of which it has reached.
    pub known: Vec<BarrierName>,
    /// The intervals whose marks the node has.
    pub coverage: MarkCoverage,
    /// Of the primary: the sync since which its *rest* names every place at which a copy may differ that has lost nothing
    /// since. Of the secondary: the last sync of its copy, if it has lost no power and answered nothing alone since.
    pub boundary: Option<SyncId>,
}

/// The places that a resync must look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDifference {
    /// The rest of the primary, and the writes that either node names as in flight.
    Rest,
    /// The marks of both nodes in each interval after this barrier, the rest of both, and the marks of both on stable storage.
    Since(BarrierName),
    /// Everything.
    Everything,
}

impl CopyAccount {
    /// The account of a node.
    pub fn new(machine: &BarrierMachine, coverage: MarkCoverage, boundary: Option<SyncId>) -> Self {
        Self {
            known: machine.known().collect(),
            coverage,
            boundary,
        }
    }
}

impl CopyDifference {
    /// The difference between the copies of a primary and a secondary.
    pub fn between(primary: &CopyAccount, secondary: &CopyAccount) -> Self {
        if primary.boundary.is_some() && primary.boundary == secondary.boundary {
            return Self::Rest;
        }
        let is_common = |name: &&BarrierName| secondary.known.contains(name);
        let common = primary.known.iter().filter(is_common).max();
        let coverage = |name: &&BarrierName| {
            let base = name.through;
            primary.coverage.covers_with(&secondary.coverage, base)
        };
        match common.filter(coverage) {
            Some(name) => Self::Since(*name),
            None => Self::Everything,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Interval;

    fn name(through: u64, nonce: u8) -> BarrierName {
        BarrierName {
            through: Interval::new(through),
            nonce: [nonce; 16],
        }
    }

    fn account(known: &[BarrierName], coverage: MarkCoverage) -> CopyAccount {
        CopyAccount {
            known: known.to_vec(),
            coverage,
            boundary: None,
        }
    }

    #[test]
    fn the_base_is_the_youngest_barrier_that_both_know_by_name() {
        let lost = MarkCoverage::after_power_loss(None);
        let live = MarkCoverage::since(Interval::new(3));
        let primary = account(&[name(3, 0), name(4, 0), name(6, 1)], live);
        let secondary = account(&[name(4, 0), name(6, 2), name(3, 0)], lost);
        let difference = CopyDifference::between(&primary, &secondary);
        assert_eq!(difference, CopyDifference::Since(name(4, 0)));
        let stranger = account(&[name(3, 9), name(4, 9)], lost);
        let difference = CopyDifference::between(&primary, &stranger);
        assert_eq!(difference, CopyDifference::Everything);
    }

    #[test]
    fn a_base_whose_intervals_are_covered_nowhere_is_none() {
        let lost = MarkCoverage::after_power_loss(None);
        let known = [name(3, 0)];
        let (primary, secondary) = (account(&known, lost), account(&known, lost));
        let difference = CopyDifference::between(&primary, &secondary);
        assert_eq!(difference, CopyDifference::Everything);
    }

    #[test]
    fn copies_of_one_sync_that_lost_nothing_differ_in_the_rest() {
        let sync = SyncId::next(None, [1; 16]);
        let other = SyncId::next(None, [2; 16]);
        let live = MarkCoverage::since(Interval::new(3));
        let with = |boundary| CopyAccount {
            boundary,
            ..account(&[name(3, 0)], live)
        };
        let between = |one, two| CopyDifference::between(&with(one), &with(two));
        assert_eq!(between(Some(sync), Some(sync)), CopyDifference::Rest);
        let since = CopyDifference::Since(name(3, 0));
        assert_eq!(between(Some(sync), Some(other)), since);
        assert_eq!(between(None, None), since);
    }
}
