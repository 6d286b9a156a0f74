//! Asks the witness for what this node may not decide alone: to serve without the secondary, to take over from the primary,
//! and to let the secondary take over (docs/protocol/roles.md).
//!
//! One thread asks, so one question at a time is under way. Each question gets a role machine that starts with the present
//! record. So a question whose answer was lost leaves nothing behind but a record of the witness that the next question
//! reads.
//!
//! Invariants:
//! - A secondary takes over once it has been without a primary for `failover_after`, and once its last promise is as old
//!   (`witness_state/takeover_promise.rs`). So each lease that it has given is over (rule R7), however long this thread or a call of the witness
//!   takes: the promise is looked at again before the candidature, and before the takeover.
//! - While the peer asks another witness, no question of this node leads to a change: both witnesses could grant it. While it
//!   asks none, neither node takes over.
//! - An answer changes nothing if the record of this node has changed since the question.

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::core::Event;
use lockstep_repl::state::{State, Trigger};
use lockstep_roles::{
    InSyncSet, Member, Phase, RoleConflict, RoleEffect, RoleEvent, RoleMachine, RoleRecord,
    RoleSettings, Told, UnrecordedPromotion, Witness, WitnessError, WitnessRecord,
};
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::{OnPeerLoss, OnPowerLoss, Role};

use super::forced_claim::{self, BoundWitness, ForcedClaim};
use super::keeper::RoleKeeper;
use super::named_calls::{NamedCalls, is_older};
use crate::config::FailoverTimes;
use crate::durable::role_file::RoleState;
use crate::host::ThreadKind;
use crate::session::Session;
use crate::session::build::SessionPart;
use crate::session::primary::PrimarySession;
use crate::witness_state::PeerWitness;

/// Time between two looks whether there is something to ask.
const POLL: Duration = Duration::from_millis(20);
/// Time between two questions that only keep the status and the protection right.
const LOOK: Duration = Duration::from_secs(5);
/// Most calls of the witness for one question. A claim that another one has overtaken is made again.
const CALLS_MAX: usize = 8;

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

/// A question to the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WitnessQuery {
    /// Primary: may this node serve without the peer?
    Alone,
    /// Secondary: may this node take over?
    TakeOver,
    /// Primary: the secondary may take over from now on.
    Protect,
    /// Primary by the word of an operator: only this node serves.
    Tell(UnrecordedPromotion),
    /// How do things stand?
    Look,
}

