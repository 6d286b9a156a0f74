//! The clients: programs that use the mount of the node that serves. They end with its process, or
//! when the other node begins to serve.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_driver::client::{
    DirEntry, Done, FileService, Inside, RequestKind, Standing, WaitingRequests, WriteOptions,
};
use lockstep_driver::{Datastore, DatastoreHandle};
use lockstep_types::{Attr, Errno, Ino, MetaRequest, XattrMode};
use lockstep_verify::Report;
use parking_lot::Mutex;

use super::nodes::Nodes;
use super::sim_node::serves;
use super::standby_program;
use super::witness::Witness;
use crate::history::{Answer, CallId, Entry, Outcome, leaves_doubt};
use crate::op::{Op, WriteOp};
use crate::workload::Source;
use crate::world::{self, Latch, Process, RunningNode, Shutdown, Side, Wait};

/// The interval between two attempts to enter a node that does not serve.
const ENTER_POLL: Duration = Duration::from_millis(5);

/// The clients of a mount.
pub struct Users {
    /// Number of clients.
    pub clients: u32,
    /// The longest pause of a client between two operations.
    pub pause_max: Duration,
    /// The source of the requests.
    pub source: Box<dyn Source>,
}

impl Users {
    /// Returns no clients, for a test that uses the mount itself.
    pub fn none() -> Self {
        Self {
            clients: 0,
            pause_max: Duration::ZERO,
            source: Box::new(NoRequests),
        }
    }
}

struct NoRequests;

impl Source for NoRequests {
    fn next(&mut self, _client: u32, _spare: Ino) -> Option<Op> {
        None
    }

    fn observe(&mut self, _client: u32, _op: &Op, _outcome: &Outcome) {}
}

/// An estimate for one write whether more requests wait: yes for every second write to a file. No
/// later request confirms the estimate.
#[derive(Debug)]
struct WaitingEstimate<'a>(&'a WriteOp);

impl WaitingRequests for WaitingEstimate<'_> {
    fn any(&self) -> bool {
        self.0.mark.get().is_multiple_of(2)
    }
}

/// The mount of a node, as a program sees it.
#[derive(Clone)]
pub struct Mount {
    process: Arc<Process>,
    /// The process's clean shutdown, which removes the mount.
    shutdown: Arc<Shutdown>,
    service: DatastoreHandle,
}

impl Mount {
    /// Returns the mount of a running node, if the node has opened its datastore.
    pub fn of(running: &RunningNode) -> Option<Self> {
        Some(Self {
            process: Arc::clone(&running.process),
            shutdown: Arc::clone(&running.shutdown),
            service: DatastoreHandle(running.datastore()?),
        })
    }

    /// Returns the process of the mount.
    pub const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Compares both nodes, as `lockstep verify` does.
    pub fn compare(&self) -> Result<Report, String> {
        let compared = self.service.0.compare(&mut |_| ());
        compared.map_err(|failure| format!("the nodes cannot be compared: {}", failure.cause))
    }

    /// Returns a number for a new inode.
    pub fn next_ino(&self) -> Result<Ino, Errno> {
        self.call(DatastoreHandle::next_ino)
    }

    /// Returns the service of the node.
    pub const fn service(&self) -> &DatastoreHandle {
        &self.service
    }

    /// Returns whether a clean shutdown has removed the mount.
    pub fn is_unmounted(&self) -> bool {
        self.shutdown.is_unmounted()
    }

    /// Returns whether the node serves clients.
    pub fn serves(&self) -> bool {
        serves(Arc::clone(&self.service.0))
    }

    /// Lets a request in, or returns why not.
    fn enter(&self) -> Result<Inside, Standing> {
        self.service.enter(RequestKind::Program)
    }

    /// Submits an operation, and waits for the answer. The node must serve.
    pub fn submit(&self, op: &Op) -> Outcome {
        let inside = self.enter().map_err(|_| Errno::Io)?;
        self.submit_inside(op, inside)
    }

