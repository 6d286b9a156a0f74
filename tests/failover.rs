//! Roles that change: planned failovers, promotions and demotions of real nodes with programs on both mounts.
//!
//! Each test runs two node processes, two mounts and TCP between the nodes. The settings are those of a new configuration,
//! with longer times: a busy machine may stop a node for seconds. The programs keep their accounts outside the mounts
//! (`records`). Needs root and /dev/fuse.
//!
//! *A* is the node that begins as the primary, and *B* is the other one. `LOCKSTEP_FAULT_KEEP` keeps the directory of a
//! failed test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "failover/busy.rs"]
mod busy;
#[path = "failover/departure.rs"]
mod departure;
#[path = "failover/fallback.rs"]
mod fallback;
#[path = "failover/flags.rs"]
mod flags;
#[path = "failover/late.rs"]
mod late;
#[path = "failover/mappings.rs"]
mod mappings;
#[path = "failover/middle.rs"]
mod middle;
#[path = "resume/names.rs"]
mod names;
#[path = "failover/orphans.rs"]
mod orphans;
#[path = "resume/programs.rs"]
mod programs;
#[path = "failover/records.rs"]
#[allow(dead_code)] // the tests of takeovers use the rest
mod records;
#[path = "failover/stops.rs"]
mod stops;
#[path = "failover/views.rs"]
mod views;

use std::fs;

use lockstep_driver::report::ServiceStatus;
use lockstep_testbed::Which::{self, Primary as A, Secondary as B};
use lockstep_testbed::holder::Holder;
use lockstep_testbed::operator::{
    assert_identical, await_alone, await_in_sync, await_status, begin, change, cut, end, fail_over,
    resyncs, role, run,
};
use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, Settings, program, repetitions};
use lockstepfs::config::Role;

use records::{Reader, Writer, assert_records, has_file};

lockstep_testbed::network_process!();

/// A peer that is silent for long is still waited for.
const STEADY: Settings = Settings {
    peer_timeout_ms: 10_000,
    ..PATIENT
};
/// A primary that soon goes on alone.
const IMPATIENT: Settings = Settings {
    pause_limit_ms: 400,
    ..PATIENT
};

/// Two nodes that are not started; `None` if this machine cannot mount.
fn prepare(settings: Settings) -> Option<Pair> {
    repetitions("LOCKSTEP_FAILOVER_ROUNDS", 1)?;
    let environments = [NodeEnvironment::default(), NodeEnvironment::default()];
    Some(Pair::prepare(settings, environments))
}

/// Two nodes in sync.
fn start(settings: Settings) -> Option<Pair> {
    let mut pair = prepare(settings)?;
    pair.start();
    Some(pair)
}

#[test]
fn a_planned_failover_loses_nothing_and_refuses_what_comes_too_late() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let before = resyncs(&pair);
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    let mut reader = Reader::start(&on_a, "first", &first);
    reader.await_progress();

    fail_over(&mut pair, A, 1);
    let kept = first.acknowledged();
    assert_records(&on_b, "first", kept);
    let mut second = Writer::start(&on_b, "second");
    second.await_progress();
    let of_second = second.finish();
    assert_eq!(
        first.acknowledged(),
        kept,
        "a mount in standby serves nothing"
    );
    await_in_sync(&mut pair, B, 2);

    fail_over(&mut pair, B, 2);
    first.await_progress();
    reader.await_progress();
    reader.finish();
    let of_first = first.finish();
    await_in_sync(&mut pair, A, 3);
    assert_records(&on_a, "first", of_first);
    assert_records(&on_a, "second", of_second);
    assert_identical(pair.node(A));
    assert_eq!(resyncs(&pair), before, "a failover needs no resync");
}

