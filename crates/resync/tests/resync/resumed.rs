//! A resync that loses its connection goes on where it was, and leaves no difference that a comparison of everything finds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_repl::message::{Request, Response, ResyncScope};
use lockstep_resync::{
    JobProgress, Locks, Peer, PeerBase, PeerError, ResyncError, ResyncSource, send_content,
    send_image, send_tail,
};
use lockstep_types::Generation;
use lockstep_types::limits::BLOCK_BYTES;
use proptest::prelude::*;

use super::converge::{BusyLocks, assert_equal, steps};
use super::delta::write_alone;
use super::nodes::{FreeLocks, LocalPeer, NoOperations, Node, new_resync};
use super::steps::take_all;

/// A secondary whose connection is lost at a request, and the requests that it got.
struct LossyPeer<'a> {
    secondary: LocalPeer<'a>,
    /// The namespace of a resync is there.
    has_namespace: &'a AtomicBool,
    files: AtomicU64,
    blocks: AtomicU64,
    bytes: AtomicU64,
}

impl<'a> LossyPeer<'a> {
    fn new(secondary: &'a Node, has_namespace: &'a AtomicBool, lost_at: u64) -> Self {
        let mut secondary = LocalPeer::new(secondary);
        secondary.lost_at = lost_at;
        Self {
            secondary,
            has_namespace,
            files: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// The base that the secondary names.
    fn base(&self) -> Option<PeerBase> {
        let has_base = self.has_namespace.load(Ordering::Relaxed);
        has_base.then(|| PeerBase {
            generation: Generation::FIRST,
            applied: self.secondary.store.applied(),
        })
    }

    fn compared_files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    fn compared_blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    fn sent_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Peer for LossyPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let response = self.secondary.ask(request.clone(), payload)?;
        match request {
            Request::BeginResync {
                scope: ResyncScope::Everything,
                ..
            } => {
                self.has_namespace.store(false, Ordering::Relaxed);
            }
            Request::EndImage { .. } => self.has_namespace.store(true, Ordering::Relaxed),
            Request::SetFiles { files } => {
                self.files.fetch_add(files.len() as u64, Ordering::Relaxed);
                let bytes = payload.len() as u64;
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Request::CompareBlocks { hashes, .. } => {
                let blocks = hashes.len() as u64;
                self.blocks.fetch_add(blocks, Ordering::Relaxed);
            }
            Request::CompareSums { sums, .. } => {
                let blocks = sums.len() as u64;
                self.blocks.fetch_add(blocks, Ordering::Relaxed);
            }
            // The blocks of a run that differs are compared next, and count then.
            Request::CompareRun { blocks, .. } if response == Response::Differing(vec![0]) => {
                self.blocks.fetch_add(blocks.into(), Ordering::Relaxed);
            }
            Request::WriteBlocks { .. } => {
                let bytes = payload.len() as u64;
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            _ => {}
        }
        Ok(response)
    }
}

/// One connection.
fn connect(
    primary: &Node,
    peer: &LossyPeer<'_>,
    locks: &dyn Locks,
    progress: &JobProgress,
) -> Result<(), ResyncError> {
    let store = primary.store();
    let view = store.tree();
    let source = ResyncSource::new(&view, store);
    let image = send_image(source, peer, new_resync(peer.base(), store), &NoOperations)?;
    send_tail(source, peer, &image)?;
    send_content(source, peer, locks, progress, peer.base(), &drop)?;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_resync_that_goes_on_leaves_no_difference(
        here in steps(60),
        there in steps(30),
        losses in prop::collection::vec(
            (0..60_u64, steps(15), steps(6), steps(4), any::<bool>()),
            1..4,
        ),
        mirrored in steps(20),
        small in any::<bool>(),
    ) {
        let slots = if small { 8 } else { 4096 };
        let (mut primary, mut secondary) = (Node::with_delta_slots(slots), Node::new());
        take_all(&primary, &here);
        take_all(&secondary, &there);
        let (has_namespace, progress) = (AtomicBool::new(false), JobProgress::default());
        for (lost_at, mirrored, alone, own, dies) in &losses {
            {
                let peer = LossyPeer::new(&secondary, &has_namespace, *lost_at);
                let locks = BusyLocks::new(&primary, &secondary, mirrored);
                let _lost = connect(&primary, &peer, &locks, &progress).is_err();
            }
            if *dies {
                primary.lead_again();
            }
            // Mirrored writes that this node has not done, or does alone.
            if has_namespace.load(Ordering::Relaxed) {
                write_alone(&primary, &secondary, own);
            }
            take_all(&primary, alone);
        }
        {
            let peer = LossyPeer::new(&secondary, &has_namespace, u64::MAX);
            let locks = BusyLocks::new(&primary, &secondary, &mirrored);
            connect(&primary, &peer, &locks, &progress).unwrap();
        }
        assert_equal(&primary, &secondary);
        secondary.restart();
        assert_equal(&primary, &secondary);
    }
}

const FILES: u64 = 300;
const LONG: usize = 24 << 20;
const LONG_BLOCKS: u64 = (LONG / BLOCK_BYTES) as u64;

/// Content whose blocks differ from their neighbours.
fn long(period: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from(at / BLOCK_BYTES % period + 1).unwrap();
    (0..LONG).map(byte).collect()
}

/// A primary with many files and a long one.
fn filled() -> Node {
    let primary = Node::new();
    for number in 0..FILES {
        primary.file(&format!("file {number}"), &[1; 5000]);
    }
    primary.file("long", &long(251));
    primary
}

/// Resyncs over two connections. The first one is lost at this request. Returns what each of them has compared, in files and
/// blocks, and sent.
fn in_two_parts(
    primary: &Node,
    secondary: &Node,
    has_namespace: &AtomicBool,
    lost_at: u64,
) -> [(u64, u64, u64); 2] {
    let progress = JobProgress::default();
    let seen = |peer: &LossyPeer<'_>| {
        (
            peer.compared_files(),
            peer.compared_blocks(),
            peer.sent_bytes(),
        )
    };
    let first = LossyPeer::new(secondary, has_namespace, lost_at);
    connect(primary, &first, &FreeLocks, &progress).unwrap_err();
    let (files, bytes) = (progress.inodes_total.get(), progress.bytes_total.get());
    let done = (progress.inodes_done.get(), progress.bytes_done.get());
    let second = LossyPeer::new(secondary, has_namespace, u64::MAX);
    connect(primary, &second, &FreeLocks, &progress).unwrap();
    assert!(done.1 > 0 && progress.bytes_done.get() > done.1);
    // Files that were under way at the loss count again.
    assert!((files..files + 200).contains(&progress.inodes_total.get()));
    assert!((bytes..bytes + (8 << 20)).contains(&progress.bytes_total.get()));
    assert_eq!(progress.inodes_done.get(), progress.inodes_total.get());
    assert_eq!(progress.bytes_done.get(), progress.bytes_total.get());
    [seen(&first), seen(&second)]
}

#[test]
fn a_resync_of_everything_goes_on_within_a_file() {
    let (primary, secondary) = (filled(), Node::new());
    let has_namespace = AtomicBool::new(false);
    // The small files, and half of the long one.
    let [first, second] = in_two_parts(&primary, &secondary, &has_namespace, 320);
    assert_equal(&primary, &secondary);
    assert_eq!(first.0, FILES + 1);
    assert_eq!(first.1, 0, "the secondary has no blocks");
    assert!(second.1 < LONG_BLOCKS * 3 / 4);
    assert!(first.2 > LONG as u64 / 4 && first.2 < LONG as u64);
    assert!(second.0 < 5, "files are not compared again");
    assert!(second.2 < LONG as u64 - first.2 / 2);
}

#[test]
fn a_resync_of_everything_goes_on_after_the_death_of_its_primary() {
    let (mut primary, secondary) = (filled(), Node::new());
    let has_namespace = AtomicBool::new(false);
    let first = LossyPeer::new(&secondary, &has_namespace, 320);
    connect(&primary, &first, &FreeLocks, &JobProgress::default()).unwrap_err();
    primary.lead_again();
    primary.file("new", &[3; 100]);
    let second = LossyPeer::new(&secondary, &has_namespace, u64::MAX);
    let progress = JobProgress::default();
    connect(&primary, &second, &FreeLocks, &progress).unwrap();
    assert_equal(&primary, &secondary);
    assert!(!progress.is_whole());
    assert!(second.compared_files() < 5, "files are not compared again");
    assert!(second.compared_blocks() < LONG_BLOCKS * 3 / 4);
    assert!(second.sent_bytes() < LONG as u64 - first.sent_bytes() / 2);
}

#[test]
fn a_resync_of_what_has_changed_goes_on() {
    let (primary, secondary) = (filled(), Node::new());
    let has_namespace = AtomicBool::new(false);
    let progress = JobProgress::default();
    let peer = LossyPeer::new(&secondary, &has_namespace, u64::MAX);
    let rewritten = primary.file("second", &long(247));
    connect(&primary, &peer, &FreeLocks, &progress).unwrap();
    primary.store().delta().begin_alone(Generation::FIRST);
    primary.write(rewritten, 0, &long(249));
    let [first, second] = in_two_parts(&primary, &secondary, &has_namespace, 60);
    assert_equal(&primary, &secondary);
    assert_eq!(first.0, 1);
    assert!(first.1 > LONG_BLOCKS / 4 && first.1 < LONG_BLOCKS);
    assert!(second.1 < LONG_BLOCKS - first.1 / 2);
    assert!(second.2 < LONG as u64 - first.2 / 2);
}
