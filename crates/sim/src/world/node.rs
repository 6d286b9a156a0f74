//! One node of the world: its configuration, its `/run`, and the process that runs on it, if any.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::client::{FileService as _, LeaseBoard};
use lockstep_driver::config::{DatastoreConfig, DiskStallLimit};
use lockstep_driver::{
    Datastore, DatastoreHandle, Dial, DialError, Halves, Place, Prepared, make_store, prepare,
};
use lockstep_repl::message::Envelope;
use lockstep_types::BootId;
use lockstep_types::backing::Backing;
use lockstep_types::settings::Role;
use parking_lot::Mutex;

use super::fibers::{self, ThreadRole, Wait};
use super::kernel_caches::KernelCaches;
use super::network::{Endpoint, Network};
use super::process::{Process, ProcessHost};
use super::run_dir::RunDir;
use super::shutdown::Shutdown;
use super::side::Side;
use super::witness::{SimWitness, SimWitnessClient};

/// The duration of a dial that is not answered.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// The duration of a dial that is answered.
const DIAL: Duration = Duration::from_millis(1);

/// A process that runs on a node, with the datastore that the process has opened.
pub struct RunningNode {
    /// The process.
    pub process: Arc<Process>,
    /// The datastore, once the process has opened it.
    datastore: Mutex<Option<Arc<Datastore>>>,
    /// The reason why the process refused to start, if it refused.
    refusal: Mutex<Option<String>>,
    /// The progress of the process's clean shutdown.
    pub shutdown: Arc<Shutdown>,
}

impl RunningNode {
    fn new(process: &Arc<Process>) -> Self {
        Self {
            process: Arc::clone(process),
            datastore: Mutex::default(),
            refusal: Mutex::default(),
            shutdown: Arc::default(),
        }
    }

    /// Returns the datastore, if it is open.
    pub fn datastore(&self) -> Option<Arc<Datastore>> {
        self.datastore.lock().clone()
    }

    /// Returns the reason why the process refused to start, if it refused.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().clone()
    }
}

/// The present process of a node. The node shares it with the dialer of its peer.
pub type RunningSlot = Arc<Mutex<Option<Arc<RunningNode>>>>;

/// What a process reaches from its machine.
pub struct Surroundings {
    /// The network between the nodes.
    pub network: Arc<Network>,
    /// The witness.
    pub witness: Arc<SimWitness>,
    /// The node that the process dials.
    pub peer: RunningSlot,
}

/// One node.
pub struct Node {
    side: Side,
    config: DatastoreConfig,
    running: RunningSlot,
    run_dir: RunDir,
    kernel_caches: KernelCaches,
}

