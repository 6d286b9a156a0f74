//! One datastore on this node, open and running: the façade over its engine and its session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_fs::Store;
use lockstep_link::{ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Hello};
use lockstep_repl::state::State;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{DatastoreUuid, Errno, Generation};

use crate::config::DatastoreConfig;
use crate::engine::Engine;
use crate::maintenance::Maintenance;
use crate::open::{DatastoreError, failed, refused, tables};
use crate::peer::dial::Dial;
use crate::peer::greeting::{refuse, refuse_poisoned};
use crate::report::{CommandFailure, DatastoreStatus, RoleReport, VerifyProgress, VerifyReport};
use crate::resync_jobs::verify_report;
use crate::session::Session;
use crate::session::connector::Connector;
use crate::session::primary::PrimarySession;
use crate::status;
use crate::usage::DatastoreUsage;

/// Why a primary is refused by a primary.
const TWO_PRIMARIES: &str =
    "both nodes are configured as primary of this datastore: make one the secondary";

/// See the head of this file.
pub struct Datastore {
    engine: Arc<Engine>,
    session: Session,
    maintenance: Maintenance,
}

impl Datastore {
    /// A datastore with an open store.
    pub(crate) fn new(engine: Arc<Engine>, session: Session) -> Self {
        let maintenance = Maintenance::new(engine.now_ms());
        Self {
            engine,
            session,
            maintenance,
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
        self.session.term().state()
    }

    /// Generation of all numbers and messages.
    pub fn generation(&self) -> Generation {
        self.session.term().generation()
    }

    /// The session of a primary.
    ///
    /// # Errors
    /// `Io` on a secondary, which serves no clients.
    pub(crate) const fn primary(&self) -> Result<&Arc<PrimarySession>, Errno> {
        match &self.session {
            Session::Primary(session) => Ok(session),
            Session::Secondary(_) => Err(Errno::Io),
        }
    }

    #[cfg(test)]
    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    #[cfg(test)]
    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    /// Status for an operator.
    pub fn status(&self) -> DatastoreStatus {
        status::of(&self.engine, &self.session)
    }

    /// The numbers of this moment.
    pub fn usage(&self) -> DatastoreUsage {
        DatastoreUsage::of(&self.engine, &self.session)
    }

    /// Runs periodic work until the datastore is stopped.
    pub fn run_maintenance(&self) {
        self.maintenance.run(&self.engine, &self.session);
    }

    /// Time since periodic work ran last.
    pub fn since_tick(&self) -> Duration {
        self.maintenance.since_tick(&self.engine)
    }

    /// Dials the peer until the datastore is stopped. A primary keeps up the connection. A secondary without a primary
    /// asks the other node for the reason from time to time.
    pub fn run_dialer(&self, dialer: &dyn Dial) {
        match &self.session {
            Session::Primary(session) => Connector::new(session, dialer).run(),
            Session::Secondary(session) => session.run_waiting(dialer),
        }
    }

    /// Serves a primary that has sent its greeting, until the connection is lost.
    pub fn serve_primary(
        &self,
        sender: &Arc<dyn SendFrames>,
        receiver: Box<dyn ReceiveFrames>,
        hello: &Hello,
        envelope: &Envelope,
    ) {
        match &self.session {
            Session::Secondary(session) => {
                session.serve_primary(sender, receiver, hello, envelope);
            }
            Session::Primary(_) => self.refuse_primary(&**sender, envelope),
        }
    }

    fn refuse_primary(&self, sender: &dyn SendFrames, envelope: &Envelope) {
        if let Some(reason) = self.engine.failure_reason() {
            return refuse_poisoned(sender, envelope, &reason);
        }
        self.engine.notes.set_obstacle(TWO_PRIMARIES);
        refuse(sender, envelope, TWO_PRIMARIES);
    }

    /// Answers a secondary that asks why no primary connects to it. A primary does not answer: it dials by itself.
    pub fn answer_secondary(&self, sender: &dyn SendFrames, question: &Envelope) {
        if let Session::Secondary(session) = &self.session {
            session.answer_secondary(sender, question);
        }
    }

    /// The primary reports that its disk has failed. This copy stays as it is.
    pub fn note_peer_poisoned(&self, reason: &str) {
        self.engine.notes.set_peer_disk_failed(reason);
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
        match &self.session {
            Session::Primary(_) => false,
            Session::Secondary(session) => session.waits_for_primary(),
        }
    }

    /// Frees the inodes that lost their last name before a restart. No program has them open any more.
    pub fn reap_orphans(&self) {
        if let Session::Primary(session) = &self.session {
            session.reap_orphans();
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
        match &self.session {
            Session::Primary(session) => session.jobs.compare(progress),
            Session::Secondary(_) => Err(CommandFailure {
                cause: "this node is the secondary of the datastore".to_owned(),
                cure: "ask the primary".to_owned(),
            }),
        }
    }

    /// Gives the role of the primary to the other node, which is in sync. No operation of a client fails.
    ///
    /// # Errors
    /// If this node is not the primary, or the nodes are not in sync. Then nothing has changed.
    pub fn hand_over(&self) -> Result<RoleReport, CommandFailure> {
        Err(CommandFailure::new("not built yet", "wait"))
    }

    /// Makes this node the primary, without the other node. The operator vouches that the other node does not serve.
    /// `accepts_loss`: also if this copy may lack acknowledged operations.
    ///
    /// # Errors
    /// If this node is connected with a primary, or its copy may lack operations. Then nothing has changed.
    pub fn promote(&self, accepts_loss: bool) -> Result<RoleReport, CommandFailure> {
        let _ = accepts_loss;
        Err(CommandFailure::new("not built yet", "wait"))
    }

    /// Makes this primary, which serves alone or waits, the secondary: the other node has, or gets, the role. The
    /// operations that only this copy has are lost with the next resync.
    ///
    /// # Errors
    /// If this node is no primary, or is in sync with its secondary. Then nothing has changed.
    pub fn demote(&self) -> Result<RoleReport, CommandFailure> {
        Err(CommandFailure::new("not built yet", "wait"))
    }

    /// Ends all work: nothing new begins, the connection is closed, queued jobs are done. The threads that run this
    /// datastore end soon; then it can be closed.
    pub fn stop(&self) {
        self.engine.stopping.store(true, Ordering::Release);
        self.session.stop();
    }

    /// Puts everything on stable storage, once no thread works on the datastore any more. Returns `false` if that failed;
    /// the log says why. On a disk that is known to have failed, nothing is put there, and that is a success.
    pub fn close(&self) -> bool {
        let _idle = match &self.session {
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
