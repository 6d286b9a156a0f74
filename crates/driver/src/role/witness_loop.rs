//! Asks the witness for what this node may not decide alone: to serve without the secondary, to take over from the primary,
//! and to let the secondary take over (docs/protocol/roles.md).
//!
//! One thread asks, so one question at a time is under way. The role machine decides which question is due, and what follows
//! from the answers. This thread measures, calls the witness, and carries the effects out.
//!
//! Invariants:
//! - A secondary takes over once it has been without a primary for `failover_after`, and once its last promise is as old
//!   (`engine/takeover_promise.rs`). So each lease that it has given is over (rule R7), however long this thread or a call of the witness
//!   takes: the promise is looked at again before the candidature, and before the takeover.
//! - An answer changes nothing if the record of this node has changed since the question.

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_roles::{
    Asker, Member, QuestionOver, QuestionTimes, RoleChangeKind, RoleEffect, RoleEvent, Settle,
    Witness,
};
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};

use super::bound_witness::BoundWitness;
use super::current_role::CurrentRole;
use super::facts;
use super::keeper::RoleKeeper;
use crate::config::FailoverTimes;
use crate::session::Session;
use crate::session::primary::PrimarySession;

/// The shortest time between two questions.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Time between two questions that only keep the status and the protection right.
const LOOK: Duration = Duration::from_secs(5);

/// Why an empty witness decides nothing (rule R10).
const EMPTY_WITNESS: &str = "the witness has no record of this datastore, so it cannot tell whether the other node serves: connect the nodes, \
                             or run `lockstep promote --force-data-loss` on the node whose copy is to be kept";

/// Why an older copy does not lead by the answer of the witness.
const OLDER_COPY: &str = "the witness knows of a later sync of this datastore than the store of this node: an older copy of the store was put \
                          back. Connect the nodes, put the newer store back, or run `lockstep promote --force-data-loss` here";

/// Why no node takes over by a witness of an earlier version.
const FORGETS_NAMES: &str = "the witness does not keep the name of the sync, so no node takes over by itself: its version is earlier than \
                             that of this node; upgrade the witness";
/// Time between two claims whose name the witness does not keep. The witness may be upgraded meanwhile.
const FORGETS_AGAIN: Duration = Duration::from_secs(60);

/// The time for which this node has had no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disconnection {
    since: Duration,
    /// The session: its generation, and whether it is that of the primary.
    session: (Generation, bool),
    /// The number of connections of the session so far.
    connections: u64,
    /// There is a connection, so the disconnection has not begun.
    is_connected: bool,
}

impl Disconnection {
    /// A disconnection that begins now.
    fn of(session: &Session, now: Duration) -> Self {
        let replication = session.replication();
        Self {
            since: now,
            session: (
                replication.generation(),
                matches!(session, Session::Primary(_)),
            ),
            connections: replication.peer.count(),
            is_connected: replication.peer.is_connected(),
        }
    }
}

/// See the head of this file.
pub(crate) struct WitnessLoop<'a> {
    role: &'a CurrentRole,
    times: FailoverTimes,
    disconnection: Disconnection,
    /// The last moment at which this thread has looked at the peer, or has woken up.
    looked: Duration,
    /// At the last look, the disk of this node did not answer.
    is_stuck: bool,
    /// The moment of the last answer.
    answered: Duration,
    /// The moment before which no question is asked again.
    not_before: Duration,
    /// The moment of the next question without a need.
    look_at: Duration,
    /// The moment before which the secondary is not protected, because the witness does not keep the name of the sync.
    forgets_until: Option<Duration>,
}

impl RoleKeeper {
    /// Asks the witness until the datastore is stopped. This node is `me` for the witness. Ends at once for a datastore
    /// without a witness in its configuration.
    pub fn ask_witness(&self, witness: Arc<dyn Witness>, me: Member) {
        if let Some(questions) = WitnessLoop::new(&self.role, witness, me) {
            questions.run();
        }
    }
}

impl<'a> WitnessLoop<'a> {
    /// The questions of one node, which is `me` for the witness. From now on the commands of an operator reach the witness,
    /// too. `None` for a datastore without a witness.
    pub fn new(role: &'a CurrentRole, witness: Arc<dyn Witness>, me: Member) -> Option<Self> {
        let times = role.engine.config.current().failover()?;
        let limit = times.call();
        role.witness
            .get_or_init(|| BoundWitness { witness, me, limit });
        let now = role.engine.host.now();
        Some(Self {
            role,
            times,
            disconnection: Disconnection::of(&role.session(), now),
            looked: now,
            is_stuck: false,
            answered: Duration::ZERO,
            not_before: now,
            look_at: now,
            forgets_until: None,
        })
    }

