//! Failovers that no operator asks for: two nodes, a witness, and faults. The nodes are real processes with mounts.
//!
//! *A* is the node that begins as the primary, and *B* is the other one. Programs on both mounts keep their accounts outside
//! the mounts (`records`). `LOCKSTEP_FAULT_KEEP` keeps the directory of a failed test. Needs root and /dev/fuse.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "takeover/added_witness.rs"]
mod added_witness;
#[path = "takeover/full_disk.rs"]
mod full_disk;
#[path = "takeover/power_losses.rs"]
mod power_losses;
#[path = "failover/records.rs"]
#[allow(dead_code)] // the tests of planned failovers use the rest
mod records;
#[path = "takeover/stalled_disk.rs"]
mod stalled_disk;
#[path = "takeover/stalls.rs"]
mod stalls;
#[path = "takeover/strangers.rs"]
mod strangers;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstep_lossy::disk::CallClass;
use lockstep_roles::InSyncSet;
use lockstep_testbed::Which::{self, Primary as A, Secondary as B};
use lockstep_testbed::operator::{
    self, assert_identical, await_alone, await_in_sync, await_status, change, cut, fail_over,
    other, role, run,
};
use lockstep_testbed::server::{self, Failure, Server};
use lockstep_testbed::witness::{Witness, await_protected, isolate};
use lockstep_testbed::{NodeEnvironment, PATIENT, Pair, Settings, await_that, repetitions};
use lockstepfs::config::Role;

use records::{Writer, assert_records};

lockstep_testbed::network_process!();

/// The takeover comes this time after the loss of the connection. A busy machine may stop a node for a while.
const FAILOVER_AFTER_MS: u64 = 1500;

/// Two nodes with a witness, in sync, and protected by it; `None` if this machine cannot mount.
fn start() -> Option<(Pair, Witness)> {
    start_on(NodeEnvironment::default())
}

/// The same, with this environment of A.
fn start_on(of_a: NodeEnvironment) -> Option<(Pair, Witness)> {
    start_with(PATIENT, of_a)
}

fn start_with(settings: Settings, of_a: NodeEnvironment) -> Option<(Pair, Witness)> {
    start_both(settings, [of_a, NodeEnvironment::default()])
}

fn start_both(settings: Settings, of_nodes: [NodeEnvironment; 2]) -> Option<(Pair, Witness)> {
    repetitions("LOCKSTEP_TAKEOVER_ROUNDS", 1)?;
    let mut pair = Pair::prepare(settings, of_nodes);
    let witness = Witness::start(&pair, FAILOVER_AFTER_MS);
    pair.start();
    await_protected(&pair, A);
    Some((pair, witness))
}

fn has_no_answer(status: &DatastoreStatus) -> bool {
    status
        .witness
        .as_ref()
        .is_some_and(|witness| !witness.answers && witness.trouble.is_some())
}

fn await_service(pair: &Pair, which: Which, service: ServiceStatus) -> DatastoreStatus {
    await_status(pair.node(which), &format!("{service:?}"), |status| {
        status.sync.service == service
    })
}

fn is_serving(status: &DatastoreStatus) -> bool {
    matches!(
        status.sync.service,
        ServiceStatus::Alone | ServiceStatus::Mirrored | ServiceStatus::WritesAlone
    )
}

#[test]
fn the_secondary_takes_over_from_a_killed_primary_by_itself() {
    let Some((mut pair, witness)) = start() else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    let mut second = Writer::start(&on_b, "second");
    pair.node_mut(A).kill();
    let of_first = first.lose();
    second.await_progress();
    let status = await_service(&pair, B, ServiceStatus::Alone);
    assert_eq!(role(&status), (Role::Primary, 2));
    assert_records(&on_b, "first", of_first);
    let record = witness.record().unwrap();
    assert_eq!(
        (record.primary, record.generation.get()),
        (witness.member(B), 2)
    );

    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 2);
    await_protected(&pair, B);
    let of_second = second.finish();
    assert_identical(pair.node(B));
    fail_over(&mut pair, B, 2);
    assert_records(&on_a, "first", of_first);
    assert_records(&on_a, "second", of_second);
}

