//! Single promises about sums.

use std::sync::Arc;

use lockstep_sums::{BlockOffset, PieceSums};
use lockstep_types::Errno;

use super::*;

/// The bytes on the disk of a block, with one bit flipped.
fn flip(test: &TestStore, ino: Ino, offset: u64) {
    let path = crate::paths::content_path(ino);
    assert!(test.disk.flip_bit(&path, offset, 3));
}

/// A block that is written in part does not give a flipped bit a sum.
#[test]
fn a_flipped_bit_is_noticed_by_a_write_beside_it() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.fill(ino, 0, 20_000, 1);
    flip(&test, ino, 5_000);
    test.write(ino, 6_000, &[2; 10]);
    assert_eq!(test.store.sums().totals().mismatches, 1);
    let sums = test.store.sums().blocks(ino, 0, 5).unwrap();
    assert!(sums[1].is_none(), "the block is void");
    assert!(sums.iter().flatten().count() == 4);
}

/// The sum is that of the bytes of the request.
#[test]
fn a_flipped_bit_does_not_fit_its_sum() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.write(ino, 0, &[1; 8192]);
    flip(&test, ino, 5_000);
    let key = SumKey::new(&secret());
    let kept = test.store.sums().blocks(ino, 1, 1).unwrap();
    let bytes = test.bytes(ino);
    assert_ne!(kept, [Some(key.block(&bytes[4096..]))]);
    assert_eq!(kept, [Some(key.block(&[1; 4096]))]);
}

/// Equal content has equal sums, by any way to the content.
#[test]
fn two_ways_to_one_content_have_one_sum() {
    let mut test = TestStore::new();
    let (one, other) = (test.make("one"), test.make("other"));
    test.fill(one, 0, 300_000, 7);
    for offset in (0..300).map(|number| (299 - number) * 1_000) {
        let length = (300_000 - offset).min(1_000);
        test.write(other, offset, &vec![7; usize::try_from(length).unwrap()]);
    }
    test.write(other, 0, &[7; 100]);
    assert_eq!((test.check(one), test.check(other)), (0, 0));
    let sums = test.store.sums();
    let whole = |ino| sums.file(ino).unwrap().whole().unwrap();
    assert_eq!(whole(one), whole(other));
    assert_ne!(whole(one), FileSum::ZEROS);
}

#[test]
fn a_failed_write_makes_its_blocks_void_and_no_others() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.fill(ino, 0, 40_000, 1);
    let path: &'static str = Box::leak(crate::paths::content_path(ino).into_boxed_str());
    test.disk.fail_call_on(
        path,
        lockstep_lossy::disk::CallClass::Write,
        1,
        Errno::NoSpace,
    );
    let (osn, time) = test.stamp();
    let failed = test.store.write(ino, 9_000, &[2; 10_000], osn, time);
    assert!(failed.is_err());
    assert_eq!(test.check(ino), 3);
    // Beyond the end, and taken back.
    test.disk.fail_call_on(
        path,
        lockstep_lossy::disk::CallClass::Write,
        1,
        Errno::NoSpace,
    );
    let failed = test.store.write(ino, 50_000, &[2; 10_000], osn, time);
    assert!(failed.is_err());
    assert_eq!(test.check(ino), 3);
}

/// Bytes of a write that nobody completes vanish when another write fails: so do their sums.
#[test]
fn the_cut_of_a_failed_write_takes_sums_along() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.write(ino, 0, &[1; 5_000]);
    let store = &test.store;
    let failed = store.begin_write(ino, 5_000, 10, false).unwrap();
    let left = store.begin_write(ino, 200_000, 5_000, false).unwrap();
    store.write_begun(&left, 200_000, &[2; 5_000]).unwrap();
    failed.abandon();
    drop(failed);
    drop(left);
    assert_eq!(test.bytes(ino).len(), 5_000);
    assert_eq!(test.check(ino), 0);
    let sums = test.store.sums().blocks(ino, 0, 60).unwrap();
    assert!(sums[2..].iter().all(|sum| *sum == Some(BlockSum::ZEROS)));
}

