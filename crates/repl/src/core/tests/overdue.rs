//! A connected peer that does not answer (rule P15).

use lockstep_types::{MetaOp, MetaRequest, Timestamp};

use super::*;
use crate::message::{Message, WriteMessage};

fn write_message() -> Message {
    Message::Write(WriteMessage {
        osn: osn(1),
        ino: Ino::new(5).unwrap(),
        offset: 0,
        time: Timestamp::default(),
        durable: true,
    })
}

fn meta_message() -> Message {
    let request = MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: FileName::new(b"a").unwrap(),
    };
    Message::Meta {
        op: MetaOp {
            osn: osn(2),
            time: Timestamp::default(),
            request,
        },
        previous: Osn::ZERO,
        durable: true,
    }
}

fn sync_message() -> Message {
    let ino = Ino::new(5).unwrap();
    Message::Sync { id: 3, ino }
}

impl Core {
    fn sends_all(&mut self) {
        for message in [write_message(), meta_message(), sync_message()] {
            self.note_sent(&message);
        }
    }

    /// The effects of `count` beats.
    fn beats(&mut self, count: u64) -> Vec<Effect> {
        (0..count).flat_map(|_| self.on(Event::Beat)).collect()
    }
}

/// A write, a metadata operation and a sync, each done here as far as possible without the peer.
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
        core.sends_all();
        for (number, answer) in answers().into_iter().enumerate() {
            if number != missing {
                core.on(answer);
            }
        }
        assert_eq!(core.beats(LIMIT - 1), []);
        let given_up = [
            Effect::NoteOverdue,
            Effect::Entered(State::LeavingSync),
            Effect::DropLink,
            Effect::Mark { in_sync: false },
        ];
        assert_eq!(core.beats(1), given_up, "{missing}");
        assert_eq!(core.beats(LIMIT), [], "once");
    }
}

#[test]
fn an_operation_that_is_answered_or_waits_for_this_node_is_not_overdue() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.note_sent(&write_message());
    core.on(Event::WriteAcked(osn(1), None));
    core.submit_read(2, 5);
    core.submit_meta(3, "a");
    assert_eq!(core.beats(100 * LIMIT), []);
}

/// This node's disk, or the whole node, may have stalled. Neither the time nor an unsent message therefore shows that
/// the peer is late.
#[test]
fn a_delay_of_this_node_makes_no_operation_overdue() {
    let mut core = core(State::Synced);
    submit_all(&mut core);
    assert_eq!(core.beats(100 * LIMIT), [], "not sent");
    core.sends_all();
    assert_eq!(core.at(1_000_000_000, Event::Tick), []);
    assert_eq!(core.beats(LIMIT - 1), []);
}

#[test]
fn the_policy_to_freeze_waits() {
    let mut core = core(State::Synced);
    core.config.on_peer_loss = OnPeerLoss::Freeze;
    submit_all(&mut core);
    core.sends_all();
    assert_eq!(core.beats(100 * LIMIT), []);
}

/// The core does not wait for an answer to a message of another connection, or to a message before the ranges.
#[test]
fn the_age_counts_from_the_sending_over_this_connection() {
    let mut core = core(State::Synced);
    submit_all(&mut core);
    core.sends_all();
    core.beats(LIMIT - 1);
    core.on(Event::Trigger(Trigger::LinkLost));
    core.on(reconnect());
    assert_eq!(core.beats(LIMIT), [], "nothing is sent yet");
    core.note_sent(&meta_message());
    core.beats(LIMIT - 1);
    core.on(Event::MetaAcked(osn(2), Ok(())));
    core.on(Event::LocalDone(OpId(2), Ok(())));
    core.note_sent(&write_message());
    assert_eq!(core.beats(LIMIT), [], "ranges, in pieces");
    assert_eq!(core.on(Event::RangesRecovered).len(), 2);
    assert_eq!(core.beats(LIMIT), [], "not sent again yet");
    core.note_sent(&sync_message());
    assert_eq!(core.beats(LIMIT - 1), []);
    core.beats(1);
    assert_eq!(core.state(), State::LeavingSync);
}

#[test]
fn metadata_that_is_sent_again_may_be_overdue_too() {
    let mut core = core(State::Synced);
    submit_all(&mut core);
    core.on(Event::Trigger(Trigger::LinkLost));
    core.on(reconnect());
    core.note_sent(&meta_message());
    core.beats(LIMIT);
    assert_eq!(core.state(), State::LeavingSync);
}

/// While a resync carries content over, operations are already done on both nodes.
#[test]
fn a_resync_ends_when_operations_are_overdue() {
    let mut core = core(State::ResyncContent);
    submit_all(&mut core);
    core.sends_all();
    let effects = core.beats(LIMIT);
    assert!(effects.starts_with(&[Effect::NoteOverdue, Effect::Entered(State::OutOfSync)]));
    assert_eq!(finished(&effects), [1, 3]);
}

#[test]
fn another_limit_counts_for_the_operations_that_wait() {
    let mut core = core(State::Synced);
    submit_all(&mut core);
    core.sends_all();
    let config = CoreConfig {
        answer_limit: LIMIT * 2,
        ..core.config
    };
    core.reconfigure(config);
    core.beats(LIMIT * 2 - 1);
    assert_eq!(core.state(), State::Synced);
    core.beats(1);
    assert_ne!(core.state(), State::Synced);
}
