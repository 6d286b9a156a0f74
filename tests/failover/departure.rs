//! A cluster address that does not leave: keepalived asks, and moves nothing.

use std::fs;

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::await_that;
use lockstep_testbed::operator::{assert_identical, await_in_sync, begin, end, fail_over, run};
use lockstepfs::config::Role;

use crate::{STEADY, start};

/// An address that every server has.
const STAYS: [&str; 2] = ["--address", "127.0.0.1"];

#[test]
fn a_cluster_address_that_stays_holds_a_failover_up_for_its_limit_only() {
    let Some(mut pair) = start(STEADY) else {
        return;
    };
    let health = |pair: &lockstep_testbed::Pair| run(pair.node(A), "health", &STAYS).code;
    assert_eq!(health(&pair), Some(0));
    let failover = begin(pair.node(A), "failover");
    // The answer is no before the role has left, and programs go on.
    await_that("the answer of a departure", || health(&pair) == Some(1));
    let status = pair.node(A).status().unwrap();
    assert_eq!(status.settings.role, Role::Primary, "{status:#?}");
    fs::write(pair.node(A).mount().join("during"), "the departure").unwrap();

    let done = end(failover);
    assert_eq!(done.code, Some(0), "{}", done.error);
    assert!(
        done.output.contains("HAD NOT LEFT after 5"),
        "{}",
        done.output
    );
    assert_eq!(
        pair.node(A)
            .times_logged("has not left this server in time"),
        1
    );
    await_in_sync(&mut pair, B, 2);
    let found = fs::read(pair.node(B).mount().join("during")).unwrap();
    assert_eq!(found, b"the departure");
    // No program asks B, so B waits for nothing.
    fail_over(&mut pair, B, 2);
    await_in_sync(&mut pair, A, 3);
    assert_identical(pair.node(A));
}