/// The answer to a question.
struct QueryResult {
    /// The record of this node from now on, if it changes.
    record: Option<RoleRecord>,
    /// The phase of the machine at the end.
    phase: Phase,
    /// The record of the witness.
    known: Option<WitnessRecord>,
    /// The witness has not kept the name of the sync.
    forgets_names: bool,
}

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
            if let Some(question) = self.question() {
                self.ask(question);
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

    /// The question of this moment.
    fn question(&self) -> Option<WitnessQuery> {
        let engine = &self.keeper.engine;
        let RoleState {
            record, unrecorded, ..
        } = engine.role_file.state();
        let is_due = engine.host.now() >= self.look_at;
        let look = is_due.then_some(WitnessQuery::Look);
        let tell = unrecorded
            .filter(|_| record.is_primary())
            .map(WitnessQuery::Tell);
        let peer = engine.witness.peer();
        if engine.witness.decides_nothing() {
            return tell.or(look);
        }
        // While only this node asks a witness, neither node takes over.
        let both_ask = peer == PeerWitness::Same;
        let freezes = engine.config.policies.on_peer_loss == OnPeerLoss::Freeze;
        match self.keeper.session() {
            Session::Primary(session) => {
                let (state, is_connected) = session.replication.state_and_connected();
                match state {
                    State::LeavingSync if !engine.witness.permits(record.generation) => {
                        Some(WitnessQuery::Alone)
                    }
                    State::Paused if !freezes && self.has_waited_enough(&session) => {
                        Some(WitnessQuery::Alone)
                    }
                    // Both records say before that the copies are equal (rule R8).
                    State::Synced
                        if both_ask
                            && is_connected
                            && session.replication.peer.is_complete()
                            && !engine.witness.protects()
                            && self
                                .forgets_until
                                .is_none_or(|until| engine.host.now() >= until) =>
                    {
                        Some(WitnessQuery::Protect)
                    }
                    _ => tell.or(look),
                }
            }
            Session::Secondary(_) if record.is_primary() && tell.is_some() => tell,
            Session::Secondary(_) if record.is_primary() => {
                // A primary whose secondary may be complete gives the peer the time to meet it.
                let waits = record.complete && record.peer_complete;
                if !waits || !freezes && self.has_been_silent(self.times.alone()) {
                    Some(WitnessQuery::Alone)
                } else {
                    look
                }
            }
            Session::Secondary(_) => {
                let is_due = self.has_been_silent(self.takeover()) && self.is_released();
                if both_ask && record.complete && is_due {
                    Some(WitnessQuery::TakeOver)
                } else {
                    look
                }
            }
        }
    }

    fn ask(&mut self, question: WitnessQuery) {
        let engine = &self.keeper.engine;
        let mine = engine.role_file.state().record;
        // The next permit is given by the answer. A secondary that may take over ends every earlier one.
        if question == WitnessQuery::Protect {
            self.note_recorded();
            engine.witness.revoke();
        }
        let ruling = self.rule(question, mine);
        let now = engine.host.now();
        self.look_at = now + LOOK;
        match ruling {
            Ok(ruling) => {
                let protects = ruling
                    .known
                    .is_some_and(|known| self.lets_secondary_take_over(mine, known));
                if question == WitnessQuery::Protect {
                    self.note_forgetting(ruling.forgets_names, now);
                }
                let trouble = match ruling.known {
                    None => Some(EMPTY_WITNESS),
                    Some(_) => self.forgets_until.map(|_| FORGETS_NAMES),
                };
                if engine.witness.note_answer(protects, trouble) {
                    tracing::info!(datastore = engine.name(), "the witness answers again");
                }
                self.not_before = now + self.pause_after(question, &ruling);
                self.act(question, mine, &ruling);
            }
            Err(error) => {
                let is_claim = question != WitnessQuery::Look;
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
    fn pause_after(&self, question: WitnessQuery, ruling: &QueryResult) -> Duration {
        let is_settled = ruling.record.is_some() || question == WitnessQuery::Look;
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

    /// Lets a role machine decide on the answers of the witness.
    fn rule(&self, question: WitnessQuery, mine: RoleRecord) -> Result<QueryResult, WitnessError> {
        match question {
            WitnessQuery::Look => return Ok(look(self.line.read()?)),
            WitnessQuery::Tell(promotion) => return Ok(look(Some(self.tell(promotion)?))),
            WitnessQuery::Alone | WitnessQuery::TakeOver | WitnessQuery::Protect => {}
        }
        let settings = RoleSettings {
            me: self.line.me,
            has_witness: true,
            on_power_loss: self.on_power_loss(),
        };
        let mine = if question == WitnessQuery::TakeOver && is_active(Mutant::StandUnrecorded) {
            mine.stand()
        } else {
            mine
        };
        let (mut machine, _) = RoleMachine::start(settings, mine, false);
        let mut queue = begin(&mut machine, question, mine);
        let engine = &self.keeper.engine;
        let must_know = question == WitnessQuery::Protect;
        let mut calls = NamedCalls::new(self.line, engine.standing().names, must_know);
        for _ in 0..CALLS_MAX {
            let now = match queue.iter().find(|effect| is_call(effect)) {
                // An older copy is to be granted nothing. The record that the witness has is an answer to any claim.
                Some(RoleEffect::Claim(claim)) if calls.has_told => calls.claim(claim)?,
                Some(_) => calls.read()?,
                None => break,
            };
            if calls.is_older_copy() {
                engine.notes.set_obstacle(OLDER_COPY);
                return Ok(look(calls.told));
            }
            queue = machine.handle(RoleEvent::WitnessAnswered(now));
            if calls.forgets_names && must_know {
                break; // the machine would make the same claim again
            }
        }
        Ok(QueryResult {
            record: queue.iter().find_map(recorded),
            phase: machine.phase(),
            known: calls.told,
            forgets_names: calls.forgets_names,
        })
    }

    /// Tells the witness of a promotion by force.
    fn tell(&self, promotion: UnrecordedPromotion) -> Result<WitnessRecord, WitnessError> {
        let sync = self.keeper.engine.standing().names.last;
        match forced_claim::tell(self.line, promotion, sync)? {
            ForcedClaim::Known(now) => {
                self.note_recorded();
                Ok(now)
            }
            ForcedClaim::Overtaken(later) => Ok(later),
        }
    }

    /// The witness knows of the last promotion by force, or both copies are equal again.
    fn note_recorded(&self) {
        let engine = &self.keeper.engine;
        if let Err(error) = engine.role_file.clear_unrecorded() {
            tracing::error!(datastore = engine.name(), %error, "the role file cannot be written");
        }
    }

    fn on_power_loss(&self) -> OnPowerLoss {
        self.keeper.engine.config.policies.on_power_loss
    }

    /// Acts on an answer, unless this node has another record by now.
    fn act(&mut self, question: WitnessQuery, mine: RoleRecord, ruling: &QueryResult) {
        let keeper = self.keeper;
        let engine = &keeper.engine;
        let _changing = keeper.changing.acquire(&*engine.host);
        if engine.is_stopping() || engine.role_file.state().record != mine {
            return;
        }
        let is_later = |known: &WitnessRecord| match question {
            WitnessQuery::Tell(promotion) => promotion.is_overtaken_by(*known, self.line.me),
            WitnessQuery::TakeOver if is_active(Mutant::StandUnrecorded) => false,
            _ => known.generation > mine.generation,
        };
        if let Some(known) = ruling.known.filter(is_later) {
            return self.stop_serving(mine, known.generation);
        }
        let goes_alone = question == WitnessQuery::Alone && ruling.phase == Phase::Alone
            || ruling
                .record
                .is_some_and(|record| record == mine.without_peer() && mine.is_primary());
        if goes_alone {
            let is_undecided = matches!(keeper.session(), Session::Secondary(_));
            if is_undecided {
                keeper.assume(mine, mine.without_peer(), SessionPart::Lead);
            } else {
                go_alone(keeper, mine);
            }
            return;
        }
        match ruling.record {
            Some(record) if record.is_primary() => self.take_over(mine, record),
            Some(record) if record.is_candidate => self.stand(mine, record),
            _ => {}
        }
    }

    /// The witness has made this candidate the primary.
    fn take_over(&self, mine: RoleRecord, record: RoleRecord) {
        // The witness goes on saying so: this node asks again.
        if !self.is_released() {
            return;
        }
        let (datastore, generation) = (self.keeper.engine.name(), record.generation.get());
        tracing::warn!(
            datastore,
            generation,
            "the witness has made this node the primary"
        );
        self.keeper.assume(mine, record, SessionPart::Lead);
    }

    /// This secondary stands for the next generation. From then on it follows no earlier primary (rule R4).
    fn stand(&mut self, mine: RoleRecord, record: RoleRecord) {
        let keeper = self.keeper;
        let session = keeper.session();
        let peer = &session.replication().peer;
        let connections = self.silence.connections;
        let is_silent = !peer.is_connected() && peer.count() == connections;
        if matches!(session, Session::Primary(_)) || !is_silent || !self.is_released() {
            return;
        }
        let since = self.silence.since;
        let is_recorded = keeper.assume(mine, record, SessionPart::Follow);
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
        keeper.assume(mine, mine, SessionPart::Follow);
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

/// Lets a primary that waits for the word of the witness serve alone.
pub(super) fn go_alone(keeper: &RoleKeeper, mine: RoleRecord) {
    let Session::Primary(session) = keeper.session() else {
        return;
    };
    keeper.engine.witness.permit(mine.generation);
    if session.replication.state() != State::LeavingSync {
        let granted = Event::Trigger(Trigger::OutOfSyncGranted);
        session
            .replication
            .handle_event(ThreadKind::MayWait, granted);
    }
}

/// Gives a machine the events after which it asks.
fn begin(machine: &mut RoleMachine, question: WitnessQuery, mine: RoleRecord) -> Vec<RoleEffect> {
    match question {
        WitnessQuery::Alone => {
            let paused = machine.handle(RoleEvent::PauseOver);
            if paused.is_empty() {
                // A primary that starts has promised nothing to anybody.
                machine.handle(RoleEvent::LeaseOver)
            } else {
                paused
            }
        }
        WitnessQuery::TakeOver => machine.handle(RoleEvent::LeaseOver),
        WitnessQuery::Protect => {
            let theirs = RoleRecord {
                role: Role::Secondary,
                peer_complete: false,
                ..mine
            };
            let told = Told {
                record: theirs,
                seen: Some(mine),
            };
            machine.handle(RoleEvent::PeerTold(told));
            machine.handle(RoleEvent::CopiesEqual)
        }
        WitnessQuery::Tell(_) | WitnessQuery::Look => Vec::new(),
    }
}

/// A look at the record of the witness asks for nothing.
const fn look(known: Option<WitnessRecord>) -> QueryResult {
    QueryResult {
        record: None,
        phase: Phase::Unsure,
        known,
        forgets_names: false,
    }
}

const fn is_call(effect: &RoleEffect) -> bool {
    matches!(effect, RoleEffect::AskWitness | RoleEffect::Claim(_))
}

const fn recorded(effect: &RoleEffect) -> Option<RoleRecord> {
    match effect {
        RoleEffect::Record(record) => Some(*record),
        _ => None,
    }
}
