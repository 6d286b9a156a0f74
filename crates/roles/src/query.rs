//! The questions of a node to the witness: which one is due, and what follows from an answer.
//!
//! Invariants:
//! - While the peer asks another witness, no question leads to a change: both witnesses could grant it. While it asks none,
//!   neither node takes over.
//! - A promotion by force of which the witness does not know comes before the question to serve alone at a start.

use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};

use crate::change::{RoleChange, RoleChangeKind};
use crate::event::Phase;
use crate::promotion::UnrecordedPromotion;
use crate::record::{Member, RoleRecord};
use crate::witness::WitnessRecord;

/// The witness of the peer, as the peer told at the last role exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerWitness {
    /// The peer asks the same witness; or the nodes have not met since the start of this process.
    #[default]
    Same,
    /// The peer asks another witness: each of the two could let another node serve.
    Other,
    /// The peer asks none: it never takes over by itself.
    None,
}

/// A question to the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WitnessQuery {
    /// Primary: may this node serve without the peer?
    Alone,
    /// Secondary: may this node take over?
    TakeOver,
    /// Primary: the secondary may take over from now on.
    Protect,
    /// Primary by the command of an operator: only this node serves.
    Tell(UnrecordedPromotion),
    /// How do things stand?
    Look,
}

/// The service of a node at a moment, as far as a question to the witness depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A primary that cannot keep up the sync. `may_serve_alone`: it may mark its peer incomplete already.
    LeavingSync {
        /// This node has the right to serve alone in its generation.
        may_serve_alone: bool,
    },
    /// A primary that has lost a complete secondary: changes wait.
    Paused,
    /// A primary in sync.
    Synced {
        /// The secondary is connected, and has recorded that its copy is complete (rule R8).
        is_recorded: bool,
        /// The witness has recorded that the secondary may take over; or it cannot record that now.
        is_protected: bool,
    },
    /// A primary that serves in any other state.
    Primary,
    /// A primary by its record, which serves no client yet.
    Undecided,
    /// A secondary.
    Secondary,
}

/// What an answer of the witness may decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WitnessAuthority {
    /// Both nodes ask the witness.
    Full,
    /// Only this node asks a witness: neither node takes over.
    NoTakeover,
    /// The peer asks another witness, or has the newer copy: no answer leads to a change.
    None,
}

/// The facts on which the next question depends.
#[derive(Clone, Copy, Debug)]
pub struct QueryFacts {
    /// The role record of this node.
    pub record: RoleRecord,
    /// The promotion by force of which the witness does not know yet.
    pub unrecorded: Option<UnrecordedPromotion>,
    /// The service of this node.
    pub service: Service,
    /// What an answer of the witness may decide.
    pub authority: WitnessAuthority,
    /// Primary: changes have waited for the secondary for as long as they may. Undecided: the peer has had the time to meet
    /// this node. Never where the configuration wants a primary without its secondary to freeze.
    pub has_waited: bool,
    /// Secondary: this node has been without a primary for long enough, and each promise that it has given is over (rule R7).
    pub may_take_over: bool,
    /// It is time to look at the record of the witness without a need.
    pub look_is_due: bool,
}

impl QueryFacts {
    /// The question of this moment.
    pub fn next(&self) -> Option<WitnessQuery> {
        let look = self.look_is_due.then_some(WitnessQuery::Look);
        let tell = self
            .unrecorded
            .filter(|_| self.record.is_primary())
            .map(WitnessQuery::Tell);
        if self.authority == WitnessAuthority::None {
            return tell.or(look);
        }
        let both_ask = self.authority == WitnessAuthority::Full;
        match self.service {
            Service::LeavingSync {
                may_serve_alone: false,
            } => Some(WitnessQuery::Alone),
            Service::Paused if self.has_waited => Some(WitnessQuery::Alone),
            Service::Synced {
                is_recorded: true,
                is_protected: false,
            } if both_ask => Some(WitnessQuery::Protect),
            Service::LeavingSync { .. }
            | Service::Paused
            | Service::Synced { .. }
            | Service::Primary => tell.or(look),
            Service::Undecided => tell.or_else(|| self.alone_at_start().or(look)),
            Service::Secondary if both_ask && self.record.complete && self.may_take_over => {
                Some(WitnessQuery::TakeOver)
            }
            Service::Secondary => look,
        }
    }

