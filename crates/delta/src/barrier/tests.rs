//! The machine of the barriers: steps in order, lost and late words, a full disk, a restart.

use super::*;

const NONCE: [u8; 16] = [7; 16];

fn leader() -> BarrierMachine {
    let mut leader = BarrierMachine::after_power_loss(BarrierNames::default());
    let from = Interval::new(1);
    assert_eq!(leader.handle(BarrierEvent::MirroringBegun { from }), []);
    leader
}

fn secondary() -> BarrierMachine {
    let mut secondary = BarrierMachine::after_power_loss(BarrierNames::default());
    let from = Interval::new(1);
    assert_eq!(secondary.handle(BarrierEvent::FollowingBegun { from }), []);
    secondary
}

/// Has the node receive a message, and sync if the machine asks for it. Returns the other effects.
fn bring(machine: &mut BarrierMachine, message: BarrierMessage) -> Vec<BarrierEffect> {
    let mut effects = machine.handle(BarrierEvent::Received(message));
    if machine.syncing().is_some() {
        effects.extend(machine.handle(BarrierEvent::Synced));
    }
    effects.retain(|effect| !matches!(effect, BarrierEffect::Sync(_)));
    effects
}

fn sent(effects: &[BarrierEffect]) -> Vec<BarrierMessage> {
    let message = |effect: &BarrierEffect| match effect {
        BarrierEffect::Send(message) => Some(*message),
        _ => None,
    };
    effects.iter().filter_map(message).collect()
}

/// A whole barrier between two nodes. Returns its name.
fn whole(leader: &mut BarrierMachine, other: &mut BarrierMachine) -> BarrierName {
    leader.handle(BarrierEvent::Due { nonce: NONCE });
    let barrier = leader.outgoing().unwrap();
    leader.handle(BarrierEvent::Synced);
    let answer = sent(&bring(other, barrier));
    let over = sent(&bring(leader, answer[0]));
    let [BarrierMessage::Complete(name)] = over[..] else {
        panic!("{over:?}");
    };
    bring(other, over[0]);
    name
}

#[test]
fn a_barrier_drops_the_marks_of_its_interval_on_both_nodes() {
    let (mut leader, mut other) = (leader(), secondary());
    let first = leader.open();
    let column = leader.mark(first);
    other.mark(first);
    leader.handle(BarrierEvent::Begun(first));
    assert_eq!(leader.handle(BarrierEvent::Due { nonce: NONCE }), []);
    let second = leader.open();
    assert_eq!(second, first.next());
    leader.mark(second);
    other.mark(second);
    // A second barrier does not begin meanwhile, and an operation of the next interval holds nothing up.
    leader.handle(BarrierEvent::Begun(second));
    assert_eq!(leader.handle(BarrierEvent::Due { nonce: [8; 16] }), []);
    let effects = leader.handle(BarrierEvent::Ended(first));
    let name = BarrierName {
        through: first,
        nonce: NONCE,
    };
    let names = BarrierNames {
        complete: None,
        reached: Some(name),
    };
    let barrier = BarrierMessage::Barrier {
        name,
        complete: None,
    };
    assert_eq!(
        effects,
        [BarrierEffect::Send(barrier), BarrierEffect::Sync(names)]
    );
    assert_eq!(leader.handle(BarrierEvent::Synced), []);
    assert_eq!(
        sent(&bring(&mut other, barrier)),
        [BarrierMessage::Reached(name)]
    );
    let over = bring(&mut leader, BarrierMessage::Reached(name));
    let drop = BarrierEffect::Drop {
        through: first,
        columns: vec![column],
        is_of_this_sync: true,
    };
    let word = BarrierMessage::Complete(name);
    assert_eq!(over, [drop.clone(), BarrierEffect::Send(word)]);
    assert_eq!(bring(&mut other, word), [drop]);
    assert_eq!(other.columns(), leader.columns());
    assert_eq!(bring(&mut other, word), []);
}

#[test]
fn a_lost_word_is_made_up_for_by_the_next_barrier() {
    let (mut leader, mut other) = (leader(), secondary());
    let lost = whole(&mut leader, &mut secondary());
    let mut behind = other.clone();
    whole_without_word(&mut behind, lost);
    other = behind;
    assert_eq!(other.known().filter(|it| *it == lost).count(), 2);
    leader.handle(BarrierEvent::Due { nonce: [9; 16] });
    let barrier = leader.outgoing().unwrap();
    let effects = bring(&mut other, barrier);
    let is_drop = |effect: &BarrierEffect| matches!(effect, BarrierEffect::Drop { through, .. } if *through == lost.through);
    assert!(effects.iter().any(is_drop), "{effects:?}");
}

fn whole_without_word(other: &mut BarrierMachine, name: BarrierName) {
    bring(
        other,
        BarrierMessage::Barrier {
            name,
            complete: None,
        },
    );
}

