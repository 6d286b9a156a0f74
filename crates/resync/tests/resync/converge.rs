//! After a resync the two nodes are identical, for any content before.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lockstep_fs::StoreView;
use lockstep_repl::core::LockSet;
use lockstep_repl::message::{Request, Response};
use lockstep_resync::{
    JobProgress, LockClaim, Locks, Peer, PeerError, PendingAnswer, ResyncError, ResyncSource,
    send_content, send_image, send_tail,
};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{AllocateMode, Ino, MetaOp, MetaRequest, NodeKind};
use lockstep_verify::compare;
use proptest::prelude::*;

use super::nodes::{FreeLocks, LocalPeer, NoOperations, Node, new_resync, records, send_namespace};
use super::steps::{Change, Step, resolve, step, take_all};

pub fn resync(
    primary: &Node,
    peer: &dyn Peer,
    locks: &dyn Locks,
) -> Result<JobProgress, ResyncError> {
    let progress = JobProgress::default();
    send_namespace(primary.store(), peer)?;
    let view = primary.store().tree();
    let source = ResyncSource::new(&view, primary.store());
    send_content(source, peer, locks, &progress, None, &drop)?;
    Ok(progress)
}

/// Compares both nodes by the product's comparison, and by other means.
pub fn assert_equal(primary: &Node, secondary: &Node) {
    let progress = JobProgress::default();
    let peer = LocalPeer::new(secondary);
    let report = compare(&primary.store().tree(), &peer, &FreeLocks, &progress).unwrap();
    assert!(report.is_identical(), "{:#?}", report.differences);
    assert_eq!(records(primary.store()), records(secondary.store()));
    for (ino, kind) in primary
        .store()
        .tree()
        .inodes(1, u64::MAX, usize::MAX)
        .unwrap()
    {
        if kind == NodeKind::File {
            assert_content_equal(primary, secondary, ino);
        }
    }
}

fn assert_content_equal(primary: &Node, secondary: &Node, ino: Ino) {
    let size = primary.store().tree().getattr(ino).unwrap().size;
    let mut at = 0;
    while let Some(data) = primary.store().tree().next_data(ino, at).unwrap() {
        let (mut here, mut there) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let read = primary.store().read(ino, data, &mut here).unwrap();
        assert_eq!(secondary.store().read(ino, data, &mut there).unwrap(), read);
        assert!(here == there, "{ino:?} differs near {data}");
        at = data + here.len() as u64;
    }
    let mut at = 0;
    while let Some(data) = secondary.store().tree().next_data(ino, at).unwrap() {
        let mut here = vec![0; 1 << 16];
        let mut there = here.clone();
        primary.store().read(ino, data, &mut here).unwrap();
        secondary.store().read(ino, data, &mut there).unwrap();
        assert!(here == there, "{ino:?} differs near {data}");
        at = data + here.len() as u64;
    }
    assert_eq!(secondary.store().tree().content_bytes(ino).unwrap(), size);
}

/// Busy locks: before each grant, clients change data on both nodes.
pub struct BusyLocks<'a> {
    primary: &'a Node,
    secondary: &'a Node,
    steps: &'a [Step],
    next: AtomicUsize,
    /// Number of present claims.
    held: AtomicUsize,
}

impl<'a> BusyLocks<'a> {
    pub fn new(primary: &'a Node, secondary: &'a Node, steps: &'a [Step]) -> Self {
        Self {
            primary,
            secondary,
            steps,
            next: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
        }
    }

    fn mirror_next(&self) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(step) = self.steps.get(next) {
            mirror(self.primary, self.secondary, step);
        }
    }
}

/// Carries a step out on both nodes.
pub fn mirror(primary: &Node, secondary: &Node, step: &Step) {
    let (osn, time) = primary.stamp();
    let both = [secondary, primary];
    match resolve(primary, step) {
        Change::Meta(request) => {
            let op = MetaOp { osn, time, request };
            if primary.store().validate(&op).is_ok() {
                for node in both {
                    node.store().commit(&op).unwrap();
                }
            }
        }
        Change::Write(ino, offset, data) if ino != Ino::ROOT => {
            for node in both {
                let store = node.store();
                store.write(ino, offset, &data, osn, time).unwrap();
            }
        }
        _ => both[0].store().checkpoint().unwrap(),
    }
}

