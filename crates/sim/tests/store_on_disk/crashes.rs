//! The workload, crashed at every call.

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_fs::StoreView;
use lockstep_sim::check::leaks::empty_directories;
use lockstep_sim::disk::{Call, CallKind, Verdict};
use lockstep_sim::random::Random;
use lockstep_types::{Errno, Ino, MetaOp, MetaRequest, NodeKind, Timestamp};

use super::states::{Crash, check};
use super::workload::{STEPS, run};
use super::*;

/// Opens the store after a crash, checks it, and uses it further.
fn check_left(disk: &Disk, boot: u8, acknowledged: usize, crash: Crash) {
    disk.observe(None);
    let opened = open(disk, boot).unwrap();
    check(&opened.store, acknowledged, crash);
    opened.store.checkpoint().unwrap();
    check(&opened.store, acknowledged, crash);
    opened.store.collect_garbage().unwrap();
    opened.store.remove_empty_directories().unwrap();
    let (files, directories) = (disk.files(), disk.directories());
    assert_eq!(empty_directories(&directories, &files), [""; 0]);
    opened.store.close().unwrap();
}

/// Checks the store after `losses` different power losses.
fn check_power_losses(disk: &Disk, losses: u64, acknowledged: usize) {
    let mut random = Random::new(disk.calls());
    for _ in 0..losses {
        let left = disk.fork();
        left.power_loss(&mut random);
        check_left(&left, NEXT_BOOT, acknowledged, Crash::Power);
    }
}

/// Returns every call of the workload, with its number from 1.
fn all_calls(base: &Disk) -> Vec<(u64, CallKind, u64)> {
    let disk = base.fork();
    let calls = calls_of(&disk, || assert_eq!(run(&disk), STEPS.len()));
    let numbered = (1..).zip(calls);
    numbered
        .map(|(nth, (kind, length))| (nth, kind, length))
        .collect()
}

#[test]
fn acknowledged_data_survives_a_crash_at_every_call() {
    let base = made_disk();
    for (nth, kind, length) in all_calls(&base) {
        let mut verdicts = vec![Verdict::CrashBefore, Verdict::CrashAfter];
        if matches!(kind, CallKind::Write | CallKind::TableStore) {
            let mut random = Random::new(nth);
            verdicts.push(Verdict::CrashTorn(random.below(length.max(1))));
        }
        for verdict in verdicts {
            let disk = base.fork();
            at_call(&disk, nth, verdict);
            let acknowledged = run(&disk);
            check_left(&disk, BOOT, acknowledged, Crash::Process);
        }
    }
}

#[test]
fn durable_data_survives_a_power_loss_at_every_call() {
    let base = made_disk();
    for (nth, ..) in all_calls(&base) {
        let disk = base.fork();
        at_call(&disk, nth, Verdict::CrashBefore);
        let acknowledged = run(&disk);
        check_power_losses(&disk, 6, acknowledged);
    }
}

/// After a clean close, all data is on stable storage.
#[test]
fn all_data_survives_a_power_loss_after_a_clean_close() {
    let disk = made_disk();
    assert_eq!(run(&disk), STEPS.len());
    check_power_losses(&disk, 100, STEPS.len());
}

/// A power loss during the recovery from a power loss costs no more than the first.
#[test]
fn durable_data_survives_a_power_loss_during_recovery() {
    let base = made_disk();
    let disk = base.fork();
    let calls = all_calls(&base).len() as u64;
    at_call(&disk, calls / 2, Verdict::CrashBefore);
    let acknowledged = run(&disk);
    let mut random = Random::new(5);
    disk.power_loss(&mut random);
    disk.observe(None);
    let reopen = disk.fork();
    let calls = calls_of(&reopen, || drop(open(&reopen, NEXT_BOOT).unwrap())).len() as u64;
    for nth in 1..=calls {
        let again = disk.fork();
        at_call(&again, nth, Verdict::CrashBefore);
        drop(open(&again, NEXT_BOOT));
        again.power_loss(&mut random);
        check_left(&again, NEXT_BOOT + 1, acknowledged, Crash::Power);
    }
}

/// A disk that refuses a single call costs no acknowledged data, with or without a power loss.
#[test]
fn acknowledged_data_survives_a_refusal_of_any_call() {
    let base = made_disk();
    for (nth, ..) in all_calls(&base) {
        for errno in [Errno::Io, Errno::NoSpace] {
            let disk = base.fork();
            at_call(&disk, nth, Verdict::Fail(errno));
            let acknowledged = run(&disk);
            check_power_losses(&disk, 2, acknowledged);
            check_left(&disk, BOOT, acknowledged, Crash::Process);
        }
    }
}

/// The store uses no clock and no random source: the same calls make the same disk.
#[test]
fn the_same_workload_leaves_the_same_disk() {
    let once = || {
        let disk = made_disk();
        let calls = all_calls(&disk);
        run(&disk);
        (disk.digest(), calls)
    };
    let first = once();
    for _ in 0..5 {
        assert_eq!(once(), first);
    }
}

/// The simulator found this bug: the content was cut, the log did not record it, and the store
/// continued with a record of the old size.
#[test]
fn a_change_of_content_whose_outcome_is_not_logged_poisons_and_is_done_at_the_next_start() {
    let disk = made_disk();
    let opened = open(&disk, BOOT).unwrap();
    let mut sequence = 0;
    let mut op = |request| {
        sequence += 1;
        let osn = osn(sequence);
        let time = Timestamp::default();
        MetaOp { osn, time, request }
    };
    let ino = opened.store.next_ino().unwrap();
    let create = op(creation(Ino::ROOT, file_name("f"), ino, NodeKind::File));
    opened.store.commit(&create).unwrap();
    let changed = AtomicBool::new(false);
    disk.observe(Some(Arc::new(move |call: &Call<'_>| match call.kind {
        CallKind::SetLength => {
            changed.store(true, Ordering::Relaxed);
            Verdict::Go
        }
        CallKind::Write if changed.load(Ordering::Relaxed) => Verdict::Fail(Errno::NoSpace),
        _ => Verdict::Go,
    })));
    let truncate = op(MetaRequest::Truncate {
        ino,
        size: 9000,
        drop_set_id: false,
    });
    assert!(opened.store.commit(&truncate).is_err());
    assert!(opened.store.is_poisoned());
    let mut bytes = [0; 10];
    assert!(opened.store.read(ino, 0, &mut bytes).is_err());
    disk.observe(None);
    disk.kill();
    let opened = open(&disk, BOOT).unwrap();
    assert_eq!(opened.store.tree().getattr(ino).unwrap().size, 9000);
    assert_eq!(opened.store.tree().content_bytes(ino).unwrap(), 9000);
}
