//! The checked blocks below the store, without the store.

use lockstep_fs::kv::blocks::{BLOCK_BYTES, BlockFile, HEADER_BYTES_MAX};
use lockstep_lossy::disk::{Disk, Survivors};

use crate::{content, disk_with};

const PATH: &str = "blocks";

/// A synced space of four blocks, whose header is "first".
fn new_space() -> (BlockFile, Disk) {
    let disk = disk_with(PATH, b"");
    let blocks = BlockFile::create(disk.mount().open(PATH).unwrap()).unwrap();
    blocks.set_length(4 * BLOCK_BYTES).unwrap();
    blocks.write(0, b"first").unwrap();
    blocks.sync().unwrap();
    (blocks, disk)
}

fn open(disk: &Disk) -> std::io::Result<BlockFile> {
    BlockFile::open(disk.fork().mount().open(PATH).unwrap())
}

#[test]
fn a_new_space_opens_again_after_its_first_sync() {
    let (_, disk) = new_space();
    let again = open(&disk).unwrap();
    assert_eq!(again.header().unwrap(), b"first");
    assert_eq!(again.length(), 4 * BLOCK_BYTES);
}

#[test]
fn blocks_come_back_and_those_never_written_do_not() {
    let (blocks, _) = new_space();
    let two = [[1; 4096], [2; 4096]].concat();
    blocks.write(BLOCK_BYTES, &two).unwrap();
    let mut back = vec![0; 8192];
    blocks.read(BLOCK_BYTES, &mut back).unwrap();
    assert_eq!(back, two);
    assert!(blocks.read(2 * BLOCK_BYTES, &mut back).is_err());
    assert!(blocks.read(9 * BLOCK_BYTES, &mut back).is_err());
}

#[test]
fn a_header_is_written_whole_or_not_at_all() {
    let (blocks, disk) = new_space();
    blocks.write(0, b"second").unwrap();
    assert_eq!(blocks.header().unwrap(), b"second");
    for (survivors, expected) in [
        (Survivors::Nothing, &b"first"[..]),
        (Survivors::Everything, b"second"),
    ] {
        let left = disk.after_power_loss(survivors, 0);
        assert_eq!(open(&left).unwrap().header().unwrap(), expected);
    }
}

#[test]
fn the_file_is_cut_only_after_a_header_says_so() {
    let (blocks, disk) = new_space();
    let length = || content(&disk, PATH).len();
    let whole = length();
    blocks.set_length(2 * BLOCK_BYTES).unwrap();
    blocks.sync().unwrap();
    assert_eq!(length(), whole, "the header still says four");
    blocks.write(0, b"second").unwrap();
    assert_eq!(length(), whole, "the header may still be lost");
    blocks.sync().unwrap();
    assert!(length() < whole);
    assert_eq!(open(&disk).unwrap().length(), 2 * BLOCK_BYTES);
}

#[test]
fn a_file_on_trial_is_not_changed_until_it_is_accepted() {
    let (_, disk) = new_space();
    let before = content(&disk, PATH);
    let again = BlockFile::open(disk.mount().open(PATH).unwrap()).unwrap();
    again.write(0, b"second").unwrap();
    assert_eq!(again.header().unwrap(), b"second");
    assert!(again.write(BLOCK_BYTES, &[1; 4096]).is_err());
    assert!(again.set_length(9 * BLOCK_BYTES).is_err());
    assert_eq!(content(&disk, PATH), before);
    again.accept().unwrap();
    let accepted = open(&disk).unwrap();
    assert_eq!(accepted.header().unwrap(), b"second");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (blocks, _) = new_space();
    assert!(blocks.write(0, &[0; HEADER_BYTES_MAX + 1]).is_err());
    assert!(blocks.write(BLOCK_BYTES, &[0; 100]).is_err());
    assert!(blocks.write(100, &[0; 4096]).is_err());
    assert!(blocks.set_length(100).is_err());
    blocks.stop();
    assert!(blocks.write(BLOCK_BYTES, &[0; 4096]).is_err());
    assert!(blocks.sync().is_err());
}
