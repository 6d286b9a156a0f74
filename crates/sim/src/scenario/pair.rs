//! Two nodes with what is between them, and who uses them.

mod calm;
mod exact;
mod order;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use exact::Watch;
use lockstep_driver::{Datastore, DatastoreHandle};
use lockstep_repl::state::State;
use lockstep_types::settings::Durability;
use parking_lot::Mutex;

use super::bounds;
use super::clients::{Client, ask_the_secondary};
use super::coverage::Coverage;
use super::end::{self, Ended};
use super::faults::Fault;
use super::half::{End, Half};
use super::left;
use super::plan::Settings;
use super::tables;
use super::witness::Witness;
use crate::check::in_time;
use crate::history::{NodeEvent, Stop};
use crate::random::Random;
use crate::workload::Source;
use crate::world::{Process, Side, World};

/// How often a state is looked at while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Long enough for every watermark to arrive and garbage to be removed.
const REST: Duration = Duration::from_secs(4);
/// How long a process takes to be started again, at most, in microseconds.
const DOWN_MAX_US: u64 = 20_000;
/// How often it is looked between two faults.
const LOOKS: u32 = 4;
/// So many disks of a hundred that get full have nothing left in the reserve.
const RESERVE_USED_PERCENT: u64 = 25;
/// So long after the nodes were in sync for the first time an operation may end that was asked for before.
const ASKED_EARLIER: Duration = Duration::from_millis(200);
/// Steps of the world in one schedule that none should need.
const STEPS_MAX: u64 = 3_000_000;

/// Both nodes, what is between them, and who uses them.
pub struct Pair {
    world: World,
    halves: [Half; 2],
    witness: Arc<Mutex<Witness>>,
    coverage: Coverage,
    clients: u32,
    pause_max: Duration,
    /// The process that the clients look through.
    served_by: Option<Arc<Process>>,
    /// The process of the secondary that was asked, too.
    asked_in_vain: Option<Arc<Process>>,
    /// Clients are to ask nothing more.
    enough: Arc<AtomicBool>,
    /// The primary's process ended in sync: the tables must tell where the nodes differ.
    tables_are_due: bool,
    /// What keeps the secondary from following.
    excuses: Excuses,
    /// The primary has been in sync since it started. Before, a size may show of which the secondary
    /// knows nothing: that of a write under way when the process before it stopped.
    has_recovered: bool,
    /// Questions about the history that were too entangled to be decided.
    undecided: u64,
    chance: Random,
    steps: u64,
}

/// What may keep the secondary from doing what the primary has accepted.
#[derive(Default)]
struct Excuses {
    /// A disk was made to fail.
    disk_failed: bool,
    /// Disks have little room.
    is_scarce: bool,
    /// A fault has come.
    has_suffered: bool,
    /// When the nodes were first in sync.
    in_sync_since: Option<Duration>,
}

/// Who uses the mount.
pub struct Users {
    /// So many clients.
    pub clients: u32,
    /// Longest pause of each between two operations.
    pub pause_max: Duration,
    /// What they ask.
    pub source: Box<dyn Source>,
}

impl Pair {
    /// Two nodes that have never run, and those who will use them.
    pub fn new(settings: &Settings, users: Users, step_percent: u64, mut chance: Random) -> Self {
        let always = settings.durability == Durability::Always;
        Self {
            world: World::new(chance.fork(), step_percent),
            halves: Side::BOTH.map(|side| Half::new(side, settings)),
            witness: Arc::new(Mutex::new(Witness::new(users.source, always))),
            coverage: Coverage::default(),
            clients: users.clients,
            pause_max: users.pause_max,
            served_by: None,
            asked_in_vain: None,
            enough: Arc::default(),
            tables_are_due: false,
            excuses: Excuses::default(),
            has_recovered: false,
            undecided: 0,
            chance,
            steps: 0,
        }
    }

    /// Gives the disks so many bytes for clients.
    pub fn with_scarce_disks(&mut self, bytes: [u64; 2]) {
        for (half, bytes) in self.halves.iter_mut().zip(bytes) {
            half.make_scarce(bytes);
        }
        self.excuses.is_scarce = true;
        self.witness.lock().expect_full_disks();
    }

