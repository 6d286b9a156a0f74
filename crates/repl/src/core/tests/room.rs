//! Room on the way to the peer (rule P19): [`ROOM`] bytes altogether.

use super::*;

/// Most bytes in flight in the cores of these tests.
const ROOM: u64 = 100;

impl Core {
    fn submit_bytes(&mut self, op: u64, number: u64, bytes: u64) -> Vec<Effect> {
        self.on(Event::Submit {
            op: OpId(op),
            kind: OpKind::Write,
            locks: write_locks(number),
            bytes,
        })
    }

    fn submit_meta_bytes(&mut self, op: u64, name: &str, bytes: u64) -> Vec<Effect> {
        self.on(Event::Submit {
            op: OpId(op),
            kind: OpKind::Meta,
            locks: name_locks(name),
            bytes,
        })
    }

    fn ends(&mut self, op: u64, sequence: u64) -> Vec<Effect> {
        let mut effects = self.on(Event::LocalDone(OpId(op), Ok(())));
        effects.extend(self.on(Event::WriteAcked(osn(sequence), None)));
        effects
    }
}

fn started(effects: &[Effect]) -> Vec<u64> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::SendWrite { op, .. } | Effect::Prepare { op } => Some(op.0),
            _ => None,
        })
        .collect()
}

#[test]
fn writes_without_room_wait_and_begin_in_order_once_there_is_room() {
    let mut core = core(State::Synced);
    assert_eq!(started(&core.submit_bytes(1, 5, 60)), [1]);
    assert_eq!(started(&core.submit_bytes(2, 6, 60)), []);
    assert_eq!(started(&core.submit_bytes(3, 7, 10)), []);
    assert_eq!(core.in_flight().bytes, 60);
    assert_eq!(core.in_flight().held, 2);
    assert_eq!(started(&core.ends(1, 1)), [2, 3]);
    assert_eq!((core.in_flight().bytes, core.in_flight().held), (70, 0));
}

/// A lookup in the directory of the name waits for the operation, too: the kernel holds the directory's lock.
#[test]
fn a_name_overtakes_writes_that_wait() {
    let mut core = core(State::Synced);
    core.submit_bytes(1, 5, 60);
    core.submit_bytes(2, 6, 60);
    assert_eq!(started(&core.submit_meta_bytes(3, "a", 10)), [3]);
    assert_eq!(started(&core.submit_meta_bytes(4, "b", 40)), []);
    let next = core.submit_meta_bytes(5, "c", 1);
    assert_eq!(started(&next), [], "names keep their order");
    assert_eq!(started(&core.ends(1, 1)), [4, 5]);
    assert_eq!((core.in_flight().bytes, core.in_flight().held), (51, 1));
}

#[test]
fn a_small_write_overtakes_large_ones_and_not_without_end() {
    /// Writes of more than 100 bytes are large.
    const ROOM: u64 = 25_600;
    let mut core = core(State::Synced);
    core.config.writes_max = 1000;
    core.room = SendRoom::new(ROOM, 0);
    assert_eq!(started(&core.submit_bytes(1, 5, ROOM / 8 * 7)), [1]);
    assert_eq!(started(&core.submit_bytes(2, 6, 101)), []);
    let mut overtook = 0;
    for op in 3.. {
        if started(&core.submit_bytes(op, op + 10, 100)) != [op] {
            break;
        }
        overtook += 100;
        core.ends(op, op - 1);
    }
    assert_eq!(overtook, ROOM);
    assert!(started(&core.ends(1, 1)).contains(&2));
}

/// The bytes on a slow way stay few, so no later operation waits behind many.
#[test]
fn bytes_in_flight_follow_the_rate_of_the_way() {
    const WRITE: u64 = 1 << 20;
    let mut core = core(State::Synced);
    core.config.writes_max = 1000;
    core.room = SendRoom::new(16 * WRITE, 0);
    for op in 1..=100 {
        core.submit_bytes(op, op + 4, WRITE);
    }
    assert_eq!(core.in_flight().bytes, 14 * WRITE);
    for done in 1..=60 {
        // 100 Mbit/s.
        let now_ms = done * 80;
        core.at(now_ms, Event::LocalDone(OpId(done), Ok(())));
        core.at(now_ms, Event::WriteAcked(osn(done), None));
    }
    assert!(core.in_flight().bytes <= 3 * WRITE);
}

