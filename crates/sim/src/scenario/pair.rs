//! The two nodes of a schedule with their disks, and the clients on the mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_fs::Store;
use lockstep_intentlog::LogOptions;
use lockstep_repl::state::State;
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, Errno};
use lockstepfs::config::{DatastoreConfig, Durability, Encryption, OnPeerLoss, PeerConfig, Role};
use lockstepfs::datastore::{Datastore, Service};
use parking_lot::Mutex;

use super::clients::Client;
use super::end;
use super::faults::{Fault, Stop};
use super::ledger::Ledger;
use super::left::{self, Left};
use crate::disk::{Call, Disk, DiskOptions, Verdict};
use crate::random::Random;
use crate::world::{self, Life, Node, Process, Side, Wait, World};

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
/// Small, so that logs fill and are cut in every schedule.
const SEGMENT_BYTES: u32 = 64 << 10;
const DISK: DiskOptions = DiskOptions {
    capacity_bytes: 1 << 30,
    capacity_files: 100_000,
};
/// How often a state is looked at while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Long enough for every watermark to arrive and garbage to be removed.
const REST: Duration = Duration::from_secs(4);
/// Steps of the world in one simulated second that no schedule should need.
const STEPS_MAX: u64 = 3_000_000;

/// One of the two.
struct Half {
    side: Side,
    node: Node,
    disk: Disk,
    boots: u8,
    /// How it stops when its disk says so.
    stop_at_call: Option<Stop>,
    /// Its disk was made to fail: it may refuse to start, until it is started again.
    may_refuse: u32,
    /// An error of its disk may have poisoned its store: an operator has to start it again.
    needs_operator: bool,
    /// It does not start by itself.
    is_away: bool,
}

/// Both nodes, what is between them, and who uses them.
pub struct Pair {
    world: World,
    halves: [Half; 2],
    ledger: Arc<Mutex<Ledger>>,
    clients: u64,
    /// Clients that look once more at the end.
    lookers: u64,
    /// The process that the clients look through.
    served_by: Option<Arc<Process>>,
    chance: Random,
    silent: bool,
    steps: u64,
}

fn config(role: Role, chance: &mut Random) -> DatastoreConfig {
    let longest = *chance.pick(&[100, 3000]);
    let pause_limit_ms = chance.below(longest);
    DatastoreConfig {
        name: "simulated".to_owned(),
        uuid: UUID,
        store: "/simulated/store".into(),
        mount: "/simulated/mount".into(),
        role,
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
        pause_limit: Duration::from_millis(pause_limit_ms),
        peer_timeout: Duration::from_millis(200 + chance.below(1000)),
        fuse_threads: 1,
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
        ..LogOptions::default()
    };
    if let Err(error) = Store::create(&backing, UUID, &options) {
        panic!("a new store cannot be made: {error}");
    }
    disk
}

thread_local! {
    /// Made once: every schedule starts from a copy.
    static NEW_DISK: Disk = new_disk();
}

impl Pair {
    /// Two nodes that have never run.
    pub fn new(chance: &mut Random) -> Self {
        let step_percent = *chance.pick(&[0, 10, 50, 100]);
        let settings = chance.fork();
        let half = |side, role| {
            let mut same = settings.clone();
            Half {
                side,
                node: Node::new(config(role, &mut same)),
                disk: NEW_DISK.with(Disk::fork),
                boots: 1,
                stop_at_call: None,
                may_refuse: 0,
                needs_operator: false,
                is_away: false,
            }
        };
        let halves = [
            half(Side::Primary, Role::Primary),
            half(Side::Secondary, Role::Secondary),
        ];
        Self {
            world: World::new(chance.fork(), step_percent),
            halves,
            ledger: Arc::default(),
            clients: 1 + chance.below(6),
            lookers: 0,
            served_by: None,
            chance: chance.fork(),
            silent: false,
            steps: 0,
        }
    }

    /// Starts both nodes.
    pub fn start_both(&mut self) {
        self.start(Side::Primary);
        self.start(Side::Secondary);
    }

    fn half(&mut self, side: Side) -> &mut Half {
        let [primary, secondary] = &mut self.halves;
        match side {
            Side::Primary => primary,
            Side::Secondary => secondary,
        }
    }

