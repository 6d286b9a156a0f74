//! The commands of an operator that change the role: the planned failover, the demotion, and the promotion.
//!
//! A node with a witness is promoted by force only. It tells the witness, so that the other node cannot take over by an
//! earlier record of the witness: first it records that it is a candidate, then it claims its generation, and then it leads.
//! A node that stops between these steps is a candidate like any other (rule R4). If the witness gives no answer, the node
//! leads, and keeps that the witness must still know, over a restart, too. The operator keeps the other node from serving until
//! the witness knows.

use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};

use super::{RoleEffects, RoleMachine};
use crate::change::{RoleChange, RoleChangeKind};
use crate::conflict::CommandRefusal;
use crate::event::{Answered, RoleEffect, WitnessCall};
use crate::facts::{RoleFacts, SessionState};
use crate::forced::ForcedPromotion;
use crate::promotion::UnrecordedPromotion;
use crate::query::WitnessQuery;
use crate::question::{Conclusion, Question, Step};
use crate::record::RoleRecord;

/// Distance of the generation of a forced promotion from the latest generation that this node knows. Without this node,
/// the other one may have gone two generations further: by a grant that this node has not read, and by a takeover after it.
const FORCED_GENERATIONS: u64 = 3;

impl RoleMachine {
    /// Gives the role of the primary to the other node, which is in sync.
    pub(super) fn hand_over(facts: &RoleFacts) -> RoleEffects {
        match facts.may_hand_over() {
            Ok(()) => vec![RoleEffect::Change(RoleChange::grant(facts.record))],
            Err(refusal) => vec![RoleEffect::Refuse(refusal)],
        }
    }

    /// Makes this primary, which serves alone or may not serve yet, the secondary: the other node has, or gets, the role. The
    /// next resync drops the operations that only this copy has, and sets them aside.
    pub(super) fn demote(&self, facts: &RoleFacts) -> RoleEffects {
        let mine = facts.record;
        if !mine.is_primary() {
            return vec![RoleEffect::Refuse(CommandRefusal::IsSecondary)];
        }
        if matches!(facts.session, SessionState::Synced { .. }) {
            return vec![RoleEffect::Refuse(CommandRefusal::InSync)];
        }
        // A peer of an earlier generation takes the record for a grant, and leads its generation: so that must be a new one.
        let is_new = self.peer.generation < mine.generation;
        let generation = if is_new && !is_active(Mutant::DemoteInSameGeneration) {
            mine.generation.next()
        } else {
            mine.generation
        };
        let record = mine.demoted(generation, is_active(Mutant::KeepDemotedComplete));
        let change = RoleChange::waiting(RoleChangeKind::Demote, mine, record);
        vec![RoleEffect::Change(change)]
    }

    /// Makes this node the primary, without the other node. The operator vouches that the other node does not serve.
    pub(super) fn promote(&mut self, facts: &RoleFacts, accepts_loss: bool) -> RoleEffects {
        let mine = facts.record;
        if accepts_loss && facts.settings.has_witness && facts.session.waits_for_solo_grant() {
            let promotion = UnrecordedPromotion {
                generation: mine.generation,
                known: mine.generation,
            };
            return self.tell(facts, promotion);
        }
        if let Err(refusal) = may_promote(facts, accepts_loss) {
            return vec![RoleEffect::Refuse(refusal)];
        }
        let mut effects = vec![RoleEffect::SkipNumbersAndRenewVerifier];
        if facts.settings.has_witness {
            self.forced = Some(ForcedPromotion::Read);
            effects.push(RoleEffect::Call(WitnessCall::Read));
        } else {
            let generation = self.next_generation(mine, accepts_loss);
            effects.push(RoleEffect::Change(promoted(mine, generation)));
        }
        effects
    }

    /// The witness has answered the call of a promotion by force.
    pub(super) fn command_answered(
        &mut self,
        facts: &RoleFacts,
        answered: &Answered,
    ) -> RoleEffects {
        match self.forced.take() {
            Some(ForcedPromotion::Read) => {
                if let Some(known) = answered.now {
                    self.note_later(facts.record, known.generation);
                }
                self.stand(facts)
            }
            Some(ForcedPromotion::Tell(promotion, question)) => {
                self.tell_answered(facts, promotion, question, answered)
            }
            Some(ForcedPromotion::Stand(_)) | None => Vec::new(),
        }
    }

    /// The call of a command has no answer.
    pub(super) fn command_unanswered(&mut self, facts: &RoleFacts) -> RoleEffects {
        match self.forced.take() {
            Some(ForcedPromotion::Read) => self.stand(facts),
            Some(ForcedPromotion::Tell(promotion, _)) => self.untold(facts, promotion),
            Some(ForcedPromotion::Stand(_)) | None => Vec::new(),
        }
    }

    /// The change that a command has asked for is durable.
    pub(super) fn command_changed(&mut self, facts: &RoleFacts) -> RoleEffects {
        match self.forced.take() {
            Some(ForcedPromotion::Stand(promotion)) => self.tell(facts, promotion),
            _ => Vec::new(),
        }
    }

