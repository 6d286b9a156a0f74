use super::*;
use crate::event::{QuestionTimes, RoleEvent};
use crate::facts::LocalCopy;
use crate::fixture::{
    ALONE, COMPLETE, DUE, G1, LOOK_DUE, MemoryWitness, PRIMARY, SYNCED, ask, change, copy, facts,
    generation, known, no_witness, serving, settled, sync,
};
use crate::promotion::UnrecordedPromotion;
use crate::record::Member;
use crate::witness::{InSyncSet, WitnessRecord};

/// A machine whose question is over, with the answers of a witness that has this record.
fn answered(facts: &RoleFacts, times: QuestionTimes, record: WitnessRecord) -> RoleMachine {
    let mut machine = RoleMachine::default();
    let mut witness = MemoryWitness::with(Some(record));
    let effects = ask(&mut machine, facts, times, &mut witness);
    assert!(
        matches!(effects.last(), Some(RoleEffect::Settle(_))),
        "{effects:?}"
    );
    machine
}

fn settle(machine: &mut RoleMachine, facts: &RoleFacts, settle: Settle) -> RoleEffects {
    machine.handle(facts, RoleEvent::Settle(settle))
}

/// The latest generation that the machine knows: a node without a witness would be promoted into the next one.
fn latest(machine: &mut RoleMachine) -> Generation {
    let node = RoleFacts {
        settings: no_witness(),
        ..facts(COMPLETE)
    };
    let promote = RoleEvent::Promote {
        accepts_loss: false,
    };
    let promoted = change(&machine.handle(&node, promote)).to.generation;
    (1..9)
        .map(generation)
        .find(|latest| latest.next() == promoted)
        .unwrap()
}

/// The record of a witness that lets the second node take over from the first one, or the other way round.
fn both(primary: Member) -> WitnessRecord {
    WitnessRecord {
        sync: sync(2),
        ..known(4, G1, primary, InSyncSet::Both)
    }
}

fn later() -> WitnessRecord {
    known(3, G1.next(), Member::Second, InSyncSet::PrimaryOnly)
}

/// The tasks of a primary that another node has followed, but for the report to the operator.
fn stops(record: RoleRecord) -> [RoleEffect; 3] {
    [
        RoleEffect::EndTenure,
        RoleEffect::Change(RoleChange::keep(record, ServicePart::Wait)),
        RoleEffect::DropCaches,
    ]
}

#[test]
fn a_later_generation_at_the_witness_ends_the_service_whatever_was_asked() {
    for facts in [
        serving(PRIMARY, SessionState::Primary),
        serving(PRIMARY, SessionState::Paused),
        serving(PRIMARY, SYNCED),
    ] {
        let mut machine = answered(&facts, LOOK_DUE, later());
        let effects = settle(&mut machine, &facts, settled());
        assert_eq!(effects, stops(PRIMARY), "{facts:?}");
        assert_eq!(latest(&mut machine), generation(2));
    }
}

#[test]
fn a_generation_that_was_known_at_the_promotion_by_force_ends_nothing() {
    let record = RoleRecord {
        generation: generation(3),
        ..ALONE
    };
    let forced = |known| RoleFacts {
        unrecorded: Some(UnrecordedPromotion {
            generation: generation(3),
            known,
        }),
        ..facts(record)
    };
    let knew = forced(generation(2));
    let mut machine = answered(&knew, DUE, later());
    assert_eq!(settle(&mut machine, &knew, settled()), []);
    let knew_not = forced(generation(1));
    let mut machine = answered(&knew_not, DUE, later());
    let effects = settle(&mut machine, &knew_not, settled());
    assert_eq!(effects[0], RoleEffect::EndTenure);
    assert_eq!(change(&effects).to, record);
}

#[test]
fn a_primary_that_served_alone_tells_the_operator_of_a_later_one() {
    let node = serving(ALONE, SessionState::Primary);
    let [end_tenure, stop, drop_caches] = stops(ALONE);
    let report = RoleEffect::Report(RoleConflict::BothServed);
    let mut machine = answered(&node, LOOK_DUE, later());
    assert_eq!(
        settle(&mut machine, &node, settled()),
        [end_tenure, stop, report, drop_caches]
    );
    let new = Settle {
        copy: LocalCopy {
            was_resynced: false,
            has_data: false,
            ..copy()
        },
        ..settled()
    };
    let mut machine = answered(&node, LOOK_DUE, later());
    assert_eq!(settle(&mut machine, &node, new), stops(ALONE));
}

#[test]
fn a_secondary_only_notes_a_later_generation() {
    let node = facts(COMPLETE);
    let mut machine = answered(&node, DUE, later());
    assert_eq!(settle(&mut machine, &node, settled()), []);
    assert_eq!(latest(&mut machine), generation(2));
}

