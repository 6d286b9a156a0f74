//! The role machine of one node: events in, effects out.
//!
//! The driver gives a machine one event after another. After [`RoleEffect::Record`] the next event is [`RoleEvent::Recorded`],
//! once the record is durable, or [`RoleEvent::Disconnected`]; the driver holds back every other event until then. So nothing
//! acts on a record that a power loss could take.
//!
//! Invariants:
//! - A primary acknowledges an operation after both nodes have it, or in [`Phase::Alone`].
//! - A machine enters `Alone` only after its record says that the peer lacks operations; and, while the peer's record may
//!   say that the peer is complete, only after the witness has recorded the same.
//! - A secondary becomes primary only by a grant of the primary, by the witness, or by an operator.

use lockstep_types::settings::{OnPowerLoss, Role};

mod relabel;

use crate::change::{RoleChange, RoleChangeKind};
use crate::event::{Phase, RoleEffect, RoleEvent, RoleSettings, Told};
use crate::record::RoleRecord;
use crate::witness::{Claim, InSyncSet, WitnessRecord};

/// The purpose of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    /// Primary: serve without the peer.
    GoAlone,
    /// Secondary: become the primary.
    TakeOver,
    /// Primary: let the secondary take over from now on.
    Protect,
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoleMachine {
    settings: RoleSettings,
    record: RoleRecord,
    phase: Phase,
    /// The record that is being made durable, and the phase after it.
    recording: Option<(RoleRecord, Phase)>,
    /// The peer's record, while the peer is connected.
    peer: Option<RoleRecord>,
    /// The peer has told its record after it has seen the present record of this node.
    is_met: bool,
    /// The record that the witness will have after a claim whose answer is not known.
    claimed: Option<WitnessRecord>,
    /// The purpose of the question or claim to the witness.
    want: Option<Purpose>,
    /// Secondary: the lease of the primary is over, and this node has promised nothing since.
    promise_is_over: bool,
}

type RoleEffects = Vec<RoleEffect>;

impl RoleMachine {
    /// A machine that starts with the durable record, and its first effects.
    pub fn start(
        settings: RoleSettings,
        found: RoleRecord,
        lost_power: bool,
    ) -> (Self, RoleEffects) {
        let record = if lost_power {
            found.after_power_loss()
        } else {
            found
        };
        let mut machine = Self {
            settings,
            record: found,
            phase: Phase::Unsure,
            recording: None,
            peer: None,
            is_met: false,
            claimed: None,
            want: None,
            promise_is_over: false,
        };
        let mut effects = RoleEffects::new();
        let phase = machine.first_phase(record);
        machine.record(RoleChangeKind::Mark, record, phase, &mut effects);
        (machine, effects)
    }

    /// The machine of a primary that is in sync with its connected secondary, by both records (rule R8).
    pub fn mirrored(settings: RoleSettings, record: RoleRecord) -> Self {
        let (machine, _) = Self::start(settings, record, false);
        Self {
            phase: Phase::Mirrored,
            ..machine
        }
    }

    fn first_phase(&self, record: RoleRecord) -> Phase {
        let has_witness = self.settings.has_witness;
        match record.role {
            Role::Secondary => Phase::Standby,
            Role::Primary if !record.complete => Phase::Unsure,
            // The peer may have been promoted or may have taken over while this process was down.
            Role::Primary if record.peer_complete && has_witness => Phase::Paused,
            Role::Primary if record.peer_complete || has_witness => Phase::Unsure,
            Role::Primary => Phase::Alone,
        }
    }

    /// The present work of this node.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The durable record.
    pub const fn durable(&self) -> RoleRecord {
        self.record
    }

    /// Whether the connected peer knows the present record of this node, and has told its own since.
    pub const fn is_met(&self) -> bool {
        self.is_met
    }

    /// The message for the peer at the begin of a connection.
    pub const fn greeting(&self) -> Told {
        Told {
            record: self.record,
            seen: self.peer,
        }
    }

