//! One of the two nodes of a schedule: its machine, its process, its disk, and the faults that are
//! planned for it.

use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_driver::client::FileService;
use lockstep_driver::config::{DatastoreConfig, DiskStallLimit, PeerConfig, Policies, TrashPolicy};
use lockstep_driver::{
    ClearError, Cleared, Datastore, DatastoreHandle, Repair, RoleMarks, clear_poison,
};
use lockstep_fs::InoRanges;
use lockstep_fs::plan::View;
use lockstep_fs::poison::MARKER_FILE;
use lockstep_repl::state::State;
use lockstep_roles::RoleRecord;
use lockstep_types::backing::Backing;
use lockstep_types::settings::{Encryption, Role};
use lockstep_types::{BootId, Errno, Ino, Timestamp, WitnessId};

use crate::check::{Dump, closed};
use crate::disk::{Call, CallClass, Survivors, Verdict};
use crate::history::Stop;
use crate::random::Random;
use crate::scenario::faults::{AfterShutdown, CallPoint, Crash};
use crate::scenario::on_disk::disk_checks::{self, LeftStore};
use crate::scenario::on_disk::node_disk::{NodeDisk, UUID};
use crate::scenario::on_disk::tables;
use crate::scenario::recording::coverage::{CoverageRecorder, CrashPoint, FileClass};
use crate::scenario::settings::Settings;
use crate::world::{self, Hang, Node, Process, Side, Wait, mark_tables};

/// The events that are planned for a node.
#[derive(Default)]
pub struct Planned {
    /// The way in which the process stops when a call of its disk ends it.
    pub crash_stop: Option<Stop>,
    /// The data that survives the next power loss, and the seed of the choices that this leaves
    /// open. `None`: random.
    pub loss: Option<(Survivors, u64)>,
    /// The events after the clean shutdown that is in progress.
    pub after_shutdown: Option<AfterShutdown>,
    /// The crash soon after the next start.
    pub crash_at_start: Option<Crash>,
}

/// One of the two nodes.
pub struct SimNode {
    side: Side,
    /// The process.
    pub node: Node,
    /// The disk.
    pub disk: NodeDisk,
    /// Number of the machine's present run.
    boots: u8,
    /// The planned events.
    pub planned: Planned,
    /// Number of times that the node may still refuse to start, because its disk was made to fail.
    refusals_allowed: u32,
    /// An error of the disk may have poisoned the store, so an operator must start the node again.
    pub needs_operator: bool,
    /// The node does not start by itself.
    pub stays_down: bool,
    /// The excess of the rate of the machine's clock, in thousandths.
    clock_excess: i64,
}

/// The way in which a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In the middle of its work.
    Crash(Stop),
    /// By a clean shutdown.
    CleanShutdown,
}

fn config(side: Side, role: Role, settings: &Settings) -> DatastoreConfig {
    let Settings {
        durability,
        on_peer_loss,
        on_power_loss,
        pause_limit,
        peer_timeout,
        answer_limit,
        failover_after,
        flap_wait_max,
        trash,
        clock_excess: _,
    } = *settings;
    DatastoreConfig {
        name: "simulated".to_owned(),
        uuid: UUID,
        store: "/simulated/store".into(),
        mount: "/simulated/mount".into(),
        role,
        policies: Policies {
            durability,
            on_peer_loss,
            on_power_loss,
            // A test that wants a watch says so.
            disk_stall_limit: DiskStallLimit::OFF,
            flap_wait_max,
            trash: TrashPolicy {
                age: trash,
                bytes: None,
            },
            ..Policies::default()
        },
        pause_limit,
        peer_timeout,
        answer_limit,
        fuse_threads: 4,
        failover_after,
        peer: Some(peer(side)),
    }
}

/// Returns whether the node of a datastore serves clients.
pub fn serves(datastore: Arc<Datastore>) -> bool {
    let is_secondary = datastore.state().is_secondary();
    !is_secondary && DatastoreHandle::new(datastore).serves()
}

/// Returns the peer configuration of the node on a side. The simulated dialer does not use the address and the fingerprint.
fn peer(side: Side) -> PeerConfig {
    let ino_ranges = match side {
        Side::A => InoRanges::Even,
        Side::B => InoRanges::Odd,
    };
    let address = "127.0.0.1:1".parse();
    let fingerprint = format!("SHA256:{:064x}", 1).parse();
    match (address, fingerprint) {
        (Ok(address), Ok(fingerprint)) => PeerConfig {
            address,
            fingerprint,
            encryption: Encryption::On,
            ino_ranges,
            witness: Some(WitnessId::ETCD),
        },
        _ => unreachable!("both texts are well formed"),
    }
}

impl SimNode {
    /// Returns a node that has never run.
    pub fn new(side: Side, settings: &Settings) -> Self {
        let role = match side {
            Side::A => Role::Primary,
            Side::B => Role::Secondary,
        };
        Self {
            side,
            node: Node::new(side, config(side, role, settings)),
            disk: NodeDisk::new(),
            boots: 1,
            planned: Planned::default(),
            refusals_allowed: 0,
            needs_operator: false,
            stays_down: false,
            clock_excess: *side.of(&settings.clock_excess),
        }
    }

