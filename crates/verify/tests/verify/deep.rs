//! Deep comparisons of two real stores: the wrong side of a block, and its repair. The sums are those of a fake.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_fs::{OpError, StoreView};
use lockstep_repl::message::{ContentSource, Request, Response};
use lockstep_resync::{JobProgress, Peer, PeerError, ResyncSource, send_content};
use lockstep_sums::{BlockSum, FileSum, SumKey, SumSecret};
use lockstep_types::{Hash128, Ino};
use lockstep_verify::kept_blocks::BAD_BLOCKS_DIR;
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::secondary::is_deep;
use lockstep_verify::{
    BlockVerdict, DeepCopy, DifferenceKind, OwnSums, RepairError, RepairOutcome, Report, Side,
    answer_deep, compare_deep, compare_fast,
};
use parking_lot::Mutex;

use super::nodes::{FreeLocks, LocalPeer, Node, send_namespace};

const BLOCK: usize = 4096;
/// Bytes of the short file: its last block is not whole.
const SHORT: usize = 5 * BLOCK + 100;
/// Bytes of the long file, in pieces of 1 MiB.
const LONG: usize = 3 << 20;

/// Sums that were made when the content was right.
struct FakeSums {
    key: Arc<SumKey>,
    blocks: Mutex<HashMap<(Ino, u64), Option<BlockSum>>>,
}

impl FakeSums {
    fn of(node: &Node, files: &[(Ino, usize)]) -> Self {
        let sums = Self {
            key: Arc::new(SumKey::new(&SumSecret::new([5; 32]))),
            blocks: Mutex::default(),
        };
        for (ino, length) in files {
            let mut bytes = vec![0; *length];
            node.store().tree().read_raw(*ino, 0, &mut bytes).unwrap();
            sums.set_right(*ino, 0, &bytes).unwrap();
        }
        sums
    }

    fn set(&self, ino: Ino, block: u64, sum: Option<u64>) {
        let sum = sum.map(BlockSum::from);
        self.blocks.lock().insert((ino, block), sum);
    }
}

impl OwnSums for FakeSums {
    fn key(&self) -> Arc<SumKey> {
        Arc::clone(&self.key)
    }

    fn blocks(&self, ino: Ino, first: u64, count: u64) -> Result<Vec<Option<BlockSum>>, OpError> {
        let blocks = self.blocks.lock();
        let sum = |number| blocks.get(&(ino, number)).copied();
        let sums =
            (first..first + count).map(|number| sum(number).unwrap_or(Some(BlockSum::ZEROS)));
        Ok(sums.collect())
    }

    fn file(&self, ino: Ino) -> Result<Option<FileSum>, OpError> {
        let blocks = self.blocks.lock();
        let of_file = blocks.iter().filter(|((of, _), _)| *of == ino);
        let sums: Option<Vec<_>> = of_file
            .map(|((_, number), sum)| Some((*number, (*sum)?)))
            .collect();
        Ok(sums.map(|sums| FileSum::of(&self.key, sums)))
    }

    fn set_right(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        let mut blocks = self.blocks.lock();
        for (number, bytes) in (offset / BLOCK as u64..).zip(bytes.chunks(BLOCK)) {
            blocks.insert((ino, number), Some(self.key.block(bytes)));
        }
        Ok(())
    }
}

/// A secondary that answers deep questions, too.
struct DeepPeer<'a> {
    others: LocalPeer<'a>,
    copy: DeepCopy<'a>,
}

impl Peer for DeepPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        if !is_deep(&request) {
            return self.others.ask(request, payload);
        }
        let what = "answer";
        let failed = |reason| PeerError::Failed { what, reason };
        let response = answer_deep(self.copy, &request, payload).map_err(failed)?;
        let bytes = postcard::to_allocvec(&response).unwrap();
        assert!(bytes.len() < 128 << 10, "it fits the header of a frame");
        Ok(postcard::from_bytes(&bytes).unwrap())
    }
}

/// Two equal nodes with a short and a long file, and their sums.
struct Pair {
    nodes: [Node; 2],
    sums: [FakeSums; 2],
    short: Ino,
    long: Ino,
}

/// Different bytes in each block of each file.
fn content(seed: u8, length: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at / BLOCK * 31 + at) % 251).unwrap() ^ seed;
    (0..length).map(byte).collect()
}

