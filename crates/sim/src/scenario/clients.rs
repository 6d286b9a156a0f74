//! The clients: programs that use the mount of the node that serves. They end with its process, or
//! when the other node begins to serve.

pub mod late_program;
pub mod mount;
pub mod standby_program;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_driver::client::{FileService, Inside, RequestKind, Tenure};
use lockstep_driver::{Datastore, DatastoreHandle};
use lockstep_types::{Errno, Generation, Ino, MetaRequest, XattrMode};
use parking_lot::Mutex;

use super::nodes::Nodes;
use super::nodes::sim_node::serves;
use super::recording::history_recorder::HistoryRecorder;
use crate::history::{CallId, Outcome, leaves_doubt};
use crate::op::Op;
use crate::random::Random;
use crate::workload::{Generator, Options, Source};
use crate::world::{self, Side, Wait};
use late_program::LateRequest;
use mount::Mount;

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
    /// Returns clients with random requests.
    pub fn random(options: Options, pause_max: Duration, random: Random) -> Self {
        Self {
            clients: options.clients,
            pause_max,
            source: Box::new(Generator::new(options, random)),
        }
    }

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
    recorder: Arc<Mutex<HistoryRecorder>>,
    pause_max: Duration,
    posting: Posting,
    /// No request without a program begins any more. `None`: no program is killed.
    late_is_over: Option<Arc<AtomicBool>>,
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
                    self.mount.process().stop_if_dead();
                    let mut recorder = self.recorder.lock();
                    return recorder.no_number(self.posting.side, self.id, errno);
                }
            };
            let side = self.posting.side;
            let request = self.recorder.lock().next_request(side, self.id, ino);
            let Some((call, op)) = request else { return };
            spare = op.makes().is_none().then_some(ino);
            if let Some(is_over) = &self.late_is_over
                && late_program::is_drawn(&self.mount, &op)
            {
                self.leave(call, op, inside.tenure(), is_over);
                continue;
            }
            let generation = self.mount.service().0.generation();
            let asked = inside.tenure();
            let mount = self.mount.within(asked);
            let outcome = world::serving(|| mount.submit_inside(&op, inside));
            // No client sees the answer of a dying process.
            self.mount.process().stop_if_dead();
            self.answered(call, (generation, asked), outcome);
        }
    }

    /// Waits until the node serves. Returns `None` if this client must make no more requests here.
    fn enter(&self) -> Option<Inside> {
        loop {
            if self.posting.is_over.load(Ordering::Relaxed) || self.mount.is_unmounted() {
                return None;
            }
            if let Ok(inside) = self.mount.enter() {
                if !self.mount.serves() {
                    let what = "gate: a request is let in, though the node does not serve";
                    self.recorder.lock().wrong(what.to_owned());
                }
                return Some(inside);
            }
            world::wait(Wait::Until(
                self.mount.process().shared().now() + ENTER_POLL,
            ));
        }
    }

    /// Leaves a request behind, as a program that is killed does.
    fn leave(&self, call: CallId, op: Op, asked: Tenure, is_over: &Arc<AtomicBool>) {
        let late = LateRequest {
            mount: self.mount.clone(),
            recorder: Arc::clone(&self.recorder),
            side: self.posting.side,
            call,
            op,
            asked,
            stands_still: None,
            is_over: Arc::clone(is_over),
        };
        late.start();
    }

    /// Records the answer to a call that began in a generation and a tenure. An operator who forces a node to lead ends the tenure,
    /// and not the generation.
    fn answered(&self, call: CallId, begun: (Generation, Tenure), outcome: Outcome) {
        let (generation, asked) = begun;
        let side = self.posting.side;
        let present = self.mount.service().0.generation();
        let serves = self.mount.serves();
        let is_overtaken = !asked.may_run_in(self.mount.service().tenure());
        let has_changed = generation != present || is_overtaken || !serves;
        // A node that has given its role away since has answered before: the role waits for the answers, not for the clients.
        let answered_in = if serves { present } else { generation };
        let has_disk_failed = self.mount.service().0.store().is_poisoned();
        let mut recorder = self.recorder.lock();
        match outcome {
            // The node gave its role away while the operation was under way: the outcome is unknown.
            Err(Errno::Io) if has_changed => return recorder.in_doubt(side),
            Err(errno) if leaves_doubt(errno) && has_changed => return,
            Ok(_) => recorder.acknowledged(side, answered_in, call),
            Err(_) => {}
        }
        recorder.answer(side, self.id, call, outcome);
        if has_disk_failed {
            recorder.answered_by_failed_disk(side, call);
        }
    }

    fn pause(&self) {
        let shared = self.mount.process().shared();
        let most = u64::try_from(self.pause_max.as_micros()).unwrap_or(u64::MAX);
        let pause = shared.with_random(|random| random.below(most.max(1)));
        world::wait(Wait::Until(shared.now() + Duration::from_micros(pause)));
    }
}

