//! Asks the witness for what this node may not decide alone: to serve without the secondary, to take over from the primary,
//! and to let the secondary take over (docs/protocol/roles.md).
//!
//! One thread asks, so one question at a time is under way. Which question is due, and what follows from its answer, is
//! decided without input or output (`roles/query.rs`). This thread measures, asks, and carries the decision out.
//!
//! Invariants:
//! - A secondary takes over once it has been without a primary for `failover_after`, and once its last promise is as old
//!   (`witness_state/takeover_promise.rs`). So each lease that it has given is over (rule R7), however long this thread or a call of the witness
//!   takes: the promise is looked at again before the candidature, and before the takeover.
//! - An answer changes nothing if the record of this node has changed since the question.

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::core::Event;
use lockstep_repl::state::{State, Trigger};
use lockstep_roles::{
    AnswerAction, InSyncSet, Member, QueryFacts, QueryResult, RoleChange, RoleConflict, RoleRecord,
    Service, Witness, WitnessError, WitnessQuery, WitnessRecord,
};
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::OnPeerLoss;

use super::claims;
use super::forced_claim::{self, BoundWitness, ForcedClaim};
use super::keeper::RoleKeeper;
use super::named_calls::{NamedCalls, is_older};
use crate::config::FailoverTimes;
use crate::durable::role_file::RoleState;
use crate::host::ThreadKind;
use crate::session::Session;
use crate::session::build::SessionPart;
use crate::session::primary::PrimarySession;

/// Time between two looks whether there is something to ask.
const POLL: Duration = Duration::from_millis(20);
/// Time between two questions that only keep the status and the protection right.
const LOOK: Duration = Duration::from_secs(5);

/// Why an empty witness decides nothing (rule R10).
const EMPTY_WITNESS: &str = "the witness has no record of this datastore, so it cannot tell whether the other node serves: connect the nodes, \
                             or run `lockstep promote --force-data-loss` on the node whose copy is to be kept";

/// Why an older copy does not lead by the word of the witness.
const OLDER_COPY: &str = "the witness knows of a later sync of this datastore than the store of this node: an older copy of the store was put \
                          back. Connect the nodes, put the newer store back, or run `lockstep promote --force-data-loss` here";

/// Why no node takes over by a witness of an earlier version.
const FORGETS_NAMES: &str = "the witness does not keep the name of the sync, so no node takes over by itself: its version is earlier than \
                             that of this node; upgrade the witness";
/// Time between two claims whose name the witness does not keep. The witness may be upgraded meanwhile.
const FORGETS_AGAIN: Duration = Duration::from_secs(60);

/// The time for which this node has had no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Silence {
    since: Duration,
    /// The session: its generation, and whether it is that of the primary.
    session: (Generation, bool),
    /// The number of connections of the session so far.
    connections: u64,
}

impl Silence {
    /// A silence that begins now.
    fn of(session: &Session, now: Duration) -> Self {
        let replication = session.replication();
        Self {
            since: now,
            session: (
                replication.generation(),
                matches!(session, Session::Primary(_)),
            ),
            connections: replication.peer.count(),
        }
    }
}

/// See the head of this file.
pub(crate) struct WitnessLoop<'a> {
    keeper: &'a RoleKeeper,
    line: &'a BoundWitness,
    times: FailoverTimes,
    silence: Silence,
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
        if let Some(questions) = WitnessLoop::new(self, witness, me) {
            questions.run();
        }
    }
}

impl<'a> WitnessLoop<'a> {
    /// The questions of one node, which is `me` for the witness. From now on the commands of an operator reach the witness,
    /// too. `None` for a datastore without a witness.
    pub fn new(keeper: &'a RoleKeeper, witness: Arc<dyn Witness>, me: Member) -> Option<Self> {
        let times = keeper.engine.config.failover()?;
        let limit = times.call();
        let line = keeper
            .witness
            .get_or_init(|| BoundWitness { witness, me, limit });
        let now = keeper.engine.host.now();
        Some(Self {
            keeper,
            line,
            times,
            silence: Silence::of(&keeper.session(), now),
            not_before: now,
            look_at: now,
            forgets_until: None,
        })
    }

