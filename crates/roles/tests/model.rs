//! A model of two nodes, their copies and a witness: every order of events, with a bounded number of failures, holds the
//! promises of docs/protocol/roles.md.
//!
//! The model runs the product's [`RoleMachine`](lockstep_roles::RoleMachine). Around it the model has the durable records,
//! one channel to each other party, and for each node the operations in memory and on disk.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests may panic

#[path = "model/breaks.rs"]
mod breaks;
#[path = "model/calm.rs"]
mod calm;
#[path = "model/canonical.rs"]
mod canonical;
#[path = "model/conflicts.rs"]
mod conflicts;
#[path = "model/disk.rs"]
mod disk;
#[path = "model/explore.rs"]
mod explore;
#[path = "model/limits.rs"]
mod limits;
#[path = "model/link.rs"]
mod link;
#[path = "model/operator.rs"]
mod operator;
#[path = "model/promises.rs"]
mod promises;
#[path = "model/questions.rs"]
mod questions;
#[path = "model/queue.rs"]
mod queue;
#[path = "model/session.rs"]
mod session;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/world.rs"]
mod world;

use breaks::Break;
use explore::{Found, Promise};
use limits::{Limits, Operator};
use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{Action, World};

/// The promise that a lost operation or a stale read breaks.
const NOTHING_LOST: Promise = (
    "nothing acknowledged is lost or stale",
    World::serves_what_was_acknowledged,
);

/// The promises of each state.
const SAFE: [Promise; 5] = [
    (
        "one node acknowledges in a generation",
        World::one_node_acknowledges,
    ),
    NOTHING_LOST,
    ("one node serves alone", World::one_serves_alone),
    ("one node stands for a generation", World::one_stands),
    (
        "a node that gives way is replaced",
        World::who_gives_way_is_replaced,
    ),
];

/// The promise for the time after the failures. This check takes as long as the rest.
const CALM: Promise = (
    "after the failures both nodes are in sync",
    World::comes_to_rest,
);

/// The model for stateright, which finds the shortest path to a broken promise.
#[derive(Clone)]
struct Roles(Limits);

impl Model for Roles {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.0).canonical()]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        state.actions(actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut next = last.clone();
        next.step(action);
        let next = next.canonical();
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(SAFE[0].0, |_, world| SAFE[0].1(world)),
            Property::<Self>::always(SAFE[1].0, |_, world| SAFE[1].1(world)),
            Property::<Self>::always(SAFE[2].0, |_, world| SAFE[2].1(world)),
            Property::<Self>::always(SAFE[3].0, |_, world| SAFE[3].1(world)),
            Property::<Self>::always(SAFE[4].0, |_, world| SAFE[4].1(world)),
            Property::<Self>::always(CALM.0, |_, world| CALM.1(world)),
            Property::<Self>::sometimes("a node has taken over", |_, world| world.has_taken_over()),
            Property::<Self>::sometimes("both nodes are in sync", |_, world| world.is_in_sync()),
        ]
    }
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
        always: false,
        operator: Operator {
            demotes: bound("LOCKSTEP_MODEL_DEMOTES", 0) > 0,
            forces: bound("LOCKSTEP_MODEL_FORCES", 0) > 0,
        },
        hangs: bound("LOCKSTEP_MODEL_HANGS", 0) > 0,
        breaks: None,
    }
}

/// Explores all states, prints their number, and fails with a path to the first broken promise.
fn explore(limits: Limits) {
    let mut promises = SAFE.to_vec();
    if bound("LOCKSTEP_MODEL_CALM", 1) > 0 {
        promises.push(CALM);
    }
    let Found { states, broken } =
        explore::explore(limits, &promises, bound("LOCKSTEP_MODEL_THREADS", 2).into());
    println!("{states} states");
    if let Some(broken) = broken {
        calm::print_path(limits, &broken.path);
        panic!(
            "{}: see the path above, or run the shortest path",
            broken.promise
        );
    }
}

#[test]
fn two_nodes_and_a_witness() {
    explore(limits(true, 1, 1, 0));
}

#[test]
fn two_nodes_and_a_witness_after_two_failures() {
    explore(limits(true, 2, 0, 0));
}

