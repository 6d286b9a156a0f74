//! Nodes that are killed in the middle of a failover: no acknowledged record is lost, and one node serves afterwards.

use std::time::Duration;

use lockstep_driver::report::ServiceStatus;
use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_in_sync, begin, end, other, role};
use lockstep_testbed::{Pair, Which};
use lockstepfs::config::Role;

use crate::records::{Writer, assert_records};

/// A failover takes some ten steps of this time.
const STEP: Duration = Duration::from_millis(6);

/// The files of the writers, one for each kill.
const NAMES: [&str; 24] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
    "17", "18", "19", "20", "21", "22", "23",
];

/// The node that serves, once exactly one does and the nodes are in sync.
fn await_primary(pair: &mut Pair) -> Which {
    pair.await_in_sync();
    let serves = |which: &Which| {
        let status = pair.node(*which).status().unwrap();
        status.settings.role == Role::Primary && status.sync.service == ServiceStatus::Mirrored
    };
    let serving: Vec<Which> = [A, B].into_iter().filter(serves).collect();
    assert_eq!(serving.len(), 1, "{serving:?}");
    serving[0]
}

/// Kills a node a while after the begin of a failover, and starts it again. Returns the acknowledged records of a writer
/// on the old primary.
fn kill_one(pair: &mut Pair, name: &'static str, after: Duration, kills_primary: bool) -> u64 {
    let primary = await_primary(pair);
    let mut writer = Some(Writer::start(&pair.node(primary).mount(), name));
    writer.as_mut().unwrap().await_progress();
    let failover = begin(pair.node(primary), "failover");
    std::thread::sleep(after);
    let victim = if kills_primary {
        primary
    } else {
        other(primary)
    };
    pair.node_mut(victim).kill();
    let lost = kills_primary.then(|| writer.take().unwrap().lose());
    pair.node_mut(victim).start();
    // The command has failed or not: both are right.
    let _ = end(failover);
    let Some(mut writer) = writer else {
        return lost.unwrap();
    };
    if await_primary(pair) == victim {
        // The writer waits until its node serves again.
        let back = end(begin(pair.node(victim), "failover"));
        assert_eq!(back.code, Some(0), "{}", back.error);
    }
    writer.await_progress();
    writer.finish()
}

/// Begins a failover while B does not answer, and returns what the command says of the failure.
fn fail_to_silent(pair: &Pair) -> String {
    pair.node(B).freeze();
    let failover = end(begin(pair.node(A), "failover"));
    assert_eq!(failover.code, Some(2), "{}", failover.output);
    assert!(failover.error.contains("cure: "), "{}", failover.error);
    failover.error
}

/// The other node does not answer any more, and its connection is still there.
pub fn silent_successor(pair: &mut Pair) {
    let mut writer = Writer::start(&pair.node(A).mount(), "first");
    writer.await_progress();
    // A record waits for B, so the role stays.
    fail_to_silent(pair);
    assert_eq!(role(&pair.node(A).status().unwrap()), (Role::Primary, 1));
    pair.node(B).thaw();
    await_in_sync(pair, A, 1);
    writer.await_progress();
    let acknowledged = writer.finish();

    // Nothing waits for B, so the role is on its way to B, unless A has noticed the silence before.
    let error = fail_to_silent(pair);
    let is_given = error.contains("has given its role away");
    let expected = if is_given {
        (Role::Secondary, 2)
    } else {
        (Role::Primary, 1)
    };
    assert_eq!(role(&pair.node(A).status().unwrap()), expected, "{error}");
    pair.node(B).thaw();
    let (primary, generation) = if is_given { (B, 2) } else { (A, 1) };
    await_in_sync(pair, primary, generation);
    assert_records(&pair.node(primary).mount(), "first", acknowledged);
    assert_identical(pair.node(primary));
}

/// In each round one node is killed at another moment of a failover.
pub fn kills(pair: &mut Pair) {
    let mut written = Vec::new();
    for (name, round) in NAMES.into_iter().zip(0u32..) {
        let count = kill_one(pair, name, STEP * (round / 2), round % 2 == 0);
        written.push((name, count));
        let primary = await_primary(pair);
        for (name, count) in &written {
            assert_records(&pair.node(primary).mount(), name, *count);
        }
    }
    let primary = await_primary(pair);
    assert_identical(pair.node(primary));
}