    /// Decides on an event. Returns the tasks for the driver, in their order.
    pub fn handle(&mut self, event: RoleEvent) -> RoleEffects {
        let mut effects = RoleEffects::new();
        match event {
            RoleEvent::PeerTold(told) => self.hear(told, &mut effects),
            RoleEvent::Disconnected => self.disconnected(),
            RoleEvent::Recorded => self.recorded(&mut effects),
            RoleEvent::WitnessAnswered(now) => self.answered(now, &mut effects),
            RoleEvent::WitnessSilent => (self.claimed, self.want) = (None, None),
            RoleEvent::PauseOver => self.pause_over(&mut effects),
            RoleEvent::LeaseOver => self.lease_over(&mut effects),
            RoleEvent::Tick => self.tick(&mut effects),
            RoleEvent::CopiesEqual => self.copies_equal(&mut effects),
            RoleEvent::CopyIsEqual => self.copy_is_equal(&mut effects),
            RoleEvent::HandOver => self.hand_over(&mut effects),
            RoleEvent::Promote => self.promote(&mut effects),
        }
        effects
    }

    // Records.

    /// Has the driver make a record durable, before this node enters a phase.
    fn record(
        &mut self,
        kind: RoleChangeKind,
        record: RoleRecord,
        phase: Phase,
        effects: &mut RoleEffects,
    ) {
        let change = RoleChange::new(kind, self.record, record);
        if !change.changes_record() {
            return self.enter(phase, effects);
        }
        if change.steps_down() {
            // A primary serves nothing from the moment on at which it gives its role away.
            self.phase = Phase::Standby;
        }
        self.recording = Some((record, phase));
        effects.push(RoleEffect::Record(change));
    }

    /// The peer's copy is not complete from now on.
    fn go_alone(&mut self, effects: &mut RoleEffects) {
        let record = self.record.without_peer();
        self.record(RoleChangeKind::GoAlone, record, Phase::Alone, effects);
    }

    fn recorded(&mut self, effects: &mut RoleEffects) {
        let Some((record, phase)) = self.recording.take() else {
            return;
        };
        if record.generation != self.record.generation {
            // An answer to an earlier claim says nothing about this generation.
            (self.claimed, self.want) = (None, None);
        }
        self.record = record;
        self.is_met = false;
        effects.push(RoleEffect::TellPeer(self.greeting()));
        self.enter(phase, effects);
    }

    fn enter(&mut self, phase: Phase, effects: &mut RoleEffects) {
        self.phase = phase;
        if self.peer.is_none() {
            self.leave_connected();
        }
        self.ask_if_unsure(effects);
        if self.phase == Phase::Mirrored {
            self.protect(effects);
        }
    }

    fn ask_if_unsure(&mut self, effects: &mut RoleEffects) {
        let is_unsure = self.phase == Phase::Unsure && self.promise_is_over;
        if is_unsure && self.settings.has_witness {
            self.ask(None, effects);
        }
    }

    // The peer.

    fn disconnected(&mut self) {
        self.peer = None;
        self.is_met = false;
        self.leave_connected();
    }

    fn leave_connected(&mut self) {
        self.phase = match self.phase {
            Phase::Entering | Phase::Mirrored | Phase::CatchingUp => Phase::Paused,
            Phase::Following => Phase::Standby,
            phase => phase,
        };
    }

    /// A node acts on the record of its peer once the peer has seen its own. A message that crossed a change of this
    /// node's record says nothing about the time after the change.
    fn hear(&mut self, told: Told, effects: &mut RoleEffects) {
        let is_news = self.peer.replace(told.record) != Some(told.record);
        self.promise_is_over = false;
        self.is_met = told.seen == Some(self.record);
        if self.is_met || told.record.generation > self.record.generation {
            self.compare(told.record, effects);
        }
        // A record that is being made tells the peer the same, and more.
        if is_news && self.recording.is_none() {
            effects.insert(0, RoleEffect::TellPeer(self.greeting()));
        }
    }

