//! Two nodes in a world where everything goes well but for what a test lets fail, and a program on the
//! primary's mount.

use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::client::{Done, FileService, WriteOptions};
use lockstep_driver::config::{DatastoreConfig, PeerConfig};
use lockstep_driver::report::DatastoreStatus;
use lockstep_driver::{ClearError, Cleared, Datastore, Repair, Service, clear_poison};
use lockstep_fs::Store;
use lockstep_fs::poison::MARKER_FILE;
use lockstep_fs::store::{Access, OpenOptions};
use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::{Disk, DiskOptions, Survivors};
use lockstep_lossy::random::Random;
use lockstep_repl::state::State;
use lockstep_sim::world::{Life, Node, Opened, Process, World};
use lockstep_types::backing::replace;
use lockstep_types::settings::{Durability, Encryption, OnPeerLoss, Role};
use lockstep_types::{
    BootId, DatastoreUuid, Errno, FileName, Hash128, Ino, MetaRequest, NodeKind, Timestamp,
};
use parking_lot::Mutex;

pub use lockstep_sim::world::Side;

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
const BOOT: BootId = BootId::from_bytes([1; 16]);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The one file.
const NAME: &[u8] = b"file";

fn config(role: Role, on_peer_loss: OnPeerLoss) -> DatastoreConfig {
    DatastoreConfig {
        name: "simulated".to_owned(),
        uuid: UUID,
        store: "/simulated/store".into(),
        mount: "/simulated/mount".into(),
        role,
        durability: Durability::Posix,
        on_peer_loss,
        pause_limit: Duration::from_secs(3600),
        peer_timeout: Duration::from_secs(1),
        answer_limit: Duration::from_secs(3),
        fuse_threads: 1,
        peer: Some(PeerConfig {
            address: "127.0.0.1:1".parse().unwrap(),
            fingerprint: format!("SHA256:{:064x}", 1).parse().unwrap(),
            encryption: Encryption::On,
        }),
    }
}

fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: 64 << 10,
        ..LogOptions::default()
    }
}

fn new_disk() -> Disk {
    let disk = Disk::new(DiskOptions {
        capacity_bytes: 1 << 30,
        capacity_files: 1000,
    });
    Store::create(&disk.mount(), UUID, &log_options()).unwrap();
    disk
}

/// One of the two.
pub struct Half {
    pub disk: Disk,
    node: Node,
}

impl Half {
    fn new(role: Role, on_peer_loss: OnPeerLoss) -> Self {
        Self {
            disk: new_disk(),
            node: Node::new(config(role, on_peer_loss)),
        }
    }

    /// Puts an empty disk in place of the one it has, which is returned. It is stopped.
    pub fn get_new_disk(&mut self) -> Disk {
        std::mem::replace(&mut self.disk, new_disk())
    }

    /// What its role file says of the store and the sync, if anything.
    pub fn names(&self) -> Option<String> {
        let role = String::from_utf8(self.disk.read_all("role.json").unwrap()).unwrap();
        let (_, names) = role.split_once("\"store\"")?;
        let (names, _) = names.split_once("\"boot\"")?;
        Some(names.to_owned())
    }

    /// Leaves in its role file what a version before the names has written. It is stopped.
    pub fn forget_names(&self) {
        let disk = self.disk.mount();
        let role = self.disk.read_all("role.json").unwrap();
        let text = String::from_utf8(role).unwrap();
        let said = |key: &str| {
            let (_, rest) = text.split_once(&format!("\"{key}\": ")).unwrap();
            rest.split([',', '\n']).next().unwrap().to_owned()
        };
        let keys = ["generation", "role", "in_sync", "carried_over", "boot"];
        let fields = keys.map(|key| format!("\"{key}\":{}", said(key)));
        let state = format!("{{{}}}", fields.join(","));
        let checksum = u128::from_be_bytes(Hash128::of(state.as_bytes()).0);
        let text = format!("{{\"state\":{state},\"checksum\":\"{checksum:032x}\"}}");
        replace(disk.as_ref(), "role.json", text.as_bytes()).unwrap();
    }

    /// What lives on it; it runs.
    pub fn datastore(&self) -> Option<Arc<Datastore>> {
        self.node.life()?.datastore()
    }

    /// Why it does not run, if it gave up.
    fn refused(&self) -> Option<String> {
        self.node.life()?.refused.lock().clone()
    }

