use lockstep_types::SyncNames;
use lockstep_types::settings::OnPeerLoss;

use super::*;
use crate::event::{Asker, QuestionOver, RoleEvent, SessionEvent};
use crate::facts::RoleSettings;
use crate::fixture::{
    ALONE, COMPLETE, DUE, G1, INCOMPLETE, LOOK_DUE, MemoryWitness, PRIMARY, SYNCED, ask, copy,
    facts, known, offer, offered, protected, serving, settings, settled, sync,
};
use crate::offer::RoleOffer;
use crate::promotion::UnrecordedPromotion;
use crate::record::Member;
use crate::witness::WitnessRecord;

const PROMOTION: UnrecordedPromotion = UnrecordedPromotion {
    generation: G1,
    known: G1,
};

/// The question of a machine, if every time is over.
fn asked_by(machine: &mut RoleMachine, facts: &RoleFacts) -> Option<WitnessQuery> {
    asked_at(machine, facts, LOOK_DUE)
}

fn asked_at(
    machine: &mut RoleMachine,
    facts: &RoleFacts,
    times: QuestionTimes,
) -> Option<WitnessQuery> {
    machine.question = None;
    let effects = machine.handle(facts, RoleEvent::Due(times));
    let reads = effects.contains(&RoleEffect::Call(WitnessCall::Read));
    assert_eq!(reads, machine.question.is_some());
    machine.question.map(|question| question.query)
}

fn asked(facts: &RoleFacts, times: QuestionTimes) -> Option<WitnessQuery> {
    asked_at(&mut RoleMachine::default(), facts, times)
}

/// The machine of a node that has heard an offer, which differs from that of an equal node by `with`.
fn after_offer(facts: &RoleFacts, with: impl FnOnce(&mut RoleOffer)) -> RoleMachine {
    let mut machine = RoleMachine::default();
    let mut theirs = offer(facts, COMPLETE);
    with(&mut theirs);
    machine.handle(facts, RoleEvent::Offered(offered(theirs)));
    machine
}

fn no_witness_of_peer(offer: &mut RoleOffer) {
    (offer.failover_after_ms, offer.witness) = (None, None);
}

fn other_witness_of_peer(offer: &mut RoleOffer) {
    offer.witness = None;
}

#[test]
fn a_primary_that_has_waited_asks_to_serve_alone() {
    let paused = serving(PRIMARY, SessionState::Paused);
    assert_eq!(asked(&paused, LOOK_DUE), Some(WitnessQuery::Alone));
    let waits = QuestionTimes {
        has_waited: false,
        ..LOOK_DUE
    };
    assert_eq!(asked(&paused, waits), Some(WitnessQuery::Look));
    let mut other = after_offer(&paused, other_witness_of_peer);
    assert_eq!(asked_by(&mut other, &paused), Some(WitnessQuery::Look));
    let mut without = after_offer(&paused, no_witness_of_peer);
    assert_eq!(asked_by(&mut without, &paused), Some(WitnessQuery::Alone));
    let frozen = serving(PRIMARY, SessionState::Frozen);
    assert_eq!(asked(&frozen, LOOK_DUE), Some(WitnessQuery::Look));
}

#[test]
fn a_primary_that_leaves_sync_asks_at_once_until_it_may_serve_alone() {
    let leaving = serving(PRIMARY, SessionState::LeavingSync);
    let at_once = QuestionTimes {
        has_waited: false,
        ..LOOK_DUE
    };
    let mut machine = RoleMachine::default();
    assert_eq!(
        asked_at(&mut machine, &leaving, at_once),
        Some(WitnessQuery::Alone)
    );
    machine.note_session(SessionEvent::SecondaryFollows(G1));
    assert_eq!(
        asked_at(&mut machine, &leaving, at_once),
        Some(WitnessQuery::Look)
    );
}

