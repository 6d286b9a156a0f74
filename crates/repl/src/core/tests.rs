//! Scenarios of the core, each from one rule of the protocol.

mod disconnect;
mod flapping;
mod gate;
mod overdue;
mod pairs;
mod poison;
mod restart;
mod room;

use lockstep_types::{Errno, FileName, Generation, Ino};

use super::*;
use crate::lock::{BlockRange, LockKey, LockMode};

/// Most beats until an answer.
const LIMIT: u64 = 5;
/// The connection that comes up.
const LINK: ConnectionId = ConnectionId(7);
/// The connection of a core that starts in sync: the core knows of none.
const NO_LINK: ConnectionId = ConnectionId(0);

fn osn(sequence: u64) -> Osn {
    Osn {
        generation: Generation::FIRST,
        sequence,
    }
}

fn core(state: State) -> Core {
    let config = CoreConfig {
        pause_limit_ms: Some(1000),
        pauses_max_ms: 1000,
        flap_wait_max_ms: 0,
        answer_limit: LIMIT,
        on_peer_loss: OnPeerLoss::Continue,
        gate_limit_ms: 1000,
        writes_max: 4,
        bytes_max: 100,
    };
    let start = CoreStart {
        state,
        first_osn: osn(1),
        in_doubt: Vec::new(),
        interrupted_writes: Vec::new(),
    };
    Core::new(config, start, 0)
}

/// A core whose previous process was interrupted in a write of file 5.
fn interrupted() -> Core {
    let start = CoreStart {
        state: State::Paused,
        first_osn: osn(9),
        in_doubt: Vec::new(),
        interrupted_writes: vec![write_locks(5)],
    };
    Core::new(core(State::Paused).config, start, 0)
}

fn file(number: u64) -> LockKey {
    LockKey::File(Ino::new(number).unwrap())
}

fn write_locks(number: u64) -> LockSet {
    LockSet::from_slice(&[(file(number), LockMode::Write(BlockRange::new(0, 4096)))])
}

fn name_locks(name: &str) -> LockSet {
    let name = FileName::new(name.as_bytes()).unwrap();
    LockSet::from_slice(&[
        (LockKey::name(Ino::ROOT, &name), LockMode::Exclusive),
        (file(1), LockMode::Shared),
    ])
}

impl Core {
    fn on(&mut self, event: Event) -> Vec<Effect> {
        self.at(0, event)
    }

    fn at(&mut self, now_ms: u64, event: Event) -> Vec<Effect> {
        let mut effects = Effects::new();
        self.handle(now_ms, event, &mut effects);
        effects.into_vec()
    }

    fn submit_write(&mut self, op: u64, number: u64) -> Vec<Effect> {
        self.on(Event::Submit {
            op: OpId(op),
            kind: OpKind::Write,
            locks: write_locks(number),
            bytes: 0,
        })
    }

    fn submit_read(&mut self, op: u64, number: u64) -> Vec<Effect> {
        let blocks = LockMode::Read(BlockRange::new(0, 4096));
        self.on(Event::Submit {
            op: OpId(op),
            kind: OpKind::Read,
            locks: LockSet::from_slice(&[(file(number), blocks)]),
            bytes: 0,
        })
    }

    fn submit_meta(&mut self, op: u64, name: &str) -> Vec<Effect> {
        self.on(Event::Submit {
            op: OpId(op),
            kind: OpKind::Meta,
            locks: name_locks(name),
            bytes: 0,
        })
    }
}

fn finished(effects: &[Effect]) -> Vec<u64> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Finish { op, result: Ok(()) } => Some(op.0),
            _ => None,
        })
        .collect()
}

fn reconnect() -> Event {
    Event::LinkUp {
        connection: LINK,
        in_sync: true,
        peer_applied: Osn::ZERO,
    }
}

fn transfer(transfer: Transfer) -> Effect {
    Effect::Transfer(transfer, LINK)
}

fn send(op: u64, number: u64, connection: ConnectionId) -> Effect {
    let (op, osn) = (OpId(op), osn(number));
    Effect::SendWrite {
        op,
        osn,
        connection,
    }
}

fn send_again(op: u64, number: u64) -> Effect {
    Effect::ResendWrite {
        op: OpId(op),
        osn: osn(number),
        connection: LINK,
    }
}