impl Node {
    /// Returns a node without a process.
    pub fn new(side: Side, config: DatastoreConfig) -> Self {
        Self {
            side,
            config,
            running: RunningSlot::default(),
            run_dir: RunDir::default(),
            kernel_caches: KernelCaches::default(),
        }
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &DatastoreConfig {
        &self.config
    }

    /// Sets the role with which a new store begins.
    pub const fn set_role(&mut self, role: Role) {
        self.config.role = role;
    }

    /// Lets later processes watch their disk.
    pub const fn watch_disk(&mut self, limit: Duration) {
        self.config.policies.disk_stall_limit = DiskStallLimit::new(Some(limit));
    }

    /// Returns the `/run` of the node's machine.
    pub const fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    /// Returns the caches of the kernel of the node's machine.
    pub const fn kernel_caches(&self) -> &KernelCaches {
        &self.kernel_caches
    }

    /// Returns the present process, if any.
    pub fn running(&self) -> Option<Arc<RunningNode>> {
        self.running.lock().clone()
    }

    /// Returns the slot through which a peer dials this node.
    pub fn slot(&self) -> RunningSlot {
        Arc::clone(&self.running)
    }

    /// Starts a process on `backing`, in the run `boot` of the machine.
    pub fn start(
        &self,
        process: &Arc<Process>,
        backing: Arc<dyn Backing>,
        boot: BootId,
        surroundings: Surroundings,
    ) {
        let running = Arc::new(RunningNode::new(process));
        *self.running.lock() = Some(Arc::clone(&running));
        let place = Place {
            backing,
            boot,
            host: Arc::new(ProcessHost(Arc::clone(process))),
            stamp: Some(self.run_dir.handle(Some(process))),
            machine_count: Some(self.run_dir.count_table(process)),
        };
        let dialer = Dialer {
            side: self.side,
            process: Arc::clone(process),
            network: surroundings.network,
            peer: surroundings.peer,
        };
        let witness = SimWitnessClient::new(self.side, Arc::clone(process), surroundings.witness);
        let board = self.kernel_caches.board(process);
        let config = self.config.clone();
        process.start(move || run(config, place, &running, dialer, witness, board));
    }

    /// Requests a clean shutdown of the present process, as SIGTERM does.
    pub fn request_shutdown(&self) {
        if let Some(running) = self.running().filter(|running| running.shutdown.request()) {
            let process = Arc::clone(&running.process);
            process.start(move || {
                let opened = || running.datastore();
                running.shutdown.run(&running.process, opened);
            });
        }
    }

    /// Records that the node has no process any more.
    pub fn clear_running(&self) {
        *self.running.lock() = None;
    }
}

/// Runs the start of a node's process. An operator of the simulated world first creates the store if
/// there is none. So a crash may also interrupt the creation, at any call.
fn run(
    config: DatastoreConfig,
    place: Place,
    running: &RunningNode,
    dialer: Dialer,
    witness: SimWitnessClient,
    board: Arc<dyn LeaseBoard>,
) {
    let opened = make_store(&config, &place.backing, place.stamp.clone())
        .and_then(|_made| prepare(config, place))
        .and_then(Prepared::open);
    let datastore = match opened {
        Ok(datastore) => datastore,
        Err(error) => {
            *running.refusal.lock() = Some(error.to_string());
            return;
        }
    };
    let process = &running.process;
    process.stop_if_dead();
    let maintained = Arc::clone(&datastore);
    running
        .shutdown
        .start(process, move || maintained.run_maintenance());
    datastore.reap_orphans();
    let dialing = Arc::clone(&datastore);
    running
        .shutdown
        .start(process, move || dialing.role().run_dialer(&dialer));
    if datastore
        .config()
        .current()
        .policies
        .disk_stall_limit
        .get()
        .is_some()
    {
        let watched = Arc::clone(&datastore);
        running
            .shutdown
            .start(process, move || watched.role().watch_disk());
    }
    if datastore.config().current().failover_after.is_some() {
        let asking = Arc::clone(&datastore);
        running.shutdown.start(process, move || {
            fibers::set_thread_role(ThreadRole::Asking);
            let me = witness.me();
            let asking = DatastoreHandle::new(asking);
            asking.show_lease(board);
            asking.0.role().ask_witness(Arc::new(witness), me);
        });
    }
    *running.datastore.lock() = Some(datastore);
}

/// The simulated dialer of a node.
struct Dialer {
    side: Side,
    process: Arc<Process>,
    network: Arc<Network>,
    peer: RunningSlot,
}

impl Dialer {
    fn pause(&self, time: Duration) {
        fibers::wait(Wait::Until(self.process.shared().now() + time));
    }
}

impl Dial for Dialer {
    fn dial(&self) -> Result<Halves, DialError> {
        fibers::set_thread_role(ThreadRole::Dialing);
        self.pause(DIAL);
        if !self.network.can_connect() {
            self.pause(DIAL_TIMEOUT);
            return Err(io::Error::other("the peer does not answer").into());
        }
        let peer = self.peer.lock().clone();
        let listening =
            peer.and_then(|running| Some((running.datastore()?, Arc::clone(&running.process))));
        let Some((datastore, process)) = listening else {
            return Err(io::Error::other("the peer does not listen").into());
        };
        let [ours, theirs] = self.network.connect(self.side, &self.process, &process);
        process.start(move || accept(&datastore, &theirs));
        Ok((ours.sender(), ours.receiver()))
    }
}

/// Serves a connection on the listening node.
fn accept(datastore: &Arc<Datastore>, endpoint: &Endpoint) {
    fibers::set_thread_role(ThreadRole::Meeting);
    let mut receiver = endpoint.receiver();
    let _unlimited = receiver.set_timeout(Some(DIAL_TIMEOUT * 4));
    let Ok(frame) = receiver.recv() else { return };
    let Ok(envelope) = Envelope::decode(frame.header) else {
        return;
    };
    datastore
        .role()
        .serve_peer(&endpoint.sender(), receiver, &envelope);
}