    /// The disks have room for everything again.
    pub fn make_room(&mut self) {
        for half in &mut self.halves {
            half.make_room();
        }
    }

    /// Starts both nodes.
    pub fn start_both(&mut self) {
        for side in Side::BOTH {
            self.start(side);
        }
    }

    const fn half(&mut self, side: Side) -> &mut Half {
        side.of_mut(&mut self.halves)
    }

    fn start(&mut self, side: Side) {
        if side == Side::Primary {
            if std::mem::take(&mut self.tables_are_due) {
                self.hold_the_tables_against_the_disks();
            }
            self.has_recovered = false;
        }
        let process = self.world.give_birth();
        let network = Arc::clone(&self.world.network);
        let peer = self.half(Side::Secondary).node.living();
        let half = side.of_mut(&mut self.halves);
        let backing = half.power_on(&process);
        half.node
            .start(&process, backing, half.boot(), &network, peer);
        if let Some(cut) = half.cut_at_start.take() {
            half.stop_at_call(cut.stop, cut.at, &self.coverage);
        }
        self.witness.lock().node(side, NodeEvent::Started);
    }

    /// Ends what lives on a node, if anything does.
    fn stop(&mut self, side: Side, stop: Stop) {
        let mut chance = self.chance.fork();
        let half = self.half(side);
        half.power_off(stop, &mut chance);
        if let Some(process) = half.process() {
            // First, for a fiber that ends in the middle of a disk call may hold a lock.
            self.world.kill(&process);
        }
        let is_told = stop == Stop::Process;
        let shared = Arc::clone(&self.world.shared);
        self.world.network.process_gone(side, &shared, is_told);
        let left = self.look_at_what_is_left(side, stop);
        self.note_decided(left);
        // Also of one that was about to take its store into use: it is as it was closed (P12).
        let event = if self.half(side).is_closed() {
            NodeEvent::Closed
        } else {
            NodeEvent::Crashed(stop)
        };
        self.witness.lock().node(side, event);
        if side == Side::Primary {
            self.served_by = None;
            self.tables_are_due = stop == Stop::Process && self.counts_as_in_sync();
        } else {
            self.asked_in_vain = None;
            self.tables_are_due = false;
        }
        self.half(side).node.forget();
    }

    fn note_decided(&mut self, judged: Result<bool, String>) {
        self.undecided += u64::from(judged == Ok(false));
        self.note(judged.map(drop));
    }

    fn note(&self, judged: Result<(), String>) {
        if let Err(what) = judged {
            self.witness.lock().wrong(what);
        }
    }

    /// Holds what a node leaves against what must be there, while both count as in sync.
    /// `false` if a question had to be left undecided.
    fn look_at_what_is_left(&self, side: Side, stop: Stop) -> Result<bool, String> {
        let [_, secondary] = &self.halves;
        if let [
            Some(State::ResyncContent | State::EnteringSync),
            Some(State::SecondaryResyncing),
        ] = self.states()
        {
            // Its records were changed, so it must have been told before.
            left::is_marked_out_of_sync(&secondary.disk)?;
        }
        if !self.counts_as_in_sync() {
            return Ok(true);
        }
        let witness = self.witness.lock();
        let history = witness.history();
        match (side, stop) {
            (Side::Secondary, Stop::Process) => Ok(true),
            (Side::Secondary, Stop::Power) => {
                left::holds_the_durable(&secondary.left()?, history).map(|()| true)
            }
            (Side::Primary, _) if !self.has_recovered => Ok(true),
            (Side::Primary, _) => left::could_take_over(&secondary.left()?, history),
        }
    }

    /// Looks whether PAW and SAW tell where the nodes differ at this moment. The primary counts as in
    /// sync, or did when it stopped.
    fn hold_the_tables_against_the_disks(&self) {
        let [primary, secondary] = &self.halves;
        if !secondary.has_kept_sync() {
            return;
        }
        let (here, there) = (primary.inodes(), secondary.inodes());
        let is_there = |ino| Ok(here(ino)? && there(ino)?);
        let disks = [&primary.disk, &secondary.disk];
        let told = tables::tell(disks, is_there, self.witness.lock().history());
        self.note(told);
    }

