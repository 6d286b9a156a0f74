//! Two nodes that meet: which of them leads, for pairs of records of which no node leads by itself.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests may panic

use std::collections::VecDeque;

use lockstep_roles::{
    InSyncSet, Member, Phase, RoleEffect, RoleEvent, RoleMachine, RoleRecord, RoleSettings, Told,
    WitnessRecord,
};
use lockstep_types::Generation;
use lockstep_types::settings::{OnPowerLoss, Role};

/// Messages of a meeting, at most.
const MESSAGES_MAX: usize = 50;

fn generation(number: u64) -> Generation {
    Generation::new(number).unwrap()
}

/// The record of a secondary.
fn secondary(number: u64, is_candidate: bool, complete: bool) -> RoleRecord {
    RoleRecord {
        generation: generation(number),
        role: Role::Secondary,
        is_candidate,
        complete,
        peer_complete: false,
    }
}

fn machine(me: Member, record: RoleRecord) -> RoleMachine {
    let settings = RoleSettings {
        me,
        has_witness: true,
        on_power_loss: OnPowerLoss::Wait,
    };
    RoleMachine::start(settings, record, false).0
}

/// Connects two machines, and carries out what they ask for. The copies are never brought together.
fn meet(machines: &mut [RoleMachine; 2]) {
    let mut inbox: VecDeque<(usize, Told)> = VecDeque::new();
    for at in [0, 1] {
        inbox.push_back((1 - at, machines[at].greeting()));
    }
    for _ in 0..MESSAGES_MAX {
        let Some((to, told)) = inbox.pop_front() else {
            return;
        };
        let mut effects = VecDeque::from(machines[to].handle(RoleEvent::PeerTold(told)));
        while let Some(effect) = effects.pop_front() {
            match effect {
                RoleEffect::Record(_) => effects.extend(machines[to].handle(RoleEvent::Recorded)),
                RoleEffect::TellPeer(told) => inbox.push_back((1 - to, told)),
                _ => {}
            }
        }
    }
    panic!("the meeting has no end: {machines:?}");
}

/// Lets two nodes with these records meet. Returns the index of the node that leads, and its phase.
fn leader(first: RoleRecord, second: RoleRecord) -> (usize, Phase) {
    let mut machines = [
        machine(Member::First, first),
        machine(Member::Second, second),
    ];
    meet(&mut machines);
    let leads =
        |at: &usize| machines[*at].durable().is_primary() && machines[*at].durable().complete;
    let leaders: Vec<_> = [0, 1].into_iter().filter(leads).collect();
    assert_eq!(leaders.len(), 1, "{first:?} and {second:?}: {machines:?}");
    (leaders[0], machines[leaders[0]].phase())
}

#[test]
fn two_secondaries_that_lost_power_have_a_primary_again() {
    // The primary granted generation 2. The secondary lost its power before it heard of that. Then the old primary stood
    // for generation 3, and lost its power, too. Its copy was complete for longer.
    let (candidate, secondary) = (secondary(3, true, false), secondary(1, false, false));
    assert_eq!(leader(candidate, secondary), (0, Phase::Alone));
    assert_eq!(leader(secondary, candidate), (1, Phase::Alone));
}

#[test]
fn of_two_secondaries_the_one_with_the_complete_copy_leads() {
    for (theirs, is_candidate) in [(1, false), (1, true), (2, true), (4, true)] {
        let complete = secondary(3, true, true);
        let incomplete = secondary(theirs, is_candidate, false);
        assert_eq!(leader(complete, incomplete).0, 0, "{incomplete:?}");
        assert_eq!(leader(incomplete, complete).0, 1, "{incomplete:?}");
    }
}

#[test]
fn a_candidate_leaves_the_lead_to_an_equal_secondary() {
    let (candidate, equal) = (secondary(3, true, true), secondary(1, false, true));
    assert_eq!(leader(candidate, equal).0, 1);
    let (later, earlier) = (secondary(3, true, true), secondary(2, true, true));
    assert_eq!(leader(later, earlier).0, 1);
}

/// The node that is to lead may lose its power before it does. Then the other copy is the only one that has everything.
#[test]
fn a_candidate_that_leaves_the_lead_keeps_its_copy_complete() {
    let (candidate, equal) = (secondary(3, true, true), secondary(1, false, true));
    let told = Told {
        record: equal,
        seen: Some(candidate),
    };
    let effects = machine(Member::First, candidate).handle(RoleEvent::PeerTold(told));
    let grants = secondary(4, false, true);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, RoleEffect::Record(change) if change.to == grants))
    );
    let [granting, lost] = [secondary(4, false, true), secondary(1, false, false)];
    assert_eq!(leader(granting, lost).0, 0);
}

/// The witness has made the secondary the primary, and that node lost its power before it led.
#[test]
fn a_deposed_primary_leads_again_if_the_other_node_lost_its_power_before_it_led() {
    let deposed = RoleRecord {
        peer_complete: true,
        ..RoleRecord::begin(Role::Primary)
    };
    let mut old = machine(Member::First, deposed);
    let known = WitnessRecord {
        change: 2,
        generation: generation(2),
        primary: Member::Second,
        in_sync: InSyncSet::PrimaryOnly,
        sync: None,
    };
    assert_eq!(old.phase(), Phase::Paused);
    let asks = old.handle(RoleEvent::PauseOver);
    assert_eq!(asks, [RoleEffect::AskWitness]);
    let effects = old.handle(RoleEvent::WitnessAnswered(Some(known)));
    assert_eq!(effects, []);
    assert_eq!((old.phase(), old.durable()), (Phase::Unsure, deposed));
    let candidate = machine(Member::Second, secondary(2, true, false));
    let mut machines = [old, candidate];
    meet(&mut machines);
    let record = machines[0].durable();
    assert!(record.is_primary() && record.complete && record.generation == generation(3));
    assert_eq!(machines[0].phase(), Phase::Alone);
}

#[test]
fn a_deposed_primary_follows_the_node_that_leads() {
    let deposed = RoleRecord {
        peer_complete: true,
        ..RoleRecord::begin(Role::Primary)
    };
    let new = RoleRecord {
        generation: generation(2),
        ..RoleRecord::begin(Role::Primary)
    };
    let mut machines = [
        machine(Member::First, deposed),
        machine(Member::Second, new),
    ];
    meet(&mut machines);
    let record = machines[0].durable();
    assert_eq!((record.role, record.complete), (Role::Secondary, false));
    assert_eq!(machines[0].phase(), Phase::Following);
    assert_eq!(machines[1].phase(), Phase::Alone);
}
