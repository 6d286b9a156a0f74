//! The checked blocks below the store, on their own.

use std::sync::Arc;

use lockstep_fs::kv::blocks::{BLOCK_BYTES, BlockFile, HEADER_BYTES_MAX};
use lockstep_types::backing::Backing;

use crate::disk::{MemoryDisk, MemoryFile};

const PATH: &str = "blocks";

/// A synced space of four blocks, whose header is "first".
fn made() -> (BlockFile, Arc<MemoryFile>) {
    let disk = MemoryDisk::default();
    let blocks = BlockFile::create(disk.open_or_create(PATH).unwrap()).unwrap();
    blocks.set_length(4 * BLOCK_BYTES).unwrap();
    blocks.write(0, b"first").unwrap();
    blocks.sync().unwrap();
    (blocks, disk.file(PATH))
}

fn open(content: Vec<u8>) -> std::io::Result<BlockFile> {
    BlockFile::open(MemoryDisk::with(PATH, content).open(PATH).unwrap())
}

#[test]
fn a_new_space_opens_again_after_its_first_sync() {
    let (_, file) = made();
    let again = open(file.content()).unwrap();
    assert_eq!(again.header().unwrap(), b"first");
    assert_eq!(again.length(), 4 * BLOCK_BYTES);
}

#[test]
fn blocks_come_back_and_those_never_written_do_not() {
    let (blocks, _) = made();
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
    let (blocks, file) = made();
    blocks.write(0, b"second").unwrap();
    assert_eq!(blocks.header().unwrap(), b"second");
    for (is_kept, expected) in [(false, &b"first"[..]), (true, b"second")] {
        let image = file.after_power_loss(|| is_kept);
        assert_eq!(open(image).unwrap().header().unwrap(), expected);
    }
}

#[test]
fn the_file_is_cut_only_after_a_header_says_so() {
    let (blocks, file) = made();
    let whole = file.content().len();
    blocks.set_length(2 * BLOCK_BYTES).unwrap();
    blocks.sync().unwrap();
    assert_eq!(file.content().len(), whole, "the header still says four");
    blocks.write(0, b"second").unwrap();
    assert_eq!(file.content().len(), whole, "the header may still be lost");
    blocks.sync().unwrap();
    assert!(file.content().len() < whole);
    assert_eq!(open(file.content()).unwrap().length(), 2 * BLOCK_BYTES);
}

#[test]
fn a_file_on_trial_is_not_changed_until_it_is_accepted() {
    let (_, file) = made();
    let disk = MemoryDisk::with(PATH, file.content());
    let again = BlockFile::open(disk.open(PATH).unwrap()).unwrap();
    again.write(0, b"second").unwrap();
    assert_eq!(again.header().unwrap(), b"second");
    assert!(again.write(BLOCK_BYTES, &[1; 4096]).is_err());
    assert!(again.set_length(9 * BLOCK_BYTES).is_err());
    assert_eq!(disk.file(PATH).content(), file.content());
    again.accept().unwrap();
    let accepted = open(disk.file(PATH).content()).unwrap();
    assert_eq!(accepted.header().unwrap(), b"second");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (blocks, _) = made();
    assert!(blocks.write(0, &[0; HEADER_BYTES_MAX + 1]).is_err());
    assert!(blocks.write(BLOCK_BYTES, &[0; 100]).is_err());
    assert!(blocks.write(100, &[0; 4096]).is_err());
    assert!(blocks.set_length(100).is_err());
    blocks.stop();
    assert!(blocks.write(BLOCK_BYTES, &[0; 4096]).is_err());
    assert!(blocks.sync().is_err());
}
