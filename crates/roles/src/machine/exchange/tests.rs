use lockstep_types::{SyncStanding, WitnessId};

use super::*;
use crate::change::RoleChangeKind;
use crate::event::{RoleEvent, SessionEvent};
use crate::facts::SessionState;
use crate::fixture::{
    ALONE, COMPLETE, G1, INCOMPLETE, PRIMARY, SYNCED, change, copy, counted, facts, generation,
    no_witness, offer, offered, protected, record, serving, standing, store,
};
use crate::solo::SoloEnds;

/// The effects of an offer at a node that has just started.
fn hear(facts: &RoleFacts, offered: &Offered) -> RoleEffects {
    RoleMachine::default().handle(facts, RoleEvent::Offered(*offered))
}

/// The change after an offer of an equal copy: whether the node serves, and its record.
fn met(facts: &RoleFacts, theirs: RoleOffer) -> (bool, RoleRecord) {
    let change = change(&hear(facts, &offered(theirs)));
    (change.serves(), change.to)
}

/// The conflict after an offer, and whether the node ends its service.
fn conflict(facts: &RoleFacts, offered: &Offered) -> (bool, RoleConflict) {
    match hear(facts, offered)[..] {
        [RoleEffect::Conflict(conflict)] => (false, conflict),
        [RoleEffect::Change(stop), RoleEffect::Conflict(conflict)] => {
            assert_eq!(stop, RoleChange::keep(facts.record, ServicePart::Wait));
            (true, conflict)
        }
        ref effects => panic!("{effects:?}"),
    }
}

#[test]
fn a_primary_that_starts_leads_once_it_has_met_its_secondary() {
    let node = facts(PRIMARY);
    let unseen = RoleOffer {
        seen: None,
        ..offer(&node, COMPLETE)
    };
    assert!(!met(&node, unseen).0, "not met yet");
    assert_eq!(met(&node, offer(&node, COMPLETE)), (true, PRIMARY));
    assert_eq!(met(&node, offer(&node, INCOMPLETE)), (true, ALONE));
}

#[test]
fn a_primary_that_lost_power_gives_its_role_to_a_complete_secondary_of_the_same_sync_only() {
    let node = facts(PRIMARY.after_power_loss());
    let granted = record(Role::Secondary, G1.next(), false, false);
    assert_eq!(met(&node, offer(&node, COMPLETE)), (false, granted));
    let older = RoleOffer {
        sync: standing(1),
        ..offer(&node, COMPLETE)
    };
    assert_eq!(met(&node, older), (false, ALONE), "the witness trusts it");
    let gives_in = RoleOffer {
        record: INCOMPLETE,
        ..older
    };
    assert_eq!(met(&node, gives_in), (true, ALONE), "the copy is old");
    let newer = RoleOffer {
        sync: standing(3),
        ..offer(&node, COMPLETE)
    };
    assert_eq!(
        conflict(&node, &offered(newer)),
        (true, RoleConflict::OlderCopy)
    );
}

/// The witness does not know the operations of a sync, and would let the older copy take over.
#[test]
fn a_copy_that_is_older_than_that_of_the_primary_says_so_itself() {
    let node = facts(COMPLETE);
    for (theirs, expected) in [(standing(3), INCOMPLETE), (standing(2), COMPLETE)] {
        let primary = RoleOffer {
            sync: theirs,
            ..offer(&node, PRIMARY)
        };
        assert_eq!(met(&node, primary), (false, expected));
    }
}

/// The copy was put back, and has the name of the present sync.
#[test]
fn a_copy_that_lacks_operations_of_the_sync_proves_nothing_and_says_so_itself() {
    let with_operations = |facts: &RoleFacts, own, record, theirs| Offered {
        copy: LocalCopy {
            sync: counted(2, own),
            ..copy()
        },
        ..offered(RoleOffer {
            sync: counted(2, theirs),
            ..offer(facts, record)
        })
    };
    let primary = facts(PRIMARY.after_power_loss());
    let after = change(&hear(&primary, &with_operations(&primary, 7, COMPLETE, 6)));
    assert_eq!((after.serves(), after.to), (false, ALONE), "no grant");
    let secondary = facts(COMPLETE);
    for (operations, expected) in [(6, INCOMPLETE), (7, COMPLETE)] {
        let after = hear(
            &secondary,
            &with_operations(&secondary, operations, PRIMARY, 7),
        );
        assert_eq!(change(&after).to, expected);
    }
    for put_back in [facts(PRIMARY), serving(PRIMARY, SYNCED)] {
        let newer = with_operations(&put_back, 6, COMPLETE, 7);
        assert_eq!(conflict(&put_back, &newer), (true, RoleConflict::OlderCopy));
    }
}

