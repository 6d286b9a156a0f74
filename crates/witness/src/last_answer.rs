//! The last answer about one datastore: a witness must not go back.
//!
//! Each change of a record raises its number (rule R5), and a witness keeps its records for ever. So an answer from
//! the same storage with a lower number, or without a record, means that the witness has lost changes: its disk was
//! set back to an older copy. Its word could then make two primaries. New storage is another matter, and so is a
//! record that an operator has removed: two connected nodes may tell an empty witness how things stand (rule R10).
//!
//! The memory is that of the process. It finds a witness that goes back while its nodes run.

use parking_lot::Mutex;

use crate::answer::{CallFailure, StoreTag, WitnessAnswer};

/// The storage that answered, and the change of its record.
type Seen = Option<(StoreTag, u64)>;

/// The newest answer about one datastore.
#[derive(Debug, Default)]
pub(crate) struct LastAnswer(Mutex<Seen>);

impl LastAnswer {
    /// The newest answer so far. Take it before a call: an answer to an earlier call may arrive later.
    pub(crate) fn before_call(&self) -> Seen {
        *self.0.lock()
    }

    /// Takes an answer to a call.
    ///
    /// # Errors
    /// [`CallFailure::Refused`] if the witness has gone back since `before` the call.
    pub(crate) fn take(&self, before: Seen, answer: WitnessAnswer) -> Result<(), CallFailure> {
        let change = answer.record.map(|record| record.change);
        if let Some((store, known)) = before
            && store == answer.store
            && change.is_none_or(|change| change < known)
        {
            let found = change.map_or_else(
                || "has no record any more".to_owned(),
                |change| format!("went back to change {change}"),
            );
            return Err(CallFailure::refused(
                format!(
                    "it has told change {known} of this datastore, and {found}: it has lost records"
                ),
                "see \"A lost witness\" in docs/operations/witness.md",
            ));
        }
        let mut seen = self.0.lock();
        if let Some(change) = change
            && seen.is_none_or(|(store, known)| store != answer.store || change > known)
        {
            *seen = Some((answer.store, change));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_roles::{InSyncSet, Member, WitnessRecord};
    use lockstep_types::Generation;

    use super::*;

    fn answer(store: u8, change: Option<u64>) -> WitnessAnswer {
        WitnessAnswer {
            record: change.map(|change| WitnessRecord {
                change,
                generation: Generation::FIRST,
                primary: Member::First,
                in_sync: InSyncSet::Both,
                sync: None,
            }),
            store: [store; 16],
        }
    }

    fn take(last: &LastAnswer, answer: WitnessAnswer) -> bool {
        last.take(last.before_call(), answer).is_ok()
    }

    #[test]
    fn a_witness_that_goes_back_is_refused() {
        let last = LastAnswer::default();
        for change in [None, Some(0), Some(4), Some(4)] {
            assert!(take(&last, answer(1, change)));
        }
        assert!(!take(&last, answer(1, Some(3))));
        assert!(!take(&last, answer(1, None)));
        assert!(take(&last, answer(1, Some(5))));
    }

    #[test]
    fn new_storage_may_begin_again() {
        let last = LastAnswer::default();
        assert!(take(&last, answer(1, Some(4))));
        assert!(take(&last, answer(2, None)));
        assert!(take(&last, answer(2, Some(0))));
        assert!(!take(&last, answer(2, None)));
    }

    #[test]
    fn an_answer_may_arrive_after_a_newer_one() {
        let last = LastAnswer::default();
        let before = last.before_call();
        assert!(take(&last, answer(1, Some(4))));
        last.take(before, answer(1, Some(3))).unwrap();
        assert!(!take(&last, answer(1, Some(3))));
    }
}
