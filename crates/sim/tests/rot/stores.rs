//! What two nodes that were used in sync leave on their disks.

use std::time::Duration;

use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::exact::Ground;
use lockstep_sim::scenario::{Fault, IN_SYNC_WITHIN, Pair, Settings, Users};
use lockstep_sim::workload::{Generator, Options};
use lockstep_sim::world::Side;
use lockstepfs::config::{Durability, OnPeerLoss};

const CLIENTS: u32 = 3;
/// For how long clients work, at most, in milliseconds.
const WORK_MAX_MS: u64 = 1500;

/// The stores of two nodes that have stopped, in sync.
pub struct Stores {
    ground: Ground,
    settings: Settings,
    /// The processes were killed while clients worked, not stopped in order.
    pub killed: bool,
}

fn settings(chance: &mut Random) -> Settings {
    Settings {
        durability: *chance.pick(&[Durability::Posix, Durability::Always]),
        on_peer_loss: *chance.pick(&[OnPeerLoss::Continue, OnPeerLoss::Freeze]),
        pause_limit: Duration::from_secs(3),
        peer_timeout: Duration::from_secs(1),
    }
}

fn pair(settings: &Settings, clients: u32, mut chance: Random) -> Pair {
    let asked = Options {
        clients: CLIENTS,
        file_bytes_max: 32 << 10,
        ..Options::default()
    };
    let users = Users {
        clients,
        pause_max: Duration::from_millis(20),
        source: Box::new(Generator::new(asked, chance.fork())),
    };
    Pair::new(settings, users, 0, chance)
}

impl Stores {
    /// Lets some clients use two nodes, and stops both.
    pub fn make(luck: u64) -> Result<Self, String> {
        let mut chance = Random::new(luck);
        let settings = settings(&mut chance);
        let mut pair = pair(&settings, CLIENTS, chance.fork());
        let killed = chance.percent(50);
        pair.start_both();
        pair.until_in_sync(IN_SYNC_WITHIN)?;
        pair.run_for(Duration::from_millis(chance.below(WORK_MAX_MS)))?;
        let first = *chance.pick(&Side::BOTH);
        if !killed {
            pair.send_clients_away();
            pair.until_in_sync(IN_SYNC_WITHIN)?;
            pair.rest()?;
        }
        for side in [first, first.other()] {
            if killed {
                pair.suffer(Fault::Away(side, Stop::Process))?;
            } else {
                pair.stop_in_order(side)?;
            }
        }
        let stores = Self {
            ground: pair.ground(),
            settings,
            killed,
        };
        for side in Side::BOTH {
            let role = pair.disk(side).read_all("role.json").unwrap_or_default();
            let role = String::from_utf8_lossy(&role).into_owned();
            if !role.contains("\"in_sync\": true") {
                return Err(format!("{side:?} was not in sync: {role}"));
            }
        }
        Ok(stores)
    }

    /// Two nodes that will start on copies of them, with nobody who uses the mount.
    pub fn pair(&self, chance: &mut Random) -> Pair {
        pair(&self.settings, 0, chance.fork()).standing_on(&self.ground)
    }
}
