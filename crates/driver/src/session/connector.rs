//! Keeps up the primary's connection: dials the secondary, meets and greets it, and reads its answers.
//!
//! Invariant: the reader never waits for the secondary, for a disk flush or for a read from the disk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockstep_link::{LinkError, ReceiveFrames, SendFrames};
use lockstep_repl::core::{Event, OpId};
use lockstep_repl::message::{
    BarrierName, Envelope, Hello, Message, MessageError, PROTOCOL_VERSION, Welcome,
};
use lockstep_repl::state::Trigger;
use lockstep_resync::PeerBase;
use lockstep_roles::SessionEvent;
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};
use thiserror::Error;

use crate::host::{Reading, ThreadKind};
use crate::peer::connection::{ActiveConnection, Delivery, PeerCopy};
use crate::peer::dial::{Dial, DialError, Halves};
use crate::replication::greeting;
use crate::replication::role_exchange::{self, ExchangeError, RolePeer};
use crate::session::primary::PrimarySession;
use crate::session::silence::PeerSilence;
use crate::session::sum_secret;

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// The longest such time while the peer refuses this node. The peer may be starting, or in the middle of a change of its role:
/// so the first attempts follow sooner. Later on, an operator has to act.
const RETRY_REFUSED: Duration = Duration::from_secs(2);
/// The longest time before another attempt at an operation that the nodes could not do.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How a connection ended.
struct Ending {
    /// This node ended the connection, because one node could not do an operation of the other.
    given_up: bool,
    was_in_sync: bool,
    lasted: Duration,
}

impl Ending {
    /// Time until the next attempt, if the last one waited for `waited`. A full disk should not keep both nodes busy with
    /// resyncs, however long a resync takes until it fails.
    fn wait(&self, waited: Duration) -> Duration {
        let was_long_in_sync = self.was_in_sync && self.lasted >= RETRY_MAX;
        if self.given_up && !was_long_in_sync {
            (waited * 2).min(RETRY_MAX)
        } else {
            RETRY
        }
    }
}

/// Why there is no connection, for the operator.
#[derive(Debug, Error)]
enum Unconnected {
    /// The peer cannot be reached.
    #[error(transparent)]
    Unreachable(DialError),
    /// One of the nodes refuses the other.
    #[error(transparent)]
    Refused(DialError),
    /// The role exchange, or the greeting after it, has failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// This session is over: the exchange has changed the role of this node.
    #[error("the role of this node has changed")]
    Ended,
    /// The answer is no answer to a greeting.
    #[error(
        "the peer did not answer the greeting as a secondary does: run the same version of lockstep on both"
    )]
    NoSecondary,
    /// The role file of this node cannot be used.
    #[error(transparent)]
    RoleFile(#[from] io::Error),
}

impl Unconnected {
    /// Time until the next attempt, if the last one waited for `waited`.
    fn retry(&self, waited: Duration) -> Duration {
        match self {
            Self::Exchange(ExchangeError::PeerPoisoned(_)) => RETRY_MAX,
            _ if self.is_obstacle() => (waited * 2).min(RETRY_REFUSED),
            _ => RETRY,
        }
    }

    /// Whether an operator has to act: waiting for the other node does not help.
    const fn is_obstacle(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Exchange(error) => error.is_obstacle(),
            _ => false,
        }
    }
}

/// Why the reader stops.
#[derive(Debug, Error)]
enum ReadEnd {
    #[error("the secondary has been silent for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("a message of generation {0}")]
    OtherGeneration(Generation),
    #[error("the secondary has said that it stops")]
    PeerStops,
    #[error(transparent)]
    Link(LinkError),
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// See the head of this file.
pub(crate) struct Connector<'a, M> {
    session: &'a Arc<PrimarySession>,
    dialer: &'a dyn Dial,
    /// This node, for the exchange before each greeting.
    node: &'a M,
}

impl<'a, M: RolePeer> Connector<'a, M> {
    /// The connector of one session.
    pub const fn new(session: &'a Arc<PrimarySession>, dialer: &'a dyn Dial, node: &'a M) -> Self {
        Self {
            session,
            dialer,
            node,
        }
    }

    /// Keeps up the connection until the session is over.
    pub fn run(&self) {
        let (engine, replication) = (&self.session.engine, &self.session.replication);
        let mut wait = RETRY;
        while !replication.is_over() {
            if engine.poison.has_failed() {
                self.tell_peer_poisoned();
                engine.sleep_unless(RETRY_MAX, || replication.is_over());
                continue;
            }
            // The other node may be about to take over.
            if let Some(reason) = engine.stall_reason() {
                engine.notes.set_reason(&reason);
                engine.sleep_unless(RETRY, || replication.is_over());
                continue;
            }
            match self.connect() {
                Ok((halves, welcome)) => {
                    wait = self.serve(halves, welcome).wait(wait);
                    wait = wait.max(self.session.jobs.take_rest());
                }
                Err(unconnected) => {
                    wait = unconnected.retry(wait);
                    if !replication.is_over() {
                        self.note_unconnected(&unconnected);
                    }
                }
            }
            engine.sleep_unless(wait, || replication.is_over());
        }
    }