/// The comparisons in the log of a node: the subject, and the number of compared bytes.
fn resyncs(pair: &Pair, which: Which) -> Vec<(String, u64)> {
    let log = pair.node(which).logged();
    let line = |line: &str| {
        let (_, rest) = line.split_once("resync of ")?;
        let (of, _) = rest.split_once(": content is equal")?;
        let (_, bytes) = line.split_once(" bytes=")?;
        let bytes = bytes.split_whitespace().next()?.parse().ok()?;
        Some((of.to_owned(), bytes))
    };
    log.lines().filter_map(line).collect()
}

/// A file that a comparison of everything would read.
const LARGE_BYTES: usize = 32 << 20;

#[test]
fn a_node_that_was_away_gets_what_has_changed() {
    let Some((mut pair, witness)) = start() else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    fs::write(on_a.join("large"), vec![7; LARGE_BYTES]).unwrap();
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    pair.node_mut(A).kill();
    let of_first = first.lose();
    await_service(&pair, B, ServiceStatus::Alone);
    let large = File::options()
        .write(true)
        .open(on_b.join("large"))
        .unwrap();
    large.write_all_at(b"changed", 5 << 20).unwrap();
    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 2);
    await_protected(&pair, B);
    let found = resyncs(&pair, B);
    let is_short =
        |(of, bytes): &(String, u64)| of == "what has changed" && *bytes < LARGE_BYTES as u64 / 2;
    // A late word of the secondary may end the sync at once. Then the writes since the last barrier are compared, with the large file.
    assert!(found.first().is_some_and(is_short), "{found:?}");
    let before = found.len();

    // The secondary is away for longer than the primary waits.
    cut(&pair, true);
    await_service(&pair, B, ServiceStatus::Alone);
    large.write_all_at(b"again", 9 << 20).unwrap();
    fs::write(on_b.join("new"), "new").unwrap();
    cut(&pair, false);
    await_in_sync(&mut pair, B, 2);
    let found = resyncs(&pair, B);
    assert!(found.get(before).is_some_and(is_short), "{found:?}");
    assert_records(&on_b, "first", of_first);
    assert_identical(pair.node(B));
    assert_eq!(witness.record().unwrap().primary, witness.member(B));
}

#[test]
fn the_primary_serves_alone_after_the_word_of_the_witness() {
    let Some((mut pair, witness)) = start() else {
        return;
    };
    let mut writer = Writer::start(&pair.node(A).mount(), "first");
    writer.await_progress();
    pair.node_mut(B).kill();
    writer.await_progress();
    let record = witness.record().unwrap();
    assert_eq!(
        (record.primary, record.in_sync, record.generation.get()),
        (witness.member(A), InSyncSet::PrimaryOnly, 1)
    );
    pair.node_mut(B).start();
    await_in_sync(&mut pair, A, 1);
    await_protected(&pair, A);
    writer.finish();
    assert_identical(pair.node(A));
    assert_eq!(witness.record().unwrap().in_sync, InSyncSet::Both);
}

#[test]
fn a_cut_between_the_nodes_leaves_the_primary() {
    let Some((mut pair, witness)) = start() else {
        return;
    };
    let mut writer = Writer::start(&pair.node(A).mount(), "first");
    for _ in 0..3 {
        writer.await_progress();
        cut(&pair, true);
        await_service(&pair, A, ServiceStatus::Alone);
        writer.await_progress();
        // B has asked meanwhile, and may not take over.
        let status = pair.node(B).status().unwrap();
        assert_eq!(role(&status), (Role::Secondary, 1));
        cut(&pair, false);
        await_in_sync(&mut pair, A, 1);
        await_protected(&pair, A);
    }
    writer.finish();
    assert_eq!(witness.record().unwrap().primary, witness.member(A));
    assert_identical(pair.node(A));
}

