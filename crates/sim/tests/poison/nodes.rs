//! Two nodes, one of which has a disk that fails.

use std::time::Duration;

use lockstep_driver::ClearError;
use lockstep_lossy::disk::CallClass;
use lockstep_repl::state::State;
use lockstep_types::Errno;
use lockstep_types::settings::OnPeerLoss;

use crate::pair::{Client, Pair, Side};

const EIO: Result<(), Errno> = Err(Errno::Io);
/// Longer than any node waits before it tries something again.
const LONG: Duration = Duration::from_secs(40);

/// The next sync of the node's disk fails.
fn fail_next_sync(pair: &Pair, side: Side) {
    pair.half(side)
        .disk
        .fail_call(CallClass::Sync, 1, Errno::Io);
}

/// A program gets nothing but reads.
#[track_caller]
fn reads_only(pair: &mut Pair, expected: &[u8]) {
    assert_eq!(pair.client(|client| client.write(b"later", false)), EIO);
    assert_eq!(pair.client(|client| client.write(b"later", true)), EIO);
    assert_eq!(pair.client(Client::sync), EIO);
    assert_eq!(pair.client(|client| client.create_named(b"more")), EIO);
    assert_eq!(pair.client(Client::read), Ok(expected.to_vec()));
}

fn says_in_sync(pair: &Pair) -> bool {
    let halves = [&pair.primary, &pair.secondary];
    halves
        .iter()
        .any(|half| half.datastore().is_some() && half.status().in_sync)
}

#[test]
fn a_secondary_whose_disk_failed_is_left_behind_until_an_operator_acts() {
    let mut pair = Pair::in_sync();
    fail_next_sync(&pair, Side::Secondary);
    // Not after the pause limit of an hour, but at once: it can be reached, and says what it cannot.
    let written = pair.client(|client| client.write(b"other", true));
    assert_eq!(written, Ok(()));
    pair.until_poisoned(Side::Secondary);
    assert!(pair.secondary.is_marked());
    for _restart in 0..3 {
        pair.run_for(LONG);
        assert_eq!(pair.secondary.state(), Some(State::SecondaryPoisoned));
        assert_eq!(pair.primary.state(), Some(State::OutOfSync));
        assert!(!says_in_sync(&pair));
        let reason = pair.primary.status().reason.unwrap();
        assert!(
            reason.contains("the secondary's disk failed at ") && reason.contains("clear-poison"),
            "{reason}"
        );
        let own = pair.secondary.status().poisoned.unwrap();
        assert!(own.reason.contains("cannot sync"), "{own:?}");
        // A restart of the process is no operator.
        pair.restart(Side::Secondary);
        pair.until_poisoned(Side::Secondary);
    }
    let cleared = pair.clear(Side::Secondary, false).unwrap();
    assert!(cleared.was_in_sync && cleared.cache_dropped);
    assert!(!pair.secondary.is_marked());
    pair.start(Side::Secondary);
    pair.until_in_sync();
    pair.run_for(LONG);
    // What it counts as in sync with is on its disk, not in the cache that the sync left behind.
    let (role, bytes) = pair.secondary.stable();
    assert!(role.contains("\"in_sync\": true"), "{role}");
    assert_eq!(bytes.unwrap(), b"other");
}

/// The policy is about a peer that cannot be reached; this one can.
#[test]
fn a_frozen_primary_goes_on_when_the_secondary_says_that_its_disk_failed() {
    let mut pair = Pair::new(OnPeerLoss::Freeze);
    pair.start(Side::Primary);
    pair.start(Side::Secondary);
    pair.until_in_sync();
    fail_next_sync(&pair, Side::Secondary);
    assert_eq!(pair.client(Client::create), Ok(()));
    assert_eq!(pair.client(Client::sync), Ok(()));
    assert_eq!(pair.primary.state(), Some(State::OutOfSync));
}