    /// Asks until the datastore is stopped.
    pub fn run(mut self) {
        let engine = &self.keeper.engine;
        while !engine.is_stopping() {
            engine.host.sleep(POLL);
            if engine.poison.has_failed() {
                continue;
            }
            if engine.disk.watch.is_stuck() {
                self.wait_for_disk();
                continue;
            }
            self.listen();
            if engine.host.now() < self.not_before {
                continue;
            }
            if let Some(query) = self.facts().next() {
                self.ask(query);
            }
        }
    }

    /// A node whose disk hangs asks nothing: it could record no answer, and the other node may be about to take over (rule
    /// R12). Once the disk answers, the nodes get the time to meet.
    fn wait_for_disk(&mut self) {
        let now = self.keeper.engine.host.now();
        self.silence = Silence::of(&self.keeper.session(), now);
    }

    /// Measures the silence of the peer. A connection between two looks ends it, too.
    fn listen(&mut self) {
        let session = self.keeper.session();
        let heard = Silence::of(&session, self.keeper.engine.host.now());
        let is_same = Silence {
            since: self.silence.since,
            ..heard
        } == self.silence;
        if !is_same || session.replication().peer.is_connected() {
            self.silence = heard;
        }
    }

    /// Whether this node could record that it serves alone. Otherwise the secondary is to take over (rule R12).
    fn disk_answers(&self) -> bool {
        let silent_ms = self.keeper.engine.disk.watch.silent_ms();
        Duration::from_millis(silent_ms) < self.times.takeover()
    }

    fn has_been_silent(&self, limit: Duration) -> bool {
        self.keeper.engine.host.since(self.silence.since) >= limit
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
        let engine = &self.keeper.engine;
        let promise = &engine.witness.promise;
        promise.is_over(&*engine.host, self.takeover())
    }

    /// Whether changes have waited for a lost secondary for as long as they may (rules R1 and P23).
    fn has_waited_enough(&self, session: &PrimarySession) -> bool {
        let is_pointless = || {
            let core = session.replication.core.lock();
            core.are_pauses_used_up() || core.waits_for_stopped_peer()
        };
        self.disk_answers() && (self.has_been_silent(self.times.alone()) || is_pointless())
    }

    /// The facts on which the question of this moment depends.
    fn facts(&self) -> QueryFacts {
        let engine = &self.keeper.engine;
        let RoleState {
            record, unrecorded, ..
        } = engine.role_file.state();
        let session = self.keeper.session();
        let service = self.service(&session, record);
        let freezes = engine.config.policies.on_peer_loss == OnPeerLoss::Freeze;
        QueryFacts {
            record,
            unrecorded,
            service,
            authority: engine.witness.authority(),
            has_waited: !freezes
                && match &session {
                    Session::Primary(session) => {
                        service == Service::Paused && self.has_waited_enough(session)
                    }
                    _ => self.has_been_silent(self.times.alone()),
                },
            may_take_over: self.has_been_silent(self.takeover()) && self.is_released(),
            look_is_due: engine.host.now() >= self.look_at,
        }
    }

    fn service(&self, session: &Session, record: RoleRecord) -> Service {
        let replication = match session {
            Session::Undecided(_) => return Service::Undecided,
            Session::Secondary(_) => return Service::Secondary,
            Session::Primary(session) => &session.replication,
        };
        let engine = &self.keeper.engine;
        let cannot_record = |until| engine.host.now() < until;
        match replication.state_and_connected() {
            (State::LeavingSync, _) => Service::LeavingSync {
                may_serve_alone: engine.witness.permits(record.generation),
            },
            (State::Paused, _) => Service::Paused,
            (State::Synced, is_connected) => Service::Synced {
                is_recorded: is_connected && replication.peer.is_complete(),
                is_protected: engine.witness.protects()
                    || self.forgets_until.is_some_and(cannot_record),
            },
            _ => Service::Primary,
        }
    }