impl Pair {
    fn new() -> Self {
        let primary = Node::new();
        let secret = SumSecret::new([6; 32]);
        primary.store().sums().take_secret(&secret).unwrap();
        let short = primary.file("short", &content(1, SHORT));
        let long = primary.file("long", &content(2, LONG));
        let mut secondary = Node::new();
        secondary.store().sums().take_secret(&secret).unwrap();
        let peer = LocalPeer::new(&secondary);
        send_namespace(primary.store(), &peer).unwrap();
        let view = primary.store().tree();
        let source = ResyncSource::new(&view, primary.store());
        let progress = JobProgress::default();
        send_content(source, &peer, &FreeLocks, &progress, None, &drop).unwrap();
        secondary.store().close().unwrap();
        secondary.restart();
        secondary.later_than(1000);
        let nodes = [primary, secondary];
        let files = [(short, SHORT), (long, LONG)];
        let sums = nodes.each_ref().map(|node| FakeSums::of(node, &files));
        Self {
            nodes,
            sums,
            short,
            long,
        }
    }

    fn copy(&self, side: Side) -> DeepCopy<'_> {
        let number = usize::from(side == Side::There);
        DeepCopy {
            store: self.nodes[number].store(),
            sums: &self.sums[number],
        }
    }

    fn compare(&self, repairs: bool) -> Report {
        let peer = DeepPeer {
            others: LocalPeer::new(&self.nodes[1]),
            copy: self.copy(Side::There),
        };
        let progress = JobProgress::default();
        compare_deep(self.copy(Side::Here), &peer, &FreeLocks, &progress, repairs).unwrap()
    }

    /// The verdicts of a comparison: the number of the first block, the number of blocks, and the verdict.
    fn verdicts(&self, repairs: bool) -> Vec<(Ino, u64, u64, BlockVerdict)> {
        let report = self.compare(repairs);
        assert_eq!(report.total, report.differences.len() as u64);
        let blocks = |found: &lockstep_verify::InodeDifference| {
            let DifferenceKind::Blocks {
                offset,
                length,
                verdict,
                ..
            } = found.what
            else {
                panic!("{found}");
            };
            let block = BLOCK as u64;
            let ino = Ino::new(found.ino).unwrap();
            (ino, offset / block, length.div_ceil(block), verdict)
        };
        report.differences.iter().map(blocks).collect()
    }

    fn flip(&self, side: Side, ino: Ino, block: usize) {
        let at = (block * BLOCK + 7) as u64;
        let file = self.file(side, ino);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }

    fn file(&self, side: Side, ino: Ino) -> std::fs::File {
        let node = &self.nodes[usize::from(side == Side::There)];
        let path = node.content_path(ino);
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).open(path).unwrap()
    }

    fn bytes(&self, side: Side, ino: Ino) -> Vec<u8> {
        let node = &self.nodes[usize::from(side == Side::There)];
        std::fs::read(node.content_path(ino)).unwrap()
    }

    #[track_caller]
    fn assert_right(&self) {
        for side in [Side::Here, Side::There] {
            assert!(self.bytes(side, self.short) == content(1, SHORT), "{side}");
            assert!(self.bytes(side, self.long) == content(2, LONG), "{side}");
        }
        assert_eq!(self.verdicts(false), []);
        assert_eq!(self.compare(false).void_blocks, 0);
    }

    /// The names of the blocks that a node has kept aside, without their hashes.
    fn kept(&self, side: Side) -> Vec<String> {
        let node = &self.nodes[usize::from(side == Side::There)];
        let Ok(entries) = std::fs::read_dir(node.path(BAD_BLOCKS_DIR)) else {
            return Vec::new();
        };
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.rsplit_once('-').unwrap().0.to_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

#[test]
fn equal_copies_that_fit_their_sums_are_identical() {
    let pair = Pair::new();
    pair.assert_right();
    let report = pair.compare(true);
    assert!(report.is_identical());
    assert_eq!(
        (pair.kept(Side::Here), pair.kept(Side::There)),
        (vec![], vec![])
    );
}

#[test]
fn the_wrong_side_of_each_block_is_named_and_healed() {
    let pair = Pair::new();
    let flips = [
        (Side::Here, pair.short, 0),
        (Side::There, pair.short, 2),
        // The last block is not whole.
        (Side::Here, pair.short, 5),
        (Side::Here, pair.long, 3),
        (Side::There, pair.long, 4),
        (Side::There, pair.long, 255),
        (Side::There, pair.long, 256),
        (Side::Here, pair.long, 600),
    ];
    for (side, ino, block) in flips {
        pair.flip(side, ino, block);
    }
    let named: Vec<_> = pair
        .verdicts(false)
        .into_iter()
        .flat_map(|(ino, first, count, verdict)| {
            (first..first + count).map(move |block| (ino, block, verdict))
        })
        .collect();
    let planted = |&(side, ino, block): &(Side, Ino, usize)| {
        let block = u64::try_from(block).unwrap();
        (ino, block, BlockVerdict::WrongBytes(side))
    };
    assert_eq!(named, flips.iter().map(planted).collect::<Vec<_>>());
    assert!(
        pair.bytes(Side::Here, pair.short) != content(1, SHORT),
        "nothing is changed"
    );

    let report = pair.compare(true);
    assert_eq!(
        (report.is_identical(), report.healed),
        (true, 7),
        "{report:#?}"
    );
    pair.assert_right();
    let of_short = ["0", "5"].map(|block| format!("{}-{block}", pair.short));
    for block in of_short {
        for version in ["wrong", "right"] {
            let name = format!("{block}-{version}");
            assert!(pair.kept(Side::Here).contains(&name), "{name}");
        }
    }
    assert_eq!(pair.kept(Side::There).len(), 8);
}

#[test]
fn a_block_that_is_wrong_on_both_nodes_is_kept_and_not_healed() {
    let pair = Pair::new();
    pair.flip(Side::Here, pair.short, 1);
    pair.flip(Side::There, pair.short, 1);
    // The same bit on both: the digests are equal.
    let here = pair.bytes(Side::Here, pair.short);
    assert!(here == pair.bytes(Side::There, pair.short));
    // Another one in the long file.
    pair.flip(Side::Here, pair.long, 300);
    pair.file(Side::There, pair.long)
        .write_all_at(b"rot", (300 * BLOCK) as u64)
        .unwrap();
    let there = pair.bytes(Side::There, pair.long);
    let none = BlockVerdict::NoneKnownRight;
    let expected = [(pair.short, 1, 1, none), (pair.long, 300, 1, none)];
    assert_eq!(pair.verdicts(false), expected);
    assert_eq!(pair.kept(Side::Here), [""; 0]);
    let report = pair.compare(true);
    assert_eq!((report.total, report.healed), (2, 0));
    for found in &report.differences {
        let DifferenceKind::Blocks { repair, .. } = &found.what else {
            panic!("{found}");
        };
        assert_eq!(*repair, RepairOutcome::Undecided { kept: true });
    }
    assert!(here == pair.bytes(Side::Here, pair.short));
    assert!(there == pair.bytes(Side::There, pair.long));
    let kept = [
        format!("{}-1-undecided", pair.short),
        format!("{}-300-undecided", pair.long),
    ];
    assert_eq!(pair.kept(Side::Here), kept);
    assert_eq!(pair.kept(Side::There), kept);
}

#[test]
fn a_wrong_sum_is_named_and_made_anew() {
    let pair = Pair::new();
    pair.sums[0].set(pair.short, 5, Some(77));
    pair.sums[1].set(pair.long, 700, Some(78));
    let expected = [
        (pair.short, 5, 1, BlockVerdict::WrongSum(Side::Here)),
        (pair.long, 700, 1, BlockVerdict::WrongSum(Side::There)),
    ];
    assert_eq!(pair.verdicts(false), expected);
    assert_eq!(pair.verdicts(true), expected);
    pair.assert_right();
    assert_eq!(pair.kept(Side::Here), [""; 0]);
}

#[test]
fn a_void_sum_says_nothing_until_the_copies_are_found_equal() {
    let pair = Pair::new();
    pair.sums[0].set(pair.short, 1, None);
    pair.sums[1].set(pair.long, 9, None);
    // A bit of another copy than that of the void sum, and of the same one.
    pair.flip(Side::There, pair.short, 1);
    pair.flip(Side::There, pair.long, 9);
    let unknown = BlockVerdict::UnknownByVoid;
    let expected = [(pair.short, 1, 1, unknown), (pair.long, 9, 1, unknown)];
    assert_eq!(pair.verdicts(true), expected, "nothing is healed");
    pair.flip(Side::There, pair.short, 1);
    pair.flip(Side::There, pair.long, 9);
    let report = pair.compare(false);
    assert_eq!((report.total, report.void_blocks), (0, 2));
    pair.assert_right();
}

/// No sum vouches for a block, and both disks have the same bytes: from then on both sums are of these.
#[test]
fn sums_that_are_void_on_both_nodes_are_made_of_equal_bytes_only() {
    let pair = Pair::new();
    for (ino, block) in [
        (pair.short, 1),
        (pair.short, 2),
        (pair.long, 9),
        (pair.long, 700),
    ] {
        pair.sums.iter().for_each(|sums| sums.set(ino, block, None));
    }
    pair.flip(Side::Here, pair.short, 2);
    pair.flip(Side::There, pair.long, 700);
    let unknown = BlockVerdict::UnknownByVoid;
    let expected = [(pair.short, 2, 1, unknown), (pair.long, 700, 1, unknown)];
    assert_eq!(pair.verdicts(false), expected);
    let report = pair.compare(false);
    assert_eq!(report.void_blocks, 4, "the blocks that differ have no sums");
    pair.flip(Side::Here, pair.short, 2);
    pair.flip(Side::There, pair.long, 700);
    assert_eq!(pair.compare(false).total, 0);
    pair.assert_right();
}

/// A disk that has lost the place of bytes shows a hole.
#[test]
fn bytes_that_have_become_a_hole_are_found_on_one_node_and_on_both() {
    let pair = Pair::new();
    let piece = |side: Side| {
        let file = pair.file(side, pair.long);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 1 << 20, 1 << 20).unwrap();
    };
    piece(Side::There);
    let wrong = BlockVerdict::WrongBytes(Side::There);
    assert_eq!(pair.verdicts(true), [(pair.long, 256, 256, wrong)]);
    pair.assert_right();
    piece(Side::Here);
    piece(Side::There);
    let none = BlockVerdict::NoneKnownRight;
    assert_eq!(pair.verdicts(false), [(pair.long, 256, 256, none)]);
}

