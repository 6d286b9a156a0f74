//! A loss of power of one node costs what was written since the last barrier (rules P26 to P29), and no difference is left.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use lockstep_testbed::chance::{Chance, content};
use lockstep_testbed::operator::{assert_identical, await_alone, await_in_sync, change};
use lockstep_testbed::server::{self, Server};
use lockstep_testbed::{Node, Pair, Settings, Which, await_that};

use crate::check::at_rest;

/// Bytes of a file of which little changes after the barrier.
const LARGE: usize = 12 << 20;
const LARGE_NAME: &str = "large";
/// Most bytes that are compared for a change of the secondary's.
const COMPARED_MAX: u64 = 2 << 20;
/// Most bytes that are compared for two announced regions.
const COMPARED_OF_REGIONS_MAX: u64 = 4 << 20;
/// The log line of a resync of the changes.
const OF_CHANGES: &str = "resync of what has changed: content is equal";

/// Bytes that the last resync of the changes has compared, in which this node led.
fn compared(node: &Node) -> Option<u64> {
    let logged = node.logged();
    let line = logged.lines().rfind(|line| line.contains(OF_CHANGES))?;
    let (_, bytes) = line.split_once(" bytes=")?;
    bytes.split_whitespace().next()?.parse().ok()
}

#[track_caller]
fn assert_part(node: &Node, most: u64) {
    let compared = compared(node);
    assert!(
        compared.is_some_and(|bytes| bytes <= most),
        "{compared:?} bytes are compared"
    );
}

/// Two nodes on these servers in sync, with a large file behind their first barrier. That comes at once after the begin of the sync.
fn with_base(settings: Settings, chance: &mut Chance, servers: [&Server; 2]) -> Pair {
    let mut pair = Pair::prepare(settings, servers.map(Server::environment));
    pair.primary.start();
    await_that("a primary that serves", || {
        let status = pair.primary.status();
        status.is_some_and(|status| status.sync.started && status.sync.state == "out of sync")
    });
    fs::write(pair.mount().join(LARGE_NAME), content(chance.any(), LARGE)).unwrap();
    pair.secondary.start();
    pair.await_in_sync();
    // The resync has had barriers, too.
    await_that("a barrier since the nodes are in sync", || {
        let sync = pair.primary.status().map(|status| status.sync);
        sync.is_some_and(|sync| {
            sync.barrier_since_ms
                .is_some_and(|since| since < sync.since_ms)
        })
    });
    pair
}

/// Changes one block in a region of the large file.
fn change_region(mount: &Path, region: u64, byte: u8) {
    let large = mount.join(LARGE_NAME);
    let file = OpenOptions::new().write(true).open(large).unwrap();
    file.write_all_at(&[byte; 4096], region << 20).unwrap();
}

/// See the head of this file.
pub fn secondary_loses_power_after_a_barrier(settings: Settings) {
    let mut chance = Chance::of_run();
    server::isolate();
    let (primary, secondary) = (Server::start(), Server::start());
    let mut pair = with_base(settings, &mut chance, [&primary, &secondary]);
    change_region(&pair.mount(), 5, 9);
    pair.secondary.kill();
    secondary.lose_power(&mut chance);
    pair.await_state("out of sync");
    change_region(&pair.mount(), 9, 8);
    pair.secondary.start();
    pair.await_in_sync();
    assert_part(&pair.primary, COMPARED_MAX);
    at_rest(&mut pair);
}

/// The primary loses its power, the secondary takes over, and the old primary comes back.
pub fn primary_loses_power_after_a_barrier(settings: Settings) {
    let mut chance = Chance::of_run();
    server::isolate();
    let (primary, secondary) = (Server::start(), Server::start());
    let mut pair = with_base(settings, &mut chance, [&primary, &secondary]);
    change_region(&pair.mount(), 5, 9);
    pair.primary.kill();
    primary.lose_power(&mut chance);
    await_alone(&pair.secondary);
    let _promoted = change(&pair.secondary, "promote", &[]);
    change_region(&pair.secondary.mount(), 9, 8);
    pair.primary.start();
    await_in_sync(&mut pair, Which::Secondary, 2);
    assert_part(&pair.secondary, COMPARED_OF_REGIONS_MAX);
    assert_identical(&pair.secondary);
}
