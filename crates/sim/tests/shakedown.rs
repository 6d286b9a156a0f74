use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::os_backing::OsBacking;
use lockstep_repl::state::State;
use lockstep_sim::random::Random;
use lockstep_sim::world::{self, Life, Node, Opened, Process, Side, Wait, World};
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, FileName, Ino, MetaRequest, NodeKind};
use lockstepfs::client::{FileService, WriteOptions};
use lockstepfs::config::*;
use lockstepfs::datastore::{Datastore, Service};
use parking_lot::Mutex;

fn config(role: Role) -> DatastoreConfig {
    DatastoreConfig {
        name: format!("{role:?}"),
        uuid: DatastoreUuid::from_bytes([7; 16]),
        store: "/none".into(),
        mount: "/none/mount".into(),
        role,
        durability: Durability::Posix,
        on_peer_loss: OnPeerLoss::Continue,
        pause_limit: Duration::from_secs(3),
        peer_timeout: Duration::from_millis(1000),
        fuse_threads: 8,
        peer: Some(PeerConfig {
            address: "127.0.0.1:1".parse().unwrap(),
            fingerprint: format!("SHA256:{:064x}", 1).parse().unwrap(),
            encryption: Encryption::On,
        }),
    }
}

#[derive(Default)]
struct Log {
    next: u64,
    /// per (client): acked, maybe
    acked: BTreeMap<u64, u64>,
    maybe: BTreeMap<u64, Vec<u64>>,
    done: u64,
    errors: Vec<String>,
}

fn wait_result<T: Send + 'static>(
    process: &Arc<Process>,
    submit: impl FnOnce(Box<dyn FnOnce(Result<T, lockstep_types::Errno>) + Send>),
) -> Result<T, lockstep_types::Errno> {
    let gate = Arc::new(Opened::default());
    let slot = Arc::new(Mutex::new(None));
    let (g, s) = (gate.clone(), slot.clone());
    submit(Box::new(move |result| {
        *s.lock() = Some(result);
        g.open();
    }));
    process.wait_for(gate, None);
    slot.lock().take().unwrap()
}

fn client(number: u64, process: Arc<Process>, datastore: Arc<Datastore>, log: Arc<Mutex<Log>>) {
    let service = Service(datastore);
    let shared = process.shared().clone();
    let name = FileName::new(b"shared").unwrap();
    let ino = loop {
        match service.lookup(Ino::ROOT, &name) {
            Ok(attr) => break attr.ino,
            Err(_) => {
                let Ok(ino) = service.next_ino() else { return };
                let request = MetaRequest::Create {
                    parent: Ino::ROOT,
                    name: name.clone(),
                    ino,
                    kind: NodeKind::File,
                    mode: 0o644,
                    umask: 0,
                    uid: 0,
                    gid: 0,
                    rdev: 0,
                    target: Vec::new(),
                };
                let _ = wait_result(&process, |done| service.change(request, done));
            }
        }
    };
    let mut own = 0u64;
    loop {
        let pause = shared.draw(|c| c.below(20_000));
        world::wait(Wait::Until(shared.now() + Duration::from_micros(pause)));
        let what = shared.draw(|c| c.below(10));
        if what < 6 {
            let id = {
                let mut log = log.lock();
                log.next += 1;
                let id = log.next;
                log.maybe.entry(number).or_default().push(id);
                id
            };
            let data: Vec<u8> = id.to_le_bytes().repeat(512);
            let durable = what == 0;
            let result = wait_result(&process, |done| {
                service.write(
                    ino,
                    number * 4096,
                    &data,
                    WriteOptions {
                        durable,
                        drop_set_id: false,
                    },
                    done,
                )
            });
            let mut log = log.lock();
            match result {
                Ok(()) => {
                    log.acked.insert(number, id);
                    log.maybe.remove(&number);
                    log.done += 1;
                }
                Err(e) => log.errors.push(format!("write {e:?}")),
            }
        } else if what < 9 {
            own += 1;
            let name = FileName::new(format!("c{number}-{}", own % 4).as_bytes()).unwrap();
            let request = if shared.draw(|c| c.percent(50)) {
                let Ok(ino) = service.next_ino() else { return };
                MetaRequest::Create {
                    parent: Ino::ROOT,
                    name,
                    ino,
                    kind: NodeKind::File,
                    mode: 0o644,
                    umask: 0,
                    uid: 0,
                    gid: 0,
                    rdev: 0,
                    target: Vec::new(),
                }
            } else {
                MetaRequest::Unlink {
                    parent: Ino::ROOT,
                    name,
                }
            };
            let _ = wait_result(&process, |done| service.change(request, done));
            log.lock().done += 1;
        } else {
            if let Err(e) = wait_result(&process, |done| service.sync(ino, done)) {
                log.lock().errors.push(format!("sync {e:?}"))
            }
        }
    }
}

struct Run {
    world: World,
    nodes: [Node; 2],
    dirs: [tempfile::TempDir; 2],
    log: Arc<Mutex<Log>>,
    clients_on: Option<Life>,
    clients: u64,
}

