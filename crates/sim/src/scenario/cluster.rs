//! Two nodes, the network between them, and their clients. The cluster starts and stops the nodes and supervises the run.
//!
//! The cluster makes no check itself: see [`LiveChecks`]. It lets nothing go wrong and gives no node another role: see
//! [`FaultInjector`](super::fault_injector::FaultInjector) and [`Operator`](super::operator::Operator).

pub mod role_follower;

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_types::settings::{Durability, Role};
use parking_lot::Mutex;

use super::checks::live_checks::LiveChecks;
use role_follower::RoleFollower;

use super::baseline::Baseline;
use super::clients::{ClientPool, Users};
use super::faults::CleanShutdown;
use super::faults::held_thread::HeldThread;
use super::nodes::Nodes;
use super::nodes::sim_node::End;
use super::on_disk::disk_checks;
use super::on_disk::node_disk::UUID;
use super::recording::coverage::{Coverage, CoverageRecorder};
use super::recording::history_recorder::HistoryRecorder;
use super::recording::tally::Tally;
use super::settings::Settings;
use super::snapshots::SnapshotJudge;
use crate::check::{closed, in_time};
use crate::disk::Disk;
use crate::history::{NodeEvent, Stop};
use crate::random::Random;
use crate::world::{Side, Surroundings, World};

/// The interval between two looks at a state that the cluster waits for.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of checks between two faults.
const CHECKS_BETWEEN_FAULTS: u32 = 4;

/// Long enough for every watermark to arrive and for garbage to be removed.
const SETTLE_TIME: Duration = Duration::from_secs(4);

/// Two nodes and everything around them.
pub struct Cluster {
    pub(super) world: World,
    pub(super) nodes: Nodes,
    pub(super) clients: ClientPool,
    pub(super) recorder: Arc<Mutex<HistoryRecorder>>,
    pub(super) checks: LiveChecks,
    pub(super) roles: RoleFollower,
    pub(super) coverage: CoverageRecorder,
    pub(super) snapshots: SnapshotJudge,
    /// A test starts and stops the nodes. The cluster restarts no node.
    is_manual: bool,
    pub(super) random: Random,
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
            roles: RoleFollower::new(),
            coverage: CoverageRecorder::default(),
            snapshots: SnapshotJudge::default(),
            is_manual: false,
            random,
        }
    }

    /// Leaves every start to a test, brings no clients, and turns the checks during the run off.
    pub(super) const fn leave_to_test(&mut self) {
        self.is_manual = true;
        self.checks.turn_off();
    }

    /// Gives the cluster, which has not started, the disks and the history of `baseline`.
    pub fn begin_with(&mut self, baseline: &Baseline) {
        for side in Side::BOTH {
            let disk = side.of(&baseline.disks).fork();
            self.replace_disk(side, disk);
        }
        let history = baseline.history.clone();
        self.recorder.lock().continue_after(history);
    }

    /// Returns the disks of both nodes, which are stopped, and the history.
    pub fn baseline(&self) -> Baseline {
        Baseline {
            disks: Side::BOTH.map(|side| self.disk(side).fork()),
            history: self.recorder.lock().history().clone(),
        }
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
            self.checks.copy_is_equal(&mut self.nodes, side);
        }
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

    /// Returns the disk of a node.
    pub const fn disk(&self, side: Side) -> &Disk {
        self.nodes.of(side).disk.disk()
    }

    /// Puts another disk in the place of a stopped node's disk. Returns the old disk.
    pub const fn replace_disk(&mut self, side: Side, disk: Disk) -> Disk {
        self.nodes.of_mut(side).disk.replace(disk)
    }

    /// Returns the state of a node, if its process has opened the datastore.
    pub fn state(&self, side: Side) -> Option<State> {
        self.nodes.of(side).state()
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
            self.look_at_snapshots()?;
        }
        Ok(())
    }

    /// Handles ended processes, and starts clients at new mounts. A node whose process has died
    /// starts again, unless a test controls the nodes.
    pub(super) fn supervise(&mut self) -> Result<(), String> {
        self.nodes.drop_caches();
        if self.is_manual {
            for side in Side::BOTH {
                if self.nodes.of(side).has_shut_down() {
                    self.finish_shutdown(side);
                }
            }
            return self.follow_roles().map(drop);
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
        let network = &self.world.network;
        self.checks.after_step(&self.nodes, states, network, now);
        self.clients.start(&self.nodes);
        Ok(())
    }

    /// Follows the roles of the nodes. Returns the states of both nodes, the primary first.
    fn follow_roles(&mut self) -> Result<[Option<State>; 2], String> {
        let decided = self.world.witness.primary(self.now());
        self.roles
            .follow(&mut self.nodes, decided, &mut self.checks)
    }

    /// Lets a thread stand still.
    pub fn hold_thread(&mut self, held: HeldThread) {
        let side = self.nodes.machine(held.role);
        if let Some(process) = self.nodes.of(side).process() {
            self.world.hold_thread(&process, held.thread, held.time);
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
            if self.is_at_rest_in_sync() {
                return Ok(());
            }
            self.check_wait(start, limit)?;
        }
    }

    /// Returns whether both nodes report that they are in sync, and no thread stands still. Such a thread may have an operation
    /// under way, and the connection of nodes in sync ends by it.
    pub(super) fn is_at_rest_in_sync(&self) -> bool {
        self.is_in_sync() && !self.world.holds_a_thread()
    }

    /// Checks that the nodes have not been out of sync for longer than `limit` since `start`.
    pub(super) fn check_wait(&self, start: Duration, limit: Duration) -> Result<(), String> {
        let waited = self.now().saturating_sub(start);
        in_time::check(waited, limit, self.nodes.states()).map_err(|violation| {
            let datastores = self.nodes.datastores().into_iter().flatten();
            let reasons = datastores.map(|datastore| datastore.status().sync.reason);
            format!("{violation}: {:?}", reasons.collect::<Vec<_>>())
        })
    }

    /// Runs the world until all work in the background is done. A planned crash may still come, and the work then begins anew.
    pub fn settle(&mut self) -> Result<(), String> {
        loop {
            let before = self.recorder.lock().starts();
            self.run_for(SETTLE_TIME)?;
            if self.recorder.lock().starts() == before {
                return Ok(());
            }
        }
    }

    /// Checks everything at the end of a schedule.
    pub fn final_check(&mut self) -> Result<(), String> {
        let clients = self.clients.count();
        self.checks
            .check_at_end(&self.nodes, &self.world.network, clients)?;
        let [ours, theirs] = self.nodes.both();
        match (ours.datastore(), theirs.datastore()) {
            (Some(one), Some(other)) => self
                .snapshots
                .check_at_end([(ours.side(), &one), (theirs.side(), &other)]),
            _ => Ok(()),
        }
    }

    /// Compares what the stores show of their snapshots with the deep copies. A store that cannot be opened now shows none.
    fn look_at_snapshots(&self) -> Result<(), String> {
        if !self.snapshots.has_acted() {
            return Ok(());
        }
        for node in self.nodes.both() {
            if let Ok(store) = disk_checks::store_of(node.disk.disk(), UUID, node.boot()) {
                self.snapshots.look(node.side(), &store)?;
            }
        }
        Ok(())
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