    /// Compares the records of both nodes: both come to the same result.
    fn compare(&mut self, theirs: RoleRecord, effects: &mut RoleEffects) {
        let mine = self.record;
        if self.is_met && mine.gives_way_to(&theirs) {
            // The witness may still grant this node's generation: the one after it is beyond that.
            let generation = mine.generation.max(theirs.generation).next();
            // No node has served since two complete copies were secondaries: both stay complete.
            let is_complete = theirs.peer_complete || !theirs.is_primary();
            let record = mine.follow(generation, is_complete);
            self.record(RoleChangeKind::GiveWay, record, Phase::Standby, effects);
        } else if theirs.generation > mine.generation {
            self.meet_later(theirs, effects);
        } else if theirs.generation == mine.generation {
            match (mine.role, theirs.role) {
                (Role::Primary, Role::Secondary) => self.meet_secondary(theirs, effects),
                (Role::Secondary, Role::Primary) => self.meet_primary(theirs, effects),
                // The peer has granted the generation for which this node stands.
                (Role::Secondary, Role::Secondary) if mine.is_candidate && !theirs.is_candidate => {
                    let record = mine.lead(theirs.generation, theirs.complete);
                    self.lead_by_grant(record, theirs, effects);
                }
                (Role::Primary, Role::Primary) | (Role::Secondary, Role::Secondary) => {}
            }
        }
    }

    /// The peer is of a later generation.
    fn meet_later(&mut self, theirs: RoleRecord, effects: &mut RoleEffects) {
        let (mine, generation) = (self.record, theirs.generation);
        if theirs.is_primary() {
            let record = mine.follow(generation, theirs.peer_complete);
            let kind = if mine.is_primary() {
                RoleChangeKind::Deposed
            } else {
                RoleChangeKind::Follow
            };
            self.record(kind, record, Phase::Following, effects);
        } else if !theirs.is_candidate {
            // The peer has granted that generation to this node.
            let was_protected = !mine.is_primary() || mine.peer_complete;
            let peer_complete = theirs.complete && was_protected;
            self.lead_by_grant(mine.lead(generation, peer_complete), theirs, effects);
        }
    }

    fn meet_secondary(&mut self, theirs: RoleRecord, effects: &mut RoleEffects) {
        let mine = self.record;
        match (mine.complete, theirs.complete) {
            (false, true) => {
                self.record(RoleChangeKind::Grant, mine.grant(), Phase::Standby, effects);
            }
            // Neither copy is better, or the peer's copy is worse.
            (false, false) => self.go_alone(effects),
            (true, true) if mine.peer_complete => self.meet_complete(effects),
            // The peer is about to hear that its copy is not complete.
            (true, true) => {}
            (true, false) if self.phase == Phase::Entering => {}
            (true, false) => {
                // The peer's own record keeps it from taking over.
                self.go_alone(effects);
                if self.phase == Phase::Alone {
                    effects.push(RoleEffect::Resync);
                }
            }
        }
    }

    fn meet_complete(&mut self, effects: &mut RoleEffects) {
        match self.phase {
            Phase::Entering => self.enter(Phase::Mirrored, effects),
            Phase::Mirrored | Phase::CatchingUp => {}
            _ => {
                self.phase = Phase::CatchingUp;
                effects.push(RoleEffect::Recover);
            }
        }
    }

    fn meet_primary(&mut self, theirs: RoleRecord, effects: &mut RoleEffects) {
        if !theirs.complete {
            // The primary has lost power. It grants the role, or finds its own copy the best.
            return;
        }
        let complete = self.record.complete && theirs.peer_complete;
        // A node that follows stands for nothing any more: an operator may have forced both nodes into this generation.
        let record = RoleRecord {
            is_candidate: false,
            complete,
            ..self.record
        };
        self.record(RoleChangeKind::Mark, record, Phase::Following, effects);
    }

    // The witness.

    /// Asks the witness for its record, to claim what `purpose` needs. Nothing is remembered of earlier answers.
    fn ask(&mut self, purpose: Option<Purpose>, effects: &mut RoleEffects) {
        (self.claimed, self.want) = (None, purpose);
        effects.push(RoleEffect::AskWitness);
    }

    /// Claims what `purpose` needs. A secondary that may take over records its candidature before its first claim.
    fn pursue(&mut self, known: WitnessRecord, purpose: Purpose, effects: &mut RoleEffects) {
        let is_takeover = purpose == Purpose::TakeOver;
        if is_takeover && !self.record.is_candidate {
            // A peer that is here may be the primary.
            if self.peer.is_none() {
                self.record(
                    RoleChangeKind::BecomeCandidate,
                    self.record.stand(),
                    Phase::Standby,
                    effects,
                );
            }
        } else {
            self.claim(Some(known), purpose, effects);
        }
    }

