//! A model of two nodes, their region marks and their barriers: every order of events, with a bounded number of failures, holds
//! the promises of docs/protocol/delta.md.
//!
//! The model runs the product's [`BarrierMachine`](lockstep_delta::BarrierMachine), [`AnnouncedRegions`](lockstep_delta::AnnouncedRegions),
//! [`MarkCoverage`](lockstep_delta::MarkCoverage) and [`CopyDifference`](lockstep_delta::CopyDifference). Around them the model
//! has the contents and marks of both nodes, in memory and on stable storage, and the operations in flight.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests may panic

#[path = "model/apart.rs"]
mod apart;
#[path = "model/canonical.rs"]
mod canonical;
#[path = "model/explore.rs"]
mod explore;
#[path = "model/limits.rs"]
mod limits;
#[path = "model/meeting.rs"]
mod meeting;
#[path = "model/mirror.rs"]
mod mirror;
#[path = "model/promises.rs"]
mod promises;
#[path = "model/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::time::Instant;

use explore::Found;
use limits::{Break, Hands, Limits, MarksAlone};
use promises::Sight;

const fn limits(failures: u8, writes: u8, operations: u8, barriers: u8) -> Limits {
    Limits {
        failures,
        writes,
        operations,
        barriers,
        ahead: false,
        creates: false,
        alone: MarksAlone::Durable,
        is_unasked: false,
        hands: Hands::Nothing,
        breaks: None,
    }
}

/// Explores all states, prints their number, and fails with a path to the first broken promise.
fn explore(limits: Limits) -> BTreeSet<Sight> {
    let start = Instant::now();
    let Found {
        states,
        seen,
        broken,
    } = explore::explore(limits);
    println!("{states} states in {:?}: {limits:?}", start.elapsed());
    if let Some(broken) = broken {
        explore::print_path(limits, &broken.path);
        panic!("{}: see the path above", broken.promise);
    }
    seen
}

/// Fails unless the exploration has met these kinds of states.
fn sees(seen: &BTreeSet<Sight>, expected: &[Sight]) {
    for sight in expected {
        assert!(seen.contains(sight), "{sight:?} is not among {seen:?}");
    }
}

#[test]
fn one_failure() {
    let seen = explore(limits(1, 1, 1, 1));
    sees(&seen, &[Sight::Takeover, Sight::BarrierInResync]);
    let seen = explore(limits(1, 2, 0, 1));
    sees(&seen, &[Sight::WaitsInBarrier]);
}

#[test]
fn two_failures() {
    let seen = explore(limits(2, 1, 0, 1));
    sees(&seen, &[Sight::BaseAfterBoth]);
    explore(limits(2, 1, 1, 0));
    explore(limits(2, 0, 1, 1));
}

#[test]
fn three_failures() {
    explore(limits(3, 1, 0, 0));
}

/// More than each test run needs: announcements of both regions, three failures with an operation and a barrier, and takeovers by force with a barrier.
#[test]
#[ignore = "explores for minutes: run after changes of the rules"]
fn wide_bounds() {
    let ahead = Limits {
        ahead: true,
        ..limits(1, 2, 0, 1)
    };
    explore(ahead);
    explore(limits(3, 0, 1, 1));
    let forced = Limits {
        hands: Hands::Force,
        ..limits(2, 1, 0, 1)
    };
    explore(forced);
}

/// The creation of a file announces its regions.
#[test]
fn a_new_file_needs_no_announcement() {
    let creates = |limits| Limits {
        creates: true,
        ..limits
    };
    explore(creates(limits(1, 1, 1, 1)));
    explore(creates(limits(2, 1, 1, 0)));
    explore(traces(creates(limits(1, 1, 1, 1))));
    finds(Break::NewFileUnmarked, creates(limits(1, 1, 1, 0)));
    finds(Break::AnnouncedForOldInterval, creates(limits(1, 1, 1, 1)));
}

/// A node that serves alone begins a trace, and barriers run in its resync.
fn traces(limits: Limits) -> Limits {
    Limits {
        alone: MarksAlone::Traced,
        ..limits
    }
}

/// The source of a resync that loses its power goes on from the rest of its last barrier (P30).
#[test]
fn without_a_rule_of_barriers_in_a_resync_a_promise_is_broken() {
    finds(Break::RestUndurable, traces(limits(2, 1, 0, 1)));
    finds(
        Break::ResyncForgetsFinishedEarly,
        traces(limits(2, 1, 0, 1)),
    );
    finds(Break::ResyncUnannounced, traces(limits(2, 1, 0, 1)));
    finds(Break::NamesOutliveResync, traces(limits(3, 1, 0, 1)));
}

