//! Power fails at every write and sync of a series of commits, and any part of the unsynced changes survives. The
//! store then opens, is whole, and holds every acknowledged commit.

use lockstep_fs::kv::Kv;
use lockstep_fs::kv::redb::{RedbKv, RedbOptions};
use lockstep_lossy::disk::{Disk, Survivors, Verdict};
use lockstep_lossy::random::Random;

use crate::model::{Map, all, change};

const PATH: &str = "db";
const COMMITS: u32 = 12;

type Pairs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The changes of one commit: enough to split and free pages, sometimes enough to grow the file.
fn pairs(commit: u32) -> Pairs {
    let value_bytes = if commit % 4 == 3 { 300_000 } else { 60 };
    let value = |number: u32| vec![u8::try_from((commit + number) % 251).unwrap(); value_bytes];
    let put = |number: u32| (number.to_be_bytes().to_vec(), Some(value(number)));
    let delete = |number: u32| (number.to_be_bytes().to_vec(), None);
    let numbers = (0..8).map(|number| number * 37 * (commit + 1) % 200);
    numbers
        .map(|number| {
            if number % 5 == 0 {
                delete(number)
            } else {
                put(number)
            }
        })
        .collect()
}

/// The state behind a commit.
fn make(state: &mut Map, number: u32) {
    for (key, value) in pairs(number) {
        change(state, &key, value.as_deref());
    }
}

/// Makes one commit. Returns whether the store says that it is done.
fn commit_to(kv: &RedbKv, number: u32) -> bool {
    let pairs = pairs(number);
    let mut changes = pairs.iter().map(|(k, v)| (&k[..], v.as_deref()));
    kv.commit_durable(&mut changes).is_ok()
}

/// The same, on the store of a disk. Power may fail while the store opens, as opening writes too.
fn commit(disk: &Disk, number: u32) -> bool {
    RedbKv::open(&*disk.mount(), PATH, RedbOptions::default())
        .is_ok_and(|kv| commit_to(&kv, number))
}

/// Commits until power fails. Returns the acknowledged state, and the state that the last commit would have made.
fn run_until_power_is_lost(kv: &RedbKv) -> (Map, Map) {
    let mut acknowledged = Map::new();
    let mut attempted = Map::new();
    for number in 0..COMMITS {
        make(&mut attempted, number);
        if !commit_to(kv, number) {
            break;
        }
        acknowledged.clone_from(&attempted);
    }
    (acknowledged, attempted)
}

fn open_whole(disk: &Disk) -> Map {
    let mut kv = RedbKv::open(&*disk.fork().mount(), PATH, RedbOptions::default()).unwrap();
    kv.check().unwrap();
    all(&kv).unwrap()
}

/// Runs the series with power for `calls` calls. Returns whether power failed before the end of the series.
fn crash_after(calls: u64, random: &mut Random) -> bool {
    let disk = Disk::default();
    let options = RedbOptions {
        cache_bytes: 256 << 10,
    };
    let kv = RedbKv::create(&*disk.mount(), PATH, options).unwrap();
    disk.set_verdict(calls + 1, Verdict::CrashBefore);
    let (acknowledged, attempted) = run_until_power_is_lost(&kv);
    for percent in [100, 50, 50, 50, 12, 0] {
        let survivors = Survivors::Mixed { percent };
        let found = open_whole(&disk.after_power_loss(survivors, random.any()));
        let is_right = found == acknowledged || found == attempted;
        assert!(is_right, "power lost after {calls} calls");
    }
    acknowledged != attempted
}

#[test]
fn no_acknowledged_commit_is_lost_and_none_is_halved() {
    let mut random = Random::new(0x9E37_79B9_7F4A_7C15);
    let mut calls = 0;
    while crash_after(calls, &mut random) {
        calls += 1;
        assert!(calls < 10_000, "the series never ends");
    }
    assert!(calls > u64::from(COMMITS) * 4, "{calls}");
}

/// A store that was opened after a crash crashes again.
#[test]
fn crashes_add_up_to_no_loss() {
    let mut random = Random::new(7);
    let mut disk = Disk::default();
    drop(RedbKv::create(&*disk.mount(), PATH, RedbOptions::default()).unwrap());
    let mut expected = Map::new();
    for crash in 0..150 {
        let mut attempted = expected.clone();
        make(&mut attempted, crash % COMMITS);
        disk.set_verdict(1 + random.below(60), Verdict::CrashBefore);
        if commit(&disk, crash % COMMITS) {
            expected.clone_from(&attempted);
        }
        disk = disk.after_power_loss(Survivors::Mixed { percent: 50 }, random.any());
        let found = open_whole(&disk);
        assert!(found == expected || found == attempted, "crash {crash}");
        expected = found;
    }
}

/// A disk whose process was killed in a commit, of which the next process may find nothing.
struct Killed {
    disk: Disk,
    /// The call of the kill, for the message.
    call: u64,
    /// The state without the commit, and the state with it.
    states: [Map; 2],
    /// The commit of the next process.
    next: u32,
}

impl Killed {
    /// Power fails at a call of the next process. Returns whether it failed before the end of the commit.
    fn lose_power(&self, call: u64, random: &mut Random) -> bool {
        let disk = self.disk.fork();
        disk.set_verdict(call, Verdict::CrashInside { thousandths: 900 });
        let is_done = commit(&disk, self.next);
        for percent in [50, 10] {
            let found =
                open_whole(&disk.after_power_loss(Survivors::Mixed { percent }, random.any()));
            let is_right = self.states.iter().any(|state| {
                let mut with_next = state.clone();
                make(&mut with_next, self.next);
                found == with_next || !is_done && found == *state
            });
            assert!(
                is_right,
                "killed after call {}, power lost at {call}",
                self.call
            );
        }
        !is_done
    }
}

/// The process is killed at any call of a commit, and power fails in the next process. The header of the
/// commit, which the next process has read, may be in memory only.
#[test]
fn a_power_loss_after_a_kill_halves_no_commit() {
    let mut random = Random::new(11);
    let disk = Disk::default();
    drop(RedbKv::create(&*disk.mount(), PATH, RedbOptions::default()).unwrap());
    let mut state = Map::new();
    for number in 0..COMMITS {
        let mut with_commit = state.clone();
        make(&mut with_commit, number);
        for call in 1.. {
            let killed = Killed {
                disk: disk.fork(),
                call,
                states: [state.clone(), with_commit.clone()],
                next: number + 1,
            };
            killed.disk.set_verdict(call, Verdict::CrashAfter);
            if commit(&killed.disk, number) {
                break;
            }
            let _is_over = (0..3).all(|_| killed.lose_power(1 + random.below(14), &mut random));
        }
        assert!(commit(&disk, number));
        state = with_commit;
    }
}
