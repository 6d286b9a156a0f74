//! The cluster under the control of a test that takes one step after the other: faults, clean shutdowns, starts that may be
//! refused, other disks, comparisons, and requests of the test itself.

mod delays;
mod programs;
mod snapshots;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::config::DatastoreConfig;
use lockstep_driver::report::DatastoreStatus;
use lockstep_driver::{ClearError, Cleared, RoleMarks};
use lockstep_types::settings::Role;
use lockstep_types::{BootId, Errno};
use lockstep_verify::Report;
use parking_lot::Mutex;

use super::clients::Users;
use super::clients::mount::Mount;
use super::cluster::role_follower::Deposed;
use super::cluster::{Cluster, POLL_INTERVAL};
use super::fault_injector::FaultInjector;
use super::faults::{AfterShutdown, CleanShutdown, Fault};
use super::on_disk::disk_checks;
use super::on_disk::node_disk::UUID;
use super::settings::{IN_SYNC_WITHIN, Settings};
use crate::check::Dump;
use crate::disk::{CallClass, Disk, Survivors};
use crate::history::Stop;
use crate::random::Random;
use crate::world::{Hang, Side};

/// The machine of the primary, in a cluster whose roles never change.
pub const PRIMARY: Side = Side::A;
/// The machine of the secondary, in a cluster whose roles never change.
pub const SECONDARY: Side = Side::B;

/// The cluster of a test. The test can do with it all that a schedule does.
pub struct ScriptedCluster {
    injector: FaultInjector,
}

impl Deref for ScriptedCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.injector.operator.cluster
    }
}

impl DerefMut for ScriptedCluster {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.injector.operator.cluster
    }
}

impl ScriptedCluster {
    /// Returns two nodes that have never run, and their clients, as a schedule has them. A step of a thread lets other threads go
    /// first in `step_percent` percent of the cases.
    pub fn new(settings: &Settings, users: Users, step_percent: u64, random: Random) -> Self {
        let cluster = Cluster::new(settings, users, step_percent, random);
        Self {
            injector: FaultInjector::of(cluster),
        }
    }

    /// Returns two nodes without clients. The test starts and stops the nodes, may exchange disks,
    /// and makes the checks.
    pub fn manual(settings: &Settings) -> Self {
        let mut scripted = Self::new(settings, Users::none(), 0, Random::new(1));
        scripted.leave_to_test();
        scripted
    }

    /// Applies a fault.
    pub fn apply_fault(&mut self, fault: Fault) -> Result<(), String> {
        self.injector.apply(fault)
    }

    /// Lets frames pass, repairs and mounts the disks, and starts both nodes.
    pub fn heal(&mut self) -> Result<(), String> {
        self.injector.heal()
    }

    /// Runs the world until both nodes report that they are in sync. An operator ends what earlier faults have left open.
    pub fn until_in_sync(&mut self, limit: Duration) -> Result<(), String> {
        self.injector.operator.until_in_sync(limit)
    }

    /// Ends all faults and the clients: no acknowledged operation was lost, and both nodes become identical.
    pub fn end_in_sync(&mut self) -> Result<(), String> {
        self.injector.end_in_sync()
    }

    /// Puts a disk with an empty store in the place of a stopped node's disk. Returns the old disk.
    pub fn empty_disk(&mut self, side: Side) -> Disk {
        self.nodes.of_mut(side).disk.replace_with_new()
    }

    /// Makes a call of a node's disk fail.
    pub fn fail_disk(&mut self, side: Side, class: CallClass, nth: u64, errno: Errno) {
        self.checks.expect_disk_errors(side);
        self.disk(side).fail_call(class, nth, errno);
    }

    /// Makes the next write of a node's role file fail.
    pub fn fail_next_role_write(&mut self, side: Side) {
        self.injector.fail_next_role_write(side);
    }

    /// Returns the marks in a node's role file.
    pub fn role_marks(&self, side: Side) -> Option<RoleMarks> {
        self.nodes.of(side).marks()
    }

    /// Cuts the power of a machine. Only synced data survives.
    pub fn cut_power(&mut self, side: Side) {
        let planned = &mut self.nodes.of_mut(side).planned;
        planned.loss = Some((Survivors::Nothing, 1));
        self.stop(side, Stop::Power);
    }

