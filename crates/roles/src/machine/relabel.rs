//! A machine with other labels.

use super::RoleMachine;
use crate::forced::{ForcedPromotion, ForcedStep};
use crate::query::WitnessQuery;
use crate::question::Question;
use crate::relabel::Labels;

impl RoleMachine {
    /// The machine with other labels. It decides as before.
    #[must_use]
    pub fn relabel(self, labels: &impl Labels) -> Self {
        let mut machine = self;
        let granted = machine.solo.generation;
        machine.solo.generation = granted.map(|generation| labels.generation(generation));
        machine.solo.ended = labels.solo_ends(machine.solo.ends()).0;
        machine.peer.generation = labels.generation(machine.peer.generation);
        machine.question = machine
            .question
            .map(|question| relabel_question(question, labels));
        machine.forced = machine.forced.map(|forced| relabel_forced(forced, labels));
        machine
    }
}

fn relabel_question(mut question: Question, labels: &impl Labels) -> Question {
    if let WitnessQuery::Tell(promotion) = &mut question.query {
        *promotion = labels.promotion(*promotion);
    }
    question.mine = labels.record(question.mine);
    question.known = question.known.map(|known| labels.known(known));
    let claimed = question.claimed.filter(|claimed| labels.keeps(claimed));
    question.claimed = claimed.map(|claimed| labels.known(claimed));
    question
}

fn relabel_forced(mut forced: ForcedPromotion, labels: &impl Labels) -> ForcedPromotion {
    if let ForcedStep::TellThenServeAlone(promotion)
    | ForcedStep::Stand(promotion)
    | ForcedStep::TellThenLead(promotion) = &mut forced.step
    {
        *promotion = labels.promotion(*promotion);
    }
    let question = forced.question;
    forced.question = question.map(|question| relabel_question(question, labels));
    forced
}
