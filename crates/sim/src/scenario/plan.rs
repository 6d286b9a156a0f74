//! The plan of a schedule: everything that is decided before the schedule runs, as data. A plan is
//! made from a seed, by a test, or from another plan by leaving parts out.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_types::settings::{OnPowerLoss, Role, TrashAge};

use super::faults::held_thread::HeldThread;
use super::faults::{CleanShutdown, FAILING_CALLS_MAX, Fault};
use super::settings::Settings;
use super::snapshots::SnapshotAct;
use crate::random::Random;
use crate::workload::Options;
use crate::world::Hang;

/// Share of the schedules in which an operator changes the roles, in percent.
pub const CHANGES_ROLES_PERCENT: u64 = 30;
/// Share of these schedules with a witness, in percent. There the roles change by themselves, too.
const WITNESS_PERCENT: u64 = 50;
/// Most faults of a schedule, besides clean shutdowns and the acts of an operator.
const FAULTS_MAX: u64 = 10;
/// Most time between two faults, in microseconds.
const FAULT_EVERY_MAX_US: u64 = 1_500_000;
/// Most acts of an operator, where an operator changes the roles.
const OPERATOR_ACTS_MAX: u64 = 4;
/// Most room for clients on a small disk, in KiB.
const SMALL_DISK_KIB_MAX: u64 = 400;
/// The longest pauses of clients between two operations.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(20),
    Duration::from_millis(100),
];

/// A feature that only some schedules have. It has a random source of its own, so that a change of
/// the feature does not change the schedules without it.
#[derive(Clone, Copy)]
struct Feature {
    /// Distinguishes the random source from the other sources of the same seed.
    salt: u64,
    /// Share of the schedules with the feature, in percent.
    percent: u64,
}