/// Sums that come with the bytes are those of the blocks, wherever the write begins; those of another secret do not count.
#[test]
fn sums_that_come_with_the_bytes_are_those_of_the_blocks() {
    let mut test = TestStore::new();
    let keys = [secret(), SumSecret::new([6; 32])].map(|secret| Arc::new(SumKey::new(&secret)));
    let bytes: Vec<u8> = (0..=250).cycle().take(5 * BLOCK_BYTES).collect();
    for (number, key) in keys.iter().enumerate() {
        for (at, offset) in [0, 100, 3 * 4096, 4095].into_iter().enumerate() {
            let ino = test.make(&format!("file {number} {at}"));
            let sums = PieceSums::of(key, BlockOffset::of(offset), &bytes);
            let (osn, time) = test.stamp();
            let data = sums.with(&bytes);
            test.store.write(ino, offset, data, osn, time).unwrap();
            assert_eq!(test.check(ino), 0, "from {offset}");
            // Cut for another place.
            let (osn, time) = test.stamp();
            test.store.write(ino, offset + 50, data, osn, time).unwrap();
            assert_eq!(test.check(ino), 0, "from {offset}, moved");
        }
    }
}

#[test]
fn the_sum_of_a_removed_file_is_checked() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.fill(ino, 0, 200_000, 1);
    test.kill();
    let path = crate::paths::block_sums_path(ino);
    assert!(test.disk.flip_bit(&path, 16, 1));
    let name = FileName::new(b"file").unwrap();
    test.commit(MetaRequest::Unlink {
        parent: Ino::ROOT,
        name,
    });
    test.commit(MetaRequest::Reap { ino });
    test.store.collect_garbage().unwrap();
    assert_eq!(test.store.sums().totals().left_sums, 1);
    assert!(!test.disk.files().contains(&path));
}

/// Only another secret makes sums void.
#[test]
fn the_same_secret_changes_nothing() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.fill(ino, 0, 10_000, 1);
    test.store.sums().take_secret(&secret()).unwrap();
    assert_eq!(test.check(ino), 0);
    test.restart();
    assert_eq!(test.store.sums().secret(), Some(secret()));
    assert_eq!(test.check(ino), 0);
    test.store
        .sums()
        .take_secret(&SumSecret::new([6; 32]))
        .unwrap();
    assert_eq!(test.store.sums().file(ino).unwrap().void_blocks, 3);
}

/// A machine that restarts after a clean shutdown keeps the sums.
#[test]
fn a_clean_shutdown_keeps_sums_over_a_restart_of_the_machine() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.fill(ino, 0, 200_000, 1);
    test.store.close().unwrap();
    test.lose_power(Survivors::Nothing);
    assert_eq!(test.check(ino), 0);
    test.write(ino, 0, &[2; 100]);
    test.lose_power(Survivors::Everything);
    assert_eq!(test.check(ino), 49);
}

/// A resync makes sums known that a comparison has found right, and no others.
#[test]
fn right_bytes_make_void_sums_known() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    test.fill(ino, 0, 201_000, 1);
    test.lose_power(Survivors::Everything);
    let bytes = test.bytes(ino);
    assert_eq!(test.check(ino), 50);
    let sums = test.store.sums();
    sums.adopt(ino, 0, &bytes[..5_000]).unwrap();
    assert_eq!(test.check(ino), 49, "the second block is not whole");
    let sums = test.store.sums();
    sums.adopt(ino, 4_096, &bytes[4_096..150_000]).unwrap();
    sums.adopt(ino, 147_456, &bytes[147_456..]).unwrap();
    assert_eq!(test.check(ino), 0);
    assert!(test.store.sums().file(ino).unwrap().whole().is_some());
}

/// Each write adds its part to the sum of the file.
#[test]
fn writes_of_many_threads_to_one_file_lose_no_sum() {
    let mut test = TestStore::new();
    let ino = test.make("file");
    let stamps: Vec<_> = (0..8_u64).map(|thread| (thread, test.stamp())).collect();
    let store = Arc::new(&test.store);
    std::thread::scope(|scope| {
        for (thread, (osn, time)) in stamps {
            let store = Arc::clone(&store);
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let block = (round % 20) * 8 + thread;
                    let byte = u8::try_from(round % 250).unwrap();
                    let bytes = [byte; BLOCK_BYTES];
                    store.write(ino, block * 4096, &bytes, osn, time).unwrap();
                }
            });
        }
    });
    assert_eq!(test.check(ino), 0);
}
