//! All of a schedule that is decided before it runs, as data: so it can be made from a seed, by a test,
//! or from another by leaving something out.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_types::settings::{Durability, OnPeerLoss};

use super::faults::{Fault, Order};
use crate::random::Random;
use crate::workload::Options;
use crate::world::Hang;

/// Faults in a schedule, at most.
const FAULTS_MAX: u64 = 10;
/// Time between two faults, at most, in microseconds.
const FAULT_EVERY_MAX_US: u64 = 1_500_000;
/// Of what is drawn for a disk that hangs: apart from all else, so that the other schedules do not change.
const HANG: u64 = 0x6861_6e67;
/// In so many schedules of a hundred it may.
const HANG_PERCENT: u64 = 12;
/// Of what is drawn for a disk that is not mounted, likewise.
const DISK_AWAY: u64 = 0x6177_6179;
/// In so many schedules of a hundred it may be.
const DISK_AWAY_PERCENT: u64 = 6;
/// Of what is drawn for a role file that cannot be changed, likewise.
const MARK: u64 = 0x6d61_726b;
/// In so many schedules of a hundred it cannot.
const MARK_PERCENT: u64 = 10;
/// Of what is drawn for nodes that are stopped in order, apart from all else for the same reason.
const ORDER: u64 = 0x006f_7264_6572;
/// Of what is drawn for details of faults, likewise.
const DETAILS: u64 = 0x6465_7461_696c;
/// In so many schedules of a hundred some are stopped in order.
const ORDER_PERCENT: u64 = 40;
/// Of what is drawn for small disks, likewise.
const SCARCE: u64 = 0x7363_6172_6365;
/// In so many schedules of a hundred disks are small.
const SCARCE_PERCENT: u64 = 20;
/// Room for clients on a small disk, at most, in KiB.
const SCARCE_KIB_MAX: u64 = 400;
/// More than all that delays an answer between nodes whose disks do what they are told.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Longest pauses of clients between two operations.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(20),
    Duration::from_millis(100),
];

/// How the datastore is configured, on both nodes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// When what is acknowledged is durable.
    pub durability: Durability,
    /// What happens when the peer stays away.
    pub on_peer_loss: OnPeerLoss,
    /// For how long acknowledgements pause before that.
    pub pause_limit: Duration,
    /// A peer that was not heard for so long counts as lost.
    pub peer_timeout: Duration,
    /// One that is heard, but leaves something unanswered for so long, is given up.
    pub answer_limit: Duration,
}

impl Settings {
    fn random(chance: &mut Random) -> Self {
        let longest = *chance.pick(&[100, 3000]);
        Self {
            durability: if chance.percent(25) {
                Durability::Always
            } else {
                Durability::Posix
            },
            on_peer_loss: if chance.percent(25) {
                OnPeerLoss::Freeze
            } else {
                OnPeerLoss::Continue
            },
            pause_limit: Duration::from_millis(chance.below(longest)),
            peer_timeout: Duration::from_millis(200 + chance.below(1000)),
            answer_limit: ANSWER_LIMIT,
        }
    }
}

/// How clients end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Each after the answer it waits for.
    Quiet,
    /// Where they are, with the primary's process.
    Killed,
}

/// All of a schedule that is decided before it runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of everything that is drawn while it runs: who goes on, how long a frame takes, what a client
    /// asks, what a power loss leaves.
    pub luck: u64,
    /// The datastore's.
    pub settings: Settings,
    /// How often in a hundred a step of a thread lets others go first.
    pub step_percent: u64,
    /// What clients ask.
    pub workload: Options,
    /// Longest pause of a client between two operations.
    pub pause_max: Duration,
    /// Each fault, with the time since the one before.
    pub faults: Vec<(Duration, Fault)>,
    /// How clients end.
    pub ending: Ending,
    /// Bytes that the disks have for clients, where that is little.
    pub scarce: Option<[u64; 2]>,
}

