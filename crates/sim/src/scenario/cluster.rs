//! Two nodes, the network between them, and their clients. The cluster starts and stops the nodes,
//! applies faults, and supervises the run. It makes no check itself: see
//! [`live_checks`](super::checks::live_checks).

pub mod at_rest;
pub mod failed_disks;
pub mod put_back;
pub mod stale_caches;

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_types::Generation;
use lockstep_types::settings::{Durability, Role};
use parking_lot::Mutex;

use super::checks::live_checks::LiveChecks;
use super::clients::{ClientPool, Users};
use super::faults::{CleanShutdown, Fault, OldDisk};
use super::nodes::sim_node::End;
use super::nodes::{IN_SYNC, Nodes};
use super::on_disk::disk_checks;
use super::operator::forced_acts::ForcedActs;
use super::recording::coverage::{Coverage, CoverageRecorder};
use super::recording::history_recorder::HistoryRecorder;
use super::recording::tally::Tally;
use super::settings::Settings;
use crate::check::{closed, in_time};
use crate::history::{NodeEvent, Stop};
use crate::random::Random;
use crate::world::{Hang, Side, Surroundings, World};

/// The interval between two looks at a state that the cluster waits for.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time until a process starts again, in microseconds.
const DOWN_MAX_US: u64 = 20_000;
/// After so long, an operator who has accepted a loss or exchanged a disk promotes one of two nodes of which none leads.
const OPERATOR_AFTER: Duration = Duration::from_secs(20);
/// Number of checks between two faults.
const CHECKS_BETWEEN_FAULTS: u32 = 4;
/// Share of full disks on which other programs use the reserve too, in percent.
const RESERVE_USED_PERCENT: u64 = 25;

/// Two nodes and everything around them.
pub struct Cluster {
    pub(super) world: World,
    pub(super) nodes: Nodes,
    pub(super) clients: ClientPool,
    pub(super) recorder: Arc<Mutex<HistoryRecorder>>,
    pub(super) checks: LiveChecks,
    /// The node that an operator has told to become the primary, and that has not answered.
    pub(super) unanswered: Option<Side>,
    /// The generation of which the witness has last made a machine the primary.
    decided: Option<Generation>,
    /// The acts of an operator who accepts a loss.
    pub(super) force: ForcedActs,
    coverage: CoverageRecorder,
    /// A test starts and stops the nodes. The cluster restarts no node.
    is_manual: bool,
    random: Random,
}

impl Cluster {
    /// Returns two nodes that have never run, and their clients. A step of a thread lets other
    /// threads go first in `step_percent` percent of the cases.
    pub fn new(settings: &Settings, users: Users, step_percent: u64, mut random: Random) -> Self {
        let is_always = settings.durability == Durability::Always;
        let recorder = Arc::new(Mutex::new(HistoryRecorder::new(users.source, is_always)));
        Self {
            world: World::new(random.fork(), step_percent),
            nodes: Nodes::new(settings),
            clients: ClientPool::new(users.clients, users.pause_max, Arc::clone(&recorder)),
            checks: LiveChecks::new(Arc::clone(&recorder)),
            recorder,
            unanswered: None,
            decided: None,
            force: ForcedActs::new(),
            coverage: CoverageRecorder::default(),
            is_manual: false,
            random,
        }
    }

    /// Leaves every start to the caller, brings no clients, and turns the checks during the run off.
    #[must_use]
    pub(super) const fn controlled_by_test(mut self) -> Self {
        self.is_manual = true;
        self.checks.turn_off();
        self
    }

    /// Limits the room for clients on each disk to so many bytes, or gives the disks room for
    /// everything again.
    pub fn limit_disks(&mut self, bytes: Option<[u64; 2]>) {
        for side in Side::BOTH {
            let disk = &mut self.nodes.of_mut(side).disk;
            match &bytes {
                Some(bytes) => disk.limit(*side.of(bytes)),
                None => disk.enlarge(),
            }
        }
        if bytes.is_some() {
            self.checks.expect_small_disks();
        }
    }

    /// Lets the nodes watch their disks, once they start.
    pub fn watch_disks(&mut self, limit: Duration) {
        for side in Side::BOTH {
            self.nodes.of_mut(side).node.watch_disk(limit);
        }
    }