    pub fn state(&self) -> Option<State> {
        Some(self.datastore()?.state())
    }

    pub fn status(&self) -> DatastoreStatus {
        self.datastore().expect("it runs").status()
    }

    pub fn is_marked(&self) -> bool {
        self.disk.files().contains(&MARKER_FILE.to_owned())
    }

    /// What is on its stable storage: the role file, and the file's bytes.
    pub fn stable(&self) -> (String, Option<Vec<u8>>) {
        let disk = self.disk.fork();
        disk.power_loss_with(Survivors::Nothing, &mut Random::new(1));
        let role = disk.read_all("role.json").unwrap_or_default();
        let options = OpenOptions {
            datastore: Some(UUID),
            boot: BootId::from_bytes([99; 16]),
            access: Access::Read,
            log: log_options(),
        };
        let opened = Store::open(disk.mount(), &options).ok();
        let bytes = opened.and_then(|opened| {
            let attr = opened.store.tree().lookup(Ino::ROOT, &name()).ok()?;
            let mut bytes = vec![0; usize::try_from(attr.size).ok()?];
            opened.store.read(attr.ino, 0, &mut bytes).ok()?;
            Some(bytes)
        });
        (String::from_utf8(role).unwrap(), bytes)
    }
}

fn name() -> FileName {
    FileName::new(NAME).unwrap()
}

/// Both nodes.
pub struct Pair {
    world: World,
    pub primary: Half,
    pub secondary: Half,
}

impl Pair {
    /// Two nodes that have never run.
    pub fn new(on_peer_loss: OnPeerLoss) -> Self {
        Self {
            world: World::new(Random::new(1), 0),
            primary: Half::new(Role::Primary, on_peer_loss),
            secondary: Half::new(Role::Secondary, on_peer_loss),
        }
    }

    /// Two nodes in sync, and a file.
    pub fn in_sync() -> Self {
        let mut pair = Self::new(OnPeerLoss::Continue);
        pair.start(Side::Primary);
        pair.start(Side::Secondary);
        pair.until_in_sync();
        assert_eq!(pair.client(Client::create), Ok(()));
        assert_eq!(pair.client(|client| client.write(b"first", true)), Ok(()));
        pair
    }

    pub fn half(&self, side: Side) -> &Half {
        match side {
            Side::Primary => &self.primary,
            Side::Secondary => &self.secondary,
        }
    }

    pub fn start(&mut self, side: Side) {
        let process = self.world.give_birth();
        let network = Arc::clone(&self.world.network);
        let peer = self.secondary.node.living();
        let half = self.half(side);
        let disk = half.disk.mount();
        half.node.start(&process, disk, BOOT, &network, peer);
    }

    /// The process is killed, and started again in the same run of its machine.
    pub fn restart(&mut self, side: Side) {
        self.kill(side);
        self.start(side);
    }

    pub fn kill(&mut self, side: Side) {
        self.half(side).disk.kill();
        let life = self.half(side).node.life();
        if let Some(Life { process, .. }) = life {
            self.world.kill(&process);
        }
        let shared = Arc::clone(&self.world.shared);
        self.world.network.process_gone(side, &shared, true);
        self.half(side).node.forget();
    }