#[test]
fn programs_on_both_nodes_go_on_through_many_failovers() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let before = resyncs(&pair);
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    fail_over(&mut pair, A, 1);
    let mut second = Writer::start(&on_b, "second");
    for round in 1..4 {
        second.await_progress();
        await_in_sync(&mut pair, B, 2 * round);
        fail_over(&mut pair, B, 2 * round);
        assert_records(&on_a, "second", second.acknowledged());
        first.await_progress();
        await_in_sync(&mut pair, A, 2 * round + 1);
        fail_over(&mut pair, A, 2 * round + 1);
        assert_records(&on_b, "first", first.acknowledged());
    }
    let of_second = second.finish();
    await_in_sync(&mut pair, B, 8);
    fail_over(&mut pair, B, 8);
    let of_first = first.finish();
    assert_records(&on_a, "first", of_first);
    assert_records(&on_a, "second", of_second);
    await_in_sync(&mut pair, A, 9);
    assert_identical(pair.node(A));
    assert_eq!(resyncs(&pair), before, "a failover needs no resync");
}

/// Files without a name may be gone after a change of the role, so the program that keeps some does not take part.
#[test]
fn programs_of_every_kind_go_on_through_failovers() {
    if let Some(mut pair) = start(STEADY) {
        let takes_part = |name: &str| name != "unlinked" && name != "mapped";
        busy::programs_go_on(&mut pair, 5, takes_part);
    }
}

#[test]
fn a_program_with_a_mapping_goes_on_through_failovers() {
    if let Some(mut pair) = start(STEADY) {
        busy::programs_go_on(&mut pair, 5, |name| name == "mapped");
    }
}

/// The mounts outlive their nodes, so a process of its own drops the caches.
#[test]
fn a_program_with_a_mapping_of_a_held_mount_goes_on_through_failovers() {
    if let Some(mut pair) = prepare(STEADY) {
        let _holders = [A, B].map(|which| Holder::start(pair.node(which)));
        pair.start();
        busy::programs_go_on(&mut pair, 5, |name| name == "mapped");
        pair.end();
    }
}

#[test]
fn many_dirty_pages_of_a_mapping_survive_a_failover() {
    if let Some(mut pair) = start(STEADY) {
        mappings::many_dirty_pages_reach_the_other_node(&mut pair);
    }
}

#[test]
fn an_append_overwrites_nothing_of_the_other_node() {
    if let Some(mut pair) = start(STEADY) {
        views::appends_never_overwrite(&mut pair);
    }
}

#[test]
fn nothing_that_a_kernel_has_cached_survives_the_time_of_the_other_node() {
    if let Some(mut pair) = start(STEADY) {
        views::nothing_cached_survives(&mut pair);
    }
}

#[test]
fn no_old_page_of_a_mapping_overwrites_what_the_other_node_wrote() {
    if let Some(mut pair) = start(STEADY) {
        views::no_old_page_overwrites(&mut pair);
    }
}

#[test]
fn a_failover_to_a_node_that_does_not_answer_is_no_success() {
    if let Some(mut pair) = start(STEADY) {
        middle::silent_successor(&mut pair);
    }
}

#[test]
fn a_file_without_a_name_is_freed_whichever_node_serves_next() {
    if let Some(mut pair) = start(STEADY) {
        orphans::are_freed(&mut pair);
    }
}

#[test]
fn a_node_that_is_killed_in_the_middle_of_a_failover_costs_nothing() {
    if let Some(mut pair) = start(STEADY) {
        middle::kills(&mut pair);
    }
}

#[test]
fn a_promotion_after_the_death_of_the_primary_keeps_every_acknowledged_record() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    pair.node_mut(A).kill();
    let of_first = first.lose();
    await_alone(pair.node(B));
    let promoted = change(pair.node(B), "promote", &[]);
    assert_eq!((promoted.role, promoted.generation), (Role::Primary, 2));
    assert_records(&on_b, "first", of_first);
    let mut second = Writer::start(&on_b, "second");
    second.await_progress();

    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 2);
    second.await_progress();
    let of_second = second.finish();
    assert_records(&on_b, "second", of_second);
    assert_identical(pair.node(B));

    fail_over(&mut pair, B, 2);
    await_in_sync(&mut pair, A, 3);
    assert_records(&on_a, "first", of_first);
    assert_records(&on_a, "second", of_second);
    assert_identical(pair.node(A));
}