#[test]
fn copies_that_differ_and_fit_their_sums_stay_as_they_are() {
    let pair = Pair::new();
    pair.flip(Side::There, pair.short, 2);
    let bytes = pair.bytes(Side::There, pair.short);
    pair.sums[1].set_right(pair.short, 0, &bytes).unwrap();
    let differ = [(pair.short, 2, 1, BlockVerdict::CopiesDiffer)];
    assert_eq!(pair.verdicts(true), differ);
    assert_eq!(pair.verdicts(false), differ);
    assert_eq!(
        pair.kept(Side::Here).len() + pair.kept(Side::There).len(),
        2
    );
}

/// A repair checks each block at the place where the block is changed, whichever question led to the repair.
#[test]
fn a_repair_changes_no_block_without_its_own_look() {
    let pair = Pair::new();
    let copy = pair.copy(Side::There);
    let right = content(1, SHORT)[..BLOCK].to_vec();
    let mut other = right.clone();
    other[9] ^= 1;
    let refused = copy.heal(pair.short, 0, &other);
    assert!(matches!(refused, Err(RepairError::NotWrong { block: 0 })));
    pair.flip(Side::There, pair.short, 0);
    let rotten = pair.bytes(Side::There, pair.short);
    let refused = copy.heal(pair.short, 0, &other);
    assert!(matches!(refused, Err(RepairError::NotRight { block: 0 })));
    let refused = copy.remake(pair.short, 0, &[Hash128::of(&right)]);
    assert!(matches!(refused, Err(RepairError::NotRight { block: 0 })));
    pair.sums[1].set(pair.short, 0, None);
    let refused = copy.heal(pair.short, 0, &right);
    assert!(matches!(refused, Err(RepairError::NotWrong { block: 0 })));
    assert!(pair.bytes(Side::There, pair.short) == rotten);
    assert_eq!(pair.kept(Side::There), [""; 0]);
    let outside = copy.heal(pair.short, 1 << 40, &right);
    assert!(outside.is_err());
}

