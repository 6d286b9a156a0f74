//! The disks of two nodes that were used in sync.

use std::time::Duration;

use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{
    Baseline, Fault, IN_SYNC_WITHIN, PRIMARY, ScriptedCluster, Settings, Users,
};
use lockstep_sim::workload::{Mix, Options};
use lockstep_sim::world::Side;
use lockstep_types::settings::{Durability, OnPeerLoss, OnPowerLoss, Role};

const CLIENTS: u32 = 3;
/// Number of names that each client uses in a directory. The large number gives the namespace parts
/// that no start reads.
const NAMES: [u64; 2] = [6, 300];
/// The longest time that clients work, in milliseconds.
const WORK_MAX_MS: u64 = 1500;

/// The stores of two stopped nodes, in sync.
pub struct Stores {
    baseline: Baseline,
    settings: Settings,
    /// The processes were killed while clients worked. Otherwise the nodes were shut down cleanly.
    pub killed: bool,
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        durability: *random.pick(&[Durability::Posix, Durability::Always]),
        on_peer_loss: *random.pick(&[OnPeerLoss::Continue, OnPeerLoss::Freeze]),
        on_power_loss: OnPowerLoss::Serve,
        pause_limit: Duration::from_secs(3),
        peer_timeout: Duration::from_secs(1),
        ..Settings::STEADY
    }
}

/// Returns the behaviour of the clients. Most requests to large stores make new names.
fn requests(is_large: bool) -> Options {
    let [few, many] = NAMES;
    let small = Options {
        clients: CLIENTS,
        file_bytes_max: 32 << 10,
        own_names: few,
        ..Options::default()
    };
    let mix = Mix {
        make: 80,
        xattrs: 40,
        ..Mix::default()
    };
    let large = Options {
        own_names: many,
        mix,
        ..small.clone()
    };
    if is_large { large } else { small }
}

fn users(clients: u32, is_large: bool, random: Random) -> Users {
    let pause_max = if is_large { 1 } else { 20 };
    let options = Options {
        clients,
        ..requests(is_large)
    };
    Users::random(options, Duration::from_millis(pause_max), random)
}

impl Stores {
    /// Lets some clients use two nodes, and stops both nodes.
    pub fn make(seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let settings = settings(&mut random);
        let users = users(CLIENTS, random.percent(30), random.fork());
        let mut cluster = ScriptedCluster::new(&settings, users, 0, random.fork());
        let killed = random.percent(50);
        cluster.start_both();
        cluster.until_in_sync(IN_SYNC_WITHIN)?;
        cluster.run_for(Duration::from_millis(random.below(WORK_MAX_MS)))?;
        let first = *random.pick(&Side::BOTH);
        if !killed {
            cluster.stop_clients();
            cluster.until_in_sync(IN_SYNC_WITHIN)?;
            cluster.settle()?;
        }
        for side in [first, first.other()] {
            if killed {
                let role = if side == PRIMARY {
                    Role::Primary
                } else {
                    Role::Secondary
                };
                cluster.apply_fault(Fault::Down(role, Stop::Process))?;
            } else {
                cluster.shut_down(side)?;
            }
        }
        for side in Side::BOTH {
            assert_in_sync(&cluster, side);
        }
        Ok(Self {
            baseline: cluster.baseline(),
            settings,
            killed,
        })
    }

    /// Returns two stopped nodes with copies of the stores, and without clients.
    pub fn cluster(&self, random: &mut Random) -> ScriptedCluster {
        let no_users = users(0, false, random.fork());
        let mut cluster = ScriptedCluster::new(&self.settings, no_users, 0, random.fork());
        cluster.begin_with(&self.baseline);
        cluster
    }
}

/// A node out of sync would compare everything in a resync, and repair a bit before any program
/// noticed it.
fn assert_in_sync(cluster: &ScriptedCluster, side: Side) {
    let marks = cluster.role_marks(side);
    assert!(
        marks.as_ref().is_some_and(|marks| marks.in_sync),
        "{side:?}: {marks:?}"
    );
}