    /// Whether the secondary holds all that was acknowledged, by what both say.
    fn counts_as_in_sync(&self) -> bool {
        let [primary, secondary] = &self.halves;
        let primary = primary.state().is_some_and(|state| {
            matches!(
                state,
                State::Synced | State::Paused | State::Frozen | State::CatchingUp
            )
        });
        primary && secondary.has_kept_sync()
    }

    /// The states of both nodes, of those that have opened the datastore.
    fn states(&self) -> [Option<State>; 2] {
        self.halves.each_ref().map(Half::state)
    }

    /// Whether both nodes say that they are in sync.
    pub fn is_in_sync(&self) -> bool {
        self.states() == [Some(State::Synced), Some(State::SecondarySynced)]
    }

    fn is_any_poisoned(&self) -> bool {
        let mut datastores = self.datastores().into_iter().flatten();
        datastores.any(|datastore| datastore.store().is_poisoned())
    }

    fn datastores(&self) -> [Option<Arc<Datastore>>; 2] {
        Side::BOTH.map(|side| side.of(&self.halves).datastore())
    }

    /// Lets a fault happen.
    pub fn suffer(&mut self, fault: Fault) -> Result<(), String> {
        self.excuses.has_suffered |= self.could_not_know_the_room();
        if !std::mem::replace(&mut self.excuses.has_suffered, true) {
            self.note(self.secondary_could_follow());
        }
        match fault {
            Fault::Stopped(side, stop) => {
                self.stop(side, stop);
                self.stay_down()?;
                self.start(side);
            }
            Fault::BothStopped(primary, secondary) => {
                self.stop(Side::Primary, primary);
                self.stop(Side::Secondary, secondary);
                self.start_both();
            }
            Fault::Away(side, stop) => {
                self.stop(side, stop);
                self.half(side).is_away = true;
            }
            Fault::StopsInOrder(order) => self.ask_to_stop(order),
            Fault::StopsAtCall { side, stop, at } => {
                let half = side.of_mut(&mut self.halves);
                half.stop_at_call(stop, at, &self.coverage);
            }
            Fault::DiskFails {
                side,
                class,
                nth,
                errno,
            } => {
                self.expect_disk_errors(side);
                self.half(side).fail_disk(class, nth, errno);
            }
            Fault::MarkFails => {
                self.expect_disk_errors(Side::Secondary);
                self.half(Side::Secondary).fail_next_mark();
            }
            Fault::Full(side) => {
                self.expect_disk_errors(side);
                self.witness.lock().expect_full_disks();
                let with_reserve = self.chance.percent(RESERVE_USED_PERCENT);
                self.half(side).fill_disk(with_reserve);
            }
            Fault::DiskAway => self.unmount_secondary()?,
            Fault::Hangs(hang) => self.half(Side::Secondary).hang_disk(Some(hang)),
            Fault::Cut => self.world.network.cut(&self.world.shared),
            Fault::Corrupt(side) => self.world.network.corrupt_next(side),
            Fault::Silent(side) => {
                self.world.network.set_silent(side, true);
            }
            Fault::Healed => self.heal()?,
        }
        Ok(())
    }

    fn unmount_secondary(&mut self) -> Result<(), String> {
        if self.half(Side::Secondary).can_be_unmounted() {
            self.stop(Side::Secondary, Stop::Process);
            self.half(Side::Secondary).unmount()?;
            self.start(Side::Secondary);
        }
        Ok(())
    }

    fn remount_secondary(&mut self) {
        if self.half(Side::Secondary).is_unmounted() {
            self.stop(Side::Secondary, Stop::Process);
            self.half(Side::Secondary).remount();
            self.start(Side::Secondary);
        }
    }

    /// A process is not there again at once.
    fn stay_down(&mut self) -> Result<(), String> {
        let time = self.chance.below(DOWN_MAX_US);
        self.run_for(Duration::from_micros(time))
    }

    /// What has rotted on the secondary's disk an operation may find.
    pub fn expect_refusals(&mut self) {
        self.half(Side::Secondary).rot();
    }