    /// Makes the disk of the primary hang. [`Fault::Heal`] lets it continue.
    pub fn hang_primary(&mut self, hang: Hang) {
        let side = self.nodes.machine(Role::Primary);
        self.nodes.of_mut(side).hang_disk(Some(hang));
    }

    /// Starts both nodes.
    pub fn start_both(&mut self) {
        for side in Side::BOTH {
            self.start(side);
        }
    }

    /// Starts a node. The node must be stopped.
    pub fn start(&mut self, side: Side) {
        self.checks.before_start(&self.nodes, side);
        let process = self.world.spawn_process();
        let surroundings = Surroundings {
            network: Arc::clone(&self.world.network),
            witness: Arc::clone(&self.world.witness),
            peer: self.nodes.of(side.other()).node.slot(),
        };
        let role = self.nodes.role_of(side);
        let node = self.nodes.of_mut(side);
        let backing = node.power_on(&process);
        node.node
            .start(&process, backing, node.boot(), surroundings);
        if let Some(crash) = node.planned.crash_at_start.take() {
            node.crash_at_call(crash, role, &self.coverage);
        }
        self.recorder.lock().node(side, NodeEvent::Started);
    }

    /// Stops a node, whether or not a process is running.
    pub fn stop(&mut self, side: Side, stop: Stop) {
        let mut random = self.random.fork();
        self.recorder.lock().tally.power_losses += u64::from(stop == Stop::Power);
        let node = self.nodes.of_mut(side);
        node.power_off(stop, &mut random);
        if let Some(process) = node.process() {
            // Before the checks: a fiber that ends inside a disk call may hold a lock.
            self.world.kill(&process);
        }
        self.note_mark(side);
        let is_notified = stop == Stop::Process;
        let shared = Arc::clone(&self.world.shared);
        self.world.network.process_ended(side, &shared, is_notified);
        self.checks.after_stop(&self.nodes, side, stop);
        self.clients.process_ended(side);
        self.nodes.process_ended(side);
    }

    /// Records that the copy of a secondary is equal, if its node stops just after it has made its mark durable: then the
    /// state of the node does not say so yet.
    fn note_mark(&mut self, side: Side) {
        let node = self.nodes.of(side);
        let marks = || disk_checks::marks(node.disk.disk());
        if node.state() == Some(State::SecondaryResyncing)
            && marks().is_some_and(|marks| marks.record.complete)
        {
            self.note_equal(side);
        }
    }

    fn note_equal(&mut self, side: Side) {
        self.nodes.of_mut(side).disk.has_old_copy = false;
        self.recorder.lock().node(side, NodeEvent::Equal);
    }

    /// Applies a fault.
    pub fn apply_fault(&mut self, fault: Fault) -> Result<(), String> {
        let now = self.now();
        self.checks
            .before_fault(&self.nodes, &self.world.network, now);
        match fault {
            Fault::Restart(role, stop) => {
                let side = self.nodes.machine(role);
                self.stop(side, stop);
                let down = self.random.below(DOWN_MAX_US);
                self.run_for(Duration::from_micros(down))?;
                self.start(side);
            }
            Fault::RestartBoth(primary, secondary) => {
                for (side, stop) in self.nodes.machines().into_iter().zip([primary, secondary]) {
                    self.stop(side, stop);
                }
                self.start_both();
            }
            Fault::Down(role, stop) => {
                let side = self.nodes.machine(role);
                self.stop(side, stop);
                self.nodes.of_mut(side).stays_down = true;
            }
            Fault::CleanShutdown(shutdown) => self.request_shutdown(shutdown),
            Fault::CrashAtCall { role, crash } => {
                let node = self.nodes.of_mut(self.nodes.machine(role));
                node.crash_at_call(crash, role, &self.coverage);
            }
            Fault::Disconnect => self.world.network.cut(&self.world.shared),
            Fault::CorruptFrame(role) => self.world.network.corrupt_next(self.nodes.machine(role)),
            Fault::Mute(role) => {
                let side = self.nodes.machine(role);
                self.world.network.set_silent(side, true);
            }
            Fault::CutWitness(role) => {
                let side = self.nodes.machine(role);
                self.world.witness.cut_off(side, true);
            }
            Fault::LoseAnswersOfWitness(role) => {
                let side = self.nodes.machine(role);
                self.world.witness.lose_answers(side, true);
            }
            Fault::ReplaceWitness => self.world.witness.replace(),
            Fault::HandOver => self.hand_over(),
            Fault::TakeOver(stop) => self.take_over(stop)?,
            Fault::EndStandStill => self.end_stand_still()?,
            Fault::PromoteByForce(stop, disk) => {
                self.promote_by_force(stop, disk == OldDisk::Lost)?;
            }
            Fault::Demote => self.demote_primary()?,
            Fault::ExchangeDisk => self.exchange_secondary(),
            Fault::HoldThread(held) => self.hold_thread(held),
            Fault::Isolate(role) => self.isolate(role)?,
            Fault::Heal => self.heal()?,
            disk_fault => self.apply_disk_fault(disk_fault)?,
        }
        Ok(())
    }

