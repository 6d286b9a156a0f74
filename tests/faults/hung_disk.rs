//! A secondary whose disk hangs: no sync ends for longer than operations are waited for.
//!
//! The node's other work continues in memory, and mostly the node still answers pings. But the kernel blocks a write
//! to a file on a FUSE disk until a sync of that file ends: a node that meets this case falls silent.

use std::time::Duration;

use lockstep_testbed::chance::Chance;
use lockstep_testbed::{ANSWER_LIMIT_LEAST_MS, FREEZING, Settings, await_that};

use crate::site::Site;

/// Longer than [`ANSWER_LIMIT_LEAST_MS`], and than every other wait of a node before it continues alone.
const LONGER_THAN_ANSWERS_ARE_WAITED_FOR: Duration = Duration::from_secs(4);

/// Clients wait for the secondary with every operation.
pub const WAITING: Settings = Settings {
    answer_limit_ms: ANSWER_LIMIT_LEAST_MS,
    durability: "always",
    ..FREEZING
};

/// The log texts of a primary that has waited long enough for a secondary that answers pings, or for a silent one.
const GIVEN_UP: [&str; 2] = [
    "has not answered an operation for 1000 ms",
    "the secondary has been silent for 500 ms",
];

/// The primary gives the secondary up, and clients continue.
pub fn is_given_up(site: &mut Site, chance: &mut Chance) {
    site.load.start_programs(chance);
    chance.pause_moment();
    let given_up = |site: &Site| GIVEN_UP.map(|why| site.load.pair.primary.times_logged(why));
    let before = given_up(site);
    let hang = site.secondary.hang();
    site.load.pair.await_state("out of sync");
    let after = given_up(site);
    assert_ne!(after, before, "given up for another reason");
    println!("given up {before:?} to {after:?} times for {GIVEN_UP:?}");
    // Clients also continue while the primary tries to reach the secondary again.
    for _ in 0..3 {
        site.load.writers.await_progress();
        chance.pause_moment();
    }
    site.load.pair.await_state("out of sync");
    drop(hang);
    site.load.check(chance);
}

/// The primary and the clients wait: meanwhile no operation is acknowledged.
pub fn is_waited_for(site: &mut Site, chance: &mut Chance) {
    site.load.start_programs(chance);
    chance.pause_moment();
    let hang = site.secondary.hang();
    await_that("syncs to hang", || hang.waiting() > 0);
    let before = site.load.writers.acknowledged();
    std::thread::sleep(LONGER_THAN_ANSWERS_ARE_WAITED_FOR);
    let done = site.load.writers.acknowledged() - before;
    let clients = site.load.writers.count() as u64;
    assert!(
        done <= clients,
        "{done} operations of {clients} clients were acknowledged: no more than one of each can \
         have been synced before"
    );
    drop(hang);
    site.load.check(chance);
}
