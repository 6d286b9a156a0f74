//! The gate of a snapshot (rule P35).

use super::*;

const SNAPSHOT: u64 = 50;

impl Core {
    fn submit_snapshot(&mut self, op: u64) -> Vec<Effect> {
        self.on(Event::Submit {
            op: OpId(op),
            kind: OpKind::Snapshot,
            locks: LockSet::from_slice(&[(LockKey::Snapshots, LockMode::Exclusive)]),
            bytes: 0,
        })
    }

    /// Both nodes have done a write.
    fn finish_write(&mut self, op: u64, number: u64) -> Vec<Effect> {
        let mut effects = self.on(Event::LocalDone(OpId(op), Ok(())));
        effects.extend(self.on(Event::WriteAcked(osn(number), None)));
        effects
    }

    /// Both nodes have applied a metadata operation.
    fn finish_meta(&mut self, op: u64, number: u64) -> Vec<Effect> {
        let mut effects = self.on(Event::MetaAcked(osn(number), Ok(())));
        effects.extend(self.on(Event::LocalDone(OpId(op), Ok(()))));
        effects
    }
}

fn prepares(effects: &[Effect]) -> Vec<u64> {
    let of = |effect: &Effect| match effect {
        Effect::Prepare { op } => Some(op.0),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn executes(effects: &[Effect]) -> Vec<u64> {
    let of = |effect: &Effect| match effect {
        Effect::Execute { op, .. } => Some(op.0),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn is_busy(effects: &[Effect], op: u64) -> bool {
    let result = Err(Errno::Busy);
    let op = OpId(op);
    effects.contains(&Effect::Finish { op, result })
}

fn all_given_back(core: &Core) -> bool {
    core.lock_counts() == LockCounts::default() && core.in_flight() == InFlight::default()
}

#[test]
fn a_snapshot_is_numbered_between_what_was_and_what_comes() {
    for state in [State::Synced, State::OutOfSync, State::Unmirrored] {
        let mut core = core(state);
        let is_mirrored = state == State::Synced;
        core.submit_write(1, 7);
        assert_eq!(prepares(&core.submit_meta(2, "a")), [2]);
        core.on(Event::Sequence(OpId(2)));
        assert_eq!(prepares(&core.submit_snapshot(SNAPSHOT)), [0; 0]);
        // Later ones wait, in order; a read does not.
        assert!(executes(&core.submit_write(3, 8)).is_empty());
        assert!(prepares(&core.submit_meta(4, "b")).is_empty());
        assert_eq!(executes(&core.submit_read(5, 9)), [5]);
        core.on(Event::LocalDone(OpId(5), Ok(())));
        assert!(!core.would_start_write(&write_locks(11), 0));
        let mut effects = core.on(Event::LocalDone(OpId(1), Ok(())));
        if is_mirrored {
            effects.extend(core.on(Event::WriteAcked(osn(1), None)));
        }
        assert_eq!(finished(&effects), [1]);
        assert!(
            prepares(&effects).is_empty(),
            "a metadata operation is under way"
        );
        let effects = if is_mirrored {
            core.finish_meta(2, 2)
        } else {
            core.on(Event::LocalDone(OpId(2), Ok(())))
        };
        assert_eq!(prepares(&effects), [SNAPSHOT], "{state:?}");
        let effects = core.on(Event::Sequence(OpId(SNAPSHOT)));
        let sequenced = Effect::Sequenced {
            op: OpId(SNAPSHOT),
            osn: osn(3),
            mirrored: is_mirrored,
        };
        assert_eq!(effects, [sequenced]);
        assert!(executes(&core.submit_write(6, 10)).is_empty());
        if is_mirrored {
            let effects = core.on(Event::MetaAcked(osn(3), Ok(())));
            assert!(executes(&effects).is_empty() && prepares(&effects).is_empty());
        }
        let effects = core.on(Event::LocalDone(OpId(SNAPSHOT), Ok(())));
        assert_eq!(
            effects.first(),
            Some(&Effect::Finish {
                op: OpId(SNAPSHOT),
                result: Ok(())
            })
        );
        assert_eq!(
            (executes(&effects), prepares(&effects)),
            (vec![3, 6], vec![4])
        );
        assert_eq!(core.next_osn(), osn(6));
    }
}

/// A metadata operation may be on its way to its number when the gate closes.
#[test]
fn an_operation_that_was_prepared_is_numbered_after_the_snapshot() {
    let mut core = core(State::Synced);
    assert_eq!(prepares(&core.submit_meta(1, "a")), [1]);
    assert_eq!(prepares(&core.submit_snapshot(SNAPSHOT)), [SNAPSHOT]);
    assert_eq!(core.on(Event::Sequence(OpId(1))), []);
    core.on(Event::Sequence(OpId(SNAPSHOT)));
    let effects = core.finish_meta(SNAPSHOT, 1);
    assert_eq!(prepares(&effects), [1]);
    let effects = core.on(Event::Sequence(OpId(1)));
    assert!(matches!(effects[..], [Effect::Sequenced { osn: second, .. }] if second == osn(2)));
    core.finish_meta(1, 2);
    assert!(all_given_back(&core));
}

#[test]
fn a_snapshot_that_waits_for_too_long_lets_the_others_go_on() {
    let mut core = core(State::Synced);
    core.submit_write(1, 7);
    core.submit_snapshot(SNAPSHOT);
    core.submit_write(2, 8);
    assert_eq!(core.pause_ends().next_tick_ms(), Some(1000));
    assert!(core.at(999, Event::Tick).is_empty());
    let effects = core.at(1000, Event::Tick);
    assert!(is_busy(&effects, SNAPSHOT));
    assert_eq!(executes(&effects), [2]);
    assert_eq!(core.pause_ends().next_tick_ms(), None);
    core.finish_write(1, 1);
    core.finish_write(2, 2);
    assert!(all_given_back(&core));
}

/// The driver may be about to ask for the number.
#[test]
fn a_snapshot_ends_with_the_connection_and_gets_no_number() {
    let mut core = core(State::Synced);
    assert_eq!(prepares(&core.submit_snapshot(SNAPSHOT)), [SNAPSHOT]);
    core.submit_write(1, 7);
    let effects = core.on(Event::Trigger(Trigger::LinkLost));
    assert!(is_busy(&effects, SNAPSHOT));
    assert_eq!(core.on(Event::Sequence(OpId(SNAPSHOT))), []);
    assert_eq!(core.next_osn(), osn(1));
    assert_eq!(core.in_flight().held, 1, "the write waits for the state");
}

#[test]
fn a_snapshot_that_has_its_number_outlives_the_connection() {
    let mut core = core(State::Synced);
    core.submit_snapshot(SNAPSHOT);
    core.on(Event::Sequence(OpId(SNAPSHOT)));
    core.submit_write(1, 7);
    core.on(Event::Trigger(Trigger::LinkLost));
    let effects = core.on(reconnect());
    assert!(effects.contains(&Effect::ResendMeta { osn: osn(1) }));
    core.finish_meta(SNAPSHOT, 1);
    let effects = core.on(Event::RangesRecovered);
    assert_eq!(core.state(), State::Synced);
    assert_eq!(executes(&effects), [1]);
    core.finish_write(1, 2);
    assert!(all_given_back(&core));
}

#[test]
fn a_snapshot_in_flight_is_made_alone_when_the_peer_is_given_up() {
    let mut core = core(State::Synced);
    core.submit_snapshot(SNAPSHOT);
    core.on(Event::Sequence(OpId(SNAPSHOT)));
    core.submit_write(1, 7);
    core.on(Event::Trigger(Trigger::PeerFailed));
    let effects = core.on(Event::Trigger(Trigger::MarkedOutOfSync));
    assert!(effects.contains(&Effect::Commit {
        osn: osn(1),
        op: Some(OpId(SNAPSHOT))
    }));
    assert!(
        executes(&effects).is_empty(),
        "the snapshot is not made yet"
    );
    let effects = core.on(Event::LocalDone(OpId(SNAPSHOT), Ok(())));
    assert_eq!(executes(&effects), [1]);
}

#[test]
fn no_snapshot_is_made_in_a_resync_or_in_a_pause() {
    for state in [
        State::ResyncNamespace,
        State::ResyncTail,
        State::ResyncContent,
        State::EnteringSync,
        State::Paused,
        State::Frozen,
        State::CatchingUp,
        State::LeavingSync,
    ] {
        let mut core = core(state);
        let effects = core.submit_snapshot(SNAPSHOT);
        assert!(is_busy(&effects, SNAPSHOT), "{state:?}: {effects:?}");
        assert!(all_given_back(&core));
    }
}

#[test]
fn two_snapshots_are_made_one_after_the_other() {
    let mut core = core(State::Synced);
    core.submit_write(1, 7);
    core.submit_snapshot(SNAPSHOT);
    assert!(prepares(&core.submit_snapshot(SNAPSHOT + 1)).is_empty());
    assert_eq!(prepares(&core.finish_write(1, 1)), [SNAPSHOT]);
    core.on(Event::Sequence(OpId(SNAPSHOT)));
    let effects = core.finish_meta(SNAPSHOT, 2);
    assert_eq!(prepares(&effects), [SNAPSHOT + 1]);
}

#[test]
fn a_failed_disk_ends_what_waits_at_the_gate() {
    for is_numbered in [false, true] {
        let mut core = core(State::Synced);
        core.submit_write(1, 7);
        core.submit_snapshot(SNAPSHOT);
        core.submit_write(2, 8);
        if is_numbered {
            core.finish_write(1, 1);
            core.on(Event::Sequence(OpId(SNAPSHOT)));
        }
        let mut effects = core.on(Event::Trigger(Trigger::StorePoisoned));
        effects.extend(core.on(Event::LocalDone(OpId(1), Ok(()))));
        for op in [SNAPSHOT, 2] {
            let result = Err(Errno::Io);
            let op = OpId(op);
            assert!(
                effects.contains(&Effect::Finish { op, result }),
                "{effects:?}"
            );
        }
        assert!(all_given_back(&core));
    }
}
