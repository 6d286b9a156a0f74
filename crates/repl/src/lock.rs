//! The lock manager: operation locks, range locks and name locks (paper, section 4.1).
//!
//! An operation asks for all its locks at once. The operation gets all of them, at once or later, and holds them
//! until both nodes are done with it (rule P4). A request waits only for holders and for earlier requests; holders wait
//! for no lock. So no two operations wait for each other, and each request is granted in the end.
//!
//! A waiting operation is *behind* one operation that stands in its way, and is looked at again when that one has given
//! its locks back. So the end of an operation costs nothing for the operations that wait for others.
//!
//! The lock manager does no IO and parks no thread: it says which operation may go on.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use lockstep_types::{FileName, Ino};
use smallvec::SmallVec;

use self::key_claims::{KeyClaim, KeyClaims, Ticket};

mod key_claims;
mod mode;

pub use self::mode::{BlockRange, LockMode, OpId};

/// A lockable thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKey {
    /// The shape of the directory tree: a move of a directory holds this lock.
    Tree,
    /// A name in a directory. Names with equal hashes share a lock, which only costs time.
    Name(Ino, u64),
    /// A file or directory.
    File(Ino),
    /// The number of directories in a directory. The creation of a directory holds this lock, because there is a limit
    /// and the number does not include directories whose creation is still under way.
    Subdirectories(Ino),
    /// The list of snapshots. Each operation on snapshots holds this lock.
    Snapshots,
}

impl LockKey {
    /// The lock of `name` in `directory`.
    pub fn name(directory: Ino, name: &FileName) -> Self {
        let mut hasher = DefaultHasher::new();
        name.as_bytes().hash(&mut hasher);
        Self::Name(directory, hasher.finish())
    }
}

/// The locks of one operation; few enough to keep in place.
pub type LockSet = SmallVec<[(LockKey, LockMode); 2]>;

/// All locks of a datastore.
#[derive(Debug, Default)]
pub struct LockTable {
    keys: HashMap<LockKey, KeyClaims>,
    waiting: HashMap<OpId, LockSet>,
    /// The waiting operations behind each operation.
    behind: HashMap<OpId, Vec<(Ticket, OpId)>>,
    arrivals: Ticket,
}

impl LockTable {
    /// Whether `locks` would be held at once by an operation that asks for them now.
    pub fn would_grant(&self, locks: &LockSet) -> bool {
        self.conflict_before(self.arrivals + 1, locks).is_none()
    }

    /// An earlier operation that stands in the way of one that asked for `locks`.
    fn conflict_before(&self, ticket: Ticket, locks: &LockSet) -> Option<OpId> {
        locks
            .iter()
            .find_map(|(key, mode)| self.keys.get(key)?.conflict_before(ticket, *mode))
    }

    /// Asks for `locks` in the name of `op`. Returns whether `op` holds the locks now; if not, a later
    /// [`LockTable::release`] reports the grant. A key may occur several times in `locks`, with modes that do not conflict.
    pub fn acquire(&mut self, op: OpId, locks: &LockSet) -> bool {
        let ticket = self.arrivals + 1;
        let conflict = self.conflict_before(ticket, locks);
        for &(key, mode) in locks {
            self.arrivals += 1;
            let ticket = self.arrivals;
            let claims = self.keys.entry(key).or_default();
            claims.add(KeyClaim { op, mode, ticket });
        }
        let Some(earlier) = conflict else {
            return true;
        };
        self.waiting.insert(op, locks.clone());
        self.wait_behind(earlier, ticket, op);
        false
    }

    fn wait_behind(&mut self, earlier: OpId, ticket: Ticket, op: OpId) {
        self.behind.entry(earlier).or_default().push((ticket, op));
    }

    /// Gives back the locks of `op`, which holds them. Calls `granted` with each operation that holds its locks now, in
    /// the order in which the operations asked.
    pub fn release(&mut self, op: OpId, locks: &LockSet, mut granted: impl FnMut(OpId)) {
        for (key, _) in locks {
            let Some(claims) = self.keys.get_mut(key) else {
                continue;
            };
            claims.remove(op);
            if claims.len() == 0 {
                self.keys.remove(key);
            }
        }
        let mut behind = self.behind.remove(&op).unwrap_or_default();
        behind.sort_unstable();
        for (ticket, next) in behind {
            let locks = self.waiting.get(&next);
            match locks.and_then(|locks| self.conflict_before(ticket, locks)) {
                Some(earlier) => self.wait_behind(earlier, ticket, next),
                None if self.waiting.remove(&next).is_some() => granted(next),
                None => {}
            }
        }
    }

    /// Number of locks that are held or awaited. Counts them key by key.
    pub fn len(&self) -> usize {
        self.keys.values().map(KeyClaims::len).sum()
    }

    /// Whether no lock is held or awaited.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.waiting.is_empty() && self.behind.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::limits::BLOCK_BYTES;
    use proptest::prelude::*;

