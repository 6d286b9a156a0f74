//! One datastore on this node, open and running: the façade over its engine and its session.

pub(crate) mod arbitration;
mod change;
mod dialing;
mod forced_word;
pub(crate) mod lapse;
mod leaving;
mod meeting;
mod named_calls;
mod promotion;
pub(crate) mod stall;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockstep_fs::Store;
use lockstep_repl::state::State;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{DatastoreUuid, Errno, Generation};
use parking_lot::{Mutex, RwLock};

use self::forced_word::WitnessLine;
use crate::client::{RoleObserver, Standing};
use crate::config::DatastoreConfig;
use crate::durable::{DatastoreError, failed, refused, tables};
use crate::engine::Engine;
use crate::host::exclusive::Exclusive;
use crate::maintenance::Maintenance;
use crate::report::{CommandFailure, DatastoreStatus, VerifyProgress, VerifyReport};
use crate::resync_jobs::verify_report;
use crate::service_gate::ServiceGate;
use crate::session::Session;
use crate::session::build::{self, SessionPart};
use crate::session::primary::PrimarySession;
use crate::status;
use crate::usage::DatastoreUsage;

/// See the head of this file.
pub struct Datastore {
    engine: Arc<Engine>,
    /// The session of the present role.
    session: RwLock<Session>,
    /// Held by the thread that changes the role.
    changing: Exclusive,
    /// The latest generation that the other node has told of.
    rival: AtomicU64,
    observers: Mutex<Vec<Arc<dyn RoleObserver>>>,
    maintenance: Maintenance,
    /// The witness, once this node asks it.
    line: OnceLock<WitnessLine>,
}

impl Datastore {
    /// A datastore with an open store. A primary whose disk has failed has a session, and serves reads only if its
    /// `part` says so.
    pub(crate) fn new(engine: Arc<Engine>, session: Session, part: SessionPart) -> Self {
        let maintenance = Maintenance::new(engine.now_ms());
        let record = engine.role_file.state().record;
        let standing = match &session {
            Session::Primary(_) if part == SessionPart::Lead => Standing::Serving,
            _ if record.is_primary() => Standing::Undecided,
            _ => Standing::Following,
        };
        engine
            .gate
            .need_lease(&*engine.host, build::needs_lease(&engine));
        engine.gate.begin(&*engine.host, standing);
        Self {
            engine,
            session: RwLock::new(session),
            changing: Exclusive::default(),
            rival: AtomicU64::new(0),
            observers: Mutex::default(),
            maintenance,
            line: OnceLock::new(),
        }
    }

    /// Name of the datastore.
    pub fn name(&self) -> &str {
        self.engine.name()
    }

    /// Configuration of the datastore.
    pub fn config(&self) -> &DatastoreConfig {
        &self.engine.config
    }

    /// The store of this node, for checks from outside. A change behind the protocol makes the nodes differ.
    pub fn store(&self) -> &Store {
        &self.engine.store
    }

    /// Identity of the datastore.
    pub fn uuid(&self) -> DatastoreUuid {
        self.engine.store.uuid()
    }

    /// State of the datastore on this node.
    pub fn state(&self) -> State {
        self.session().replication().state()
    }

    /// Generation of all numbers and messages.
    pub fn generation(&self) -> Generation {
        self.engine.role_file.state().record.generation
    }

    /// The session of the present role.
    pub(crate) fn session(&self) -> Session {
        self.session.read().clone()
    }

    /// The gate for the requests of clients.
    pub(crate) fn gate(&self) -> &Arc<ServiceGate> {
        &self.engine.gate
    }

    /// Has an observer learn of the changes of the role, from now on.
    pub(crate) fn observe(&self, observer: Arc<dyn RoleObserver>) {
        self.observers.lock().push(observer);
    }

    /// The session of a primary.
    ///
    /// # Errors
    /// [`Engine::unknown_outcome`] on a secondary, which serves no clients.
    pub(crate) fn primary(&self) -> Result<Arc<PrimarySession>, Errno> {
        match &*self.session.read() {
            Session::Primary(session) => Ok(Arc::clone(session)),
            Session::Secondary(_) => Err(self.engine.unknown_outcome()),
        }
    }