#[test]
fn a_primary_that_is_to_freeze_never_asks_to_serve_alone() {
    let freezes = RoleSettings {
        on_peer_loss: OnPeerLoss::Freeze,
        ..settings()
    };
    for facts in [serving(PRIMARY, SessionState::Paused), facts(PRIMARY)] {
        assert_eq!(asked(&facts, DUE), Some(WitnessQuery::Alone));
        let facts = RoleFacts {
            settings: freezes,
            ..facts
        };
        assert_eq!(asked(&facts, DUE), None);
    }
}

#[test]
fn only_a_complete_secondary_whose_peer_asks_the_same_witness_takes_over() {
    let secondary = facts(COMPLETE);
    assert_eq!(asked(&secondary, LOOK_DUE), Some(WitnessQuery::TakeOver));
    let incomplete = facts(INCOMPLETE);
    assert_eq!(asked(&incomplete, LOOK_DUE), Some(WitnessQuery::Look));
    let promised = QuestionTimes {
        may_take_over: false,
        ..LOOK_DUE
    };
    assert_eq!(asked(&secondary, promised), Some(WitnessQuery::Look));
    for with in [no_witness_of_peer, other_witness_of_peer] {
        let mut machine = after_offer(&secondary, |offer| {
            offer.record = PRIMARY;
            with(offer);
        });
        assert_eq!(asked_by(&mut machine, &secondary), Some(WitnessQuery::Look));
    }
}

#[test]
fn the_witness_lets_the_secondary_take_over_after_both_records_only() {
    let primary = serving(PRIMARY, SYNCED);
    assert_eq!(asked(&primary, LOOK_DUE), Some(WitnessQuery::Protect));
    for (is_connected, is_recorded) in [(true, false), (false, true), (false, false)] {
        let session = SessionState::Synced {
            is_connected,
            is_recorded,
        };
        let facts = serving(PRIMARY, session);
        assert_eq!(asked(&facts, LOOK_DUE), Some(WitnessQuery::Look));
    }
    let forgets = QuestionTimes {
        cannot_protect: true,
        ..LOOK_DUE
    };
    assert_eq!(asked(&primary, forgets), Some(WitnessQuery::Look));
    let mut one_witness = after_offer(&primary, no_witness_of_peer);
    assert_eq!(
        asked_by(&mut one_witness, &primary),
        Some(WitnessQuery::Look)
    );
    assert_eq!(
        asked_by(&mut protected(), &primary),
        Some(WitnessQuery::Look)
    );
}

#[test]
fn the_secondary_is_protected_again_after_another_name_or_another_session() {
    let primary = serving(PRIMARY, SYNCED);
    for event in [SessionEvent::Renamed, SessionEvent::Begins] {
        let mut machine = protected();
        machine.note_session(event);
        assert!(!machine.witness_report().protects);
        assert_eq!(
            asked_by(&mut machine, &primary),
            Some(WitnessQuery::Protect)
        );
    }
    let mut machine = protected();
    machine.note_session(SessionEvent::SecondaryFollows(G1));
    assert!(machine.witness_report().protects);
}

#[test]
fn a_primary_that_starts_tells_of_a_promotion_before_it_asks_to_serve_alone() {
    let start = facts(ALONE);
    assert_eq!(asked(&start, LOOK_DUE), Some(WitnessQuery::Alone));
    let forced = RoleFacts {
        unrecorded: Some(PROMOTION),
        ..start
    };
    let tell = Some(WitnessQuery::Tell(PROMOTION));
    assert_eq!(asked(&forced, LOOK_DUE), tell);
    let gives_time = QuestionTimes {
        has_waited: false,
        ..LOOK_DUE
    };
    assert_eq!(asked(&facts(PRIMARY), gives_time), Some(WitnessQuery::Look));
    assert_eq!(asked(&start, gives_time), Some(WitnessQuery::Alone));
    let follows = RoleFacts {
        unrecorded: Some(PROMOTION),
        ..facts(COMPLETE)
    };
    assert_ne!(asked(&follows, LOOK_DUE), tell);
    let mut other = after_offer(&forced, other_witness_of_peer);
    assert_eq!(asked_by(&mut other, &forced), tell);
}

