//! While a resync changes a copy, the fallback shows the copy from before: at every request, beside any work of clients, and wherever the
//! process of the copy is killed. The copy can be put back to the fallback, and a deposed node keeps its own as `lost-GENERATION`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_fs::keys::{self, REPLICATED};
use lockstep_fs::store::{CopyBefore, FallbackAccess, FallbackEnd, ImageChunk, SnapshotAccess};
use lockstep_fs::{Store, StoreView};
use lockstep_repl::message::{Request, Response};
use lockstep_resync::{Peer, PeerError};
use lockstep_types::{AllocateMode, Generation, Ino, MetaRequest, NodeKind, Timestamp};
use proptest::prelude::*;

use super::converge::{BusyLocks, assert_equal, resync, steps};
use super::nodes::{FreeLocks, LocalPeer, Node};
use super::steps::take_all;

const BLOCK: usize = 4096;

/// A whole state of a datastore: the records, and the blocks that are not zeros.
#[derive(Debug, PartialEq)]
pub struct State {
    records: Vec<ImageChunk>,
    blocks: BTreeMap<(Ino, u64), Vec<u8>>,
}

impl State {
    pub fn of(view: &dyn StoreView) -> Self {
        let read = |table: &u8| ImageChunk::read(view, *table, &[], usize::MAX).unwrap();
        let mut blocks = BTreeMap::new();
        for (ino, kind) in view.inodes(1, u64::MAX, usize::MAX).unwrap() {
            if kind == NodeKind::File {
                add_blocks(view, ino, &mut blocks);
            }
        }
        Self {
            records: REPLICATED.iter().map(read).collect(),
            blocks,
        }
    }

    /// The first difference between two states.
    pub fn difference(&self, shown: &Self) -> Option<String> {
        for (was, is) in self.records.iter().zip(&shown.records) {
            let other = was.records.iter().find(|it| !is.records.contains(it));
            let other = other.or(is.records.iter().find(|it| !was.records.contains(it)));
            if let Some(record) = other {
                return Some(format!("record {:?}", record.key));
            }
        }
        let places: std::collections::BTreeSet<_> =
            self.blocks.keys().chain(shown.blocks.keys()).collect();
        let other = places
            .into_iter()
            .find(|at| self.blocks.get(at) != shown.blocks.get(at));
        other.map(|at| {
            let first = |of: &Self| {
                of.blocks
                    .get(at)
                    .map(|block| (block[0], block[block.len() - 1]))
            };
            format!("block {at:?}: {:?}, {:?}", first(self), first(shown))
        })
    }

    /// The present state. The records have sizes and times of files after a checkpoint.
    pub fn present(store: &Store) -> Self {
        store.checkpoint().unwrap();
        Self::of(&store.tree())
    }

    fn fallback(store: &Store) -> Self {
        let (id, _) = FallbackAccess::of(store).get().unwrap().unwrap();
        Self::of(&SnapshotAccess::of(store).view(id).unwrap())
    }
}

fn add_blocks(view: &dyn StoreView, ino: Ino, blocks: &mut BTreeMap<(Ino, u64), Vec<u8>>) {
    let size = view.file_times(ino).unwrap().unwrap().size;
    let mut at = 0;
    while let Some(data) = view.next_data(ino, at).unwrap().filter(|data| *data < size) {
        let start = data - data % BLOCK as u64;
        let mut block = vec![0; BLOCK.min(usize::try_from(size - start).unwrap())];
        view.read_raw(ino, start, &mut block).unwrap();
        if block.iter().any(|byte| *byte != 0) {
            blocks.insert((ino, start), block);
        }
        at = start + BLOCK as u64;
    }
}

fn begin(node: &Node, own_of: Option<Generation>) {
    let copy = CopyBefore {
        is_exact: true,
        own_of,
        time: Timestamp::default(),
    };
    assert!(FallbackAccess::of(node.store()).begin(copy).unwrap());
}

fn deposed_in() -> Option<Generation> {
    Generation::new(3)
}

/// A peer whose fallback is read at every so many requests.
struct ShownPeer<'a> {
    peer: LocalPeer<'a>,
    before: &'a State,
    every: u64,
    asked: AtomicU64,
}

impl<'a> ShownPeer<'a> {
    fn new(node: &'a Node, before: &'a State, every: u64) -> Self {
        Self {
            peer: LocalPeer::new(node),
            before,
            every,
            asked: AtomicU64::new(0),
        }
    }
}

impl Peer for ShownPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let answered = self.peer.ask(request, payload);
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if asked.is_multiple_of(self.every) {
            assert!(State::fallback(self.peer.store) == *self.before);
        }
        answered
    }
}

fn assert_nothing_kept(store: &Store) {
    SnapshotAccess::of(store).resume_deletions().unwrap();
    for table in keys::OF_SNAPSHOTS {
        let left = SnapshotAccess::of(store).kept_keys(table).unwrap();
        assert!(left.is_empty(), "table {}: {left:?}", char::from(table));
    }
}

#[test]
fn an_ordinary_secondary_and_equal_copies_leave_nothing() {
    let (primary, secondary) = (Node::new(), Node::new());
    primary.file("new", &[1; 2 * BLOCK]);
    secondary.file("old", &[2; 2 * BLOCK]);
    for own_of in [None, deposed_in()] {
        begin(&secondary, own_of);
        resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
        let fallback = FallbackAccess::of(secondary.store());
        assert!(fallback.is_mixed().unwrap());
        assert_eq!(fallback.end().unwrap(), FallbackEnd::Gone);
        assert!(!fallback.is_mixed().unwrap());
        assert_nothing_kept(secondary.store());
    }
}

