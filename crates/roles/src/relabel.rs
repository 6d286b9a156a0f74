//! Other labels for values that the role protocol only compares: generations, the numbers of the witness's changes, and
//! the names of the two nodes. The model counts states that differ in their labels once.

use lockstep_types::Generation;

use crate::promotion::UnrecordedPromotion;
use crate::record::{Member, RoleRecord};
use crate::solo::SoloEnds;
use crate::witness::{Claim, WitnessRecord};

/// The new labels. They keep the order and the equality of the old ones.
pub trait Labels {
    /// Another number for a generation.
    fn generation(&self, old: Generation) -> Generation;

    /// Another number for a change of the witness's record.
    fn change(&self, old: u64) -> u64;

    /// The name of a node.
    fn member(&self, old: Member) -> Member;

    /// Whether a node can still hear from the witness that its claim has made this record.
    fn keeps(&self, claimed: &WitnessRecord) -> bool;

    /// A record with the new labels.
    fn record(&self, old: RoleRecord) -> RoleRecord {
        RoleRecord {
            generation: self.generation(old.generation),
            ..old
        }
    }

    /// A record of the witness with the new labels.
    fn known(&self, old: WitnessRecord) -> WitnessRecord {
        WitnessRecord {
            change: self.change(old.change),
            generation: self.generation(old.generation),
            primary: self.member(old.primary),
            in_sync: old.in_sync,
            sync: old.sync,
        }
    }

    /// A claim with the new labels.
    fn claim(&self, old: Claim) -> Claim {
        Claim {
            expected: old.expected.map(|known| self.known(known)),
            new: self.known(old.new),
        }
    }

    /// Another number for the latest generation that a node has heard of.
    fn heard(&self, old: Generation) -> Generation {
        self.generation(old)
    }

    /// Another number for the generation of a solo grant; `None` for a grant that decides nothing any more.
    fn solo_grant(&self, old: Option<Generation>) -> Option<Generation> {
        old.map(|generation| self.generation(generation))
    }

    /// Whether the witness has answered the last call, as far as that decides about a later event.
    fn has_answered(&self, old: bool) -> bool {
        old
    }

    /// A promotion by force with the new labels.
    fn promotion(&self, old: UnrecordedPromotion) -> UnrecordedPromotion {
        UnrecordedPromotion {
            generation: self.generation(old.generation),
            known: self.generation(old.known),
        }
    }

    /// Another number for the solo grants of a node that have ended.
    fn solo_ends(&self, old: SoloEnds) -> SoloEnds;
}