    /// Submits an operation that is inside, and waits for the answer.
    fn submit_inside(&self, op: &Op, inside: Inside) -> Outcome {
        if !matches!(op, Op::Write(_)) {
            self.call(DatastoreHandle::flush_deferred_writes);
        }
        match op {
            Op::Change(request) => self
                .wait_for(inside, |service, done| {
                    service.change(request.clone(), done);
                })
                .map(|attr| attr.map_or(Answer::Done, Answer::Attr)),
            Op::Write(write) => self.write(write, inside),
            Op::Read {
                ino,
                offset,
                length,
            } => self.read(*ino, *offset, *length, inside),
            Op::Sync { ino } => self
                .wait_for(inside, |service, done| service.sync(*ino, done))
                .map(|()| Answer::Done),
            Op::Lookup { parent, name } => attr(self.call(|service| service.lookup(*parent, name))),
            Op::GetAttr { ino } => attr(self.call(|service| service.getattr(*ino))),
            Op::ReadDir { directory } => self.list(*directory),
            Op::GetXattr { ino, name } => {
                let value = self.call(|service| service.getxattr(*ino, name));
                value.map(Answer::Value)
            }
            Op::ReadLink { ino } => {
                let target = self.call(|service| service.readlink(*ino));
                target.map(Answer::Value)
            }
        }
    }

    /// Gives a request to the service.
    fn call<T>(&self, request: impl FnOnce(&DatastoreHandle) -> T) -> T {
        let _entering = self.shutdown.enter();
        request(&self.service)
    }

    /// Submits an operation that is inside, and waits until the service calls `done`.
    fn wait_for<T: Send + 'static>(
        &self,
        inside: Inside,
        submit: impl FnOnce(&DatastoreHandle, Done<T>),
    ) -> Result<T, Errno> {
        let answered = Arc::new(Latch::default());
        let answer = Arc::new(Mutex::new(None));
        let (latch, slot) = (Arc::clone(&answered), Arc::clone(&answer));
        let done = Box::new(move |result| {
            *slot.lock() = Some(result);
            latch.open();
        });
        self.call(|service| submit(service, done));
        drop(inside);
        self.process.wait_for(answered, None);
        let answer = answer.lock().take();
        answer.unwrap_or_else(|| unreachable!("the latch is opened with the answer in place"))
    }

    fn write(&self, write: &WriteOp, inside: Inside) -> Outcome {
        let options = WriteOptions {
            durable: write.durable,
            waiting: Some(&WaitingEstimate(write)),
            ..WriteOptions::default()
        };
        let data = write.bytes();
        let (ino, offset) = (write.ino, write.offset);
        let mut is_admitted = true;
        let written = self.wait_for(inside, |service, done| {
            let kept = service.admit_write(ino, offset, &data, options);
            is_admitted = kept.is_ok();
            match kept {
                Ok(None) => service.write(ino, offset, &data, options, done),
                Ok(Some(kept)) => service.write_kept(ino, offset, kept, options, done),
                Err(errno) => done(Err(errno)),
            }
        });
        if !is_admitted && self.shutdown.is_unmounted() {
            // The mount was removed while the write waited for room: the program never sees the
            // error.
            world::wait(Wait::Dead);
        }
        written.map(|()| Answer::Done)
    }

    fn read(&self, ino: Ino, offset: u64, length: u64, inside: Inside) -> Outcome {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let bytes = self.wait_for(inside, |service, done: Done<Vec<u8>>| {
            let copied = move |read: Result<&[u8], Errno>| done(read.map(<[u8]>::to_vec));
            service.read(ino, offset, length, Box::new(copied));
        });
        bytes.map(|bytes| Answer::read(ino, offset, &bytes))
    }

    fn list(&self, directory: Ino) -> Outcome {
        let mut entries = Vec::new();
        let mut each = |DirEntry {
                            name, ino, kind, ..
                        }| {
            entries.push(Entry { name, ino, kind });
            ControlFlow::Continue(())
        };
        self.call(|service| service.readdir(directory, 0, &mut each))?;
        Ok(Answer::Entries(entries))
    }
}

