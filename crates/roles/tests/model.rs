//! A model of two nodes, their copies and a witness: every order of events, with a bounded number of failures, holds the
//! promises of docs/protocol/roles.md.
//!
//! The model runs the product's [`RoleMachine`]. Around it the model has the durable records, one channel to each other
//! party, and for each node the operations in memory and on disk. A property fails with the shortest path to it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests may panic

#[path = "model/world.rs"]
mod world;

use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{Action, Limits, World};

/// The property that a lost operation or a stale read breaks.
const NOTHING_LOST: &str = "nothing acknowledged is lost or stale";

/// The model: the limits of the world.
#[derive(Clone)]
struct Roles(Limits);

impl Model for Roles {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        state.actions(actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut next = last.clone();
        next.step(action);
        (next != *last).then_some(next)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.is_small()
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("one node acknowledges in a generation", |_, world| {
                world.one_node_acknowledges()
            }),
            Property::<Self>::always(NOTHING_LOST, |_, world| {
                world.serves_what_was_acknowledged()
            }),
            Property::<Self>::always("one node serves alone", |_, world| world.one_serves_alone()),
            Property::<Self>::sometimes("the secondary has taken over", |_, world| {
                world.has_taken_over()
            }),
            Property::<Self>::sometimes("in sync again under the other node", |_, world| {
                world.is_in_sync_again()
            }),
        ]
    }
}

/// Explores all states, prints their number, and fails with the path to the first broken promise.
fn explore(limits: Limits) {
    let checker = Roles(limits).checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, depth {}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

/// A bound from the environment, for other explorations.
fn bound(variable: &str, otherwise: u8) -> u8 {
    let set = std::env::var(variable).ok();
    set.map_or(otherwise, |set| set.parse().unwrap())
}

fn limits(has_witness: bool, failures: u8, operations: u8, swaps: u8) -> Limits {
    Limits {
        has_witness,
        failures: bound("LOCKSTEP_MODEL_FAILURES", failures),
        operations: bound("LOCKSTEP_MODEL_OPERATIONS", operations),
        swaps: bound("LOCKSTEP_MODEL_SWAPS", swaps),
        waits_for_lease: true,
    }
}

#[test]
fn two_nodes_and_a_witness() {
    explore(limits(true, 1, 1, 0));
}

#[test]
fn two_nodes_and_an_operator() {
    explore(limits(false, 3, 2, 1));
}

/// The model can fail: it finds the stale read of a primary whose lease nobody waits for.
#[test]
fn a_takeover_within_the_lease_is_found() {
    let limits = Limits {
        waits_for_lease: false,
        ..limits(true, 1, 1, 0)
    };
    let checker = Roles(limits)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures);
    let found = checker.spawn_bfs().join();
    assert!(found.discovery(NOTHING_LOST).is_some());
}
