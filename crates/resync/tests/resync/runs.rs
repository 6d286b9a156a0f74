//! Runs of blocks, and runs of records, are compared by one hash each while they are equal. Only a run that differs is compared block by
//! block, or sent.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_fs::StoreView;
use lockstep_repl::message::{Request, Response};
use lockstep_resync::{Peer, PeerError};
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use lockstep_types::{Ino, NodeKind};

use super::converge::{assert_equal, resync};
use super::nodes::{FreeLocks, LocalPeer, Node};

const RUNS: usize = 6;
const RUN_BYTES: u64 = WRITE_BYTES_MAX as u64;

/// A secondary that notes the comparisons of content: the offset, and whether it was by blocks.
struct NotingPeer<'a> {
    secondary: LocalPeer<'a>,
    compared: Mutex<Vec<(u64, bool)>>,
}

impl Peer for NotingPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let compared = match &request {
            Request::CompareRun { offset, .. } => Some((*offset, false)),
            Request::CompareBlocks { offset, .. } => Some((*offset, true)),
            _ => None,
        };
        self.compared.lock().unwrap().extend(compared);
        self.secondary.ask(request, payload)
    }
}

/// The comparisons of a resync of both nodes, by the number of the run.
fn compared(primary: &Node, secondary: &Node) -> Vec<(u64, bool)> {
    let peer = NotingPeer {
        secondary: LocalPeer::new(secondary),
        compared: Mutex::default(),
    };
    resync(primary, &peer, &FreeLocks).unwrap();
    assert_equal(primary, secondary);
    let compared = peer.compared.into_inner().unwrap();
    let by_number = |(offset, by_blocks)| (offset / RUN_BYTES, by_blocks);
    compared.into_iter().map(by_number).collect()
}

/// A file whose last run ends within a block, on both nodes.
fn equal_nodes() -> (Node, Node, Ino) {
    let (primary, secondary) = (Node::new(), Node::new());
    let bytes = (0..RUNS * WRITE_BYTES_MAX - 100).map(|at| u8::try_from(at % 251).unwrap());
    let ino = primary.file("long", &bytes.collect::<Vec<_>>());
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    (primary, secondary, ino)
}

#[test]
fn equal_runs_cost_one_hash_each() {
    let (primary, secondary, _) = equal_nodes();
    let expected: Vec<_> = (0..RUNS as u64).map(|run| (run, false)).collect();
    assert_eq!(compared(&primary, &secondary), expected);
}

#[test]
fn only_a_run_that_differs_is_compared_by_its_blocks() {
    let (primary, secondary, ino) = equal_nodes();
    let at = 2 * RUN_BYTES + 5 * BLOCK_BYTES as u64;
    let content = File::options()
        .write(true)
        .open(secondary.content_path(ino));
    content.unwrap().write_all_at(b"flipped", at).unwrap();
    let compared = compared(&primary, &secondary);
    // Runs that are under way at the answer are asked for by one hash; a run after that by its blocks, until one is equal.
    assert!(compared.contains(&(2, false)) && compared.contains(&(2, true)));
    assert!(!compared.contains(&(0, true)) && !compared.contains(&(1, true)));
    let by_blocks = compared.iter().filter(|(_, by_blocks)| *by_blocks).count();
    assert!(by_blocks < RUNS - 1, "{compared:?}");
}

#[test]
fn a_block_that_takes_no_space_makes_a_run_different() {
    let (primary, secondary) = (Node::new(), Node::new());
    let ino = primary.file("zeros", &vec![0; 2 * WRITE_BYTES_MAX]);
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    // The last block of the first run becomes a hole.
    let path = secondary.content_path(ino);
    let content = File::create(path).unwrap();
    content.set_len(2 * RUN_BYTES).unwrap();
    let zeros = vec![0; WRITE_BYTES_MAX];
    content.write_all_at(&zeros, RUN_BYTES).unwrap();
    let before = zeros.len() - BLOCK_BYTES;
    content.write_all_at(&zeros[..before], 0).unwrap();
    let compared = compared(&primary, &secondary);
    assert!(compared.contains(&(0, true)), "{compared:?}");
    let hole = secondary.store().tree().next_hole(ino, 0).unwrap();
    assert!(hole >= 2 * RUN_BYTES, "a hole at {hole}");
}

/// Many files, on both nodes.
const FILES: u64 = 3000;

/// A secondary that counts the comparisons and the chunks of records.
struct CountingPeer<'a> {
    secondary: LocalPeer<'a>,
    compared: AtomicU64,
    sent: AtomicU64,
}

impl Peer for CountingPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let count = match &request {
            Request::CompareRecords { .. } => Some(&self.compared),
            Request::ImageChunk => Some(&self.sent),
            _ => None,
        };
        count.map(|count| count.fetch_add(1, Ordering::Relaxed));
        self.secondary.ask(request, payload)
    }
}

/// How many runs of records a resync of both nodes compares and sends.
fn runs_of_records(primary: &Node, secondary: &Node) -> (u64, u64) {
    let peer = CountingPeer {
        secondary: LocalPeer::new(secondary),
        compared: AtomicU64::new(0),
        sent: AtomicU64::new(0),
    };
    resync(primary, &peer, &FreeLocks).unwrap();
    assert_equal(primary, secondary);
    (peer.compared.into_inner(), peer.sent.into_inner())
}

fn nodes_with_files() -> (Node, Node) {
    let (primary, secondary) = (Node::new(), Node::new());
    for number in 0..FILES {
        primary.create(Ino::ROOT, &format!("file {number}"), NodeKind::File);
    }
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    (primary, secondary)
}

#[test]
fn equal_records_are_not_sent() {
    let (primary, secondary) = nodes_with_files();
    let (compared, sent) = runs_of_records(&primary, &secondary);
    assert!(
        compared >= 8 && sent == 0,
        "{compared} compared, {sent} sent"
    );
}

#[test]
fn a_record_that_differs_costs_few_runs() {
    let (primary, secondary) = nodes_with_files();
    primary.xattr(Ino::new(1500).unwrap(), "user.name", b"value");
    let (compared, sent) = runs_of_records(&primary, &secondary);
    // The record of the inode, and the record of its attribute; after each of them one run goes uncompared.
    assert!(
        compared >= 6 && (1..=6).contains(&sent),
        "{compared} compared, {sent} sent"
    );
}

#[test]
fn records_of_an_empty_copy_are_hardly_compared() {
    let (primary, _) = nodes_with_files();
    let (compared, sent) = runs_of_records(&primary, &Node::new());
    assert!(
        compared < 20 && sent > 0,
        "{compared} compared, {sent} sent"
    );
}
