//! The loss of content in a power loss.

use std::collections::BTreeSet;

use lockstep_lossy::disk::CallClass;
use lockstep_types::Errno;

use super::*;

const HALF: Survivors = Survivors::Mixed { percent: 50 };

/// Tries many power losses. Returns all contents that a file may have afterwards.
fn outcomes(disk: &Disk, path: &str) -> BTreeSet<Option<Vec<u8>>> {
    let mut random = Random::new(7);
    let tried = (0..300).map(|_| {
        let left = disk.fork();
        left.power_loss(&mut random);
        left.read_all(path)
    });
    tried.collect()
}

/// The content of a file, as the first byte of each page.
fn pages(outcomes: &BTreeSet<Option<Vec<u8>>>) -> BTreeSet<Vec<u8>> {
    let firsts = |bytes: &Option<Vec<u8>>| bytes.iter().flatten().copied().step_by(PAGE).collect();
    outcomes.iter().map(firsts).collect()
}

#[test]
fn what_was_synced_is_left_whatever_chance_says() {
    let (disk, _, file) = with_file();
    file.write_at(0, &vec![1; 3 * PAGE]).unwrap();
    file.sync().unwrap();
    assert_eq!(disk.unsynced(), 0);
    assert_eq!(outcomes(&disk, "f"), [Some(vec![1; 3 * PAGE])].into());
}

#[test]
fn every_page_may_be_in_each_of_its_states_by_itself() {
    let (disk, _, file) = with_file();
    for byte in [1, 2, 3] {
        file.write_at(0, &[byte; 2 * PAGE]).unwrap();
        if byte == 1 {
            file.sync().unwrap();
        }
    }
    assert_eq!(disk.unsynced(), 2);
    let found = pages(&outcomes(&disk, "f"));
    let all = (1..4).flat_map(|one| (1..4).map(move |two| vec![one, two]));
    assert_eq!(found, all.collect());
}

#[test]
fn nothing_everything_and_a_prefix_are_among_what_may_be_left() {
    let (disk, _, file) = with_file();
    file.write_at(0, &vec![9; 4 * PAGE]).unwrap();
    file.sync().unwrap();
    for number in 0..4 {
        file.write_at(number * PAGE_BYTES, &vec![1; PAGE]).unwrap();
    }
    assert_eq!(
        bytes(&disk.after_power_loss(Survivors::Nothing, 1), "f"),
        vec![9; 4 * PAGE]
    );
    assert_eq!(
        bytes(&disk.after_power_loss(Survivors::Everything, 1), "f"),
        vec![1; 4 * PAGE]
    );
    // The first changes make the name, then four pages with a length. The next four write the pages.
    for (limit, changed) in [(6, 0), (7, 1), (8, 2), (9, 3), (10, 4)] {
        let left = bytes(&disk.after_power_loss(Survivors::Until(limit), 1), "f");
        let firsts: Vec<u8> = left.iter().copied().step_by(PAGE).collect();
        let expected = [vec![1; changed], vec![9; 4 - changed]].concat();
        assert_eq!(firsts, expected, "{limit}");
    }
    assert_eq!(pages(&outcomes(&disk, "f")).len(), 16);
}

#[test]
fn lengths_are_lost_by_themselves() {
    let (disk, _, file) = with_file();
    file.write_at(0, &[1; 100]).unwrap();
    file.sync().unwrap();
    file.set_len(10).unwrap();
    file.set_len(50).unwrap();
    let left = outcomes(&disk, "f").into_iter().flatten();
    let (mut lengths, mut cut) = (BTreeSet::new(), BTreeSet::new());
    for bytes in left {
        lengths.insert(bytes.len());
        cut.insert(bytes.iter().take_while(|byte| **byte == 1).count());
    }
    assert_eq!(lengths, [10, 50, 100].into());
    assert_eq!(cut, [10, 50, 100].into());
}

/// Bytes past a length that came back must stay hidden when the file grows again.
#[test]
fn what_a_lost_length_cuts_off_stays_away() {
    let (disk, _, file) = with_file();
    file.write_at(0, &vec![1; 2 * PAGE]).unwrap();
    for seed in 0..50 {
        let left = disk.after_power_loss(HALF, seed);
        let length = bytes(&left, "f").len();
        let backing = left.mount();
        let file = backing.open("f").unwrap();
        file.set_len(2 * PAGE_BYTES).unwrap();
        assert!(bytes(&left, "f")[length..].iter().all(|byte| *byte == 0));
        let used = (1 << 40) - backing.space().unwrap().free_bytes;
        assert_eq!(used, file.stat().unwrap().blocks * 512);
    }
}

