use lockstep_types::SyncNames;

use super::*;
use crate::event::{Asker, RoleEvent};
use crate::facts::RoleSettings;
use crate::fixture::{
    ALONE, COMPLETE, G1, INCOMPLETE, MemoryWitness, PRIMARY, SYNCED, change, command, facts,
    generation, known, no_witness, of_kind, offer, offered, serving, sync,
};
use crate::record::Member;
use crate::witness::{InSyncSet, WitnessRecord};

const PROMOTE: RoleEvent = RoleEvent::Promote {
    accepts_loss: false,
};
const FORCE: RoleEvent = RoleEvent::Promote { accepts_loss: true };
const RENEWAL: RoleEffect = RoleEffect::SkipNumbersAndRenewVerifier;

fn handle(facts: &RoleFacts, event: &RoleEvent) -> RoleEffects {
    RoleMachine::default().handle(facts, *event)
}

fn refused(facts: &RoleFacts, event: &RoleEvent) -> CommandRefusal {
    match handle(facts, event)[..] {
        [RoleEffect::Refuse(refusal)] => refusal,
        ref effects => panic!("{effects:?}"),
    }
}

/// A machine that has heard of a generation of the other node.
fn that_knows(generation: Generation) -> RoleMachine {
    let node = facts(INCOMPLETE);
    let record = RoleRecord {
        generation,
        ..ALONE
    };
    let mut machine = RoleMachine::default();
    let theirs = RoleEvent::Offered(offered(offer(&node, record)));
    machine.handle(&node, theirs);
    machine
}

// The planned failover.

#[test]
fn a_primary_in_sync_by_both_records_gives_its_role_away() {
    let node = serving(PRIMARY, SYNCED);
    let effects = handle(&node, &RoleEvent::HandOver);
    assert_eq!(effects, [RoleEffect::Change(RoleChange::grant(PRIMARY))]);
    let synced = |is_connected, is_recorded| SessionState::Synced {
        is_connected,
        is_recorded,
    };
    for (session, expected) in [
        (synced(true, false), CommandRefusal::NotRecorded),
        (synced(false, true), CommandRefusal::NotInSync),
        (synced(false, false), CommandRefusal::NotInSync),
        (SessionState::Primary, CommandRefusal::NotInSync),
        (SessionState::Paused, CommandRefusal::NotInSync),
        (SessionState::Frozen, CommandRefusal::NotInSync),
        (SessionState::LeavingSync, CommandRefusal::NotInSync),
    ] {
        let node = serving(PRIMARY, session);
        assert_eq!(node.may_hand_over(), Err(expected));
        assert_eq!(refused(&node, &RoleEvent::HandOver), expected);
    }
    for node in [facts(PRIMARY), facts(COMPLETE)] {
        let refusal = refused(&node, &RoleEvent::HandOver);
        assert_eq!(refusal, CommandRefusal::NotPrimary);
    }
}

// The demotion.

#[test]
fn a_demoted_primary_is_an_incomplete_secondary_of_a_generation_that_the_peer_does_not_know() {
    let second = RoleRecord {
        generation: generation(2),
        ..ALONE
    };
    let node = serving(second, SessionState::Primary);
    for (peer, expected) in [(1, 3), (2, 2), (3, 2)] {
        let mut machine = that_knows(generation(peer));
        let effects = machine.handle(&node, RoleEvent::Demote);
        let demoted = change(&effects);
        assert_eq!(effects, [RoleEffect::Change(demoted)]);
        let record = RoleRecord {
            generation: generation(expected),
            ..INCOMPLETE
        };
        assert_eq!((demoted.from, demoted.to), (second, record), "{peer}");
        assert_eq!(demoted.kind, RoleChangeKind::Demote);
        assert!(demoted.steps_down() && !demoted.serves());
    }
}

#[test]
fn only_a_primary_that_is_not_in_sync_is_demoted() {
    assert_eq!(
        refused(&facts(COMPLETE), &RoleEvent::Demote),
        CommandRefusal::IsSecondary
    );
    for is_connected in [true, false] {
        let session = SessionState::Synced {
            is_connected,
            is_recorded: false,
        };
        let refusal = refused(&serving(PRIMARY, session), &RoleEvent::Demote);
        assert_eq!(refusal, CommandRefusal::InSync);
    }
    for node in [
        facts(PRIMARY),
        serving(PRIMARY, SessionState::Paused),
        serving(PRIMARY, SessionState::LeavingSync),
    ] {
        let demoted = change(&handle(&node, &RoleEvent::Demote));
        assert_eq!(demoted.to, INCOMPLETE);
    }
}