    fn start(&mut self, side: Side) {
        let process = self.world.give_birth();
        let network = Arc::clone(&self.world.network);
        let peer = self.half(Side::Secondary).node.living();
        let half = self.half(side);
        half.is_away = false;
        half.stop_at_call = None;
        half.disk.observe(None);
        let backing = half.disk.mount();
        half.node
            .start(&process, backing, [half.boots; 16], &network, peer);
    }

    fn stop(&mut self, side: Side, stop: Stop) {
        let mut chance = self.chance.fork();
        let half = self.half(side);
        half.stop_at_call = None;
        half.disk.observe(None);
        match stop {
            Stop::Kill => half.disk.kill(),
            Stop::PowerLoss => {
                half.disk.power_loss(&mut chance);
                half.boots = half.boots.wrapping_add(1);
            }
        }
        let life = half.node.life();
        if let Some(life) = life {
            // First, for a fiber that ends in the middle of a disk call may hold a lock.
            self.world.kill(&life.process);
        }
        let is_told = stop == Stop::Kill;
        let shared = Arc::clone(&self.world.shared);
        self.world.network.process_gone(side, &shared, is_told);
        if let Err(what) = self.look_at_what_is_left(side, stop) {
            self.ledger.lock().wrong(what);
        }
        self.half(side).node.forget();
        if side == Side::Primary {
            self.served_by = None;
            if stop == Stop::PowerLoss {
                self.ledger.lock().power_lost();
            }
        }
    }

    /// Holds what a node leaves against what must be there, while both count as in sync.
    fn look_at_what_is_left(&mut self, side: Side, stop: Stop) -> Result<(), String> {
        let state = |side| self.datastore(side).map(|datastore| datastore.state());
        let (primary, secondary) = (state(Side::Primary), state(Side::Secondary));
        let in_sync = matches!(
            primary,
            Some(State::Synced | State::Paused | State::Frozen | State::CatchingUp)
        ) && matches!(
            secondary,
            Some(
                State::SecondarySynced | State::SecondaryDisconnected | State::SecondaryCatchingUp
            )
        );
        if !in_sync {
            return Ok(());
        }
        let clients = self.clients;
        let mut left = |side| {
            let half = self.half(side);
            Left::on(&half.disk, UUID, [half.boots; 16])
        };
        match (side, stop) {
            (Side::Secondary, Stop::PowerLoss) => {
                let secondary = left(Side::Secondary)?;
                left::holds_the_durable(&secondary, &self.ledger.lock(), clients)
            }
            (Side::Primary, Stop::Kill) => {
                let (primary, secondary) = (left(Side::Primary)?, left(Side::Secondary)?);
                left::tables_tell(&primary, &secondary, clients)
            }
            _ => Ok(()),
        }
    }

