//! One question to the witness: the calls that it takes, and what follows from the last answer.
//!
//! A question begins with a look at the record of the witness, whatever an earlier question has heard: its answer may be lost,
//! and rule R5 makes a late claim harmless. Each claim names the sync of its node (rule P17). So an older copy of a store, which
//! its node has put back, does not lead by the answer of the witness while the other node is down.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::OnPowerLoss;
use lockstep_types::{Generation, SyncId, SyncNames};

use crate::event::{Answered, QuestionOver, WitnessCall};
use crate::facts::RoleSettings;
use crate::promotion::UnrecordedPromotion;
use crate::query::WitnessQuery;
use crate::record::{Member, RoleRecord};
use crate::witness::{Claim, InSyncSet, WitnessRecord};

/// Most calls of the witness for one question. A claim that another one has overtaken is made again.
const CALLS_MAX: u8 = 8;
/// Most calls to tell of a promotion by force.
const TELLS_MAX: u8 = 4;

/// A question that is under way, or over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub query: WitnessQuery,
    /// The record of this node at the begin.
    pub mine: RoleRecord,
    /// The names of this node's copy at the last answer.
    pub names: SyncNames,
    pub calls: u8,
    /// The last record of the witness.
    pub known: Option<WitnessRecord>,
    /// The new record of the claim whose answer is due.
    pub claimed: Option<WitnessRecord>,
    pub conclusion: Option<Conclusion>,
}

/// What follows from the answers to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Conclusion {
    /// Nothing.
    Nothing,
    /// The copy of this node is older than the one that the witness knows of.
    OlderCopy,
    /// The witness does not keep the name of the sync.
    ForgetsNames,
    /// This primary may serve without its peer.
    Alone,
    /// This secondary may claim the next generation, once it has recorded that it stands for it (rule R4).
    BecomeCandidate,
    /// The witness has made this candidate the primary. `peer_is_complete`: of a copy that may take over in turn.
    TakeOver {
        /// See above.
        peer_is_complete: bool,
    },
    /// The witness knows of a promotion by force.
    Recorded,
}

/// What a question needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Call(WitnessCall),
    Over(Conclusion),
}

impl Question {
    /// A question of a node with a record. The first call reads the record of the witness.
    pub const fn new(query: WitnessQuery, mine: RoleRecord) -> Self {
        Self {
            query,
            mine,
            names: SyncNames::settled(None),
            calls: 1,
            known: None,
            claimed: None,
            conclusion: None,
        }
    }

    /// The record with which this node asks.
    pub fn asking(&self) -> RoleRecord {
        if self.query == WitnessQuery::TakeOver && is_active(Mutant::StandUnrecorded) {
            self.mine.become_candidate()
        } else {
            self.mine
        }
    }

    /// Goes on after an answer.
    pub fn answered(&mut self, settings: &RoleSettings, answered: &Answered) -> Step {
        (self.known, self.names) = (answered.now, answered.names);
        let claimed = self.claimed.take();
        let step = match self.query {
            WitnessQuery::Look => Step::Over(Conclusion::Nothing),
            WitnessQuery::Tell(promotion) => self.tell(settings.me, promotion, claimed),
            _ if self.has_older_copy() => Step::Over(Conclusion::OlderCopy),
            query => self.pursue(settings, query, claimed),
        };
        match step {
            Step::Call(_) if self.calls >= self.calls_max() => Step::Over(Conclusion::Nothing),
            Step::Call(call) => {
                self.calls += 1;
                Step::Call(call)
            }
            over @ Step::Over(_) => over,
        }
    }

    const fn calls_max(&self) -> u8 {
        match self.query {
            WitnessQuery::Tell(_) => TELLS_MAX,
            _ => CALLS_MAX,
        }
    }

    /// The purpose of a question is reached, impossible, or needs a claim.
    fn pursue(
        &mut self,
        settings: &RoleSettings,
        query: WitnessQuery,
        claimed: Option<WitnessRecord>,
    ) -> Step {
        let Some(now) = self.known else {
            return self.meet_empty_witness(settings.me, query);
        };
        let mine = self.asking();
        if now.generation > mine.generation {
            return Step::Over(Conclusion::Nothing);
        }
        let is_mine = now.generation == mine.generation && now.primary == settings.me;
        if is_mine && mine.is_candidate && mine.complete {
            let peer_is_complete = now.in_sync == InSyncSet::Both;
            return Step::Over(Conclusion::TakeOver { peer_is_complete });
        }
        let is_forgetful = claimed.is_some_and(|new| now == forgotten(new) && now != new);
        let is_granted = claimed == Some(now) || is_forgetful;
        match query {
            WitnessQuery::Alone if is_granted => Step::Over(Conclusion::Alone),
            WitnessQuery::Alone if self.may_ask_alone(settings) => self.claim(settings.me),
            WitnessQuery::TakeOver if !may_replace(settings.me, now) => {
                Step::Over(Conclusion::Nothing)
            }
            WitnessQuery::TakeOver if mine.is_candidate => self.claim(settings.me),
            WitnessQuery::TakeOver => Step::Over(Conclusion::BecomeCandidate),
            WitnessQuery::Protect if is_forgetful => Step::Over(Conclusion::ForgetsNames),
            WitnessQuery::Protect if !is_granted && !self.is_protected(settings.me, now) => {
                self.claim(settings.me)
            }
            _ => Step::Over(Conclusion::Nothing),
        }
    }

