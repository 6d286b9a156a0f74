//! A loss of power of the secondary costs what was written since the last barrier (rules P27, P29), and no difference is left.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use lockstep_testbed::chance::{Chance, content};
use lockstep_testbed::server::{self, Server};
use lockstep_testbed::{Pair, Settings, await_that};

use crate::check::at_rest;

/// Bytes of a file of which little changes after the barrier.
const LARGE: usize = 12 << 20;
const LARGE_NAME: &str = "large";
/// Most bytes that are compared for one change.
const COMPARED_MAX: u64 = 2 << 20;
/// The log line of a resync of the changes.
const OF_CHANGES: &str = "resync of what has changed: content is equal";

/// Waits for a barrier that begins from now on.
fn await_barrier(pair: &Pair) {
    let begun = Instant::now();
    await_that("a barrier", || {
        let status = pair.primary.status();
        let since = status.and_then(|status| status.sync.barrier_since_ms);
        since.is_some_and(|since| u128::from(since) < begun.elapsed().as_millis())
    });
}

/// Bytes that the last resync of the changes has compared.
fn compared(pair: &Pair) -> Option<u64> {
    let logged = pair.primary.logged();
    let line = logged.lines().rfind(|line| line.contains(OF_CHANGES))?;
    let (_, bytes) = line.split_once(" bytes=")?;
    bytes.split_whitespace().next()?.parse().ok()
}

/// See the head of this file.
pub fn secondary_loses_power_after_a_barrier(settings: Settings) {
    let mut chance = Chance::of_run();
    server::isolate();
    let (primary, secondary) = (Server::start(), Server::start());
    let environments = [primary.environment(), secondary.environment()];
    let mut pair = Pair::prepare(settings, environments);
    pair.start();
    let large = pair.mount().join(LARGE_NAME);
    fs::write(&large, content(chance.any(), LARGE)).unwrap();
    await_barrier(&pair);
    let file = OpenOptions::new().write(true).open(&large).unwrap();
    file.write_all_at(&[9; 4096], 5 << 20).unwrap();
    pair.secondary.kill();
    secondary.lose_power(&mut chance);
    pair.await_state("out of sync");
    file.write_all_at(&[8; 4096], 9 << 20).unwrap();
    drop(file);
    pair.secondary.start();
    pair.await_in_sync();
    let compared = compared(&pair);
    assert!(
        compared.is_some_and(|bytes| bytes <= COMPARED_MAX),
        "{compared:?} bytes are compared"
    );
    at_rest(&mut pair);
}