#[test]
fn a_primary_that_restarts_beside_its_secondary_serves_by_itself() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let on_a = pair.node(A).mount();
    let before = resyncs(&pair);
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    pair.node_mut(A).kill();
    let of_first = first.lose();
    pair.node_mut(A).start();
    await_in_sync(&mut pair, A, 1);
    assert_records(&on_a, "first", of_first);
    assert_identical(pair.node(A));
    assert_eq!(resyncs(&pair), before, "both copies were complete");
}

/// Both nodes are killed while a program writes, and A alone is started. Returns the acknowledged records.
fn leave_undecided(pair: &mut Pair) -> u64 {
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    pair.node_mut(B).kill();
    pair.node_mut(A).kill();
    let of_first = first.lose();
    pair.node_mut(A).start();
    let status = await_status(pair.node(A), "a primary that waits", |status| {
        status.sync.service == ServiceStatus::Undecided && status.sync.reason.is_some()
    });
    assert_eq!(role(&status), (Role::Primary, 1));
    let shown = run(pair.node(A), "status", &[]);
    assert_eq!(shown.code, Some(1), "{}", shown.output);
    assert!(
        shown.output.contains("lockstep promote"),
        "{}",
        shown.output
    );
    of_first
}

#[test]
fn a_primary_without_its_secondary_is_undecided_until_the_secondary_is_back() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let of_first = leave_undecided(&mut pair);
    let mut waiting = Writer::start(&pair.node(A).mount(), "second");
    pair.node_mut(B).start();
    await_in_sync(&mut pair, A, 1);
    waiting.await_progress();
    let of_second = waiting.finish();
    assert_records(&pair.node(A).mount(), "first", of_first);
    assert_records(&pair.node(A).mount(), "second", of_second);
    assert_identical(pair.node(A));
}

#[test]
fn a_primary_without_its_secondary_serves_once_an_operator_promotes_it() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let of_first = leave_undecided(&mut pair);
    let mut waiting = Writer::start(&pair.node(A).mount(), "second");
    let promoted = change(pair.node(A), "promote", &[]);
    assert_eq!((promoted.role, promoted.generation), (Role::Primary, 1));
    waiting.await_progress();
    assert_records(&pair.node(A).mount(), "first", of_first);
    pair.node_mut(B).start();
    await_in_sync(&mut pair, A, 1);
    let of_second = waiting.finish();
    assert_records(&pair.node(A).mount(), "second", of_second);
    assert_identical(pair.node(A));
}

#[test]
fn two_nodes_that_both_served_alone_wait_for_a_demotion() {
    let Some(mut pair) = start(IMPATIENT) else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut common = Writer::start(&on_a, "common");
    common.await_progress();
    let of_common = common.finish();
    cut(&pair, true);
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    let of_first = first.finish();
    await_alone(pair.node(B));
    let promoted = change(pair.node(B), "promote", &[]);
    assert_eq!((promoted.role, promoted.generation), (Role::Primary, 2));
    let mut second = Writer::start(&on_b, "second");
    second.await_progress();
    assert_records(&on_a, "first", of_first);

    cut(&pair, false);
    let status = await_status(pair.node(A), "the earlier primary to stop", |status| {
        status.sync.service == ServiceStatus::Undecided
    });
    assert_eq!(role(&status), (Role::Primary, 1));
    for which in [A, B] {
        await_status(pair.node(which), "the cure", |status| {
            let reason = status.sync.reason.as_deref();
            reason.is_some_and(|reason| reason.contains("lockstep demote"))
        });
    }
    second.await_progress();

    // A may take up the generation of B before its report is compared with anything.
    let demoted = run(pair.node(A), "demote", &[]);
    assert_eq!(demoted.code, Some(0), "{}", demoted.error);
    await_in_sync(&mut pair, B, 2);
    let of_second = second.finish();
    assert_identical(pair.node(B));
    fail_over(&mut pair, B, 2);
    assert_records(&on_a, "common", of_common);
    assert_records(&on_a, "second", of_second);
    assert!(
        !has_file(&on_a, "first"),
        "the demotion drops the changes of A"
    );
}