#[test]
fn a_primary_whose_disk_failed_serves_reads_and_leaves_the_good_copy_alone() {
    let mut pair = Pair::in_sync();
    fail_next_sync(&pair, Side::Primary);
    assert_eq!(pair.client(|client| client.write(b"other", true)), EIO);
    pair.until_poisoned(Side::Primary);
    let good = pair.secondary.stable();
    for _restart in 0..3 {
        pair.run_for(LONG);
        reads_only(&mut pair, b"other");
        assert_eq!(pair.primary.state(), Some(State::Poisoned));
        assert!(!says_in_sync(&pair));
        assert!(pair.primary.status().poisoned.is_some());
        // The copy that has everything still counts as one that has.
        assert_eq!(pair.secondary.state(), Some(State::SecondaryDisconnected));
        assert_eq!(pair.secondary.stable(), good);
        assert!(pair.primary.stable().0.contains("\"in_sync\": true"));
        let told = pair.secondary.status().reason.unwrap();
        assert!(told.contains("the primary's disk failed at "), "{told}");
        pair.restart(Side::Primary);
        pair.until_poisoned(Side::Primary);
    }
    let refused = pair.clear(Side::Primary, false).unwrap_err();
    assert!(
        matches!(refused, ClearError::LossNotAccepted { .. }),
        "{refused}"
    );
    assert!(pair.primary.is_marked());
    pair.clear(Side::Primary, true).unwrap();
    pair.start(Side::Primary);
    pair.until_in_sync();
    // What the disk had: the write was not acknowledged, and its sync failed.
    assert_eq!(pair.client(Client::read), Ok(b"first".to_vec()));
    pair.run_for(LONG);
    assert_eq!(pair.secondary.stable().1.unwrap(), b"first");
    assert_eq!(
        pair.client(|client| client.write(b"later", true)),
        Ok(()),
        "in use again"
    );
}

/// What waits for the other node when the disk here fails ends, with an error.
#[test]
fn nothing_waits_for_ever_on_a_primary_whose_disk_failed() {
    let mut pair = Pair::in_sync();
    pair.kill(Side::Secondary);
    pair.until("paused", |pair| pair.primary.state() == Some(State::Paused));
    let disk = pair.primary.disk.clone();
    let ended = pair.client(move |client| {
        let service = client;
        // Held back, as the secondary is away; a checkpoint meets the failure meanwhile.
        disk.fail_call(CallClass::Sync, 1, Errno::Io);
        service.write(b"other", false)
    });
    assert_eq!(ended, EIO);
    assert_eq!(pair.primary.state(), Some(State::Poisoned));
    assert!(pair.primary.stable().0.contains("\"in_sync\": true"));
}

/// Nodes that are started for the first time, and used until they are in sync.
fn first_sync(pair: &mut Pair) {
    for side in [Side::Primary, Side::Secondary] {
        pair.start(side);
        pair.start_until_it_runs(side);
    }
    for _ in 0..100 {
        if pair.is_in_sync() || pair.primary.is_marked() || pair.secondary.is_marked() {
            break;
        }
        pair.run_for(Duration::from_millis(100));
    }
    if pair.primary.is_marked() {
        return;
    }
    let _made = pair.try_client(Client::create);
    let _written = pair.try_client(|client| client.write(b"first", true));
    let _synced = pair.try_client(Client::sync);
    pair.run_for(Duration::from_secs(25));
}

/// Every sync that a node makes from its first start on fails once: opening, marks, resync, flushes
/// for clients, checkpoints. After none of them is in sync said or believed again.
fn fails_at_every_sync(side: Side) {
    let mut met = 0;
    for nth in 1.. {
        let mut pair = Pair::new(OnPeerLoss::Continue);
        let disk = pair.half(side).disk.clone();
        disk.fail_call(CallClass::Sync, nth, Errno::Io);
        first_sync(&mut pair);
        if !pair.half(side).is_marked() {
            break;
        }
        met += 1;
        pair.start_until_it_runs(side);
        pair.until_poisoned(side);
        let before = pair.half(side).stable().0;
        for _restart in 0..2 {
            assert!(!says_in_sync(&pair), "sync {nth}");
            pair.run_for(LONG);
            assert!(
                !pair.is_in_sync() && !says_in_sync(&pair),
                "in sync after sync {nth} had failed"
            );
            assert_eq!(pair.half(side).stable().0, before, "sync {nth}");
            pair.restart(side);
            pair.until_poisoned(side);
        }
        pair.clear(side, true).unwrap();
        pair.start(side);
        pair.until_in_sync();
    }
    assert!(met >= 10, "{met} syncs");
}

