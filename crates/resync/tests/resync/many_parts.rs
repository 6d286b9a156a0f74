//! The changed parts of a file of a delta: one request compares many of them, by the sums of their blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::Duration;

use lockstep_fs::StoreView;
use lockstep_repl::core::{LockSet, OpId};
use lockstep_repl::lock::{BlockRange, LockKey, LockMode, LockTable};
use lockstep_repl::message::{Request, Response};
use lockstep_resync::{LockClaim, Locks, Peer, PeerError, ResyncError};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Generation, Ino, MetaOp, MetaRequest};
use smallvec::smallvec;

use super::converge::{assert_equal, resync};
use super::delta::rejoin;
use super::nodes::{FreeLocks, LocalPeer, Node};
use super::void_sums::{make_void, take_secret};

/// Bytes between changes.
const STEP: u64 = 256 << 10;
/// Bytes of the long file. The file ends within a block.
const LONG: u64 = 64 * STEP + 100;

/// A secondary that notes the requests for content.
struct NotingPeer<'a> {
    secondary: LocalPeer<'a>,
    /// How many blocks each request compares.
    compared: Mutex<Vec<usize>>,
    /// The ranges and bytes of the writes.
    written: Mutex<Vec<(usize, usize)>>,
}

impl Peer for NotingPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        match &request {
            Request::CompareSums { sums, .. } => self.compared.lock().unwrap().push(sums.len()),
            Request::WriteBlocks { ranges, .. } => {
                let write = (ranges.len(), payload.len());
                self.written.lock().unwrap().push(write);
            }
            Request::CompareBlocks { .. } | Request::CompareRun { .. } => {
                panic!("bytes are compared: {request:?}")
            }
            _ => {}
        }
        self.secondary.ask(request, payload)
    }
}

/// Two equal nodes with sums and a long file. From then on the primary is alone.
fn parted() -> ([Node; 2], Ino) {
    let nodes = [Node::new(), Node::new()];
    nodes.iter().for_each(take_secret);
    let bytes = (0..LONG).map(|at| u8::try_from((at / 4096 + at) % 251).unwrap());
    let long = nodes[0].file("long", &bytes.collect::<Vec<u8>>());
    resync(&nodes[0], &LocalPeer::new(&nodes[1]), &FreeLocks).unwrap();
    nodes[0].store().delta().begin_alone(Generation::FIRST);
    (nodes, long)
}

/// The blocks of each comparison, and the ranges and bytes of each write, of a resync of what has changed.
fn requests([primary, secondary]: &[Node; 2]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let peer = NotingPeer {
        secondary: LocalPeer::new(secondary),
        compared: Mutex::default(),
        written: Mutex::default(),
    };
    rejoin(primary, secondary, &peer, &FreeLocks).unwrap();
    let (compared, written) = (peer.compared, peer.written);
    (
        compared.into_inner().unwrap(),
        written.into_inner().unwrap(),
    )
}

#[test]
fn many_changed_parts_cost_one_request() {
    for void in [[false, false], [false, true], [true, false], [true, true]] {
        let (nodes, long) = parted();
        for at in (0..LONG).step_by(usize::try_from(STEP).unwrap()) {
            nodes[0].write(long, at + 8192, &[7; 4096]);
        }
        for (node, _) in nodes.iter().zip(void).filter(|(_, is_void)| *is_void) {
            make_void(node);
        }
        let (compared, written) = requests(&nodes);
        assert_equal(&nodes[0], &nodes[1]);
        // 16 parts have 1 MiB, however far apart they are. The last part, of which the file has 100 bytes and a new block, is in a
        // request of its own.
        assert_eq!(compared, [256, 256, 256, 256, 3], "{void:?}");
        let whole = (16, 16 * 4096);
        assert_eq!(written, [whole, whole, whole, whole, (1, 4096)]);
        for (node, is_void) in nodes.iter().zip(void) {
            // Only what was compared has got its sums back.
            let file = node.store().sums().file(long).unwrap();
            assert_eq!(file.void_blocks > 0, is_void, "{void:?}");
        }
    }
}

/// Notes the locks of each request.
#[derive(Default)]
struct NotingLocks(Mutex<Vec<LockSet>>);

impl Locks for NotingLocks {
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        FreeLocks.with_locks(locks, body)
    }

    fn claim(&self, locks: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError> {
        self.0.lock().unwrap().push(locks.clone());
        FreeLocks.claim(locks)
    }

    fn pause(&self, time: Duration) {
        FreeLocks.pause(time);
    }
}