#[test]
fn a_primary_with_the_older_copy_says_so_until_the_other_copy_is_no_newer() {
    let node = facts(PRIMARY);
    let mut machine = RoleMachine::default();
    for (theirs, is_outdated) in [(standing(3), true), (standing(2), false)] {
        let theirs = RoleOffer {
            sync: theirs,
            ..offer(&node, COMPLETE)
        };
        machine.handle(&node, RoleEvent::Offered(offered(theirs)));
        assert_eq!(machine.witness_report().is_outdated, is_outdated);
    }
}

#[test]
fn a_grant_makes_the_same_copy_the_primary_and_no_other() {
    let node = facts(COMPLETE);
    let grant = record(Role::Secondary, G1.next(), true, false);
    let after = change(&hear(&node, &offered(offer(&node, grant))));
    let lead = record(Role::Primary, G1.next(), true, true);
    assert_eq!((after.serves(), after.to), (true, lead));
    assert_eq!(after.kind, RoleChangeKind::LeadByGrant);
    for other in [standing(1), standing(3)] {
        let strange = RoleOffer {
            sync: other,
            ..offer(&node, grant)
        };
        let expected = (false, RoleConflict::OtherCopy);
        assert_eq!(conflict(&node, &offered(strange)), expected);
    }
}

#[test]
fn a_primary_that_served_alone_follows_nobody_and_one_that_did_not_follows() {
    let promoted = record(Role::Primary, G1.next(), true, false);
    let alone = facts(ALONE);
    let both_served = (true, RoleConflict::BothServed);
    assert_eq!(
        conflict(&alone, &offered(offer(&alone, promoted))),
        both_served
    );
    let waiting = facts(PRIMARY);
    let follows = record(Role::Secondary, G1.next(), false, false);
    let after = change(&hear(&waiting, &offered(offer(&waiting, promoted))));
    assert_eq!((after.serves(), after.to), (false, follows));
    assert_eq!(after.kind, RoleChangeKind::Deposed);
    let mut empty = Offered {
        copy: LocalCopy {
            store: Some(store(7)),
            sync: SyncStanding::default(),
            was_resynced: false,
            has_data: false,
        },
        ..offered(offer(&alone, promoted))
    };
    assert_eq!(change(&hear(&alone, &empty)).to, follows, "nothing to lose");
    empty.copy.was_resynced = true;
    assert_eq!(conflict(&alone, &empty), both_served, "it has lost data");
}

#[test]
fn a_later_primary_does_not_drop_what_an_earlier_one_served_alone() {
    let later = facts(record(Role::Primary, generation(3), true, true));
    let earlier_alone = offered(offer(&later, ALONE));
    assert_eq!(
        conflict(&later, &earlier_alone),
        (false, RoleConflict::BothServed)
    );
    let new = Offered {
        copy: LocalCopy {
            has_data: false,
            ..copy()
        },
        ..earlier_alone
    };
    assert_eq!(change(&hear(&later, &new)).to, later.record);
    let in_sync = offered(offer(&later, PRIMARY));
    assert_eq!(change(&hear(&later, &in_sync)).to, later.record);
}

#[test]
fn two_nodes_of_one_role_do_not_fit() {
    let first = facts(PRIMARY);
    let two = offered(offer(&first, ALONE));
    assert_eq!(conflict(&first, &two), (false, RoleConflict::TwoPrimaries));
    let second = facts(COMPLETE);
    let two = offered(offer(&second, INCOMPLETE));
    let expected = (false, RoleConflict::TwoSecondaries);
    assert_eq!(conflict(&second, &two), expected);
}