const HANGING_DISK: Feature = Feature {
    salt: 0x6861_6e67,
    percent: 12,
};
const UNMOUNTED_DISK: Feature = Feature {
    salt: 0x6177_6179,
    percent: 6,
};
const FAILING_ROLE_WRITE: Feature = Feature {
    salt: 0x6d61_726b,
    percent: 10,
};
const CLEAN_SHUTDOWNS: Feature = Feature {
    salt: 0x006f_7264_6572,
    percent: 40,
};
const SMALL_DISKS: Feature = Feature {
    salt: 0x7363_6172_6365,
    percent: 20,
};
const CHANGED_ROLES: Feature = Feature {
    salt: 0x0072_6f6c_6573,
    percent: CHANGES_ROLES_PERCENT,
};
const WITNESS: Feature = Feature {
    salt: 0x7769_746e_6573,
    percent: WITNESS_PERCENT,
};
/// An operator who accepts a loss of operations, where roles change.
const FORCE: Feature = Feature {
    salt: 0x0066_6f72_6365,
    percent: 25,
};
/// Disks that are exchanged for good, where roles change. Elsewhere they come back.
const EXCHANGED_DISK: Feature = Feature {
    salt: 0x0065_7863_6861,
    percent: 8,
};
/// A witness whose answers are lost, while the calls arrive.
const LOST_ANSWERS: Feature = Feature {
    salt: 0x0064_6561_6600,
    percent: 50,
};
/// Threads that stand still, where there is a witness.
const HELD_THREADS: Feature = Feature {
    salt: 0x6865_6c64_5f74,
    percent: 60,
};
/// Most threads of a schedule that stand still.
const HELD_THREADS_MAX: u64 = 3;
/// A primary that is cut off while the secondary does not look, at the end of a schedule with a witness.
const UNSEEN_CUT: Feature = Feature {
    salt: 0x756e_7365_656e,
    percent: 25,
};
/// The longest time from such a cut, or from the failure of a disk, to the heal, in microseconds: longer than a takeover
/// takes.
const TAKEOVER_MAX_US: u64 = 3_000_000;
/// Programs that wait at a node that does not serve, where roles change.
const STANDBY_PROGRAMS: Feature = Feature {
    salt: 0x0077_6169_7473,
    percent: 30,
};
/// Programs that are killed while their requests wait, where roles change.
const KILLED_PROGRAMS: Feature = Feature {
    salt: 0x006b_696c_6c65,
    percent: 40,
};
/// A copy of the secondary's store that is put back, where no operator changes the roles: one who promotes a node with such a copy
/// goes back in time.
const PUT_BACK: Feature = Feature {
    salt: 0x6261_636b_7570,
    percent: 10,
};
/// A link that comes and goes.
const FLAPPING_LINK: Feature = Feature {
    salt: 0x666c_6170,
    percent: 10,
};
/// Most losses of such a link.
const FLAPS_MAX: u64 = 8;
/// The longest time for which such a link is up, and for which it is down, in microseconds.
const FLAP_MAX_US: u64 = 2_000_000;
/// An operator who makes snapshots.
const SNAPSHOTS: Feature = Feature {
    salt: 0x736e_6170,
    percent: 20,
};
/// Most acts of such an operator.
const SNAPSHOT_ACTS_MAX: u64 = 8;
/// A datastore that keeps what clients delete.
const TRASH: Feature = Feature {
    salt: 0x0074_7261_7368,
    percent: 25,
};
/// Share of these schedules in which an operator empties the trash, in percent.
const EMPTIES_TRASH_PERCENT: u64 = 40;
/// Disks that fail, where roles change.
const FAILING_DISKS: Feature = Feature {
    salt: 0x6661_696c_696e,
    percent: 25,
};
/// Share of these failures at the primary, in percent.
const FAILS_AT_PRIMARY_PERCENT: u64 = 80;
/// Share of these failures that an operator answers with a takeover, where there is no witness, in percent.
const TAKEN_OVER_PERCENT: u64 = 60;
/// Share of the schedules with such failures in which one comes at the begin, too, in percent.
const FAILS_EARLY_PERCENT: u64 = 70;
/// The longest time until that one, in microseconds.
const FAILS_EARLY_MAX_US: u64 = 500_000;
/// Most disk calls of a class until the one of them that fails early.
const FAILS_EARLY_CALLS_MAX: u64 = 6;
/// Distinguishes the random source of the details of faults.
const DETAILS_SALT: u64 = 0x6465_7461_696c;

impl Feature {
    fn source(self, seed: u64) -> Random {
        Random::new(seed ^ self.salt)
    }
}

/// The way in which the clients end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Each client ends after its next answer.
    Quiet,
    /// All clients end at once, with the primary's process.
    Killed,
}

/// Everything that is decided before a schedule runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of the choices during the run: the next thread, the delay of a frame, the request of
    /// a client, the data that survives a power loss.
    pub run_seed: u64,
    /// The configuration of the datastore.
    pub settings: Settings,
    /// Share of a thread's steps that let other threads go first, in percent.
    pub step_percent: u64,
    /// The behaviour of the clients.
    pub workload: Options,
    /// The longest pause of a client between two operations.
    pub pause_max: Duration,
    /// Each fault, with the time since the previous fault.
    pub faults: Vec<(Duration, Fault)>,
    /// The way in which the clients end.
    pub ending: Ending,
    /// Bytes for clients on each disk, where the disks are small.
    pub client_room: Option<[u64; 2]>,
    /// An operator or a witness changes the roles.
    pub changes_roles: bool,
    /// A program waits at each node that does not serve.
    pub has_standby_programs: bool,
    /// Some programs are killed while their requests wait.
    pub kills_programs: bool,
}

