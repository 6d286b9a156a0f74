//! The solo grant: the right of a primary to acknowledge operations without its secondary.
//!
//! A primary whose secondary may be complete acknowledges nothing alone without it (rule R1): the witness has recorded that
//! only the primary is in sync, or the secondary itself lacks operations by its own record.
//!
//! Invariant: a grant ends before the secondary may become complete, and before the witness is asked to let the secondary take
//! over.

use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};

/// A moment in the life of a primary: the number of its solo grants that have ended, because the secondary may become complete.
/// A record of the secondary that says "not complete", and that was told before such a moment, grants nothing after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SoloEnds(pub u64);

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SoloGrant {
    /// The generation in which this primary may acknowledge alone.
    pub generation: Option<Generation>,
    /// The number of times that the grant has ended.
    pub ended: u64,
}

impl SoloGrant {
    /// Grants a primary to acknowledge alone in a generation.
    pub const fn grant(&mut self, generation: Generation) {
        self.generation = Some(generation);
    }

    /// Grants the same by the record of the secondary, which was told after `since`. However late the thread is that has read
    /// the record, a record from before a sync grants nothing.
    pub fn grant_by_record(&mut self, generation: Generation, since: SoloEnds) {
        if self.ends() == since || is_active(Mutant::TrustOldWord) {
            self.grant(generation);
        }
    }

    /// Ends the grant, and makes each record of the secondary that was told before too old for another one.
    pub const fn end(&mut self) {
        self.generation = None;
        self.ended += 1;
    }

    /// The moment of now.
    pub const fn ends(&self) -> SoloEnds {
        SoloEnds(self.ended)
    }

    /// Whether a primary may acknowledge alone in a generation.
    pub fn covers(&self, generation: Generation) -> bool {
        self.generation == Some(generation) || is_active(Mutant::GoAloneUnasked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Generation = Generation::FIRST;

    #[test]
    fn a_grant_belongs_to_a_generation_and_ends() {
        let mut solo = SoloGrant::default();
        assert!(!solo.covers(FIRST));
        solo.grant(FIRST);
        assert!(solo.covers(FIRST) && !solo.covers(FIRST.next()));
        solo.end();
        assert!(!solo.covers(FIRST));
    }

    #[test]
    fn a_record_from_before_a_sync_grants_nothing() {
        let mut solo = SoloGrant::default();
        let before = solo.ends();
        solo.grant_by_record(FIRST, before);
        assert!(solo.covers(FIRST));
        solo.end();
        solo.grant_by_record(FIRST, before);
        assert!(!solo.covers(FIRST), "the secondary may be complete by now");
        solo.grant_by_record(FIRST, solo.ends());
        assert!(solo.covers(FIRST));
    }
}
