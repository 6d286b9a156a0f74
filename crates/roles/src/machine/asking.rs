//! Asks the witness: which question is due, and what the answers say.
//!
//! Invariant: a promotion by force of which the witness does not know comes before the question to serve alone at a start.

use lockstep_types::settings::OnPeerLoss;

use super::{RoleEffects, RoleMachine};
use crate::event::{Answered, QuestionTimes, RoleEffect, WitnessCall};
use crate::facts::{RoleFacts, SessionState};
use crate::query::{PeerWitness, WitnessAuthority, WitnessQuery};
use crate::question::{Conclusion, Question, Step, is_older};
use crate::record::RoleRecord;
use crate::witness::InSyncSet;

impl RoleMachine {
    /// Begins the question that is due. The answer gives the next solo grant. A secondary that may take over ends every earlier
    /// one.
    pub(super) fn ask_if_due(&mut self, facts: &RoleFacts, due: QuestionTimes) -> RoleEffects {
        if !facts.is_consistent() {
            return Vec::new();
        }
        let Some(query) = self.due_query(facts, due) else {
            return Vec::new();
        };
        self.question = Some(Question::new(query, facts.record));
        let read = RoleEffect::Call(WitnessCall::Read);
        if query == WitnessQuery::Protect {
            self.solo.end();
            // Both copies are equal again.
            return vec![RoleEffect::ClearUnrecorded, read];
        }
        vec![read]
    }

    /// The question of this moment.
    fn due_query(&self, facts: &RoleFacts, due: QuestionTimes) -> Option<WitnessQuery> {
        let look = due.look_is_due.then_some(WitnessQuery::Look);
        let tell = facts
            .unrecorded
            .filter(|_| facts.record.is_primary())
            .map(WitnessQuery::Tell);
        let authority = self.authority();
        if authority == WitnessAuthority::None {
            return tell.or(look);
        }
        let both_ask = authority == WitnessAuthority::Full;
        let may_wait_for_ever = facts.settings.on_peer_loss == OnPeerLoss::Freeze;
        let has_waited = due.has_waited && !may_wait_for_ever;
        match facts.session {
            SessionState::LeavingSync if self.asks_incomplete_mark(facts) => {
                Some(WitnessQuery::Alone)
            }
            SessionState::Paused if has_waited => Some(WitnessQuery::Alone),
            session if session.is_recorded_in_sync() && both_ask && !self.is_protected(due) => {
                Some(WitnessQuery::Protect)
            }
            SessionState::Undecided
                if tell.is_none() && asks_at_start(facts.record, has_waited) =>
            {
                Some(WitnessQuery::Alone)
            }
            SessionState::Secondary => {
                let takes_over = both_ask && facts.record.complete && due.may_take_over;
                takes_over.then_some(WitnessQuery::TakeOver).or(look)
            }
            _ => tell.or(look),
        }
    }

    const fn is_protected(&self, due: QuestionTimes) -> bool {
        self.witness.protects || due.cannot_protect
    }

    pub(super) fn question_answered(
        &mut self,
        facts: &RoleFacts,
        answered: &Answered,
    ) -> RoleEffects {
        let Some(mut question) = self.question.take() else {
            return Vec::new();
        };
        let step = question.answered(&facts.settings, answered);
        let effects = match step {
            Step::Call(call) => vec![RoleEffect::Call(call)],
            Step::Over(conclusion) => {
                question.conclusion = Some(conclusion);
                self.witness.answers = true;
                self.witness.protects = self.lets_secondary_take_over(facts, &question);
                let clear =
                    (conclusion == Conclusion::Recorded).then_some(RoleEffect::ClearUnrecorded);
                let over = RoleEffect::Settle(question.over(conclusion));
                clear.into_iter().chain([over]).collect()
            }
        };
        self.question = Some(question);
        effects
    }

    /// The last call of the witness has no answer. A claim may have changed its record, or may change it later.
    pub(super) fn witness_is_silent(&mut self) -> RoleEffects {
        let question = self.question.take();
        let is_claim = question.is_some_and(|question| question.query != WitnessQuery::Look);
        self.witness.answers = false;
        self.witness.protects &= !is_claim;
        Vec::new()
    }

    /// Whether the secondary may take over, by the record of the witness.
    fn lets_secondary_take_over(&self, facts: &RoleFacts, question: &Question) -> bool {
        let (mine, names) = (question.mine, &question.names);
        let is_trusted = self.peer.witness == PeerWitness::Same && !self.peer.has_newer_copy;
        let is_current = mine == facts.record;
        question.known.is_some_and(|known| {
            is_trusted
                && is_current
                && known.generation == mine.generation
                && known.in_sync == InSyncSet::Both
                && (known.primary == facts.settings.me) == mine.is_primary()
                && !is_older(names, known.sync)
                && (!mine.is_primary() || known.sync == names.last)
        })
    }
}

/// A primary that starts, and whose secondary may be complete, gives the peer the time to meet it.
const fn asks_at_start(mine: RoleRecord, has_waited: bool) -> bool {
    let waits = mine.complete && mine.peer_complete;
    !waits || has_waited
}

#[cfg(test)]
mod tests;