/// The peer that holds more is to lead, and this node is to ask for nothing.
#[test]
fn a_primary_with_the_older_copy_only_looks() {
    let paused = serving(PRIMARY, SessionState::Paused);
    let mut machine = after_offer(&paused, |offer| {
        offer.sync.names = SyncNames::settled(sync(3));
    });
    assert!(machine.witness_report().is_outdated);
    assert_eq!(asked_by(&mut machine, &paused), Some(WitnessQuery::Look));
}

/// Another thread is about to change the role: this node would claim with a record that does not belong to its question.
#[test]
fn nothing_is_asked_while_the_role_changes() {
    let is_secondary_by_record = RoleFacts {
        record: COMPLETE,
        ..facts(PRIMARY)
    };
    let is_primary_by_record = RoleFacts {
        record: PRIMARY,
        ..facts(COMPLETE)
    };
    for facts in [is_secondary_by_record, is_primary_by_record] {
        assert_eq!(asked(&facts, LOOK_DUE), None);
    }
}

#[test]
fn a_look_is_asked_only_when_it_is_due() {
    assert_eq!(asked(&serving(PRIMARY, SessionState::Primary), DUE), None);
    assert_eq!(asked(&facts(INCOMPLETE), DUE), None);
}

#[test]
fn the_solo_grant_ends_before_the_witness_lets_the_secondary_take_over() {
    let mut machine = RoleMachine::default();
    machine.note_session(SessionEvent::SecondaryFollows(G1));
    let before = machine.solo_ends();
    let mut witness = MemoryWitness::with(None);
    let effects = ask(&mut machine, &serving(PRIMARY, SYNCED), DUE, &mut witness);
    assert!(!machine.may_serve_alone(true, G1));
    assert_ne!(machine.solo_ends(), before);
    let [RoleEffect::ClearUnrecorded, RoleEffect::Settle(over)] = effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(over.forgets_names, Some(false));
    assert!(!over.is_empty, "the witness has a record now");
    let record = witness.record.unwrap();
    assert_eq!((record.in_sync, record.sync), (InSyncSet::Both, sync(2)));
}

// The answers.

/// Whether a node takes the secondary for protected after a look at this record of the witness.
fn protects(facts: &RoleFacts, record: WitnessRecord) -> bool {
    let mut witness = MemoryWitness::with(Some(record));
    let mut machine = RoleMachine::default();
    let times = QuestionTimes {
        may_take_over: false,
        cannot_protect: true,
        ..LOOK_DUE
    };
    ask(&mut machine, facts, times, &mut witness);
    assert_eq!(witness.calls, [WitnessCall::Read]);
    machine.witness_report().protects
}

#[test]
fn a_secondary_is_protected_by_a_record_of_this_generation_and_this_sync() {
    let both = WitnessRecord {
        sync: sync(2),
        ..known(4, G1, Member::First, InSyncSet::Both)
    };
    let primary = serving(PRIMARY, SYNCED);
    let others = [
        WitnessRecord {
            in_sync: InSyncSet::PrimaryOnly,
            ..both
        },
        WitnessRecord {
            generation: G1.next(),
            ..both
        },
        WitnessRecord {
            primary: Member::Second,
            ..both
        },
        WitnessRecord {
            sync: sync(1),
            ..both
        },
        WitnessRecord { sync: None, ..both },
        WitnessRecord {
            sync: sync(3),
            ..both
        },
    ];
    assert!(protects(&primary, both));
    for other in others {
        assert!(!protects(&primary, other), "{other:?}");
    }
    // A secondary does not know under which of two names its primary has made the claim.
    let secondary = facts(COMPLETE);
    let by_peer = |sync| WitnessRecord {
        primary: Member::Second,
        sync,
        ..both
    };
    assert!(protects(&secondary, by_peer(sync(2))));
    assert!(protects(&secondary, by_peer(sync(1))));
    assert!(!protects(&secondary, by_peer(sync(3))), "an older copy");
    assert!(!protects(&secondary, both), "of the other node");
}

