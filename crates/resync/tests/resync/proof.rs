//! The places that a resync has touched are compared at its end, for little (rule P33).

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_repl::message::{Request, Response};
use lockstep_resync::{
    FirstTouched, JobProgress, Peer, PeerBase, PeerError, ResyncError, ResyncSource, TouchedPlaces,
    send_again, send_content, send_image, send_tail,
};
use lockstep_sums::SumSecret;
use lockstep_types::limits::WRITE_BYTES_MAX;
use lockstep_types::{Generation, Ino};
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::{DeepCopy, Report, compare_touched};

use super::converge::assert_equal;
use super::nodes::{FreeLocks, LocalPeer, NoOperations, Node, new_resync};

const FILES: u64 = 1000;
const LONG: usize = 8 * WRITE_BYTES_MAX;

/// A secondary behind a network that counts, and that drops one piece.
struct DroppingPeer<'a> {
    secondary: LocalPeer<'a>,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// The number of the `WriteBlocks` that is answered and not carried out.
    dropped: u64,
    writes: AtomicU64,
    /// The file of that piece.
    dropped_of: Mutex<Option<Ino>>,
    /// The first inodes of the compared batches.
    digested: Mutex<Vec<u64>>,
}

impl<'a> DroppingPeer<'a> {
    fn new(secondary: &'a Node) -> Self {
        Self {
            secondary: LocalPeer::new(secondary),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            dropped: u64::MAX,
            writes: AtomicU64::new(0),
            dropped_of: Mutex::default(),
            digested: Mutex::default(),
        }
    }

    /// Messages and bytes since the last call.
    fn take_cost(&self) -> (u64, u64) {
        (
            self.messages.swap(0, Ordering::Relaxed),
            self.bytes.swap(0, Ordering::Relaxed),
        )
    }

    fn take_digested(&self) -> Vec<u64> {
        std::mem::take(&mut *self.digested.lock().unwrap())
    }
}

impl Peer for DroppingPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let asked = postcard::to_allocvec(&request).unwrap().len() + payload.len();
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(asked as u64, Ordering::Relaxed);
        if let Request::DigestOfBatch { from, .. } = request {
            self.digested.lock().unwrap().push(from);
        }
        if let Request::WriteBlocks { ino, .. } = request
            && self.writes.fetch_add(1, Ordering::Relaxed) == self.dropped
        {
            *self.dropped_of.lock().unwrap() = Some(ino);
            return Ok(Response::Done);
        }
        let response = self.secondary.ask(request, payload)?;
        let answered = postcard::to_allocvec(&response).unwrap().len();
        self.bytes.fetch_add(answered as u64, Ordering::Relaxed);
        Ok(response)
    }
}

/// Bytes of which no two blocks are equal.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| {
        let word = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.wrapping_add(seed).to_le_bytes()
    };
    (0..length as u64 / 8).flat_map(word).collect()
}

/// A primary with many short files and a long one, and an empty secondary. Both keep sums.
fn pair() -> (Node, Node, Ino) {
    let (primary, secondary) = (Node::new(), Node::new());
    for node in [&primary, &secondary] {
        take_secret(node, 1);
    }
    for number in 0..FILES {
        primary.file(&format!("short {number}"), &content(number, 4096));
    }
    let long = primary.file("long", &content(FILES, LONG));
    (primary, secondary, long)
}

/// Another secret than before makes every sum void, as a loss of power does.
fn take_secret(node: &Node, number: u8) {
    let secret = SumSecret::new([number; 32]);
    node.store().sums().take_secret(&secret).unwrap();
}

/// A resync, of the changes if the primary has them. Returns what it has touched.
fn resync(primary: &Node, peer: &DroppingPeer<'_>) -> TouchedPlaces {
    let store = primary.store();
    let view = store.tree();
    let source = ResyncSource::new(&view, store);
    let base = PeerBase {
        generation: Generation::FIRST,
        applied: peer.secondary.store.applied(),
    };
    let start = new_resync(Some(base), store);
    let image = send_image(source, peer, start, &NoOperations).unwrap();
    send_tail(source, peer, &image).unwrap();
    let progress = JobProgress::default();
    let touched = Mutex::new(TouchedPlaces::default());
    let hears = |places| touched.lock().unwrap().add(places, true);
    send_content(source, peer, &FreeLocks, &progress, Some(base), &hears).unwrap();
    touched.into_inner().unwrap()
}

