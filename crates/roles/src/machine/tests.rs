use super::*;
use crate::event::WitnessCall;
use crate::fixture::{
    ALONE, DUE, G1, LOOK_DUE, MemoryWitness, PRIMARY, SYNCED, ask, change, facts, generation,
    no_witness, offer, offered, protected, serving,
};
use crate::promotion::UnrecordedPromotion;

fn gives_way(machine: &mut RoleMachine, facts: &RoleFacts, may_peer_hang: bool) -> bool {
    match machine.handle(facts, RoleEvent::DiskHangs { may_peer_hang })[..] {
        [] => false,
        [RoleEffect::GiveWay] => true,
        ref effects => panic!("{effects:?}"),
    }
}

#[test]
fn a_primary_whose_disk_hangs_gives_way_if_the_secondary_can_take_over() {
    let node = serving(PRIMARY, SYNCED);
    assert!(gives_way(&mut protected(), &node, false));
    assert!(!gives_way(&mut protected(), &node, true), "both may hang");
    let unrecorded = Some(UnrecordedPromotion {
        generation: G1,
        known: G1,
    });
    for other in [
        RoleFacts {
            settings: no_witness(),
            ..node
        },
        RoleFacts { unrecorded, ..node },
        RoleFacts {
            is_serving: false,
            ..node
        },
    ] {
        assert!(!gives_way(&mut protected(), &other, false), "{other:?}");
    }
    for (is_connected, is_recorded) in [(true, false), (false, true)] {
        let session = SessionState::Synced {
            is_connected,
            is_recorded,
        };
        let other = serving(PRIMARY, session);
        assert!(!gives_way(&mut protected(), &other, false));
    }
    for session in [SessionState::Paused, SessionState::Primary] {
        let other = serving(PRIMARY, session);
        assert!(!gives_way(&mut protected(), &other, false));
    }
}

#[test]
fn a_primary_whose_disk_hangs_does_not_give_way_without_the_answer_of_the_witness() {
    let node = serving(PRIMARY, SYNCED);
    let mut unprotected = protected();
    unprotected.note_session(SessionEvent::Renamed);
    assert!(!gives_way(&mut unprotected, &node, false));
    let mut silent = protected();
    let mut witness = MemoryWitness {
        silent_at: Some(0),
        ..MemoryWitness::with(None)
    };
    let looks = serving(PRIMARY, SessionState::Primary);
    ask(&mut silent, &looks, LOOK_DUE, &mut witness);
    assert!(silent.witness_report().protects);
    assert!(!gives_way(&mut silent, &node, false));
}

/// A claim that is late on its way could take the right from the secondary.
#[test]
fn a_primary_whose_disk_hangs_does_not_give_way_while_it_asks_to_serve_alone() {
    let synced = serving(PRIMARY, SYNCED);
    let mut machine = protected();
    let paused = serving(PRIMARY, SessionState::Paused);
    let reads = [RoleEffect::Call(WitnessCall::Read)];
    assert_eq!(machine.handle(&paused, RoleEvent::Due(DUE)), reads);
    assert!(machine.witness_report().protects);
    assert!(!gives_way(&mut machine, &synced, false));
    let mut machine = protected();
    let looks = serving(PRIMARY, SessionState::Primary);
    assert_eq!(machine.handle(&looks, RoleEvent::Due(LOOK_DUE)), reads);
    assert!(gives_way(&mut machine, &synced, false), "it only looks");
}

#[test]
fn a_machine_that_starts_knows_nothing_of_the_witness() {
    let report = RoleMachine::default().witness_report();
    let expected = WitnessReport {
        answers: false,
        protects: false,
        peer: PeerWitness::Same,
        is_outdated: false,
    };
    assert_eq!(report, expected);
}

/// The numbers that the other node has named outlast the role and the session of this one.
#[test]
fn the_latest_generation_of_the_other_node_is_kept() {
    let mut machine = RoleMachine::default();
    let node = facts(PRIMARY);
    for number in [5, 2] {
        let later = RoleRecord {
            generation: generation(number),
            ..ALONE
        };
        machine.handle(&node, RoleEvent::Offered(offered(offer(&node, later))));
    }
    machine.note_session(SessionEvent::Begins);
    let without = RoleFacts {
        settings: no_witness(),
        ..node
    };
    let promote = RoleEvent::Promote {
        accepts_loss: false,
    };
    let promoted = change(&machine.handle(&without, promote));
    assert_eq!(promoted.to.generation, generation(6));
}