    fn note_unconnected(&self, unconnected: &Unconnected) {
        let notes = &self.session.engine.notes;
        let reason = unconnected.to_string();
        match unconnected {
            Unconnected::Exchange(ExchangeError::PeerPoisoned(_)) => {
                self.note_peer_poisoned(&reason);
            }
            _ if unconnected.is_obstacle() => notes.set_obstacle(&reason),
            _ => notes.set_reason(&reason),
        }
    }

    /// The secondary's disk has failed: it cannot do the operations of this node until an operator acts (rule P15).
    fn note_peer_poisoned(&self, reason: &str) {
        self.session.engine.notes.set_peer_disk_failed(reason);
        let failed = Event::Trigger(Trigger::PeerFailed);
        self.session.handle_event(ThreadKind::MayWait, failed);
    }

    /// Dials, meets the peer, and exchanges the greetings.
    fn connect(&self) -> Result<(Halves, Welcome), Unconnected> {
        let (replication, engine) = (&self.session.replication, &self.session.engine);
        let (sender, mut receiver) = self.dialer.dial().map_err(|error| {
            if self.dialer.was_refused() {
                Unconnected::Refused(error)
            } else {
                Unconnected::Unreachable(error)
            }
        })?;
        let limited = receiver.set_timeout(Some(engine.config.current().peer_timeout));
        limited.map_err(ExchangeError::from)?;
        self.meet(&*sender, &mut *receiver)?;
        let hello = self.hello()?;
        replication.reply(&*sender, Message::Hello(hello.clone()), Delivery::Wait);
        sum_secret::use_for_frames(&hello, |key| sender.use_sum_key(key));
        match self.read_greeting(&mut *receiver)? {
            Message::Welcome(welcome) => Ok(((sender, receiver), welcome)),
            _ => Err(Unconnected::NoSecondary),
        }
    }

    /// Reads the answer to the greeting.
    fn read_greeting(&self, receiver: &mut dyn ReceiveFrames) -> Result<Message, ExchangeError> {
        let envelope = role_exchange::receive(receiver)?;
        if let Message::Welcome(welcome) = &envelope.message {
            greeting::check(&self.session.replication, &envelope, welcome.version)?;
        }
        Ok(envelope.message)
    }

    /// Meets the peer, which must be the secondary of this generation.
    fn meet(
        &self,
        sender: &dyn SendFrames,
        receiver: &mut dyn ReceiveFrames,
    ) -> Result<(), Unconnected> {
        let replication = &self.session.replication;
        let theirs = role_exchange::call(self.node, sender, receiver)?;
        if replication.is_over() {
            return Err(Unconnected::Ended);
        }
        let is_secondary = !theirs.record.is_primary();
        if is_secondary && theirs.record.generation == replication.generation() {
            Ok(())
        } else {
            Err(Unconnected::NoSecondary)
        }
    }

    fn hello(&self) -> io::Result<Hello> {
        let engine = &self.session.engine;
        let role_file = &engine.role_file;
        let generation = self.session.replication.generation();
        let names = engine.standing().names;
        if !is_active(Mutant::KeepNameOfSync) {
            role_file.propose(generation, names, engine.host.random_id())?;
        }
        // From now on the secondary may take the name. A copy of this store that does not have it is an older one (rule P17).
        if let Some(proposed) = engine.standing().names.proposed {
            engine.disk.count.note_proposed(proposed);
        }
        let role = role_file.state();
        let no_name = || io::Error::other("this node's store has no name in role.json");
        Ok(Hello {
            version: PROTOCOL_VERSION,
            in_sync: role.has_kept_sync(),
            was_resynced: role.lineage.was_resynced,
            store: role.lineage.store.ok_or_else(no_name)?,
            sync: engine.standing(),
            durable: engine.is_always_durable(),
            sum_secret: engine.store.sums().secret(),
        })
    }

    /// Meets the other node, if it can be reached, and tells it why this node does not connect any more. After a restart
    /// the exchange says whether this node may serve reads, or has been deposed.
    fn tell_peer_poisoned(&self) {
        let engine = &self.session.engine;
        let Some(reason) = engine.failure_reason() else {
            return;
        };
        let Ok((sender, mut receiver)) = self.dialer.dial() else {
            return;
        };
        if receiver
            .set_timeout(Some(engine.config.current().peer_timeout))
            .is_ok()
            && let Err(error) = role_exchange::call(self.node, &*sender, &mut *receiver)
        {
            tracing::debug!(datastore = engine.name(), %error, "not met");
        }
        let replication = &self.session.replication;
        replication.reply(&*sender, Message::Poisoned { reason }, Delivery::Wait);
        // The other node closes the connection once it has read the message. Any answer says no more.
        let _heard = receiver.recv().is_ok();
        sender.shutdown("it was told");
    }

