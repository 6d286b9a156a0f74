//! What two nodes that were used in sync leave on their disks.

use std::time::Duration;

use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::exact::Ground;
use lockstep_sim::scenario::{ANSWER_LIMIT, Fault, IN_SYNC_WITHIN, Pair, Settings, Users};
use lockstep_sim::workload::{Generator, Mix, Options};
use lockstep_sim::world::Side;
use lockstep_types::settings::{Durability, OnPeerLoss};

const CLIENTS: u32 = 3;
/// Names that each client uses in a directory: in large stores so many that the namespace has parts
/// which a start does not read.
const NAMES: [u64; 2] = [6, 300];
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
        answer_limit: ANSWER_LIMIT,
    }
}

/// What clients ask; of large stores mostly new names.
fn asked(is_large: bool) -> Options {
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

fn users(clients: u32, is_large: bool, chance: Random) -> Users {
    let pause_max = if is_large { 1 } else { 20 };
    Users {
        clients,
        pause_max: Duration::from_millis(pause_max),
        source: Box::new(Generator::new(asked(is_large), chance)),
    }
}

impl Stores {
    /// Lets some clients use two nodes, and stops both.
    pub fn make(luck: u64) -> Result<Self, String> {
        let mut chance = Random::new(luck);
        let settings = settings(&mut chance);
        let users = users(CLIENTS, chance.percent(30), chance.fork());
        let mut pair = Pair::new(&settings, users, 0, chance.fork());
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
        for side in Side::BOTH {
            assert_in_sync(&pair, side);
        }
        Ok(Self {
            ground: pair.ground(),
            settings,
            killed,
        })
    }

    /// Two nodes that will start on copies of them, with nobody who uses the mount.
    pub fn pair(&self, chance: &mut Random) -> Pair {
        let nobody = users(0, false, chance.fork());
        Pair::new(&self.settings, nobody, 0, chance.fork()).standing_on(&self.ground)
    }
}

/// Or else a resync would compare everything, and repair what nobody has noticed.
fn assert_in_sync(pair: &Pair, side: Side) {
    let role = pair.disk(side).read_all("role.json").unwrap_or_default();
    let role = String::from_utf8(role).unwrap();
    assert!(role.contains("\"in_sync\": true"), "{side:?}: {role}");
}
