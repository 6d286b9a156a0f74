//! A resync of the changes since the copies were equal leaves no difference that a comparison of everything finds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lockstep_repl::message::{Request, Response};
use lockstep_resync::{
    JobProgress, Locks, Peer, PeerBase, PeerError, ResyncError, ResyncSource, send_content,
    send_image, send_tail,
};
use lockstep_types::{Generation, Ino, MetaRequest, NodeKind};
use proptest::prelude::*;

use super::converge::{BusyLocks, assert_equal, resync, steps};
use super::nodes::{FreeLocks, LocalPeer, NoOperations, Node, new_resync};
use super::steps::{Change, Step, resolve, take_all};
use super::void_sums::{make_void, take_secret};

/// A secondary that counts what it is sent, and whose primary's clients change data before each answer.
struct CountedPeer<'a> {
    primary: &'a Node,
    secondary: LocalPeer<'a>,
    meanwhile: &'a [Step],
    /// The delta of the primary may be full.
    may_send_all: bool,
    next: AtomicUsize,
    records: AtomicU64,
    compared: AtomicU64,
}

impl<'a> CountedPeer<'a> {
    fn new(primary: &'a Node, secondary: &'a Node, meanwhile: &'a [Step]) -> Self {
        Self {
            primary,
            secondary: LocalPeer::new(secondary),
            meanwhile,
            may_send_all: false,
            next: AtomicUsize::new(0),
            records: AtomicU64::new(0),
            compared: AtomicU64::new(0),
        }
    }
}

impl Peer for CountedPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        take_all(
            self.primary,
            self.meanwhile.chunks(3).nth(next).unwrap_or_default(),
        );
        match &request {
            Request::ImageChunk | Request::CompareRecords { .. } if !self.may_send_all => {
                panic!("a run of all records was sent")
            }
            Request::ImageChanges => drop(self.records.fetch_add(1, Ordering::Relaxed)),
            Request::CompareBlocks { hashes, .. } => {
                let blocks = hashes.len() as u64;
                self.compared.fetch_add(blocks, Ordering::Relaxed);
            }
            Request::CompareSums { sums, .. } => {
                let blocks = sums.len() as u64;
                self.compared.fetch_add(blocks, Ordering::Relaxed);
            }
            _ => {}
        }
        self.secondary.ask(request, payload)
    }
}

fn base(secondary: &Node) -> PeerBase {
    PeerBase {
        generation: Generation::FIRST,
        applied: secondary.store().applied(),
    }
}

/// Two equal copies. From then on the primary is alone.
fn parted(common: &[Step]) -> (Node, Node) {
    parted_from(Node::new(), common)
}

fn parted_from(primary: Node, common: &[Step]) -> (Node, Node) {
    parted_pair(primary, Node::new(), common)
}

fn parted_pair(primary: Node, secondary: Node, common: &[Step]) -> (Node, Node) {
    take_all(&primary, common);
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    primary.store().delta().begin_alone(Generation::FIRST);
    (primary, secondary)
}

fn rejoin_counted(
    primary: &Node,
    secondary: &Node,
    peer: &CountedPeer<'_>,
    locks: &dyn Locks,
) -> Result<JobProgress, ResyncError> {
    // From the content on no operation begins that is not mirrored.
    let settle = || peer.next.store(usize::MAX / 2, Ordering::Relaxed);
    rejoin_by(
        [primary, secondary],
        (peer, &peer.secondary),
        locks,
        &settle,
    )
}

/// A resync of what has changed.
pub fn rejoin(
    primary: &Node,
    secondary: &Node,
    peer: &dyn Peer,
    locks: &dyn Locks,
) -> Result<JobProgress, ResyncError> {
    rejoin_by([primary, secondary], (peer, peer), locks, &|| ())
}

/// `tail` gets the last changes of the namespace. `settle` is called before.
fn rejoin_by(
    [primary, secondary]: [&Node; 2],
    (peer, tail): (&dyn Peer, &dyn Peer),
    locks: &dyn Locks,
    settle: &dyn Fn(),
) -> Result<JobProgress, ResyncError> {
    let base = Some(base(secondary));
    let view = primary.store().tree();
    let source = ResyncSource::new(&view, primary.store());
    let changes = send_image(
        source,
        peer,
        new_resync(base, primary.store()),
        &NoOperations,
    )?;
    settle();
    send_tail(source, tail, &changes)?;
    let progress = JobProgress::default();
    send_content(source, peer, locks, &progress, base, &drop)?;
    Ok(progress)
}