/// More than each test run needs, with a trace and barriers in the resync: takeovers by force, and without the marks of the secondary.
#[test]
#[ignore = "explores for minutes: run after changes of the rules"]
fn wide_bounds_with_a_trace() {
    let forced = Limits {
        hands: Hands::Force,
        ..traces(limits(2, 1, 0, 1))
    };
    explore(forced);
    let unasked = Limits {
        is_unasked: true,
        ..traces(limits(2, 1, 0, 1))
    };
    explore(unasked);
}

/// A node that serves alone begins a trace, and its marks are asked for when it comes back as the secondary (P29).
#[test]
fn a_node_that_serves_alone_has_a_trace() {
    explore(traces(limits(1, 1, 1, 1)));
    let seen = explore(traces(limits(2, 1, 0, 1)));
    sees(&seen, &[Sight::TracedBase, Sight::PowerInResync]);
    explore(traces(limits(2, 1, 1, 0)));
    explore(traces(limits(2, 0, 1, 1)));
    explore(traces(limits(3, 1, 0, 0)));
    finds(Break::TraceLacksColumns, traces(limits(2, 1, 0, 0)));
    finds(Break::TraceWithPending, traces(limits(2, 0, 1, 0)));
    finds(Break::TraceOutlivesAlone, traces(limits(3, 1, 0, 0)));
    finds(Break::MarkUndurableAlone, traces(limits(2, 1, 0, 0)));
}

/// A node that serves alone has its marks in memory only, before its trace begins.
#[test]
fn marks_of_a_node_alone_are_in_memory() {
    let in_memory = |limits| Limits {
        alone: MarksAlone::InMemory,
        ..limits
    };
    let seen = explore(in_memory(limits(1, 2, 0, 1)));
    sees(&seen, &[Sight::WaitsInBarrier]);
    let ahead = Limits {
        ahead: true,
        ..in_memory(limits(1, 2, 0, 1))
    };
    explore(ahead);
    let seen = explore(in_memory(limits(2, 1, 0, 1)));
    sees(&seen, &[Sight::DeposedBase]);
    explore(in_memory(limits(2, 0, 1, 1)));
    explore(in_memory(limits(3, 1, 0, 0)));
    let forced = Limits {
        hands: Hands::Force,
        ..in_memory(limits(2, 1, 0, 1))
    };
    explore(forced);
    let old_copies = Limits {
        hands: Hands::PutBack,
        ..in_memory(limits(1, 1, 0, 1))
    };
    explore(old_copies);
    finds(Break::NamesOutliveAlone, in_memory(limits(2, 1, 0, 0)));
    finds(Break::AttemptOutlivesSync, in_memory(limits(2, 1, 0, 1)));
    finds(
        Break::WriteBeforeAnnouncement,
        in_memory(limits(1, 1, 0, 0)),
    );
    finds(Break::TurnAfterOperation, in_memory(limits(1, 1, 0, 1)));
}

/// Both nodes may serve alone, by an operator.
#[test]
fn takeovers_by_force() {
    let forced = |limits| Limits {
        hands: Hands::Force,
        ..limits
    };
    explore(forced(limits(2, 1, 0, 0)));
    explore(forced(limits(3, 1, 0, 0)));
}

#[test]
fn an_old_copy_is_put_back() {
    let old_copies = |limits| Limits {
        hands: Hands::PutBack,
        ..limits
    };
    explore(old_copies(limits(1, 1, 0, 1)));
    explore(old_copies(limits(2, 1, 1, 0)));
}