    fn apply_disk_fault(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::FailCall {
                role,
                class,
                nth,
                errno,
            } => {
                let side = self.nodes.machine(role);
                self.checks.expect_disk_errors(side);
                self.nodes.of_mut(side).fail_disk(class, nth, errno);
            }
            Fault::FailRoleWrite => {
                self.fail_next_role_write(self.nodes.machine(Role::Secondary));
            }
            Fault::FillDisk(role) => {
                let side = self.nodes.machine(role);
                self.checks.expect_disk_errors(side);
                self.recorder.lock().expect_full_disks();
                let with_reserve = self.random.percent(RESERVE_USED_PERCENT);
                self.nodes.of_mut(side).disk.fill(with_reserve);
            }
            Fault::UnmountDisk => self.unmount_secondary()?,
            Fault::PutBack => self.put_secondary_back(),
            Fault::HangDisk(hang) => {
                let side = self.nodes.machine(Role::Secondary);
                self.nodes.of_mut(side).hang_disk(Some(hang));
            }
            _ => {}
        }
        Ok(())
    }

    fn unmount_secondary(&mut self) -> Result<(), String> {
        let side = self.nodes.machine(Role::Secondary);
        let secondary = self.nodes.of(side);
        if secondary.disk.can_be_unmounted() && !secondary.needs_operator {
            self.stop(side, Stop::Process);
            let secondary = self.nodes.of_mut(side);
            secondary.node.set_role(Role::Secondary);
            secondary.disk.unmount()?;
            self.start(side);
        }
        Ok(())
    }

    fn remount(&mut self) {
        for side in Side::BOTH {
            if self.nodes.of(side).disk.is_unmounted() {
                self.stop(side, Stop::Process);
                self.nodes.of_mut(side).disk.remount();
                self.start(side);
            }
        }
    }

    /// Records that an operation may meet a changed bit on the secondary's disk.
    pub fn expect_rotten_secondary(&mut self) {
        let side = self.nodes.machine(Role::Secondary);
        self.nodes.of_mut(side).disk.set_rotten();
    }

    /// Lets frames pass, repairs and mounts the disks, and starts both nodes.
    pub fn heal(&mut self) -> Result<(), String> {
        self.remount();
        for side in Side::BOTH {
            self.world.network.set_silent(side, false);
            self.world.witness.cut_off(side, false);
            self.world.witness.lose_answers(side, false);
            let node = self.nodes.of_mut(side);
            node.mend_disk();
            if let Some(then) = &mut node.planned.after_shutdown {
                then.stays_down = false;
            }
            let is_repaired = std::mem::take(&mut node.needs_operator);
            if is_repaired {
                self.stop(side, Stop::Process);
                if self.nodes.of(side).repair()? {
                    self.checks.after_repair(side);
                }
                self.nodes.of(side).disk.disk().kill();
            }
            if is_repaired || self.nodes.of(side).stays_down {
                self.start(side);
            }
        }
        self.finish_force()
    }

    /// Requests a clean shutdown. The events after the shutdown follow if nothing interrupts it.
    pub(super) fn request_shutdown(&mut self, shutdown: CleanShutdown) {
        let node = self.nodes.of_mut(self.nodes.machine(shutdown.role));
        if !node.is_running() {
            return;
        }
        if let Some(crash) = shutdown.crash {
            node.crash_at_call(crash, shutdown.role, &self.coverage);
        }
        node.planned.after_shutdown = Some(shutdown.then);
        node.node.request_shutdown();
    }

    /// Handles a clean shutdown that is finished.
    fn finish_shutdown(&mut self, side: Side) {
        let node = self.nodes.of_mut(side);
        let then = node.planned.after_shutdown.take().unwrap_or_default();
        let is_closed = node.is_closed();
        if !is_closed && !self.checks.has_disk_failed() {
            self.checks.record(Err(format!(
                "{side:?} was shut down cleanly, and its role file does not say so"
            )));
        }
        self.stop(side, Stop::Process);
        // The mount is gone.
        self.nodes.of(side).node.kernel_caches().clear();
        if then.loses_power {
            self.lose_power_at_rest(side, is_closed);
        }
        let node = self.nodes.of_mut(side);
        node.stays_down = then.stays_down;
        node.planned.crash_at_start = then.crash;
        if !then.stays_down {
            self.start(side);
        }
    }

    /// Cuts the power of a machine on which no process has the store open. The power loss must not
    /// change a closed store.
    fn lose_power_at_rest(&mut self, side: Side, is_closed: bool) {
        if !is_closed {
            self.stop(side, Stop::Power);
            return;
        }
        let mut random = self.random.fork();
        let node = self.nodes.of_mut(side);
        let before = node.store_at_rest();
        node.power_off(Stop::Power, &mut random);
        if before.is_err() && node.is_out_of_sync() {
            // The shutdown interrupted a resync: the records are there, the content is not (P10).
            return;
        }
        let checked = before.and_then(|before| {
            let after = node.store_at_rest()?;
            closed::check(side, &before, &after).map_err(|violation| violation.to_string())
        });
        self.checks.record(checked);
    }

    /// Returns the time of the world.
    pub fn now(&self) -> Duration {
        self.world.now()
    }

    /// Returns whether both nodes report that they are in sync.
    pub fn is_in_sync(&self) -> bool {
        self.nodes.are_in_sync()
    }

    /// Returns the number of answers to clients.
    pub fn answered(&self) -> u64 {
        self.recorder.lock().answered()
    }

    /// Takes the coverage of the run.
    pub fn take_coverage(&self) -> Coverage {
        self.coverage.take()
    }

    /// Returns the number of times that the other node began to serve.
    pub const fn role_changes(&self) -> u64 {
        self.nodes.role_changes()
    }

    /// Returns the numbers of changes of roles.
    pub fn tally(&self) -> Tally {
        Tally {
            role_changes: self.role_changes(),
            ..self.recorder.lock().tally
        }
    }

    /// Returns the number of questions about the history that were left undecided.
    pub const fn undecided(&self) -> u64 {
        self.checks.undecided()
    }

    /// Returns the requests and answers of the clients, and the events of the nodes, as text.
    pub fn history(&self) -> String {
        self.recorder.lock().history().to_string()
    }

    /// Runs the world for some time.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now() + time;
        while self.world.step(until) {
            self.world.check_steps()?;
            self.supervise()?;
        }
        self.supervise()
    }

    /// Runs the world for some time, with checks during and after that time.
    pub fn run_and_check(&mut self, time: Duration) -> Result<(), String> {
        for _ in 0..CHECKS_BETWEEN_FAULTS {
            self.run_for(time / CHECKS_BETWEEN_FAULTS)?;
            self.checks
                .check_between_faults(&self.nodes, self.clients.count())?;
        }
        Ok(())
    }

    /// Handles ended processes, and starts clients at new mounts. A node whose process has died
    /// starts again, unless a test controls the nodes.
    pub(super) fn supervise(&mut self) -> Result<(), String> {
        self.drop_caches();
        if self.is_manual {
            for side in Side::BOTH {
                if self.nodes.of(side).has_shut_down() {
                    self.finish_shutdown(side);
                }
            }
            return self.follow_roles().map(|_| ());
        }
        // All ended processes first, then the starts: a start compares the two stores, and a process
        // that has just ended may hold locks in the other store.
        let mut crashed = Vec::new();
        for side in Side::BOTH {
            match self.nodes.of_mut(side).has_ended()? {
                Some(End::Crash(stop)) => {
                    self.stop(side, stop);
                    crashed.push(side);
                }
                Some(End::CleanShutdown) => self.finish_shutdown(side),
                None => {}
            }
        }
        for side in crashed {
            if !self.nodes.of(side).stays_down {
                self.start(side);
            }
        }
        let states = self.follow_roles()?;
        let now = self.now();
        self.checks.after_step(states, &self.world.network, now);
        self.clients.start(&self.nodes);
        Ok(())
    }

    /// Records the node that has begun to serve, and the copies that have become equal. Returns the states of both nodes, the
    /// primary first.
    fn follow_roles(&mut self) -> Result<[Option<State>; 2], String> {
        self.follow_witness();
        let role_changes = self.nodes.role_changes();
        if let Some(side) = self.nodes.look_for_server()? {
            self.follow_kept(side)?;
            self.note_service(side)?;
        }
        if self.nodes.role_changes() != role_changes {
            self.checks.after_role_change();
        }
        let states = self.nodes.states();
        for side in self.nodes.look_for_complete_copies(states) {
            // A copy that an operator makes the complete one is equal to none, unless a primary has made it equal meanwhile.
            let is_promoted = self.unanswered == Some(side);
            if !is_promoted || self.nodes.of(side).state() == Some(State::SecondarySynced) {
                self.note_equal(side);
            }
        }
        if self.nodes.look_for_sync(states) {
            self.unanswered = None;
            let secondary = self.nodes.machine(Role::Secondary);
            if self.force.copies.is_given_up(secondary) {
                // A copy that lacked nothing is in sync without a resync.
                self.note_equal(secondary);
            }
        }
        self.check_caches();
        self.end_keeping_away(states);
        let now = self.recorder.lock().now();
        self.force.copies.look(&self.nodes, states, now);
        Ok(states)
    }

    /// Lets clients reach both nodes again once the nodes are in sync, also if the node that was kept away leads: then nobody
    /// demotes that node any more.
    fn end_keeping_away(&mut self, states: [Option<State>; 2]) {
        let [ours, theirs] = states;
        let [primary, secondary] = self.nodes.machines();
        let leader = match states {
            IN_SYNC => primary,
            _ if [theirs, ours] == IN_SYNC => secondary,
            _ => return,
        };
        self.nodes.keep_away(None);
        self.force
            .to_demote
            .take_if(|deposed| deposed.side == leader);
    }

    /// Records that the witness has made a machine the primary of a later generation. From then on only the copy of that
    /// machine counts, also before its node serves.
    fn follow_witness(&mut self) {
        let Some((generation, side)) = self.world.witness.primary(self.now()) else {
            return;
        };
        let is_later = self.decided.is_some_and(|known| generation > known);
        self.decided = Some(generation);
        if is_later && side != self.nodes.machine(Role::Primary) {
            let mut recorder = self.recorder.lock();
            recorder.tally.takeovers += 1;
            recorder.node(side, NodeEvent::Promoted);
        }
    }

    /// Lets each client end after its next answer.
    pub fn stop_clients(&mut self) {
        self.clients.stop();
    }

    /// Ends all clients at once, with the process of the primary.
    pub fn kill_clients(&mut self) {
        self.stop_clients();
        let side = self.nodes.machine(Role::Primary);
        self.stop(side, Stop::Process);
        self.start(side);
    }

    /// Runs the world until both nodes report that they are in sync.
    pub fn until_in_sync(&mut self, limit: Duration) -> Result<(), String> {
        let start = self.now();
        loop {
            self.run_for(POLL_INTERVAL)?;
            // A thread that stands still may have an operation under way, and the connection of nodes in sync ends by it.
            if self.is_in_sync() && !self.world.holds_a_thread() {
                return Ok(());
            }
            self.finish_force()?;
            let waited = self.now().saturating_sub(start);
            if waited > OPERATOR_AFTER
                && self.force.have_begun()
                && let Some(side) = self.nodes.to_promote()
            {
                self.promote(side, true)?;
            }
            in_time::check(waited, limit, self.nodes.states())
                .map_err(|violation| violation.to_string())?;
        }
    }

    /// Returns a digest of both disks, the time, and the number of steps.
    pub fn digest(&self) -> u64 {
        let disks = Side::BOTH.map(|side| self.nodes.of(side).disk.disk().digest());
        let time = u64::try_from(self.now().as_nanos()).unwrap_or(0);
        disks
            .into_iter()
            .fold(time ^ self.world.steps(), |digest, disk| {
                digest.rotate_left(17) ^ disk
            })
    }
}
