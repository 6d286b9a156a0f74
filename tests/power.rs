//! Power losses of real processes: the nodes run on disks that lose unsynced data, and see another boot id
//! afterwards. Writes acknowledged as durable survive a power loss of any node. All acknowledged writes survive a
//! power loss of the secondary alone. Both nodes hold the same.
//!
//! Clients and checks are the ones of `faults.rs`. The disk is the simulator's disk, mounted (`crates/lossy`). Needs
//! root and /dev/fuse.
//!
//! `LOCKSTEP_POWER_ROUNDS` sets how often each test checks after a power loss (default 2). `LOCKSTEP_FAULT_SEED`
//! repeats the order of events of a run. `LOCKSTEP_FAULT_KEEP` keeps the directory of a failed test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "power/barrier.rs"]
mod barrier;
#[path = "faults/cells.rs"]
mod cells;
#[path = "faults/check.rs"]
mod check;
#[path = "faults/load.rs"]
mod load;
#[path = "faults/names.rs"]
mod names;
#[path = "power/pile.rs"]
mod pile;
#[path = "faults/programs.rs"]
mod programs;
#[path = "faults/replacer.rs"]
mod replacer;
#[path = "power/site.rs"]
mod site;
#[path = "faults/writers.rs"]
mod writers;

use lockstep_testbed::chance::Chance;
use lockstep_testbed::{IMPATIENT, KEEPING, Settings, Which, repetitions};

use check::Ending;
use pile::Pile;
use site::Site;

lockstep_testbed::network_process!();

/// Default of `LOCKSTEP_POWER_ROUNDS`.
const ROUNDS_IN_CI: u64 = 2;

/// The log line of a node that finds another boot id.
const WENT_DOWN: &str = "this machine went down while the store was open";

/// Everything acknowledged is on stable storage.
const ALWAYS: Settings = Settings {
    durability: "always",
    ..KEEPING
};

/// An absent peer is soon given up.
const KEEPING_IMPATIENT: Settings = Settings {
    on_power_loss: "serve",
    ..IMPATIENT
};

/// How a node goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Its process is killed.
    Kill,
    /// Its server loses power.
    PowerLoss,
}

/// The nodes that go down at once, and how.
type Outages = &'static [(Which, Outage)];

/// The secondary alone loses power.
const SECONDARY_POWER_LOSS: [Outages; 3] = [
    &[(Which::Secondary, Outage::PowerLoss)],
    &[(Which::Secondary, Outage::PowerLoss)],
    &[
        (Which::Secondary, Outage::PowerLoss),
        (Which::Primary, Outage::Kill),
    ],
];
/// Every combination of failures.
const ANY_OUTAGE: [Outages; 7] = [
    &[(Which::Primary, Outage::PowerLoss)],
    &[(Which::Primary, Outage::PowerLoss)],
    &[(Which::Secondary, Outage::PowerLoss)],
    &[
        (Which::Primary, Outage::PowerLoss),
        (Which::Secondary, Outage::PowerLoss),
    ],
    &[
        (Which::Secondary, Outage::PowerLoss),
        (Which::Primary, Outage::PowerLoss),
    ],
    &[
        (Which::Secondary, Outage::Kill),
        (Which::Primary, Outage::PowerLoss),
    ],
    &[
        (Which::Primary, Outage::Kill),
        (Which::Secondary, Outage::PowerLoss),
    ],
];

/// The number of rounds; `None` if this machine cannot mount.
fn rounds() -> Option<u64> {
    repetitions("LOCKSTEP_POWER_ROUNDS", ROUNDS_IN_CI)
}

#[test]
fn power_losses_take_nothing_that_was_synced() {
    run_with_outages(KEEPING, &ANY_OUTAGE, false);
}

#[test]
fn power_losses_take_nothing_that_was_synced_by_one_node_alone() {
    run_with_outages(KEEPING_IMPATIENT, &ANY_OUTAGE, false);
}

#[test]
fn power_losses_take_nothing_where_everything_is_durable() {
    run_with_outages(ALWAYS, &ANY_OUTAGE, false);
}

#[test]
fn a_power_loss_of_the_secondary_takes_nothing_at_all() {
    run_with_outages(KEEPING, &SECONDARY_POWER_LOSS, true);
}

#[test]
fn a_power_loss_of_the_secondary_costs_what_was_written_since_the_last_barrier() {
    if rounds().is_some() {
        barrier::secondary_loses_power_after_a_barrier(KEEPING_IMPATIENT);
    }
}

#[test]
fn a_power_loss_of_the_primary_costs_its_successor_what_was_written_since_the_last_barrier() {
    if rounds().is_some() {
        barrier::primary_loses_power_after_a_barrier(IMPATIENT);
    }
}

#[test]
fn a_power_loss_after_a_clean_shutdown_takes_nothing_and_needs_no_resync() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(KEEPING, &mut chance);
    let root = site.load.pair.mount();
    let mut pile = Pile::default();
    for _ in 0..rounds {
        pile.rewrite(&root, &mut chance);
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
fn run_with_outages(settings: Settings, choices: &[Outages], with_programs: bool) {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(settings, &mut chance);
    for _ in 0..rounds {
        if with_programs {
            site.load.start_programs(&mut chance);
        }
        // Mostly one outage; a second one comes during the recovery from the first.
        for _ in 0..*chance.pick(&[1, 1, 2]) {
            chance.pause_moment();
            let outages = *chance.pick(choices);
            site.take_down(outages, &mut chance);
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
    fn take_down(&mut self, outages: Outages, chance: &mut Chance) {
        for &(which, _) in outages {
            self.load.kill(which);
        }
        for &(which, outage) in outages {
            if outage == Outage::PowerLoss {
                self.lose_power(which, chance);
            }
        }
        for (which, _) in chance.shuffled(outages.to_vec()) {
            chance.pause_moment();
            self.load.pair.node_mut(which).start();
        }
    }

    fn lose_power(&self, which: Which, chance: &mut Chance) {
        if which == Which::Primary {
            self.load.writers.primary_lost_power();
        }
        self.server(which).lose_power(chance);
    }
}