/// The parts of a plan that are left out or changed, when a failing plan is shrunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reduction {
    /// The numbers of the faults that are left out, from zero.
    pub without: BTreeSet<usize>,
    /// Most clients.
    pub clients: Option<u32>,
    /// Most operations of each client.
    pub operations: Option<u64>,
    /// Another seed of the run.
    pub run_seed: Option<u64>,
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut settings = Settings::random(&mut random);
        let step_percent = *random.pick(&[0, 10, 50, 100]);
        let workload = Options {
            clients: 1 + u32::try_from(random.below(6)).unwrap_or(0),
            file_bytes_max: *random.pick(&[8 << 10, 32 << 10]),
            shared_percent: *random.pick(&[20, 50, 90]),
            durable_percent: *random.pick(&[5, 30]),
            operations_max: *random.pick(&[10, 30, 60]),
            ..Options::default()
        };
        let pause_max = *random.pick(&PAUSES);
        let mut faults = faults(&mut random);
        replace_a_fault(&mut faults, seed, HANGING_DISK, |random| {
            Fault::HangDisk(*random.pick(&[Hang::Flushes, Hang::All]))
        });
        replace_a_fault(&mut faults, seed, UNMOUNTED_DISK, |_| Fault::UnmountDisk);
        replace_a_fault(&mut faults, seed, FAILING_ROLE_WRITE, |_| {
            Fault::FailRoleWrite
        });
        add_clean_shutdowns(&mut faults, &mut CLEAN_SHUTDOWNS.source(seed));
        let changes_roles = change_roles(&mut faults, &mut CHANGED_ROLES.source(seed));
        if changes_roles.is_some() {
            add_witness(seed, &mut settings, &mut faults);
            lose_answers(seed, &mut faults);
            replace_a_fault(&mut faults, seed, EXCHANGED_DISK, |_| Fault::ExchangeDisk);
            accept_losses(&mut faults, &mut FORCE.source(seed));
            if settings.failover_after.is_some() {
                hold_threads(&mut faults, &mut HELD_THREADS.source(seed));
                cut_unseen(&mut faults, &mut UNSEEN_CUT.source(seed));
            }
            let has_operator = settings.failover_after.is_none();
            fail_disks(&mut faults, has_operator, &mut FAILING_DISKS.source(seed));
            if !has_operator {
                put_copies_back_beside_a_witness(&mut faults, &mut PUT_BACK.source(seed));
            }
        } else {
            put_copies_back(&mut faults, &mut PUT_BACK.source(seed));
        }
        let mut flapping = FLAPPING_LINK.source(seed);
        if flapping.percent(FLAPPING_LINK.percent) {
            settings.wait_for_steady_link(&mut flapping);
            flap(&mut faults, &mut flapping);
        }
        take_snapshots(&mut faults, &mut SNAPSHOTS.source(seed));
        settings.trash = keep_trash(&mut faults, &mut TRASH.source(seed));
        settings.on_power_loss = changes_roles.unwrap_or(settings.on_power_loss);
        let mut details = Random::new(seed ^ DETAILS_SALT);
        for (_, fault) in &mut faults {
            *fault = fault.detailed(&mut details);
        }
        Self {
            run_seed: random.any(),
            settings,
            step_percent,
            workload,
            pause_max,
            faults,
            ending: *random.pick(&[Ending::Quiet, Ending::Killed]),
            client_room: client_room(&mut SMALL_DISKS.source(seed)),
            changes_roles: changes_roles.is_some(),
            has_standby_programs: changes_roles.is_some()
                && STANDBY_PROGRAMS
                    .source(seed)
                    .percent(STANDBY_PROGRAMS.percent),
            kills_programs: changes_roles.is_some()
                && KILLED_PROGRAMS
                    .source(seed)
                    .percent(KILLED_PROGRAMS.percent),
        }
    }

    /// Returns whether an operator accepts a loss of operations.
    pub fn accepts_losses(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|(_, fault)| fault.accepts_loss())
    }

    /// Returns whether an operator makes snapshots.
    pub fn takes_snapshots(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|(_, fault)| matches!(fault, Fault::Snapshot(_)))
    }

    /// Returns whether an operator puts an older copy of a store back.
    pub fn puts_copies_back(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|(_, fault)| matches!(fault, Fault::PutBack))
    }

    /// Returns the same plan without the parts that `reduction` leaves out.
    #[must_use]
    pub fn with(mut self, reduction: &Reduction) -> Self {
        // The time of a fault that is left out still passes.
        let mut waited = Duration::ZERO;
        let mut kept = Vec::new();
        for (number, (wait, fault)) in self.faults.into_iter().enumerate() {
            waited += wait;
            if !reduction.without.contains(&number) {
                kept.push((std::mem::take(&mut waited), fault));
            }
        }
        self.faults = kept;
        let clients = reduction.clients.unwrap_or(u32::MAX);
        self.workload.clients = self.workload.clients.min(clients);
        let operations = reduction.operations.unwrap_or(u64::MAX);
        self.workload.operations_max = self.workload.operations_max.min(operations);
        self.run_seed = reduction.run_seed.unwrap_or(self.run_seed);
        self
    }
}