#[test]
fn a_primary_that_may_not_serve_yet_takes_no_other_copy_for_its_secondary() {
    let node = facts(PRIMARY);
    let other = |is_serving| {
        let node = RoleFacts { is_serving, ..node };
        let strange = RoleOffer {
            store: Some(store(9)),
            ..offer(&node, INCOMPLETE)
        };
        hear(&node, &offered(strange))
    };
    let refused = [RoleEffect::Conflict(RoleConflict::OtherCopy)];
    assert_eq!(other(false), refused);
    // The greeting refuses that copy.
    assert_eq!(
        change(&other(true)),
        RoleChange::keep(PRIMARY, ServicePart::Serve)
    );
}

#[test]
fn a_primary_that_serves_takes_nothing_from_its_secondary() {
    let node = serving(PRIMARY, SessionState::Primary);
    assert_eq!(met(&node, offer(&node, INCOMPLETE)), (true, PRIMARY));
    let later = record(Role::Primary, generation(3), true, false);
    let follows = record(Role::Secondary, generation(3), false, false);
    assert_eq!(met(&node, offer(&node, later)), (false, follows));
}

#[test]
fn a_later_candidate_that_has_not_seen_this_node_changes_nothing() {
    let node = facts(PRIMARY);
    let candidate = RoleRecord {
        is_candidate: true,
        ..record(Role::Secondary, generation(2), true, false)
    };
    let unseen = RoleOffer {
        seen: None,
        ..offer(&node, candidate)
    };
    assert_eq!(met(&node, unseen), (false, PRIMARY));
}

// The write verifier.

fn renews(facts: &RoleFacts, offered: &Offered) -> bool {
    match hear(facts, offered)[..] {
        [RoleEffect::Change(_)] => false,
        [
            RoleEffect::SkipNumbersAndRenewVerifier,
            RoleEffect::Change(_),
        ] => true,
        ref effects => panic!("{effects:?}"),
    }
}

#[test]
fn a_peer_in_sync_with_a_new_store_is_lost() {
    let new = |by: &RoleFacts| {
        offered(RoleOffer {
            store: None,
            sync: SyncStanding::default(),
            ..offer(by, INCOMPLETE)
        })
    };
    let in_sync = facts(PRIMARY);
    assert!(change(&hear(&in_sync, &new(&in_sync))).serves());
    assert!(renews(&in_sync, &new(&in_sync)));
    assert!(!renews(&in_sync, &offered(offer(&in_sync, INCOMPLETE))));
    let alone = facts(ALONE);
    assert!(!renews(&alone, &new(&alone)), "it was given up before");
    let excludes_other = Offered {
        excludes_other: true,
        ..new(&in_sync)
    };
    assert!(!renews(&in_sync, &excludes_other));
}

#[test]
fn a_node_that_begins_to_lead_renews_its_verifier_if_the_peer_has_discarded_changes() {
    let discarded = |by: &RoleFacts, record| {
        offered(RoleOffer {
            discarded_own_changes: true,
            ..offer(by, record)
        })
    };
    let node = facts(COMPLETE);
    let grant = record(Role::Secondary, G1.next(), true, false);
    assert!(renews(&node, &discarded(&node, grant)));
    assert!(!renews(&node, &offered(offer(&node, grant))));
    let excludes_other = Offered {
        excludes_other: true,
        ..discarded(&node, grant)
    };
    assert!(!renews(&node, &excludes_other), "no other node has served");
    // A primary that is granted a later generation begins, too. One that keeps its generation has begun before.
    let primary = facts(PRIMARY);
    assert!(renews(&primary, &discarded(&primary, grant)));
    assert!(!renews(&primary, &discarded(&primary, INCOMPLETE)));
    let later = record(Role::Primary, generation(2), true, true);
    assert!(!renews(&node, &discarded(&node, later)), "it follows");
}

// The witness of the other node.

#[test]
fn nodes_with_different_failover_times_do_not_meet() {
    let node = facts(record(Role::Primary, generation(2), true, false));
    let mut machine = protected();
    let later = record(Role::Secondary, generation(5), true, false);
    let other = RoleOffer {
        failover_after_ms: Some(2000),
        witness: None,
        ..offer(&node, later)
    };
    let refused = [RoleEffect::Conflict(RoleConflict::OtherTimes)];
    let events = [RoleEvent::Offered, RoleEvent::OfferedToFailedDisk];
    for event in events {
        assert_eq!(machine.handle(&node, event(offered(other))), refused);
    }
    let report = machine.witness_report();
    assert!(report.protects && report.peer == PeerWitness::Same);
    let demoted = change(&machine.handle(&node, RoleEvent::Demote));
    assert_eq!(demoted.to.generation, generation(3), "nothing is noted");
}