    /// A new witness knows nothing. Only two connected nodes may tell it how things stand: a node that cannot reach its peer may
    /// have been deposed by the witness before (rule R10).
    fn meet_empty_witness(&mut self, me: Member, query: WitnessQuery) -> Step {
        if query == WitnessQuery::Protect {
            self.claim(me)
        } else {
            Step::Over(Conclusion::Nothing)
        }
    }

    /// After a power loss the peer may hold more, also if the witness denies that: the witness may not know yet that the peer is
    /// complete (rule R9).
    fn may_ask_alone(&self, settings: &RoleSettings) -> bool {
        self.mine.complete || settings.on_power_loss == OnPowerLoss::Serve
    }

    /// Whether the witness knows already that the secondary may take over, with the name of the sync.
    fn is_protected(&self, me: Member, known: WitnessRecord) -> bool {
        (known.generation, known.primary, known.in_sync)
            == (self.mine.generation, me, InSyncSet::Both)
            && known.sync == self.names.last
    }

    /// Every claim changes the record, if only its number. So a claim that is late on its way finds another record than
    /// the expected one, and changes nothing any more (rule R5).
    fn claim(&mut self, me: Member) -> Step {
        let in_sync = if self.query == WitnessQuery::Protect {
            InSyncSet::Both
        } else {
            InSyncSet::PrimaryOnly
        };
        let new = self.record(me, self.asking().generation, in_sync);
        self.claimed = Some(new);
        Step::Call(WitnessCall::Claim(Claim {
            expected: self.known,
            new,
        }))
    }

    const fn record(
        &self,
        me: Member,
        generation: Generation,
        in_sync: InSyncSet,
    ) -> WitnessRecord {
        WitnessRecord {
            change: match self.known {
                Some(known) => known.change + 1,
                None => 0,
            },
            generation,
            primary: me,
            in_sync,
            sync: self.names.last,
        }
    }

    /// Tells of a promotion by force, unless the witness has made the other node the primary of a generation that this node did
    /// not know of: then both nodes may have served, and an operator decides. The witness knows once it has granted a claim of
    /// this question. An equal record of an earlier claim, or an empty witness, is not enough: a claim that is late on its way
    /// would find the record that it expects, and let the other node take over (rules R5 and R10).
    fn tell(
        &mut self,
        me: Member,
        promotion: UnrecordedPromotion,
        claimed: Option<WitnessRecord>,
    ) -> Step {
        let new = self.record(me, promotion.generation, InSyncSet::PrimaryOnly);
        if let Some(now) = self.known {
            if promotion.is_overtaken_by(now, me) {
                return Step::Over(Conclusion::Nothing);
            }
            // A witness of an earlier version keeps no name.
            let is_granted = claimed.is_some_and(|new| now == new || now == forgotten(new));
            if is_granted {
                return Step::Over(Conclusion::Recorded);
            }
        }
        self.claimed = Some(new);
        Step::Call(WitnessCall::Claim(Claim {
            expected: self.known,
            new,
        }))
    }

    /// The generation in which the witness has made the other node, `me` being this one, the primary.
    pub fn later_generation(&self, me: Member) -> Option<Generation> {
        let known = self.known?;
        let is_later = match self.query {
            WitnessQuery::Tell(promotion) => promotion.is_overtaken_by(known, me),
            WitnessQuery::TakeOver if is_active(Mutant::StandUnrecorded) => false,
            _ => known.generation > self.mine.generation,
        };
        is_later.then_some(known.generation)
    }

    /// Whether the copy of this node is older than the one that the witness knows of.
    fn has_older_copy(&self) -> bool {
        self.known
            .is_some_and(|known| is_older(&self.names, known.sync))
    }

    /// The end of the question, for the driver.
    pub fn over(&self, conclusion: Conclusion) -> QuestionOver {
        let asks_protection = self.query == WitnessQuery::Protect;
        QuestionOver {
            is_empty: self.known.is_none(),
            is_older_copy: conclusion == Conclusion::OlderCopy,
            forgets_names: asks_protection.then_some(conclusion == Conclusion::ForgetsNames),
            is_settled: match conclusion {
                Conclusion::Alone => self.mine.without_peer() != self.mine,
                Conclusion::BecomeCandidate | Conclusion::TakeOver { .. } => true,
                _ => self.query == WitnessQuery::Look,
            },
        }
    }
}

/// Whether a node may take over from the primary of a record.
fn may_replace(me: Member, known: WitnessRecord) -> bool {
    known.in_sync == InSyncSet::Both || known.primary == me
}

/// Whether a copy with these names is older than the one in the sync that the witness knows of. A new store has no names.
pub(crate) fn is_older(names: &SyncNames, known: Option<SyncId>) -> bool {
    names.last.is_some() && SyncNames::settled(known).are_unknown_to(names)
}

/// The record that a witness keeps of a claim which does not know the names of syncs.
const fn forgotten(new: WitnessRecord) -> WitnessRecord {
    WitnessRecord { sync: None, ..new }
}

#[cfg(test)]
mod tests;