    /// A primary that starts, and whose secondary may be complete, gives the peer the time to meet it.
    fn alone_at_start(&self) -> Option<WitnessQuery> {
        let waits = self.record.complete && self.record.peer_complete;
        let is_due = !waits || self.has_waited;
        is_due.then_some(WitnessQuery::Alone)
    }
}

/// The answer to a question, as the role machine has decided on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryResult {
    /// The change of this node, if its record changes.
    pub change: Option<RoleChange>,
    /// The phase of the machine at the end.
    pub phase: Phase,
    /// The record of the witness.
    pub known: Option<WitnessRecord>,
    /// The witness has not kept the name of the sync.
    pub forgets_names: bool,
    /// The witness knows of a later sync than the copy of this node (rule P17).
    pub is_older_copy: bool,
}

/// What this node does after an answer of the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerAction {
    /// Nothing changes.
    Nothing,
    /// The witness has made the other node the primary of this later generation: this node serves no more (rule R9).
    StopServing(Generation),
    /// This primary serves without its peer.
    GoAlone,
    /// This node changes its role: it takes over, or becomes a candidate.
    Change(RoleChange),
}

impl QueryResult {
    /// A look at the record of the witness, which asks for nothing.
    pub const fn look(known: Option<WitnessRecord>) -> Self {
        Self {
            change: None,
            phase: Phase::Unsure,
            known,
            forgets_names: false,
            is_older_copy: false,
        }
    }

