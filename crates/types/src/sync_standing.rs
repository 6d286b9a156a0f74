//! The knowledge that a copy has of its sync: the name of the sync, and how many operations it has got to. Two nodes
//! compare these before they trust each other's copies (rule P17).
//!
//! The primary proposes a name at every connection. A proposal is durable on the primary before the secondary hears of it. So
//! the secondary has the last name or the proposed one, and the primary knows both.

use serde::{Deserialize, Serialize};

use crate::SyncId;
use crate::mutants::{Mutant, is_active};

/// The names of the sync of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncNames {
    /// The name that both nodes have; `None` before the first resync.
    pub last: Option<SyncId>,
    /// Primary: the proposed name, which the secondary may have by now.
    pub proposed: Option<SyncId>,
}

impl SyncNames {
    /// The names of a copy whose sync has the name `last`.
    pub const fn settled(last: Option<SyncId>) -> Self {
        Self {
            last,
            proposed: None,
        }
    }

    /// The name that a resync or a proposal must follow.
    pub const fn newest(&self) -> Option<SyncId> {
        match self.proposed {
            Some(proposed) => Some(proposed),
            None => self.last,
        }
    }

    /// Whether the copy has this name.
    pub fn has(&self, sync: SyncId) -> bool {
        self.last == Some(sync) || self.proposed == Some(sync)
    }

    /// The newest name that both copies have.
    fn common(&self, other: &Self) -> Option<SyncId> {
        let names = [self.proposed, self.last].into_iter().flatten();
        names.into_iter().find(|name| other.has(*name))
    }

    /// Whether a copy with the names `other` is too old for the sync of this copy.
    pub fn are_unknown_to(&self, other: &Self) -> bool {
        let is_unknown = |last: SyncId| !other.has(last) && last.is_unknown_to(other.last);
        self.last.is_some_and(is_unknown)
    }
}

/// Counts the operations that a node has answered, or whose answers it has got, in one sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncCount {
    /// The sync; `None` if the count is not known.
    pub of: Option<SyncId>,
    /// The other node has at least as many.
    pub acknowledged: u64,
    /// The other node has at most as many.
    pub reached: u64,
}

impl SyncCount {
    /// The count of one sync: the least and the highest that the other node may have. A count that is not known excludes
    /// nothing.
    fn bounds(&self, sync: SyncId) -> (u64, u64) {
        if self.of == Some(sync) && !is_active(Mutant::KeepNameOfSync) {
            (self.acknowledged, self.reached)
        } else {
            (0, u64::MAX)
        }
    }
}

/// How the copy of another node is related to the own one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// Both copies belong to one sync, and neither lacks what the other one knows of it.
    Same,
    /// The other copy is new, or an earlier state.
    Older,
    /// The own copy is new, or an earlier state.
    Newer,
}

/// Names and count together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStanding {
    /// The names of the sync.
    pub names: SyncNames,
    /// The operations of the sync.
    pub count: SyncCount,
}

impl SyncStanding {
    /// The standing of a copy. A proposed name under which operations are counted is the name of both nodes.
    pub fn of(names: SyncNames, count: SyncCount) -> Self {
        let is_taken = names.proposed.is_some() && names.proposed == count.of;
        let names = if is_taken {
            SyncNames::settled(names.proposed)
        } else {
            names
        };
        Self { names, count }
    }

    /// How the copy with the standing `theirs` is related to this one.
    pub fn lineage(&self, theirs: &Self) -> Lineage {
        let Some(common) = self.names.common(&theirs.names) else {
            return self.lineage_by_name(theirs);
        };
        let (acknowledged, reached) = self.count.bounds(common);
        let (their_acknowledged, their_reached) = theirs.count.bounds(common);
        if acknowledged > their_reached {
            Lineage::Older
        } else if their_acknowledged > reached {
            Lineage::Newer
        } else {
            Lineage::Same
        }
    }

    fn lineage_by_name(&self, theirs: &Self) -> Lineage {
        match (self.names.last, theirs.names.last) {
            (None, None) => Lineage::Same,
            (_, Some(_)) if theirs.names.are_unknown_to(&self.names) => Lineage::Newer,
            _ => Lineage::Older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(number: usize) -> Option<SyncId> {
        let next = |last: Option<SyncId>, _| Some(SyncId::next(last, [3; 16]));
        (0..number).fold(None, next)
    }

    fn standing(last: Option<SyncId>, proposed: Option<SyncId>) -> SyncStanding {
        SyncStanding {
            names: SyncNames { last, proposed },
            count: SyncCount::default(),
        }
    }

    fn counted(sync: Option<SyncId>, acknowledged: u64, reached: u64) -> SyncStanding {
        SyncStanding {
            count: SyncCount {
                of: sync,
                acknowledged,
                reached,
            },
            ..standing(sync, None)
        }
    }

    #[test]
    fn a_proposed_name_is_as_good_as_the_last_one() {
        let primary = standing(sync(2), sync(3));
        for (name, expected) in [
            (sync(1), Lineage::Older),
            (sync(2), Lineage::Same),
            (sync(3), Lineage::Same),
            (sync(4), Lineage::Newer),
        ] {
            let secondary = standing(name, None);
            assert_eq!(primary.lineage(&secondary), expected, "{name:?}");
        }
        // A resync that follows a proposal of which the secondary has not heard, or has.
        for name in [sync(2), sync(3)] {
            assert!(!SyncNames::settled(name).are_unknown_to(&primary.names));
            let resync = SyncId::next(primary.names.newest(), [9; 16]);
            let later = SyncNames::settled(Some(resync));
            assert!(!SyncNames::settled(name).are_unknown_to(&later));
            assert!(later.are_unknown_to(&SyncNames::settled(name)));
        }
        let none = standing(None, None);
        assert_eq!(none.lineage(&none), Lineage::Same);
        assert_eq!(none.lineage(&primary), Lineage::Newer);
        assert_eq!(primary.lineage(&none), Lineage::Older);
    }

    #[test]
    fn a_copy_that_lacks_what_the_other_one_has_heard_of_is_older() {
        let primary = counted(sync(2), 5, 7);
        for (count, expected) in [
            (4, Lineage::Older),
            (5, Lineage::Same),
            (7, Lineage::Same),
            (8, Lineage::Newer),
        ] {
            let secondary = counted(sync(2), count, count);
            assert_eq!(primary.lineage(&secondary), expected, "{count}");
        }
        assert_eq!(
            primary.lineage(&standing(sync(2), None)),
            Lineage::Same,
            "a count that is not known excludes nothing"
        );
        let other = SyncStanding {
            names: SyncNames::settled(sync(2)),
            ..counted(sync(1), 0, 0)
        };
        assert_eq!(primary.lineage(&other), Lineage::Same, "of an earlier sync");
    }

    #[test]
    fn a_proposal_that_was_taken_ends_the_last_name() {
        let names = SyncNames {
            last: sync(2),
            proposed: sync(3),
        };
        let of = |sync| SyncCount {
            of: sync,
            ..SyncCount::default()
        };
        assert_eq!(SyncStanding::of(names, of(sync(2))).names, names);
        let taken = SyncStanding::of(names, of(sync(3)));
        assert_eq!(taken.names, SyncNames::settled(sync(3)));
        let late = standing(sync(2), None);
        assert_eq!(taken.lineage(&late), Lineage::Older);
    }
}