    /// Uses a connection until it is lost.
    fn serve(&self, (sender, receiver): Halves, welcome: Welcome) -> Ending {
        let session = self.session;
        let (replication, engine) = (&session.replication, &session.engine);
        let start = engine.host.now();
        let in_sync = self.judge_welcome(&welcome);
        if in_sync && let Some(sync) = engine.standing().names.proposed {
            engine.disk.count.begin(sync);
            engine.role.note_session(SessionEvent::Renamed);
        }
        session.space.note_welcome(welcome.room, in_sync);
        let id = replication.peer.next_id();
        let base = welcome.base.map(|generation| PeerBase {
            generation,
            applied: welcome.applied,
        });
        let mut marks = welcome.marks;
        marks.known.truncate(BarrierName::KNOWN_MAX);
        let copy = PeerCopy {
            waiting: welcome.waiting,
            base,
            sync: welcome.sync.filter(|_| base.is_some()),
            marks,
        };
        let connection = replication.peer.open(id, Arc::clone(&sender), copy);
        if in_sync {
            connection.note_complete_peer();
        }
        let ending = || Ending {
            given_up: connection.is_given_up(),
            was_in_sync: connection.was_in_sync(),
            lasted: engine.host.since(start),
        };
        if replication.is_over() || engine.disk.watch.is_stuck() {
            // The end may have closed the connection before this one was there.
            replication
                .peer
                .close("this node stops, has another role now, or its disk hangs");
            return ending();
        }
        session
            .jobs
            .barriers
            .announcements
            .begin_connection(&connection);
        let up = Event::LinkUp {
            connection: id,
            in_sync,
            peer_applied: welcome.applied,
        };
        let reason = {
            let _reading = Reading::on(&*engine.host);
            session.handle_event(ThreadKind::Reader, up);
            // Programs may wait for the lease that the answer gives.
            session.ping();
            self.read_answers(receiver).to_string()
        };
        sender.shutdown(&reason);
        self.note_lost(&connection, &reason);
        ending()
    }

    /// Removes a connection that was lost.
    fn note_lost(&self, connection: &ActiveConnection, reason: &str) {
        let session = self.session;
        let (replication, engine) = (&session.replication, &session.engine);
        replication.peer.remove(connection.id);
        session.requests.abandon();
        session.jobs.release_tail(connection.id, false);
        if !replication.is_over() {
            // Read after the removal: a thread may have given the connection up until then.
            let given_up = connection.is_given_up();
            engine.notes.set_ending(reason, given_up);
        }
        let lost = Event::Trigger(Trigger::LinkLost);
        session.handle_event(ThreadKind::MayWait, lost);
    }

    /// Judges whether the nodes are in sync (rule P8): by both marks, which belong to one sync (P17, checked by the secondary),
    /// and with one past. Otherwise `status` gets the reason.
    fn judge_welcome(&self, welcome: &Welcome) -> bool {
        let engine = &self.session.engine;
        let role = engine.role_file.state();
        let own = role.is_in_sync();
        let follows = engine.store.intents().is_followed_at(welcome.applied);
        let reason = if !own {
            "the secondary lacks what was done without it; it is brought up to date"
        } else if role.lineage.power.has_lost_power {
            "this machine has lost power: the copies may differ in what was under way then"
        } else if !welcome.in_sync {
            "the secondary's copy is not complete, or not the one that was in sync last"
        } else if !follows {
            engine.store.delta().end();
            "the secondary has done an operation that this node knows nothing of: the histories \
             of the two stores differ, so everything is compared"
        } else {
            return true;
        };
        engine.notes.set_reason(reason);
        false
    }

    /// Reads until the connection is lost; returns why.
    fn read_answers(&self, mut receiver: Box<dyn ReceiveFrames>) -> ReadEnd {
        let engine = &self.session.engine;
        let mut silence = match PeerSilence::begin(engine, &mut *receiver) {
            Ok(silence) => silence,
            Err(error) => return ReadEnd::Link(error),
        };
        loop {
            match receiver.recv() {
                Ok(frame) => {
                    silence.end();
                    match Envelope::decode(frame.header) {
                        Ok(Envelope {
                            generation,
                            message: Message::Stopping,
                            ..
                        }) if generation == self.session.replication.generation() => {
                            self.session
                                .handle_event(ThreadKind::Reader, Event::PeerStops);
                            return ReadEnd::PeerStops;
                        }
                        Ok(envelope)
                            if envelope.generation == self.session.replication.generation() =>
                        {
                            self.handle_answer(envelope.message);
                        }
                        Ok(envelope) => return ReadEnd::OtherGeneration(envelope.generation),
                        Err(error) => return error.into(),
                    }
                }
                // A frame that is arriving is a sign of life.
                Err(error) if error.is_timed_out() && error.is_slow() => silence.end(),
                Err(error) if error.is_timed_out() => match silence.look(&mut *receiver) {
                    Ok(None) => {}
                    Ok(Some(limit)) => return ReadEnd::Silent(limit),
                    Err(error) => return ReadEnd::Link(error),
                },
                Err(error) => return ReadEnd::Link(error),
            }
        }
    }

