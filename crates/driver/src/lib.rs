//! One datastore on this node: the driver of the protocol core.
//!
//! The core decides, this room carries out: with the store, the connection and the clients that
//! wait. Every thread that brings an event (a request of the kernel, a frame of the peer, the end
//! of a disk flush, a tick) takes the core's lock for the moment of the decision and then carries
//! the effects out itself; so an operation is handed to another thread only where it would have to
//! wait.
//!
//! Rules of the threads:
//! - nobody waits for the peer to read but the threads that carry a resync or a comparison over (P19);
//! - the thread that reads from the peer never waits for the peer, for a disk flush or for a read from the
//!   disk: what might is deferred (to the courier what must stay in order, to the pool the rest);
//! - of the threads that serve clients some are never inside a change (`berths`), so that reads and lookups
//!   go on whatever the disk does;
//! - a thread that brings a write waits for room to keep its bytes, if at all, where it holds nothing (`door`);
//! - locks are taken in the order sequencer, core, works or link; none is held across a send but the
//!   sequencer, whose holder waits for nobody but this node's disk.

// Tests have threads of their own.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod berths;
mod calls;
mod clear;
pub mod client;
mod commit;
pub mod config;
mod copy;
mod dial;
mod door;
mod effects;
mod flight;
mod gather;
mod host;
mod kept;
mod load;
mod lockset;
mod maintenance;
mod marking;
pub mod memory;
mod owed;
mod poison;
mod primary;
mod references;
pub mod report;
mod role;
mod room;
mod secondary;
mod service;
mod stamp;
mod start;
mod status;
mod tables;
pub mod threads;
mod transfer;
mod waiting;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_fs::Store;
use lockstep_fs::poison::Poison;
use lockstep_fs::reserve::Reserve;
use lockstep_link::{LinkError, SendFrames};
use lockstep_paw_saw::{EntryHandle, InFlightEntry, InFlightTable};
use lockstep_repl::core::{ConnectionId, Core, Effect, Effects, Event, OpId};
use lockstep_repl::message::{Envelope, Message};
use lockstep_repl::state::State;
use lockstep_resync::Progress;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{DatastoreUuid, Generation, Osn, StateVersion};
use parking_lot::{Mutex, RwLock};

use crate::config::DatastoreConfig;
use berths::Berths;
use calls::Calls;
pub use clear::{ClearError, Cleared, Repair, clear_poison};
use commit::Committed;
pub use copy::doubts;
pub use dial::{Dial, Dialer, Halves};
use flight::Work;
use gather::Gathering;
use host::Turnstile;
pub use host::{Gate, Host, Job, KeptLimits, Machine, RoomLimits};
use kept::Keeper;
pub use kept::KeptLoad;
pub use load::Load;
use owed::Owed;
use references::References;
use role::RoleFile;
pub use role::RoleMarks;
use room::Rooms;
pub use secondary::refuse;
pub use service::Service;
pub use start::{DatastoreError, Place, Prepared, make_store, make_store_on_this_machine, prepare};
use status::Facts;
pub use tables::TableError;