#[test]
fn an_answer_changes_nothing_after_a_change_of_the_record() {
    let candidate = COMPLETE.become_candidate();
    for (facts, record, next) in [
        (serving(PRIMARY, SessionState::Paused), later(), ALONE),
        (
            serving(PRIMARY, SessionState::Paused),
            both(Member::First),
            ALONE,
        ),
        (
            facts(COMPLETE),
            both(Member::Second),
            COMPLETE.follow(generation(2), true),
        ),
        (
            facts(candidate),
            both(Member::Second),
            candidate.follow(generation(3), true),
        ),
    ] {
        let mut machine = answered(&facts, DUE, record);
        assert_ne!(settle(&mut machine.clone(), &facts, settled()), []);
        let changed = RoleFacts {
            record: next,
            ..facts
        };
        assert_eq!(settle(&mut machine, &changed, settled()), []);
        assert!(!machine.may_serve_alone(true, G1));
        assert_eq!(settle(&mut machine, &facts, settled()), [], "it is gone");
    }
}

// To serve alone.

#[test]
fn a_primary_that_waits_may_serve_alone_by_the_answer_of_the_witness() {
    for session in [SessionState::Paused, SessionState::LeavingSync] {
        let node = serving(PRIMARY, session);
        let mut machine = answered(&node, DUE, both(Member::First));
        assert!(!machine.may_serve_alone(true, G1), "not yet");
        assert_eq!(
            settle(&mut machine, &node, settled()),
            [RoleEffect::ServeAlone]
        );
        assert!(machine.may_serve_alone(true, G1));
    }
}

#[test]
fn an_undecided_primary_serves_alone_by_the_answer_of_the_witness() {
    for record in [PRIMARY, ALONE] {
        let node = facts(record);
        let mut machine = answered(&node, DUE, both(Member::First));
        let effects = settle(&mut machine, &node, settled());
        assert_eq!(effects, [RoleEffect::Change(RoleChange::go_alone(record))]);
        assert!(change(&effects).serves());
        assert_eq!(change(&effects).to, ALONE);
    }
}

// To take over.

#[test]
fn a_secondary_stands_once_its_promises_are_over_and_no_primary_was_here() {
    let node = facts(COMPLETE);
    let machine = answered(&node, DUE, both(Member::Second));
    let effects = settle(&mut machine.clone(), &node, settled());
    let stands = change(&effects);
    assert_eq!(stands.kind, RoleChangeKind::BecomeCandidate);
    assert_eq!(stands.to, COMPLETE.become_candidate());
    assert!(!stands.serves() && effects.len() == 1);
    for (is_released, is_silent) in [(false, true), (true, false), (false, false)] {
        let too_early = Settle {
            is_released,
            is_silent,
            ..settled()
        };
        assert_eq!(settle(&mut machine.clone(), &node, too_early), []);
    }
    let leads = RoleFacts {
        session: SessionState::Primary,
        ..node
    };
    assert_eq!(settle(&mut machine.clone(), &leads, settled()), []);
}

#[test]
fn a_candidate_takes_over_once_its_promises_are_over() {
    let candidate = COMPLETE.become_candidate();
    let node = facts(candidate);
    let machine = answered(&node, DUE, both(Member::Second));
    let has_met = Settle {
        is_silent: false,
        ..settled()
    };
    for end in [settled(), has_met] {
        let takes_over = change(&settle(&mut machine.clone(), &node, end));
        assert_eq!(takes_over.kind, RoleChangeKind::TakeOver);
        assert_eq!((takes_over.from, takes_over.serves()), (candidate, true));
        assert_eq!(takes_over.to, candidate.lead(generation(2), false));
    }
    let promised = Settle {
        is_released: false,
        ..settled()
    };
    assert_eq!(settle(&mut machine.clone(), &node, promised), []);
}

#[test]
fn a_candidate_whose_peer_is_complete_by_the_witness_leads_with_it() {
    let candidate = COMPLETE.become_candidate();
    let node = facts(candidate);
    let granted = WitnessRecord {
        generation: candidate.generation,
        ..both(Member::First)
    };
    let mut machine = answered(&node, DUE, granted);
    let takes_over = change(&settle(&mut machine, &node, settled()));
    assert_eq!(takes_over.to, candidate.lead(generation(2), true));
}

#[test]
fn an_older_copy_does_nothing_at_the_end_of_its_question() {
    let newer = |primary| WitnessRecord {
        sync: sync(3),
        ..both(primary)
    };
    for (facts, record) in [
        (serving(PRIMARY, SessionState::Paused), newer(Member::First)),
        (facts(COMPLETE), newer(Member::Second)),
    ] {
        let mut machine = answered(&facts, DUE, record);
        assert_eq!(settle(&mut machine, &facts, settled()), []);
    }
}