struct BusyClaim<'a> {
    locks: &'a BusyLocks<'a>,
    is_held: bool,
}

impl LockClaim for BusyClaim<'_> {
    fn is_held(&self) -> bool {
        self.is_held
    }

    fn wait(&mut self) -> Result<(), ResyncError> {
        assert_eq!(
            self.locks.held.load(Ordering::Relaxed),
            1,
            "others are held"
        );
        self.locks.mirror_next();
        Ok(())
    }
}

impl Drop for BusyClaim<'_> {
    fn drop(&mut self) {
        self.locks.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Locks for BusyLocks<'_> {
    fn with_locks(
        &self,
        _: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        self.mirror_next();
        body()
    }

    /// Clients change no data while other locks are held: the changes might need the same locks.
    fn claim(&self, _: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError> {
        let others = self.held.fetch_add(1, Ordering::Relaxed);
        let is_free = others == 0 || self.next.load(Ordering::Relaxed).is_multiple_of(3);
        if others == 0 {
            self.mirror_next();
        }
        Ok(Box::new(BusyClaim {
            locks: self,
            is_held: is_free,
        }))
    }

    /// Operations under way end before the next look.
    fn pause(&self, _: Duration) {}
}

pub fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn stores_that_diverged_become_equal(
        common in steps(30),
        here in steps(30),
        there in steps(30),
        meanwhile in steps(30),
    ) {
        let (primary, mut secondary) = (Node::new(), Node::new());
        take_all(&primary, &common);
        take_all(&secondary, &common);
        take_all(&primary, &here);
        take_all(&secondary, &there);
        let locks = BusyLocks::new(&primary, &secondary, &meanwhile);
        resync(&primary, &LocalPeer::new(&secondary), &locks).unwrap();
        assert_equal(&primary, &secondary);
        secondary.restart();
        assert_equal(&primary, &secondary);
    }

    #[test]
    fn a_process_that_dies_right_after_a_resync_loses_nothing_of_it(
        here in steps(30),
        there in steps(30),
    ) {
        let (primary, mut secondary) = (Node::new(), Node::new());
        take_all(&primary, &here);
        take_all(&secondary, &there);
        resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
        secondary.restart();
        assert_equal(&primary, &secondary);
    }
}

/// A secondary whose primary's clients change data before each answer.
struct BusyPrimary<'a> {
    primary: &'a Node,
    secondary: LocalPeer<'a>,
    steps: &'a [Step],
    next: AtomicUsize,
}

impl Peer for BusyPrimary<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let several = self.steps.chunks(3).nth(next);
        take_all(self.primary, several.unwrap_or_default());
        self.secondary.ask(request, payload)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn operations_during_the_transfer_of_the_namespace_are_carried_over(
        here in steps(30),
        there in steps(30),
        meanwhile in steps(60),
    ) {
        let (primary, secondary) = (Node::new(), Node::new());
        take_all(&primary, &here);
        take_all(&secondary, &there);
        let busy = BusyPrimary {
            primary: &primary,
            secondary: LocalPeer::new(&secondary),
            steps: &meanwhile,
            next: AtomicUsize::new(0),
        };
        let view = primary.store().tree();
        let source = ResyncSource::new(&view, primary.store());
        let changes = send_image(source, &busy, new_resync(None, primary.store()), &NoOperations)
            .unwrap();
        // From now on no operation begins.
        let peer = LocalPeer::new(&secondary);
        send_tail(source, &peer, &changes).unwrap();
        prop_assert_eq!(secondary.store().applied(), primary.store().applied());
        send_content(source, &peer, &FreeLocks, &JobProgress::default(), None, &drop).unwrap();
        assert_equal(&primary, &secondary);
    }
}

fn interesting() -> Node {
    let node = Node::new();
    let directory = node.create(Ino::ROOT, "directory", NodeKind::Directory);
    for number in 0..3 {
        let text = format!("small {number}");
        let ino = node.create(directory.unwrap(), &text, NodeKind::File);
        node.write(ino.unwrap(), 0, text.as_bytes());
        node.xattr(ino.unwrap(), "user.a", text.as_bytes());
    }
    let long = node.file("long", &vec![5; 100_000]);
    node.write(long, 5_000_000, &vec![6; 1 << 20]);
    node.file("empty", &[]);
    node
}