    fn ask(&mut self, query: WitnessQuery) {
        let engine = &self.keeper.engine;
        let mine = engine.role_file.state().record;
        // The next permit is given by the answer. A secondary that may take over ends every earlier one.
        if query == WitnessQuery::Protect {
            self.note_recorded();
            engine.witness.revoke();
        }
        let result = self.resolve(query, mine);
        let now = engine.host.now();
        self.look_at = now + LOOK;
        match result {
            Ok(result) => {
                let protects = result
                    .known
                    .is_some_and(|known| self.lets_secondary_take_over(mine, known));
                if query == WitnessQuery::Protect {
                    self.note_forgetting(result.forgets_names, now);
                }
                if result.is_older_copy {
                    engine.notes.set_obstacle(OLDER_COPY);
                }
                let trouble = match result.known {
                    None => Some(EMPTY_WITNESS),
                    Some(_) => self.forgets_until.map(|_| FORGETS_NAMES),
                };
                if engine.witness.note_answer(protects, trouble) {
                    tracing::info!(datastore = engine.name(), "the witness answers again");
                }
                self.not_before = now + self.pause_after(query, &result);
                self.apply(query, mine, &result);
            }
            Err(error) => {
                let is_claim = query != WitnessQuery::Look;
                if engine.witness.note_silence(&error, is_claim) {
                    tracing::warn!(datastore = engine.name(), %error, "no word of the witness");
                }
                self.not_before = now + self.times.beat();
            }
        }
    }

    /// Notes whether the witness has kept the name of the sync in the last claim.
    fn note_forgetting(&mut self, forgets_names: bool, now: Duration) {
        if forgets_names && self.forgets_until.is_none() {
            tracing::warn!(datastore = self.keeper.engine.name(), "{FORGETS_NAMES}");
        }
        self.forgets_until = forgets_names.then(|| now + FORGETS_AGAIN);
    }

    /// Time before the next question. A question whose answer has changed nothing is asked again, but not at once.
    fn pause_after(&self, query: WitnessQuery, result: &QueryResult) -> Duration {
        let is_settled = result.change.is_some() || query == WitnessQuery::Look;
        if is_settled {
            Duration::ZERO
        } else {
            self.times.beat()
        }
    }

    fn lets_secondary_take_over(&self, mine: RoleRecord, known: WitnessRecord) -> bool {
        let names = self.keeper.engine.standing().names;
        known.generation == mine.generation
            && known.in_sync == InSyncSet::Both
            && (known.primary == self.line.me) == mine.is_primary()
            && !is_older(&names, known)
            && (!mine.is_primary() || known.sync == names.last)
    }

    /// Asks the witness, and lets the role machine decide on the answers.
    fn resolve(&self, query: WitnessQuery, mine: RoleRecord) -> Result<QueryResult, WitnessError> {
        let engine = &self.keeper.engine;
        let names = engine.standing().names;
        match query {
            WitnessQuery::Look => Ok(QueryResult::look(self.line.read()?)),
            WitnessQuery::Tell(promotion) => {
                let known = match forced_claim::tell(self.line, promotion, names.last)? {
                    ForcedClaim::Known(now) => {
                        self.note_recorded();
                        now
                    }
                    ForcedClaim::Overtaken(later) => later,
                };
                Ok(QueryResult::look(Some(known)))
            }
            WitnessQuery::Alone | WitnessQuery::TakeOver | WitnessQuery::Protect => {
                let calls = NamedCalls::new(self.line, names, query == WitnessQuery::Protect);
                let on_power_loss = engine.config.policies.on_power_loss;
                claims::make(calls, query, mine, on_power_loss)
            }
        }
    }

    /// The witness knows of the last promotion by force, or both copies are equal again.
    fn note_recorded(&self) {
        let engine = &self.keeper.engine;
        if let Err(error) = engine.role_file.clear_unrecorded() {
            tracing::error!(datastore = engine.name(), %error, "the role file cannot be written");
        }
    }

