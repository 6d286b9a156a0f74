//! A machine with other labels.

use super::RoleMachine;
use crate::forced::ForcedPromotion;
use crate::query::WitnessQuery;
use crate::question::Question;
use crate::relabel::Labels;

impl RoleMachine {
    /// The machine with other labels. It decides as before.
    #[must_use]
    pub fn relabel(self, labels: &impl Labels) -> Self {
        let mut machine = self;
        let granted = machine.solo.generation;
        machine.solo.generation = labels.solo_grant(granted);
        machine.solo.ended = labels.solo_ends(machine.solo.ends()).0;
        machine.peer.generation = labels.heard(machine.peer.generation);
        machine.witness.answers = labels.has_answered(machine.witness.answers);
        machine.question = machine
            .question
            .map(|question| relabel_question(question, labels));
        machine.forced = machine.forced.map(|forced| relabel_forced(forced, labels));
        machine
    }
}

/// A question whose answer is due. The next answer replaces the record of the witness. Only the question to serve alone, and the
/// one that tells of a promotion, look at the record that they have claimed. The number of calls bounds a question that other
/// claims overtake again and again: without the bound there are only more answers.
fn relabel_question(mut question: Question, labels: &impl Labels) -> Question {
    if let WitnessQuery::Tell(promotion) = &mut question.query {
        *promotion = labels.promotion(*promotion);
    }
    question.mine = labels.record(question.mine);
    (question.known, question.calls) = (None, 1);
    let compares = matches!(question.query, WitnessQuery::Alone | WitnessQuery::Tell(_));
    let claimed = question
        .claimed
        .filter(|claimed| compares && labels.keeps(claimed));
    question.claimed = claimed.map(|claimed| labels.known(claimed));
    question
}

fn relabel_forced(forced: ForcedPromotion, labels: &impl Labels) -> ForcedPromotion {
    match forced {
        ForcedPromotion::Read => ForcedPromotion::Read,
        ForcedPromotion::Stand(promotion) => ForcedPromotion::Stand(labels.promotion(promotion)),
        ForcedPromotion::Tell(promotion, question) => ForcedPromotion::Tell(
            labels.promotion(promotion),
            Box::new(relabel_question(*question, labels)),
        ),
    }
}