    /// What goes wrong with the primary's disk, clients hear of.
    fn expect_disk_errors(&mut self, side: Side) {
        self.excuses.disk_failed = true;
        if side == Side::Primary {
            self.witness.lock().expect_disk_errors();
        }
    }

    /// Frames pass, disks have room and are mounted, and both nodes live.
    pub fn heal(&mut self) -> Result<(), String> {
        self.remount_secondary();
        for side in Side::BOTH {
            self.world.network.set_silent(side, false);
            let half = self.half(side);
            half.mend_disk();
            if let Some(then) = &mut half.then {
                then.is_away = false;
            }
            let called = std::mem::take(&mut half.needs_operator);
            if called {
                self.stop(side, Stop::Process);
                if self.half(side).repair()? {
                    // Everything will be compared.
                    self.tables_are_due = false;
                    let event = NodeEvent::Crashed(Stop::Power);
                    self.witness.lock().node(side, event);
                }
                self.half(side).disk.kill();
            }
            if called || self.half(side).is_away {
                self.start(side);
            }
        }
        Ok(())
    }

    /// The world's time.
    pub fn now(&self) -> Duration {
        self.world.shared.now()
    }

    /// Answers that clients had.
    pub fn answered(&self) -> u64 {
        self.witness.lock().answered()
    }

    /// What was met on the way.
    pub const fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// How many questions about the history were left undecided.
    pub const fn undecided(&self) -> u64 {
        self.undecided
    }

    /// What clients asked and were told, and what happened to the nodes, for people.
    pub fn history(&self) -> String {
        self.witness.lock().history().to_string()
    }

