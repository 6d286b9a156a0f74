//! Power is lost at every write and sync of a series of commits, and any part of what was not
//! synced survives: the store then opens, is whole, and holds every acknowledged commit.

use lockstep_fs::kv::Kv;
use lockstep_fs::kv::redb::{RedbKv, RedbOptions};
use lockstep_types::backing::Backing;

use crate::disk::MemoryDisk;
use crate::model::{Map, all, change};

const PATH: &str = "db";
const COMMITS: u32 = 12;

type Pairs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A small generator of our own, so that each run is the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The changes of one commit: enough to split and free pages, now and then enough to grow the
/// file.
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

/// Commits until power is lost. What was acknowledged, and what the commit under way would have
/// made of it.
fn run_until_power_is_lost(kv: &RedbKv) -> (Map, Map) {
    let mut acknowledged = Map::new();
    let mut attempted = Map::new();
    for commit in 0..COMMITS {
        let pairs = pairs(commit);
        for (key, value) in &pairs {
            change(&mut attempted, key, value.as_deref());
        }
        let mut changes = pairs.iter().map(|(k, v)| (&k[..], v.as_deref()));
        if kv.commit_durable(&mut changes).is_err() {
            break;
        }
        acknowledged.clone_from(&attempted);
    }
    (acknowledged, attempted)
}

fn open_whole(content: Vec<u8>) -> Map {
    let disk = MemoryDisk::with(PATH, content);
    let mut kv = RedbKv::open(&disk, PATH, RedbOptions::default()).unwrap();
    kv.check().unwrap();
    all(&kv).unwrap()
}

/// Runs the series with power for so many calls; `false` when that was enough for all of it.
fn crash_after(calls: u64, random: &mut Random) -> bool {
    let disk = MemoryDisk::default();
    let options = RedbOptions {
        cache_bytes: 256 << 10,
    };
    let kv = RedbKv::create(&disk, PATH, options).unwrap();
    disk.open(PATH).unwrap().sync().unwrap();
    let file = disk.file(PATH);
    file.lose_power_after(calls);
    let (acknowledged, attempted) = run_until_power_is_lost(&kv);
    for keep_one_in in [1, 2, 2, 2, 8, u64::MAX] {
        let image = file.after_power_loss(|| random.next().is_multiple_of(keep_one_in));
        let found = open_whole(image);
        let is_right = found == acknowledged || found == attempted;
        assert!(is_right, "power lost after {calls} calls");
    }
    acknowledged != attempted
}

#[test]
fn no_acknowledged_commit_is_lost_and_none_is_halved() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut calls = 0;
    while crash_after(calls, &mut random) {
        calls += 1;
        assert!(calls < 10_000, "it never gets through");
    }
    assert!(calls > u64::from(COMMITS) * 4, "{calls}");
}

/// A store that was opened after a crash crashes again.
#[test]
fn crashes_add_up_to_no_loss() {
    let mut random = Random(7);
    let mut content = {
        let disk = MemoryDisk::default();
        drop(RedbKv::create(&disk, PATH, RedbOptions::default()).unwrap());
        disk.file(PATH).content()
    };
    let mut expected = Map::new();
    for commit in 0..150 {
        let disk = MemoryDisk::with(PATH, content);
        let file = disk.file(PATH);
        let calls = random.next() % 60;
        let changes = pairs(commit % COMMITS);
        let mut attempted = expected.clone();
        for (key, value) in &changes {
            change(&mut attempted, key, value.as_deref());
        }
        file.lose_power_after(calls);
        // The power may be lost while the store is opened, as that writes too.
        if let Ok(kv) = RedbKv::open(&disk, PATH, RedbOptions::default()) {
            let mut changes = changes.iter().map(|(k, v)| (&k[..], v.as_deref()));
            if kv.commit_durable(&mut changes).is_ok() {
                expected.clone_from(&attempted);
            }
        }
        content = file.after_power_loss(|| random.next().is_multiple_of(2));
        let found = open_whole(content.clone());
        assert!(found == expected || found == attempted, "crash {commit}");
        expected = found;
    }
}
