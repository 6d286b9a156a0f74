//! Void sums in a resync: they are made of content that both nodes have, unless a sum of the primary says that it is wrong.

use std::fs::File;
use std::os::unix::fs::FileExt;

use lockstep_sums::{SumKey, SumSecret};
use lockstep_types::Ino;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};

use super::converge::{assert_equal, resync};
use super::nodes::{FreeLocks, LocalPeer, Node};

const SECRET: [u8; 32] = [5; 32];
/// Bytes of a file that is told by its hash, and of one that is compared run by run. Both end within a block.
const SHORT: usize = 5 * BLOCK_BYTES + 100;
const LONG: usize = 3 * WRITE_BYTES_MAX - 100;
/// Bytes of a file that may be told by its bytes.
const TINY: usize = 700;

fn content(seed: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at / BLOCK_BYTES * 31 + at + seed) % 251).unwrap();
    (0..length).map(byte).collect()
}

/// Makes all sums of a node void: it takes another secret, and then that of the datastore.
pub fn make_void(node: &Node) {
    let taken = node.store().sums().take_secret(&SumSecret::new([6; 32]));
    taken.unwrap();
    take_secret(node);
}

/// Lets a node keep sums.
pub fn take_secret(node: &Node) {
    let taken = node.store().sums().take_secret(&SumSecret::new(SECRET));
    taken.unwrap();
}

/// Two equal nodes with sums.
fn nodes() -> ([Node; 2], Vec<(Ino, usize)>) {
    let nodes = [Node::new(), Node::new()];
    nodes.iter().for_each(take_secret);
    let files = [("tiny", TINY), ("short", SHORT), ("long", LONG)];
    let made = files.map(|(name, length)| (nodes[0].file(name, &content(1, length)), length));
    again(&nodes);
    (nodes, made.to_vec())
}

fn again([primary, secondary]: &[Node; 2]) {
    resync(primary, &LocalPeer::new(secondary), &FreeLocks).unwrap();
    assert_equal(primary, secondary);
}

/// The number of void blocks of a file. All other sums are those of the bytes that `content` has.
fn void_blocks(node: &Node, ino: Ino, content: &[u8]) -> usize {
    let key = SumKey::new(&SumSecret::new(SECRET));
    let blocks = content.chunks(BLOCK_BYTES);
    let sums = node.store().sums().blocks(ino, 0, blocks.len() as u64);
    let sums = sums.unwrap();
    for (sum, block) in sums.iter().zip(blocks) {
        assert!(sum.is_none_or(|sum| sum == key.block(block)));
    }
    let void = sums.iter().filter(|sum| sum.is_none()).count();
    let file = node.store().sums().file(ino).unwrap();
    assert_eq!(usize::try_from(file.void_blocks).unwrap(), void);
    void
}

#[test]
fn void_sums_are_made_of_content_that_is_equal() {
    for void in [[false, true], [true, false], [true, true]] {
        let (nodes, files) = nodes();
        for (node, is_void) in nodes.iter().zip(void) {
            if is_void {
                make_void(node);
                let (ino, length) = files[2];
                let blocks = length.div_ceil(BLOCK_BYTES);
                assert_eq!(void_blocks(node, ino, &content(1, length)), blocks);
            }
        }
        again(&nodes);
        for node in &nodes {
            for (ino, length) in &files {
                assert_eq!(void_blocks(node, *ino, &content(1, *length)), 0, "{void:?}");
            }
        }
    }
}

/// The blocks that are sent get sums, and so do those beside them, which are equal.
#[test]
fn void_sums_are_made_of_a_file_of_which_some_blocks_differ() {
    let (nodes, files) = nodes();
    let (ino, length) = files[2];
    let file = File::options().write(true).open(nodes[1].content_path(ino));
    let file = file.unwrap();
    for piece in 0..3 {
        let at = piece * WRITE_BYTES_MAX + 2 * BLOCK_BYTES;
        file.write_all_at(&[0xff], at as u64).unwrap();
    }
    nodes.iter().for_each(make_void);
    again(&nodes);
    for node in &nodes {
        assert_eq!(void_blocks(node, ino, &content(1, length)), 0);
    }
}

/// Both disks have the same wrong byte, and the primary's sum says so. The secondary makes no sum of the wrong block.
#[test]
fn a_sum_of_the_primary_keeps_wrong_bytes_from_a_sum() {
    let (nodes, files) = nodes();
    let at = 2 * BLOCK_BYTES + 9;
    for (ino, _) in &files[1..] {
        for node in &nodes {
            let file = File::options().write(true).open(node.content_path(*ino));
            file.unwrap().write_all_at(&[0xff], at as u64).unwrap();
        }
    }
    make_void(&nodes[1]);
    again(&nodes);
    let key = SumKey::new(&SumSecret::new(SECRET));
    for (ino, length) in &files[1..] {
        let kept = |node: &Node| node.store().sums().blocks(*ino, 2, 1).unwrap()[0];
        let right = &content(1, *length)[2 * BLOCK_BYTES..][..BLOCK_BYTES];
        assert_eq!(kept(&nodes[0]), Some(key.block(right)));
        assert_eq!(kept(&nodes[1]), None, "{length} bytes");
    }
}