#[test]
fn a_witness_protects_while_both_nodes_ask_it() {
    let with = serving(PRIMARY, SYNCED);
    let without = RoleFacts {
        settings: no_witness(),
        ..with
    };
    let other = Some(WitnessId::of_certificate([2; 32]));
    for (node, times, witness, expected) in [
        (with, Some(3000), with.settings.witness, PeerWitness::Same),
        (with, Some(3000), other, PeerWitness::Other),
        (with, None, None, PeerWitness::None),
        (without, Some(3000), other, PeerWitness::Other),
        (without, None, None, PeerWitness::None),
    ] {
        let mut machine = protected();
        let theirs = RoleOffer {
            failover_after_ms: times,
            witness,
            ..offer(&node, COMPLETE)
        };
        machine.handle(&node, RoleEvent::Offered(offered(theirs)));
        let report = machine.witness_report();
        assert_eq!(report.peer, expected);
        assert_eq!(report.protects, expected == PeerWitness::Same);
    }
}

// The mark that a copy is not complete.

#[test]
fn a_secondary_marks_its_copy_incomplete_if_its_primary_asks() {
    let node = facts(COMPLETE);
    let asks = RoleOffer {
        asks_incomplete_mark: true,
        ..offer(&node, PRIMARY)
    };
    let mark = [RoleEffect::MarkIncomplete];
    assert_eq!(hear(&node, &offered(asks)), mark);
    let others = [
        RoleOffer {
            asks_incomplete_mark: false,
            ..asks
        },
        RoleOffer { seen: None, ..asks },
        RoleOffer {
            record: record(Role::Primary, generation(2), true, true),
            ..asks
        },
        RoleOffer {
            record: record(Role::Secondary, generation(2), true, false),
            ..asks
        },
    ];
    for other in others {
        assert_ne!(hear(&node, &offered(other)), mark, "{other:?}");
    }
    let incomplete = facts(INCOMPLETE);
    let asks_again = RoleOffer {
        seen: Some(INCOMPLETE),
        ..asks
    };
    assert_ne!(hear(&incomplete, &offered(asks_again)), mark);
    let candidate = facts(record(Role::Primary, G1, true, true));
    let asked_of_primary = RoleOffer {
        seen: Some(candidate.record),
        record: record(Role::Secondary, G1, false, false),
        ..asks
    };
    assert_ne!(hear(&candidate, &offered(asked_of_primary)), mark);
}

#[test]
fn a_primary_that_cannot_keep_up_the_sync_asks_for_the_mark_until_it_may_serve_alone() {
    let leaving = serving(PRIMARY, SessionState::LeavingSync);
    let mut machine = RoleMachine::default();
    assert!(machine.asks_incomplete_mark(&leaving));
    assert!(!machine.asks_incomplete_mark(&serving(PRIMARY, SessionState::Paused)));
    let without = RoleFacts {
        settings: no_witness(),
        ..leaving
    };
    assert!(!machine.asks_incomplete_mark(&without));
    machine.note_session(SessionEvent::SecondaryFollows(G1));
    assert!(!machine.asks_incomplete_mark(&leaving));
    machine.note_session(SessionEvent::SecondaryFollows(generation(2)));
    assert!(machine.asks_incomplete_mark(&leaving), "of this generation");
}

/// Whether a primary with these facts may serve alone after an offer that it hears as `hears` says.
fn may_serve_alone(facts: &RoleFacts, hears: impl FnOnce(&mut RoleMachine) -> Offered) -> bool {
    let mut machine = RoleMachine::default();
    let offered = hears(&mut machine);
    machine.handle(facts, RoleEvent::Offered(offered));
    machine.may_serve_alone(true, facts.record.generation)
}