#[test]
fn a_secondary_promises_nothing_after_any_sync_that_failed() {
    fails_at_every_sync(Side::Secondary);
}

#[test]
fn a_primary_promises_nothing_after_any_sync_that_failed() {
    fails_at_every_sync(Side::Primary);
}

/// At whatever call the disk fails, and whatever waits for whom then.
#[test]
fn every_program_has_an_answer_when_a_disk_fails() {
    let mut met = 0;
    for side in [Side::Primary, Side::Secondary] {
        for class in [CallClass::Write, CallClass::Name, CallClass::Read] {
            for nth in 1..=30 {
                let mut pair = Pair::in_sync();
                let disk = pair.half(side).disk.clone();
                disk.fail_call(class, nth, Errno::Io);
                let mut answered = |body: fn(&Client) -> Result<(), Errno>| {
                    let place = format!("{side:?}, {class:?} {nth}");
                    assert!(pair.try_client(body).is_some(), "no answer: {place}");
                };
                answered(|client| client.create_named(b"more"));
                answered(|client| client.write(b"other", false));
                answered(|client| client.write(b"third", true));
                answered(Client::sync);
                answered(|client| client.read().map(drop));
                if !pair.half(side).is_marked() {
                    break;
                }
                pair.until_poisoned(side);
                pair.run_for(LONG);
                assert!(!says_in_sync(&pair), "{side:?}, {class:?} {nth}");
                met += 1;
            }
        }
    }
    assert!(met >= 8, "{met} calls");
}

/// A stop in order says that all is on stable storage, by the boot id it takes away.
#[test]
fn a_node_whose_disk_failed_is_not_closed_in_order() {
    for side in [Side::Primary, Side::Secondary] {
        for nth in 0..6 {
            let mut pair = Pair::in_sync();
            let written = pair.client(|client| client.write(b"other", false));
            assert_eq!(written, Ok(()));
            let disk = pair.half(side).disk.clone();
            disk.fail_call(CallClass::Sync, nth + 1, Errno::Io);
            pair.stop(side);
            assert!(pair.half(side).is_marked(), "{side:?}, sync {nth}");
            let role = pair.half(side).stable().0;
            assert!(
                !role.contains("\"boot\": null"),
                "{side:?}, sync {nth}: {role}"
            );
        }
    }
}

/// Whatever interrupts the operator's command, and however often: the mark goes last.
#[test]
fn clearing_that_is_interrupted_leaves_the_mark() {
    let mut done = 0;
    for nth in 1.. {
        let mut pair = Pair::in_sync();
        fail_next_sync(&pair, Side::Secondary);
        pair.client(|client| client.write(b"other", true)).unwrap();
        pair.until_poisoned(Side::Secondary);
        let disk = pair.secondary.disk.clone();
        disk.fail_call(CallClass::Sync, nth, Errno::Io);
        let failed = pair.clear(Side::Secondary, false);
        disk.stop_failing();
        if failed.is_ok() {
            break;
        }
        assert!(pair.secondary.is_marked(), "sync {nth}");
        pair.start(Side::Secondary);
        pair.until_poisoned(Side::Secondary);
        pair.clear(Side::Secondary, false).unwrap();
        pair.start(Side::Secondary);
        pair.until_in_sync();
        done += 1;
    }
    assert!(done > 5, "{done} syncs");
}

#[test]
fn there_is_nothing_to_clear_without_a_mark() {
    let mut pair = Pair::in_sync();
    let refused = pair.clear(Side::Secondary, false).unwrap_err();
    assert!(matches!(refused, ClearError::NotPoisoned { .. }));
    pair.start(Side::Secondary);
    pair.until_in_sync();
}