    fn handle_answer(&self, message: Message) {
        let session = self.session;
        let notes = &session.engine.notes;
        let event = match message {
            Message::WriteAck { osn, failed } => {
                self.note_acknowledged(failed.is_none());
                if let Some(errno) = failed {
                    notes.set_obstacle(&format!("the secondary could not write: {errno}"));
                }
                Event::WriteAcked(osn, failed)
            }
            Message::MetaAck { osn, outcome } => {
                self.note_acknowledged(outcome.is_ok());
                if let Err(errno) = outcome {
                    notes.set_obstacle(&format!("the secondary could not follow: {errno}"));
                } else {
                    // Before a client can write there.
                    session.jobs.barriers.announcements.committed(osn);
                }
                Event::MetaAcked(osn, outcome)
            }
            Message::SyncAck { id, failed } => {
                if failed.is_some() {
                    notes.set_reason("the secondary's disk failed a flush");
                }
                Event::SyncAcked(OpId(id), failed)
            }
            Message::Pong {
                room,
                disk_silent_ms,
            } => {
                session.engine.disk.watch.note_peer(disk_silent_ms);
                session.space.note_pong(room);
                session.note_pong();
                self.end_if_overdue();
                Event::Beat
            }
            // The arrival is the whole meaning of this message.
            Message::Alive => return,
            Message::Response { id, response } => {
                let host = &*session.engine.host;
                return session.requests.complete(host, id, response);
            }
            Message::Barrier(message) => return session.jobs.barriers.receive(message),
            Message::Announced { id } => return session.jobs.barriers.announcements.answered(id),
            Message::Refuse { reason } => return notes.set_reason(&reason),
            _ => {
                let peer = &session.replication.peer;
                return peer.close("the secondary sent what only a primary may send");
            }
        };
        session.handle_event(ThreadKind::Reader, event);
    }

    /// The secondary has done an operation. It counts those that it has done, too (rule P17).
    fn note_acknowledged(&self, is_done: bool) {
        if is_done {
            self.session.engine.disk.count.note_acknowledged();
        }
    }

    /// Counts a sign of life. Ends the connection if a request is overdue: clients may be waiting for the response.
    fn end_if_overdue(&self) {
        if self.session.requests.beat() {
            let reason = "the secondary is connected, but does not answer: its disk may hang";
            self.session.engine.notes.set_reason(reason);
            self.session.replication.peer.close(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(given_up: bool, was_in_sync: bool, lasted: Duration) -> Ending {
        Ending {
            given_up,
            was_in_sync,
            lasted,
        }
    }

    /// Each wait follows from the one before, grows from the shortest one on, and ends at the longest one.
    fn assert_grows(next: impl Fn(Duration) -> Duration, longest: Duration) {
        let waits = std::iter::successors(Some(RETRY), |wait| Some(next(*wait)));
        let waits: Vec<_> = waits.skip(1).take(10).collect();
        assert_eq!(waits.first(), Some(&(RETRY * 2)));
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&longest));
    }

    #[test]
    fn an_operation_that_the_nodes_could_not_do_is_tried_ever_more_rarely() {
        let long = RETRY_MAX * 2;
        for failed in [
            ending(true, false, RETRY),
            ending(true, true, RETRY),
            ending(true, false, long),
        ] {
            assert_grows(|wait| failed.wait(wait), RETRY_MAX);
        }
    }

    /// Clients wait meanwhile: a peer that has just been started, or whose role changes, refuses this node for a moment only.
    #[test]
    fn a_refusal_is_answered_soon_and_ever_more_rarely() {
        let refused = Unconnected::Exchange(ExchangeError::RefusedByPeer("not yet".to_owned()));
        assert_grows(|wait| refused.retry(wait), RETRY_REFUSED);
    }

    #[test]
    fn a_lost_connection_is_replaced_at_once() {
        let lost = ending(false, false, Duration::ZERO);
        assert_eq!(lost.wait(RETRY_MAX), RETRY);
        let long_in_order = ending(true, true, RETRY_MAX);
        assert_eq!(long_in_order.wait(RETRY_MAX), RETRY);
    }
}