/// Draws the room for clients: in some schedules one disk is small, or both are.
fn client_room(random: &mut Random) -> Option<[u64; 2]> {
    let mut room = |percent| {
        let bytes = random.below(SMALL_DISK_KIB_MAX) << 10;
        if random.percent(percent) {
            bytes
        } else {
            u64::MAX
        }
    };
    let both = [room(70), room(70)];
    (random.percent(SMALL_DISKS.percent) && both != [u64::MAX; 2]).then_some(both)
}

/// Replaces one of the faults by a fault of the secondary's disk, in some schedules.
fn replace_a_fault(
    faults: &mut [(Duration, Fault)],
    seed: u64,
    feature: Feature,
    other: impl FnOnce(&mut Random) -> Fault,
) {
    let mut random = feature.source(seed);
    if !random.percent(feature.percent) {
        return;
    }
    let place = random.below(faults.len().max(1) as u64);
    if let Some((_, fault)) = faults.get_mut(usize::try_from(place).unwrap_or(0)) {
        *fault = other(&mut random);
    }
}

/// Adds clean shutdowns, in some schedules. The other faults keep their times.
fn add_clean_shutdowns(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    if !random.percent(CLEAN_SHUTDOWNS.percent) {
        return;
    }
    for _ in 0..=random.below(2) {
        add(faults, random, |random| {
            Fault::CleanShutdown(CleanShutdown::random(random))
        });
    }
}

/// Adds the acts of an operator, in some schedules. The other faults keep their times. Returns the
/// setting `on_power_loss` of such a schedule.
fn change_roles(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) -> Option<OnPowerLoss> {
    if !random.percent(CHANGED_ROLES.percent) {
        return None;
    }
    // Disks fail here by a random source of their own: see `fail_disks`. A disk that was unmounted and comes back is an older
    // copy, as one that is put back: it may take over before its node has met the primary (gap 22 in docs/protocol/gaps.md).
    faults.retain(|(_, fault)| !matches!(fault, Fault::FailCall { .. } | Fault::UnmountDisk));
    for _ in 0..=random.below(OPERATOR_ACTS_MAX) {
        add(faults, random, Fault::of_operator);
    }
    // With `Serve` a primary that was deposed while it was down would serve until the nodes meet.
    Some(OnPowerLoss::Wait)
}

/// Adds a witness, in some schedules whose roles change. Its events take the place of the acts of an operator: no operator
/// promotes a node past the witness.
fn add_witness(seed: u64, settings: &mut Settings, faults: &mut [(Duration, Fault)]) {
    let mut random = WITNESS.source(seed);
    if !random.percent(WITNESS.percent) {
        return;
    }
    settings.add_witness(&mut random);
    for (_, fault) in faults {
        if matches!(
            fault,
            Fault::HandOver | Fault::TakeOver(_) | Fault::EndStandStill
        ) {
            *fault = Fault::with_witness(&mut random);
        }
    }
}

