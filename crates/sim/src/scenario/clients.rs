//! The clients: programs that use the mount. They start and end with the primary's process.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_driver::client::{DirEntry, Done, FileService, WaitingRequests, WriteOptions};
use lockstep_driver::{Datastore, DatastoreHandle};
use lockstep_types::{Attr, Errno, Ino, MetaRequest, XattrMode};
use lockstep_verify::Report;
use parking_lot::Mutex;

use super::nodes::Nodes;
use super::witness::Witness;
use crate::history::{Answer, Entry, Outcome};
use crate::op::{Op, WriteOp};
use crate::workload::Source;
use crate::world::{self, Latch, Process, RunningNode, Shutdown, Side, Wait};

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

/// The mount of the primary, as a program sees it.
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

    /// Submits an operation, and waits for the answer.
    pub fn submit(&self, op: &Op) -> Outcome {
        if !matches!(op, Op::Write(_)) {
            self.call(DatastoreHandle::flush_deferred_writes);
        }
        match op {
            Op::Change(request) => self
                .wait_for(|service, done| service.change(request.clone(), done))
                .map(|attr| attr.map_or(Answer::Done, Answer::Attr)),
            Op::Write(write) => self.write(write),
            Op::Read {
                ino,
                offset,
                length,
            } => self.read(*ino, *offset, *length),
            Op::Sync { ino } => self
                .wait_for(|service, done| service.sync(*ino, done))
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

    /// Submits an operation, and waits until the service calls `done`.
    fn wait_for<T: Send + 'static>(
        &self,
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
        self.process.wait_for(answered, None);
        let answer = answer.lock().take();
        answer.unwrap_or_else(|| unreachable!("the latch is opened with the answer in place"))
    }

    fn write(&self, write: &WriteOp) -> Outcome {
        let options = WriteOptions {
            durable: write.durable,
            waiting: Some(&WaitingEstimate(write)),
            ..WriteOptions::default()
        };
        let data = write.bytes();
        let (ino, offset) = (write.ino, write.offset);
        let mut is_admitted = true;
        let written = self.wait_for(|service, done| {
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

    fn read(&self, ino: Ino, offset: u64, length: u64) -> Outcome {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let bytes = self.wait_for(|service, done: Done<Vec<u8>>| {
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

/// One client.
struct Client {
    id: u32,
    mount: Mount,
    /// Gives the requests, and records the answers.
    witness: Arc<Mutex<Witness>>,
    pause_max: Duration,
    /// The client must make no more requests.
    is_stopped: Arc<AtomicBool>,
}

impl Client {
    /// Works until the client has made all its requests, is stopped, or its process dies.
    fn run(&self) {
        let mut spare = None;
        loop {
            self.pause();
            if self.is_stopped.load(Ordering::Relaxed) || self.mount.shutdown.is_unmounted() {
                return;
            }
            let ino = match spare.map_or_else(|| self.mount.next_ino(), Ok) {
                Ok(ino) => ino,
                Err(errno) => return self.witness.lock().no_number(self.id, errno),
            };
            let request = self.witness.lock().next_request(self.id, ino);
            let Some((call, op)) = request else { return };
            spare = op.makes().is_none().then_some(ino);
            let outcome = world::serving(|| self.mount.submit(&op));
            // No client sees the answer of a dying process.
            self.mount.process.stop_if_dead();
            let mut witness = self.witness.lock();
            if outcome.is_ok() {
                let generation = self.mount.service.0.generation();
                witness.acknowledged(Side::Primary, generation);
            }
            witness.answer(self.id, call, outcome);
        }
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
fn request_from_secondary(datastore: &Arc<Datastore>, witness: Arc<Mutex<Witness>>) {
    let generation = datastore.generation();
    let change = MetaRequest::SetXattr {
        ino: Ino::ROOT,
        name: b"user.outsider".to_vec(),
        value: Vec::new(),
        mode: XattrMode::Any,
    };
    let done = move |outcome: Result<_, Errno>| {
        if outcome.is_ok() {
            witness.lock().acknowledged(Side::Secondary, generation);
        }
    };
    DatastoreHandle(Arc::clone(datastore)).change(change, Box::new(done));
}

/// Starts the clients: all clients at each new mount of the primary, and one misdirected client at
/// each new process of the secondary.
pub struct ClientPool {
    count: u32,
    pause_max: Duration,
    witness: Arc<Mutex<Witness>>,
    is_stopped: Arc<AtomicBool>,
    /// The clients of the present primary process are started.
    is_at_primary: bool,
    /// The misdirected client of the present secondary process is started.
    is_at_secondary: bool,
}

impl ClientPool {
    /// Returns a pool of `count` clients, none of them started.
    pub fn new(count: u32, pause_max: Duration, witness: Arc<Mutex<Witness>>) -> Self {
        Self {
            count,
            pause_max,
            witness,
            is_stopped: Arc::default(),
            is_at_primary: false,
            is_at_secondary: false,
        }
    }

    /// Returns the number of clients.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Sets the number of clients that the next mount gets, and gives the present mount new clients.
    pub const fn set_count(&mut self, count: u32) {
        self.count = count;
        self.is_at_primary = false;
    }

    /// Records that the process of a node has ended, and its clients with it.
    pub const fn process_ended(&mut self, side: Side) {
        match side {
            Side::Primary => self.is_at_primary = false,
            Side::Secondary => self.is_at_secondary = false,
        }
    }

    /// Lets each client end after its next answer.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Starts the clients of each process that has opened its datastore since the last call.
    pub fn start(&mut self, nodes: &Nodes) {
        if !self.is_at_primary && !self.is_stopped.load(Ordering::Relaxed) {
            let running = nodes.of(Side::Primary).node.running();
            if let Some(mount) = running.as_ref().and_then(Mount::of) {
                self.start_clients(&mount);
                self.is_at_primary = true;
            }
        }
        if !self.is_at_secondary {
            let running = nodes.of(Side::Secondary).node.running();
            if let Some(running) = running
                && let Some(datastore) = running.datastore()
            {
                let witness = Arc::clone(&self.witness);
                running
                    .process
                    .start(move || request_from_secondary(&datastore, witness));
                self.is_at_secondary = true;
            }
        }
    }

    fn start_clients(&self, mount: &Mount) {
        for id in 0..self.count {
            let client = Client {
                id,
                mount: mount.clone(),
                witness: Arc::clone(&self.witness),
                pause_max: self.pause_max,
                is_stopped: Arc::clone(&self.is_stopped),
            };
            mount.process.start(move || client.run());
        }
    }
}
