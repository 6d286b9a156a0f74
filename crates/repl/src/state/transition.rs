//! The step from one state to the next: a row of the table, or a refusal.

use super::refused::{REFUSED, RefusalReason};
use super::table::TABLE;
use super::{Action, State, Trigger};

/// A trigger that leads nowhere in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{trigger:?} is refused in state {state:?}: {}", .why.describe())]
pub struct RefusedTrigger {
    /// The present state.
    pub state: State,
    /// The refused trigger.
    pub trigger: Trigger,
    /// The reason for the refusal.
    pub why: RefusalReason,
}

impl State {
    /// The state to which `trigger` leads and the actions on the way, or the reason for a refusal.
    pub fn next(self, trigger: Trigger) -> Result<(Self, &'static [Action]), RefusedTrigger> {
        TABLE
            .iter()
            .find(|(state, on, ..)| *state == self && *on == trigger)
            .map(|&(_, _, next, actions)| (next, actions))
            .ok_or_else(|| refusal(self, trigger))
    }
}

/// The refusal of a pair that is not in [`TABLE`].
fn refusal(state: State, trigger: Trigger) -> RefusedTrigger {
    let row = REFUSED
        .iter()
        .find(|(states, triggers, ..)| states.contains(&state) && triggers.contains(&trigger));
    RefusedTrigger {
        state,
        trigger,
        why: row.map_or(RefusalReason::Impossible, |(_, _, why, _)| *why),
    }
}