/// In some schedules, the answers of the witness are lost where otherwise its calls are lost, too.
fn lose_answers(seed: u64, faults: &mut [(Duration, Fault)]) {
    let mut random = LOST_ANSWERS.source(seed);
    for (_, fault) in faults {
        if let Fault::CutWitness(role) = *fault
            && random.percent(LOST_ANSWERS.percent)
        {
            *fault = Fault::LoseAnswersOfWitness(role);
        }
    }
}

/// Adds the acts of an operator who accepts losses, in some schedules.
fn accept_losses(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    if random.percent(FORCE.percent) {
        for _ in 0..=random.below(2) {
            add(faults, random, Fault::of_force);
        }
    }
}

/// Adds threads that stand still, in some schedules with a witness: leases and takeovers must not depend on them.
fn hold_threads(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    if !random.percent(HELD_THREADS.percent) {
        return;
    }
    for _ in 0..=random.below(HELD_THREADS_MAX) {
        add(faults, random, |random| {
            Fault::HoldThread(HeldThread::random(random))
        });
    }
}

/// Cuts the primary off at the end, in some schedules, while the thread of the secondary stands still that measures its
/// silence. The nodes are mostly in sync then, and the witness lets the secondary take over.
fn cut_unseen(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    if !random.percent(UNSEEN_CUT.percent) {
        return;
    }
    let calm = Duration::from_micros(random.below(FAULT_EVERY_MAX_US));
    faults.push((Duration::ZERO, Fault::Heal));
    let held = HeldThread::that_asks(random);
    faults.push((calm * 2, Fault::HoldThread(held)));
    let held_us = u64::try_from(held.time.as_micros()).unwrap_or(0);
    let cut = Duration::from_micros(random.below(held_us + 1));
    faults.push((cut, Fault::Isolate(Role::Primary)));
    let healed = Duration::from_micros(random.below(TAKEOVER_MAX_US));
    faults.push((healed, Fault::Heal));
}

/// Lets disks fail, in some schedules. Without a witness an operator may make the secondary the primary then.
fn fail_disks(faults: &mut Vec<(Duration, Fault)>, has_operator: bool, random: &mut Random) {
    if !random.percent(FAILING_DISKS.percent) {
        return;
    }
    for _ in 0..=random.below(2) {
        let role = if random.percent(FAILS_AT_PRIMARY_PERCENT) {
            Role::Primary
        } else {
            Role::Secondary
        };
        let place = add(faults, random, |random| {
            Fault::failing_call(role, FAILING_CALLS_MAX, random)
        });
        if has_operator && random.percent(TAKEN_OVER_PERCENT) {
            insert(faults, place + 1, random, Fault::take_over);
        }
    }
    if random.percent(FAILS_EARLY_PERCENT) {
        fail_early(faults, has_operator, random);
    }
}

/// Lets the disk of the primary fail at the begin, while the nodes are mostly in sync and all clients work. Then there is time
/// for a takeover.
fn fail_early(faults: &mut Vec<(Duration, Fault)>, has_operator: bool, random: &mut Random) {
    let mut within = |most| Duration::from_micros(random.below(most));
    let (calm, until_act, until_heal) = (
        within(FAILS_EARLY_MAX_US),
        within(TAKEOVER_MAX_US),
        within(TAKEOVER_MAX_US),
    );
    let mut early = vec![(
        calm,
        Fault::failing_call(Role::Primary, FAILS_EARLY_CALLS_MAX, random),
    )];
    if has_operator {
        early.push((until_act, Fault::take_over(random)));
    }
    early.push((until_heal, Fault::Heal));
    faults.splice(..0, early);
}