#[test]
fn a_secondary_that_is_incomplete_by_its_own_record_lets_the_primary_serve_alone() {
    for session in [
        SessionState::Paused,
        SessionState::Frozen,
        SessionState::LeavingSync,
    ] {
        let node = serving(PRIMARY, session);
        assert!(may_serve_alone(&node, |_| offered(offer(
            &node, INCOMPLETE
        ))));
    }
    let node = serving(PRIMARY, SessionState::Paused);
    let says = offer(&node, INCOMPLETE);
    let others = [
        RoleOffer { seen: None, ..says },
        offer(&node, COMPLETE),
        offer(&node, record(Role::Secondary, generation(2), false, false)),
    ];
    for other in others {
        assert!(!may_serve_alone(&node, |_| offered(other)), "{other:?}");
    }
    let does_not_wait = serving(PRIMARY, SessionState::Primary);
    assert!(!may_serve_alone(&does_not_wait, |_| offered(says)));
}

#[test]
fn a_record_of_the_secondary_from_before_a_sync_grants_nothing() {
    let node = serving(PRIMARY, SessionState::Paused);
    let says = offered(offer(&node, INCOMPLETE));
    let before = |machine: &mut RoleMachine| {
        let since = machine.solo_ends();
        machine.note_session(SessionEvent::EntersSync);
        Offered { since, ..says }
    };
    assert!(!may_serve_alone(&node, before), "it may be complete by now");
    let after = |machine: &mut RoleMachine| {
        machine.note_session(SessionEvent::EntersSync);
        let since = machine.solo_ends();
        Offered { since, ..says }
    };
    assert!(may_serve_alone(&node, after));
    let since = SoloEnds(7);
    assert!(!may_serve_alone(&node, |_| Offered { since, ..says }));
}

#[test]
fn without_a_witness_a_primary_may_serve_alone_and_with_one_until_the_next_sync() {
    let mut machine = RoleMachine::default();
    assert!(machine.may_serve_alone(false, G1) && !machine.may_serve_alone(true, G1));
    machine.note_session(SessionEvent::SecondaryFollows(G1));
    assert!(machine.may_serve_alone(true, G1));
    assert!(!machine.may_serve_alone(true, generation(2)));
    machine.note_session(SessionEvent::EntersSync);
    assert!(!machine.may_serve_alone(true, G1));
}

// A failed disk.

#[test]
fn a_primary_with_a_failed_disk_serves_reads_until_the_other_node_may_serve() {
    let hear = |facts: &RoleFacts, record| {
        let event = RoleEvent::OfferedToFailedDisk(offered(offer(facts, record)));
        RoleMachine::default().handle(facts, event)
    };
    let node = facts(PRIMARY);
    assert_eq!(hear(&node, COMPLETE), [RoleEffect::ServeReads]);
    let later = record(Role::Secondary, G1.next(), true, false);
    assert_eq!(hear(&node, later), [RoleEffect::ServeNothing]);
    let may_lead = facts(PRIMARY.after_power_loss());
    assert_eq!(hear(&may_lead, COMPLETE), [], "the other node leads");
    assert_eq!(hear(&node, ALONE), [], "a conflict");
    assert_eq!(hear(&facts(COMPLETE), PRIMARY), [], "a secondary");
    let candidate = COMPLETE.become_candidate();
    let granted = record(Role::Secondary, G1.next(), true, false);
    assert_eq!(hear(&facts(candidate), granted), [], "it cannot lead");
    let deposed = record(Role::Primary, G1.next(), true, true);
    assert_eq!(
        hear(&facts(COMPLETE), deposed),
        [RoleEffect::ServeNothing],
        "the other node serves"
    );
}

#[test]
fn a_failed_disk_notes_the_generation_of_the_other_node() {
    let node = facts(record(Role::Primary, generation(2), true, true));
    let mut machine = RoleMachine::default();
    let demoted = |machine: &mut RoleMachine| {
        let effects = machine.handle(&node, RoleEvent::Demote);
        change(&effects).to.generation
    };
    assert_eq!(demoted(&mut machine), generation(3));
    let theirs = offer(&node, record(Role::Secondary, generation(2), true, false));
    machine.handle(&node, RoleEvent::OfferedToFailedDisk(offered(theirs)));
    assert_eq!(demoted(&mut machine), generation(2));
}
