//! The word to the witness that this node serves without the other one, because an operator says so (`promotion.rs`).
//!
//! Invariants:
//! - The word changes nothing if the witness has made the other node the primary of a generation that this node did not know
//!   of. Then both nodes may have served, and an operator decides.
//! - An empty witness gets a record, too: an earlier claim that is late on its way finds it, and lets no node take over
//!   (rules R5 and R10).

use std::sync::Arc;
use std::time::Duration;

use lockstep_roles::{
    Claim, InSyncSet, Member, UnrecordedPromotion, Witness, WitnessError, WitnessRecord,
};
use lockstep_types::SyncId;

/// Most claims for one word. A claim that another one has overtaken is made again.
const CLAIMS_MAX: usize = 3;

/// The witness, as the commands of an operator call it.
pub(crate) struct BoundWitness {
    pub witness: Arc<dyn Witness>,
    /// This node for the witness.
    pub me: Member,
    /// Limit of one call.
    pub limit: Duration,
}

impl BoundWitness {
    /// Returns the record of the witness.
    pub fn read(&self) -> Result<Option<WitnessRecord>, WitnessError> {
        self.witness.read(self.limit)
    }

    /// Makes a claim, and returns the record after the claim.
    pub fn claim(&self, claim: &Claim) -> Result<Option<WitnessRecord>, WitnessError> {
        self.witness.claim(claim, self.limit)
    }
}

/// What the witness knows after a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForcedClaim {
    /// Only this node may serve, by this record.
    Known(WitnessRecord),
    /// The other node is the primary of a later generation, by this record.
    Overtaken(WitnessRecord),
}

/// Tells the witness of a promotion by force.
pub(super) fn tell(
    line: &BoundWitness,
    promotion: UnrecordedPromotion,
    sync: Option<SyncId>,
) -> Result<ForcedClaim, WitnessError> {
    let mut answer = line.read()?;
    for _ in 0..CLAIMS_MAX {
        let new = WitnessRecord {
            change: answer.map_or(0, |now| now.change + 1),
            generation: promotion.generation,
            primary: line.me,
            in_sync: InSyncSet::PrimaryOnly,
            sync,
        };
        if let Some(now) = answer {
            if promotion.is_overtaken_by(now, line.me) {
                return Ok(ForcedClaim::Overtaken(now));
            }
            if (WitnessRecord {
                change: now.change,
                ..new
            }) == now
            {
                return Ok(ForcedClaim::Known(now));
            }
        }
        let claim = Claim {
            expected: answer,
            new,
        };
        answer = line.claim(&claim)?;
    }
    Err(WitnessError::Unreachable {
        witness: "its address".to_owned(),
        cause: "other claims have overtaken each claim of this node".to_owned(),
        cure: "wait: this node tries again".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use lockstep_types::Generation;
    use parking_lot::Mutex;

    use super::*;

    /// A witness that another claim overtakes once, if `peer_generation` is set.
    struct Shelf {
        record: Mutex<Option<WitnessRecord>>,
        peer_generation: Mutex<Option<WitnessRecord>>,
    }

    impl Witness for Shelf {
        fn read(&self, _limit: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
            Ok(*self.record.lock())
        }

        fn claim(
            &self,
            claim: &Claim,
            _limit: Duration,
        ) -> Result<Option<WitnessRecord>, WitnessError> {
            let mut record = self.record.lock();
            if let Some(peer_generation) = self.peer_generation.lock().take() {
                *record = Some(peer_generation);
            }
            claim.check().expect("a claim that keeps the rules");
            *record = claim.apply(*record);
            Ok(*record)
        }
    }

    fn generation(raw: u64) -> Generation {
        Generation::new(raw).unwrap()
    }

    fn record(change: u64, raw: u64, primary: Member, in_sync: InSyncSet) -> WitnessRecord {
        WitnessRecord {
            change,
            generation: generation(raw),
            primary,
            in_sync,
            sync: None,
        }
    }

    /// The word of the first node, which knew of generation 1 and serves in generation 4.
    fn word(
        known: Option<WitnessRecord>,
        peer_generation: Option<WitnessRecord>,
    ) -> (ForcedClaim, Option<WitnessRecord>) {
        let shelf = Arc::new(Shelf {
            record: Mutex::new(known),
            peer_generation: Mutex::new(peer_generation),
        });
        let line = BoundWitness {
            witness: Arc::clone(&shelf) as Arc<dyn Witness>,
            me: Member::First,
            limit: Duration::from_secs(1),
        };
        let promotion = UnrecordedPromotion {
            generation: generation(4),
            known: generation(1),
        };
        let told = tell(&line, promotion, None).unwrap();
        let now = *shelf.record.lock();
        (told, now)
    }

    #[test]
    fn the_witness_lets_only_the_forced_node_serve() {
        use InSyncSet::{Both, PrimaryOnly};
        use Member::{First, Second};
        for (known, change) in [
            (None, 0),
            (Some(record(7, 1, Second, Both)), 8),
            (Some(record(7, 1, Second, PrimaryOnly)), 8),
            (Some(record(7, 4, First, Both)), 8),
            (Some(record(7, 4, First, PrimaryOnly)), 7),
        ] {
            let told = record(change, 4, First, PrimaryOnly);
            assert_eq!(word(known, None), (ForcedClaim::Known(told), Some(told)));
        }
    }

    #[test]
    fn an_overtaken_word_is_given_again_unless_the_other_node_leads() {
        use InSyncSet::{Both, PrimaryOnly};
        use Member::{First, Second};
        let known = Some(record(7, 1, Second, Both));
        let told = record(9, 4, First, PrimaryOnly);
        let harmless = Some(record(8, 1, Second, PrimaryOnly));
        assert_eq!(
            word(known, harmless),
            (ForcedClaim::Known(told), Some(told))
        );
        let later = record(8, 2, Second, PrimaryOnly);
        let overtaken = (ForcedClaim::Overtaken(later), Some(later));
        assert_eq!(word(known, Some(later)), overtaken);
    }
}