/// A failed sync gives up the pages with the cut. A later sync saves the length.
#[test]
fn what_a_length_cuts_off_stays_away_that_was_saved_without_the_pages() {
    let (disk, _, file) = with_file();
    file.write_at(0, &vec![1; 3 * PAGE]).unwrap();
    file.sync().unwrap();
    file.set_len(PAGE_BYTES).unwrap();
    disk.fail_call(CallClass::Sync, 1, Errno::Io);
    file.sync().unwrap_err();
    for length in [2 * PAGE_BYTES, PAGE_BYTES] {
        file.set_len(length).unwrap();
    }
    file.sync().unwrap();
    let left = disk.after_power_loss(Survivors::Nothing, 1);
    let file = left.mount().open("f").unwrap();
    file.set_len(3 * PAGE_BYTES).unwrap();
    assert_eq!(
        bytes(&left, "f"),
        [vec![1; PAGE], vec![0; 2 * PAGE]].concat()
    );
}

#[test]
fn holes_zeros_and_reserved_space_are_changes_too() {
    let (disk, _, file) = with_file();
    file.write_at(0, &vec![1; 2 * PAGE]).unwrap();
    file.sync().unwrap();
    file.punch_hole(0, PAGE_BYTES).unwrap();
    file.zero_range(PAGE_BYTES, PAGE_BYTES, false).unwrap();
    file.allocate(2 * PAGE_BYTES, PAGE_BYTES, true).unwrap();
    let mut blocks = BTreeSet::new();
    for seed in 0..100 {
        let left = disk.after_power_loss(HALF, seed);
        blocks.insert(left.mount().stat("f").unwrap().blocks);
    }
    assert_eq!(blocks, [8, 16, 24].into());
    let all = [[0, 0], [0, 1], [1, 0], [1, 1]].map(|pages| pages.to_vec());
    assert_eq!(pages(&outcomes(&disk, "f")), all.into());
}

#[test]
fn memory_of_tables_is_lost_by_pages_and_saved_by_a_sync_of_the_file() {
    let (disk, backing) = mounted();
    let table = backing.open_table("t", 2 * PAGE).unwrap();
    backing.sync_all().unwrap();
    let file = backing.open("t").unwrap();
    table.store(0, &[1]);
    table.store(PAGE, &[1]);
    file.sync().unwrap();
    table.store(0, &[2]);
    table.store(PAGE, &[2]);
    let all = [[1, 1], [1, 2], [2, 1], [2, 2]].map(|pages| pages.to_vec());
    assert_eq!(pages(&outcomes(&disk, "t")), all.into());
}

/// The state that reads see after a power loss is on the disk: another power loss takes nothing more.
#[test]
fn a_power_loss_settles_everything() {
    let (disk, backing, file) = with_file();
    file.write_at(0, &vec![1; 8 * PAGE]).unwrap();
    backing.open_or_create("g").unwrap();
    for seed in 0..20 {
        let once = disk.after_power_loss(HALF, seed);
        assert_eq!(once.unsynced(), 0);
        let twice = once.after_power_loss(Survivors::Nothing, seed);
        assert_eq!(once.digest(), twice.digest());
        assert!(file.sync().is_ok(), "the fork was not this disk");
        file.write_at(0, &vec![2; 8 * PAGE]).unwrap();
    }
}

#[test]
fn the_process_is_gone_after_a_power_loss() {
    let (disk, backing, file) = with_file();
    disk.power_loss(&mut Random::new(1));
    assert!(backing.exists("f").is_err());
    assert!(file.write_at(0, b"x").is_err());
    assert!(disk.mount().exists("f").unwrap());
}

#[test]
fn the_same_chance_leaves_the_same_disk() {
    let (disk, backing, file) = with_file();
    file.write_at(0, &vec![1; 100 * PAGE]).unwrap();
    backing.open_or_create("d/g").unwrap();
    let digests = |seed| {
        let mut random = Random::new(seed);
        let left = disk.fork();
        left.power_loss(&mut random);
        (left.digest(), random.any())
    };
    let all: BTreeSet<_> = (0..50).map(digests).collect();
    assert_eq!(all, (0..50).map(digests).collect());
    assert!(all.len() > 40);
}

/// A slot of a table may be stored without end: the list of its states is thinned, but keeps the first and
/// the last state.
#[test]
fn many_states_of_one_page_are_bounded() {
    let (disk, backing) = mounted();
    let table = backing.open_table("t", PAGE).unwrap();
    backing.sync_all().unwrap();
    for number in 1..100_000_u32 {
        table.store(0, &number.to_le_bytes());
    }
    assert_eq!(disk.unsynced(), 1);
    let left = outcomes(&disk, "t");
    let numbers = left
        .iter()
        .flatten()
        .map(|bytes| u32::from_le_bytes(bytes[..4].try_into().unwrap()));
    let numbers: BTreeSet<_> = numbers.collect();
    assert!(numbers.contains(&0) && numbers.contains(&99_999));
    assert!((4..18).contains(&numbers.len()), "{numbers:?}");
}
