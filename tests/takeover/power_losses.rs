//! Servers that lose power (P12, R9).

use std::fs;

use lockstep_driver::report::ServiceStatus;
use lockstep_testbed::chance::Chance;
use lockstep_testbed::operator::{assert_identical, await_in_sync};
use lockstep_testbed::server::Server;
use lockstep_testbed::{PATIENT, Pair, Settings};

use super::{A, B, await_protected, await_service, server_of_a, start_both, start_on};

/// Nothing is acknowledged before it is on stable storage on both servers.
const SYNCING: Settings = Settings {
    durability: "always",
    ..PATIENT
};
/// Number of files.
const FILES: u32 = 50;

fn name(number: u32) -> String {
    format!("unsynced {number}")
}

/// Writes files on A that no program syncs.
fn write_files(pair: &Pair) {
    for number in 0..FILES {
        fs::write(pair.node(A).mount().join(name(number)), name(number)).unwrap();
    }
}

/// Checks that B has the files.
fn check_files(pair: &Pair) {
    for number in 0..FILES {
        let found = fs::read(pair.node(B).mount().join(name(number))).unwrap();
        assert_eq!(found, name(number).into_bytes());
    }
}

#[test]
fn a_secondary_serves_after_both_have_lost_power_if_nothing_can_be_missing() {
    let Some(of_a) = server_of_a() else { return };
    let of_b = Server::start();
    let environments = [of_a.environment(), of_b.environment()];
    let Some((mut pair, _witness)) = start_both(SYNCING, environments) else {
        return;
    };
    write_files(&pair);
    for (which, server) in [(A, &of_a), (B, &of_b)] {
        pair.node_mut(which).kill();
        server.lose_power(&mut Chance::of_run());
    }
    pair.node_mut(B).start();
    await_service(&pair, B, ServiceStatus::Alone);
    check_files(&pair);
    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 2);
    await_protected(&pair, B);
    assert_identical(pair.node(B));
}

/// B has what A has lost with its power, although no program had synced anything.
#[test]
fn a_power_loss_of_the_primary_loses_nothing() {
    let Some(server) = server_of_a() else { return };
    let Some((mut pair, _witness)) = start_on(server.environment()) else {
        return;
    };
    write_files(&pair);
    pair.node_mut(A).kill();
    server.lose_power(&mut Chance::of_run());
    await_service(&pair, B, ServiceStatus::Alone);
    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 2);
    await_protected(&pair, B);
    check_files(&pair);
    assert_identical(pair.node(B));
}