/// Carries writes out on the secondary alone, as those in flight on a deposed primary. The new primary hears of them.
pub fn write_alone(primary: &Node, secondary: &Node, writes: &[Step]) {
    for step in writes {
        if let Change::Write(ino, offset, data) = resolve(secondary, step)
            && ino != Ino::ROOT
        {
            secondary.write(ino, offset, &data);
            let length = data.len() as u64;
            primary.store().delta().add_write(ino, offset, length);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_resync_of_what_has_changed_leaves_no_difference(
        common in steps(40),
        own in steps(10),
        here in steps(30),
        meanwhile in steps(30),
        mirrored in steps(20),
        dies in any::<bool>(),
        primary_dies in any::<bool>(),
        small in any::<bool>(),
        sums in any::<bool>(),
        void in any::<[bool; 2]>(),
    ) {
        let slots = if small { 8 } else { 4096 };
        let nodes = [Node::with_delta_slots(slots), Node::new()];
        if sums {
            nodes.iter().for_each(take_secret);
        }
        let [primary, secondary] = nodes;
        let (mut primary, mut secondary) = parted_pair(primary, secondary, &common);
        write_alone(&primary, &secondary, &own);
        if dies {
            secondary.restart();
        }
        take_all(&primary, &here);
        if primary_dies {
            primary.lead_again();
        }
        for (node, is_void) in [&primary, &secondary].into_iter().zip(void) {
            if sums && is_void {
                make_void(node);
            }
        }
        let mut peer = CountedPeer::new(&primary, &secondary, &meanwhile);
        peer.may_send_all = small;
        let locks = BusyLocks::new(&primary, &secondary, &mirrored);
        rejoin_counted(&primary, &secondary, &peer, &locks).unwrap();
        assert_equal(&primary, &secondary);
        secondary.restart();
        assert_equal(&primary, &secondary);
    }

    #[test]
    fn an_interrupted_resync_of_what_has_changed_is_begun_again(
        common in steps(40),
        here in steps(30),
        between in steps(10),
        lost_at in 0..20u64,
        primary_dies in any::<bool>(),
    ) {
        let (mut primary, secondary) = parted(&common);
        take_all(&primary, &here);
        {
            let mut peer = CountedPeer::new(&primary, &secondary, &[]);
            peer.secondary.lost_at = lost_at;
            let _lost = rejoin_counted(&primary, &secondary, &peer, &FreeLocks).is_err();
        }
        if primary_dies {
            primary.lead_again();
        }
        take_all(&primary, &between);
        let peer = CountedPeer::new(&primary, &secondary, &[]);
        rejoin_counted(&primary, &secondary, &peer, &FreeLocks).unwrap();
        assert_equal(&primary, &secondary);
    }
}

#[test]
fn only_what_has_changed_is_compared() {
    only_what_has_changed_is_compared_by(|_| ());
}

#[test]
fn only_what_has_changed_is_compared_by_a_primary_that_was_killed() {
    only_what_has_changed_is_compared_by(Node::lead_again);
}

/// The same by the sums of blocks.
#[test]
fn only_what_has_changed_is_compared_by_its_sums() {
    let nodes = [Node::new(), Node::new()];
    nodes.iter().for_each(take_secret);
    let [primary, secondary] = nodes;
    only_what_has_changed_is_compared_of(parted_pair(primary, secondary, &[]), |_| ());
}

fn only_what_has_changed_is_compared_by(restart: impl FnOnce(&mut Node)) {
    only_what_has_changed_is_compared_of(parted(&[]), restart);
}

fn only_what_has_changed_is_compared_of(
    (mut primary, secondary): (Node, Node),
    restart: impl FnOnce(&mut Node),
) {
    for number in 0..50 {
        primary.file(&format!("file {number}"), &[1; 3000]);
    }
    let long = primary.file("long", &vec![5; 32 << 20]);
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    primary.store().delta().begin_alone(Generation::FIRST);
    primary.write(long, 10 << 20, &[7; 5000]);
    primary.file("new", &[8; 100]);
    restart(&mut primary);
    let peer = CountedPeer::new(&primary, &secondary, &[]);
    let progress = rejoin_counted(&primary, &secondary, &peer, &FreeLocks).unwrap();
    assert_equal(&primary, &secondary);
    assert_eq!(progress.inodes_total.get(), 2, "files");
    assert_eq!(progress.bytes_total.get(), (64 << 10) + 100);
    assert_eq!(peer.compared.load(Ordering::Relaxed), 16, "blocks");
    assert_eq!(peer.records.load(Ordering::Relaxed), 1, "messages");
}

#[test]
fn a_record_is_sent_with_the_unflushed_size() {
    let (primary, secondary) = parted(&[]);
    let ino = primary.file("long", &vec![5; 1 << 20]);
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    // On both nodes: the size is in no record.
    let (osn, time) = primary.stamp();
    for node in [&primary, &secondary] {
        let data = vec![6; 1 << 20];
        node.store().write(ino, 1 << 20, &data, osn, time).unwrap();
    }
    primary.store().delta().begin_alone(Generation::FIRST);
    assert!(primary.meta(MetaRequest::SetAttr {
        ino,
        mode: Some(0o600),
        uid: None,
        gid: None,
        atime: None,
        mtime: None,
    }));
    let peer = CountedPeer::new(&primary, &secondary, &[]);
    rejoin_counted(&primary, &secondary, &peer, &FreeLocks).unwrap();
    assert_equal(&primary, &secondary);
}

#[test]
fn another_base_is_no_delta_and_too_many_changes_are_one() {
    let (primary, secondary) = parted(&[]);
    let other = PeerBase {
        generation: Generation::FIRST.next(),
        ..base(&secondary)
    };
    let whole = |base: PeerBase| {
        let seen = primary
            .store()
            .delta()
            .records(base.generation, base.applied);
        seen.is_none()
    };
    assert!(whole(other) && !whole(base(&secondary)));
    let behind = base(&secondary);
    primary.create(Ino::ROOT, "directory", NodeKind::Directory);
    primary.store().delta().begin_alone(Generation::FIRST);
    assert!(whole(behind), "it lacks an operation from before the delta");
    let caught_up = PeerBase {
        applied: primary.store().applied(),
        ..behind
    };
    let file = primary.file("scattered", &[1]);
    assert!(!whole(caught_up));
    for region in 0..300_000 {
        primary.store().delta().add_write(file, region << 17, 1);
    }
    assert!(!whole(caught_up), "it is coarser");
}
