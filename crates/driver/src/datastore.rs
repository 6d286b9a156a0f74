//! One datastore on this node, open and running: the façade over its engine, the keeper of its role, and maintenance.

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::Store;
use lockstep_fs::seed::{SeedLineage, SeedOrigin};
use lockstep_repl::state::State;
use lockstep_roles::ServicePart;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{DatastoreUuid, Errno, Generation};

use crate::config::settings::Setting;
use crate::config::{ConfigHandle, ConfigRefused, DatastoreConfig};
use crate::durable::{DatastoreError, failed, refused, tables};
use crate::engine::Engine;
use crate::jobs::change_readers::ReaderService;
use crate::jobs::resync::ResyncJobs;
use crate::jobs::snapshot_diff::DiffService;
use crate::jobs::snapshots::SnapshotService;
use crate::jobs::trash::TrashService;
use crate::maintenance::Maintenance;
use crate::report::comparison::verify_report;
use crate::report::{
    ChangeReaderStatus, ChangesPart, ChangesQuestion, CommandFailure, DatastoreStatus, DiffPart,
    DiffQuestion, ReaderCommand, SnapshotCommand, SnapshotStatus, TrashAnswer, TrashCommand,
    VerifyMode, VerifyProgress, VerifyReport,
};
use crate::role::keeper::RoleKeeper;
use crate::service_gate::ServiceGate;
use crate::session::Session;
use crate::session::primary::PrimarySession;
use crate::status;
use crate::status::usage::DatastoreUsage;

/// See the head of this file.
pub struct Datastore {
    engine: Arc<Engine>,
    keeper: RoleKeeper,
    maintenance: Maintenance,
}

impl Datastore {
    /// A datastore with an open store. A primary whose disk has failed has a session, and serves reads only if its
    /// `part` says so.
    pub(crate) fn new(engine: Arc<Engine>, session: Session, part: ServicePart) -> Self {
        Self {
            maintenance: Maintenance::new(engine.now_ms()),
            keeper: RoleKeeper::new(&engine, session, part),
            engine,
        }
    }

    /// The keeper of the role of this node.
    pub const fn role(&self) -> &RoleKeeper {
        &self.keeper
    }

    /// Name of the datastore.
    pub fn name(&self) -> &str {
        self.engine.name()
    }

    /// The configuration of the datastore, as a handle.
    pub fn config(&self) -> &Arc<ConfigHandle> {
        &self.engine.config
    }

