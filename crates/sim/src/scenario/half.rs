//! One of the two nodes of a schedule: its machine, its disk, and what is to happen to it.

use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_driver::config::{DatastoreConfig, PeerConfig};
use lockstep_driver::{ClearError, Datastore, Repair, clear_poison};
use lockstep_fs::Store;
use lockstep_fs::reserve::RESERVE_FILE;
use lockstep_intentlog::LogOptions;
use lockstep_repl::state::State;
use lockstep_types::backing::Backing;
use lockstep_types::settings::{Encryption, Role};
use lockstep_types::{BootId, DatastoreUuid, Errno, Ino, Timestamp};

use super::coverage::{Coverage, CrashPoint, FileClass};
use super::faults::{Cut, Then};
use super::left;
use super::plan::Settings;
use super::tables;
use crate::check::{Dump, closed};
use crate::disk::{Call, CallClass, Disk, DiskOptions, Survivors, Verdict};
use crate::history::Stop;
use crate::random::Random;
use crate::world::{self, Hang, Node, Process, ROOM, Side, Wait};

/// The datastore of all schedules.
const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
/// Small, so that the larger schedules fill a segment and go on in the other; large enough for all that
/// clients do until a checkpoint comes.
const SEGMENT_BYTES: u32 = 16 << 10;
const DISK: DiskOptions = DiskOptions {
    capacity_bytes: 1 << 30,
    capacity_files: 100_000,
};

/// What a store takes when both nodes are first in sync, its reserve included.
const STORE_BYTES: u64 = 2320 << 10;

/// A call of a disk.
#[derive(Clone, Copy, Debug)]
pub struct CallAt {
    /// Counted are only calls on files of this class, or all.
    pub only: Option<FileClass>,
    /// How many of them from now.
    pub calls: u64,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// What may be wrong with a disk that has not failed.
#[derive(Default)]
struct Trouble {
    /// Nothing more fits on it.
    is_full: bool,
    /// It does not get done what it should.
    hangs: Option<Hang>,
    /// It has kept something wrongly.
    is_rotten: bool,
}

/// One of the two.
pub struct Half {
    side: Side,
    /// What lives on it.
    pub node: Node,
    /// Its disk.
    pub disk: Disk,
    boots: u8,
    /// How it stops when its disk says so.
    pub stop_at_call: Option<Stop>,
    /// What its next loss of power leaves, and the seed of what is left open by that; by chance if
    /// not said.
    pub loss: Option<(Survivors, u64)>,
    /// Its disk was made to fail: so often it may refuse to start, until it is started again.
    may_refuse: u32,
    /// An error of its disk may have poisoned its store: an operator has to start it again.
    pub needs_operator: bool,
    /// What is wrong with its disk for now.
    trouble: Trouble,
    /// The size of its disk: at first far more than is used.
    size: DiskOptions,
    /// Its disk, while another lies in its place.
    unmounted: Option<Disk>,
    /// Its disk is mounted again: what its mark says counts only when both nodes say that they are in sync.
    pub has_old_copy: bool,
    /// It does not start by itself.
    pub is_away: bool,
    /// It is stopping in order: what follows when it has.
    pub then: Option<Then>,
    /// How it stops soon after it has started the next time.
    pub cut_at_start: Option<Cut>,
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In the middle of its work.
    Stopped(Stop),
    /// In order.
    InOrder,
}

fn config(role: Role, settings: &Settings) -> DatastoreConfig {
    let Settings {
        durability,
        on_peer_loss,
        pause_limit,
        peer_timeout,
        answer_limit,
    } = *settings;
    DatastoreConfig {
        name: "simulated".to_owned(),
        uuid: UUID,
        store: "/simulated/store".into(),
        mount: "/simulated/mount".into(),
        role,
        durability,
        on_peer_loss,
        pause_limit,
        peer_timeout,
        answer_limit,
        fuse_threads: 4,
        peer: Some(peer()),
    }
}

/// Nobody is ever reached by it.
fn peer() -> PeerConfig {
    let address = "127.0.0.1:1".parse();
    let fingerprint = format!("SHA256:{:064x}", 1).parse();
    match (address, fingerprint) {
        (Ok(address), Ok(fingerprint)) => PeerConfig {
            address,
            fingerprint,
            encryption: Encryption::On,
        },
        _ => unreachable!("both texts are well formed"),
    }
}

/// A disk with a new store on it.
fn new_disk() -> Disk {
    let disk = Disk::new(DISK);
    let backing: Arc<dyn Backing> = disk.mount();
    let options = LogOptions {
        segment_bytes: SEGMENT_BYTES.into(),
        // The same in every process, so that the same seed has the same digest in all of them.
        salt: [7; 16],
        ..LogOptions::default()
    };
    if let Err(error) = Store::create(&backing, UUID, &options) {
        panic!("a new store cannot be made: {error}");
    }
    disk
}

thread_local! {
    /// Made once: every schedule starts from a copy.
    static NEW_DISK: LazyCell<Disk> = const { LazyCell::new(new_disk) };
}

impl Drop for Half {
    fn drop(&mut self) {
        // A process that ended inside of redb never lets go of it (see `fs/kv/redb.rs`), nor of the file.
        self.disk.discard();
        if let Some(unmounted) = &self.unmounted {
            unmounted.discard();
        }
    }
}

impl Half {
    /// A node that has never run.
    pub fn new(side: Side, settings: &Settings) -> Self {
        let role = match side {
            Side::Primary => Role::Primary,
            Side::Secondary => Role::Secondary,
        };
        Self {
            side,
            node: Node::new(config(role, settings)),
            disk: NEW_DISK.with(|disk| disk.fork()),
            boots: 1,
            stop_at_call: None,
            loss: None,
            may_refuse: 0,
            needs_operator: false,
            trouble: Trouble::default(),
            size: DISK,
            unmounted: None,
            has_old_copy: false,
            is_away: false,
            then: None,
            cut_at_start: None,
        }
    }