fn compare_first(
    primary: &Node,
    peer: &DroppingPeer<'_>,
    first: &FirstTouched,
) -> Result<(Report, u64), ResyncError> {
    let store = primary.store();
    let sums = &StoreSums::of(store);
    let copy = DeepCopy { store, sums };
    compare_touched(copy, peer, &FreeLocks, &JobProgress::default(), first)
}

/// Compares until nothing is left. Returns what was found.
fn prove(
    primary: &Node,
    peer: &DroppingPeer<'_>,
    touched: &mut TouchedPlaces,
) -> Result<Report, ResyncError> {
    let mut report = Report::default();
    while let Some(first) = touched.first() {
        let (found, next) = compare_first(primary, peer, &first)?;
        report.add_all(found);
        touched.proved_below(next);
    }
    Ok(report)
}

/// The primary has gone on alone from two equal copies.
fn part(primary: &Node) {
    primary.store().delta().begin_alone(Generation::FIRST);
}

#[test]
fn the_proof_of_everything_costs_little_and_reads_no_content() {
    let (primary, secondary, _) = pair();
    let peer = DroppingPeer::new(&secondary);
    let mut touched = resync(&primary, &peer);
    let (messages, bytes) = peer.take_cost();
    let report = prove(&primary, &peer, &mut touched).unwrap();
    let (proof_messages, proof_bytes) = peer.take_cost();
    assert!(report.is_identical() && touched.is_empty());
    assert_eq!((report.bytes, report.inodes), (0, FILES + 2));
    // One for 256 inodes.
    assert_eq!(proof_messages, 4);
    assert!(
        proof_messages * 20 < messages,
        "{proof_messages} {messages}"
    );
    assert!(proof_bytes * 1000 < bytes, "{proof_bytes} of {bytes}");
    assert_equal(&primary, &secondary);
}

/// A resync makes the sums of the bytes that it has compared, so its proof need not read the content again.
#[test]
fn a_resync_of_equal_copies_without_sums_makes_the_sums() {
    let (primary, secondary, long) = pair();
    let peer = DroppingPeer::new(&secondary);
    resync(&primary, &peer);
    for node in [&primary, &secondary] {
        take_secret(node, 2);
        let sum = node.store().sums().file(long).unwrap();
        assert_eq!(sum.void_blocks as usize, LONG / 4096);
    }
    let mut touched = resync(&primary, &peer);
    let report = prove(&primary, &peer, &mut touched).unwrap();
    assert!(report.is_identical());
    assert_eq!(report.bytes, 0);
    let [here, there] = [&primary, &secondary].map(|node| node.store().sums().file(long).unwrap());
    assert!(here.whole().is_some());
    assert_eq!(here.whole(), there.whole());
}

#[test]
fn a_primary_without_sums_makes_those_of_the_bytes_that_it_sends() {
    let (primary, secondary, long) = pair();
    let peer = DroppingPeer::new(&secondary);
    resync(&primary, &peer);
    for node in [&primary, &secondary] {
        take_secret(node, 2);
    }
    for piece in 0..8 {
        let other = content(piece, WRITE_BYTES_MAX);
        secondary.write(long, piece << 20, &other);
    }
    let mut touched = resync(&primary, &peer);
    let report = prove(&primary, &peer, &mut touched).unwrap();
    assert!(report.is_identical());
    assert_eq!(report.bytes, 0);
    assert_equal(&primary, &secondary);
}