    /// Changes the configuration while the datastore runs. Returns the settings that differ from before.
    ///
    /// # Errors
    /// If a setting differs that cannot change now ([`ConfigHandle`]): then nothing changes.
    pub fn reconfigure(
        &self,
        new: DatastoreConfig,
    ) -> Result<Vec<&'static Setting>, ConfigRefused> {
        self.keeper.reconfigure(new)
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
        self.keeper.current().session()
    }

    /// The gate for the requests of clients.
    pub(crate) fn gate(&self) -> &Arc<ServiceGate> {
        &self.engine.gate
    }

    /// The session of a primary.
    ///
    /// # Errors
    /// [`Engine::unknown_outcome`] on a secondary, which serves no clients.
    pub(crate) fn primary(&self) -> Result<Arc<PrimarySession>, Errno> {
        match self.session() {
            Session::Primary(session) => Ok(session),
            Session::Undecided(_) | Session::Secondary(_) => Err(self.engine.unknown_outcome()),
        }
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

    /// Frees the inodes that lost their last name before this node serves, unless a program of this node has them open.
    /// On a node that does not serve yet, nothing happens.
    pub fn reap_orphans(&self) {
        self.session().reap_orphans();
    }

    /// Compares this node with its peer, and remembers the result for `status`.
    ///
    /// # Errors
    /// If the nodes cannot be compared now.
    pub fn verify(
        &self,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure> {
        let report = self.comparing()?.compare_and_note(mode, progress)?;
        Ok(verify_report(report, mode))
    }

    /// Compares this node with its peer by their sums before a planned failover, for a few seconds at most. Returns why the copies
    /// are not proved to be the same, if they are not.
    ///
    /// # Errors
    /// If the copies differ, unless `accepts_differences`.
    pub fn check_before_failover(
        &self,
        accepts_differences: bool,
    ) -> Result<Option<String>, CommandFailure> {
        match self.session() {
            Session::Primary(session) => session.jobs.check_before_failover(accepts_differences),
            Session::Undecided(_) | Session::Secondary(_) => Ok(None),
        }
    }

    /// Compares this node with its peer, and remembers nothing.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn compare(
        &self,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<lockstep_verify::Report, CommandFailure> {
        Ok(self.comparing()?.compare(mode, progress)?.0)
    }

    /// The jobs that compare; a secondary has none.
    fn comparing(&self) -> Result<Arc<ResyncJobs>, CommandFailure> {
        match self.session() {
            Session::Primary(session) => Ok(Arc::clone(&session.jobs)),
            Session::Undecided(_) | Session::Secondary(_) => Err(CommandFailure::new(
                "this node is the secondary of the datastore",
                "ask the primary",
            )),
        }
    }

    /// Tells a change reader what has changed, part by part, until `take` returns false.
    ///
    /// # Errors
    /// If this node does not serve the datastore, or there is no answer.
    pub fn changes(
        &self,
        question: &ChangesQuestion,
        take: &mut dyn FnMut(ChangesPart) -> bool,
    ) -> Result<(), CommandFailure> {
        match self.session() {
            Session::Primary(_) => ReaderService::of(&self.engine).ask(question, take),
            Session::Undecided(_) | Session::Secondary(_) => Err(CommandFailure::new(
                "this node does not serve the datastore: its files cannot be copied here",
                "ask the primary, where the datastore is mounted",
            )),
        }
    }

    /// Carries out a command about the change readers of this node, in any role; returns the list afterwards.
    ///
    /// # Errors
    /// If there is no such reader, or the disk fails.
    pub fn change_readers(
        &self,
        command: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, CommandFailure> {
        ReaderService::of(&self.engine).command(command)
    }

    /// Carries a command about snapshots out, and returns the list of this node afterwards. A secondary only lists them.
    ///
    /// # Errors
    /// If the command is refused, or its outcome is not known.
    pub fn snapshots(
        &self,
        command: &SnapshotCommand,
    ) -> Result<Vec<SnapshotStatus>, CommandFailure> {
        let snapshots = SnapshotService::of(&self.engine);
        if *command == SnapshotCommand::ListSpace {
            return snapshots.list_with_space();
        }
        if snapshots.own_command(command)? {
            return Ok(snapshots.list());
        }
        match self.session() {
            Session::Primary(session) => {
                let state = || self.session().replication().state();
                let hooks = self.maintenance.hooks();
                hooks.command(&self.engine, &session.pipeline, command, &state)?;
            }
            Session::Undecided(_) | Session::Secondary(_) if *command == SnapshotCommand::List => {}
            Session::Undecided(_) | Session::Secondary(_) => {
                return Err(CommandFailure::new(
                    "this node does not serve the datastore",
                    "ask the primary, which does it on both nodes",
                ));
            }
        }
        Ok(snapshots.list())
    }

    /// Carries a command about the trash out. A secondary only lists it.
    ///
    /// # Errors
    /// If the command is refused, or its outcome is not known.
    pub fn trash(&self, command: &TrashCommand) -> Result<TrashAnswer, CommandFailure> {
        let trash = TrashService::of(&self.engine);
        if let TrashCommand::List { from } = command {
            return trash.list(*from).map(TrashAnswer::Page);
        }
        let Session::Primary(session) = self.session() else {
            return Err(CommandFailure::new(
                "this node does not serve the datastore",
                "ask the primary, which does it on both nodes",
            ));
        };
        match command {
            TrashCommand::Restore(question) => {
                let role = self.keeper.current();
                let tell = |parent, ino| {
                    role.tell_observers(|observer| observer.named(parent, ino));
                };
                let restored = trash.restore(question, &session.pipeline, &tell);
                role.tell_observers(|observer| observer.names_are_new());
                restored.map(TrashAnswer::Restored)
            }
            TrashCommand::Empty { before } => {
                let emptied = trash.empty(*before, &session.pipeline);
                emptied.map(TrashAnswer::Emptied)
            }
            TrashCommand::List { from } => trash.list(*from).map(TrashAnswer::Page),
        }
    }

    /// Tells the difference between two snapshots of this node, or between a snapshot and the present, part by part, until `take` returns false.
    /// In any role.
    ///
    /// # Errors
    /// If there is no answer, or if it ends before all of it was told.
    pub fn snapshot_diff(
        &self,
        question: &DiffQuestion,
        take: &mut dyn FnMut(DiffPart) -> bool,
    ) -> Result<(), CommandFailure> {
        DiffService::of(&self.engine).tell(question, take)
    }

    /// Notes that a seed is about to be made of a snapshot of this copy, and returns where the seed comes from (rule P17). In any role.
    ///
    /// # Errors
    /// If the disk of this node has failed, or nothing of the datastore was ever in this copy.
    pub fn seed_origin(&self) -> Result<SeedOrigin, CommandFailure> {
        let engine = &self.engine;
        if let Some(reason) = engine.failure_reason() {
            return Err(CommandFailure::new(
                reason,
                "export the seed on the other node",
            ));
        }
        let source = engine.role_file.make_source().map_err(|error| {
            CommandFailure::new(
                format!("this node cannot note that a seed is made of its copy: {error}"),
                "see the log of this node",
            )
        })?;
        let store = source.ok_or_else(|| {
            CommandFailure::new(
                "nothing of the datastore was ever in this copy",
                "export the seed on the primary",
            )
        })?;
        Ok(SeedOrigin {
            datastore: self.uuid(),
            name: self.name().to_owned(),
            lineage: SeedLineage {
                store,
                sync: engine.standing().names.last,
            },
        })
    }

    /// Ends all work: nothing new begins, the connection is closed, queued jobs are done. The threads that run this
    /// datastore end soon; then it can be closed.
    pub fn stop(&self) {
        self.engine.stop();
        self.engine.gate.stop(&*self.engine.host);
        self.keeper.current().stop();
    }

    /// Puts everything on stable storage, once no thread works on the datastore any more. Returns `false` if that failed;
    /// the log says why. On a disk that is known to have failed, nothing is put there, and that is a success.
    pub fn close(&self) -> bool {
        let session = self.session();
        let _idle = match &session {
            Session::Primary(_) => None,
            Session::Undecided(session) | Session::Secondary(session) => {
                Some(session.wait_until_idle())
            }
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
        let config = &*config.current();
        if role_file.was_killed() && !is_active(Mutant::ClosedTooEarly) {
            store.sync_everything().map_err(refused(config))?;
        }
        // First: the delta of a store that was closed counts after a loss of power, and lacks the writes of the tables.
        if !is_active(Mutant::NoTablesSync) {
            let synced = tables::sync(store.backing().as_ref());
            synced.map_err(refused(config))?;
        }
        store.close().map_err(refused(config))?;
        role_file.closed().map_err(failed(config))
    }
}
