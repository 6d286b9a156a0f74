//! One node of the world: its disk, its configuration, and the process that lives on it, if any.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::config::DatastoreConfig;
use lockstep_driver::{Datastore, Dial, DialError, Halves, Place, Prepared, make_store, prepare};
use lockstep_repl::message::{Envelope, Message};
use lockstep_types::BootId;
use lockstep_types::backing::Backing;
use lockstep_types::settings::Role;
use parking_lot::Mutex;

use super::fibers::{self, Wait};
use super::leaving::{Leaving, leave};
use super::network::{End, Network};
use super::process::{Inside, Process, ProcessId, Shared};
use super::runtime::Runtime;

/// How long a dial takes that nobody answers.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a dial takes that is answered.
const DIAL: Duration = Duration::from_millis(1);

/// What lives on a node: a process, and what it has opened so far.
#[derive(Clone)]
pub struct Life {
    /// The process.
    pub process: Arc<Process>,
    /// The datastore, once it is open.
    pub datastore: Arc<Mutex<Option<Arc<Datastore>>>>,
    /// Why the process has given up, if it has.
    pub refused: Arc<Mutex<Option<String>>>,
    /// How far it is with a stop in order.
    pub leaving: Arc<Leaving>,
}

impl Life {
    /// The datastore, if it is open.
    pub fn datastore(&self) -> Option<Arc<Datastore>> {
        self.datastore.lock().clone()
    }
}

/// The life of a node at this moment; shared by the world and by who dials.
pub type Living = Arc<Mutex<Option<Life>>>;

/// One node.
pub struct Node {
    config: DatastoreConfig,
    living: Living,
    runtime: Runtime,
}

impl Node {
    /// A node on which nothing lives yet.
    pub fn new(config: DatastoreConfig) -> Self {
        Self {
            config,
            living: Living::default(),
            runtime: Runtime::default(),
        }
    }

    /// How it is configured.
    pub const fn config(&self) -> &DatastoreConfig {
        &self.config
    }

    /// What its machine keeps outside of its disk.
    pub const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// What lives on it.
    pub fn life(&self) -> Option<Life> {
        self.living.lock().clone()
    }

    /// For those who dial it.
    pub fn living(&self) -> Living {
        Arc::clone(&self.living)
    }

    /// Starts a process on `backing`, in the run `boot` of its machine. `peer` is the node it dials,
    /// if it is the primary.
    pub fn start(
        &self,
        process: &Arc<Process>,
        backing: Arc<dyn Backing>,
        boot: BootId,
        network: &Arc<Network>,
        peer: Living,
    ) {
        let life = Life {
            process: Arc::clone(process),
            datastore: Arc::default(),
            refused: Arc::default(),
            leaving: Arc::default(),
        };
        *self.living.lock() = Some(life.clone());
        let place = Place {
            backing,
            boot,
            host: Arc::new(Inside(Arc::clone(process))),
            stamp: Some(self.runtime.of(Some(process))),
        };
        let dialer = Dialer {
            process: Arc::clone(process),
            network: Arc::clone(network),
            peer,
        };
        let config = self.config.clone();
        process.start(move || run(config, place, &life, dialer));
    }

    /// Asks the process that lives on it to stop in order, as SIGTERM does.
    pub fn stop_in_order(&self) {
        if let Some(life) = self.life().filter(|life| life.leaving.ask()) {
            let process = Arc::clone(&life.process);
            process.start(move || leave(&life));
        }
    }

    /// Nothing lives on it any more.
    pub fn forget(&self) {
        *self.living.lock() = None;
    }
}

/// What a node process does when it starts. The operator of this world makes the store first where there
/// is none, so that a creation may be interrupted at any instruction, too.
fn run(config: DatastoreConfig, place: Place, life: &Life, dialer: Dialer) {
    let opened = make_store(&config, &place.backing, place.stamp.clone())
        .and_then(|_made| prepare(config, place))
        .and_then(Prepared::open);
    let datastore = match opened {
        Ok(datastore) => datastore,
        Err(error) => {
            *life.refused.lock() = Some(error.to_string());
            return;
        }
    };
    let process = &life.process;
    process.end_if_dead();
    let maintained = Arc::clone(&datastore);
    life.leaving
        .start(process, move || maintained.run_maintenance());
    if datastore.config().role == Role::Primary {
        datastore.reap_orphans();
        let leading = Arc::clone(&datastore);
        life.leaving
            .start(process, move || leading.run_dialer(&dialer));
    }
    *life.datastore.lock() = Some(datastore);
}

/// How the primary of the world reaches its peer.
struct Dialer {
    process: Arc<Process>,
    network: Arc<Network>,
    peer: Living,
}

impl Dialer {
    fn rest(&self, time: Duration) {
        fibers::wait(Wait::Until(self.process.shared().now() + time));
    }
}

impl Dial for Dialer {
    fn dial(&self) -> Result<Halves, DialError> {
        self.rest(DIAL);
        if !self.network.is_whole() {
            self.rest(DIAL_TIMEOUT);
            return Err(io::Error::other("the peer does not answer").into());
        }
        let peer = self.peer.lock().clone();
        let listening = peer.and_then(|life| Some((life.datastore()?, life.process)));
        let Some((datastore, process)) = listening else {
            return Err(io::Error::other("no node listens").into());
        };
        let [ours, theirs] = self.network.connect(&self.process, &process);
        process.start(move || answer(&datastore, &theirs));
        Ok((ours.sender(), ours.receiver()))
    }
}

/// What the listening node does with a connection.
fn answer(datastore: &Arc<Datastore>, end: &End) {
    let mut receiver = end.receiver();
    let _unlimited = receiver.set_timeout(Some(DIAL_TIMEOUT * 4));
    let Ok(frame) = receiver.recv() else { return };
    let Ok(envelope) = Envelope::decode(frame.header) else {
        return;
    };
    match &envelope.message {
        Message::Hello(hello) => datastore.serve_primary(&end.sender(), receiver, hello, &envelope),
        Message::Poisoned { reason } => datastore.note_peer_poisoned(reason),
        _ => {}
    }
}

/// The next process of a world.
#[derive(Default)]
pub struct Births(u64);

impl Births {
    /// Makes a process.
    pub fn next(&mut self, shared: &Arc<Shared>) -> Arc<Process> {
        self.0 += 1;
        Process::new(ProcessId(self.0), Arc::clone(shared))
    }
}