/// One datastore on this node, open and running.
pub struct Datastore {
    config: DatastoreConfig,
    store: Store,
    core: Mutex<Core>,
    host: Arc<dyn Host>,
    /// What clients and peers wait for, by operation.
    works: Mutex<HashMap<OpId, Work>>,
    next_op: AtomicU64,
    /// Held while a metadata operation is numbered, validated, logged and sent, and while one is
    /// applied: this is what keeps them in one order (rule P2).
    sequencer: Mutex<()>,
    /// Metadata operations that the core has decided to apply and nobody has applied yet.
    committed: Mutex<BTreeMap<Osn, Option<OpId>>>,
    /// The one of them that this node could not apply: nothing after it is applied before the
    /// secondary is marked out of sync (rule P15).
    stuck: Mutex<Option<Committed>>,
    link: RwLock<Option<Link>>,
    /// Primary: writes that wait for the secondary.
    paw: InFlightTable,
    /// Primary: entries of writes that failed here and not there; kept until the secondary is marked
    /// out of sync (rule P6).
    failed: Mutex<Vec<EntryHandle>>,
    /// Secondary: writes that wait for the primary.
    saw: InFlightTable,
    first_osn: Osn,
    references: References,
    /// For threads of clients that may be inside a change at once.
    berths: Berths,
    calls: Calls,
    /// Primary: the resync that waits to send the end of the namespace.
    tail: Mutex<transfer::Tail>,
    /// Secondary: answers to come.
    owed: Owed,
    role: RoleFile,
    /// Whether the disk of the store has failed.
    poison: Arc<Poison>,
    facts: Mutex<Facts>,
    /// Space of the disk that is kept back.
    reserve: Arc<Reserve>,
    /// Room on both disks.
    rooms: Arc<Rooms>,
    /// How far a resync is.
    resync: Progress,
    /// Counts changes of state.
    state_version: AtomicU64,
    /// Held by the thread that serves the one connection a secondary has.
    serving: Turnstile,
    stopping: AtomicBool,
    /// Keeps the bytes of writes that wait.
    keeper: Arc<Keeper>,
    /// Garbage is being removed, or a checkpoint made.
    keeping_up: AtomicBool,
    /// When maintenance went on last, in milliseconds of the host's clock.
    ticked_ms: AtomicU64,
}

/// A standing connection with the peer.
#[derive(Clone)]
struct Link {
    sender: Arc<dyn SendFrames>,
    id: ConnectionId,
    /// What the peer said it waits for when it connected (its SAW entries).
    peer_waiting: Arc<Vec<InFlightEntry>>,
    course: Arc<Course>,
}

/// What became of a connection.
#[derive(Default)]
struct Course {
    /// Set when this node ends it itself.
    given_up: AtomicBool,
    /// Set when the nodes are in sync over it.
    in_sync: AtomicBool,
    /// Primary: writes that go together.
    gathering: Gathering,
    /// Primary: the secondary has not answered the last `Ping` yet.
    pinged: AtomicBool,
}

impl Link {
    fn new(
        sender: Arc<dyn SendFrames>,
        id: ConnectionId,
        peer_waiting: Vec<InFlightEntry>,
    ) -> Self {
        Self {
            sender,
            id,
            peer_waiting: Arc::new(peer_waiting),
            course: Arc::default(),
        }
    }

    /// Ends the connection because of something else than the connection.
    fn give_up(&self, reason: &str) {
        self.course.given_up.store(true, Ordering::Release);
        self.sender.shutdown(reason);
    }
}

/// On what kind of thread effects are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// One that may wait for a disk flush.
    MayWait,
    /// One that serves clients: it may wait for a disk flush where it finds a berth.
    Client,
    /// The one that reads from the peer: it waits for nothing.
    Reader,
}

impl Datastore {
    /// Name of the datastore.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// How it is configured.
    pub const fn config(&self) -> &DatastoreConfig {
        &self.config
    }

    /// What it holds on this node: for those who check it from outside. Whoever changes it behind
    /// the protocol makes the nodes differ.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// What the core says of itself.
    pub fn state(&self) -> State {
        self.core.lock().state()
    }