    /// Notes a generation of the other node.
    fn note_rival(&self, generation: Generation) {
        self.rival.fetch_max(generation.get(), Ordering::AcqRel);
    }

    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Status for an operator.
    pub fn status(&self) -> DatastoreStatus {
        status::of(&self.engine, &self.session())
    }

    /// The numbers of this moment.
    pub fn usage(&self) -> DatastoreUsage {
        DatastoreUsage::of(&self.engine, &self.session())
    }

    /// Runs periodic work until the datastore is stopped.
    pub fn run_maintenance(&self) {
        self.maintenance.run(&self.engine, &|| self.session());
    }

    /// Time since periodic work ran last.
    pub fn since_tick(&self) -> Duration {
        self.maintenance.since_tick(&self.engine)
    }

    /// The authenticated peer was refused before it named this datastore.
    pub fn note_refused_peer(&self, reason: &str) {
        if self.waits_for_primary() {
            self.engine.notes.set_obstacle(reason);
        }
    }

    /// A client was refused before it was authenticated. It may be the primary. So `status` shows the reason beside a known
    /// reason, and never in its place. `reason` must hold no word of the client.
    pub fn note_unauthenticated(&self, reason: &str) {
        if self.waits_for_primary() {
            self.engine.notes.set_unauthenticated(reason);
        }
    }

    fn waits_for_primary(&self) -> bool {
        match self.session() {
            Session::Primary(_) => false,
            Session::Secondary(session) => session.waits_for_primary(),
        }
    }

    /// Frees the inodes that lost their last name before this node serves, unless a program of this node has them open.
    /// On a node that does not serve yet, nothing happens.
    pub fn reap_orphans(&self) {
        if let Session::Primary(session) = self.session() {
            let reaper = Arc::clone(&session);
            session.replication.spawn(move || reaper.reap_orphans());
        }
    }

    /// Compares this node with its peer, and remembers the result for `status`.
    ///
    /// # Errors
    /// If the nodes cannot be compared now.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure> {
        let report = self.compare(progress)?;
        let time = self.engine.host.time_of_day();
        self.engine.notes.note_comparison(&report, time);
        Ok(verify_report(report))
    }

    /// Compares this node with its peer, and remembers nothing.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn compare(
        &self,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<lockstep_verify::Report, CommandFailure> {
        match self.session() {
            Session::Primary(session) => session.jobs.compare(progress),
            Session::Secondary(_) => Err(CommandFailure::new(
                "this node is the secondary of the datastore",
                "ask the primary",
            )),
        }
    }

    /// Ends all work: nothing new begins, the connection is closed, queued jobs are done. The threads that run this
    /// datastore end soon; then it can be closed.
    pub fn stop(&self) {
        self.engine.stopping.store(true, Ordering::Release);
        self.engine.gate.stop();
        // A change of the role that is under way ends first.
        let _changing = self.changing.acquire(&*self.engine.host);
        self.session().stop();
    }

    /// Puts everything on stable storage, once no thread works on the datastore any more. Returns `false` if that failed;
    /// the log says why. On a disk that is known to have failed, nothing is put there, and that is a success.
    pub fn close(&self) -> bool {
        let session = self.session();
        let _idle = match &session {
            Session::Primary(_) => None,
            Session::Secondary(session) => Some(session.wait_until_idle()),
        };
        let datastore = self.name();
        if self.engine.poison.has_failed() {
            // Nothing can be put on stable storage any more, and nothing must say that it was.
            tracing::warn!(datastore, "poisoned: the store is left as it is");
            return true;
        }
        let closed = self.close_cleanly();
        if let Err(error) = &closed {
            tracing::error!(datastore, %error, "no clean shutdown");
        }
        closed.is_ok()
    }

    /// Syncs content, log, and the tables of writes in flight. The mark of a clean shutdown comes last (rules P6, P7, P12).
    fn close_cleanly(&self) -> Result<(), DatastoreError> {
        let Engine {
            config,
            store,
            role_file,
            ..
        } = &*self.engine;
        if role_file.was_killed() && !is_active(Mutant::ClosedTooEarly) {
            store.sync_everything().map_err(refused(config))?;
        }
        store.close().map_err(refused(config))?;
        if !is_active(Mutant::NoTablesSync) {
            let synced = tables::sync(store.backing().as_ref());
            synced.map_err(refused(config))?;
        }
        role_file.closed().map_err(failed(config))
    }
}