/// The same with the sums that the stores keep, over a close and an opening of the secondary.
#[test]
fn the_sums_that_the_stores_keep_name_the_wrong_side() {
    let pair = Pair::new();
    let kept = pair
        .nodes
        .each_ref()
        .map(|node| StoreSums::of(node.store()));
    let copy = |number: usize| DeepCopy {
        store: pair.nodes[number].store(),
        sums: &kept[number],
    };
    let compare = |repairs| {
        let peer = DeepPeer {
            others: LocalPeer::new(&pair.nodes[1]),
            copy: copy(1),
        };
        compare_deep(copy(0), &peer, &FreeLocks, &JobProgress::default(), repairs).unwrap()
    };
    let report = compare(false);
    assert_eq!((report.total, report.void_blocks), (0, 0), "{report:#?}");
    pair.flip(Side::Here, pair.short, 5);
    pair.flip(Side::There, pair.short, 1);
    pair.flip(Side::Here, pair.long, 40);
    pair.flip(Side::There, pair.long, 700);
    let report = compare(true);
    assert_eq!((report.total, report.healed), (4, 4), "{report:#?}");
    let report = compare(false);
    assert_eq!((report.total, report.void_blocks), (0, 0), "{report:#?}");
    pair.assert_right();
    let totals = pair
        .nodes
        .each_ref()
        .map(|node| node.store().sums().totals());
    assert!(
        totals.iter().all(|totals| totals.mismatches == 0),
        "no write has met a wrong block"
    );
}