fn attr(found: Result<Attr, Errno>) -> Outcome {
    found.map(Answer::Attr)
}

/// The clients that were started at one mount.
#[derive(Clone)]
struct Posting {
    side: Side,
    /// The clients must make no more requests at this mount.
    is_over: Arc<AtomicBool>,
}

/// One client at a mount.
struct Client {
    id: u32,
    mount: Mount,
    /// Gives the requests, and records the answers.
    witness: Arc<Mutex<Witness>>,
    pause_max: Duration,
    posting: Posting,
}

impl Client {
    /// Works until the client has made all its requests, is stopped, moves to the other node, or its
    /// process dies.
    fn run(&self) {
        let mut spare = None;
        loop {
            self.pause();
            let Some(inside) = self.enter() else { return };
            let ino = match spare.map_or_else(|| self.mount.next_ino(), Ok) {
                Ok(ino) => ino,
                // The role of the node has changed meanwhile.
                Err(_) if !self.mount.serves() => continue,
                Err(errno) => {
                    self.mount.process.stop_if_dead();
                    let mut witness = self.witness.lock();
                    return witness.no_number(self.posting.side, self.id, errno);
                }
            };
            let request = self.witness.lock().next_request(self.id, ino);
            let Some((call, op)) = request else { return };
            spare = op.makes().is_none().then_some(ino);
            let outcome = world::serving(|| self.mount.submit_inside(&op, inside));
            // No client sees the answer of a dying process.
            self.mount.process.stop_if_dead();
            self.answered(call, outcome);
        }
    }

    /// Waits until the node serves. Returns `None` if this client must make no more requests here.
    fn enter(&self) -> Option<Inside> {
        loop {
            if self.posting.is_over.load(Ordering::Relaxed) || self.mount.shutdown.is_unmounted() {
                return None;
            }
            if let Ok(inside) = self.mount.enter() {
                if !self.mount.serves() {
                    let what = "gate: a request is let in, though the node does not serve";
                    self.witness.lock().wrong(what.to_owned());
                }
                return Some(inside);
            }
            world::wait(Wait::Until(self.mount.process.shared().now() + ENTER_POLL));
        }
    }

    fn answered(&self, call: CallId, outcome: Outcome) {
        let side = self.posting.side;
        let mut witness = self.witness.lock();
        match outcome {
            // The node gave its role away while the operation was under way: the outcome is unknown.
            Err(Errno::Io) if !self.mount.serves() => return witness.in_doubt(side),
            Err(errno) if leaves_doubt(errno) && !self.mount.serves() => return,
            Ok(_) => witness.acknowledged(side, self.mount.service.0.generation()),
            Err(_) => {}
        }
        witness.answer(side, self.id, call, outcome);
    }

    fn pause(&self) {
        let shared = self.mount.process.shared();
        let most = u64::try_from(self.pause_max.as_micros()).unwrap_or(u64::MAX);
        let pause = shared.with_random(|random| random.below(most.max(1)));
        world::wait(Wait::Until(shared.now() + Duration::from_micros(pause)));
    }
}

/// Requests a change from the secondary, as a misdirected client does. The secondary must never
/// acknowledge the change.
fn request_from_secondary(side: Side, datastore: &Arc<Datastore>, witness: Arc<Mutex<Witness>>) {
    let service = DatastoreHandle(Arc::clone(datastore));
    // Meanwhile the node may have become the primary.
    if serves(Arc::clone(datastore)) {
        return;
    }
    let Ok(_inside) = service.enter(RequestKind::Program) else {
        return;
    };
    let generation = datastore.generation();
    let change = MetaRequest::SetXattr {
        ino: Ino::ROOT,
        name: b"user.outsider".to_vec(),
        value: Vec::new(),
        mode: XattrMode::Any,
    };
    let done = move |outcome: Result<_, Errno>| {
        if outcome.is_ok() {
            witness.lock().acknowledged(side, generation);
        }
    };
    service.change(change, Box::new(done));
}

