//! A peer that is connected and does not answer (rule P15).

use super::*;

const LIMIT_MS: u64 = 5000;

/// A write, a metadata operation and a sync, each done here as far as it can be without the peer.
fn submit_all(core: &mut Core) {
    core.submit_write(1, 5);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.submit_meta(2, "a");
    core.on(Event::Sequence(OpId(2)));
    submit_sync(core, 3);
    core.on(Event::LocalDone(OpId(3), Ok(())));
}

fn answers() -> [Event; 3] {
    [
        Event::WriteAcked(osn(1), None),
        Event::MetaAcked(osn(2), Ok(())),
        Event::SyncAcked(OpId(3), None),
    ]
}

#[test]
fn a_peer_that_leaves_any_operation_unanswered_is_given_up() {
    for missing in 0..answers().len() {
        let mut core = core(State::Synced);
        submit_all(&mut core);
        for (number, answer) in answers().into_iter().enumerate() {
            if number != missing {
                core.on(answer);
            }
        }
        assert_eq!(core.at(LIMIT_MS - 1, Event::Tick), []);
        let given_up = [
            Effect::NoteOverdue,
            Effect::Entered(State::LeavingSync),
            Effect::DropLink,
            Effect::Mark { in_sync: false },
        ];
        assert_eq!(core.at(LIMIT_MS, Event::Tick), given_up, "{missing}");
        assert_eq!(core.at(2 * LIMIT_MS, Event::Tick), [], "once");
    }
}

#[test]
fn what_is_answered_or_waits_for_this_node_is_not_overdue() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.on(Event::WriteAcked(osn(1), None));
    core.submit_read(2, 5);
    core.submit_meta(3, "a");
    assert_eq!(core.at(100 * LIMIT_MS, Event::Tick), []);
}

#[test]
fn an_operator_who_wants_to_wait_waits() {
    let mut core = core(State::Synced);
    core.config.on_peer_loss = OnPeerLoss::Freeze;
    submit_all(&mut core);
    assert_eq!(core.at(100 * LIMIT_MS, Event::Tick), []);
}

/// The time of a pause has a limit of its own, and a peer that is back is asked anew.
#[test]
fn the_time_counts_from_the_question_over_this_connection() {
    let mut core = core(State::Synced);
    submit_all(&mut core);
    core.at(900, Event::Happened(Trigger::LinkLost));
    assert_eq!(core.at(1800, Event::Tick), []);
    let back = LIMIT_MS - 1;
    core.at(back, reconnect());
    assert_eq!(core.at(LIMIT_MS, Event::Tick), [], "asked for metadata");
    core.at(LIMIT_MS, Event::MetaAcked(osn(2), Ok(())));
    core.at(LIMIT_MS, Event::LocalDone(OpId(2), Ok(())));
    assert_eq!(core.at(3 * LIMIT_MS, Event::Tick), [], "ranges, in pieces");
    let asked = 3 * LIMIT_MS;
    assert_eq!(core.at(asked, Event::RangesRecovered).len(), 2);
    assert_eq!(core.at(asked + LIMIT_MS - 1, Event::Tick), []);
    core.at(asked + LIMIT_MS, Event::Tick);
    assert_eq!(core.state(), State::LeavingSync);
}

#[test]
fn metadata_that_is_sent_again_may_be_overdue_too() {
    let mut core = core(State::Synced);
    submit_all(&mut core);
    core.on(Event::Happened(Trigger::LinkLost));
    core.on(reconnect());
    core.at(LIMIT_MS, Event::Tick);
    assert_eq!(core.state(), State::LeavingSync);
}

/// While a resync carries content over, operations are done on both nodes already.
#[test]
fn a_resync_ends_when_operations_are_overdue() {
    let mut core = core(State::ResyncContent);
    submit_all(&mut core);
    let effects = core.at(LIMIT_MS, Event::Tick);
    assert!(effects.starts_with(&[Effect::NoteOverdue, Effect::Entered(State::OutOfSync)]));
    assert_eq!(finished(&effects), [1, 3]);
}