    /// Acts on an answer, unless this node has another record by now.
    fn apply(&mut self, query: WitnessQuery, mine: RoleRecord, result: &QueryResult) {
        let keeper = self.keeper;
        let engine = &keeper.engine;
        let _changing = keeper.changing.acquire(&*engine.host);
        if engine.is_stopping() || engine.role_file.state().record != mine {
            return;
        }
        match result.action(query, mine, self.line.me) {
            AnswerAction::Nothing => {}
            AnswerAction::StopServing(later) => self.stop_serving(mine, later),
            AnswerAction::GoAlone => go_alone(keeper, mine),
            AnswerAction::Change(change) if change.to.is_primary() => self.take_over(change),
            AnswerAction::Change(change) => self.become_candidate(change),
        }
    }

    /// The witness has made this candidate the primary.
    fn take_over(&self, change: RoleChange) {
        // The witness goes on saying so: this node asks again.
        if !self.is_released() {
            return;
        }
        let (datastore, generation) = (self.keeper.engine.name(), change.to.generation.get());
        tracing::warn!(
            datastore,
            generation,
            "the witness has made this node the primary"
        );
        self.keeper.switch_role(change, SessionPart::Lead);
    }

    /// This secondary stands for the next generation. From then on it follows no earlier primary (rule R4).
    fn become_candidate(&mut self, change: RoleChange) {
        let keeper = self.keeper;
        let session = keeper.session();
        let peer = &session.replication().peer;
        let connections = self.silence.connections;
        let is_silent = !peer.is_connected() && peer.count() == connections;
        if matches!(session, Session::Primary(_)) || !is_silent || !self.is_released() {
            return;
        }
        let since = self.silence.since;
        let is_recorded = keeper.switch_role(change, SessionPart::Follow);
        self.silence = Silence::of(&keeper.session(), keeper.engine.host.now());
        // A primary that was here meanwhile has got a lease.
        if is_recorded && peer.count() == connections {
            self.silence.since = since;
        }
    }

    /// The witness has made the other node the primary of a later generation. That node may have lost its power before it
    /// led. So the record of that node decides, once the nodes meet (rule R9). It may also have served (rule R13).
    fn stop_serving(&self, mine: RoleRecord, later: Generation) {
        let keeper = self.keeper;
        keeper.note_peer_generation(later);
        if !mine.is_primary() {
            return;
        }
        let engine = &keeper.engine;
        engine.gate.end_tenure(&*engine.host);
        if keeper.local_copy().has_served_alone() {
            engine
                .notes
                .set_obstacle(&RoleConflict::BothServed.to_string());
        }
        keeper.switch_role(RoleChange::stop_serving(mine), SessionPart::Follow);
        // The nodes may not meet for long, and a node that has served alone had no lease that would end.
        keeper.tell_observers(|observer| observer.lapsed());
    }
}

/// Whether this node is a primary that serves once it has the word of the witness.
pub(super) fn waits_for_word(keeper: &RoleKeeper) -> bool {
    let Session::Primary(session) = keeper.session() else {
        return false;
    };
    let waits = matches!(
        session.replication.state(),
        State::Paused | State::Frozen | State::LeavingSync
    );
    waits && keeper.engine.witness.has_witness()
}

/// Lets a primary that waits for the answer of the witness serve alone, or an undecided one serve. The caller holds `changing`.
pub(super) fn go_alone(keeper: &RoleKeeper, mine: RoleRecord) {
    match keeper.session() {
        Session::Primary(session) => {
            keeper.engine.witness.permit(mine.generation);
            if session.replication.state() != State::LeavingSync {
                let granted = Event::Trigger(Trigger::OutOfSyncGranted);
                session
                    .replication
                    .handle_event(ThreadKind::MayWait, granted);
            }
        }
        Session::Undecided(_) => {
            keeper.switch_role(RoleChange::go_alone(mine), SessionPart::Lead);
        }
        Session::Secondary(_) => {}
    }
}