    /// Asks until the datastore is stopped.
    pub fn run(mut self) {
        let engine = &self.role.engine;
        while !engine.is_stopping() {
            let seen = engine.wakes.changes.raises();
            let due = self.look();
            if engine.wakes.changes.raises() == seen {
                engine.wakes.changes.wait_beyond(&*engine.host, seen, due);
                self.looked = engine.host.now();
            }
        }
    }

    /// Looks whether there is something to ask, and asks. Returns the moment at which there is to be another look if nothing
    /// changes until then.
    fn look(&mut self) -> Option<Duration> {
        let engine = &self.role.engine;
        if engine.poison.has_failed() {
            return None;
        }
        let was_stuck = std::mem::replace(&mut self.is_stuck, engine.disk.watch.is_stuck());
        if self.is_stuck || was_stuck {
            self.wait_for_disk();
        }
        if self.is_stuck {
            return None;
        }
        self.note_connection();
        let now = engine.host.now();
        if now < self.not_before || self.ask_if_due() {
            return Some(self.not_before);
        }
        let later = self.moments().into_iter().flatten().filter(|at| *at > now);
        later.min()
    }

    /// The moments at which the passing of time changes whether a question is due.
    fn moments(&self) -> [Option<Duration>; 6] {
        let engine = &self.role.engine;
        let session = self.role.session();
        let Disconnection {
            since,
            is_connected,
            ..
        } = self.disconnection;
        let after = |time: Duration| (!is_connected).then(|| since + time);
        let promise = (!is_connected).then(|| engine.role.promise.end(self.takeover()));
        let pauses_ms = session.replication().core.lock().pause_ends().ask_ms;
        [
            Some(self.look_at),
            self.forgets_until,
            after(self.times.alone()),
            after(self.takeover()),
            promise,
            pauses_ms.map(Duration::from_millis),
        ]
    }

    /// A node whose disk hangs asks nothing: it could record no answer, and the other node may be about to take over (rule
    /// R12). Once the disk answers, the nodes get the time to meet.
    fn wait_for_disk(&mut self) {
        let now = self.role.engine.host.now();
        self.disconnection = Disconnection::of(&self.role.session(), now);
    }

    /// Measures the time without the peer. A connection between two looks ends that time, too.
    fn note_connection(&mut self) {
        let session = self.role.session();
        let now = self.role.engine.host.now();
        let last = self.disconnection;
        let present = Disconnection::of(&session, now);
        let is_same = Disconnection {
            since: last.since,
            ..present
        } == last;
        if !is_same || present.is_connected {
            self.disconnection = present;
        }
        // The connection may have been lost since the last look, while this thread was asking the witness.
        let is_lost = last.is_connected && !present.is_connected;
        if is_lost && last.connections == present.connections {
            self.disconnection.since = self.looked;
        }
        self.looked = now;
    }

    /// Whether this node could record that it serves alone. Otherwise the secondary is to take over (rule R12).
    fn disk_answers(&self) -> bool {
        let silent_ms = self.role.engine.disk.watch.silent_ms();
        Duration::from_millis(silent_ms) < self.times.takeover()
    }

    fn has_been_disconnected(&self, limit: Duration) -> bool {
        self.role.engine.host.since(self.disconnection.since) >= limit
    }

    /// Time without a primary before a takeover.
    fn takeover(&self) -> Duration {
        if is_active(Mutant::TakeOverEarly) {
            Duration::ZERO
        } else {
            self.times.takeover()
        }
    }

    /// Whether each promise of this secondary not to take over is over (rule R7).
    fn is_released(&self) -> bool {
        let engine = &self.role.engine;
        let promise = &engine.role.promise;
        promise.is_over(&*engine.host, self.takeover())
    }

    /// Whether changes have waited for a lost secondary for as long as they may (rules R1 and P23).
    fn has_waited_enough(&self, session: &PrimarySession) -> bool {
        let is_pointless = || {
            let now_ms = self.role.engine.now_ms();
            let core = session.replication.core.lock();
            let are_used_up = core.pause_ends().ask_ms.is_some_and(|at| now_ms >= at);
            are_used_up || core.waits_for_stopped_peer()
        };
        self.disk_answers() && (self.has_been_disconnected(self.times.alone()) || is_pointless())
    }