    /// Lets a fault happen.
    pub fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Stopped(side, stop) => {
                self.stop(side, stop);
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
            Fault::StopsAtCall {
                side,
                stop,
                calls,
                verdict,
            } => self.stop_at_call(side, stop, calls, verdict),
            Fault::SecondaryFails { class, nth, errno } => {
                let half = self.half(Side::Secondary);
                half.may_refuse += 1;
                half.needs_operator |= errno == Errno::Io;
                self.half(Side::Secondary).disk.fail_call(class, nth, errno);
            }
            Fault::Cut => self.world.network.cut(&self.world.shared),
            Fault::Corrupt(side) => self.world.network.corrupt_next(side),
            Fault::Silent(side) => {
                self.silent = true;
                self.world.network.set_silent(side, true);
            }
            Fault::Healed => self.heal(),
        }
    }

    fn stop_at_call(&mut self, side: Side, stop: Stop, calls: u64, verdict: Verdict) {
        let half = self.half(side);
        let Some(life) = half.node.life() else { return };
        half.stop_at_call = Some(stop);
        let left = AtomicU64::new(calls);
        half.disk.observe(Some(Arc::new(move |_: &Call<'_>| {
            if left.fetch_sub(1, Ordering::Relaxed) != 0 {
                return Verdict::Go;
            }
            life.process.die();
            if verdict == Verdict::CrashBefore && world::is_inside() {
                // Nothing after this place is ever done.
                world::wait(Wait::Dead);
            }
            verdict
        })));
    }

    /// Frames pass, and both nodes live.
    pub fn heal(&mut self) {
        self.silent = false;
        for side in [Side::Primary, Side::Secondary] {
            self.world.network.set_silent(side, false);
            self.half(side).disk.stop_failing();
            let called = std::mem::take(&mut self.half(side).needs_operator);
            if called {
                self.stop(side, Stop::Kill);
            }
            if called || self.half(side).is_away {
                self.start(side);
            }
        }
    }

    /// Whether something is not as it should be that does not mend by itself.
    pub fn is_hurt(&self) -> bool {
        self.silent || self.halves.iter().any(|half| half.is_away)
    }

    /// The world's time.
    pub fn now(&self) -> Duration {
        self.world.shared.now()
    }

    /// Answers that clients had.
    pub fn answered(&self) -> u64 {
        self.ledger.lock().answered()
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

    /// Restarts who has died by itself, and brings clients to a new mount.
    fn look_after(&mut self) -> Result<(), String> {
        for side in [Side::Primary, Side::Secondary] {
            let half = self.half(side);
            let Some(life) = half.node.life() else {
                continue;
            };
            let refused = life.refused.lock().clone();
            if let Some(why) = refused.filter(|_| !life.process.is_dead()) {
                half.may_refuse = half
                    .may_refuse
                    .checked_sub(1)
                    .ok_or_else(|| format!("{side:?} does not start: {why}"))?;
                life.process.die();
            }
            if life.process.is_dead() {
                let stop = half.stop_at_call.unwrap_or(Stop::Kill);
                self.stop(side, stop);
                self.start(side);
            }
        }
        self.bring_clients();
        Ok(())
    }

    fn bring_clients(&mut self) {
        if self.served_by.is_some() {
            return;
        }
        let Some(life) = self.half(Side::Primary).node.life() else {
            return;
        };
        let Some(datastore) = life.datastore() else {
            return;
        };
        for id in 0..self.clients {
            let client = self.client(id, &life, &datastore);
            life.process.start(move || client.run());
        }
        self.served_by = Some(life.process);
    }

    fn client(&self, id: u64, life: &Life, datastore: &Arc<Datastore>) -> Client {
        Client {
            id,
            process: Arc::clone(&life.process),
            service: Service(Arc::clone(datastore)),
            ledger: Arc::clone(&self.ledger),
        }
    }

    /// Ends the clients, with the process that they look through, and lets each look at what there
    /// is once more.
    pub fn send_clients_away(&mut self) {
        let clients = std::mem::take(&mut self.clients);
        self.stop(Side::Primary, Stop::Kill);
        self.start(Side::Primary);
        self.clients = 0;
        self.lookers = clients;
    }

    fn datastore(&self, side: Side) -> Option<Arc<Datastore>> {
        let half = self.halves.iter().find(|half| half.side == side)?;
        half.node.life()?.datastore()
    }

    /// Waits until both nodes say that they are in sync.
    pub fn until_in_sync(&mut self, limit: Duration) -> Result<(), String> {
        let until = self.now() + limit;
        loop {
            self.run_for(LOOK_EVERY)?;
            let state = |side| self.datastore(side).map(|datastore| datastore.state());
            let (primary, secondary) = (state(Side::Primary), state(Side::Secondary));
            if primary == Some(State::Synced) && secondary == Some(State::SecondarySynced) {
                return Ok(());
            }
            if self.now() > until {
                return Err(format!(
                    "not in sync {limit:?} after the last fault: {primary:?}, {secondary:?}"
                ));
            }
        }
    }

    /// Lets everything that is still to be done be done.
    pub fn rest(&mut self) -> Result<(), String> {
        if let (Some(life), Some(datastore)) = (
            self.half(Side::Primary).node.life(),
            self.datastore(Side::Primary),
        ) {
            for id in 0..std::mem::take(&mut self.lookers) {
                let client = self.client(id, &life, &datastore);
                life.process.start(move || client.look());
            }
        }
        self.run_for(REST)
    }

    /// Holds what there is at the end against what must be.
    pub fn judge(&self) -> Result<(), String> {
        self.ledger.lock().verdict()?;
        let (Some(primary), Some(secondary)) = (
            self.datastore(Side::Primary),
            self.datastore(Side::Secondary),
        ) else {
            return Err("a node does not live at the end".to_owned());
        };
        end::identical(primary.store(), secondary.store())?;
        end::at_rest(&primary)?;
        end::at_rest(&secondary)
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