    /// Which run of its machine this is.
    pub const fn boot(&self) -> BootId {
        BootId::from_bytes([self.boots; 16])
    }

    /// The datastore, if its process has opened it.
    pub fn datastore(&self) -> Option<Arc<Datastore>> {
        self.node.life()?.datastore()
    }

    /// The state of its datastore, if its process has opened that.
    pub fn state(&self) -> Option<State> {
        Some(self.datastore()?.state())
    }

    /// Whether this secondary counts its copy as in sync, and the copy is not an old one.
    pub fn has_kept_sync(&self) -> bool {
        let kept = |state| {
            matches!(
                state,
                State::SecondarySynced | State::SecondaryDisconnected | State::SecondaryCatchingUp
            )
        };
        self.state().is_some_and(kept) && !self.has_old_copy
    }

    /// Its disk as `process`, which starts now, has it.
    pub fn power_on(&mut self, process: &Process) -> Arc<dyn Backing> {
        process.hang(self.trouble.hangs);
        self.is_away = false;
        self.then = None;
        self.stop_at_call = None;
        self.disk.observe(None);
        self.disk.mount()
    }

    /// What a stop does to its disk.
    pub fn power_off(&mut self, stop: Stop, chance: &mut Random) {
        self.then = None;
        self.stop_at_call = None;
        self.disk.observe(None);
        let loss = self.loss.take();
        match stop {
            Stop::Process => self.disk.kill(),
            Stop::Power => {
                match loss {
                    Some((survivors, seed)) => {
                        self.disk.power_loss_with(survivors, &mut Random::new(seed));
                    }
                    None => drop(self.disk.power_loss(chance)),
                }
                self.node.runtime().clear();
                self.boots = self.boots.wrapping_add(1);
            }
        }
    }

