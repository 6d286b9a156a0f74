//! At most one node acknowledges operations in a generation. No node acknowledges in a generation
//! that is over.
//!
//! A node that is not the primary of its generation answers no client. A node that becomes the
//! primary does so in a higher generation than all earlier ones. From its first answer on, no node
//! answers in a lower generation.

use std::collections::BTreeMap;

use lockstep_types::Generation;

use super::violation::Violation;
use crate::history::{History, Term};
use crate::world::Side;

const INVARIANT: &str = "one_primary";

/// Judges which nodes gave answers.
pub fn check(history: &History) -> Result<(), Violation> {
    let mut primaries: BTreeMap<Generation, Side> = BTreeMap::new();
    for term in history.terms() {
        let Term {
            from,
            primary,
            generation,
        } = *term;
        let latest = primaries.keys().next_back().copied();
        if let Some(latest) = latest.filter(|latest| *latest > generation) {
            let what = format!(
                "at {from} {primary:?} acknowledges in generation {generation}, after one was \
                 acknowledged in {latest}"
            );
            return Err(Violation::new(INVARIANT, what));
        }
        let first = *primaries.entry(generation).or_insert(primary);
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

    fn checked(answers: &[(Side, u64)]) -> Result<(), String> {
        let mut history = History::new(false);
        for (at, (side, generation)) in (1..).zip(answers) {
            let generation = Generation::new(*generation).unwrap();
            history.acknowledged(*side, generation, at);
        }
        check(&history).map_err(|violation| violation.to_string())
    }

    #[test]
    fn one_primary_after_the_other_is_legal() {
        use Side::{A, B};
        let answers = [(A, 1), (A, 1), (B, 2), (A, 4)];
        assert_eq!(checked(&answers), Ok(()));
    }

    #[test]
    fn two_in_one_generation_are_caught() {
        use Side::{A, B};
        let what = checked(&[(A, 1), (B, 1)]).unwrap_err();
        assert!(what.contains("in which A did before"), "{what}");
    }

    #[test]
    fn one_that_does_not_know_it_is_over_is_caught() {
        use Side::{A, B};
        let what = checked(&[(A, 1), (B, 2), (A, 1)]).unwrap_err();
        assert!(what.contains("after one was acknowledged in 2"), "{what}");
    }
}
