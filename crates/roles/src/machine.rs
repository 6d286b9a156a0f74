//! The role machine of one node: it decides who serves. Events in, effects out.
//!
//! One machine lives as long as a datastore is open. The driver brings each event with the [`RoleFacts`] of the moment, and
//! carries the effects out. The role file owns the durable record; the machine keeps what a process forgets: the solo grant,
//! what the other node and the witness have said, and the questions to the witness that are under way.
//!
//! Invariants:
//! - An event that may change the role comes from the thread that may change the role at that moment: the record of the facts
//!   is the record that the change begins with.
//! - A secondary becomes the primary only by a grant of the primary, by the witness, or by an operator.
//! - While the peer asks another witness, no answer leads to a change: both witnesses could grant it. While the peer asks none,
//!   neither node takes over.

mod asking;
mod command;
mod exchange;
mod relabel;
mod settle;

use lockstep_types::Generation;

use crate::event::{Asker, RoleEffect, RoleEvent, SessionEvent};
use crate::facts::{RoleFacts, SessionState};
use crate::forced::ForcedPromotion;
use crate::query::{PeerWitness, WitnessAuthority, WitnessQuery};
use crate::question::Question;
use crate::record::RoleRecord;
use crate::solo::{SoloEnds, SoloGrant};

/// What the other node has said at the last role exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PeerKnowledge {
    /// The latest generation that the other node, or the witness, has named since the start of this process.
    generation: Generation,
    /// The witness that the other node asks.
    witness: PeerWitness,
    /// This node is a primary with an older copy than the complete one of the other node (rule P17).
    has_newer_copy: bool,
}

/// What the witness has said last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct WitnessKnowledge {
    /// The witness has answered the last call.
    answers: bool,
    /// The witness lets the secondary take over.
    protects: bool,
}

/// Everything that a machine knows beside the questions that are under way. Equal knowledge allows the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleKnowledge {
    solo: SoloGrant,
    peer: PeerKnowledge,
    witness: WitnessKnowledge,
}

/// What a machine has heard of the witness, for the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WitnessReport {
    /// The witness has answered the last call.
    pub answers: bool,
    /// The witness lets the secondary take over.
    pub protects: bool,
    /// The witness that the other node asks.
    pub peer: PeerWitness,
    /// This node is a primary with an older copy than the complete one of the other node.
    pub is_outdated: bool,
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoleMachine {
    solo: SoloGrant,
    peer: PeerKnowledge,
    witness: WitnessKnowledge,
    /// The question of the thread that watches the other node.
    question: Option<Question>,
    /// The promotion by force that is under way.
    forced: Option<ForcedPromotion>,
}

type RoleEffects = Vec<RoleEffect>;

impl Default for RoleMachine {
    fn default() -> Self {
        Self {
            solo: SoloGrant::default(),
            peer: PeerKnowledge {
                generation: Generation::FIRST,
                witness: PeerWitness::Same,
                has_newer_copy: false,
            },
            witness: WitnessKnowledge::default(),
            question: None,
            forced: None,
        }
    }
}

impl RoleMachine {
    /// Decides on an event. Returns the tasks for the driver, in their order.
    pub fn handle(&mut self, facts: &RoleFacts, event: RoleEvent) -> RoleEffects {
        match event {
            RoleEvent::Offered(offered) => self.offered(facts, &offered),
            RoleEvent::OfferedToFailedDisk(offered) => self.offered_to_failed_disk(facts, &offered),
            RoleEvent::Due(due) => self.ask_if_due(facts, due),
            RoleEvent::Answered(answered) => match answered.asker {
                Asker::Watch => self.question_answered(facts, &answered),
                Asker::Command => self.command_answered(facts, &answered),
            },
            RoleEvent::Silent(Asker::Watch) => self.witness_is_silent(),
            RoleEvent::Silent(Asker::Command) => self.command_unanswered(facts),
            RoleEvent::Settle(settle) => self.settle(facts, &settle),
            RoleEvent::DiskHangs { may_peer_hang } => self.disk_hangs(facts, may_peer_hang),
            RoleEvent::HandOver => Self::hand_over(facts),
            RoleEvent::Demote => self.demote(facts),
            RoleEvent::Promote { accepts_loss } => self.promote(facts, accepts_loss),
            RoleEvent::Changed => self.command_changed(facts),
        }
    }

    /// Notes an occurrence in the replication.
    pub const fn note_session(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Begins | SessionEvent::Renamed => self.witness.protects = false,
            SessionEvent::EntersSync => self.solo.end(),
            SessionEvent::SecondaryFollows(generation) => self.solo.grant(generation),
        }
    }

    /// The knowledge of this moment.
    pub const fn knowledge(&self) -> RoleKnowledge {
        RoleKnowledge {
            solo: self.solo,
            peer: self.peer,
            witness: self.witness,
        }
    }

    /// Whether a primary may acknowledge alone.
    pub fn may_serve_alone(&self, has_witness: bool, generation: Generation) -> bool {
        !has_witness || self.solo.covers(generation)
    }

    /// The moment before the first message of a role exchange.
    pub const fn solo_ends(&self) -> SoloEnds {
        self.solo.ends()
    }

    /// Whether this primary may not serve alone yet, and asks the secondary to record that its copy is not complete: the primary
    /// has no other way (rule R1).
    pub fn asks_incomplete_mark(&self, facts: &RoleFacts) -> bool {
        facts.session == SessionState::LeavingSync
            && !self.may_serve_alone(facts.settings.has_witness, facts.record.generation)
    }

    /// The answers of the witness, for the status.
    pub const fn witness_report(&self) -> WitnessReport {
        WitnessReport {
            answers: self.witness.answers,
            protects: self.witness.protects,
            peer: self.peer.witness,
            is_outdated: self.peer.has_newer_copy,
        }
    }

    /// The latest generation that is known beside the record of this node.
    fn latest_generation(&self, mine: RoleRecord) -> Generation {
        self.peer.generation.max(mine.generation)
    }

    fn note_generation(&mut self, generation: Generation) {
        self.peer.generation = self.peer.generation.max(generation);
    }

    /// What an answer of the witness may decide.
    const fn authority(&self) -> WitnessAuthority {
        match self.peer.witness {
            _ if self.peer.has_newer_copy => WitnessAuthority::None,
            PeerWitness::Other => WitnessAuthority::None,
            PeerWitness::None => WitnessAuthority::NoTakeover,
            PeerWitness::Same => WitnessAuthority::Full,
        }
    }

    /// Whether a claim may be under way after which the witness lets nobody take over.
    fn asks_alone(&self) -> bool {
        let question = self.question.as_ref();
        question.is_some_and(|question| question.query == WitnessQuery::Alone)
    }

    /// A primary whose disk hangs gives way if the secondary can take over at once, as far as this node knows (rule R12).
    fn disk_hangs(&self, facts: &RoleFacts, may_peer_hang: bool) -> RoleEffects {
        let can_be_replaced = facts.settings.has_witness
            && self.witness.answers
            && self.witness.protects
            && facts.unrecorded.is_none()
            && facts.is_serving
            && !may_peer_hang
            && facts.session.is_recorded_in_sync()
            && !self.asks_alone();
        if can_be_replaced {
            vec![RoleEffect::GiveWay]
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests;