    /// An operator takes its store back into use. Whether it was poisoned: then what is not on the disk
    /// is gone.
    pub fn repair(&mut self) -> Result<bool, String> {
        let repair = Repair {
            backing: self.disk.mount(),
            boot: self.boot(),
            stamp: Some(self.node.runtime().of(None)),
            now: Timestamp::default(),
        };
        match clear_poison(self.node.config(), &repair, true) {
            Ok(_) => Ok(true),
            Err(ClearError::NotPoisoned { .. }) => Ok(false),
            Err(error) => Err(format!("{:?} cannot be repaired: {error}", self.side)),
        }
    }

    /// What it leaves on its disk.
    pub fn left(&self) -> Result<Dump, String> {
        left::on(&self.disk, UUID, self.boot())
    }

    /// All that its store holds, which nobody has open.
    pub fn store_at_rest(&self) -> Result<closed::Store, String> {
        let [paw, saw] = tables::both(&self.disk)?;
        Ok(closed::Store {
            dump: self.left()?,
            paw,
            saw,
        })
    }

    /// Whether its role file says that its store was closed in order.
    pub fn is_closed(&self) -> bool {
        left::is_closed(&self.disk)
    }

    /// Whether its role file says that its copy is out of sync.
    pub fn is_out_of_sync(&self) -> bool {
        left::is_marked_out_of_sync(&self.disk).is_ok()
    }

    /// Whether a process lives on it.
    pub fn lives(&self) -> bool {
        self.process().is_some_and(|process| !process.is_dead())
    }

    /// Lets a call of its disk fail.
    pub fn fail_disk(&mut self, class: CallClass, nth: u64, errno: Errno) {
        self.may_refuse += 1;
        self.needs_operator = true;
        self.disk.fail_call(class, nth, errno);
    }

    /// Lets the next change of its role file fail, by something that passes.
    pub fn fail_next_mark(&mut self) {
        self.may_refuse += 1;
        let class = CallClass::Write;
        self.disk.fail_next_on("role.json", class, Errno::NoMemory);
    }

    /// Leaves no room on its disk; `with_reserve`: nor what the reserve had, as others were faster when it was used.
    pub fn fill_disk(&mut self, with_reserve: bool) {
        self.trouble.is_full = true;
        if with_reserve && let Ok(reserve) = self.disk.mount().open(RESERVE_FILE) {
            // A process that ends meanwhile has other worries.
            let _used = reserve.set_len(0);
        }
        self.disk.fill();
    }

    /// Lets all wait that its process does on other threads, or go on: in this life and the next.
    pub fn hang_disk(&mut self, hangs: Option<Hang>) {
        self.trouble.hangs = hangs;
        if let Some(process) = self.process() {
            process.hang(hangs);
        }
    }

    /// Its disk is as it should be again.
    pub fn mend_disk(&mut self) {
        self.hang_disk(None);
        // A start that is under way may have met it already.
        self.may_refuse += u32::from(std::mem::take(&mut self.trouble.is_full));
        self.disk.stop_failing();
        self.disk.set_capacity(self.size);
    }

    /// Gives its disk so many bytes for clients besides what a store takes that has just been taken into use.
    pub fn make_scarce(&mut self, bytes: u64) {
        let size = STORE_BYTES + ROOM.withheld.spare_bytes;
        self.size.capacity_bytes = DISK.capacity_bytes.min(size.saturating_add(bytes));
        self.disk.set_capacity(self.size);
    }

    /// Its disk has room for everything again.
    pub fn make_room(&mut self) {
        self.size = DISK;
        self.disk.set_capacity(DISK);
    }

    /// Whether its reserve is used up: then a disk without room may keep its node from starting.
    fn has_no_reserve(&self) -> bool {
        let reserve = self.disk.fork().mount().stat(RESERVE_FILE);
        reserve.map_or(true, |reserve| reserve.blocks == 0)
    }