    /// Whether this node may take over from the primary of a record.
    fn may_replace(&self, known: WitnessRecord) -> bool {
        known.in_sync == InSyncSet::Both || known.primary == self.settings.me
    }

    /// Every claim changes the record, if only its number. So a claim that is late on its way finds another record than
    /// the expected one, and changes nothing any more.
    fn claim(
        &mut self,
        expected: Option<WitnessRecord>,
        purpose: Purpose,
        effects: &mut RoleEffects,
    ) {
        let generation = self.record.generation;
        let new = WitnessRecord {
            change: expected.map_or(0, |known| known.change + 1),
            generation,
            primary: self.settings.me,
            in_sync: match purpose {
                Purpose::GoAlone | Purpose::TakeOver => InSyncSet::PrimaryOnly,
                Purpose::Protect => InSyncSet::Both,
            },
            sync: None,
        };
        (self.claimed, self.want) = (Some(new), Some(purpose));
        effects.push(RoleEffect::Claim(Claim { expected, new }));
    }

    /// Lets the secondary take over from now on, if the witness does not know yet that it may.
    fn protect(&mut self, effects: &mut RoleEffects) {
        if self.settings.has_witness {
            self.ask(Some(Purpose::Protect), effects);
        }
    }

    fn is_protected(&self, known: WitnessRecord) -> bool {
        let (me, generation) = (self.settings.me, self.record.generation);
        (known.generation, known.primary, known.in_sync) == (generation, me, InSyncSet::Both)
    }

    fn answered(&mut self, now: Option<WitnessRecord>, effects: &mut RoleEffects) {
        let claimed = self.claimed.take();
        let Some(now) = now else {
            return self.meet_empty_witness(effects);
        };
        let (mine, wanted) = (self.record, self.want.take());
        if now.generation > mine.generation {
            return self.stop_serving();
        }
        let is_mine = now.generation == mine.generation && now.primary == self.settings.me;
        if is_mine && mine.is_candidate && mine.complete {
            self.take_over(now, effects);
        } else if claimed == Some(now) {
            self.granted(wanted, effects);
        } else {
            self.meet_known_generation(now, wanted, effects);
        }
    }

    /// The witness has made the other node the primary. That node may have lost its power before it led: then this copy
    /// is the better one. So the record of the other node decides, once the nodes meet.
    fn stop_serving(&mut self) {
        if self.record.is_primary() {
            self.phase = Phase::Unsure;
        }
    }

    /// The witness knows this generation, or one before it.
    fn meet_known_generation(
        &mut self,
        now: WitnessRecord,
        wanted: Option<Purpose>,
        effects: &mut RoleEffects,
    ) {
        match (self.phase, wanted) {
            // After a power loss the peer may hold more, also if the witness denies that: the witness may not know yet that the
            // peer is complete.
            (Phase::Unsure, _) if self.record.complete || self.serves_after_power_loss() => {
                self.pursue(now, Purpose::GoAlone, effects);
            }
            // The primary serves without this node.
            (Phase::Standby, _) if !self.may_replace(now) => {}
            (Phase::Paused, Some(purpose @ Purpose::GoAlone))
            | (Phase::Standby, Some(purpose @ Purpose::TakeOver)) => {
                self.pursue(now, purpose, effects);
            }
            (Phase::Mirrored, Some(purpose @ Purpose::Protect)) if !self.is_protected(now) => {
                self.pursue(now, purpose, effects);
            }
            _ => {}
        }
    }

    /// A new witness knows nothing. Only two connected nodes may tell it how things stand: a node that cannot reach its
    /// peer may have been deposed by the witness before.
    fn meet_empty_witness(&mut self, effects: &mut RoleEffects) {
        if self.phase == Phase::Mirrored && self.want.take() == Some(Purpose::Protect) {
            self.claim(None, Purpose::Protect, effects);
        }
    }

    /// The witness has granted a claim of a primary.
    fn granted(&mut self, wanted: Option<Purpose>, effects: &mut RoleEffects) {
        match (wanted, self.phase) {
            (Some(Purpose::GoAlone), Phase::Paused | Phase::Unsure) => {
                self.go_alone(effects);
            }
            // The peer is back: the witness learns that the peer is protected again.
            (Some(Purpose::GoAlone), Phase::Mirrored) => self.protect(effects),
            _ => {}
        }
    }