    /// Lets everything run for some time.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now() + time;
        while self.world.step(until) {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err("too much happens: somebody tries something again and again".to_owned());
            }
            self.look_after()?;
        }
        self.look_after()
    }

    /// The same, and looks on the way and at the end of it whether no more is under way than may be, and
    /// whether the tables tell where the nodes differ.
    pub fn run_and_look(&mut self, time: Duration) -> Result<(), String> {
        for _ in 0..LOOKS {
            self.run_for(time / LOOKS)?;
            self.hold_to_bounds()?;
            if self.counts_as_in_sync() && !self.is_any_poisoned() {
                self.hold_the_tables_against_the_disks();
            }
        }
        Ok(())
    }

    fn hold_to_bounds(&self) -> Result<(), String> {
        let witness = self.witness.lock();
        for (side, datastore) in Side::BOTH.into_iter().zip(self.datastores()) {
            let Some(datastore) = datastore else { continue };
            let checked = bounds::check(side, &datastore, self.clients, witness.history(), false);
            checked.map_err(|violation| violation.to_string())?;
        }
        Ok(())
    }

    /// Restarts who has died by itself, and brings clients to a new mount.
    fn look_after(&mut self) -> Result<(), String> {
        // All who have ended before any is started: what starts is held against the other's store, in which
        // a process that has just ended may hold locks.
        let mut stopped = Vec::new();
        for side in Side::BOTH {
            match self.half(side).has_ended()? {
                Some(End::Stopped(stop)) => {
                    self.stop(side, stop);
                    stopped.push(side);
                }
                Some(End::InOrder) => self.has_stopped_in_order(side),
                None => {}
            }
        }
        for side in stopped {
            if !self.half(side).is_away {
                self.start(side);
            }
        }
        let is_in_sync = self.is_in_sync();
        if is_in_sync && self.excuses.in_sync_since.is_none() {
            self.excuses.in_sync_since = Some(self.now());
        }
        self.excuses.has_suffered |= self.could_not_know_the_room();
        self.has_recovered |= is_in_sync;
        self.half(Side::Secondary).has_old_copy &= !is_in_sync;
        self.bring_clients();
        self.bring_who_is_wrong();
        Ok(())
    }

    /// Lets a client come to the secondary, once in each of its lives.
    fn bring_who_is_wrong(&mut self) {
        if self.asked_in_vain.is_some() {
            return;
        }
        let Some(life) = self.half(Side::Secondary).node.life() else {
            return;
        };
        let Some(datastore) = life.datastore() else {
            return;
        };
        let witness = Arc::clone(&self.witness);
        life.process
            .start(move || ask_the_secondary(&datastore, witness));
        self.asked_in_vain = Some(life.process);
    }

    fn bring_clients(&mut self) {
        if self.served_by.is_some() || self.enough.load(Ordering::Relaxed) {
            return;
        }
        let Some(life) = self.half(Side::Primary).node.life() else {
            return;
        };
        let Some(datastore) = life.datastore() else {
            return;
        };
        for id in 0..self.clients {
            let client = Client {
                id,
                process: Arc::clone(&life.process),
                leaving: Arc::clone(&life.leaving),
                service: DatastoreHandle(Arc::clone(&datastore)),
                witness: Arc::clone(&self.witness),
                pause_max: self.pause_max,
                enough: Arc::clone(&self.enough),
            };
            life.process.start(move || client.run());
        }
        self.served_by = Some(life.process);
    }

    /// Clients ask nothing more, once they are answered.
    pub fn send_clients_away(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Clients end where they are, with the process that they look through.
    pub fn kill_clients(&mut self) {
        self.send_clients_away();
        self.stop(Side::Primary, Stop::Process);
        self.start(Side::Primary);
    }

    /// Waits until both nodes say that they are in sync.
    pub fn until_in_sync(&mut self, limit: Duration) -> Result<(), String> {
        let start = self.now();
        loop {
            self.run_for(LOOK_EVERY)?;
            if self.is_in_sync() {
                return Ok(());
            }
            let waited = self.now().saturating_sub(start);
            in_time::check(waited, limit, self.states())
                .map_err(|violation| violation.to_string())?;
        }
    }

    /// Lets everything that is still to be done be done.
    pub fn rest(&mut self) -> Result<(), String> {
        self.run_for(REST)
    }

    /// Holds what there is at the end against what must be.
    pub fn judge(&mut self) -> Result<(), String> {
        let is_decided = self.judge_all()?;
        self.undecided += u64::from(!is_decided);
        Ok(())
    }

    /// Whether the secondary had no room for what was asked for before the nodes were first in sync: the primary cannot
    /// know then what the secondary will have room for (P20).
    fn could_not_know_the_room(&self) -> bool {
        let since = self.excuses.in_sync_since;
        let is_early = since.is_none_or(|since| self.now().saturating_sub(since) < ASKED_EARLIER);
        self.excuses.is_scarce && is_early && self.world.network.failure().is_some()
    }

    /// What the primary accepts the secondary can do.
    fn secondary_could_follow(&self) -> Result<(), String> {
        let [_, secondary] = &self.halves;
        let must_follow = !self.excuses.disk_failed && !secondary.is_rotten();
        match self.world.network.failure().filter(|_| must_follow) {
            None => Ok(()),
            Some(told) => Err(format!(
                "the secondary could not follow, though its disk is well: {told}"
            )),
        }
    }

    fn judge_all(&self) -> Result<bool, String> {
        let witness = self.witness.lock();
        witness.verdict()?;
        // After a fault the primary may not know the room on the other disk (P20).
        if !(self.excuses.is_scarce && self.excuses.has_suffered) {
            self.secondary_could_follow()?;
        }
        if self.world.network.has_waited() {
            return Err("a thread that must not has waited for the other node to read".to_owned());
        }
        let [Some(primary), Some(secondary)] = self.datastores() else {
            return Err("a node does not live at the end".to_owned());
        };
        let [here, there] = &self.halves;
        let nodes = [(&primary, here), (&secondary, there)].map(|(datastore, half)| Ended {
            datastore,
            disk: &half.disk,
        });
        end::judge(witness.history(), self.clients, nodes)
    }

    /// Of everything on both disks, and of the time it took.
    pub fn digest(&self) -> u64 {
        let disks = self.halves.iter().map(|half| half.disk.digest());
        let time = u64::try_from(self.now().as_nanos()).unwrap_or(0);
        disks.fold(time ^ self.steps, |digest, disk| {
            digest.rotate_left(17) ^ disk
        })
    }
}
