//! Snapshots that one node lacks arrive there, beside any work of clients, and show the moment at which they were made (rule P37).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use lockstep_fs::snapshot_list::SnapshotKind;
use lockstep_fs::store::{CopyBefore, FallbackAccess, SnapshotAccess};
use lockstep_repl::message::{Request, Response};
use lockstep_resync::arrival::{Arrival, Arrived, SnapshotsOfBoth};
use lockstep_resync::{Peer, PeerError};
use lockstep_types::{MetaOp, MetaRequest, NodeKind, SnapshotId, SnapshotName, Timestamp};
use proptest::prelude::*;

use super::converge::{assert_equal, mirror, resync};
use super::fallback::State;
use super::nodes::{FreeLocks, LocalPeer, Node};
use super::steps::{Step, step, take_all};

/// A change that both nodes make.
#[derive(Clone, Debug)]
enum Act {
    Step(Step),
    Create,
    Delete(u8),
    /// Frees what deleted snapshots and freed files leave, on both nodes.
    Tidy,
}

/// A time of two nodes.
#[derive(Clone, Debug)]
enum Era {
    InSync(Vec<Act>),
    /// The primary alone, then a resync. The secondary changes its copy meanwhile if it was deposed.
    Apart {
        primary: Vec<Act>,
        secondary: Vec<Step>,
    },
    /// The snapshots arrive, with these changes meanwhile.
    Arrival(Vec<Act>),
    /// The same, and the connection is lost at this request.
    LostArrival(Vec<Act>, u64),
    /// The nodes change roles.
    Failover,
    /// The process of the primary, or of the secondary, is killed.
    Kill(bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => step().prop_map(Act::Step),
        2 => Just(Act::Create),
        1 => any::<u8>().prop_map(Act::Delete),
        1 => Just(Act::Tidy),
    ]
}

fn acts(max: usize) -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 0..max)
}

fn era() -> impl Strategy<Value = Era> {
    prop_oneof![
        3 => acts(16).prop_map(Era::InSync),
        4 => (acts(24), prop::collection::vec(step(), 0..6))
            .prop_map(|(primary, secondary)| Era::Apart { primary, secondary }),
        3 => acts(16).prop_map(Era::Arrival),
        1 => (acts(8), 0..8_u64).prop_map(|(acts, at)| Era::LostArrival(acts, at)),
        1 => Just(Era::Failover),
        1 => any::<bool>().prop_map(Era::Kill),
    ]
}

/// Two nodes, and the states that snapshots must show.
struct Pair {
    primary: Node,
    secondary: Node,
    moments: Mutex<BTreeMap<SnapshotId, State>>,
}

impl Pair {
    fn new() -> Self {
        let pair = Self {
            primary: Node::new(),
            secondary: Node::new(),
            moments: Mutex::default(),
        };
        pair.resync();
        pair
    }

    fn both(&self) -> [&Node; 2] {
        [&self.secondary, &self.primary]
    }

    fn commit(&self, nodes: &[&Node], request: MetaRequest) -> SnapshotId {
        let (osn, time) = self.primary.stamp();
        let op = MetaOp { osn, time, request };
        for node in nodes {
            node.store().commit(&op).unwrap();
        }
        SnapshotId::of_operation(osn)
    }

    fn create(&self, nodes: &[&Node], kind: SnapshotKind) -> SnapshotId {
        let (sequence, _) = self.primary.stamp();
        let name = SnapshotName::new(format!("s{}", sequence.sequence)).unwrap();
        let inos_below = self.primary.store().image().inos_below();
        let id = self.commit(
            nodes,
            MetaRequest::SnapshotCreate {
                name,
                kind,
                inos_below,
            },
        );
        let state = State::present(self.primary.store());
        self.moments.lock().unwrap().insert(id, state);
        id
    }

    fn delete(&self, nodes: &[&Node], id: SnapshotId) {
        self.commit(nodes, MetaRequest::SnapshotDelete { id });
        self.moments.lock().unwrap().remove(&id);
    }