#[test]
fn an_operator_finds_what_a_demoted_node_had_alone() {
    if let Some(mut pair) = start(IMPATIENT) {
        fallback::is_kept_of_a_deposed_node(&mut pair);
    }
}

#[test]
fn what_a_demoted_node_had_alone_gives_way_to_programs() {
    if repetitions("LOCKSTEP_FAILOVER_ROUNDS", 1).is_some() {
        let disk = SmallDisk::make();
        let environments = [disk.environment(), NodeEnvironment::default()];
        let mut pair = Pair::prepare(IMPATIENT, environments);
        pair.start();
        fallback::gives_way_to_programs(&mut pair);
    }
}

#[test]
fn an_operator_serves_the_whole_copy_from_before_a_resync() {
    if let Some(mut pair) = start(fallback::SLOW_RESYNC) {
        fallback::is_served_by_force(&mut pair);
    }
}

/// Checks that a node refuses a command with a cause and a cure, and that its role stays.
fn assert_refused(pair: &Pair, which: Which, command: &str, cause: &str, cure: &str) {
    let roles = || [A, B].map(|it| pair.node(it).status().map(|status| role(&status)));
    let before = roles();
    let refused = run(pair.node(which), command, &[]);
    let (output, error) = (&refused.output, &refused.error);
    assert_eq!(refused.code, Some(2), "{command}: {output}{error}");
    assert!(output.is_empty(), "{command}: {output}");
    assert!(error.contains(cause), "{command}: {error}");
    let (_, named) = error.split_once("cure: ").expect("a cure");
    assert!(named.contains(cure), "{command}: {error}");
    assert_eq!(roles(), before, "{command}");
}

#[test]
fn commands_that_would_harm_are_refused_and_change_nothing() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let before = resyncs(&pair);
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    assert_refused(&pair, B, "failover", "not the primary", "on the primary");
    assert_refused(&pair, A, "promote", "the primary already", "nothing");
    assert_refused(
        &pair,
        B,
        "promote",
        "primary is connected",
        "lockstep failover",
    );
    assert_refused(&pair, A, "demote", "in sync", "lockstep failover");
    assert_refused(&pair, B, "demote", "not the primary", "nothing");
    first.await_progress();
    await_in_sync(&mut pair, A, 1);
    assert_eq!(resyncs(&pair), before, "no connection was lost");

    pair.node_mut(B).stop();
    await_alone(pair.node(A));
    assert_refused(&pair, A, "failover", "not in sync", "lockstep status");
    pair.node_mut(B).start();
    await_in_sync(&mut pair, A, 1);
    let of_first = first.finish();
    assert_records(&pair.node(A).mount(), "first", of_first);
    assert_identical(pair.node(A));
}

#[test]
fn an_incomplete_copy_serves_only_if_the_operator_accepts_the_loss() {
    let Some(mut pair) = prepare(STEADY) else {
        return;
    };
    pair.node_mut(B).start();
    await_status(pair.node(B), "the start", |status| status.sync.started);
    assert_refused(&pair, B, "promote", "may lack", "--force-data-loss");
    let promoted = change(pair.node(B), "promote", &["--force-data-loss"]);
    assert_eq!((promoted.role, promoted.generation), (Role::Primary, 4));
    let on_b = pair.node(B).mount();
    let mut second = Writer::start(&on_b, "second");
    second.await_progress();
    let of_second = second.finish();
    assert_records(&on_b, "second", of_second);
}