fn submit_sync(core: &mut Core, op: u64) -> Vec<Effect> {
    core.on(Event::Submit {
        op: OpId(op),
        kind: OpKind::Sync,
        locks: LockSet::new(),
        bytes: 0,
    })
}

#[test]
fn a_write_is_acknowledged_when_both_sides_have_it() {
    let mut core = core(State::Synced);
    let (op, number) = (OpId(7), osn(1));
    assert_eq!(
        core.submit_write(7, 5),
        [send(7, 1, NO_LINK), Effect::Execute { op, osn: number }]
    );
    assert_eq!(
        core.done_below(),
        number,
        "the write is not done on both sides"
    );
    assert_eq!(core.on(Event::LocalDone(op, Ok(()))), []);
    assert_eq!(finished(&core.on(Event::WriteAcked(number, None))), [7]);
    assert_eq!(core.done_below(), osn(2));
}

#[test]
fn metadata_is_applied_here_in_order_for_each_order_of_acks() {
    let mut core = core(State::Synced);
    for (op, name) in [(1, "a"), (2, "b")] {
        assert_eq!(
            core.submit_meta(op, name),
            [Effect::Prepare { op: OpId(op) }]
        );
        core.on(Event::Sequence(OpId(op)));
    }
    assert_eq!(core.on(Event::MetaAcked(osn(2), Ok(()))), []);
    let commits = core.on(Event::MetaAcked(osn(1), Ok(())));
    let numbers: Vec<_> = commits
        .iter()
        .map(|effect| match effect {
            Effect::Commit { osn, .. } => osn.sequence,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(finished(&core.on(Event::LocalDone(OpId(1), Ok(())))), [1]);
}

/// An operation holds the drain of a barrier up until it is over on both nodes, also over a lost connection.
#[test]
fn operations_are_over_below_a_number_when_both_nodes_are_done_with_them() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    core.submit_meta(2, "a");
    core.on(Event::Sequence(OpId(2)));
    let turn = core.next_osn();
    core.submit_write(3, 6);
    assert!(core.is_over_below(osn(1)) && !core.is_over_below(osn(2)));
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::Trigger(Trigger::LinkLost));
    assert!(!core.is_over_below(osn(2)), "the secondary may lack it");
    core.on(reconnect());
    core.on(Event::MetaAcked(osn(2), Ok(())));
    core.on(Event::LocalDone(OpId(2), Ok(())));
    core.on(Event::RangesRecovered);
    assert!(!core.is_over_below(turn));
    core.on(Event::WriteAcked(osn(1), None));
    assert!(core.is_over_below(turn), "the later write does not count");
    assert!(!core.is_over_below(core.next_osn()));
}

#[test]
fn metadata_holds_a_drain_up_until_it_is_applied_here() {
    let mut core = core(State::Synced);
    core.submit_meta(1, "a");
    core.on(Event::Sequence(OpId(1)));
    let turn = core.next_osn();
    core.on(Event::MetaAcked(osn(1), Ok(())));
    assert!(!core.is_over_below(turn), "it is being applied");
    core.on(Event::LocalDone(OpId(1), Ok(())));
    assert!(core.is_over_below(turn));
}

#[test]
fn a_refused_operation_frees_its_name() {
    let mut core = core(State::Synced);
    core.submit_meta(1, "a");
    core.on(Event::Sequence(OpId(1)));
    assert_eq!(core.submit_meta(2, "a"), []);
    let effects = core.on(Event::LocalDone(OpId(1), Err(Errno::Exists)));
    assert_eq!(
        effects,
        [
            Effect::Finish {
                op: OpId(1),
                result: Err(Errno::Exists)
            },
            Effect::Prepare { op: OpId(2) }
        ]
    );
    assert_eq!(core.in_flight().metadata, 0);
}

#[test]
fn a_write_refused_before_it_was_sent_ends_alone() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    let effects = core.on(Event::Refused(OpId(1), Errno::Stale));
    let over = Effect::Finish {
        op: OpId(1),
        result: Err(Errno::Stale),
    };
    assert_eq!(effects, [over], "and the nodes stay in sync");
    assert_eq!(core.in_flight().writes, 0);
    assert_eq!(core.on(Event::LocalDone(OpId(1), Err(Errno::Stale))), []);
    assert_eq!(core.on(Event::WriteAcked(osn(1), Some(Errno::Stale))), []);
}