// The promotion without a witness.

fn without_witness(record: RoleRecord) -> RoleFacts {
    RoleFacts {
        settings: no_witness(),
        ..facts(record)
    }
}

#[test]
fn a_secondary_without_a_witness_leads_the_next_generation() {
    let node = without_witness(COMPLETE);
    for (peer, event, expected) in [
        (1, PROMOTE, 2),
        (3, PROMOTE, 4),
        (1, FORCE, 4),
        (3, FORCE, 6),
    ] {
        let mut machine = that_knows(generation(peer));
        let effects = machine.handle(&node, event);
        let promoted = change(&effects);
        assert_eq!(effects, [RENEWAL, RoleEffect::Change(promoted)]);
        assert_eq!(promoted.kind, RoleChangeKind::Promote);
        assert!(promoted.serves());
        let record = RoleRecord {
            generation: generation(expected),
            ..ALONE
        };
        assert_eq!(promoted.to, record, "{peer} {event:?}");
    }
}

#[test]
fn a_primary_that_waits_for_its_peer_keeps_its_generation_unless_it_knows_a_later_one() {
    let node = without_witness(PRIMARY);
    for (peer, event, expected) in [(1, PROMOTE, 1), (2, PROMOTE, 3), (1, FORCE, 4)] {
        let mut machine = that_knows(generation(peer));
        let promoted = change(&machine.handle(&node, event));
        assert_eq!(promoted.to.generation, generation(expected), "{peer}");
        assert!(promoted.to.complete && !promoted.to.peer_complete);
    }
}

#[test]
fn a_forced_node_without_all_operations_goes_on_with_its_copy() {
    let node = without_witness(INCOMPLETE);
    assert_eq!(refused(&node, &PROMOTE), CommandRefusal::MayLackOperations);
    let promoted = change(&handle(&node, &FORCE));
    assert!(promoted.to.complete && promoted.makes_complete());
}

#[test]
fn a_promotion_is_refused_for_the_first_reason_of_several() {
    let serves = serving(PRIMARY, SessionState::Primary);
    let connected = |facts| RoleFacts {
        is_connected: true,
        ..facts
    };
    let with = facts(INCOMPLETE);
    let without = without_witness(INCOMPLETE);
    for (node, event, expected) in [
        (connected(serves), PROMOTE, CommandRefusal::IsPrimary),
        (connected(serves), FORCE, CommandRefusal::IsPrimary),
        (connected(with), PROMOTE, CommandRefusal::PrimaryIsConnected),
        (connected(with), FORCE, CommandRefusal::PrimaryIsConnected),
        (with, PROMOTE, CommandRefusal::WitnessDecides),
        (
            serving(PRIMARY, SessionState::Paused),
            PROMOTE,
            CommandRefusal::IsPrimary,
        ),
        (without, PROMOTE, CommandRefusal::MayLackOperations),
    ] {
        let mut machine = RoleMachine::default();
        let effects = machine.handle(&node, event);
        assert_eq!(effects, [RoleEffect::Refuse(expected)], "{node:?}");
        assert_eq!(machine, RoleMachine::default(), "nothing is begun");
    }
}

// The promotion by force with a witness.

/// The record of a node that is forced into this generation.
fn forced(number: u64) -> RoleRecord {
    RoleRecord {
        generation: generation(number),
        ..ALONE
    }
}

/// The end of a promotion by force of a secondary of the first generation.
fn force(machine: &mut RoleMachine, witness: &mut MemoryWitness) -> (RoleEffects, RoleRecord) {
    let mut node = facts(COMPLETE);
    let effects = command(machine, &mut node, &FORCE, witness);
    (effects, node.record)
}

fn both(primary: Member, number: u64) -> WitnessRecord {
    WitnessRecord {
        sync: sync(2),
        ..known(4, generation(number), primary, InSyncSet::Both)
    }
}