    fn serves_after_power_loss(&self) -> bool {
        self.settings.on_power_loss == OnPowerLoss::Serve
    }

    // Becoming primary or secondary.

    /// The witness has made this node the primary. The claim may be late: meanwhile this node may have followed the old
    /// primary again, which then has a lease.
    fn take_over(&mut self, now: WitnessRecord, effects: &mut RoleEffects) {
        let record = self
            .record
            .lead(now.generation, now.in_sync == InSyncSet::Both);
        if self.promise_is_over {
            self.lead(RoleChangeKind::TakeOver, record, effects);
        } else {
            self.record(RoleChangeKind::TakeOver, record, Phase::TakingOver, effects);
        }
    }

    /// A peer that calls itself complete may take over, until it has heard that it is not.
    fn lead_by_grant(&mut self, record: RoleRecord, theirs: RoleRecord, effects: &mut RoleEffects) {
        if record.complete && theirs.complete {
            self.record(RoleChangeKind::LeadByGrant, record, Phase::Paused, effects);
        } else {
            self.lead(RoleChangeKind::LeadByGrant, record, effects);
        }
    }

    fn lead(&mut self, kind: RoleChangeKind, record: RoleRecord, effects: &mut RoleEffects) {
        let phase = match (record.complete, record.peer_complete) {
            (false, _) => Phase::Unsure,
            (true, true) => Phase::Paused,
            (true, false) => Phase::Alone,
        };
        self.record(kind, record, phase, effects);
    }

    // Time.

    fn pause_over(&mut self, effects: &mut RoleEffects) {
        if self.phase != Phase::Paused {
            return;
        }
        if self.settings.has_witness {
            self.ask(Some(Purpose::GoAlone), effects);
        } else {
            self.go_alone(effects);
        }
    }

    fn lease_over(&mut self, effects: &mut RoleEffects) {
        self.promise_is_over = true;
        match self.phase {
            Phase::TakingOver => self.lead(RoleChangeKind::Serve, self.record, effects),
            Phase::Unsure | Phase::Standby if !self.settings.has_witness => {}
            // The witness comes first: if the primary serves alone already, its generation stays the latest one.
            Phase::Standby if self.record.complete => self.ask(Some(Purpose::TakeOver), effects),
            Phase::Unsure | Phase::Standby => self.ask(None, effects),
            _ => {}
        }
    }

    /// Asks the witness again: a question or its answer may be lost.
    fn tick(&mut self, effects: &mut RoleEffects) {
        match self.phase {
            Phase::Unsure => self.ask_if_unsure(effects),
            Phase::Mirrored => self.protect(effects),
            _ => {}
        }
    }

    // Copies and operators.

    fn copies_equal(&mut self, effects: &mut RoleEffects) {
        let Some(theirs) = self.peer else {
            return;
        };
        match self.phase {
            Phase::CatchingUp => self.enter(Phase::Mirrored, effects),
            Phase::Alone if self.is_met && !theirs.complete => {
                let record = RoleRecord {
                    peer_complete: true,
                    ..self.record
                };
                self.record(RoleChangeKind::Mark, record, Phase::Entering, effects);
            }
            _ => {}
        }
    }

    fn copy_is_equal(&mut self, effects: &mut RoleEffects) {
        if self.phase == Phase::Following {
            let record = RoleRecord {
                complete: true,
                ..self.record
            };
            self.record(RoleChangeKind::Mark, record, Phase::Following, effects);
        }
    }

    fn hand_over(&mut self, effects: &mut RoleEffects) {
        if self.phase == Phase::Mirrored {
            self.record(
                RoleChangeKind::Grant,
                self.record.grant(),
                Phase::Standby,
                effects,
            );
        }
    }

    fn promote(&mut self, effects: &mut RoleEffects) {
        if self.settings.has_witness || !self.record.complete || self.peer.is_some() {
            return;
        }
        match self.phase {
            Phase::Standby => {
                let record = self.record.lead(self.record.generation.next(), false);
                self.lead(RoleChangeKind::Promote, record, effects);
            }
            Phase::Unsure => self.go_alone(effects),
            _ => {}
        }
    }
}