#[test]
fn an_isolated_primary_stops_and_comes_back_as_the_secondary() {
    let Some((mut pair, witness)) = start() else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    isolate(&pair, &witness, A, true);
    let mut second = Writer::start(&on_b, "second");
    second.await_progress();
    let status = pair.node(A).status().unwrap();
    assert!(!is_serving(&status), "{status:#?}");
    let acknowledged = first.acknowledged();
    assert_records(&on_b, "first", acknowledged);

    isolate(&pair, &witness, A, false);
    await_in_sync(&mut pair, B, 2);
    let of_first = first.lose();
    assert_eq!(of_first, acknowledged, "nothing was acknowledged without B");
    let of_second = second.finish();
    assert_identical(pair.node(B));
    await_protected(&pair, B);
    fail_over(&mut pair, B, 2);
    assert_records(&on_a, "first", of_first);
    assert_records(&on_a, "second", of_second);
}

/// The kernel of A has the file in its memory. Nothing of that is shown once B may have changed the file.
#[test]
fn an_isolated_primary_shows_nothing_old_from_the_memory_of_its_kernel() {
    let Some((mut pair, witness)) = start() else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    fs::write(on_a.join("file"), "old").unwrap();
    let file = File::open(on_a.join("file")).unwrap();
    assert_eq!(fs::read(on_a.join("file")).unwrap(), b"old");
    isolate(&pair, &witness, A, true);
    await_service(&pair, B, ServiceStatus::Alone);
    fs::write(on_b.join("file"), "new").unwrap();
    let (shown, first) = channel();
    thread::spawn(move || {
        let mut found = [0; 3];
        let read = file.read_exact_at(&mut found, 0).map(|()| found);
        shown.send(read.is_ok_and(|found| &found == b"old"))
    });
    // The read waits, since A does not serve.
    let early = first.recv_timeout(Duration::from_secs(1));
    assert_ne!(early, Ok(true), "A shows what B has changed");
    isolate(&pair, &witness, A, false);
    await_in_sync(&mut pair, B, 2);
    await_protected(&pair, B);
    fail_over(&mut pair, B, 2);
    if early.is_err() {
        assert_eq!(first.recv_timeout(lockstep_testbed::WAIT_LIMIT), Ok(false));
    }
    assert_eq!(fs::read(on_a.join("file")).unwrap(), b"new");
}

#[test]
fn no_node_serves_alone_without_the_word_of_the_witness() {
    let Some((mut pair, mut witness)) = start() else {
        return;
    };
    let mut writer = Writer::start(&pair.node(A).mount(), "first");
    writer.await_progress();
    witness.stop();
    writer.await_progress();
    cut(&pair, true);
    await_status(pair.node(A), "a question to the witness", |status| {
        !is_serving(status) && has_no_answer(status)
    });
    let before = writer.acknowledged();
    await_status(pair.node(B), "a question of B", has_no_answer);
    assert_eq!(role(&pair.node(B).status().unwrap()), (Role::Secondary, 1));
    assert_eq!(writer.acknowledged(), before);
    witness.resume();
    // The node that the witness hears first leads.
    let leads = |which: Which| pair.node(which).status().is_some_and(|it| is_serving(&it));
    await_that("a node that serves", || leads(A) || leads(B));
    let leader = if leads(B) { B } else { A };
    assert!(!leads(other(leader)));
    if leader == A {
        writer.await_progress();
    } else {
        assert_records(&pair.node(B).mount(), "first", writer.acknowledged());
    }
    cut(&pair, false);
    pair.await_in_sync();
    // B may have stood as a candidate meanwhile: then A leads a later generation.
    let (of_leader, generation) = role(&pair.node(leader).status().unwrap());
    assert_eq!(of_leader, Role::Primary, "generation {generation}");
    // The writer of a deposed node has ended with an error, or waits.
    if leader == A {
        writer.finish();
    }
    assert_identical(pair.node(leader));
}

