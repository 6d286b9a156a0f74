//! A secondary that an administrator stops.

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_in_sync, resyncs, run};

use crate::records::{Writer, assert_records};
use crate::{STEADY, start};

/// The pause limit is longer than the test.
#[test]
fn programs_do_not_wait_for_a_secondary_that_is_stopped() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let mut first = Writer::start(&pair.node(A).mount(), "first");
    first.await_progress();
    for _ in 0..3 {
        pair.node_mut(B).stop();
        first.await_progress();
        let status = run(pair.node(A), "status", &[]).output;
        assert!(status.contains("NOT IN SYNC"), "{status}");
        pair.node_mut(B).start();
        await_in_sync(&mut pair, A, 1);
        first.await_progress();
    }
    let of_first = first.finish();
    assert_records(&pair.node(A).mount(), "first", of_first);
    assert_identical(pair.node(A));
}

#[test]
fn a_secondary_that_is_restarted_while_no_program_waits_needs_no_resync() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let before = resyncs(&pair);
    for _ in 0..3 {
        pair.node_mut(B).stop();
        pair.node_mut(B).start();
        await_in_sync(&mut pair, A, 1);
    }
    assert_eq!(resyncs(&pair), before);
}