#[test]
fn nothing_changed_costs_nothing() {
    let (primary, secondary, _) = pair();
    let peer = DroppingPeer::new(&secondary);
    resync(&primary, &peer);
    part(&primary);
    let mut touched = resync(&primary, &peer);
    peer.take_cost();
    assert!(touched.is_empty());
    assert!(prove(&primary, &peer, &mut touched).unwrap().is_identical());
    assert_eq!(peer.take_cost(), (0, 0));
}

/// No sum says anything of the long file. The proof reads the bytes that the resync has touched, and no others.
#[test]
fn of_a_long_file_without_sums_the_touched_bytes_are_read() {
    let (primary, secondary, long) = pair();
    let peer = DroppingPeer::new(&secondary);
    resync(&primary, &peer);
    for node in [&primary, &secondary] {
        take_secret(node, 2);
    }
    part(&primary);
    primary.write(long, 3 << 20, &[7; 4096]);
    let mut touched = resync(&primary, &peer);
    assert_eq!(touched.named(), 1);
    let report = prove(&primary, &peer, &mut touched).unwrap();
    assert!(report.is_identical());
    assert_eq!(report.bytes, 64 << 10, "a part of the delta");
    assert_equal(&primary, &secondary);
}

/// The sums of a long file differ, and all touched bytes are equal: the delta lacks a change.
#[test]
fn a_difference_of_a_long_file_beside_the_touched_bytes_is_found() {
    let (primary, secondary, long) = pair();
    let peer = DroppingPeer::new(&secondary);
    resync(&primary, &peer);
    primary.write(long, 6 << 20, &[8; 4096]);
    part(&primary);
    primary.write(long, 3 << 20, &[7; 4096]);
    let mut touched = resync(&primary, &peer);
    let found = prove(&primary, &peer, &mut touched).unwrap();
    let files: Vec<_> = found.differences.iter().map(|found| found.ino).collect();
    assert_eq!(files, [long.get()], "{found:?}");
}

#[test]
fn a_piece_that_the_secondary_has_not_written_is_found_and_sent_again() {
    // The parts of a delta go in one request.
    for (dropped, is_void) in [(0, false), (5, false), (0, true)] {
        let (primary, secondary, long) = pair();
        let mut peer = DroppingPeer::new(&secondary);
        if is_void {
            resync(&primary, &peer);
            for node in [&primary, &secondary] {
                take_secret(node, 2);
            }
            part(&primary);
            for piece in 0..8 {
                primary.write(long, piece << 20, &[9; 8192]);
            }
            peer.writes = AtomicU64::new(0);
        }
        peer.dropped = dropped;
        let mut touched = resync(&primary, &peer);
        let found = prove(&primary, &peer, &mut touched).unwrap();
        let ino = peer
            .dropped_of
            .lock()
            .unwrap()
            .expect("a piece was dropped");
        let files: BTreeSet<_> = found.differences.iter().map(|found| found.ino).collect();
        assert_eq!(files, BTreeSet::from([ino.get()]), "{found:?}");
        assert!(found.differences[0].path.is_some());
        let view = primary.store().tree();
        let source = ResyncSource::new(&view, primary.store());
        let sent = send_again(source, &peer, &FreeLocks, &BTreeSet::from([ino])).unwrap();
        assert!((1..=1 << 20).contains(&sent), "{sent}");
        assert_equal(&primary, &secondary);
    }
}

#[test]
fn a_proof_that_loses_its_connection_goes_on_where_it_was() {
    let (primary, secondary, _) = pair();
    let mut peer = DroppingPeer::new(&secondary);
    let mut touched = resync(&primary, &peer);
    peer.take_digested();
    peer.secondary.lost_at = peer.secondary.asked.load(Ordering::Relaxed) + 2;
    prove(&primary, &peer, &mut touched).unwrap_err();
    let first = peer.take_digested();
    peer.secondary.lost_at = u64::MAX;
    prove(&primary, &peer, &mut touched).unwrap();
    let second = peer.take_digested();
    assert_eq!((first.len(), second.len()), (3, 2));
    assert_eq!(first.last(), second.first(), "the batch that was under way");
}