#[test]
fn a_forced_secondary_stands_then_tells_the_witness_and_then_leads() {
    let mut machine = RoleMachine::default();
    let node = facts(COMPLETE);
    let witness = MemoryWitness::with(Some(both(Member::Second, 1)));
    let read = RoleEffect::Call(WitnessCall::Read);
    assert_eq!(machine.handle(&node, FORCE), [RENEWAL, read]);
    let answer = RoleEvent::Answered(witness.answer(Asker::Command));
    let stands = change(&machine.handle(&node, answer));
    assert_eq!(stands.kind, RoleChangeKind::BecomeCandidate);
    assert!(!stands.serves());
    let candidate = RoleRecord {
        is_candidate: true,
        generation: generation(4),
        ..COMPLETE
    };
    assert_eq!((stands.from, stands.to), (COMPLETE, candidate));
    let node = facts(candidate);
    assert_eq!(machine.handle(&node, RoleEvent::Changed), [read]);
    let claims = machine.handle(&node, answer);
    let [RoleEffect::Call(WitnessCall::Claim(claim))] = claims[..] else {
        panic!("{claims:?}");
    };
    let told = WitnessRecord {
        change: 5,
        in_sync: InSyncSet::PrimaryOnly,
        ..both(Member::First, 4)
    };
    assert_eq!((claim.expected, claim.new), (witness.record, told));
    let granted = RoleEvent::Answered(Answered {
        now: Some(told),
        ..witness.answer(Asker::Command)
    });
    let effects = machine.handle(&node, granted);
    let leads = change(&effects);
    let expected = [RoleEffect::ClearUnrecorded, RoleEffect::Change(leads)];
    assert_eq!(effects, expected);
    assert_eq!(leads.kind, RoleChangeKind::Promote);
    assert!(leads.serves());
    assert_eq!((leads.from, leads.to), (candidate, forced(4)));
    let node = serving(leads.to, SessionState::Primary);
    assert_eq!(machine.handle(&node, RoleEvent::Changed), [], "the end");
}

#[test]
fn a_forced_node_leads_without_the_witness_and_keeps_that_it_must_still_know() {
    let record = Some(both(Member::Second, 1));
    for silent_at in [0, 1, 2] {
        let mut witness = MemoryWitness {
            silent_at: Some(silent_at),
            ..MemoryWitness::with(record)
        };
        let (effects, record) = force(&mut RoleMachine::default(), &mut witness);
        assert_eq!(record, forced(4), "silent at call {silent_at}");
        let stands = of_kind(&effects, RoleChangeKind::BecomeCandidate);
        assert!(stands.unwrap().is_candidate);
        let unrecorded = RoleEffect::NoteUnrecorded(UnrecordedPromotion {
            generation: generation(4),
            known: G1,
        });
        // The first call only reads: the node tells the witness after that.
        let note = if silent_at == 0 {
            RoleEffect::ClearUnrecorded
        } else {
            unrecorded
        };
        let [RENEWAL, RoleEffect::Change(_), noted, RoleEffect::Change(_)] = effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(noted, note, "silent at call {silent_at}");
    }
}

#[test]
fn a_forced_node_tells_an_empty_witness_too() {
    let mut witness = MemoryWitness::with(None);
    let (effects, record) = force(&mut RoleMachine::default(), &mut witness);
    assert_eq!(record, forced(4));
    assert!(effects.contains(&RoleEffect::ClearUnrecorded));
    let told = WitnessRecord {
        change: 0,
        in_sync: InSyncSet::PrimaryOnly,
        ..both(Member::First, 4)
    };
    assert_eq!(witness.record, Some(told));
}

#[test]
fn a_forced_node_leads_after_each_generation_that_it_or_the_witness_knows() {
    for (peer, at_witness, expected) in [(1, 1, 4), (3, 1, 6), (1, 5, 8), (6, 5, 9)] {
        let mut machine = that_knows(generation(peer));
        let mut witness = MemoryWitness::with(Some(both(Member::Second, at_witness)));
        let (effects, record) = force(&mut machine, &mut witness);
        assert_eq!(record, forced(expected), "{peer} {at_witness}");
        assert!(effects.contains(&RoleEffect::ClearUnrecorded));
    }
}

#[test]
fn a_forced_node_does_not_lead_if_the_witness_has_made_the_other_one_the_primary_meanwhile() {
    let later = WitnessRecord {
        change: 5,
        ..both(Member::Second, 2)
    };
    let mut machine = RoleMachine::default();
    let mut witness = MemoryWitness::with(Some(both(Member::Second, 1)));
    witness.overtaking.push_back(later);
    let (effects, record) = force(&mut machine, &mut witness);
    let refusal = RoleEffect::Refuse(CommandRefusal::Overtaken);
    assert_eq!(effects.last(), Some(&refusal));
    assert!(record.is_candidate && !record.is_primary());
    assert_eq!(of_kind(&effects, RoleChangeKind::Promote), None);
    assert_eq!(witness.record, Some(later));
    // The operator runs the command again. The node knows the later generation by now.
    let mut node = facts(record);
    let effects = command(&mut machine, &mut node, &FORCE, &mut witness);
    assert!(effects.contains(&RoleEffect::ClearUnrecorded));
    assert_eq!(node.record, forced(7));
}

