//! The witness's record of a datastore, the claims that change it, and the witness as a node calls it.
//!
//! The witness compares and sets: a claim names the record that it expects. So of two nodes that claim at the same
//! time, the first wins, and the answer tells the second why it lost.

use std::time::Duration;

use lockstep_types::{Generation, SyncId};

use crate::record::Member;

/// The nodes that hold every acknowledged operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InSyncSet {
    /// The primary alone.
    PrimaryOnly,
    /// Both nodes: the secondary may take over.
    Both,
}

/// The witness's record of a datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WitnessRecord {
    /// Counts the changes of the record.
    pub change: u64,
    /// The generation.
    pub generation: Generation,
    /// The primary of the generation.
    pub primary: Member,
    /// The nodes that hold every acknowledged operation.
    pub in_sync: InSyncSet,
    /// The name of the sync of the node that made the claim (rule P17); `None` if it had none. A role machine knows no names:
    /// the driver adds and compares them.
    pub sync: Option<SyncId>,
}

/// A request to replace the record, if it is the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The record to be replaced; `None` if the witness has none.
    pub expected: Option<WitnessRecord>,
    /// The new record.
    pub new: WitnessRecord,
}

impl Claim {
    /// Returns the record of the witness after the claim. The claim is granted if that is [`Claim::new`]; a claim
    /// that is repeated because its answer was lost is granted again.
    pub fn apply(&self, current: Option<WitnessRecord>) -> Option<WitnessRecord> {
        if current == self.expected {
            Some(self.new)
        } else {
            current
        }
    }

    /// Checks that the new record may follow the expected record. A witness refuses other claims: only a fault of a
    /// node makes them.
    ///
    /// # Errors
    /// The [`ClaimFault`].
    pub fn check(&self) -> Result<(), ClaimFault> {
        let new = &self.new;
        let change = self
            .expected
            .map_or(Some(0), |known| known.change.checked_add(1));
        if change != Some(new.change) {
            return Err(ClaimFault::Change(new.change));
        }
        match self.expected {
            Some(known) if new.generation < known.generation => Err(ClaimFault::Earlier {
                new: new.generation,
                known: known.generation,
            }),
            Some(known) if new.generation == known.generation && new.primary != known.primary => {
                Err(ClaimFault::SecondPrimary(new.generation))
            }
            _ => Ok(()),
        }
    }
}

/// The rule that a claim breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimFault {
    /// The number of the new record is not the next one (rule R5).
    #[error("the claimed record has change {0}, which does not follow the expected record")]
    Change(u64),
    /// The new record has an earlier generation than the expected one.
    #[error(
        "the claimed record has generation {new}, and the expected record has generation {known}"
    )]
    Earlier {
        /// Generation of the new record.
        new: Generation,
        /// Generation of the expected record.
        known: Generation,
    },
    /// The new record gives a generation a second primary.
    #[error("the claimed record gives generation {0} a second primary")]
    SecondPrimary(Generation),
}

/// The witness of one datastore, as a node calls it. The calls block. Each call ends within its limit, and may come
/// from any thread.
pub trait Witness: Send + Sync {
    /// Returns the record of the datastore; `None` if the witness has none.
    ///
    /// # Errors
    /// A [`WitnessError`].
    fn read(&self, limit: Duration) -> Result<Option<WitnessRecord>, WitnessError>;

    /// Makes a claim, and returns the record after the claim: the claim is granted if that is [`Claim::new`]. A claim
    /// may be repeated.
    ///
    /// # Errors
    /// A [`WitnessError`]. After [`WitnessError::Unreachable`] the witness may have granted the claim, and may still
    /// grant it: a request can be late on its way.
    fn claim(&self, claim: &Claim, limit: Duration) -> Result<Option<WitnessRecord>, WitnessError>;
}

/// Why the witness gave no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WitnessError {
    /// No answer came within the limit, or the connection failed. A later call may succeed without an operator.
    #[error("the witness at {witness} does not answer: {cause}\n  cure: {cure}")]
    Unreachable {
        /// Address of the witness.
        witness: String,
        /// The cause.
        cause: String,
        /// The cure.
        cure: String,
    },
    /// The witness, or the check of its answer, has refused the call. The call has changed nothing. Every further call
    /// is refused until an operator acts.
    #[error("the witness at {witness} refused: {cause}\n  cure: {cure}")]
    Refused {
        /// Address of the witness.
        witness: String,
        /// The cause.
        cause: String,
        /// The cure.
        cure: String,
    },
}

impl WitnessError {
    /// Whether a later call may succeed without an operator.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(change: u64, generation: u64, primary: Member) -> WitnessRecord {
        WitnessRecord {
            change,
            generation: Generation::new(generation).unwrap(),
            primary,
            in_sync: InSyncSet::Both,
            sync: None,
        }
    }

    fn check(expected: Option<WitnessRecord>, new: WitnessRecord) -> Result<(), ClaimFault> {
        Claim { expected, new }.check()
    }

    #[test]
    fn a_claim_must_follow_the_expected_record() {
        let known = Some(record(4, 2, Member::First));
        let generation = |raw| Generation::new(raw).unwrap();
        assert_eq!(check(None, record(0, 1, Member::Second)), Ok(()));
        assert_eq!(check(known, record(5, 2, Member::First)), Ok(()));
        assert_eq!(check(known, record(5, 3, Member::Second)), Ok(()));
        for (expected, change) in [(None, 1), (known, 4), (known, 6)] {
            let fault = check(expected, record(change, 2, Member::First));
            assert_eq!(fault, Err(ClaimFault::Change(change)));
        }
        assert_eq!(
            check(known, record(5, 1, Member::First)),
            Err(ClaimFault::Earlier {
                new: generation(1),
                known: generation(2)
            })
        );
        assert_eq!(
            check(known, record(5, 2, Member::Second)),
            Err(ClaimFault::SecondPrimary(generation(2)))
        );
        let last = Some(record(u64::MAX, 2, Member::First));
        assert_eq!(
            check(last, record(0, 2, Member::First)),
            Err(ClaimFault::Change(0))
        );
    }
}