#[test]
fn a_lost_witness_is_replaced_while_the_nodes_go_on() {
    let Some((mut pair, mut witness)) = start() else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    witness.replace();
    first.await_progress();
    await_that("the record of the new witness", || {
        witness
            .record()
            .is_some_and(|record| record.in_sync == InSyncSet::Both)
    });
    await_protected(&pair, A);
    pair.node_mut(A).kill();
    let of_first = first.lose();
    await_service(&pair, B, ServiceStatus::Alone);
    assert_records(&pair.node(B).mount(), "first", of_first);
}

/// Each witness could let another node serve.
#[test]
fn no_node_takes_over_while_the_nodes_ask_different_witnesses() {
    let Some((mut pair, first)) = start() else {
        return;
    };
    let second = Witness::beside(&pair);
    second.configure_instead_of(&first, &pair, A);
    pair.node_mut(A).kill();
    pair.node_mut(A).start();
    await_in_sync(&mut pair, A, 1);
    for which in [A, B] {
        await_status(pair.node(which), "a witness of its own", asks_another);
    }
    // The first witness would still let B take over.
    pair.node_mut(A).kill();
    thread::sleep(Duration::from_millis(3 * FAILOVER_AFTER_MS));
    assert!(!is_serving(&pair.node(B).status().unwrap()));
    second.configure_instead_of(&first, &pair, B);
    pair.node_mut(B).kill();
    pair.node_mut(B).start();
    pair.node_mut(A).start();
    await_in_sync(&mut pair, A, 1);
    await_protected(&pair, A);
}

/// Whether the nodes ask different witnesses.
fn asks_another(status: &DatastoreStatus) -> bool {
    let trouble = status.witness.as_ref().and_then(|it| it.trouble.as_ref());
    trouble.is_some_and(|text| text.contains("asks another witness"))
}

#[test]
fn a_restart_of_a_process_is_no_failover() {
    let Some((mut pair, _witness)) = start() else {
        return;
    };
    for which in [A, B, A] {
        pair.node_mut(which).kill();
        pair.node_mut(which).start();
        pair.await_in_sync();
        await_protected(&pair, A);
        assert_eq!(role(&pair.node(A).status().unwrap()), (Role::Primary, 1));
    }
}

#[test]
fn one_node_of_two_that_ended_serves_with_the_witness() {
    let Some((mut pair, _witness)) = start() else {
        return;
    };
    let mut writer = Writer::start(&pair.node(A).mount(), "first");
    writer.await_progress();
    for (starting, generation) in [(A, 1), (B, 2)] {
        pair.node_mut(A).kill();
        pair.node_mut(B).kill();
        pair.node_mut(starting).start();
        let status = await_service(&pair, starting, ServiceStatus::Alone);
        assert_eq!(role(&status), (Role::Primary, generation));
        pair.node_mut(operator::other(starting)).start();
        await_in_sync(&mut pair, starting, generation);
        await_protected(&pair, starting);
    }
    let of_first = writer.lose();
    assert_records(&pair.node(B).mount(), "first", of_first);
    assert_identical(pair.node(B));
}

/// Gives the role from B, the primary of generation 2, back to A, which has come back. Checks what the programs on A, `first`,
/// and on B, `second`, have written.
fn give_back(pair: &mut Pair, first: Writer, second: Writer) {
    let of_second = second.finish();
    assert_identical(pair.node(B));
    await_protected(pair, B);
    fail_over(pair, B, 2);
    let on_a = pair.node(A).mount();
    assert_records(&on_a, "second", of_second);
    // A record that was under way has failed; or the record waited, and goes on now.
    let of_first = first.end();
    assert_records(&on_a, "first", of_first);
}

#[test]
fn a_primary_that_was_suspended_finds_itself_deposed() {
    let Some((mut pair, _witness)) = start() else {
        return;
    };
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut first = Writer::start(&on_a, "first");
    first.await_progress();
    pair.node(A).freeze();
    let mut second = Writer::start(&on_b, "second");
    second.await_progress();
    pair.node(A).thaw();
    await_in_sync(&mut pair, B, 2);
    // A may have had B's answer to the last record before it was suspended.
    assert_records(&on_b, "first", first.acknowledged());
    give_back(&mut pair, first, second);
}