    /// Cuts the power of a node that is running. The disk keeps everything, also what was not synced.
    pub fn cut_power_after_write_back(&mut self, side: Side) {
        let planned = &mut self.nodes.of_mut(side).planned;
        planned.loss = Some((Survivors::Everything, 1));
        self.stop(side, Stop::Power);
    }

    /// Cuts the power of a node that is running. The disk keeps these of the unsynced changes.
    pub fn cut_power_with(&mut self, side: Side, survivors: Survivors, seed: u64) {
        let planned = &mut self.nodes.of_mut(side).planned;
        planned.loss = Some((survivors, seed));
        self.stop(side, Stop::Power);
    }

    /// Promotes a node while the other one is down. Returns whether the node agrees.
    pub fn promote(&mut self, side: Side) -> Result<bool, String> {
        self.injector.operator.promote(side, false)
    }

    /// Whether a node lets requests of programs in.
    pub fn serves(&self, side: Side) -> bool {
        self.nodes.of(side).serves()
    }

    /// Promotes a node by force, with the copy that it has. The caller vouches for the other node, and knows that this copy lacks
    /// nothing.
    pub fn promote_by_force(&mut self, side: Side) -> Result<(), String> {
        if self.injector.operator.promote(side, true)? {
            return Ok(());
        }
        Err(format!("in_time: {side:?} is not promoted"))
    }

    /// Lets a node reach the witness again.
    pub fn reach_witness(&self, side: Side) {
        self.world.witness.cut_off(side, false);
    }

    /// The changes of a node that leads are to be lost: an operator demotes the node when the faults end.
    pub fn demote_next(&mut self, side: Side) {
        self.roles.to_demote = Some(Deposed {
            side,
            must_be_asked: false,
        });
    }

    /// Makes the disk of a node hang, or lets the disk continue.
    pub fn hang(&mut self, side: Side, hang: Option<Hang>) {
        self.nodes.of_mut(side).hang_disk(hang);
    }

    /// Makes the disk of the primary hang. [`Fault::Heal`] lets it continue.
    pub fn hang_primary(&mut self, hang: Hang) {
        let side = self.nodes.machine(Role::Primary);
        self.nodes.of_mut(side).hang_disk(Some(hang));
    }

    /// Records that an operation may meet a changed bit on the secondary's disk.
    pub fn expect_rotten_secondary(&mut self) {
        let side = self.nodes.machine(Role::Secondary);
        self.nodes.of_mut(side).disk.set_rotten();
    }

    /// Lets the frames of both nodes pass again. What keeps a node from the witness stays.
    pub fn end_silence(&self) {
        for side in Side::BOTH {
            self.world.network.set_silent(side, false);
        }
    }

    /// Returns the content of a node's store after a power loss that leaves only synced data, with
    /// the disk that holds it.
    pub fn stable(&self, side: Side) -> (Disk, Result<Dump, String>) {
        let disk = self.disk(side).fork();
        disk.power_loss_with(Survivors::Nothing, &mut Random::new(1));
        let dump = disk_checks::dump_of(&disk, UUID, BootId::from_bytes([99; 16]));
        (disk, dump)
    }

    /// Stops a node, and returns the content of its store.
    pub fn stopped_content(&mut self, side: Side) -> Result<Dump, String> {
        self.stop(side, Stop::Process);
        let disk = self.disk(side).fork();
        disk_checks::dump_of(&disk, UUID, self.nodes.of(side).boot())
    }