#[test]
fn a_late_word_drops_marks_and_no_rest() {
    let (mut leader, mut other) = (leader(), secondary());
    other.mark(other.open());
    leader.handle(BarrierEvent::Due { nonce: NONCE });
    let barrier = leader.outgoing().unwrap();
    leader.handle(BarrierEvent::Synced);
    let answer = sent(&bring(&mut other, barrier));
    let word = sent(&bring(&mut leader, answer[0]))[0];
    // The nodes part and mirror again before the word arrives.
    let from = leader.open().next();
    other.handle(BarrierEvent::FollowingBegun { from });
    let effects = bring(&mut other, word);
    let [
        BarrierEffect::Drop {
            columns,
            is_of_this_sync,
            ..
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert_eq!(columns.len(), 1);
    assert!(!is_of_this_sync);
}

#[test]
fn an_attempt_does_not_push_out_the_barrier_that_both_have() {
    let (mut leader, mut other) = (leader(), secondary());
    let both = whole(&mut leader, &mut other);
    for attempt in 1..4 {
        leader.handle(BarrierEvent::Due {
            nonce: [attempt; 16],
        });
        leader.handle(BarrierEvent::Synced);
        // No message arrives, and the node changes its role, or begins anew.
        let names = leader.names;
        leader = leader.restarted(names);
        let from = leader.open().next();
        leader.handle(BarrierEvent::MirroringBegun { from });
        assert_eq!(leader.names.complete, Some(both));
    }
    let after = BarrierMachine::after_power_loss(leader.names);
    assert!(after.known().any(|it| it == both));
    assert!(other.known().any(|it| it == both));
}

#[test]
fn a_message_counts_over_any_connection_and_twice() {
    let (mut leader, mut other) = (leader(), secondary());
    leader.handle(BarrierEvent::Due { nonce: NONCE });
    let barrier = leader.outgoing().unwrap();
    bring(&mut other, barrier);
    let again = sent(&bring(&mut other, barrier));
    assert_eq!(again.len(), 1);
    assert_eq!(other.outgoing(), Some(again[0]));
    leader.handle(BarrierEvent::Received(again[0]));
    assert_eq!(leader.outgoing(), None);
    let over = leader.handle(BarrierEvent::Synced);
    assert_eq!(sent(&over).len(), 1);
    assert_eq!(bring(&mut leader, again[0]), []);
    assert_eq!(leader.outgoing(), Some(sent(&over)[0]));
}

#[test]
fn a_full_disk_ends_the_attempt_and_keeps_the_marks() {
    let (mut leader, mut other) = (leader(), secondary());
    let first = leader.open();
    leader.mark(first);
    leader.handle(BarrierEvent::Due { nonce: NONCE });
    let barrier = leader.outgoing().unwrap();
    leader.handle(BarrierEvent::Synced);
    other.handle(BarrierEvent::Received(barrier));
    let refusal = sent(&other.handle(BarrierEvent::SyncFailed));
    assert_eq!(bring(&mut leader, refusal[0]), []);
    assert_eq!(leader.columns().after(Interval::ZERO).count(), 1);
    let next = whole(&mut leader, &mut other);
    assert_eq!(next.through, first.next());
    assert_eq!(leader.columns().after(Interval::ZERO).count(), 0);
    // The primary's own disk.
    leader.handle(BarrierEvent::Due { nonce: NONCE });
    assert_eq!(leader.handle(BarrierEvent::SyncFailed), []);
    assert!(leader.syncing().is_none());
}

#[test]
fn one_sync_runs_at_a_time() {
    let (mut leader, mut other) = (leader(), secondary());
    leader.handle(BarrierEvent::Due { nonce: NONCE });
    let early = leader.outgoing().unwrap();
    other.handle(BarrierEvent::Received(early));
    // The primary leaves the sync and comes back with another barrier; both syncs of the first one still run.
    leader.handle(BarrierEvent::MirroringEnded);
    let from = leader.open().next();
    leader.handle(BarrierEvent::MirroringBegun { from });
    let effects = leader.handle(BarrierEvent::Due { nonce: [8; 16] });
    assert_eq!(effects.len(), 1, "{effects:?}");
    let late = leader.outgoing().unwrap();
    assert_eq!(other.handle(BarrierEvent::Received(late)), []);
    for machine in [&mut leader, &mut other] {
        let effects = machine.handle(BarrierEvent::Synced);
        assert!(
            matches!(effects[..], [BarrierEffect::Sync(_)]),
            "{effects:?}"
        );
    }
    assert_eq!(other.outgoing(), None);
    assert_eq!(sent(&other.handle(BarrierEvent::Synced)).len(), 1);
}

#[test]
fn a_node_that_does_not_mirror_makes_no_barrier() {
    let mut machine = secondary();
    assert_eq!(machine.handle(BarrierEvent::Due { nonce: NONCE }), []);
    assert_eq!(machine.open(), Interval::new(1));
    assert_eq!(machine.outgoing(), None);
    let mut leader = leader();
    leader.handle(BarrierEvent::MirroringEnded);
    assert_eq!(leader.handle(BarrierEvent::Due { nonce: NONCE }), []);
}

#[test]
fn a_process_that_starts_marks_no_interval_that_a_barrier_has_ended() {
    let (mut leader, mut other) = (leader(), secondary());
    let name = whole(&mut leader, &mut other);
    let columns = *leader.columns();
    let after = BarrierMachine::of_process(leader.names(), columns);
    assert!(after.open() > name.through);
    let column = leader.mark(Interval::new(9));
    let after = BarrierMachine::of_process(leader.names(), *leader.columns());
    assert_eq!(after.open(), Interval::new(9));
    assert_eq!(after.columns().youngest(column), Some(Interval::new(9)));
}

#[test]
fn a_resync_of_everything_leaves_no_base() {
    let (mut leader, mut other) = (leader(), secondary());
    whole(&mut leader, &mut other);
    other.forget_names();
    assert_eq!(other.known().count(), 0);
}