    /// Has the role machine ask the question that is due, if one is. Returns whether one was.
    fn ask_if_due(&mut self) -> bool {
        let (role, engine) = (self.role, &self.role.engine);
        let effects = role.decide(&RoleEvent::Due(self.times_of_now()));
        if effects.is_empty() {
            return false;
        }
        // The log says why an effect is not carried out. Without an answer of the witness the question has no end.
        let over = role.carry_out_all(Asker::Watch, effects).ok().flatten();
        let now = engine.host.now();
        self.look_at = now + LOOK;
        match over {
            Some(over) => {
                self.note_answer(over, now);
                self.settle();
            }
            None => self.not_before = now + self.times.beat(),
        }
        true
    }

    /// The times of this moment.
    fn times_of_now(&self) -> QuestionTimes {
        let engine = &self.role.engine;
        let now = engine.host.now();
        let has_waited = match self.role.session() {
            Session::Primary(session) => {
                session.replication.state() == State::Paused && self.has_waited_enough(&session)
            }
            Session::Undecided(_) | Session::Secondary(_) => {
                self.has_been_disconnected(self.times.alone())
            }
        };
        QuestionTimes {
            has_waited,
            may_take_over: self.has_been_disconnected(self.takeover()) && self.is_released(),
            look_is_due: now >= self.look_at,
            cannot_protect: self.forgets_until.is_some_and(|until| now < until),
        }
    }

    /// Notes the end of a question for the status, and for the time of the next one. A question whose answer has changed nothing
    /// is asked again, but not at once.
    fn note_answer(&mut self, over: QuestionOver, now: Duration) {
        let engine = &self.role.engine;
        if let Some(forgets_names) = over.forgets_names {
            if forgets_names && self.forgets_until.is_none() {
                tracing::warn!(datastore = engine.name(), "{FORGETS_NAMES}");
            }
            self.forgets_until = forgets_names.then(|| now + FORGETS_AGAIN);
        }
        if over.is_older_copy {
            engine.notes.set_obstacle(OLDER_COPY);
        }
        let trouble = if over.is_empty {
            Some(EMPTY_WITNESS)
        } else {
            self.forgets_until.map(|_| FORGETS_NAMES)
        };
        if engine.role.note_answer(trouble) {
            tracing::info!(datastore = engine.name(), "the witness answers again");
        }
        let pause = if over.is_settled {
            // An answer may lead to another question at once.
            PAUSE_MIN.saturating_sub(now.saturating_sub(self.answered))
        } else {
            self.times.beat()
        };
        self.not_before = now + pause;
        self.answered = now;
    }

    /// Acts on the answers, once no other thread changes the role.
    fn settle(&mut self) {
        let (role, engine) = (self.role, &self.role.engine);
        let _changing = role.changing.acquire(&*engine.host);
        if engine.is_stopping() {
            return;
        }
        let session = role.session();
        let effects = role.decide(&RoleEvent::Settle(Settle {
            copy: facts::copy_of(engine),
            is_released: self.is_released(),
            is_silent: self.has_stayed_disconnected(&session),
        }));
        let stands = effects.iter().any(begins_candidature);
        let _over = role.carry_out_all(Asker::Watch, effects);
        if stands {
            self.keep_disconnection(&session);
        }
    }

    /// Whether no primary has been connected since this thread last looked.
    fn has_stayed_disconnected(&self, session: &Session) -> bool {
        let peer = &session.replication().peer;
        !peer.is_connected() && peer.count() == self.disconnection.connections
    }

    /// The session of a candidate begins. The time without a primary goes on, unless a primary was here meanwhile: that one has got a lease.
    fn keep_disconnection(&mut self, last: &Session) {
        let engine = &self.role.engine;
        let (since, connections) = (self.disconnection.since, self.disconnection.connections);
        self.disconnection = Disconnection::of(&self.role.session(), engine.host.now());
        let is_recorded = engine.role_file.state().record.is_candidate;
        if is_recorded && last.replication().peer.count() == connections {
            self.disconnection.since = since;
        }
    }
}

fn begins_candidature(effect: &RoleEffect) -> bool {
    matches!(effect, RoleEffect::Change(change) if change.kind == RoleChangeKind::BecomeCandidate)
}