#[test]
fn an_operator_promotes_past_a_lost_witness_by_force_only() {
    let Some((mut pair, mut witness)) = start() else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    witness.stop();
    pair.node_mut(A).kill();
    let of_first = first.lose();
    await_alone(pair.node(B));
    let refused = run(pair.node(B), "promote", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.output);
    assert!(refused.error.contains("cure: "), "{}", refused.error);
    let promoted = change(pair.node(B), "promote", &["--force-data-loss"]);
    assert_eq!((promoted.role, promoted.generation), (Role::Primary, 4));
    assert!(promoted.witness_unaware, "{promoted:?}");
    assert_records(&pair.node(B).mount(), "first", of_first);
    witness.resume();
    await_status(pair.node(B), "a witness that knows", |status| {
        status.witness.as_ref().is_some_and(|it| it.answers)
    });
    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 4);
    await_protected(&pair, B);
    assert_identical(pair.node(B));
}

/// The old primary has served alone by the answer of the witness. So it would serve again when it starts.
#[test]
fn a_forced_promotion_tells_the_witness() {
    let Some((mut pair, _witness)) = start() else {
        return;
    };
    pair.node_mut(B).kill();
    await_service(&pair, A, ServiceStatus::Alone);
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    first.finish();
    pair.node_mut(A).kill();
    pair.node_mut(B).start();
    await_status(pair.node(B), "an open store", |status| status.sync.started);
    let promoted = change(pair.node(B), "promote", &["--force-data-loss"]);
    assert_eq!((promoted.role, promoted.generation), (Role::Primary, 4));
    assert!(!promoted.witness_unaware, "{promoted:?}");
    // Only the witness tells A that B serves: the nodes cannot reach each other yet.
    cut(&pair, true);
    pair.node_mut(A).start();
    await_status(pair.node(A), "a deposed primary", |status| {
        let reason = status.sync.reason.as_deref().unwrap_or_default();
        status.sync.service == ServiceStatus::Undecided && reason.contains("both nodes have served")
    });
    cut(&pair, false);
    change(pair.node(A), "demote", &[]);
    await_in_sync(&mut pair, B, 4);
    assert_identical(pair.node(B));
}

#[test]
fn an_operator_ends_the_wait_of_a_frozen_primary_by_force() {
    let freezing = Settings {
        on_peer_loss: "freeze",
        ..PATIENT
    };
    let Some((mut pair, mut witness)) = start_with(freezing, NodeEnvironment::default()) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    pair.node_mut(B).kill();
    await_status(pair.node(A), "a frozen primary", |status| {
        status.sync.state == "frozen until the peer is back"
    });
    witness.stop();
    let refused = run(pair.node(A), "promote", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.output);
    let verifier = |pair: &Pair| {
        pair.node(A)
            .status()
            .unwrap()
            .sync
            .copy
            .write_verifier
            .unwrap()
    };
    let before = verifier(&pair);
    let promoted = change(pair.node(A), "promote", &["--force-data-loss"]);
    assert_eq!((promoted.role, promoted.generation), (Role::Primary, 1));
    assert_ne!(verifier(&pair), before, "B may have taken over");
    first.await_progress();
    first.finish();
}

/// A server on which A runs; `None` if this machine cannot mount.
fn server_of_a() -> Option<Server> {
    repetitions("LOCKSTEP_TAKEOVER_ROUNDS", 1)?;
    server::isolate();
    Some(Server::start())
}

#[test]
fn the_secondary_takes_over_from_a_primary_whose_disk_has_failed() {
    let Some(server) = server_of_a() else { return };
    let Some((pair, witness)) = start_on(server.environment()) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    server.fail(Failure::OfAll(CallClass::Sync));
    let of_first = first.lose();
    await_service(&pair, B, ServiceStatus::Alone);
    assert_records(&pair.node(B).mount(), "first", of_first);
    assert_eq!(witness.record().unwrap().primary, witness.member(B));
    let status = pair.node(A).status().unwrap();
    assert!(
        status.poisoned.is_some() && !is_serving(&status),
        "{status:#?}"
    );
}