/// What is left out of a plan, or changed: what remains of a failing one when it is shrunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Less {
    /// Faults left out, by their number from zero.
    pub without: BTreeSet<usize>,
    /// Clients, at most.
    pub clients: Option<u32>,
    /// Operations of each client, at most.
    pub operations: Option<u64>,
    /// Another luck.
    pub luck: Option<u64>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut chance = Random::new(seed);
        let settings = Settings::random(&mut chance);
        let step_percent = *chance.pick(&[0, 10, 50, 100]);
        let workload = Options {
            clients: 1 + u32::try_from(chance.below(6)).unwrap_or(0),
            file_bytes_max: *chance.pick(&[8 << 10, 32 << 10]),
            shared_percent: *chance.pick(&[20, 50, 90]),
            durable_percent: *chance.pick(&[5, 30]),
            operations_max: *chance.pick(&[10, 30, 60]),
            ..Options::default()
        };
        let pause_max = *chance.pick(&PAUSES);
        let mut faults = faults(&mut chance);
        hang(&mut faults, &mut Random::new(seed ^ HANG));
        disk_away(&mut faults, &mut Random::new(seed ^ DISK_AWAY));
        mark_fails(&mut faults, &mut Random::new(seed ^ MARK));
        order(&mut faults, &mut Random::new(seed ^ ORDER));
        let mut details = Random::new(seed ^ DETAILS);
        for (_, fault) in &mut faults {
            *fault = fault.detailed(&mut details);
        }
        Self {
            luck: chance.any(),
            settings,
            step_percent,
            workload,
            pause_max,
            faults,
            ending: *chance.pick(&[Ending::Quiet, Ending::Killed]),
            scarce: scarce(&mut Random::new(seed ^ SCARCE)),
        }
    }

    /// The same plan with less in it.
    #[must_use]
    pub fn with(mut self, less: &Less) -> Self {
        // The time of a fault that is left out still passes.
        let mut waited = Duration::ZERO;
        let mut kept = Vec::new();
        for (number, (wait, fault)) in self.faults.into_iter().enumerate() {
            waited += wait;
            if !less.without.contains(&number) {
                kept.push((std::mem::take(&mut waited), fault));
            }
        }
        self.faults = kept;
        let clients = less.clients.unwrap_or(u32::MAX);
        self.workload.clients = self.workload.clients.min(clients);
        let operations = less.operations.unwrap_or(u64::MAX);
        self.workload.operations_max = self.workload.operations_max.min(operations);
        self.luck = less.luck.unwrap_or(self.luck);
        self
    }
}

/// In some schedules both disks are small, or one of them.
fn scarce(chance: &mut Random) -> Option<[u64; 2]> {
    let mut small = |percent| {
        let bytes = chance.below(SCARCE_KIB_MAX) << 10;
        if chance.percent(percent) {
            bytes
        } else {
            u64::MAX
        }
    };
    let both = [small(70), small(70)];
    (chance.percent(SCARCE_PERCENT) && both != [u64::MAX; 2]).then_some(both)
}

/// In some schedules the secondary's disk hangs, too, from one of the faults on until the next that heals.
fn hang(faults: &mut [(Duration, Fault)], chance: &mut Random) {
    if chance.percent(HANG_PERCENT)
        && let Some(fault) = any_of(faults, chance)
    {
        *fault = Fault::Hangs(*chance.pick(&[Hang::Flushes, Hang::All]));
    }
}

/// In some its disk is not mounted for a time.
fn disk_away(faults: &mut [(Duration, Fault)], chance: &mut Random) {
    if chance.percent(DISK_AWAY_PERCENT)
        && let Some(fault) = any_of(faults, chance)
    {
        *fault = Fault::DiskAway;
    }
}

/// In some the secondary cannot change its role file once.
fn mark_fails(faults: &mut [(Duration, Fault)], chance: &mut Random) {
    if chance.percent(MARK_PERCENT)
        && let Some(fault) = any_of(faults, chance)
    {
        *fault = Fault::MarkFails;
    }
}

fn any_of<'a>(faults: &'a mut [(Duration, Fault)], chance: &mut Random) -> Option<&'a mut Fault> {
    let place = chance.below(faults.len().max(1) as u64);
    let (_, fault) = faults.get_mut(usize::try_from(place).unwrap_or(0))?;
    Some(fault)
}

/// In some schedules nodes are stopped in order besides; the other faults keep their moments.
fn order(faults: &mut Vec<(Duration, Fault)>, chance: &mut Random) {
    if !chance.percent(ORDER_PERCENT) {
        return;
    }
    for _ in 0..=chance.below(2) {
        let place = usize::try_from(chance.below(faults.len() as u64 + 1)).unwrap_or(0);
        let next = faults.get_mut(place).map(|(wait, _)| wait);
        let most = next.as_ref().map_or(FAULT_EVERY_MAX_US, |next| {
            u64::try_from(next.as_micros()).unwrap_or(0)
        });
        let wait = Duration::from_micros(chance.below(most + 1));
        if let Some(next) = next {
            *next -= wait;
        }
        let order = Order::random(chance);
        faults.insert(place, (wait, Fault::StopsInOrder(order)));
    }
}

fn faults(chance: &mut Random) -> Vec<(Duration, Fault)> {
    let mut hurt = false;
    let mut next = |chance: &mut Random| {
        // Mostly soon after another, while much is still open.
        let most = if chance.percent(60) {
            FAULT_EVERY_MAX_US / 10
        } else {
            FAULT_EVERY_MAX_US
        };
        let wait = Duration::from_micros(chance.below(most));
        let fault = Fault::random(chance, hurt);
        hurt = fault.lasts() || hurt && !matches!(fault, Fault::Healed);
        (wait, fault)
    };
    let count = chance.below(FAULTS_MAX + 1);
    (0..count).map(|_| next(chance)).collect()
}