fn other() -> Node {
    let node = Node::new();
    node.file("mine alone", &vec![1; 3_000_000]);
    let sparse = node.file("sparse", &[2; 10]);
    node.write(sparse, 1 << 33, &[3; 10]);
    for number in 0..10 {
        node.file(&format!("more {number}"), &[4; 5000]);
    }
    node
}

#[test]
fn a_resync_that_breaks_off_anywhere_can_start_again() {
    let mut lost_at = 0;
    loop {
        let (primary, mut secondary) = (interesting(), other());
        let peer = LocalPeer {
            lost_at,
            ..LocalPeer::new(&secondary)
        };
        let whole = resync(&primary, &peer, &FreeLocks).is_ok();
        if lost_at % 2 == 1 {
            secondary.restart();
        }
        resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
        assert_equal(&primary, &secondary);
        if whole {
            assert!(lost_at > 10);
            return;
        }
        lost_at += 1;
    }
}

#[test]
fn content_that_was_damaged_outside_the_store_is_repaired() {
    let (primary, mut secondary) = (interesting(), Node::new());
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    let inodes = primary
        .store()
        .tree()
        .inodes(1, u64::MAX, usize::MAX)
        .unwrap();
    let files = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
    secondary.store().close().unwrap();
    for (number, (ino, _)) in files.enumerate() {
        let path = secondary.content_path(*ino);
        match number {
            0 => std::fs::remove_file(path).unwrap(),
            1 => std::fs::write(path, b"rubbish").unwrap(),
            _ => drop(std::fs::write(path, vec![1; 6_000_000])),
        }
    }
    secondary.restart();
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    assert_equal(&primary, &secondary);
}

#[test]
fn damage_on_the_primary_is_not_carried_over() {
    let (mut primary, secondary) = (interesting(), Node::new());
    primary.store().close().unwrap();
    let long = primary
        .store()
        .tree()
        .lookup(Ino::ROOT, &super::nodes::name("long"));
    std::fs::write(primary.content_path(long.unwrap().ino), b"short").unwrap();
    primary.restart();
    let error = resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap_err();
    assert!(error.to_string().contains("5 bytes long"), "{error}");
}

#[test]
fn the_number_of_requests_for_a_huge_sparse_file_depends_on_its_data_only() {
    let (primary, secondary) = (Node::new(), Node::new());
    let ino = primary.file("huge", &[1; 10]);
    for at in [1 << 30, 1 << 39, (1 << 40) - 5] {
        primary.write(ino, at, &[2; 5]);
    }
    let size = (1 << 44) - 4096;
    primary.meta(MetaRequest::Truncate {
        ino,
        size,
        drop_set_id: false,
    });
    let peer = LocalPeer::new(&secondary);
    let progress = resync(&primary, &peer, &FreeLocks).unwrap();
    assert_eq!(progress.bytes_done.get(), size);
    assert!(progress.bytes_sent.get() < 100_000);
    assert!(peer.asked.load(Ordering::Relaxed) < 30);
    assert_equal(&primary, &secondary);
    let space = secondary.store().tree().getattr(ino).unwrap().blocks * 512;
    assert!(space < 1 << 20, "{space} bytes on the disk");
}

#[test]
fn equal_stores_are_found_equal_with_few_requests() {
    let (primary, secondary) = (Node::new(), Node::new());
    for number in 0..300 {
        primary.file(&format!("file {number}"), &[1; 5000]);
    }
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    let peer = LocalPeer::new(&secondary);
    let progress = resync(&primary, &peer, &FreeLocks).unwrap();
    assert_eq!(progress.bytes_sent.get(), 0);
    assert_eq!(progress.inodes_done.get(), 300);
    assert_eq!(progress.bytes_done.get(), 300 * 5000);
    assert!(peer.asked.load(Ordering::Relaxed) < 20);
}