    /// What follows from the answer to `query` for this node, `me`, with the record `mine`.
    pub fn action(&self, query: WitnessQuery, mine: RoleRecord, me: Member) -> AnswerAction {
        let is_later = |known: &WitnessRecord| match query {
            WitnessQuery::Tell(promotion) => promotion.is_overtaken_by(*known, me),
            WitnessQuery::TakeOver if is_active(Mutant::StandUnrecorded) => false,
            _ => known.generation > mine.generation,
        };
        if let Some(known) = self.known.filter(is_later) {
            return AnswerAction::StopServing(known.generation);
        }
        let is_alone = query == WitnessQuery::Alone && self.phase == Phase::Alone;
        match self.change {
            _ if is_alone => AnswerAction::GoAlone,
            Some(change) if change.kind == RoleChangeKind::GoAlone => AnswerAction::GoAlone,
            Some(change) if change.ends_session() => AnswerAction::Change(change),
            _ => AnswerAction::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::settings::Role;

    use super::*;
    use crate::witness::InSyncSet;

    const PRIMARY: RoleRecord = RoleRecord {
        peer_complete: true,
        ..RoleRecord::begin(Role::Primary)
    };
    const SECONDARY: RoleRecord = RoleRecord {
        complete: true,
        ..RoleRecord::begin(Role::Secondary)
    };

    fn facts(record: RoleRecord, service: Service) -> QueryFacts {
        QueryFacts {
            record,
            unrecorded: None,
            service,
            authority: WitnessAuthority::Full,
            has_waited: true,
            may_take_over: true,
            look_is_due: true,
        }
    }

    #[test]
    fn a_primary_that_has_waited_asks_to_serve_alone() {
        let paused = facts(PRIMARY, Service::Paused);
        assert_eq!(paused.next(), Some(WitnessQuery::Alone));
        for other in [
            QueryFacts {
                has_waited: false,
                ..paused
            },
            QueryFacts {
                authority: WitnessAuthority::None,
                ..paused
            },
        ] {
            assert_eq!(other.next(), Some(WitnessQuery::Look), "{other:?}");
        }
        let leaving = |may_serve_alone| Service::LeavingSync { may_serve_alone };
        assert_eq!(
            facts(PRIMARY, leaving(false)).next(),
            Some(WitnessQuery::Alone)
        );
        assert_eq!(
            facts(PRIMARY, leaving(true)).next(),
            Some(WitnessQuery::Look)
        );
    }

    #[test]
    fn only_a_complete_secondary_whose_peer_asks_the_same_witness_takes_over() {
        let secondary = facts(SECONDARY, Service::Secondary);
        assert_eq!(secondary.next(), Some(WitnessQuery::TakeOver));
        let incomplete = RoleRecord {
            complete: false,
            ..SECONDARY
        };
        let others = [
            facts(incomplete, Service::Secondary),
            QueryFacts {
                may_take_over: false,
                ..secondary
            },
            QueryFacts {
                authority: WitnessAuthority::NoTakeover,
                ..secondary
            },
        ];
        for other in others {
            assert_eq!(other.next(), Some(WitnessQuery::Look), "{other:?}");
        }
    }

    #[test]
    fn the_witness_lets_the_secondary_take_over_after_both_records_only() {
        let synced = |is_recorded| {
            let service = Service::Synced {
                is_recorded,
                is_protected: false,
            };
            facts(PRIMARY, service)
        };
        let protected = Service::Synced {
            is_recorded: true,
            is_protected: true,
        };
        assert_eq!(facts(PRIMARY, protected).next(), Some(WitnessQuery::Look));
        assert_eq!(synced(true).next(), Some(WitnessQuery::Protect));
        assert_eq!(synced(false).next(), Some(WitnessQuery::Look));
        let one_witness = QueryFacts {
            authority: WitnessAuthority::NoTakeover,
            ..synced(true)
        };
        assert_eq!(one_witness.next(), Some(WitnessQuery::Look));
    }

    #[test]
    fn a_primary_that_starts_tells_of_a_promotion_before_it_asks_to_serve_alone() {
        let promotion = UnrecordedPromotion {
            generation: Generation::FIRST,
            known: Generation::FIRST,
        };
        let alone = RoleRecord::begin(Role::Primary);
        let start = facts(alone, Service::Undecided);
        assert_eq!(start.next(), Some(WitnessQuery::Alone));
        let forced = QueryFacts {
            unrecorded: Some(promotion),
            ..start
        };
        assert_eq!(forced.next(), Some(WitnessQuery::Tell(promotion)));
        let may_be_replaced = QueryFacts {
            has_waited: false,
            ..facts(PRIMARY, Service::Undecided)
        };
        assert_eq!(may_be_replaced.next(), Some(WitnessQuery::Look));
        let follows = QueryFacts {
            record: SECONDARY,
            ..forced
        };
        assert_ne!(follows.next(), Some(WitnessQuery::Tell(promotion)));
    }

    #[test]
    fn a_later_generation_at_the_witness_ends_the_service_whatever_was_asked() {
        let later = Generation::FIRST.next();
        let known = WitnessRecord {
            change: 3,
            generation: later,
            primary: Member::Second,
            in_sync: InSyncSet::PrimaryOnly,
            sync: None,
        };
        let result = QueryResult::look(Some(known));
        for query in [
            WitnessQuery::Look,
            WitnessQuery::Alone,
            WitnessQuery::Protect,
        ] {
            let action = result.action(query, PRIMARY, Member::First);
            assert_eq!(action, AnswerAction::StopServing(later));
        }
        let forced = UnrecordedPromotion {
            generation: later,
            known: later,
        };
        let tell = WitnessQuery::Tell(forced);
        let action = result.action(tell, PRIMARY, Member::First);
        assert_eq!(action, AnswerAction::Nothing, "known at the promotion");
    }
}