/// Requests a change from the secondary, as a misdirected client does. The secondary must never
/// acknowledge the change.
fn request_from_secondary(
    side: Side,
    datastore: &Arc<Datastore>,
    recorder: Arc<Mutex<HistoryRecorder>>,
) {
    let service = DatastoreHandle::new(Arc::clone(datastore));
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
            recorder.lock().acknowledged_misdirected(side, generation);
        }
    };
    service.change(change, Box::new(done));
}

/// Starts the clients: all clients at each node that begins to serve, and one misdirected client at
/// each process of a secondary.
pub struct ClientPool {
    count: u32,
    pause_max: Duration,
    recorder: Arc<Mutex<HistoryRecorder>>,
    is_stopped: bool,
    /// Programs wait at nodes that do not serve.
    has_standby_programs: bool,
    late_is_over: Option<Arc<AtomicBool>>,
    /// The clients of the process that serves, if they are started.
    posting: Option<Posting>,
    /// Whether the misdirected client of each machine's present process is started.
    has_misdirected: [bool; 2],
}

impl ClientPool {
    /// Returns a pool of `count` clients, none of them started.
    pub fn new(count: u32, pause_max: Duration, recorder: Arc<Mutex<HistoryRecorder>>) -> Self {
        Self {
            count,
            pause_max,
            recorder,
            is_stopped: false,
            has_standby_programs: false,
            late_is_over: None,
            posting: None,
            has_misdirected: [false; 2],
        }
    }

    /// Lets a program wait at each node that does not serve.
    pub const fn add_standby_programs(&mut self) {
        self.has_standby_programs = true;
    }

    /// Kills some programs while their requests wait.
    pub fn add_killed_programs(&mut self) {
        self.late_is_over = Some(Arc::default());
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
        if let Some(is_over) = &self.late_is_over {
            is_over.store(true, Ordering::Relaxed);
        }
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
                recorder: Arc::clone(&self.recorder),
                pause_max: self.pause_max,
                posting: posting.clone(),
                late_is_over: self.late_is_over.clone(),
            };
            mount.process().start(move || client.run());
        }
        self.posting = Some(posting);
    }

    fn start_misdirected(&mut self, nodes: &Nodes, side: Side) {
        let running = nodes.of(side).node.running();
        if let Some(running) = running
            && let Some(datastore) = running.datastore()
            && datastore.state().is_secondary()
        {
            let recorder = Arc::clone(&self.recorder);
            running
                .process
                .start(move || request_from_secondary(side, &datastore, recorder));
            if let Some(mount) = Mount::of(&running).filter(|_| self.has_standby_programs) {
                let recorder = Arc::clone(&self.recorder);
                running
                    .process
                    .start(move || standby_program::run(&mount, &recorder));
            }
            *side.of_mut(&mut self.has_misdirected) = true;
        }
    }
}