    use super::*;

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    fn one(key: LockKey, mode: LockMode) -> LockSet {
        LockSet::from_slice(&[(key, mode)])
    }

    fn write(offset: u64, length: u64) -> LockSet {
        one(
            LockKey::File(ino(9)),
            LockMode::Write(BlockRange::new(offset, length)),
        )
    }

    #[test]
    fn writes_to_one_block_wait_and_others_do_not() {
        let mut table = LockTable::default();
        assert!(table.acquire(OpId(1), &write(0, 10)));
        assert!(!table.acquire(OpId(2), &write(4000, 200)));
        assert!(table.acquire(OpId(3), &write(8192, 1)));
        let mut granted = Vec::new();
        table.release(OpId(1), &write(0, 10), |op| granted.push(op));
        assert_eq!(granted, [OpId(2)]);
    }

    #[test]
    fn a_waiting_metadata_operation_is_not_overtaken() {
        let mut table = LockTable::default();
        let alone = one(LockKey::File(ino(9)), LockMode::Exclusive);
        assert!(table.acquire(OpId(1), &write(0, 1)));
        assert!(!table.acquire(OpId(2), &alone));
        assert!(!table.acquire(OpId(3), &write(8192, 1)));
        let mut granted = Vec::new();
        table.release(OpId(1), &write(0, 1), |op| granted.push(op));
        assert_eq!(granted, [OpId(2)]);
        table.release(OpId(2), &alone, |op| granted.push(op));
        assert_eq!(granted, [OpId(2), OpId(3)]);
        table.release(OpId(3), &write(8192, 1), |op| granted.push(op));
        assert!(table.is_empty());
    }

    /// The rule, one line each: an operation gets its locks when no holder and no earlier operation conflicts.
    #[derive(Default)]
    struct NaiveTable(Vec<NaiveOp>);

    struct NaiveOp {
        op: OpId,
        locks: LockSet,
        holds: bool,
    }

    fn conflict(a: &LockSet, b: &LockSet) -> bool {
        let mut pairs = a
            .iter()
            .flat_map(|one| b.iter().map(move |other| (one, other)));
        pairs.any(|((key, mode), (other, of_other))| key == other && mode.conflicts(*of_other))
    }

    impl NaiveTable {
        fn is_free(&self, at: usize, locks: &LockSet) -> bool {
            let others = self.0.iter().enumerate();
            let mut in_the_way =
                others.filter(|(place, other)| *place != at && (*place < at || other.holds));
            !in_the_way.any(|(_, other)| conflict(&other.locks, locks))
        }

        fn acquire(&mut self, op: OpId, locks: &LockSet) -> bool {
            let holds = self.is_free(self.0.len(), locks);
            let locks = locks.clone();
            self.0.push(NaiveOp { op, locks, holds });
            holds
        }

        fn release(&mut self, op: OpId) -> Vec<OpId> {
            self.0.retain(|other| other.op != op);
            let mut granted = Vec::new();
            for at in 0..self.0.len() {
                if !self.0[at].holds && self.is_free(at, &self.0[at].locks) {
                    self.0[at].holds = true;
                    granted.push(self.0[at].op);
                }
            }
            granted
        }

        fn holders(&self) -> Vec<(OpId, LockSet)> {
            let holders = self.0.iter().filter(|other| other.holds);
            holders
                .map(|other| (other.op, other.locks.clone()))
                .collect()
        }
    }

    /// Many operations of few modes on few keys: blocks beside one another, and some ranges that are empty, long or endless.
    fn crowded_locks() -> impl Strategy<Value = LockSet> {
        let blocks = |count: u64| count * BLOCK_BYTES as u64;
        let length = prop_oneof![
            10 => (1..4u64).prop_map(blocks),
            4 => (1..300u64).prop_map(blocks),
            1 => Just(0),
            1 => Just(u64::MAX),
        ];
        let range =
            (0..400u64, length).prop_map(move |(at, length)| BlockRange::new(blocks(at), length));
        let mode = prop_oneof![
            1 => Just(LockMode::Exclusive),
            2 => Just(LockMode::Shared),
            10 => range.clone().prop_map(LockMode::Read),
            10 => range.clone().prop_map(LockMode::Write),
        ];
        let of_file = |(number, mode)| (LockKey::File(ino(number)), mode);
        let of_many = prop::collection::btree_map(1..3u64, mode, 1..3);
        let parts_of_one = (1..3u64, prop::collection::vec(range, 2..20));
        prop_oneof![
            9 => of_many.prop_map(move |locks| locks.into_iter().map(of_file).collect()),
            1 => parts_of_one.prop_map(move |(number, parts)| {
                let parts = parts.into_iter().map(LockMode::Read);
                parts.map(|mode| of_file((number, mode))).collect()
            }),
        ]
    }