/// Where every acknowledged operation is durable, a power loss leaves a copy as complete as it was.
#[test]
fn two_nodes_and_a_witness_that_always_sync() {
    explore(Limits {
        always: true,
        ..limits(true, 1, 1, 0)
    });
}

/// The same with an operator: the promoted copy is complete although both nodes have lost power.
#[test]
fn two_nodes_and_an_operator_that_always_sync() {
    explore(Limits {
        always: true,
        ..limits(false, 2, 2, 1)
    });
}

#[test]
fn two_nodes_and_an_operator() {
    explore(limits(false, 3, 2, 1));
}

/// Every failure, and every command of an operator.
#[test]
fn two_nodes_whose_disks_hang_and_an_operator_who_loses_operations() {
    explore(Limits {
        hangs: true,
        operator: Operator {
            demotes: true,
            forces: true,
        },
        ..limits(true, 1, 1, 0)
    });
}

/// The witness must know of a promotion by force, also if it hears of that late. That takes two failures.
#[test]
fn two_nodes_and_an_operator_who_demotes_and_forces() {
    explore(Limits {
        operator: Operator {
            demotes: true,
            forces: true,
        },
        ..limits(true, 2, 0, 0)
    });
}

#[test]
fn two_nodes_without_a_witness_and_an_operator_who_loses_operations() {
    explore(Limits {
        operator: Operator {
            demotes: true,
            forces: true,
        },
        ..limits(false, 2, 1, 1)
    });
}

/// Our own explorer and stateright see the same states: without failures, both count each state once.
#[test]
fn stateright_counts_the_same_states() {
    let limits = Limits {
        failures: 0,
        ..limits(true, 0, 1, 1)
    };
    let checker = Roles(limits).checker().spawn_bfs().join();
    let found = explore::explore(limits, &SAFE, 2);
    assert!(found.broken.is_none());
    assert_eq!(found.states, checker.unique_state_count());
    let limits = Limits {
        failures: 1,
        operations: 0,
        swaps: 0,
        ..limits
    };
    let checker = Roles(limits).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
}

/// A tool: stateright finds the shortest path to a broken promise, with the bounds of the environment.
#[test]
#[ignore = "a tool that prints the shortest path to a broken promise"]
fn the_shortest_path() {
    let checker = Roles(limits(true, 1, 1, 0)).checker().threads(2);
    let found = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs();
    found.join().assert_properties();
}

/// The model can fail: without one of the rules it finds a broken promise.
#[test]
fn without_a_rule_a_promise_is_broken() {
    for rule in [
        Break::AloneUnasked,
        Break::StopTrusted,
        Break::PowerLossUnnoticed,
        Break::GrantUntold,
        Break::ClaimUncompared,
        Break::LeaseIgnored,
        Break::ProtectEarly,
        Break::ServeAfterPowerLoss,
    ] {
        finds(rule, limits(true, 1, 1, 0));
    }
    finds(Break::SettleStale, limits(true, 2, 0, 0));
    finds(Break::SoloGrantKept, limits(true, 2, 0, 0));
}

#[test]
fn without_a_rule_of_hanging_disks_a_promise_is_broken() {
    let hangs = |failures| Limits {
        hangs: true,
        ..limits(true, failures, 0, 0)
    };
    finds(Break::GiveWayUnprotected, hangs(1));
    finds(Break::HungAsks, hangs(1));
    finds(Break::GiveWayWhileAsking, hangs(2));
}

#[test]
fn without_a_rule_of_commands_a_promise_is_broken() {
    let commands = |demotes, forces| Limits {
        operator: Operator { demotes, forces },
        ..limits(true, 2, 0, 0)
    };
    finds(Break::DemoteInSame, commands(true, false));
    finds(Break::ForceUntold, commands(false, true));
    finds(Break::ForceUnclaimed, commands(false, true));
}

/// Explores without a rule, and prints the promise that is broken then.
fn finds(rule: Break, limits: Limits) {
    let limits = Limits {
        breaks: Some(rule),
        ..limits
    };
    let found = explore::explore(limits, &SAFE, 2);
    let states = found.states;
    let broken = found.broken.map(|broken| broken.promise);
    let promise =
        broken.unwrap_or_else(|| panic!("{rule:?}: no promise is broken in {states} states"));
    println!("{rule:?}: among {states} states, against \"{promise}\"");
}