#[test]
fn a_peer_that_cannot_follow_is_left_behind() {
    let mut core = core(State::Synced);
    core.submit_write(1, 5);
    let effects = core.on(Event::WriteAcked(osn(1), Some(Errno::NoSpace)));
    assert_eq!(
        effects,
        [
            Effect::Entered(State::LeavingSync),
            Effect::DropLink,
            Effect::Mark { in_sync: false }
        ]
    );
    core.on(Event::LocalDone(OpId(1), Ok(())));
    let effects = core.on(Event::Trigger(Trigger::MarkedOutOfSync));
    assert_eq!(finished(&effects), [1]);
}

#[test]
fn the_end_of_the_image_waits_for_metadata_in_flight() {
    let mut core = core(State::OutOfSync);
    core.submit_meta(1, "a");
    core.on(Event::Sequence(OpId(1)));
    let up = Event::LinkUp {
        connection: LINK,
        in_sync: false,
        peer_applied: Osn::ZERO,
    };
    let effects = core.on(up);
    assert!(effects.contains(&transfer(Transfer::SendImage)));
    assert_eq!(
        core.on(Event::Trigger(Trigger::ImageSent)),
        [Effect::Entered(State::ResyncTail)]
    );
    assert_eq!(core.submit_meta(2, "b"), [], "metadata waits");
    assert_eq!(
        core.submit_write(3, 9),
        [Effect::Execute {
            op: OpId(3),
            osn: osn(2)
        }],
        "writes do not"
    );
    let effects = core.on(Event::LocalDone(OpId(1), Ok(())));
    assert!(effects.contains(&transfer(Transfer::SendTail)));
    let effects = core.on(Event::Trigger(Trigger::ImageDone));
    assert!(effects.contains(&transfer(Transfer::SendContent)));
    assert!(effects.contains(&Effect::Prepare { op: OpId(2) }));
    core.on(Event::Trigger(Trigger::ContentDone));
    let effects = core.on(Event::Trigger(Trigger::MarkedInSync));
    assert!(effects.contains(&transfer(Transfer::TellInSync)));
    assert_eq!(core.state(), State::Synced);
}

#[test]
fn metadata_goes_on_while_the_image_is_sent_unless_that_falls_behind() {
    let mut core = core(State::OutOfSync);
    core.on(Event::LinkUp {
        connection: LINK,
        in_sync: false,
        peer_applied: Osn::ZERO,
    });
    let prepare = |op| Effect::Prepare { op: OpId(op) };
    assert_eq!(core.submit_meta(1, "a"), [prepare(1)]);
    core.on(Event::NamesBehind(true));
    assert_eq!(core.on(Event::Sequence(OpId(1))), [], "it waits, too");
    assert_eq!(core.submit_meta(2, "b"), []);
    let effects = core.on(Event::NamesBehind(false));
    assert_eq!(effects, [prepare(1), prepare(2)]);
    let alone = |effect: &Effect| matches!(effect, Effect::Sequenced { mirrored, .. } if !mirrored);
    for op in [1, 2] {
        assert!(core.on(Event::Sequence(OpId(op))).iter().all(alone));
    }
    core.on(Event::NamesBehind(true));
    assert_eq!(core.submit_meta(3, "c"), []);
    let effects = core.on(Event::Trigger(Trigger::LinkLost));
    assert!(effects.contains(&prepare(3)), "{effects:?}");
    core.on(Event::NamesBehind(true));
    assert_eq!(core.submit_meta(4, "d"), [prepare(4)], "late");
}

#[test]
fn no_more_writes_are_in_flight_than_the_tables_hold() {
    let mut core = core(State::Synced);
    for number in 0..4 {
        assert_eq!(core.submit_write(number, 10 + number).len(), 2);
    }
    assert_eq!(core.submit_write(4, 14), []);
    core.on(Event::LocalDone(OpId(0), Ok(())));
    let effects = core.on(Event::WriteAcked(osn(1), None));
    assert!(effects.contains(&send(4, 5, NO_LINK)));
}