#[test]
fn a_forced_node_whose_claims_are_overtaken_each_time_must_still_tell_the_witness() {
    let mut witness = MemoryWitness::with(Some(both(Member::Second, 1)));
    for change in 5..8 {
        witness.overtaking.push_back(WitnessRecord {
            change,
            ..both(Member::Second, 1)
        });
    }
    let (effects, record) = force(&mut RoleMachine::default(), &mut witness);
    assert_eq!(record, forced(4));
    let noted = |effect: &RoleEffect| matches!(effect, RoleEffect::NoteUnrecorded(_));
    assert!(effects.iter().any(noted), "{effects:?}");
}

#[test]
fn an_undecided_primary_is_forced_as_a_candidate_of_a_new_generation() {
    let mut node = facts(PRIMARY.after_power_loss());
    let mut witness = MemoryWitness::with(Some(both(Member::First, 1)));
    let mut machine = RoleMachine::default();
    let effects = command(&mut machine, &mut node, &FORCE, &mut witness);
    let stands = of_kind(&effects, RoleChangeKind::BecomeCandidate).unwrap();
    let candidate = RoleRecord {
        is_candidate: true,
        generation: generation(4),
        ..INCOMPLETE
    };
    assert_eq!(stands, candidate);
    assert_eq!(node.record, forced(4), "with the copy that it has");
}

// A primary that waits for the solo grant.

#[test]
fn a_primary_that_waits_is_forced_to_serve_alone_and_keeps_its_generation() {
    for session in [
        SessionState::Paused,
        SessionState::Frozen,
        SessionState::LeavingSync,
    ] {
        let mut node = serving(PRIMARY, session);
        let mut machine = RoleMachine::default();
        let mut witness = MemoryWitness::with(Some(both(Member::First, 1)));
        let effects = command(&mut machine, &mut node, &FORCE, &mut witness);
        let expected = [RoleEffect::ClearUnrecorded, RENEWAL, RoleEffect::ServeAlone];
        assert_eq!(effects, expected);
        assert_eq!(node.record, PRIMARY, "the session records that it is alone");
        assert!(machine.may_serve_alone(true, G1));
        let told = WitnessRecord {
            change: 5,
            in_sync: InSyncSet::PrimaryOnly,
            ..both(Member::First, 1)
        };
        assert_eq!(witness.record, Some(told));
    }
}

#[test]
fn a_primary_that_waits_serves_alone_without_an_answer_and_not_against_one() {
    let node = serving(PRIMARY, SessionState::Paused);
    let promotion = UnrecordedPromotion {
        generation: G1,
        known: G1,
    };
    for silent_at in [0, 1] {
        let mut machine = RoleMachine::default();
        let mut witness = MemoryWitness {
            silent_at: Some(silent_at),
            ..MemoryWitness::with(Some(both(Member::First, 1)))
        };
        let effects = command(&mut machine, &mut node.clone(), &FORCE, &mut witness);
        let expected = [
            RoleEffect::NoteUnrecorded(promotion),
            RENEWAL,
            RoleEffect::ServeAlone,
        ];
        assert_eq!(effects, expected, "silent at call {silent_at}");
        assert!(machine.may_serve_alone(true, G1));
    }
    let mut machine = RoleMachine::default();
    let mut witness = MemoryWitness::with(Some(both(Member::Second, 2)));
    let effects = command(&mut machine, &mut node.clone(), &FORCE, &mut witness);
    assert_eq!(effects, [RoleEffect::Refuse(CommandRefusal::Overtaken)]);
    assert!(!machine.may_serve_alone(true, G1));
    let second = serving(forced(2), SessionState::Primary);
    let demoted = change(&machine.handle(&second, RoleEvent::Demote));
    assert_eq!(demoted.to.generation, generation(2), "noted");
}

#[test]
fn a_primary_that_waits_without_a_witness_is_not_promoted() {
    let node = RoleFacts {
        settings: RoleSettings {
            has_witness: false,
            ..no_witness()
        },
        ..serving(PRIMARY, SessionState::Paused)
    };
    assert_eq!(refused(&node, &FORCE), CommandRefusal::IsPrimary);
}

#[test]
fn a_forced_node_without_names_tells_the_witness_without_one() {
    let mut witness = MemoryWitness {
        names: SyncNames::default(),
        ..MemoryWitness::with(Some(both(Member::Second, 1)))
    };
    let (effects, _) = force(&mut RoleMachine::default(), &mut witness);
    assert!(effects.contains(&RoleEffect::ClearUnrecorded));
    assert_eq!(witness.record.unwrap().sync, None);
}