impl Run {
    fn start(&mut self, i: usize) {
        let process = self.world.give_birth();
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(self.dirs[i].path()).unwrap());
        let peer = self.nodes[1].living();
        self.nodes[i].start(
            &process,
            backing,
            [1; 16],
            &self.world.network.clone(),
            peer,
        );
    }
    fn kill(&mut self, i: usize) {
        if let Some(life) = self.nodes[i].forget() {
            let side = if i == 0 {
                Side::Primary
            } else {
                Side::Secondary
            };
            self.world
                .network
                .process_gone(side, &self.world.shared, true);
            self.world.kill(&life.process);
            if i == 0 {
                self.clients_on = None;
            }
        }
    }
    fn until(&mut self, moment: Duration) {
        while self.world.step(moment) {
            self.feed();
        }
    }
    fn feed(&mut self) {
        if self.clients_on.is_some() {
            return;
        }
        let Some(life) = self.nodes[0].life() else {
            return;
        };
        let Some(datastore) = life.datastore() else {
            return;
        };
        for number in 0..self.clients {
            let (p, d, l) = (life.process.clone(), datastore.clone(), self.log.clone());
            life.process.start(move || client(number, p, d, l));
        }
        self.clients_on = Some(life);
    }
    fn state(&self, i: usize) -> Option<State> {
        Some(self.nodes[i].life()?.datastore()?.state())
    }
}

fn run(seed: u64) -> u64 {
    let mut chance = Random::new(seed);
    let world = World::new(chance.fork(), 30);
    let dir = || tempfile::tempdir_in("/dev/shm").unwrap();
    let mut run = Run {
        world,
        nodes: [
            Node::new(config(Role::Primary)),
            Node::new(config(Role::Secondary)),
        ],
        dirs: [dir(), dir()],
        log: Arc::default(),
        clients_on: None,
        clients: 4,
    };
    for i in 0..2 {
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(run.dirs[i].path()).unwrap());
        lockstep_fs::Store::create(
            &backing,
            DatastoreUuid::from_bytes([7; 16]),
            &lockstep_intentlog::LogOptions {
                segment_bytes: 64 << 10,
                ..Default::default()
            },
        )
        .unwrap();
    }
    run.start(0);
    run.start(1);
    let mut now = Duration::ZERO;
    for _ in 0..12 {
        now += Duration::from_micros(chance.below(600_000));
        run.until(now);
        match chance.below(6) {
            0 => {
                run.kill(0);
                run.start(0);
            }
            1 => {
                run.kill(1);
                run.start(1);
            }
            2 => run.world.network.cut(&run.world.shared),
            3 => {
                let side = if chance.percent(50) {
                    Side::Primary
                } else {
                    Side::Secondary
                };
                run.world.network.set_silent(side, true);
            }
            4 => {
                run.kill(0);
                run.kill(1);
                run.start(0);
                run.start(1);
            }
            _ => {
                run.world.network.set_silent(Side::Primary, false);
                run.world.network.set_silent(Side::Secondary, false);
            }
        }
    }
    run.world.network.set_silent(Side::Primary, false);
    run.world.network.set_silent(Side::Secondary, false);
    let limit = now + Duration::from_secs(60);
    loop {
        now += Duration::from_millis(100);
        run.until(now);
        if run.state(0) == Some(State::Synced) && run.state(1) == Some(State::SecondarySynced) {
            break;
        }
        assert!(
            now < limit,
            "seed {seed}: not in sync: {:?} {:?}",
            run.state(0),
            run.state(1)
        );
    }
    // quiesce: no new client work: stop stepping clients by killing nothing; just compare after letting things settle
    let life = [run.nodes[0].life().unwrap(), run.nodes[1].life().unwrap()];
    let stores = [life[0].datastore().unwrap(), life[1].datastore().unwrap()];
    // stop: die clients by killing the primary process and let it recover, then no clients
    run.clients = 0;
    run.kill(0);
    run.start(0);
    let _ = stores;
    loop {
        now += Duration::from_millis(100);
        run.until(now);
        if run.state(0) == Some(State::Synced) && run.state(1) == Some(State::SecondarySynced) {
            break;
        }
        assert!(
            now < limit + limit,
            "seed {seed}: not in sync again: {:?} {:?}",
            run.state(0),
            run.state(1)
        );
    }
    now += Duration::from_millis(500);
    run.until(now);
    let d = |i: usize| {
        lockstep_verify::digest::digests(
            run.nodes[i].life().unwrap().datastore().unwrap().store(),
            1,
            u64::MAX,
            lockstep_verify::digest::Limits {
                inodes: 10000,
                bytes: 1 << 30,
            },
        )
        .unwrap()
    };
    assert_eq!(d(0), d(1), "seed {seed}: differ");
    let log = run.log.lock();
    assert!(log.errors.is_empty(), "seed {seed}: {:?}", log.errors);
    let store = run.nodes[0].life().unwrap().datastore().unwrap();
    if let Ok(attr) = store
        .store()
        .lookup(Ino::ROOT, &FileName::new(b"shared").unwrap())
    {
        for number in 0..4u64 {
            let mut block = [0; 4096];
            let _ = store
                .store()
                .read(attr.ino, number * 4096, &mut block)
                .unwrap();
            let id = u64::from_le_bytes(block[..8].try_into().unwrap());
            let acked = log.acked.get(&number).copied().unwrap_or(0);
            let ok = id == acked || log.maybe.get(&number).is_some_and(|m| m.contains(&id));
            assert!(
                ok,
                "seed {seed}: client {number}: found {id}, acked {acked}, maybe {:?}",
                log.maybe.get(&number)
            );
        }
    }
    log.done
}

#[test]
fn shakedown() {
    let from: u64 = std::env::var("SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let count: u64 = std::env::var("COUNT")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(20);
    let start = std::time::Instant::now();
    let mut done = 0;
    for seed in from..from + count {
        done += run(seed);
    }
    println!("{count} runs, {done} operations, {:?}", start.elapsed());
}
