//! A connection that is lost, and what comes after, soon or late.

use super::*;

#[test]
fn a_short_disconnect_loses_nothing() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.submit_meta(2, "a");
    core.on(Event::Sequence(OpId(2)));
    assert_eq!(
        core.on(Event::Happened(Trigger::LinkLost)),
        [Effect::Entered(State::Paused)]
    );
    assert_eq!(core.submit_write(3, 6), [], "held while paused");
    let effects = core.at(
        500,
        Event::LinkUp {
            connection: LINK,
            in_sync: true,
            peer_applied: Osn::ZERO,
        },
    );
    assert_eq!(
        effects,
        [
            Effect::Entered(State::CatchingUp),
            Effect::ResendMeta { osn: osn(2) }
        ]
    );
    assert_eq!(core.done_below(), Osn::ZERO);
    core.on(Event::MetaAcked(osn(2), Ok(())));
    let effects = core.on(Event::LocalDone(OpId(2), Ok(())));
    assert_eq!(finished(&effects), [2]);
    assert!(effects.contains(&transfer(Transfer::RecoverRanges)));
    assert_eq!(core.on(Event::RangesRecovered), [send_again(1, 1)]);
    let effects = core.on(Event::WriteAcked(osn(1), None));
    assert_eq!(finished(&effects), [1]);
    assert!(effects.contains(&transfer(Transfer::TellRecovered)));
    assert!(effects.contains(&Effect::Entered(State::Synced)));
    assert!(effects.contains(&send(3, 3, LINK)));
}

#[test]
fn a_long_disconnect_is_marked_before_anything_is_acknowledged() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.at(100, Event::Happened(Trigger::LinkLost));
    assert_eq!(core.at(1099, Event::Tick), []);
    assert_eq!(
        core.at(1100, Event::Tick),
        [
            Effect::Entered(State::LeavingSync),
            Effect::Mark { in_sync: false }
        ]
    );
    let effects = core.on(Event::Happened(Trigger::MarkedOutOfSync));
    assert_eq!(finished(&effects), [1]);
    assert_eq!(
        core.submit_write(2, 5),
        [Effect::Execute {
            op: OpId(2),
            osn: osn(2)
        }]
    );
}

/// What the secondary remembers of writes that were over takes slots, and the writes that are sent again
/// need as many: once the ranges are alike it may forget the former, and before the latter come.
#[test]
fn what_was_over_makes_room_for_what_is_sent_again() {
    let mut core = core(State::Synced);
    for op in 0..8 {
        core.submit_write(op, 10 + op);
    }
    for number in 1..=4 {
        core.on(Event::WriteAcked(osn(number), None));
    }
    for op in [1, 2, 3, 0] {
        core.on(Event::LocalDone(OpId(op), Ok(())));
    }
    core.on(Event::Happened(Trigger::LinkLost));
    for op in 4..8 {
        core.on(Event::LocalDone(OpId(op), Ok(())));
    }
    core.on(reconnect());
    assert_eq!(core.done_below(), Osn::ZERO, "the ranges are not alike yet");
    let again = core.on(Event::RangesRecovered);
    assert_eq!(again, [4, 5, 6, 7].map(|op| send_again(op, op + 1)));
    assert_eq!(core.done_below(), osn(5));
}

/// The peer may have the bytes or not, and this side may have some of them: as while connected,
/// only a resync makes both equal.
#[test]
fn a_write_that_failed_here_across_a_disconnect_is_not_waited_for() {
    for fails_first in [true, false] {
        let mut core = core(State::Synced);
        core.submit_write(1, 5);
        let failure = Event::LocalDone(OpId(1), Err(Errno::NoSpace));
        if fails_first {
            core.on(failure.clone());
        }
        core.on(Event::Happened(Trigger::LinkLost));
        core.on(reconnect());
        core.on(Event::RangesRecovered);
        if !fails_first {
            core.on(failure);
        }
        assert_eq!(core.state(), State::LeavingSync);
        let effects = core.on(Event::Happened(Trigger::MarkedOutOfSync));
        assert!(effects.contains(&Effect::Finish {
            op: OpId(1),
            result: Err(Errno::NoSpace)
        }));
    }
}

/// What the primary could not do after the peer had done it is not forgotten while paused.
#[test]
fn a_failure_while_paused_leaves_sync() {
    for policy in [OnPeerLoss::Continue, OnPeerLoss::Freeze] {
        let mut core = core(State::Synced);
        core.config.on_peer_loss = policy;
        core.submit_write(1, 5);
        core.on(Event::WriteAcked(osn(1), None));
        core.on(Event::Happened(Trigger::LinkLost));
        if policy == OnPeerLoss::Freeze {
            core.at(5000, Event::Tick);
        }
        let effects = core.on(Event::LocalDone(OpId(1), Err(Errno::Io)));
        assert!(effects.contains(&Effect::Mark { in_sync: false }));
        assert_eq!(core.state(), State::LeavingSync);
    }
}

/// An ack that comes before the blocks in doubt were sent is of a frame that slipped onto the new
/// connection: those blocks, and the facts of their files, would take back what it says is there.
#[test]
fn a_write_is_not_over_before_the_ranges_are_recovered() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::Happened(Trigger::LinkLost));
    core.on(reconnect());
    assert_eq!(finished(&core.on(Event::WriteAcked(osn(1), None))), []);
    assert_eq!(core.on(Event::RangesRecovered), [send_again(1, 1)]);
    assert_eq!(finished(&core.on(Event::WriteAcked(osn(1), None))), [1]);
    assert_eq!(core.state(), State::Synced);
}

/// The same for an ack of the old connection, while the write is not over here: its new size is
/// not published, and what is sent of its file takes it back there.
#[test]
fn a_write_done_by_the_peer_alone_is_sent_again() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::WriteAcked(osn(1), None));
    core.on(Event::Happened(Trigger::LinkLost));
    core.on(reconnect());
    assert_eq!(core.on(Event::RangesRecovered), []);
    let again = core.on(Event::LocalDone(OpId(1), Ok(())));
    assert_eq!(again, [send_again(1, 1)]);
    assert_eq!(finished(&core.on(Event::WriteAcked(osn(1), None))), [1]);
}

#[test]
fn freezing_waits_for_ever() {
    let mut core = core(State::Synced);
    core.config.on_peer_loss = OnPeerLoss::Freeze;
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::Happened(Trigger::LinkLost));
    core.at(5000, Event::Tick);
    assert_eq!(core.state(), State::Frozen);
    assert_eq!(core.at(50_000_000, Event::Tick), []);
}

/// The order to begin a resync is still carried out after its connection is lost, and the mark says
/// out of sync from then on: so must the state.
#[test]
fn a_copy_that_was_marked_out_of_sync_when_disconnected_does_not_count_as_in_sync() {
    let mut core = core(State::SecondaryCatchingUp);
    core.on(Event::Happened(Trigger::LinkLost));
    assert_eq!(core.state(), State::SecondaryDisconnected);
    core.on(Event::Happened(Trigger::MarkedOutOfSync));
    assert_eq!(core.state(), State::SecondaryOutOfSync);
}