    fn act(&self, nodes: &[&Node], act: &Act) {
        match act {
            Act::Step(step) if nodes.len() == 2 => mirror(&self.primary, &self.secondary, step),
            Act::Step(step) => take_all(&self.primary, std::slice::from_ref(step)),
            Act::Create => drop(self.create(nodes, SnapshotKind::User)),
            Act::Delete(number) => {
                let moments = self.moments.lock().unwrap();
                let id = moments
                    .keys()
                    .nth(usize::from(*number) % moments.len().max(1));
                let id = id.copied();
                drop(moments);
                if let Some(id) = id {
                    self.delete(nodes, id);
                }
            }
            Act::Tidy => {
                for node in nodes {
                    node.store().collect_garbage().unwrap();
                    SnapshotAccess::of(node.store()).resume_deletions().unwrap();
                }
            }
        }
    }

    fn apart(&self, primary: &[Act], secondary: &[Step]) {
        take_all(&self.secondary, secondary);
        // Another primary gives out higher numbers of operations, and of inodes.
        let (osn, _) = self.secondary.stamp();
        self.primary.later_than(osn.sequence);
        for act in primary {
            self.act(&[&self.primary], act);
        }
        self.resync();
    }

    fn resync(&self) {
        let copy = CopyBefore {
            is_exact: true,
            own_of: None,
            time: Timestamp::default(),
        };
        let fallback = FallbackAccess::of(self.secondary.store());
        fallback.begin(copy).unwrap();
        let peer = LocalPeer::new(&self.secondary);
        resync(&self.primary, &peer, &FreeLocks).unwrap();
        fallback.end().unwrap();
        let (osn, _) = self.primary.stamp();
        self.secondary.later_than(osn.sequence);
    }

    fn arrive(&self, acts: &[Act], lost_at: u64) -> Arrived {
        for node in self.both() {
            SnapshotAccess::of(node.store()).resume_deletions().unwrap();
        }
        let mut peer = LocalPeer::new(&self.secondary);
        peer.lost_at = lost_at;
        let peer = BusyPeer {
            peer,
            pair: self,
            acts: Mutex::new(acts.iter().cloned().collect()),
        };
        let made = self.create(&self.both(), SnapshotKind::Arrival);
        let arrived = SnapshotsOfBoth::ask(self.primary.store(), &peer).and_then(|of_both| {
            Arrival::new(self.primary.store(), &peer, &FreeLocks, &|| true).bring(of_both)
        });
        let left: Vec<Act> = peer.acts.into_inner().unwrap().into_iter().collect();
        for act in left {
            self.act(&self.both(), &act);
        }
        if self.moments.lock().unwrap().contains_key(&made) {
            self.delete(&self.both(), made);
        }
        match arrived {
            Ok(arrived) => arrived,
            Err(error) => {
                assert!(lost_at < u64::MAX, "{error}");
                Arrived {
                    is_cut_short: true,
                    ..Arrived::default()
                }
            }
        }
    }

    /// Each snapshot that a node has whole shows its moment.
    fn check(&self) {
        for node in self.both() {
            let snapshots = SnapshotAccess::of(node.store());
            for (id, record) in snapshots.list() {
                if id.is_local() || !record.is_whole() {
                    continue;
                }
                let shown = State::of(&snapshots.view(id).unwrap());
                let moments = self.moments.lock().unwrap();
                let of = if std::ptr::eq(node, &raw const self.primary) {
                    "primary"
                } else {
                    "secondary"
                };
                if let Some(text) = moments.get(&id).unwrap().difference(&shown) {
                    panic!("{id} on the {of}: {text}");
                }
            }
        }
    }

    fn check_none_is_missing(&self) {
        for node in self.both() {
            let snapshots = SnapshotAccess::of(node.store());
            let alive = snapshots.list();
            let alive = alive
                .iter()
                .filter(|(id, record)| !id.is_local() && record.is_whole());
            assert!(
                alive
                    .map(|(id, _)| id)
                    .eq(self.moments.lock().unwrap().keys())
            );
        }
    }