    /// Each waiting operation is behind one other, so a release looks at one operation, however many wait.
    #[test]
    fn a_release_looks_at_the_next_operation_only() {
        const WAITERS: u64 = 1000;
        let alone = one(LockKey::File(ino(9)), LockMode::Exclusive);
        for locks in [alone, write(0, 1)] {
            let mut table = LockTable::default();
            for op in 0..=WAITERS {
                assert_eq!(table.acquire(OpId(op), &locks), op == 0);
            }
            for op in 0..WAITERS {
                assert_eq!(table.behind[&OpId(op)].len(), 1);
                let mut granted = Vec::new();
                table.release(OpId(op), &locks, |next| granted.push(next));
                assert_eq!(granted, [OpId(op + 1)]);
            }
            table.release(OpId(WAITERS), &locks, |_| panic!("nobody waits"));
            assert!(table.is_empty());
        }
    }

    fn any_locks() -> impl Strategy<Value = LockSet> {
        let mode = prop_oneof![
            Just(LockMode::Exclusive),
            Just(LockMode::Shared),
            (0..4u64, 1..3u64)
                .prop_map(|(at, blocks)| LockMode::Read(BlockRange::new(at * 4096, blocks * 4096))),
            (0..4u64, 1..3u64).prop_map(|(at, blocks)| LockMode::Write(BlockRange::new(
                at * 4096,
                blocks * 4096
            ))),
        ];
        prop::collection::btree_map(1..4u64, mode, 1..3).prop_map(|locks| {
            locks
                .into_iter()
                .map(|(number, mode)| (LockKey::File(ino(number)), mode))
                .collect()
        })
    }

    proptest! {
        /// The table grants what the rule grants, in the same order, also where many operations wait for one key.
        #[test]
        fn the_table_grants_as_the_rule_does(
            steps in prop::collection::vec((crowded_locks(), 0..4u8, any::<prop::sample::Index>()), 1..400)
        ) {
            let (mut table, mut naive) = (LockTable::default(), NaiveTable::default());
            let released = |table: &mut LockTable, naive: &mut NaiveTable, index: prop::sample::Index| {
                let holders = naive.holders();
                let (op, locks) = &holders[index.index(holders.len())];
                let mut granted = Vec::new();
                table.release(*op, locks, |next| granted.push(next));
                (granted, naive.release(*op))
            };
            let last = steps[0].2;
            for (number, (locks, choice, index)) in steps.into_iter().enumerate() {
                let op = OpId(number as u64);
                let would = table.would_grant(&locks);
                let granted = table.acquire(op, &locks);
                prop_assert_eq!(granted, naive.acquire(op, &locks));
                prop_assert_eq!(granted, would);
                if choice == 0 {
                    let (granted, expected) = released(&mut table, &mut naive, index);
                    prop_assert_eq!(granted, expected);
                }
            }
            while !naive.0.is_empty() {
                let (granted, expected) = released(&mut table, &mut naive, last);
                prop_assert_eq!(granted, expected);
            }
            prop_assert!(table.is_empty());
        }

        /// Two holders never conflict; each request is granted in the end; conflicting requests are granted in the
        /// order of their arrival.
        #[test]
        fn holders_never_conflict_and_all_are_served(
            requests in prop::collection::vec((any_locks(), any::<prop::sample::Index>()), 1..60)
        ) {
            let mut table = LockTable::default();
            let mut holding: Vec<(OpId, LockSet)> = Vec::new();
            let mut waiting: Vec<(OpId, LockSet)> = Vec::new();
            let conflict = |a: &LockSet, b: &LockSet| a.iter().any(|(ka, ma)| {
                b.iter().any(|(kb, mb)| ka == kb && ma.conflicts(*mb))
            });
            let release = |table: &mut LockTable, at: usize,
                               holding: &mut Vec<(OpId, LockSet)>,
                               waiting: &mut Vec<(OpId, LockSet)>| {
                let (op, locks) = holding.remove(at);
                table.release(op, &locks, |granted| {
                    let at = waiting.iter().position(|(op, _)| *op == granted).unwrap();
                    for (_, earlier) in &waiting[..at] {
                        assert!(!conflict(earlier, &waiting[at].1), "overtaken");
                    }
                    let next = waiting.remove(at);
                    for (_, held) in holding.iter() {
                        assert!(!conflict(held, &next.1), "two holders in conflict");
                    }
                    holding.push(next);
                });
            };
            for (number, (locks, index)) in requests.into_iter().enumerate() {
                let op = OpId(number as u64);
                if table.acquire(op, &locks) {
                    for (_, other) in holding.iter().chain(&waiting) {
                        prop_assert!(!conflict(other, &locks));
                    }
                    holding.push((op, locks));
                } else {
                    waiting.push((op, locks));
                }
                if !holding.is_empty() && number % 2 == 0 {
                    let at = index.index(holding.len());
                    release(&mut table, at, &mut holding, &mut waiting);
                }
            }
            while !holding.is_empty() {
                release(&mut table, 0, &mut holding, &mut waiting);
            }
            prop_assert!(waiting.is_empty());
            prop_assert!(table.is_empty());
        }
    }
}