/// The parts that wait for these locks, and whether a write between two parts does.
fn waiting(ino: Ino, locks: &LockSet) -> (usize, bool) {
    let mut table = LockTable::default();
    table.acquire(OpId(0), locks);
    let waits = |offset| {
        let write = LockMode::Write(BlockRange::new(offset, 4096));
        !table.would_grant(&smallvec![(LockKey::File(ino), write)])
    };
    let steps = (0..LONG).step_by(usize::try_from(STEP).unwrap());
    let parts = steps.clone().filter(|at| waits(at + 8192)).count();
    (parts, steps.into_iter().any(|at| waits(at + (64 << 10))))
}

#[test]
fn writes_wait_for_the_parts_alone() {
    let (nodes, long) = parted();
    for at in (0..LONG).step_by(usize::try_from(STEP).unwrap()) {
        nodes[0].write(long, at + 8192, &[7; 4096]);
    }
    let (peer, locks) = (LocalPeer::new(&nodes[1]), NotingLocks::default());
    rejoin(&nodes[0], &nodes[1], &peer, &locks).unwrap();
    let claimed = locks.0.into_inner().unwrap();
    let of_parts = claimed.iter().filter(|locks| {
        let is_read = |(_, mode): &(LockKey, LockMode)| matches!(mode, LockMode::Read(_));
        locks.iter().all(is_read)
    });
    let waiting: Vec<_> = of_parts.map(|locks| waiting(long, locks)).collect();
    assert_eq!(
        waiting,
        [
            (16, false),
            (16, false),
            (16, false),
            (16, false),
            (1, false)
        ]
    );
}

/// A part of the primary that became a hole, one that got zeros, and one that the file lost at its end.
#[test]
fn holes_and_zeros_among_the_parts_go_over() {
    let (nodes, long) = parted();
    let [primary, secondary] = &nodes;
    for part in 0..6 {
        primary.write(long, part * STEP, &[7; 4096]);
    }
    let (osn, time) = primary.stamp();
    let request = MetaRequest::Allocate {
        ino: long,
        mode: lockstep_types::AllocateMode::PunchHole,
        offset: 2 * STEP,
        length: 64 << 10,
    };
    primary
        .store()
        .commit(&MetaOp { osn, time, request })
        .unwrap();
    primary.write(long, 4 * STEP, &[0; 3 * 4096]);
    primary.meta(MetaRequest::Truncate {
        ino: long,
        size: 40 * STEP + 5000,
        drop_set_id: false,
    });
    let (compared, _) = requests(&nodes);
    assert_equal(primary, secondary);
    assert!(compared.len() < 6, "{compared:?}");
    let hole = secondary.store().tree().next_hole(long, 0).unwrap();
    assert_eq!(hole, 2 * STEP);
    let data = secondary.store().tree().next_data(long, hole).unwrap();
    assert_eq!(data, Some(2 * STEP + (64 << 10)));
}

/// A byte that a disk has changed is found by a sum, not by a resync. A void sum of the block leaves the bytes to be compared.
#[test]
fn bytes_without_a_sum_are_read() {
    for is_void in [false, true] {
        let (nodes, long) = parted();
        nodes[0].write(long, STEP, &[7; 4096]);
        let path = nodes[1].content_path(long);
        let file = File::options().write(true).open(path).unwrap();
        let beside = STEP + 3 * BLOCK_BYTES as u64;
        file.write_all_at(&[0xff; 100], beside).unwrap();
        if is_void {
            make_void(&nodes[1]);
        }
        let (_, written) = requests(&nodes);
        let blocks = usize::from(is_void) + 1;
        assert_eq!(written, [(blocks, blocks * 4096)]);
    }
}

/// A secondary with another secret knows nothing, and gets all bytes of the changed parts.
#[test]
fn another_secret_makes_all_blocks_different() {
    let (nodes, long) = parted();
    nodes[0].write(long, STEP, &[7; 4096]);
    let other = lockstep_sums::SumSecret::new([9; 32]);
    nodes[1].store().sums().take_secret(&other).unwrap();
    let (_, written) = requests(&nodes);
    assert_equal(&nodes[0], &nodes[1]);
    assert_eq!(written, [(1, 64 << 10)]);
}
