//! A lost connection, and the events after a short or long loss.

use super::*;

#[test]
fn a_short_disconnect_loses_nothing() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.submit_meta(2, "a");
    core.on(Event::Sequence(OpId(2)));
    assert_eq!(
        core.on(Event::Trigger(Trigger::LinkLost)),
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
    core.at(100, Event::Trigger(Trigger::LinkLost));
    assert_eq!(core.at(1099, Event::Tick), []);
    assert_eq!(core.pause_ends().tick_ms, Some(1100));
    assert_eq!(
        core.at(1100, Event::Tick),
        [
            Effect::Entered(State::LeavingSync),
            Effect::Mark { in_sync: false }
        ]
    );
    let effects = core.on(Event::Trigger(Trigger::MarkedOutOfSync));
    assert_eq!(finished(&effects), [1]);
    assert_eq!(
        core.submit_write(2, 5),
        [Effect::Execute {
            op: OpId(2),
            osn: osn(2)
        }]
    );
}

fn marks_out_of_sync() -> [Effect; 2] {
    [
        Effect::Entered(State::LeavingSync),
        Effect::Mark { in_sync: false },
    ]
}

#[test]
fn operations_in_flight_do_not_wait_for_a_peer_that_says_that_it_stops() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    assert_eq!(core.on(Event::PeerStops), []);
    let effects = core.on(Event::Trigger(Trigger::LinkLost));
    assert_eq!(effects[0], Effect::Entered(State::Paused));
    assert_eq!(effects[1..], marks_out_of_sync());
    let effects = core.on(Event::Trigger(Trigger::MarkedOutOfSync));
    assert_eq!(finished(&effects), [1]);
}

/// Both nodes may be about to stop. The nodes are in sync then, and need no resync.
#[test]
fn a_primary_without_operations_stays_in_sync_with_a_peer_that_stops() {
    let mut core = core(State::Synced);
    core.on(Event::PeerStops);
    core.on(Event::Trigger(Trigger::LinkLost));
    core.submit_read(1, 5);
    assert_eq!(core.at(999, Event::Tick), []);
    assert_eq!(core.state(), State::Paused);
    assert_eq!(core.submit_write(2, 6), marks_out_of_sync());
}

/// The next process of the peer has not said so.
#[test]
fn a_peer_that_is_back_does_not_stop() {
    let mut core = core(State::Synced);
    core.on(Event::PeerStops);
    core.on(Event::Trigger(Trigger::LinkLost));
    core.on(reconnect());
    core.on(Event::Trigger(Trigger::LinkLost));
    core.submit_write(1, 5);
    assert!(!core.waits_for_stopped_peer());
    assert_eq!(core.state(), State::Paused);
}

/// With a witness the driver asks it. With `freeze` the operator has decided.
#[test]
fn a_witness_and_a_freeze_decide_after_a_stop_as_after_a_loss() {
    for (pause_limit_ms, on_peer_loss, asks) in [
        (None, OnPeerLoss::Continue, true),
        (Some(1000), OnPeerLoss::Freeze, false),
    ] {
        let mut core = core(State::Synced);
        (core.config.pause_limit_ms, core.config.on_peer_loss) = (pause_limit_ms, on_peer_loss);
        core.on(Event::PeerStops);
        core.on(Event::Trigger(Trigger::LinkLost));
        core.submit_write(1, 5);
        core.on(Event::Tick);
        assert_eq!(core.state(), State::Paused);
        assert_eq!(core.waits_for_stopped_peer(), asks);
    }
}

/// The finished writes that the secondary remembers take slots, and the resent writes need as many slots. Once the
/// ranges are equal, and before the resent writes come, the secondary may forget the finished writes.
#[test]
fn finished_writes_make_room_for_resent_writes() {
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
    core.on(Event::Trigger(Trigger::LinkLost));
    for op in 4..8 {
        core.on(Event::LocalDone(OpId(op), Ok(())));
    }
    core.on(reconnect());
    assert_eq!(core.done_below(), Osn::ZERO, "the ranges are not equal yet");
    let again = core.on(Event::RangesRecovered);
    assert_eq!(again, [4, 5, 6, 7].map(|op| send_again(op, op + 1)));
    assert_eq!(core.done_below(), osn(5));
}