    /// Lets everything run for some time.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.world.shared.now() + time;
        while self.world.step(until) {}
    }

    /// Lets everything run until something holds.
    #[track_caller]
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let limit = self.world.shared.now() + PATIENCE;
        while !holds(self) {
            assert!(
                self.world.shared.now() < limit,
                "{what}: {:?}, {:?}, {:?}",
                self.primary.state(),
                self.secondary.state(),
                self.primary
                    .datastore()
                    .map(|primary| primary.status().reason)
            );
            self.run_for(LOOK_EVERY);
        }
    }

    #[track_caller]
    pub fn until_in_sync(&mut self) {
        self.until("in sync", Self::is_in_sync);
    }

    pub fn is_in_sync(&self) -> bool {
        self.primary.state() == Some(State::Synced)
            && self.secondary.state() == Some(State::SecondarySynced)
    }

    /// The node's failed disk was noted, by the process or by the one before.
    #[track_caller]
    pub fn until_poisoned(&mut self, side: Side) {
        self.until("poisoned", |pair| {
            pair.half(side).state().is_some_and(State::is_poisoned)
        });
    }

    /// Starts it until it runs: one whose disk fails while it starts may refuse.
    pub fn start_until_it_runs(&mut self, side: Side) {
        for _ in 0..3 {
            self.until("started or refused", |pair| {
                let half = pair.half(side);
                half.datastore().is_some() || half.refused().is_some()
            });
            if self.half(side).datastore().is_some() {
                return;
            }
            self.restart(side);
        }
        panic!("{side:?} does not start: {:?}", self.half(side).refused());
    }

    /// What an operator does with a node that is stopped.
    pub fn clear(&mut self, side: Side, accept_loss: bool) -> Result<Cleared, ClearError> {
        self.kill(side);
        let half = self.half(side);
        let repair = Repair {
            backing: half.disk.mount(),
            boot: BOOT,
            stamp: Some(half.node.runtime().of(None)),
            now: Timestamp::default(),
        };
        clear_poison(half.node.config(), &repair, accept_loss)
    }

    /// Stops a node in order, as at SIGTERM.
    pub fn stop(&mut self, side: Side) {
        let life = self.half(side).node.life().expect("it runs");
        let datastore = life.datastore().expect("it runs");
        let stopped = Arc::new(Mutex::new(false));
        let told = Arc::clone(&stopped);
        life.process.start(move || {
            datastore.stop();
            datastore.close();
            *told.lock() = true;
        });
        self.until("stopped", |_| *stopped.lock());
    }

    /// Lets a program do something on the primary's mount; `None` if it had no answer in a minute.
    pub fn try_client<T: Send + 'static>(
        &mut self,
        body: impl FnOnce(&Client) -> T + Send + 'static,
    ) -> Option<T> {
        let life = self.primary.node.life().expect("the primary runs");
        let client = Client {
            process: Arc::clone(&life.process),
            service: Service(life.datastore().expect("the primary runs")),
        };
        let answer = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&answer);
        life.process
            .start(move || *slot.lock() = Some(body(&client)));
        let limit = self.world.shared.now() + Duration::from_secs(60);
        while answer.lock().is_none() && self.world.shared.now() < limit {
            self.run_for(LOOK_EVERY);
        }
        answer.lock().take()
    }

    /// The same for what must have an answer.
    #[track_caller]
    pub fn client<T: Send + 'static>(
        &mut self,
        body: impl FnOnce(&Client) -> T + Send + 'static,
    ) -> T {
        let answered = self.try_client(body);
        answered.expect("the program has an answer")
    }
}

/// A program.
pub struct Client {
    process: Arc<Process>,
    service: Service,
}

impl Client {
    fn ask<T: Send + 'static>(&self, submit: impl FnOnce(Done<T>)) -> Result<T, Errno> {
        let answered = Arc::new(Opened::default());
        let answer = Arc::new(Mutex::new(None));
        let (opened, slot) = (Arc::clone(&answered), Arc::clone(&answer));
        submit(Box::new(move |result| {
            *slot.lock() = Some(result);
            opened.open();
        }));
        self.process.wait_for(answered, None);
        self.process.end_if_dead();
        let answer = answer.lock().take();
        answer.unwrap()
    }

    fn file(&self) -> Result<Ino, Errno> {
        Ok(self.service.lookup(Ino::ROOT, &name())?.ino)
    }

    pub fn create(&self) -> Result<(), Errno> {
        self.create_named(NAME)
    }

    pub fn create_named(&self, name: &[u8]) -> Result<(), Errno> {
        let request = MetaRequest::Create {
            parent: Ino::ROOT,
            name: FileName::new(name).unwrap(),
            ino: self.service.next_ino()?,
            kind: NodeKind::File,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
        };
        self.ask(|done| self.service.change(request, done))
            .map(drop)
    }

    pub fn write(&self, data: &[u8], durable: bool) -> Result<(), Errno> {
        let options = WriteOptions {
            durable,
            ..WriteOptions::default()
        };
        let file = self.file()?;
        self.ask(|done| self.service.write(file, 0, data, options, done))
    }

    pub fn sync(&self) -> Result<(), Errno> {
        let file = self.file()?;
        self.ask(|done| self.service.sync(file, done))
    }

    pub fn read(&self) -> Result<Vec<u8>, Errno> {
        let file = self.file()?;
        self.ask(|done: Done<Vec<u8>>| {
            let copied = move |read: Result<&[u8], Errno>| done(read.map(<[u8]>::to_vec));
            self.service.read(file, 0, 5, Box::new(copied));
        })
    }
}
