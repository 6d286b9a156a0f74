//! The promises of docs/protocol/delta.md, as checks of a state.

use std::collections::BTreeSet;

use crate::limits::Limits;
use crate::world::{Action, Here, Link, PLACES, World, Write};

/// More steps than the operations in flight take.
const STEPS_MAX: usize = 40;
const WAITS: &str = "no operation waits for a barrier";

impl World {
    /// The promise that this state breaks, which `last` has led to. A step of a client's operation leaves the others as free as they
    /// were.
    pub fn broken_promise(&self, last: Action) -> Option<&'static str> {
        let waits = || !is_of_clients(last) && !self.clients_go_on();
        self.broken.or_else(|| waits().then_some(WAITS))
    }

    /// Whether no later step can break a promise about copies: the nodes are in sync, and no failure is left. An exploration with one
    /// failure less has the rest of this one's states.
    pub fn is_settled(&self) -> bool {
        self.limits.failures > 0 && self.left.failures == 0 && self.link == Link::Synced
    }

    /// While a barrier is under way, operations begin, and end without a step of the barrier.
    fn clients_go_on(&self) -> bool {
        if self.link == Link::Down || !self.is_barrier_under_way() {
            return true;
        }
        let mut world = self.clone();
        let mut actions = Vec::new();
        for _ in 0..STEPS_MAX {
            actions.clear();
            world.mirrored_actions(&mut actions);
            let of_clients = |action: &&Action| is_of_clients(**action);
            let Some(action) = actions.iter().find(of_clients).copied() else {
                break;
            };
            world.step(action);
        }
        let is_idle = (0..PLACES).all(|place| !world.is_in_flight(place));
        // In a resync the namespace comes first.
        is_idle && (world.link != Link::Synced || world.admits())
    }
}

/// Whether this is a step of an operation that has begun.
const fn is_of_clients(action: Action) -> bool {
    matches!(
        action,
        Action::Execute(_)
            | Action::Announce(_)
            | Action::Announced(_)
            | Action::Heard(_)
            | Action::Deliver(_)
            | Action::Answer(_)
            | Action::Commit
            | Action::Apply
            | Action::Recover(_)
            | Action::Recovered
    )
}

/// A kind of state that an exploration is to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    Takeover,
    /// A base although both nodes have lost power.
    BaseAfterBoth,
    BarrierInResync,
    WaitsInBarrier,
    /// A base after a loss of power of the primary, which another one has replaced.
    DeposedBase,
    /// A base of a primary that has lost power and leads on.
    TracedBase,
    /// The source of a resync loses power, and knows a barrier of that resync.
    PowerInResync,
}

impl World {
    /// Notes the kinds of this state.
    pub fn look(&self, seen: &mut BTreeSet<Sight>) {
        let barrier = self.link != Link::Down && self.is_barrier_under_way();
        let waits = |write: &Write| write.here == Here::Waits;
        let waits = self.writes.iter().flatten().any(waits);
        let sights = [
            (Sight::Takeover, self.nodes[1].role.leads),
            (Sight::BaseAfterBoth, self.survived.both),
            (Sight::BarrierInResync, barrier && self.link == Link::Resync),
            (Sight::WaitsInBarrier, barrier && waits),
            (Sight::DeposedBase, self.survived.deposed),
            (Sight::TracedBase, self.survived.traced),
            (Sight::PowerInResync, self.has_resumed),
        ];
        let sights = sights.into_iter().filter(|(_, is_seen)| *is_seen);
        seen.extend(sights.map(|(sight, _)| sight));
    }
}

impl Limits {
    /// The start of every exploration.
    pub fn start(self) -> World {
        World::new(self).canonical()
    }
}