/// The peer may have the bytes or not, and this node may have some of them. As in a connected state,
/// only a resync makes both nodes equal.
#[test]
fn a_write_that_failed_here_across_a_disconnect_is_not_waited_for() {
    for fails_first in [true, false] {
        let mut core = core(State::Synced);
        core.submit_write(1, 5);
        let failure = Event::LocalDone(OpId(1), Err(Errno::NoSpace));
        if fails_first {
            core.on(failure.clone());
        }
        core.on(Event::Trigger(Trigger::LinkLost));
        core.on(reconnect());
        core.on(Event::RangesRecovered);
        if !fails_first {
            core.on(failure);
        }
        assert_eq!(core.state(), State::LeavingSync);
        let effects = core.on(Event::Trigger(Trigger::MarkedOutOfSync));
        assert!(effects.contains(&Effect::Finish {
            op: OpId(1),
            result: Err(Errno::NoSpace)
        }));
    }
}

/// A write that failed on the primary after the peer's ack is not forgotten while paused.
#[test]
fn a_failure_while_paused_leaves_sync() {
    for policy in [OnPeerLoss::Continue, OnPeerLoss::Freeze] {
        let mut core = core(State::Synced);
        core.config.on_peer_loss = policy;
        core.submit_write(1, 5);
        core.on(Event::WriteAcked(osn(1), None));
        core.on(Event::Trigger(Trigger::LinkLost));
        if policy == OnPeerLoss::Freeze {
            core.at(5000, Event::Tick);
        }
        let effects = core.on(Event::LocalDone(OpId(1), Err(Errno::Io)));
        assert!(effects.contains(&Effect::Mark { in_sync: false }));
        assert_eq!(core.state(), State::LeavingSync);
    }
}

/// An ack that comes before the blocks in doubt were sent belongs to a frame that slipped onto the new
/// connection. Those blocks, and the size and times of their files, would take the acknowledged bytes back.
#[test]
fn a_write_is_not_over_before_the_ranges_are_recovered() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::Trigger(Trigger::LinkLost));
    core.on(reconnect());
    assert_eq!(finished(&core.on(Event::WriteAcked(osn(1), None))), []);
    assert_eq!(core.on(Event::RangesRecovered), [send_again(1, 1)]);
    assert_eq!(finished(&core.on(Event::WriteAcked(osn(1), None))), [1]);
    assert_eq!(core.state(), State::Synced);
}

/// The same holds for an ack of the old connection while this node still executes the write. The write's new size is
/// not published, and the recovery of the file takes the write back on the peer.
#[test]
fn a_write_done_by_the_peer_alone_is_sent_again() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::WriteAcked(osn(1), None));
    core.on(Event::Trigger(Trigger::LinkLost));
    core.on(reconnect());
    assert_eq!(core.on(Event::RangesRecovered), []);
    let again = core.on(Event::LocalDone(OpId(1), Ok(())));
    assert_eq!(again, [send_again(1, 1)]);
    assert_eq!(finished(&core.on(Event::WriteAcked(osn(1), None))), [1]);
}

#[test]
fn freezing_waits_forever() {
    let mut core = core(State::Synced);
    core.config.on_peer_loss = OnPeerLoss::Freeze;
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::Trigger(Trigger::LinkLost));
    core.at(5000, Event::Tick);
    assert_eq!(core.state(), State::Frozen);
    assert_eq!(core.at(50_000_000, Event::Tick), []);
}

/// The secondary still carries out the request to begin a resync after the connection is lost. The mark says
/// out of sync from then on, and so must the state.
#[test]
fn a_copy_that_was_marked_out_of_sync_when_disconnected_is_not_in_sync() {
    let mut core = core(State::SecondaryCatchingUp);
    core.on(Event::Trigger(Trigger::LinkLost));
    assert_eq!(core.state(), State::SecondaryDisconnected);
    core.on(Event::Trigger(Trigger::MarkedOutOfSync));
    assert_eq!(core.state(), State::SecondaryOutOfSync);
}