    /// Returns the id of the machine's present run.
    pub const fn boot(&self) -> BootId {
        BootId::from_bytes([self.boots; 16])
    }

    /// Returns the running process, if any.
    pub fn process(&self) -> Option<Arc<Process>> {
        let running = self.node.running()?;
        Some(Arc::clone(&running.process))
    }

    /// Returns whether a process is running.
    pub fn is_running(&self) -> bool {
        self.process().is_some_and(|process| !process.is_dead())
    }

    /// Returns the datastore, if the process has opened it.
    pub fn datastore(&self) -> Option<Arc<Datastore>> {
        self.node.running()?.datastore()
    }

    /// Returns the state of the datastore, if the process has opened it.
    pub fn state(&self) -> Option<State> {
        Some(self.datastore()?.state())
    }

    /// Returns whether the node serves clients.
    pub fn serves(&self) -> bool {
        self.datastore().is_some_and(serves)
    }

    /// Returns the reason why the process refused to start, if it refused.
    pub fn refusal(&self) -> Option<String> {
        self.node.running()?.refusal()
    }

    /// Returns the machine.
    pub const fn side(&self) -> Side {
        self.side
    }

    /// Returns whether the disk is known to have failed, and no operator has cleared the store since.
    pub fn is_poisoned(&self) -> bool {
        match self.datastore() {
            Some(datastore) => datastore.store().is_poisoned(),
            None => self.disk.disk().read_all(MARKER_FILE).is_some(),
        }
    }

    /// Returns whether this secondary reports its copy as in sync, and the copy is not an old one.
    pub fn has_kept_sync(&self) -> bool {
        let is_synced = |state| {
            matches!(
                state,
                State::SecondarySynced | State::SecondaryDisconnected | State::SecondaryCatchingUp
            )
        };
        let is_synced = self.state().is_some_and(is_synced) && !self.has_lost_power();
        is_synced && !self.disk.has_old_copy
    }

    /// Returns the marks in the role file.
    pub fn marks(&self) -> Option<RoleMarks> {
        disk_checks::marks(self.disk.disk())
    }

    /// Returns the record of the roles in the role file.
    pub fn role_record(&self) -> Option<RoleRecord> {
        self.marks().map(|marks| marks.record)
    }

    /// Returns the role of the node, as its record says.
    pub fn recorded_role(&self) -> Option<Role> {
        self.role_record().map(|record| record.role)
    }

    /// Returns whether the copy has lost power and not been made equal since, although it counts as complete: it may differ
    /// from the other one in operations that were not acknowledged.
    pub fn has_lost_power(&self) -> bool {
        self.marks().is_some_and(|marks| marks.has_lost_power)
    }

    /// Prepares the machine for `process`, which starts now. Returns the disk of the process.
    pub fn power_on(&mut self, process: &Process) -> Arc<dyn Backing> {
        process.set_hang(self.disk.hang());
        process.set_clock_excess(self.clock_excess);
        self.stays_down = false;
        self.forget_crash();
        self.disk.disk().mount()
    }

    /// Does to the disk and the machine what `stop` does to them.
    pub fn power_off(&mut self, stop: Stop, random: &mut Random) {
        self.forget_crash();
        let loss = self.planned.loss.take();
        let disk = self.disk.disk();
        match stop {
            Stop::Process => disk.kill(),
            Stop::Power => {
                match loss {
                    Some((survivors, seed)) => {
                        disk.power_loss_with(survivors, &mut Random::new(seed));
                    }
                    None => drop(disk.power_loss(random)),
                }
                self.node.run_dir().clear();
                self.node.kernel_caches().clear();
                self.boots = self.boots.wrapping_add(1);
            }
        }
    }

    fn forget_crash(&mut self) {
        self.planned.after_shutdown = None;
        self.planned.crash_stop = None;
        self.disk.disk().observe(None);
    }

    /// Clears the poison of the store, as the operator's command does. The node must be stopped.
    pub fn clear_poison(&self, accept_loss: bool) -> Result<Cleared, ClearError> {
        let repair = Repair {
            backing: self.disk.disk().mount(),
            boot: self.boot(),
            stamp: Some(self.node.run_dir().handle(None)),
            now: Timestamp::default(),
            marks: mark_tables(),
        };
        clear_poison(self.node.config(), &repair, accept_loss)
    }

    /// Clears the poison of the store if there is any. Returns whether the store was poisoned: then
    /// all unsynced data is gone.
    pub fn repair(&self) -> Result<bool, String> {
        match self.clear_poison(true) {
            Ok(_) => Ok(true),
            Err(ClearError::NotPoisoned { .. }) => Ok(false),
            Err(error) => Err(format!("{:?} cannot be repaired: {error}", self.side)),
        }
    }

    /// Returns the content of the store on the disk. The node must be stopped.
    pub fn dump(&self) -> Result<Dump, String> {
        disk_checks::dump_of(self.disk.disk(), UUID, self.boot())
    }

