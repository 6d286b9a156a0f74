//! The sums of a long file after a kill, a loss of power, and a refusal at each call of the disk.

use lockstep_lossy::disk::{CallKind, Verdict};
use lockstep_types::{AllocateMode, Errno};

use super::*;
use crate::OpError;

#[derive(Clone, Copy)]
enum Step {
    Write(u64, usize, u8),
    Cut(u64),
    Allocate(AllocateMode, u64, u64),
    Adopt(u64, u64),
    NewEra,
    Close,
}

/// Changes on both sides of the last block in the slot, which is the 26th, with a part of the file void.
const STEPS: [Step; 15] = [
    Step::Write(0, 120_000, 1),
    Step::Write(100_000, 60_000, 2),
    Step::Write(106_000, 100, 3),
    Step::NewEra,
    Step::Write(90_000, 30_000, 4),
    Step::Adopt(0, 70_000),
    Step::Write(3_000_000, 9_000, 5),
    Step::Allocate(AllocateMode::PunchHole, 110_000, 20_000),
    Step::Allocate(AllocateMode::ZeroRange, 50_000, 70_000),
    Step::Cut(115_000),
    Step::Adopt(0, 115_000),
    Step::Write(114_000, 40_000, 6),
    Step::Cut(0),
    Step::Write(0, 110_000, 7),
    Step::Close,
];

fn step(test: &mut TestStore, ino: Ino, step: Step) -> Result<(), OpError> {
    let (osn, time) = test.stamp();
    let commit = |request| {
        let op = MetaOp { osn, time, request };
        test.store.commit(&op).map(drop)
    };
    match step {
        Step::Write(offset, length, byte) => {
            test.store
                .write(ino, offset, &vec![byte; length], osn, time)
        }
        Step::Cut(size) => commit(MetaRequest::Truncate {
            ino,
            size,
            drop_set_id: false,
        }),
        Step::Allocate(mode, offset, length) => commit(MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        }),
        Step::Adopt(offset, length) => {
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            let read = test.store.read(ino, offset, &mut bytes)?;
            Ok(test.store.sums().adopt(ino, offset, &bytes[..read])?)
        }
        Step::NewEra => {
            let sums = test.store.sums();
            // A driver goes on without sums.
            drop(sums.take_secret(&SumSecret::new([6; 32])));
            drop(sums.take_secret(&secret()));
            Ok(())
        }
        Step::Close => Ok(test.store.close()?),
    }
}

/// A disk with an empty file.
fn base() -> (Disk, Ino) {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.store.sync_everything().unwrap();
    test.store.close().unwrap();
    (test.disk.fork(), ino)
}

/// Does the steps with this verdict on the `nth` call. Returns the disk, and whether the verdict was asked for.
fn run(base: &Disk, ino: Ino, nth: u64, verdict: Verdict) -> (Disk, bool) {
    let disk = base.fork();
    let mut test = TestStore::on(disk.clone(), 1);
    let serial = disk.calls() + nth;
    disk.set_verdict(nth, verdict);
    for one in STEPS {
        let done = step(&mut test, ino, one);
        let goes_on = matches!(verdict, Verdict::Fail(_) | Verdict::Go);
        if done.is_err() && !goes_on {
            break;
        }
        if goes_on && !test.store.is_poisoned() {
            test.check(ino);
        }
    }
    let was_asked = disk.calls() >= serial;
    (disk, was_asked)
}

fn each_call(verdicts: &[Verdict], check: impl Fn(Disk, Ino)) {
    let (base, ino) = base();
    for verdict in verdicts {
        for nth in 1.. {
            let (disk, was_asked) = run(&base, ino, nth, *verdict);
            if !was_asked {
                assert!(nth > 100, "the steps make many calls");
                break;
            }
            check(disk.fork(), ino);
        }
    }
}

/// A kill makes no sum void, and leaves none that does not fit.
#[test]
fn sums_fit_after_a_kill_at_any_call() {
    let verdicts = [
        Verdict::CrashBefore,
        Verdict::CrashAfter,
        Verdict::CrashTorn(20),
        Verdict::CrashInside { thousandths: 500 },
    ];
    each_call(&verdicts, |disk, ino| {
        let _void = TestStore::on(disk, 1).check(ino);
    });
}

#[test]
fn sums_fit_after_a_loss_of_power_at_any_call() {
    each_call(&[Verdict::CrashBefore], |disk, ino| {
        for percent in [0, 50] {
            let left = disk.after_power_loss(Survivors::Mixed { percent }, 1);
            let _void = TestStore::on(left, 2).check(ino);
        }
    });
}

/// After each step the process has checked the sums, too.
#[test]
fn sums_fit_after_a_refusal_of_any_call() {
    each_call(
        &[Verdict::Fail(Errno::NoSpace), Verdict::Fail(Errno::Io)],
        |disk, ino| {
            let _void = TestStore::on(disk.fork(), 1).check(ino);
            let left = disk.after_power_loss(Survivors::Mixed { percent: 50 }, 1);
            let _void = TestStore::on(left, 2).check(ino);
        },
    );
}

/// A change does not fail because its sums find no room: the sums of the file are void.
#[test]
fn a_change_does_not_fail_for_want_of_room_for_its_sums() {
    let (base, ino) = base();
    let disk = base.fork();
    let mut test = TestStore::on(disk.clone(), 1);
    test.fill(ino, 0, 200_000, 1);
    disk.observe(Some(std::sync::Arc::new(|call| {
        if call.path.starts_with("sums/") && call.kind != CallKind::Sync && call.length != 256 {
            Verdict::Fail(Errno::NoSpace)
        } else {
            Verdict::Go
        }
    })));
    test.fill(ino, 190_000, 20_000, 2);
    assert_eq!(test.check(ino), 52);
    assert_eq!(test.store.sums().totals().given_up, 1);
    disk.observe(None);
    test.write(ino, 0, &[3; 8192]);
    assert_eq!(test.check(ino), 50);
}

/// Without a single file of sums that can be written, no sum counts, in the next process either.
#[test]
fn sums_that_cannot_be_made_void_end_their_era() {
    let (base, ino) = base();
    let disk = base.fork();
    let mut test = TestStore::on(disk.clone(), 1);
    test.fill(ino, 0, 200_000, 1);
    assert_eq!(test.check(ino), 0);
    disk.observe(Some(std::sync::Arc::new(|call| {
        if call.path.starts_with("sums/") {
            Verdict::Fail(Errno::NoSpace)
        } else {
            Verdict::Go
        }
    })));
    test.write(ino, 8192, &[2; 4096]);
    assert_eq!(test.check(ino), 49);
    test.kill();
    assert_eq!(test.check(ino), 49);
    test.write(ino, 8192, &[3; 4096]);
    assert_eq!(test.check(ino), 48);
}
