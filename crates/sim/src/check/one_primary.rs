//! At most one node acknowledges operations in a generation. No node acknowledges in a generation
//! that is over what a client requested since.
//!
//! A node that is not the primary of its generation answers no client. A node that becomes the
//! primary does so in a higher generation than all earlier ones. From its first answer on, no node
//! lets an operation in in a lower generation. An operation that was let in before may be answered
//! later, until its node learns of the higher generation: both copies have the operation, or the
//! lease was still good when the node read. The other checks judge such answers as all others.

use std::collections::BTreeMap;
use std::ops::Bound;

use lockstep_types::Generation;

use super::violation::Violation;
use crate::history::{AnswerPeriod, NodeRecord};
use crate::world::Side;

const INVARIANT: &str = "one_primary";

/// Judges which nodes gave answers.
pub fn check(nodes: &NodeRecord) -> Result<(), Violation> {
    // The node that answered in a generation, and the time of the first answer.
    let mut primaries: BTreeMap<Generation, (Side, u64)> = BTreeMap::new();
    for period in nodes.answer_periods() {
        let AnswerPeriod {
            from,
            requested,
            primary,
            generation,
        } = *period;
        let later = (Bound::Excluded(generation), Bound::Unbounded);
        let is_over = |(_, (_, begun)): &(_, &(Side, u64))| *begun <= requested;
        if let Some((latest, _)) = primaries.range(later).rfind(is_over) {
            let what = format!(
                "at {from} or later {primary:?} acknowledges in generation {generation} what was requested at \
                 {requested}, after one was acknowledged in {latest}"
            );
            return Err(Violation::new(INVARIANT, what));
        }
        let (first, _) = *primaries.entry(generation).or_insert((primary, from));
        if first != primary {
            let what = format!(
                "at {from} {primary:?} acknowledges in generation {generation}, in which \
                 {first:?} did before"
            );
            return Err(Violation::new(INVARIANT, what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    /// Judges answers: who, in which generation, and when the operation was requested. The answers come at 10, 20, 30 and
    /// so on.
    fn checked(answers: &[(Side, u64, u64)]) -> Result<(), String> {
        let mut history = History::new(false);
        for (at, (side, generation, requested)) in (10..).step_by(10).zip(answers) {
            let generation = Generation::new(*generation).unwrap();
            history.acknowledged(*side, generation, *requested, at);
        }
        check(history.nodes()).map_err(|violation| violation.to_string())
    }

    #[test]
    fn one_primary_after_the_other_is_legal() {
        use Side::{A, B};
        let answers = [(A, 1, 9), (A, 1, 19), (B, 2, 29), (A, 4, 39)];
        assert_eq!(checked(&answers), Ok(()));
    }

    #[test]
    fn two_in_one_generation_are_caught() {
        use Side::{A, B};
        let what = checked(&[(A, 1, 9), (B, 1, 8)]).unwrap_err();
        assert!(what.contains("in which A did before"), "{what}");
    }

    #[test]
    fn one_that_does_not_know_it_is_over_is_caught() {
        use Side::{A, B};
        let what = checked(&[(A, 1, 9), (B, 2, 19), (A, 1, 29)]).unwrap_err();
        assert!(what.contains("after one was acknowledged in 2"), "{what}");
    }

    #[test]
    fn a_late_answer_to_an_earlier_request_is_legal() {
        use Side::{A, B};
        assert_eq!(checked(&[(A, 1, 9), (B, 2, 19), (A, 1, 18)]), Ok(()));
        assert_eq!(checked(&[(B, 2, 9), (A, 1, 8), (B, 2, 29)]), Ok(()));
    }

    #[test]
    fn a_late_request_behind_a_late_answer_is_caught() {
        use Side::{A, B};
        let answers = [(A, 1, 9), (B, 2, 19), (A, 1, 18), (A, 1, 39)];
        let what = checked(&answers).unwrap_err();
        assert!(what.contains("what was requested at 39"), "{what}");
    }
}