/// Punched and zeroed ranges are changes, too, and so is the content of a file whose number the primary has given to another file.
#[test]
fn a_deposed_node_keeps_what_it_had() {
    let (primary, secondary) = (Node::new(), Node::new());
    let content = vec![7; 64 * BLOCK];
    let [here, there] = [&primary, &secondary].map(|node| node.file("file", &content));
    assert_eq!(here, there);
    for (mode, offset) in [(AllocateMode::PunchHole, 0), (AllocateMode::ZeroRange, 8)] {
        assert!(primary.meta(MetaRequest::Allocate {
            ino: here,
            offset: offset * BLOCK as u64,
            length: 4 * BLOCK as u64,
            mode,
        }));
    }
    let alone = secondary.file("alone", &[3; 3 * BLOCK]);
    let other = primary.create(Ino::ROOT, "directory", NodeKind::Directory);
    assert_eq!(Some(alone), other);
    secondary.xattr(there, "user.note", b"of A");
    let before = State::present(secondary.store());
    begin(&secondary, deposed_in());
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    assert_equal(&primary, &secondary);
    let end = FallbackAccess::of(secondary.store()).end().unwrap();
    assert_eq!(end, FallbackEnd::Lost("lost-3".to_owned()));
    let lost = |node: &Node| {
        let snapshots = SnapshotAccess::of(node.store());
        let (id, _) = snapshots.list()[0];
        State::of(&snapshots.view(id).unwrap())
    };
    assert!(lost(&secondary) == before);
    secondary.write(there, 30 * BLOCK as u64, &[9; BLOCK]);
    assert!(lost(&secondary) == before);
    let id = SnapshotAccess::of(secondary.store()).list()[0].0;
    assert!(SnapshotAccess::of(secondary.store()).delete(id).unwrap());
    assert_nothing_kept(secondary.store());
}

/// The number of a removed file comes back as that of another file, whose blocks the fallback does not see.
#[test]
fn a_number_that_comes_back_does_not_change_the_fallback() {
    let (primary, mut secondary) = (Node::new(), Node::new());
    let old = secondary.file("old", &vec![3; 40 * BLOCK]);
    let before = State::present(secondary.store());
    begin(&secondary, None);
    // A resync from a node without the file removes the file. The next one brings another file of the same number.
    let empty = Node::new();
    empty.later_than(1000);
    resync(&empty, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    secondary.store().collect_garbage().unwrap();
    assert!(State::fallback(secondary.store()) == before);
    primary.later_than(2000);
    assert_eq!(primary.file("new", &vec![5; 20 * BLOCK]), old);
    begin(&secondary, None);
    resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
    for byte in 1..3 {
        secondary.write(old, 3 * BLOCK as u64, &[byte; 100]);
    }
    assert!(State::fallback(secondary.store()) == before);
    secondary.restart();
    assert!(State::fallback(secondary.store()) == before);
    assert!(FallbackAccess::of(secondary.store()).put_back().unwrap());
    assert!(State::present(secondary.store()) == before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_fallback_shows_the_copy_of_before(
        common in steps(20),
        here in steps(30),
        there in steps(30),
        meanwhile in steps(30),
        every in 1..9u64,
    ) {
        let (primary, secondary) = (Node::new(), Node::new());
        take_all(&primary, &common);
        take_all(&secondary, &common);
        take_all(&primary, &here);
        take_all(&secondary, &there);
        let before = State::present(secondary.store());
        begin(&secondary, deposed_in());
        let locks = BusyLocks::new(&primary, &secondary, &meanwhile);
        resync(&primary, &ShownPeer::new(&secondary, &before, every), &locks).unwrap();
        secondary.store().collect_garbage().unwrap();
        prop_assert!(State::fallback(secondary.store()) == before);
        assert_equal(&primary, &secondary);
        FallbackAccess::of(secondary.store()).end().unwrap();
        assert_equal(&primary, &secondary);
    }

    #[test]
    fn a_copy_is_put_back_to_the_fallback_wherever_its_process_is_killed(
        here in steps(30),
        there in steps(30),
        kills in prop::collection::vec(0..60u64, 1..4),
    ) {
        let (primary, mut secondary) = (Node::new(), Node::new());
        take_all(&primary, &here);
        take_all(&secondary, &there);
        let before = State::present(secondary.store());
        let applied = secondary.store().applied();
        for lost_at in kills {
            // The first of these fallbacks stays.
            begin(&secondary, None);
            let peer = LocalPeer { lost_at, ..LocalPeer::new(&secondary) };
            let _cut = resync(&primary, &peer, &FreeLocks);
            prop_assert!(State::fallback(secondary.store()) == before);
            secondary.restart();
        }
        prop_assert!(State::fallback(secondary.store()) == before);
        let fallback = FallbackAccess::of(secondary.store());
        prop_assert!(fallback.put_back().unwrap());
        prop_assert!(!fallback.is_mixed().unwrap());
        prop_assert_eq!(secondary.store().applied(), applied);
        prop_assert!(State::present(secondary.store()) == before);
        secondary.restart();
        prop_assert!(State::present(secondary.store()) == before);
        assert_nothing_kept(secondary.store());
        begin(&secondary, None);
        resync(&primary, &LocalPeer::new(&secondary), &FreeLocks).unwrap();
        assert_equal(&primary, &secondary);
    }
}