    /// Lets its process end at a call of its disk.
    pub fn stop_at_call(&mut self, stop: Stop, at: CallAt, met: &Coverage) {
        let Some(life) = self.node.life() else { return };
        self.stop_at_call = Some(stop);
        let left = AtomicU64::new(at.calls);
        let (side, met) = (self.side, met.clone());
        self.disk.observe(Some(Arc::new(move |call: &Call<'_>| {
            let counts = at.only.is_none_or(|only| FileClass::of(call.path) == only);
            if !counts || left.fetch_sub(1, Ordering::Relaxed) != 0 {
                return Verdict::Go;
            }
            met.crashed_at(CrashPoint::new(side, call, at.verdict));
            life.process.die();
            if at.verdict == Verdict::CrashBefore && world::is_inside() {
                // Nothing after this place is ever done.
                world::wait(Wait::Dead);
            }
            at.verdict
        })));
    }

    /// How it has to stop, if its process has ended by itself or given up; and why it may not have.
    pub fn has_ended(&mut self) -> Result<Option<End>, String> {
        let Some(life) = self.node.life() else {
            return Ok(None);
        };
        if let Some(why) = self.refused().filter(|_| !life.process.is_dead()) {
            if self.trouble.is_full && self.has_no_reserve() {
                // It would refuse again, until there is room.
                self.is_away = true;
            } else {
                let left = self.may_refuse.checked_sub(1);
                let told = || format!("{:?} does not start: {why}", self.side);
                self.may_refuse = left.ok_or_else(told)?;
            }
            life.process.die();
        }
        if life.process.is_dead() {
            let stop = self.stop_at_call.unwrap_or(Stop::Process);
            return Ok(Some(End::Stopped(stop)));
        }
        Ok(life.leaving.is_over().then_some(End::InOrder))
    }

    /// Tells whether it has an inode, whether it lives or not. A store that is closed is opened once,
    /// when it is first asked for.
    pub fn inodes(&self) -> impl Fn(Ino) -> Result<bool, String> {
        let left = LazyCell::new(|| self.left());
        move |ino| match self.datastore() {
            Some(datastore) => match datastore.store().replica().inode_now(ino) {
                Ok(inode) => Ok(inode.is_some()),
                Err(error) => Err(format!("{:?}: #{ino} cannot be read: {error:?}", self.side)),
            },
            None => match &*left {
                Ok(left) => Ok(left.inodes.contains_key(&ino)),
                Err(error) => Err(error.clone()),
            },
        }
    }

    /// Why its process has given up, if it has.
    pub fn refused(&self) -> Option<String> {
        self.node.life()?.refused.lock().clone()
    }

    /// An operator gives it an empty store in place of the one it has.
    pub fn get_new_disk(&mut self) -> Disk {
        let new = NEW_DISK.with(|disk| disk.fork());
        new.set_capacity(self.size);
        std::mem::replace(&mut self.disk, new)
    }

    /// Its disk, which is as it should be, is not mounted any more. It is stopped.
    pub fn unmount(&mut self) -> Result<(), String> {
        let synced = self.disk.mount().sync_all();
        synced.map_err(|error| format!("a disk cannot be unmounted: {error}"))?;
        self.unmounted = Some(self.get_new_disk());
        Ok(())
    }

    /// Its disk has kept something wrongly, and nobody knows yet.
    pub fn rot(&mut self) {
        self.trouble.is_rotten = true;
    }

    /// Whether it has.
    pub fn is_rotten(&self) -> bool {
        self.trouble.is_rotten
    }

    /// Whether its disk can be unmounted: one with trouble has enough of it.
    pub fn can_be_unmounted(&self) -> bool {
        let Trouble { is_full, hangs, .. } = self.trouble;
        self.unmounted.is_none() && !self.needs_operator && !is_full && hangs.is_none()
    }

    /// Whether another disk lies in the place of its own.
    pub fn is_unmounted(&self) -> bool {
        self.unmounted.is_some()
    }

    /// Its own disk is mounted again. It is stopped.
    pub fn remount(&mut self) {
        if let Some(disk) = self.unmounted.take() {
            let other = std::mem::replace(&mut self.disk, disk);
            other.discard();
            self.has_old_copy = true;
        }
    }

    /// The process that lives on it, if any.
    pub fn process(&self) -> Option<Arc<Process>> {
        self.node.life().map(|life| life.process)
    }
}