/// Starts the clients: all clients at each node that begins to serve, and one misdirected client at
/// each process of a secondary.
pub struct ClientPool {
    count: u32,
    pause_max: Duration,
    witness: Arc<Mutex<Witness>>,
    is_stopped: bool,
    /// Programs wait at nodes that do not serve.
    has_standby_programs: bool,
    /// The clients of the process that serves, if they are started.
    posting: Option<Posting>,
    /// Whether the misdirected client of each machine's present process is started.
    has_misdirected: [bool; 2],
}

impl ClientPool {
    /// Returns a pool of `count` clients, none of them started.
    pub fn new(count: u32, pause_max: Duration, witness: Arc<Mutex<Witness>>) -> Self {
        Self {
            count,
            pause_max,
            witness,
            is_stopped: false,
            has_standby_programs: false,
            posting: None,
            has_misdirected: [false; 2],
        }
    }

    /// Lets a program wait at each node that does not serve.
    pub const fn add_standby_programs(&mut self) {
        self.has_standby_programs = true;
    }

    /// Returns the number of clients.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Sets the number of clients that the next mount gets, and gives the present mount new clients.
    pub fn set_count(&mut self, count: u32) {
        self.count = count;
        self.end_posting();
    }

    /// Records that the process of a node has ended, and its clients with it.
    pub fn process_ended(&mut self, side: Side) {
        self.posting.take_if(|posting| posting.side == side);
        *side.of_mut(&mut self.has_misdirected) = false;
    }

    /// Lets each client end after its next answer.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.end_posting();
    }

    fn end_posting(&mut self) {
        if let Some(posting) = self.posting.take() {
            posting.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// Starts the clients of a node that has begun to serve since the last call. The clients of the
    /// other node end. Also starts the misdirected clients.
    pub fn start(&mut self, nodes: &Nodes) {
        let is_posted = |side| self.posting.as_ref().is_some_and(|it| it.side == side);
        let serving = nodes.serving().filter(|side| !is_posted(*side));
        if let Some(side) = serving.filter(|_| !self.is_stopped) {
            self.end_posting();
            let running = nodes.of(side).node.running();
            if let Some(mount) = running.as_deref().and_then(Mount::of) {
                self.start_clients(side, &mount);
            }
        }
        for side in Side::BOTH {
            if !side.of(&self.has_misdirected) {
                self.start_misdirected(nodes, side);
            }
        }
    }

    fn start_clients(&mut self, side: Side, mount: &Mount) {
        let is_over = Arc::default();
        let posting = Posting { side, is_over };
        for id in 0..self.count {
            let client = Client {
                id,
                mount: mount.clone(),
                witness: Arc::clone(&self.witness),
                pause_max: self.pause_max,
                posting: posting.clone(),
            };
            mount.process.start(move || client.run());
        }
        self.posting = Some(posting);
    }

    fn start_misdirected(&mut self, nodes: &Nodes, side: Side) {
        let running = nodes.of(side).node.running();
        if let Some(running) = running
            && let Some(datastore) = running.datastore()
            && datastore.state().is_secondary()
        {
            let witness = Arc::clone(&self.witness);
            running
                .process
                .start(move || request_from_secondary(side, &datastore, witness));
            if let Some(mount) = Mount::of(&running).filter(|_| self.has_standby_programs) {
                let witness = Arc::clone(&self.witness);
                running
                    .process
                    .start(move || standby_program::run(&mount, &witness));
            }
            *side.of_mut(&mut self.has_misdirected) = true;
        }
    }
}
