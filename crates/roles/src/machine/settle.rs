//! The end of a question to the witness: what this node does after the last answer.
//!
//! Invariant: an answer changes nothing if the record of this node has changed since the question.

use lockstep_types::Generation;

use super::{RoleEffects, RoleMachine};
use crate::change::{RoleChange, RoleChangeKind, ServicePart};
use crate::conflict::RoleConflict;
use crate::event::{RoleEffect, Settle};
use crate::facts::{RoleFacts, SessionState};
use crate::question::Conclusion;
use crate::record::RoleRecord;

impl RoleMachine {
    /// Acts on the answers to a question. No other thread changes the role meanwhile.
    pub(super) fn settle(&mut self, facts: &RoleFacts, settle: &Settle) -> RoleEffects {
        let question = self.question.take();
        let Some(question) = question.filter(|question| question.mine == facts.record) else {
            return Vec::new();
        };
        if let Some(later) = question.later_generation(facts.settings.me) {
            return self.stop_serving(facts, settle, later);
        }
        match question.conclusion {
            Some(Conclusion::Alone) => self.serve_alone(facts),
            Some(Conclusion::BecomeCandidate) if settle.is_released && settle.is_silent => {
                become_candidate(facts)
            }
            Some(Conclusion::TakeOver { peer_is_complete }) if settle.is_released => {
                let mine = question.asking();
                let record = mine.lead(mine.generation, peer_is_complete);
                let change = RoleChange::serving(RoleChangeKind::TakeOver, mine, record);
                vec![RoleEffect::Change(change)]
            }
            // After a takeover that comes too early the witness goes on saying so: this node asks again.
            _ => Vec::new(),
        }
    }

    /// Lets a primary that waits for the solo grant serve alone, or an undecided one serve.
    pub(super) fn serve_alone(&mut self, facts: &RoleFacts) -> RoleEffects {
        match facts.session {
            SessionState::Secondary => Vec::new(),
            SessionState::Undecided => {
                vec![RoleEffect::Change(RoleChange::go_alone(facts.record))]
            }
            _ => {
                self.solo.grant(facts.record.generation);
                vec![RoleEffect::ServeAlone]
            }
        }
    }

    /// The witness has made the other node the primary of a later generation. That node may have lost its power before it led: then
    /// this copy is the better one. So the record of that node decides, once the nodes meet (rule R9). It may also have served
    /// (rule R13).
    fn stop_serving(
        &mut self,
        facts: &RoleFacts,
        settle: &Settle,
        later: Generation,
    ) -> RoleEffects {
        self.note_generation(later);
        let mine = facts.record;
        if !mine.is_primary() {
            return Vec::new();
        }
        let stop = RoleChange::keep(mine, ServicePart::Wait);
        let mut effects = vec![RoleEffect::EndTenure, RoleEffect::Change(stop)];
        // The session that begins forgets what was reported before.
        if settle.copy.has_served_alone(mine) {
            effects.push(RoleEffect::Report(RoleConflict::BothServed));
        }
        // The nodes may not meet for long, and a node that has served alone had no lease that would end.
        effects.push(RoleEffect::DropCaches);
        effects
    }
}

/// This secondary stands for the next generation. From then on it follows no earlier primary (rule R4).
fn become_candidate(facts: &RoleFacts) -> RoleEffects {
    if facts.session.is_primary() {
        return Vec::new();
    }
    let mine: RoleRecord = facts.record;
    let kind = RoleChangeKind::BecomeCandidate;
    let change = RoleChange::waiting(kind, mine, mine.become_candidate());
    vec![RoleEffect::Change(change)]
}

#[cfg(test)]
mod tests;