    /// Which datastore it is.
    pub const fn uuid(&self) -> DatastoreUuid {
        self.store.uuid()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.host.now().as_millis()).unwrap_or(u64::MAX)
    }

    fn next_op(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.next_op().0)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Lets the core decide on an event. Writes that are over become visible before anyone else
    /// can get their locks.
    fn decide(&self, event: Event) -> Effects {
        self.decide_with(&mut self.core.lock(), event)
    }

    /// The same for who holds the core's lock already.
    fn decide_with(&self, core: &mut Core, event: Event) -> Effects {
        let mut effects = Effects::new();
        core.handle(self.now_ms(), event, &mut effects);
        self.publish(&effects);
        effects
    }

    /// Makes size and times of finished writes visible, and notes what is to be applied. Called
    /// under the core's lock.
    fn publish(&self, effects: &Effects) {
        for effect in effects {
            match effect {
                Effect::Finish { op, result: Ok(()) } => {
                    if let Some(Work::Write(write)) = self.works.lock().get_mut(op) {
                        write.publish(&self.store);
                    }
                }
                Effect::Commit { osn, op } => {
                    self.committed.lock().insert(*osn, *op);
                }
                _ => {}
            }
        }
    }

    /// Takes in an event and carries out what follows, on this thread as far as it may.
    fn drive(self: &Arc<Self>, thread: Thread, event: Event) {
        let effects = self.decide(event);
        self.carry_out_all(thread, effects, None);
    }

    /// The same, if a connection still stands: late news of an old one is dropped (P9). Its loss is
    /// known here before the core hears of it, so no news can slip in behind that.
    fn drive_over(self: &Arc<Self>, connection: ConnectionId, event: Event) {
        let effects = {
            let mut core = self.core.lock();
            if self.link_of(connection).is_none() {
                return;
            }
            self.decide_with(&mut core, event)
        };
        self.carry_out_all(Thread::MayWait, effects, None);
    }

    /// A connection, if it still stands.
    fn link_of(&self, connection: ConnectionId) -> Option<Link> {
        let link = self.link.read();
        link.as_ref().filter(|link| link.id == connection).cloned()
    }

    /// Counts changes of state.
    fn state_version(&self) -> StateVersion {
        StateVersion(self.state_version.load(Ordering::Acquire))
    }

    /// In which generation it was opened: that of every number it gives out and every message it sends.
    pub fn generation(&self) -> Generation {
        self.first_osn.generation
    }

    /// Sends a message if there is a connection. A failure shows in the reader of the same
    /// connection, which knows what to do.
    fn send(&self, message: Message, payload: &[u8]) {
        let link = self.link.read().clone();
        if let Some(link) = link {
            self.send_over(link.id, message, payload);
        }
    }

    /// Sends a message if a connection still stands, and waits for nobody (rule P19).
    fn send_over(&self, connection: ConnectionId, message: Message, payload: &[u8]) {
        let Some(link) = self.link_of(connection) else {
            return;
        };
        let done_below = self.core.lock().send(&message);
        let sender = &*link.sender;
        let post = |header: &[u8]| {
            if is_active(Mutant::WaitToSend) {
                return sender.send(header, payload);
            }
            sender.post(header, payload)
        };
        self.give_to(sender, done_below, message, post);
    }

    /// Sends on one connection, and waits while the peer does not read; a failure closes it. Returns whether
    /// it was sent.
    fn send_on(
        &self,
        sender: &dyn SendFrames,
        done_below: Osn,
        message: Message,
        payload: &[u8],
    ) -> bool {
        let give = |header: &[u8]| sender.send(header, payload);
        self.give_to(sender, done_below, message, give)
    }

    /// Gives a message to a connection in some way; a failure closes it. Returns whether it was given.
    fn give_to(
        &self,
        sender: &dyn SendFrames,
        done_below: Osn,
        message: Message,
        give: impl FnOnce(&[u8]) -> Result<(), LinkError>,
    ) -> bool {
        let given = match self.envelope(done_below, message).encode() {
            Ok(header) => give(&header).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = &given {
            tracing::debug!(datastore = self.name(), error, "send failed");
            sender.shutdown(error);
        }
        given.is_ok()
    }

    fn envelope(&self, done_below: Osn, message: Message) -> Envelope {
        Envelope {
            datastore: self.store.uuid(),
            generation: self.generation(),
            done_below,
            message,
        }
    }

    fn drop_link(&self, reason: &str) {
        if let Some(link) = self.link.write().take() {
            link.give_up(reason);
        }
    }
}