/// Both nodes need the reserved space: a later write there must not fail on one node only.
#[test]
fn reserved_space_is_reserved_on_the_other_node_too() {
    let (primary, secondary) = (Node::new(), Node::new());
    let allocate = |name: &str, content: &[u8], mode, offset, length| {
        let ino = primary.file(name, content);
        assert!(primary.meta(MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        }));
        ino
    };
    let (grow, keep) = (AllocateMode::Allocate, AllocateMode::AllocateKeepSize);
    let files = [
        allocate("beyond its end", &[], keep, 0, 3 << 20),
        allocate("far beyond its end", &[1; 9000], keep, 5 << 20, 1 << 20),
        allocate("large", &[2; 100], grow, 0, 10 << 20),
        allocate("in the middle", &[3; 10], grow, 2_500_000, 1 << 20),
        primary.file("written zeros", &vec![0; 2 << 20]),
    ];
    // The secondary has data at these places, which the resync punches out.
    secondary.file("other", &vec![9; 3 << 20]);
    secondary.file("another", &vec![9; 12 << 20]);
    for _ in 0..2 {
        resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
        assert_equal(&primary, &secondary);
        for ino in files {
            let blocks = |node: &Node| node.store().tree().getattr(ino).unwrap().blocks;
            let (here, there) = (blocks(&primary), blocks(&secondary));
            assert!(here >= 2048 && there >= here, "{ino}: {here} and {there}");
            assert!(there <= here + 2048, "{ino}: {here} and {there}");
        }
    }
}

#[test]
fn content_freed_under_a_number_that_the_primary_uses_is_not_taken_away() {
    let (primary, secondary) = (Node::new(), Node::new());
    let kept = primary.file("kept", &[1; 5000]);
    let freed = secondary.file("freed", &[2; 100]);
    assert_eq!(kept, freed, "the nodes went apart and gave the same number");
    let unlink = MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: super::nodes::name("freed"),
    };
    assert!(secondary.meta(unlink) && secondary.meta(MetaRequest::Reap { ino: freed }));
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    assert_equal(&primary, &secondary);
}

/// A secondary that counts the requests under way.
struct CountedPeer<'a> {
    secondary: LocalPeer<'a>,
    under_way: AtomicU64,
    most: AtomicU64,
}

impl Peer for CountedPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        self.secondary.ask(request, payload)
    }

    fn begin(&self, request: Request, payload: &[u8]) -> PendingAnswer<'_> {
        let answered = self.secondary.ask(request, payload);
        let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        Box::new(move || {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            answered
        })
    }
}

/// Every second block is zeros, and so a run of its own.
fn striped(blocks: usize, byte: u8) -> Vec<u8> {
    let content = |at: usize| {
        if (at / BLOCK_BYTES).is_multiple_of(2) {
            byte
        } else {
            0
        }
    };
    (0..blocks * BLOCK_BYTES).map(content).collect()
}

#[test]
fn no_more_requests_are_under_way_than_the_secondary_takes() {
    let (primary, different, empty) = (Node::new(), Node::new(), Node::new());
    for (node, byte) in [(&primary, 1), (&different, 2)] {
        for number in 0..100 {
            node.file(&format!("small {number}"), &striped(16, byte));
        }
        node.file("large", &striped(3000, byte));
    }
    for secondary in [&different, &empty] {
        let peer = CountedPeer {
            secondary: LocalPeer::new(secondary),
            under_way: AtomicU64::new(0),
            most: AtomicU64::new(0),
        };
        resync(&primary, &peer, &FreeLocks).unwrap();
        let most = peer.most.load(Ordering::Relaxed);
        assert!((8..=64).contains(&most), "{most} at once");
        assert_equal(&primary, secondary);
    }
}

#[test]
fn blocks_that_are_equal_are_not_sent_though_most_small_files_differ() {
    let (primary, secondary) = (Node::new(), Node::new());
    let mut medium = vec![5; 50 * BLOCK_BYTES];
    for (node, byte) in [(&primary, 1), (&secondary, 2)] {
        for number in 0..400 {
            node.file(&format!("small {number}"), &[byte; 10]);
        }
        medium[7] = byte;
        node.file("medium", &medium);
    }
    let progress = resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    assert_equal(&primary, &secondary);
    let sent = progress.bytes_sent.get();
    assert_eq!(sent, 400 * 10 + BLOCK_BYTES as u64);
}