    /// Records that this node is a candidate for the generation into which it is forced.
    fn stand(&mut self, facts: &RoleFacts) -> RoleEffects {
        let mine = facts.record;
        let generation = self.next_generation(mine, true);
        let known = self.latest_generation(mine);
        let candidate = RoleRecord {
            is_candidate: true,
            ..mine.demoted(generation, mine.complete)
        };
        let promotion = UnrecordedPromotion { generation, known };
        self.forced = Some(ForcedPromotion::Stand(promotion));
        let kind = RoleChangeKind::BecomeCandidate;
        vec![RoleEffect::Change(RoleChange::waiting(
            kind, mine, candidate,
        ))]
    }

    /// Tells the witness that this node serves in a generation, without the other node.
    fn tell(&mut self, facts: &RoleFacts, promotion: UnrecordedPromotion) -> RoleEffects {
        if is_active(Mutant::ForceUntold) {
            return self.serve_by_force(facts, promotion);
        }
        let question = Question::new(WitnessQuery::Tell(promotion), facts.record);
        self.forced = Some(ForcedPromotion::Tell(promotion, Box::new(question)));
        vec![RoleEffect::Call(WitnessCall::Read)]
    }

    fn tell_answered(
        &mut self,
        facts: &RoleFacts,
        promotion: UnrecordedPromotion,
        mut question: Box<Question>,
        answered: &Answered,
    ) -> RoleEffects {
        let conclusion = match question.answered(&facts.settings, answered) {
            Step::Call(call) => {
                self.forced = Some(ForcedPromotion::Tell(promotion, question));
                return vec![RoleEffect::Call(call)];
            }
            Step::Over(conclusion) => conclusion,
        };
        if let Some(later) = question.later_generation(facts.settings.me) {
            self.note_generation(later);
            vec![RoleEffect::Refuse(CommandRefusal::Overtaken)]
        } else if conclusion == Conclusion::Recorded {
            let mut effects = vec![RoleEffect::ClearUnrecorded];
            effects.extend(self.serve_by_force(facts, promotion));
            effects
        } else {
            // Other claims have overtaken each claim.
            self.untold(facts, promotion)
        }
    }

    /// The witness does not know of the promotion: this node keeps that the witness must still know.
    fn untold(&mut self, facts: &RoleFacts, promotion: UnrecordedPromotion) -> RoleEffects {
        let mut effects = vec![RoleEffect::NoteUnrecorded(promotion)];
        effects.extend(self.serve_by_force(facts, promotion));
        effects
    }

    /// The primary that waits for the solo grant serves alone, and the candidate leads.
    fn serve_by_force(&mut self, facts: &RoleFacts, promotion: UnrecordedPromotion) -> RoleEffects {
        if facts.record.is_primary() {
            // The other node may have taken over meanwhile.
            let mut effects = vec![RoleEffect::SkipNumbersAndRenewVerifier];
            effects.extend(self.serve_alone(facts));
            effects
        } else {
            let change = promoted(facts.record, promotion.generation);
            vec![RoleEffect::Change(change)]
        }
    }

    fn note_later(&mut self, mine: RoleRecord, generation: Generation) {
        if generation > mine.generation {
            self.note_generation(generation);
        }
    }

    /// The generation of a promotion: after every generation that this node knows. A primary that may not serve yet
    /// stays in its generation, unless it has met a later one. A node that is forced to lead may not know the latest
    /// generation of the other node.
    fn next_generation(&self, mine: RoleRecord, is_forced: bool) -> Generation {
        let latest = self.latest_generation(mine);
        let is_own = mine.is_primary() && !is_forced;
        if is_active(Mutant::PromoteInSameGeneration) || is_own && latest == mine.generation {
            mine.generation
        } else if is_forced && !is_active(Mutant::ForceIntoNextGeneration) {
            (0..FORCED_GENERATIONS).fold(latest, |generation, _| generation.next())
        } else {
            latest.next()
        }
    }
}

fn may_promote(facts: &RoleFacts, accepts_loss: bool) -> Result<(), CommandRefusal> {
    if facts.session.is_primary() {
        Err(CommandRefusal::IsPrimary)
    } else if facts.is_connected {
        Err(CommandRefusal::PrimaryIsConnected)
    } else if facts.settings.has_witness && !accepts_loss {
        Err(CommandRefusal::WitnessDecides)
    } else if !facts.record.complete && !accepts_loss && !is_active(Mutant::PromoteUnasked) {
        Err(CommandRefusal::MayLackOperations)
    } else {
        Ok(())
    }
}

/// The change of a node that an operator makes the primary: the datastore goes on with this copy.
fn promoted(mine: RoleRecord, generation: Generation) -> RoleChange {
    let record = RoleRecord {
        complete: true,
        ..mine.lead(generation, false)
    };
    RoleChange::serving(RoleChangeKind::Promote, mine, record)
}

#[cfg(test)]
mod tests;