    /// Changes the configuration of a running node. Returns the refusal, if the node refuses the change.
    pub fn reconfigure(
        &mut self,
        side: Side,
        edit: impl FnOnce(&mut DatastoreConfig),
    ) -> Result<Option<String>, String> {
        let node = self.nodes.of(side);
        let (Some(datastore), Some(process)) = (node.datastore(), node.process()) else {
            return Err(format!("{side:?} does not run"));
        };
        let mut config = DatastoreConfig::clone(&datastore.config().current());
        edit(&mut config);
        let done = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&done);
        process.start(move || *slot.lock() = Some(datastore.reconfigure(config)));
        let is_done = Arc::clone(&done);
        self.until(IN_SYNC_WITHIN, move |_| is_done.lock().is_some())?;
        let outcome = done.lock().take().ok_or("nothing was done")?;
        Ok(outcome.err().map(|refused| refused.to_string()))
    }

    /// Returns the status of a node, if its process has opened the datastore.
    pub fn status(&self, side: Side) -> Option<DatastoreStatus> {
        Some(self.nodes.of(side).datastore()?.status())
    }

    /// Returns the reason that the primary reports for its state.
    pub fn reason(&self) -> Option<String> {
        let primary = self.nodes.machine(Role::Primary);
        self.status(primary)?.sync.reason
    }

    /// Clears the poison of a node's store, as an operator does. Kills the node's process first.
    pub fn clear_poison(&mut self, side: Side, accept_loss: bool) -> Result<Cleared, ClearError> {
        self.stop(side, Stop::Process);
        self.nodes.of(side).clear_poison(accept_loss)
    }

    /// Shuts a node down cleanly, as SIGTERM does. The node stays down.
    pub fn shut_down(&mut self, side: Side) -> Result<(), String> {
        let role = self.nodes.role_of(side);
        self.request_shutdown(CleanShutdown {
            role,
            crash: None,
            then: AfterShutdown {
                stays_down: true,
                ..AfterShutdown::default()
            },
        });
        let until = self.now() + IN_SYNC_WITHIN;
        while self.nodes.of(side).is_running() {
            if self.now() > until {
                return Err(format!("{side:?} does not stop in {IN_SYNC_WITHIN:?}"));
            }
            self.run_for(POLL_INTERVAL)?;
        }
        Ok(())
    }

    /// Starts a node. If the node refuses, returns the reason, and the node is stopped.
    pub fn start_or_refusal(&mut self, side: Side) -> Result<Option<String>, String> {
        self.start(side);
        let until = self.now() + IN_SYNC_WITHIN;
        let has_decided = |cluster: &Self| {
            let node = cluster.nodes.of(side);
            node.datastore().is_some() || node.refusal().is_some()
        };
        while !has_decided(self) {
            if !self.world.step(until) {
                return Err(format!("{side:?} neither starts nor refuses to"));
            }
        }
        let refusal = self.nodes.of(side).refusal();
        if refusal.is_some() {
            self.stop(side, Stop::Process);
        }
        Ok(refusal)
    }

    /// Lets the primary compare both nodes, as `lockstep verify` does.
    pub fn compare(&mut self) -> Result<Report, String> {
        self.use_mount(Mount::compare)?
    }

    /// Begins a program that uses the primary's mount, and does not wait for its end.
    pub fn begin_program(&self, body: impl FnOnce(&Mount) + Send + 'static) -> Result<(), String> {
        let primary = self.nodes.machine(Role::Primary);
        let running = self.nodes.of(primary).node.running();
        let mount = running.as_deref().and_then(Mount::of);
        let mount = mount.ok_or("the primary is not running")?;
        let process = Arc::clone(mount.process());
        process.start(move || body(&mount));
        Ok(())
    }

    /// Runs `body` in a program that uses the primary's mount, to its end.
    pub fn use_mount<T: Send + 'static>(
        &mut self,
        body: impl FnOnce(&Mount) -> T + Send + 'static,
    ) -> Result<T, String> {
        let primary = self.nodes.machine(Role::Primary);
        let running = self.nodes.of(primary).node.running();
        let mount = running.as_deref().and_then(Mount::of);
        let mount = mount.ok_or("the primary is not running")?;
        let done = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&done);
        let process = Arc::clone(mount.process());
        process.start(move || *slot.lock() = Some(body(&mount)));
        let answer = Arc::clone(&done);
        self.until(IN_SYNC_WITHIN, move |_| answer.lock().is_some())?;
        let done = done.lock().take();
        done.ok_or_else(|| "a program has no answer".to_owned())
    }

    /// Runs the world until a condition holds. Returns an error after `limit`.
    pub fn until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let until = self.now() + limit;
        while !holds(self) {
            if !self.world.step(until) {
                let states = self.nodes.states();
                return Err(format!("not in time: {states:?}, {:?}", self.reason()));
            }
            self.world.check_steps()?;
            self.supervise()?;
        }
        Ok(())
    }
}
