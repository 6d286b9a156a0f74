//! Power losses of real processes: the nodes run on disks that lose unsynced data, and see another boot id
//! afterwards. Writes acknowledged as durable survive a power loss of any node. All acknowledged writes survive a
//! power loss of the secondary alone. Both nodes hold the same.
//!
//! Clients and checks are the ones of `faults.rs`. The disk is the simulator's disk, mounted (`crates/lossy`). Needs
//! root and /dev/fuse.
//!
//! `LOCKSTEP_POWER_ROUNDS` sets how often each test checks after a power loss (default 4). `LOCKSTEP_FAULT_SEED`
//! repeats the order of events of a run. `LOCKSTEP_FAULT_KEEP` keeps the directory of a failed test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "faults/cells.rs"]
mod cells;
#[path = "faults/chance.rs"]
mod chance;
#[path = "faults/check.rs"]
mod check;
#[path = "faults/load.rs"]
mod load;
#[path = "faults/names.rs"]
mod names;
#[path = "faults/network.rs"]
mod network;
#[path = "faults/nodes.rs"]
mod nodes;
#[path = "power/pile.rs"]
mod pile;
#[path = "faults/programs.rs"]
mod programs;
#[path = "faults/replacer.rs"]
mod replacer;
#[path = "power/server.rs"]
mod server;
#[path = "power/site.rs"]
mod site;
#[path = "faults/writers.rs"]
mod writers;

use std::path::Path;
use std::time::Duration;

use chance::Chance;
use check::Ending;
use nodes::{IMPATIENT, PATIENT, Settings, Which};
use pile::Pile;
use site::Site;

/// Default of `LOCKSTEP_POWER_ROUNDS`.
const ROUNDS_IN_CI: u64 = 4;
/// Longest time between two events that come at random moments.
const MOMENT_MAX: Duration = Duration::from_millis(600);

/// The log line of a node that finds another boot id.
const WENT_DOWN: &str = "this machine went down while the store was open";

/// Everything acknowledged is on stable storage.
const ALWAYS: Settings = Settings {
    durability: "always",
    ..PATIENT
};

/// How a node goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fall {
    /// Its process is killed.
    Killed,
    /// Its server loses power.
    Dark,
}

/// The nodes that go down at once, and how.
type Blow = &'static [(Which, Fall)];

/// The secondary alone loses power.
const SECONDARY_DARK: [Blow; 3] = [
    &[(Which::Secondary, Fall::Dark)],
    &[(Which::Secondary, Fall::Dark)],
    &[
        (Which::Secondary, Fall::Dark),
        (Which::Primary, Fall::Killed),
    ],
];
/// Every combination of failures.
const ANY: [Blow; 7] = [
    &[(Which::Primary, Fall::Dark)],
    &[(Which::Primary, Fall::Dark)],
    &[(Which::Secondary, Fall::Dark)],
    &[(Which::Primary, Fall::Dark), (Which::Secondary, Fall::Dark)],
    &[(Which::Secondary, Fall::Dark), (Which::Primary, Fall::Dark)],
    &[
        (Which::Secondary, Fall::Killed),
        (Which::Primary, Fall::Dark),
    ],
    &[
        (Which::Primary, Fall::Killed),
        (Which::Secondary, Fall::Dark),
    ],
];

/// The number of rounds; `None` if this machine cannot mount.
fn rounds() -> Option<u64> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return None;
    }
    let given = std::env::var("LOCKSTEP_POWER_ROUNDS");
    Some(given.map_or(ROUNDS_IN_CI, |text| {
        text.parse().expect("LOCKSTEP_POWER_ROUNDS")
    }))
}

#[test]
fn power_losses_take_nothing_that_was_synced() {
    suffer(PATIENT, &ANY, false);
}

#[test]
fn power_losses_take_nothing_that_was_synced_by_one_node_alone() {
    suffer(IMPATIENT, &ANY, false);
}

#[test]
fn power_losses_take_nothing_where_everything_is_durable() {
    suffer(ALWAYS, &ANY, false);
}

#[test]
fn a_power_loss_of_the_secondary_takes_nothing_at_all() {
    suffer(PATIENT, &SECONDARY_DARK, true);
}

#[test]
fn a_power_loss_after_an_orderly_stop_takes_nothing_and_needs_no_resync() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(PATIENT, &mut chance);
    let root = site.load.pair.mount();
    let mut pile = Pile::default();
    for _ in 0..rounds {
        pile.heap(&root, &mut chance);
        let servers = [site.primary.clone(), site.secondary.clone()];
        site.load.check_with(Ending::Stopped, || {
            for server in servers {
                server.lose_power(&mut chance);
            }
        });
        pile.check(&root);
    }
    assert!(!site.load.was_out_of_sync(), "each copy was complete");
}

/// Runs so many rounds: lets some of these outages happen under load, and checks the stores.
fn suffer(settings: Settings, blows: &[Blow], with_programs: bool) {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(settings, &mut chance);
    for _ in 0..rounds {
        if with_programs {
            site.load.start_programs(&mut chance);
        }
        // Mostly one outage; a second one comes during the recovery from the first.
        for _ in 0..*chance.pick(&[1, 1, 2]) {
            chance.pause(MOMENT_MAX);
            let blow = *chance.pick(blows);
            site.strike(blow, &mut chance);
        }
        site.load.check(&mut chance);
    }
    assert!(site.has_gone_down(), "the nodes noticed it");
    let acknowledged = site.load.writers.acknowledged();
    println!("{rounds} rounds, {acknowledged} operations acknowledged");
}

impl Site {
    /// Whether a node has logged that its server lost power.
    fn has_gone_down(&self) -> bool {
        let nodes = [&self.load.pair.primary, &self.load.pair.secondary];
        nodes.iter().any(|node| node.logged().contains(WENT_DOWN))
    }

    /// Takes the nodes down together, and starts them one after the other.
    fn strike(&mut self, blow: Blow, chance: &mut Chance) {
        for &(which, _) in blow {
            self.load.kill(which);
        }
        for &(which, fall) in blow {
            if fall == Fall::Dark {
                self.darken(which, chance);
            }
        }
        for (which, _) in chance.shuffled(blow.to_vec()) {
            chance.pause(MOMENT_MAX);
            self.load.pair.node_mut(which).start();
        }
    }

    fn darken(&self, which: Which, chance: &mut Chance) {
        if which == Which::Primary {
            self.load.writers.primary_lost_power();
        }
        self.server(which).lose_power(chance);
    }
}