    fn live(&mut self, era: &Era) {
        match era {
            Era::InSync(acts) => {
                for act in acts {
                    self.act(&self.both(), act);
                }
            }
            Era::Apart { primary, secondary } => self.apart(primary, secondary),
            Era::Arrival(acts) => drop(self.arrive(acts, u64::MAX)),
            Era::LostArrival(acts, at) => drop(self.arrive(acts, *at)),
            Era::Failover => {
                std::mem::swap(&mut self.primary, &mut self.secondary);
                let (osn, _) = self.secondary.stamp();
                self.primary.later_than(osn.sequence + 1);
            }
            Era::Kill(true) => self.primary.restart(),
            Era::Kill(false) => self.secondary.restart(),
        }
    }
}

/// The secondary, while clients change both nodes.
struct BusyPeer<'a> {
    peer: LocalPeer<'a>,
    pair: &'a Pair,
    acts: Mutex<VecDeque<Act>>,
}

impl Peer for BusyPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        for _ in 0..2 {
            let act = self.acts.lock().unwrap().pop_front();
            if let Some(act) = act {
                self.pair.act(&self.pair.both(), &act);
            }
        }
        self.peer.ask(request, payload)
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        max_shrink_iters: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_snapshot_that_arrives_shows_its_moment(eras in prop::collection::vec(era(), 1..8)) {
        live_and_check(&eras);
    }
}

fn live_and_check(eras: &[Era]) {
    let mut pair = Pair::new();
    for era in eras {
        pair.live(era);
        pair.check();
    }
    while pair.arrive(&[], u64::MAX).is_cut_short {}
    pair.check();
    pair.check_none_is_missing();
    assert_equal(&pair.primary, &pair.secondary);
}

/// A deposed node has freed a file that a snapshot sees, and the resync brings the file back under its number.
#[test]
fn a_snapshot_keeps_the_content_of_a_file_that_a_resync_brings_back() {
    let file = |number| Act::Step(Step::Create(0, number, NodeKind::File));
    live_and_check(&[
        Era::InSync(vec![
            file(3),
            Act::Step(Step::Write(0, 0, 1, 1)),
            Act::Create,
        ]),
        Era::Apart {
            primary: vec![file(0)],
            secondary: vec![Step::Unlink(0, 3), Step::Reap(0)],
        },
    ]);
}

/// The primary has freed a file, and its content is not removed yet.
#[test]
fn the_content_of_a_freed_file_arrives() {
    let file = |number| Act::Step(Step::Create(0, number, NodeKind::File));
    live_and_check(&[
        Era::InSync(vec![file(3)]),
        Era::Apart {
            primary: vec![
                Act::Step(Step::Write(0, 0, 1, 1)),
                Act::Create,
                Act::Step(Step::Unlink(0, 3)),
                Act::Step(Step::Reap(0)),
            ],
            secondary: vec![],
        },
    ]);
}

/// The blocks of a chunk were kept one after the other.
#[test]
fn blocks_arrive_in_their_order() {
    let write = |offset, length, fill| Act::Step(Step::Write(0, offset, length, fill));
    live_and_check(&[Era::Apart {
        primary: vec![
            Act::Step(Step::Create(0, 0, NodeKind::File)),
            write(1, 16_384, 1),
            Act::Create,
            write(4096, 1, 0),
            write(0, 1, 0),
        ],
        secondary: vec![],
    }]);
}

/// Two resyncs, one after the other, have kept blocks of one chunk, and both fallbacks go at once.
#[test]
fn the_blocks_of_two_fallbacks_that_go_at_once_stay() {
    let write = |offset, length, fill| Act::Step(Step::Write(0, offset, length, fill));
    live_and_check(&[
        Era::InSync(vec![
            Act::Step(Step::Create(0, 1, NodeKind::File)),
            write(1_000_000, 3521, 1),
            Act::Create,
        ]),
        Era::Apart {
            primary: vec![],
            secondary: vec![Step::Write(0, 1_048_576, 4273, 86)],
        },
        Era::Apart {
            primary: vec![Act::Step(Step::Truncate(0, 7394))],
            secondary: vec![],
        },
    ]);
}
