//! A promotion by force of which the witness does not know yet.

use lockstep_types::Generation;
use serde::{Deserialize, Serialize};

use crate::record::{Member, RoleRecord};
use crate::witness::WitnessRecord;

/// An operator has forced this node to lead, and the witness has not recorded that yet. Until then the witness may let the
/// other node take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnrecordedPromotion {
    /// The generation in which this node leads.
    pub generation: Generation,
    /// The latest generation that this node knew of when the operator forced it to lead.
    pub known: Generation,
}

impl UnrecordedPromotion {
    /// Whether a node with a record still leads, or is about to lead, by this promotion.
    pub fn belongs_to(&self, record: &RoleRecord) -> bool {
        self.generation == record.generation && (record.is_primary() || record.is_candidate)
    }

    /// Whether the witness has made a node the primary of a generation that this node, `me`, did not know of.
    pub fn is_overtaken_by(self, now: WitnessRecord, me: Member) -> bool {
        now.generation > self.generation || now.primary != me && now.generation > self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::witness::InSyncSet;

    #[test]
    fn a_takeover_that_this_node_knew_of_does_not_overtake_it() {
        let [first, second, third, fourth] = [1, 2, 3, 4].map(|raw| Generation::new(raw).unwrap());
        let promotion = UnrecordedPromotion {
            generation: third,
            known: first,
        };
        let by = |primary, generation| WitnessRecord {
            change: 5,
            generation,
            primary,
            in_sync: InSyncSet::PrimaryOnly,
            sync: None,
        };
        let overtaken = |record| promotion.is_overtaken_by(record, Member::First);
        assert!(!overtaken(by(Member::Second, first)));
        assert!(!overtaken(by(Member::First, second)));
        assert!(overtaken(by(Member::Second, second)));
        assert!(overtaken(by(Member::First, fourth)));
    }
}