/// Nothing can end a program that waits in standby, but the end of its node can.
#[test]
fn a_node_stops_cleanly_while_a_program_waits_in_its_mount() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    fail_over(&mut pair, A, 1);
    pair.node_mut(A).stop();
    let of_first = first.lose();
    assert_records(&pair.node(B).mount(), "first", of_first);
    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 2);
    fail_over(&mut pair, B, 2);
    assert_records(&pair.node(A).mount(), "first", of_first);
}

#[test]
fn of_two_commands_at_once_one_changes_the_role() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let both = [(); 2].map(|()| begin(pair.node(A), "failover"));
    let codes = both.map(|command| end(command).code);
    assert!(
        codes == [Some(0), Some(2)] || codes == [Some(2), Some(0)],
        "{codes:?}"
    );
    await_in_sync(&mut pair, B, 2);
}

#[test]
fn a_comparison_beside_failovers_finds_no_difference() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    for round in 0..5 {
        first.await_progress();
        await_in_sync(&mut pair, A, 2 * round + 1);
        let verify = begin(pair.node(A), "verify");
        fail_over(&mut pair, A, 2 * round + 1);
        let verified = end(verify);
        assert_ne!(
            verified.code,
            Some(1),
            "{}{}",
            verified.output,
            verified.error
        );
        await_in_sync(&mut pair, B, 2 * round + 2);
        fail_over(&mut pair, B, 2 * round + 2);
    }
    first.finish();
}

#[test]
fn each_node_keeps_its_role_over_a_restart_whatever_node_toml_says() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    let of_first = first.finish();
    fail_over(&mut pair, A, 1);
    await_in_sync(&mut pair, B, 2);
    let before = resyncs(&pair);
    pair.stop();
    let text = fs::read_to_string(pair.node(A).config()).unwrap();
    assert!(text.contains("role = \"primary\""), "{text}");
    pair.start();
    await_in_sync(&mut pair, B, 2);
    assert_eq!(resyncs(&pair), before, "both copies were complete");
    assert_records(&pair.node(B).mount(), "first", of_first);
    assert_identical(pair.node(B));
}

#[test]
fn a_drill_goes_there_and_back_and_loses_no_record() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    let control = pair.node(B).control();
    let back = format!(
        "{} failover {} --control {}",
        program(),
        DATASTORE,
        control.display()
    );
    let drill = run(pair.node(A), "drill", &["--back", &back]);
    assert_eq!(drill.code, Some(0), "{}{}", drill.output, drill.error);
    for part in [
        "(generation 2); requests waited",
        "back  ",
        "primary of generation 3, in sync",
    ] {
        assert!(drill.output.contains(part), "{part:?}: {}", drill.output);
    }
    await_in_sync(&mut pair, A, 3);
    first.await_progress();
    let of_first = first.finish();
    assert_records(&pair.node(A).mount(), "first", of_first);
    assert_identical(pair.node(A));
}

#[test]
fn a_drill_says_where_it_has_stopped() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let not_here = run(pair.node(B), "drill", &["--back", "true"]);
    assert_eq!(not_here.code, Some(2), "{}", not_here.error);
    assert!(
        not_here.error.contains("run the drill on the primary"),
        "{}",
        not_here.error
    );
    // The way back fails: the other node serves.
    let one_way = run(pair.node(A), "drill", &["--back", "false"]);
    assert_eq!(one_way.code, Some(1), "{}{}", one_way.output, one_way.error);
    assert!(
        one_way.error.contains("the other node serves"),
        "{}",
        one_way.error
    );
    await_in_sync(&mut pair, B, 2);
    // The way back does not come in time.
    let too_late = run(pair.node(B), "drill", &["--back", "true", "--timeout", "0"]);
    assert_eq!(
        too_late.code,
        Some(1),
        "{}{}",
        too_late.output,
        too_late.error
    );
    assert!(
        too_late.error.contains("lockstep why data"),
        "{}",
        too_late.error
    );
    await_in_sync(&mut pair, A, 3);
}
