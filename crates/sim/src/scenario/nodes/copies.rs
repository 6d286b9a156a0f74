//! The two copies of a schedule: up to which moment each has every acknowledged operation, and whether a resync has
//! changed it since.
//!
//! Invariant: a copy is complete until its primary serves alone. The states of the primary say when it does: a primary
//! that is in sync, that waits for its peer, or that is still making the mark acknowledges nothing alone.

use lockstep_repl::state::State;

use crate::scenario::nodes::{IN_SYNC, Nodes};
use crate::world::Side;

/// The copy of one machine.
#[derive(Clone, Copy, Debug)]
struct Copy {
    /// The copy may lack what was acknowledged since this moment. `None`: it is complete.
    behind_since: Option<u64>,
    /// The copy is no state of any moment: a resync has changed it since, or none has begun, or it was given up.
    is_mixed: bool,
    /// The datastore has gone on with the other copy, and this one has not been complete since.
    is_given_up: bool,
}

impl Copy {
    const COMPLETE: Self = Self {
        behind_since: None,
        is_mixed: false,
        is_given_up: false,
    };
    /// A copy on a new disk, which is no copy of the datastore before a resync.
    const EMPTY: Self = Self {
        behind_since: Some(0),
        is_mixed: true,
        is_given_up: false,
    };
}

/// Both copies.
#[derive(Debug)]
pub struct Copies([Copy; 2]);

impl Copies {
    /// Returns the copies of two nodes that have never run. The first machine has the primary.
    pub const fn new() -> Self {
        Self([Copy::COMPLETE, Copy::EMPTY])
    }

    /// Looks at the states of the nodes after a step of the world, which ended at `now`.
    pub fn look(&mut self, nodes: &Nodes, states: [Option<State>; 2], now: u64) {
        let [primary, secondary] = nodes.machines();
        if nodes.serving().is_some() {
            *primary.of_mut(&mut self.0) = Copy::COMPLETE;
        }
        let copy = secondary.of_mut(&mut self.0);
        let [ours, theirs] = states;
        if states == IN_SYNC {
            *copy = Copy::COMPLETE;
        } else if ours.is_some_and(serves_alone) {
            copy.behind_since.get_or_insert(now);
        }
        copy.is_mixed |= theirs == Some(State::SecondaryResyncing);
    }

    /// Records that a machine has got a disk with an empty store.
    pub const fn replaced(&mut self, side: Side) {
        *side.of_mut(&mut self.0) = Copy::EMPTY;
    }

    /// Records that the datastore goes on with the other copy. What only this copy has never happened.
    pub const fn given_up(&mut self, side: Side) {
        let copy = side.of_mut(&mut self.0);
        copy.is_mixed = true;
        copy.is_given_up = true;
    }

    /// Returns whether the datastore has gone on with the other copy, and this one was not complete since.
    pub const fn is_given_up(&self, side: Side) -> bool {
        side.of(&self.0).is_given_up
    }

    /// Returns the moment since which the copy of a machine may lack operations. `None`: it is complete.
    pub const fn behind_since(&self, side: Side) -> Option<u64> {
        side.of(&self.0).behind_since
    }

    /// Returns whether the copy of a machine is that of one moment.
    pub const fn is_of_one_moment(&self, side: Side) -> bool {
        !side.of(&self.0).is_mixed
    }
}

/// Returns whether a primary in this state may acknowledge what its peer does not have.
const fn serves_alone(state: State) -> bool {
    matches!(
        state,
        State::Unmirrored
            | State::OutOfSync
            | State::ResyncNamespace
            | State::ResyncTail
            | State::ResyncContent
            | State::EnteringSync
    )
}