/// A tool: one exploration with the bounds of the environment.
#[test]
#[ignore = "a tool that explores with the bounds of the environment"]
fn with_the_bounds_of_the_environment() {
    let bound = |name: &str| {
        let set = std::env::var(format!("LOCKSTEP_MODEL_{name}")).ok();
        set.map_or(0, |set| set.parse::<u8>().unwrap())
    };
    let seen = explore(Limits {
        failures: bound("FAILURES"),
        writes: bound("WRITES"),
        operations: bound("OPERATIONS"),
        barriers: bound("BARRIERS"),
        ahead: bound("AHEAD") > 0,
        creates: bound("CREATES") > 0,
        alone: match (bound("IN_MEMORY"), bound("TRACES")) {
            (_, 1..) => MarksAlone::Traced,
            (1.., _) => MarksAlone::InMemory,
            _ => MarksAlone::Durable,
        },
        is_unasked: bound("UNASKED") > 0,
        hands: match (bound("FORCES"), bound("OLD_COPIES")) {
            (0, 0) => Hands::Nothing,
            (0, _) => Hands::PutBack,
            _ => Hands::Force,
        },
        breaks: None,
    });
    println!("{seen:?}");
}

/// The model can fail: without one of the rules it finds a broken promise.
#[test]
fn without_a_rule_of_marks_a_promise_is_broken() {
    finds(Break::MarkAfterWrite, limits(2, 1, 0, 0));
    finds(Break::MarkAfterSend, limits(2, 1, 0, 0));
    finds(Break::WriteBeforeAnnouncement, limits(1, 1, 0, 0));
    finds(Break::AnnouncedUnmarked, limits(1, 1, 0, 0));
    finds(Break::AnnouncedForOldInterval, limits(1, 2, 0, 1));
    finds(Break::MarkUndurableAlone, limits(2, 1, 0, 0));
    finds(Break::DurableTooEarly, limits(2, 1, 0, 0));
    finds(Break::StartForgetsPaw, limits(2, 2, 0, 0));
}

/// Each of these takes some million states.
#[test]
#[ignore = "explores for minutes: run after changes of the rules"]
fn without_a_rule_that_needs_four_events_a_promise_is_broken() {
    finds(Break::AnnouncementsOutliveLink, limits(3, 1, 0, 1));
    finds(Break::NumbersReused, limits(3, 1, 0, 1));
    finds(Break::LateWordEndsRest, limits(3, 0, 1, 1));
}

#[test]
fn without_a_rule_of_barriers_a_promise_is_broken() {
    finds(Break::BarrierDropsNewMarks, limits(1, 1, 0, 1));
    finds(Break::BarrierBeforeSync, limits(1, 1, 0, 1));
    finds(Break::BarrierBeforeOwnSync, limits(1, 1, 0, 1));
    finds(Break::TurnAfterOperation, limits(1, 1, 0, 1));
    finds(Break::LinkWithoutTurn, limits(2, 1, 0, 1));
    finds(Break::BarrierSkipsWaiting, limits(1, 1, 0, 1));
    finds(Break::LaterIntervalClears, limits(2, 2, 0, 1));
    finds(Break::JoinForgetsOlder, limits(2, 2, 0, 1));
    finds(Break::AttemptPushesOut, limits(2, 0, 0, 2));
    finds(Break::BarrierHoldsClients, limits(0, 1, 0, 1));
}

#[test]
fn without_a_rule_of_bases_a_promise_is_broken() {
    finds(Break::OneIntactAnywhere, limits(3, 1, 0, 0));
    finds(Break::UnionForgetsSecondary, limits(1, 1, 0, 0));
    finds(Break::UnionInMemory, limits(3, 1, 0, 0));
    finds(Break::RollBackExecuted, limits(2, 0, 1, 0));
    finds(Break::RollBackUnnoted, limits(2, 0, 1, 0));
    finds(Break::SoftBaseForgetsOperations, limits(1, 0, 1, 0));
}

#[test]
fn without_a_rule_of_resyncs_a_promise_is_broken() {
    finds(Break::ProgressUndurable, limits(2, 1, 0, 1));
    finds(Break::RestUndurable, limits(2, 1, 0, 1));
    finds(Break::ResyncForgetsFinishedEarly, limits(2, 1, 0, 1));
    finds(Break::FinishedOfOtherCopy, limits(1, 1, 0, 0));
}

/// Explores without a rule, and prints the promise that is broken then.
fn finds(rule: Break, limits: Limits) {
    let limits = Limits {
        breaks: Some(rule),
        ..limits
    };
    let Found { states, broken, .. } = explore::explore(limits);
    let broken =
        broken.unwrap_or_else(|| panic!("{rule:?}: no promise is broken in {states} states"));
    println!(
        "{rule:?}: among {states} states, against \"{}\"",
        broken.promise
    );
    if std::env::var_os("LOCKSTEP_MODEL_PATHS").is_some() {
        explore::print_path(limits, &broken.path);
    }
}