/// Room comes back only when both nodes are done: an unanswered operation may still be on its way.
#[test]
fn room_comes_back_when_both_nodes_are_done() {
    let mut core = core(State::Synced);
    core.submit_bytes(1, 5, ROOM);
    core.submit_bytes(2, 6, 1);
    assert_eq!(started(&core.on(Event::LocalDone(OpId(1), Ok(())))), []);
    assert_eq!(started(&core.on(Event::WriteAcked(osn(1), None))), [2]);
    core.ends(2, 2);
    assert_eq!(core.in_flight().bytes, 0);
}

#[test]
fn one_operation_alone_may_be_larger_than_all_room() {
    let mut core = core(State::Synced);
    assert_eq!(started(&core.submit_bytes(1, 5, 3 * ROOM)), [1]);
    assert_eq!(started(&core.submit_bytes(2, 6, 1)), []);
    assert_eq!(started(&core.ends(1, 1)), [2]);
}

#[test]
fn reads_need_no_room_and_unmirrored_writes_wait_for_none() {
    let mut full = core(State::Synced);
    full.submit_bytes(1, 5, ROOM);
    full.submit_bytes(2, 6, ROOM);
    assert!(!full.submit_read(3, 7).is_empty());
    let mut alone = core(State::OutOfSync);
    for op in 1..4 {
        assert_eq!(alone.submit_bytes(op, op + 4, ROOM).len(), 1);
    }
    assert_eq!((alone.in_flight().bytes, alone.in_flight().held), (0, 0));
}

#[test]
fn an_operation_that_waits_for_room_is_done_alone_when_the_peer_is_given_up() {
    let mut core = core(State::Synced);
    core.submit_bytes(1, 5, ROOM);
    core.submit_bytes(2, 6, ROOM);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::Trigger(Trigger::PeerFailed));
    let effects = core.on(Event::Trigger(Trigger::MarkedOutOfSync));
    assert_eq!(finished(&effects), [1]);
    assert!(effects.contains(&Effect::Execute {
        op: OpId(2),
        osn: osn(2)
    }));
    assert_eq!(finished(&core.on(Event::LocalDone(OpId(2), Ok(())))), [2]);
    assert_eq!((core.in_flight().bytes, core.in_flight().held), (0, 0));
}

/// A short disconnect takes no room away, and gives none that does not exist.
#[test]
fn an_operation_that_waits_for_room_keeps_waiting_over_a_reconnect() {
    let mut core = core(State::Synced);
    core.submit_bytes(1, 5, ROOM);
    core.submit_bytes(2, 6, ROOM);
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::Trigger(Trigger::LinkLost));
    assert_eq!(started(&core.on(reconnect())), []);
    core.on(Event::RangesRecovered);
    let effects = core.on(Event::WriteAcked(osn(1), None));
    assert_eq!(core.state(), State::Synced);
    assert_eq!(started(&effects), [2]);
}

#[test]
fn an_operation_that_waits_for_room_ends_with_an_error_when_the_disk_fails() {
    let mut core = core(State::Synced);
    core.submit_bytes(1, 5, ROOM);
    core.submit_bytes(2, 6, ROOM);
    let effects = core.on(Event::Trigger(Trigger::StorePoisoned));
    let failed = Effect::Finish {
        op: OpId(2),
        result: Err(Errno::Io),
    };
    assert!(effects.contains(&failed), "{effects:?}");
    core.on(Event::LocalDone(OpId(1), Ok(())));
    assert_eq!((core.in_flight().submitted, core.in_flight().bytes), (0, 0));
}

/// The prediction before a write and the decision at its submission are the same.
#[test]
fn a_write_starts_exactly_when_it_was_predicted() {
    let mut decided = [0, 0];
    for (state, bytes, number) in [State::Synced, State::OutOfSync, State::Paused]
        .into_iter()
        .flat_map(|state| [1, ROOM / 2, ROOM].map(|bytes| (state, bytes)))
        .flat_map(|(state, bytes)| [5, 6].map(|number| (state, bytes, number)))
    {
        let mut core = core(state);
        for op in 1..8 {
            let would = core.would_start_write(&write_locks(number), bytes);
            let effects = core.submit_bytes(op, number + op % 2, bytes);
            let would_other = core.would_start_write(&write_locks(number + op % 2), bytes);
            let started = effects
                .iter()
                .any(|effect| matches!(effect, Effect::Execute { .. }));
            if op % 2 == 0 {
                assert_eq!(would, started, "{state:?} {bytes} {number}, write {op}");
                decided[usize::from(started)] += 1;
            }
            assert!(!would_other, "its locks are held, or it waits for them");
        }
    }
    assert!(decided[0] > 0 && decided[1] > 0, "{decided:?}");
}
