//! Scenarios of the core, each from one point of `docs/protocol.md`.

mod overdue;
mod pairs;

use lockstep_types::{FileName, Generation, Ino};
use strum::VariantArray as _;

use super::*;
use crate::lock::{BlockRange, LockKey, LockMode};

/// Beats that an answer may take.
const LIMIT: u64 = 5;

fn osn(sequence: u64) -> Osn {
    Osn {
        generation: Generation::FIRST,
        sequence,
    }
}

fn core(state: State) -> Core {
    let config = CoreConfig {
        pause_limit_ms: 1000,
        answer_limit: LIMIT,
        on_peer_loss: OnPeerLoss::Continue,
        writes_max: 4,
    };
    let start = Start {
        state,
        first_osn: osn(1),
        in_doubt: Vec::new(),
        under_way: Vec::new(),
    };
    Core::new(config, start, 0)
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
            kind: Kind::Write,
            locks: write_locks(number),
        })
    }

    fn submit_read(&mut self, op: u64, number: u64) -> Vec<Effect> {
        let blocks = LockMode::Read(BlockRange::new(0, 4096));
        self.on(Event::Submit {
            op: OpId(op),
            kind: Kind::Read,
            locks: LockSet::from_slice(&[(file(number), blocks)]),
        })
    }

    fn submit_meta(&mut self, op: u64, name: &str) -> Vec<Effect> {
        self.on(Event::Submit {
            op: OpId(op),
            kind: Kind::Meta,
            locks: name_locks(name),
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

#[test]
fn a_write_is_acknowledged_when_both_sides_have_it() {
    let mut core = core(State::Synced);
    let (op, number) = (OpId(7), osn(1));
    assert_eq!(
        core.submit_write(7, 5),
        [
            Effect::SendWrite { op, osn: number },
            Effect::Execute { op, osn: number }
        ]
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
fn metadata_is_applied_here_in_order_whatever_order_the_acks_come_in() {
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
    assert!(effects.contains(&Effect::RecoverRanges));
    assert_eq!(
        core.on(Event::RangesRecovered),
        [Effect::ResendWrite {
            op: OpId(1),
            osn: osn(1)
        }]
    );
    let effects = core.on(Event::WriteAcked(osn(1), None));
    assert_eq!(finished(&effects), [1]);
    assert!(effects.contains(&Effect::TellRecovered));
    assert!(effects.contains(&Effect::Entered(State::Synced)));
    assert!(effects.contains(&Effect::SendWrite {
        op: OpId(3),
        osn: osn(3)
    }));
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
    let effects = core.on(Event::Happened(Trigger::MarkedOutOfSync));
    assert_eq!(finished(&effects), [1]);
}

#[test]
fn the_image_waits_for_metadata_in_flight() {
    let mut core = core(State::OutOfSync);
    core.submit_meta(1, "a");
    core.on(Event::Sequence(OpId(1)));
    let up = Event::LinkUp {
        in_sync: false,
        peer_applied: Osn::ZERO,
    };
    assert_eq!(core.on(up), [Effect::Entered(State::ResyncNamespace)]);
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
    assert!(effects.contains(&Effect::SendImage));
    let effects = core.on(Event::Happened(Trigger::ImageDone));
    assert!(effects.contains(&Effect::SendContent));
    assert!(effects.contains(&Effect::Prepare { op: OpId(2) }));
    core.on(Event::Happened(Trigger::ContentDone));
    let effects = core.on(Event::Happened(Trigger::MarkedInSync));
    assert!(effects.contains(&Effect::TellInSync));
    assert_eq!(core.state(), State::Synced);
}

#[test]
fn in_doubt_operations_are_settled_after_a_restart() {
    let config = CoreConfig {
        pause_limit_ms: 1000,
        answer_limit: LIMIT,
        on_peer_loss: OnPeerLoss::Freeze,
        writes_max: 4,
    };
    let start = Start {
        state: State::Paused,
        first_osn: osn(100),
        in_doubt: vec![osn(3), osn(4)],
        under_way: Vec::new(),
    };
    let mut core = Core::new(config, start, 0);
    let up = Event::LinkUp {
        in_sync: true,
        peer_applied: osn(3),
    };
    assert_eq!(
        core.on(up),
        [
            Effect::Entered(State::CatchingUp),
            Effect::ResendMeta { osn: osn(4) },
            Effect::Commit {
                osn: osn(3),
                op: None
            }
        ]
    );
    core.on(Event::Applied(osn(3)));
    core.on(Event::MetaAcked(osn(4), Ok(())));
    assert_eq!(core.on(Event::Applied(osn(4))), [Effect::RecoverRanges]);
}

/// What the process before had under way may be on this node only: nobody reads it until it is not.
#[test]
fn what_was_under_way_is_not_read_until_it_is_settled() {
    for settled in [true, false] {
        let start = Start {
            state: State::Paused,
            first_osn: osn(9),
            in_doubt: Vec::new(),
            under_way: vec![write_locks(5)],
        };
        let mut core = Core::new(core(State::Paused).config, start, 0);
        assert_eq!(core.submit_read(1, 5), [], "the same file");
        assert_eq!(core.submit_read(2, 6).len(), 1, "another one");
        let effects = if settled {
            core.on(Event::LinkUp {
                in_sync: true,
                peer_applied: Osn::ZERO,
            });
            core.on(Event::RangesRecovered)
        } else {
            core.on(Event::Happened(Trigger::PauseOverContinue));
            core.on(Event::Happened(Trigger::MarkedOutOfSync))
        };
        let read = |effect: &Effect| matches!(effect, Effect::Execute { op: OpId(1), .. });
        assert!(effects.iter().any(read), "{effects:?}");
    }
}

/// Why a node that starts out of sync has to settle them first: the image waits for them.
#[test]
fn an_image_is_sent_only_when_nothing_is_in_doubt() {
    for (in_doubt, sent) in [(vec![osn(3)], false), (Vec::new(), true)] {
        let config = core(State::OutOfSync).config;
        let start = Start {
            state: State::OutOfSync,
            first_osn: osn(100),
            in_doubt,
            under_way: Vec::new(),
        };
        let mut core = Core::new(config, start, 0);
        let up = Event::LinkUp {
            in_sync: false,
            peer_applied: osn(3),
        };
        assert_eq!(core.on(up).contains(&Effect::SendImage), sent);
    }
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
    assert!(effects.contains(&Effect::SendWrite {
        op: OpId(4),
        osn: osn(5)
    }));
}

fn reconnect() -> Event {
    Event::LinkUp {
        in_sync: true,
        peer_applied: Osn::ZERO,
    }
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
    let again = Effect::ResendWrite {
        op: OpId(1),
        osn: osn(1),
    };
    assert_eq!(core.on(Event::RangesRecovered), [again]);
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
    let again = Effect::ResendWrite {
        op: OpId(1),
        osn: osn(1),
    };
    assert_eq!(core.on(Event::LocalDone(OpId(1), Ok(()))), [again]);
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

/// Every state of a primary.
const PRIMARY: [State; 10] = [
    State::Unmirrored,
    State::OutOfSync,
    State::ResyncNamespace,
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
    Event::Happened(Trigger::StorePoisoned)
}

fn submit_sync(core: &mut Core, op: u64) -> Vec<Effect> {
    core.on(Event::Submit {
        op: OpId(op),
        kind: Kind::Sync,
        locks: LockSet::new(),
    })
}

#[test]
fn a_disk_that_failed_leaves_reads_and_nothing_else() {
    for state in PRIMARY {
        let mut core = core(state);
        core.on(poisoned());
        assert_eq!(core.state(), State::Poisoned, "{state:?}");
        assert_eq!(refused(&core.submit_write(1, 5)), [1]);
        assert_eq!(refused(&core.submit_meta(2, "a")), [2]);
        assert_eq!(refused(&submit_sync(&mut core, 3)), [3]);
        let read = core.on(Event::Submit {
            op: OpId(4),
            kind: Kind::Read,
            locks: write_locks(5),
        });
        let (op, osn) = (OpId(4), Osn::ZERO);
        assert_eq!(read, [Effect::Execute { op, osn }]);
        assert_eq!(finished(&core.on(Event::LocalDone(op, Ok(())))), [4]);
    }
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

/// Whatever part of it is done: it is on one node only, or nobody knows.
#[test]
fn what_is_in_flight_when_the_disk_fails_ends_with_an_error() {
    let mut core = core(State::Synced);
    // Done here; done there; neither.
    for op in [1, 2, 3] {
        core.submit_write(op, op);
    }
    core.on(Event::LocalDone(OpId(1), Ok(())));
    core.on(Event::WriteAcked(osn(2), None));
    // Waits for the locks of the third.
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
    // What was being done here holds its locks until it is over, and is not acknowledged either.
    assert_eq!(refused(&core.on(Event::LocalDone(OpId(2), Ok(())))), [2]);
    assert_eq!(refused(&core.on(Event::LocalDone(OpId(6), Ok(())))), [6]);
    assert_eq!(refused(&core.on(Event::Sequence(OpId(8)))), [8]);
    assert_eq!(refused(&core.on(Event::LocalDone(OpId(3), Ok(())))), [3, 4]);
    // Late news changes nothing, and the good copy is not marked out of sync.
    let mut late = core.on(Event::WriteAcked(osn(3), None));
    late.extend(core.on(Event::MetaAcked(osn(5), Ok(()))));
    late.extend(core.on(Event::Happened(Trigger::PeerFailed)));
    late.extend(core.at(1_000_000, Event::Tick));
    late.retain(|effect| !matches!(effect, Effect::Refused(_)));
    assert_eq!(late, []);
    assert_eq!((core.in_flight().writes, core.held.len()), (0, 0));
}

#[test]
fn what_was_held_back_when_the_disk_fails_ends_with_an_error() {
    let mut core = core(State::Paused);
    core.submit_write(1, 5);
    core.submit_meta(2, "a");
    submit_sync(&mut core, 3);
    assert_eq!(refused(&core.on(poisoned())), [1, 2, 3]);
    assert_eq!(core.held.len(), 0);
}
