//! A failed disk of this node (rule P16).

use strum::VariantArray as _;

use super::*;

/// Every state of a primary.
const PRIMARY: [State; 11] = [
    State::Unmirrored,
    State::OutOfSync,
    State::ResyncNamespace,
    State::ResyncTail,
    State::ResyncContent,
    State::EnteringSync,
    State::Synced,
    State::Paused,
    State::Frozen,
    State::CatchingUp,
    State::LeavingSync,
];

/// The operations that end with an input or output error.
fn refused(effects: &[Effect]) -> Vec<u64> {
    let error = Err(Errno::Io);
    let mut refused: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Finish { op, result } if *result == error => Some(op.0),
            _ => None,
        })
        .collect();
    refused.sort_unstable();
    refused
}

fn poisoned() -> Event {
    Event::Trigger(Trigger::StorePoisoned)
}

#[test]
fn a_failed_disk_leaves_reads_and_nothing_else() {
    for state in PRIMARY {
        let mut core = core(state);
        core.on(poisoned());
        assert_eq!(core.state(), State::Poisoned, "{state:?}");
        assert_eq!(refused(&core.submit_write(1, 5)), [1]);
        assert_eq!(refused(&core.submit_meta(2, "a")), [2]);
        assert_eq!(refused(&submit_sync(&mut core, 3)), [3]);
        let read = core.on(Event::Submit {
            op: OpId(4),
            kind: OpKind::Read,
            locks: write_locks(5),
            bytes: 0,
        });
        let (op, osn) = (OpId(4), Osn::ZERO);
        assert_eq!(read, [Effect::Execute { op, osn }]);
        assert_eq!(finished(&core.on(Event::LocalDone(op, Ok(())))), [4]);
    }
}

/// Clients read the bytes of interrupted writes like all other bytes of this node: no recovery will
/// compare them with the other node.
#[test]
fn a_disk_that_failed_before_the_recovery_allows_all_reads() {
    let mut core = interrupted();
    assert_eq!(core.submit_read(1, 5), []);
    let effects = core.on(poisoned());
    let read = |effect: &Effect| matches!(effect, Effect::Execute { op: OpId(1), .. });
    assert!(effects.iter().any(read), "{effects:?}");
    core.on(Event::LocalDone(OpId(1), Ok(())));
    assert_eq!(core.lock_counts(), LockCounts::default());
}

#[test]
fn nothing_but_an_operator_leads_out_of_poison() {
    for state in [State::Poisoned, State::SecondaryPoisoned] {
        for trigger in Trigger::VARIANTS {
            assert!(state.next(*trigger).is_err(), "{state:?} {trigger:?}");
        }
        assert!(state.is_poisoned() && !state.is_in_sync());
    }
}

/// This holds for each part of an operation that may be done: the operation is on one node only, or its place is
/// unknown.
#[test]
fn operations_in_flight_end_with_an_error_when_the_disk_fails() {
    let mut core = core(State::Synced);
    // Done here; done on the peer; done on neither node.
    for op in [1, 2, 3] {
        core.submit_write(op, op);
    }
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::WriteAcked(osn(2), None));
    // Waits for the locks of the third write.
    core.submit_write(4, 3);
    submit_sync(&mut core, 5);
    core.on(Event::LocalDone(OpId(5), Ok(())));
    // Sent; committed by the peer and being applied; prepared only.
    for (op, name) in [(6, "a"), (7, "b")] {
        core.submit_meta(op, name);
        core.on(Event::Sequence(OpId(op)));
    }
    core.on(Event::MetaAcked(osn(4), Ok(())));
    core.submit_meta(8, "c");
    let effects = core.on(poisoned());
    assert_eq!(refused(&effects), [1, 5, 7]);
    assert!(effects.contains(&Effect::DropLink));
    // An operation that this node is executing holds its locks until it is over, and is not acknowledged either.
    assert_eq!(refused(&core.on(Event::LocalDone(OpId(2), Ok(())))), [2]);
    assert_eq!(refused(&core.on(Event::LocalDone(OpId(6), Ok(())))), [6]);
    assert_eq!(refused(&core.on(Event::Sequence(OpId(8)))), [8]);
    assert_eq!(refused(&core.on(Event::LocalDone(OpId(3), Ok(())))), [3, 4]);
    // Late events change nothing, and the good copy is not marked out of sync.
    let mut late = core.on(Event::WriteAcked(osn(3), None));
    late.extend(core.on(Event::MetaAcked(osn(5), Ok(()))));
    late.extend(core.on(Event::Trigger(Trigger::PeerFailed)));
    late.extend(core.at(1_000_000, Event::Tick));
    late.retain(|effect| !matches!(effect, Effect::Refused(_)));
    assert_eq!(late, []);
    assert_eq!((core.in_flight().writes, core.held.len()), (0, 0));
}

#[test]
fn held_operations_end_with_an_error_when_the_disk_fails() {
    let mut core = core(State::Paused);
    core.submit_write(1, 5);
    core.submit_meta(2, "a");
    submit_sync(&mut core, 3);
    assert_eq!(refused(&core.on(poisoned())), [1, 2, 3]);
    assert_eq!(core.held.len(), 0);
}