#[test]
fn an_answer_protects_nobody_after_a_change_of_the_record() {
    let both = known(4, G1, Member::Second, InSyncSet::Both);
    let witness = MemoryWitness::with(Some(both));
    let node = facts(COMPLETE);
    let next = facts(COMPLETE.become_candidate());
    for (facts, expected) in [(node, true), (next, false)] {
        let mut machine = RoleMachine::default();
        machine.handle(&node, RoleEvent::Due(LOOK_DUE));
        let answered = RoleEvent::Answered(witness.answer(Asker::Watch));
        machine.handle(&facts, answered);
        assert_eq!(machine.witness_report().protects, expected);
    }
}

#[test]
fn a_claim_without_an_answer_protects_nobody() {
    let paused = serving(PRIMARY, SessionState::Paused);
    let silent = |times, call| {
        let mut machine = protected();
        let record = known(4, G1, Member::First, InSyncSet::Both);
        let mut witness = MemoryWitness {
            silent_at: Some(call),
            ..MemoryWitness::with(Some(record))
        };
        let effects = ask(&mut machine, &paused, times, &mut witness);
        assert_eq!(effects, [], "no answer, no end");
        let after = machine.handle(&paused, RoleEvent::Settle(settled()));
        assert_eq!(after, [], "the question is gone");
        machine.witness_report()
    };
    let looks = QuestionTimes {
        has_waited: false,
        ..LOOK_DUE
    };
    let report = silent(looks, 0);
    assert!(report.protects && !report.answers);
    for call in [0, 1] {
        let report = silent(DUE, call);
        assert!(!report.protects && !report.answers);
    }
}

#[test]
fn a_witness_answers_again() {
    let primary = serving(PRIMARY, SessionState::Primary);
    let mut machine = RoleMachine::default();
    assert!(!machine.witness_report().answers);
    for (silent_at, answers) in [(None, true), (Some(0), false), (None, true)] {
        let mut witness = MemoryWitness {
            silent_at,
            ..MemoryWitness::with(None)
        };
        ask(&mut machine, &primary, LOOK_DUE, &mut witness);
        assert_eq!(machine.witness_report().answers, answers);
    }
}

#[test]
fn an_answer_for_a_question_that_is_gone_changes_nothing() {
    let paused = serving(PRIMARY, SessionState::Paused);
    let machine = protected();
    let later = known(9, G1.next(), Member::Second, InSyncSet::PrimaryOnly);
    let witness = MemoryWitness::with(Some(later));
    for asker in [Asker::Watch, Asker::Command] {
        let mut after = machine.clone();
        after.question = None;
        let before = after.clone();
        let answered = RoleEvent::Answered(witness.answer(asker));
        assert_eq!(after.handle(&paused, answered), []);
        assert_eq!(after, before);
    }
    let mut after = machine.clone();
    after.question = None;
    assert_eq!(after.handle(&paused, RoleEvent::Settle(settled())), []);
    assert_eq!(after.handle(&paused, RoleEvent::Silent(Asker::Command)), []);
    assert_eq!(after.handle(&paused, RoleEvent::Changed), []);
}

#[test]
fn a_promotion_of_which_the_witness_knows_is_cleared() {
    let forced = RoleFacts {
        unrecorded: Some(PROMOTION),
        ..facts(ALONE)
    };
    let mut witness = MemoryWitness::with(None);
    let effects = ask(&mut RoleMachine::default(), &forced, DUE, &mut witness);
    let over = QuestionOver {
        is_empty: false,
        is_older_copy: false,
        forgets_names: None,
        is_settled: false,
    };
    assert_eq!(
        effects,
        [RoleEffect::ClearUnrecorded, RoleEffect::Settle(over)]
    );
    let taken_over = known(3, G1.next(), Member::Second, InSyncSet::PrimaryOnly);
    let mut witness = MemoryWitness::with(Some(taken_over));
    let effects = ask(&mut RoleMachine::default(), &forced, DUE, &mut witness);
    assert_eq!(effects, [RoleEffect::Settle(over)]);
    assert_eq!(witness.names, copy().sync.names);
}