    /// Returns the store that a process would leave if it ended now.
    pub fn left(&self) -> Result<LeftStore, String> {
        disk_checks::left(self.disk.disk(), UUID, self.boot())
    }

    /// Returns everything in the store, which no process has open.
    pub fn store_at_rest(&self) -> Result<closed::Store, String> {
        let [paw, saw] = tables::both(self.disk.disk())?;
        Ok(closed::Store {
            dump: self.dump()?,
            paw,
            saw,
        })
    }

    /// Returns whether the role file says that the store was closed cleanly.
    pub fn is_closed(&self) -> bool {
        disk_checks::is_closed(self.disk.disk())
    }

    /// Returns whether the role file says that the copy is out of sync.
    pub fn is_out_of_sync(&self) -> bool {
        disk_checks::check_marked_out_of_sync(self.disk.disk()).is_ok()
    }

    /// Makes a call of the disk fail.
    pub fn fail_disk(&mut self, class: CallClass, nth: u64, errno: Errno) {
        self.refusals_allowed += 1;
        self.needs_operator = true;
        self.disk.disk().fail_call(class, nth, errno);
    }

    /// Makes the next change of the role file fail, with an error that does not last.
    pub fn fail_next_role_write(&mut self) {
        self.refusals_allowed += 1;
        self.disk.fail_next_role_write();
    }

    /// Makes the disk hang for the work that the process does on other threads, or lets this work
    /// continue. The setting also holds for the next process.
    pub fn hang_disk(&mut self, hang: Option<Hang>) {
        self.disk.set_hang(hang);
        if let Some(process) = self.process() {
            process.set_hang(hang);
        }
    }

    /// Repairs the disk.
    pub fn mend_disk(&mut self) {
        self.hang_disk(None);
        // A start in progress may already have met the full disk.
        self.refusals_allowed += u32::from(self.disk.mend());
    }

    /// Ends the process of this node, which has `role`, at a call of its disk.
    pub fn crash_at_call(&mut self, crash: Crash, role: Role, coverage: &CoverageRecorder) {
        let Some(running) = self.node.running() else {
            return;
        };
        let Crash { stop, at } = crash;
        let CallPoint { verdict, .. } = at;
        self.planned.crash_stop = Some(stop);
        let left = AtomicU64::new(at.skipped);
        let coverage = coverage.clone();
        let observer = move |call: &Call<'_>| {
            let is_counted = at
                .class
                .is_none_or(|class| FileClass::of(call.path) == class);
            if !is_counted || left.fetch_sub(1, Ordering::Relaxed) != 0 {
                return Verdict::Go;
            }
            coverage.record_crash(CrashPoint::new(role, call, verdict));
            running.process.die();
            if verdict == Verdict::CrashBefore && world::is_in_fiber() {
                // The fiber must do nothing after this point.
                world::wait(Wait::Dead);
            }
            verdict
        };
        self.disk.disk().observe(Some(Arc::new(observer)));
    }

    /// Returns whether the process has finished a clean shutdown.
    pub fn has_shut_down(&self) -> bool {
        let running = self.node.running();
        running.is_some_and(|running| running.shutdown.is_finished())
    }

    /// Returns the way in which the process has ended, if it has ended by itself or has refused to
    /// start. Returns an error if it must not have refused.
    pub fn has_ended(&mut self) -> Result<Option<End>, String> {
        let Some(running) = self.node.running() else {
            return Ok(None);
        };
        let process = &running.process;
        if let Some(why) = running.refusal().filter(|_| !process.is_dead()) {
            self.allow_refusal(&why)?;
            process.die();
        }
        if process.is_dead() {
            let stop = self.planned.crash_stop.unwrap_or(Stop::Process);
            return Ok(Some(End::Crash(stop)));
        }
        let has_shut_down = running.shutdown.is_finished();
        Ok(has_shut_down.then_some(End::CleanShutdown))
    }

    fn allow_refusal(&mut self, why: &str) -> Result<(), String> {
        if self.disk.is_without_room() {
            // The node would refuse again until its disk has room.
            self.stays_down = true;
            return Ok(());
        }
        let left = self.refusals_allowed.checked_sub(1);
        self.refusals_allowed =
            left.ok_or_else(|| format!("{:?} does not start: {why}", self.side))?;
        Ok(())
    }

    /// Returns a function that says whether the store has an inode, whether or not the node is
    /// running. The function opens a closed store once, at its first call.
    pub fn inodes(&self) -> impl Fn(Ino) -> Result<bool, String> {
        let dump = LazyCell::new(|| self.dump());
        move |ino| match self.datastore() {
            Some(datastore) => match datastore.store().tree().inode(ino) {
                Ok(inode) => Ok(inode.is_some()),
                Err(error) => Err(format!("{:?}: #{ino} cannot be read: {error:?}", self.side)),
            },
            None => match &*dump {
                Ok(dump) => Ok(dump.inodes.contains_key(&ino)),
                Err(error) => Err(error.clone()),
            },
        }
    }
}
