//! A secondary whose disk hangs: no sync of it ends, for longer than operations are waited for.
//!
//! All else goes on there, as it does in memory: the node answers, and says that it is there.

use std::time::Duration;

use crate::chance::Chance;
use crate::nodes::{FREEZING, PATIENT, Settings, await_that};
use crate::site::Site;

/// Longest time between two events that come at random moments.
const MOMENT_MAX: Duration = Duration::from_millis(600);
/// The least that can be configured.
const ANSWER_LIMIT_MS: u64 = 1000;
/// Longer than that, and than what else a node with these settings waits for before it goes on alone.
const LONGER_THAN_ANSWERS_ARE_WAITED_FOR: Duration = Duration::from_secs(4);

/// Clients go on without it.
pub const CONTINUING: Settings = Settings {
    answer_limit_ms: ANSWER_LIMIT_MS,
    pause_limit_ms: 400,
    ..PATIENT
};
/// Clients wait for it, with every operation.
pub const WAITING: Settings = Settings {
    answer_limit_ms: ANSWER_LIMIT_MS,
    durability: "always",
    ..FREEZING
};

/// What the primary logs when it has waited long enough.
const GIVEN_UP: &str = "has not answered an operation for 1000 ms";

/// The primary gives the secondary up, and clients go on.
pub fn is_given_up(site: &mut Site, chance: &mut Chance) {
    site.load.start_programs(chance);
    chance.pause(MOMENT_MAX);
    let given_up = |site: &Site| site.load.pair.primary.logged().matches(GIVEN_UP).count();
    let before = given_up(site);
    let hang = site.secondary.hang();
    site.load.pair.await_state("out of sync");
    assert!(given_up(site) > before, "for another reason");
    for _ in 0..3 {
        site.load.writers.await_progress();
        chance.pause(MOMENT_MAX);
    }
    site.load.pair.await_state("out of sync");
    drop(hang);
    site.load.check(chance);
}

/// The primary waits, and clients with it: nothing is acknowledged meanwhile.
pub fn is_waited_for(site: &mut Site, chance: &mut Chance) {
    site.load.start_programs(chance);
    chance.pause(MOMENT_MAX);
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