/// A peer that counts the bytes on the wire and the questions about content.
struct CountingPeer<'a> {
    peer: DeepPeer<'a>,
    bytes: AtomicU64,
    of_content: AtomicU64,
}

impl Peer for CountingPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let asked = postcard::to_allocvec(&request).unwrap().len() + payload.len();
        let reads = match &request {
            Request::DigestOfBatch { source, .. } | Request::Digests { source, .. } => {
                *source != ContentSource::Sums
            }
            Request::CompareBlocks { .. } | Request::CompareHole { .. } => true,
            _ => false,
        };
        let response = self.peer.ask(request, payload)?;
        let answered = postcard::to_allocvec(&response).unwrap().len();
        self.bytes
            .fetch_add((asked + answered) as u64, Ordering::Relaxed);
        self.of_content
            .fetch_add(u64::from(reads), Ordering::Relaxed);
        Ok(response)
    }
}

impl Pair {
    /// The report of a fast comparison, and the number of questions about content.
    fn compare_fast(&self) -> (Report, u64) {
        let peer = CountingPeer {
            peer: DeepPeer {
                others: LocalPeer::new(&self.nodes[1]),
                copy: self.copy(Side::There),
            },
            bytes: AtomicU64::new(0),
            of_content: AtomicU64::new(0),
        };
        let progress = JobProgress::default();
        let report = compare_fast(self.copy(Side::Here), &peer, &FreeLocks, &progress).unwrap();
        assert!(peer.bytes.into_inner() < 20_000, "little crosses the wire");
        (report, peer.of_content.into_inner())
    }
}

#[test]
fn a_fast_comparison_reads_no_content_whose_sums_are_equal() {
    let pair = Pair::new();
    let (report, asked) = pair.compare_fast();
    assert_eq!((report.total, report.inodes, asked), (0, 3, 0));
    // A sum that is void on either node or on both, or wrong, has the content read: that is equal.
    pair.sums[0].set(pair.short, 1, None);
    assert_eq!(pair.compare_fast().0.total, 0);
    assert!(pair.compare_fast().1 > 0);
    pair.sums[1].set(pair.short, 1, None);
    pair.sums[1].set(pair.long, 9, None);
    pair.sums[0].set(pair.long, 9, Some(4));
    assert_eq!(pair.compare_fast().0.total, 0);
    // A difference in a file whose sum is void is found, in a short file and in a long one.
    pair.flip(Side::There, pair.short, 3);
    pair.flip(Side::Here, pair.long, 500);
    let (report, _) = pair.compare_fast();
    assert_eq!(report.total, 2, "{report:#?}");
}

#[test]
fn a_fast_comparison_finds_a_write_that_one_node_lacks() {
    let pair = Pair::new();
    pair.nodes[0].write(pair.long, 4096, &[9; 4096]);
    let bytes = pair.bytes(Side::Here, pair.long);
    pair.sums[0].set_right(pair.long, 0, &bytes).unwrap();
    let (report, _) = pair.compare_fast();
    let content = report
        .differences
        .iter()
        .find_map(|found| match found.what {
            DifferenceKind::Content { offset, length } => Some((found.ino, offset, length)),
            _ => None,
        });
    assert_eq!(content, Some((pair.long.get(), 4096, 4096)), "{report:#?}");
}