/// Lets the link come and go at the end.
fn flap(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    let mut soon = || Duration::from_micros(random.below(FLAP_MAX_US));
    let times: Vec<_> = (0..FLAPS_MAX).map(|_| (soon(), soon())).collect();
    for (up, down) in times
        .into_iter()
        .skip(usize::try_from(random.below(FLAPS_MAX - 1)).unwrap_or(0))
    {
        let role = *random.pick(&[Role::Primary, Role::Secondary]);
        let lost = if random.percent(50) {
            Fault::Mute(role)
        } else {
            Fault::Disconnect
        };
        faults.push((up, lost));
        faults.push((down, Fault::Heal));
    }
}

/// Adds the acts of an operator who makes snapshots, in some schedules.
fn take_snapshots(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    if random.percent(SNAPSHOTS.percent) {
        for _ in 0..=random.below(SNAPSHOT_ACTS_MAX) {
            add(faults, random, |random| {
                Fault::Snapshot(SnapshotAct::random(random))
            });
        }
    }
}

/// Keeps what clients delete, in some schedules, and adds the acts of an operator who empties the trash.
fn keep_trash(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) -> TrashAge {
    if !random.percent(TRASH.percent) {
        return TrashAge::Off;
    }
    if random.percent(EMPTIES_TRASH_PERCENT) {
        for _ in 0..=random.below(2) {
            add(faults, random, |_| Fault::EmptyTrash);
        }
    }
    TrashAge::Week
}

/// Adds the acts of an operator who copies the secondary's store, and puts the copy back, in some schedules.
fn put_copies_back(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    if random.percent(PUT_BACK.percent) {
        for _ in 0..2 + random.below(3) {
            add(faults, random, |_| Fault::PutBack);
        }
    }
}

/// Adds such acts where roles change by the answer of a witness. After an older copy, and a loss of power or of a disk, neither copy
/// is complete, and only an operator can go on.
fn put_copies_back_beside_a_witness(faults: &mut Vec<(Duration, Fault)>, random: &mut Random) {
    let may_end_both = |fault: &Fault| {
        let harms_disk = matches!(fault, Fault::FailCall { .. } | Fault::ExchangeDisk);
        fault.loses_power() || fault.accepts_loss() || harms_disk
    };
    if !faults.iter().any(|(_, fault)| may_end_both(fault)) {
        put_copies_back(faults, random);
    }
}

/// Adds a fault at a random place, which is returned.
fn add(
    faults: &mut Vec<(Duration, Fault)>,
    random: &mut Random,
    fault: impl FnOnce(&mut Random) -> Fault,
) -> usize {
    let place = usize::try_from(random.below(faults.len() as u64 + 1)).unwrap_or(0);
    insert(faults, place, random, fault);
    place
}

/// Adds a fault at a place. The other faults keep their times.
fn insert(
    faults: &mut Vec<(Duration, Fault)>,
    place: usize,
    random: &mut Random,
    fault: impl FnOnce(&mut Random) -> Fault,
) {
    let next = faults.get_mut(place).map(|(wait, _)| wait);
    let most = next.as_ref().map_or(FAULT_EVERY_MAX_US, |next| {
        u64::try_from(next.as_micros()).unwrap_or(0)
    });
    let wait = Duration::from_micros(random.below(most + 1));
    if let Some(next) = next {
        *next -= wait;
    }
    faults.insert(place, (wait, fault(random)));
}

fn faults(random: &mut Random) -> Vec<(Duration, Fault)> {
    let mut needs_heal = false;
    let mut next = |random: &mut Random| {
        // Most faults follow soon after another fault, while the recovery is still in progress.
        let most = if random.percent(60) {
            FAULT_EVERY_MAX_US / 10
        } else {
            FAULT_EVERY_MAX_US
        };
        let wait = Duration::from_micros(random.below(most));
        let fault = Fault::random(random, needs_heal);
        needs_heal = fault.lasts() || needs_heal && !matches!(fault, Fault::Heal);
        (wait, fault)
    };
    let count = random.below(FAULTS_MAX + 1);
    (0..count).map(|_| next(random)).collect()
}
