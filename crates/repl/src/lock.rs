//! The lock manager: operation locks, range locks and name locks (paper, section 4.1).
//!
//! An operation asks for all its locks at once. The operation gets all of them, at once or later, and holds them
//! until both nodes are done with it (rule P4). A request waits only for holders and for earlier requests; holders wait
//! for no lock. So no two operations wait for each other, and each request is granted in the end.
//!
//! The lock manager does no IO and parks no thread: it says which operation may go on.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{FileName, Ino};
use smallvec::SmallVec;

/// Identity of an operation for the lock manager and the core, as long as the operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

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
}

impl LockKey {
    /// The lock of `name` in `directory`.
    pub fn name(directory: Ino, name: &FileName) -> Self {
        let mut hasher = DefaultHasher::new();
        name.as_bytes().hash(&mut hasher);
        Self::Name(directory, hasher.finish())
    }
}

/// The way in which a key is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Alone: for a metadata operation on the key.
    Exclusive,
    /// Together with other operations that do not change the key: for an operation that needs the key to stay.
    Shared,
    /// As shared, and the blocks of the range together with other readers.
    Read(BlockRange),
    /// As shared, and the blocks of the range alone.
    Write(BlockRange),
}

/// A range of bytes widened to whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    start: u64,
    end: u64,
}

impl BlockRange {
    /// The blocks that bytes `offset..offset + length` touch.
    pub fn new(offset: u64, length: u64) -> Self {
        let block = BLOCK_BYTES as u64;
        Self {
            start: offset / block * block,
            end: offset
                .saturating_add(length)
                .div_ceil(block)
                .saturating_mul(block),
        }
    }

    const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl LockMode {
    const fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Exclusive, _) | (_, Self::Exclusive) => true,
            (Self::Write(a), Self::Read(b) | Self::Write(b)) | (Self::Read(a), Self::Write(b)) => {
                a.overlaps(b)
            }
            _ => false,
        }
    }
}

/// The locks of one operation; few enough to keep in place.
pub type LockSet = SmallVec<[(LockKey, LockMode); 2]>;

/// The claim of one operation on one key.
#[derive(Clone, Copy, Debug)]
struct KeyClaim {
    op: OpId,
    mode: LockMode,
    /// Position in the order of arrival.
    ticket: u64,
}

/// The holders and the waiting claims of one key.
#[derive(Debug, Default)]
struct KeyState {
    holders: SmallVec<[KeyClaim; 4]>,
    waiters: VecDeque<KeyClaim>,
}

impl KeyState {
    /// Whether a claim that arrived at `ticket` may hold this key.
    fn admits(&self, mode: LockMode, ticket: u64) -> bool {
        let held = self.holders.iter().any(|claim| claim.mode.conflicts(mode));
        let awaited = self
            .waiters
            .iter()
            .take_while(|claim| claim.ticket < ticket)
            .any(|claim| claim.mode.conflicts(mode));
        !held && !awaited
    }
}

/// A waiting operation.
#[derive(Debug)]
struct Waiter {
    locks: LockSet,
    ticket: u64,
}

/// All locks of a datastore.
#[derive(Debug, Default)]
pub struct LockTable {
    keys: HashMap<LockKey, KeyState>,
    waiting: HashMap<OpId, Waiter>,
    arrivals: u64,
}

impl LockTable {
    /// Whether `locks` would be held at once by an operation that asks for them now.
    pub fn would_grant(&self, locks: &LockSet) -> bool {
        self.is_free(locks, self.arrivals + 1)
    }

    fn is_free(&self, locks: &LockSet, ticket: u64) -> bool {
        let admits = |(key, mode): &(LockKey, LockMode)| {
            let state = self.keys.get(key);
            state.is_none_or(|state| state.admits(*mode, ticket))
        };
        locks.iter().all(admits)
    }

    /// Asks for `locks` in the name of `op`. Returns whether `op` holds the locks now; if not, a later
    /// [`LockTable::release`] reports the grant. No key may occur twice in `locks`.
    pub fn acquire(&mut self, op: OpId, locks: &LockSet) -> bool {
        self.arrivals += 1;
        let ticket = self.arrivals;
        let free = self.is_free(locks, ticket);
        for &(key, mode) in locks {
            let claim = KeyClaim { op, mode, ticket };
            let state = self.keys.entry(key).or_default();
            if free {
                state.holders.push(claim);
            } else {
                state.waiters.push_back(claim);
            }
        }
        if !free {
            let locks = locks.clone();
            self.waiting.insert(op, Waiter { locks, ticket });
        }
        free
    }

    /// Gives back the locks of `op`, which holds them. Calls `granted` with each operation that holds its locks now, in
    /// the order in which the operations asked.
    pub fn release(&mut self, op: OpId, locks: &LockSet, mut granted: impl FnMut(OpId)) {
        let mut candidates: SmallVec<[(u64, OpId); 4]> = SmallVec::new();
        for (key, _) in locks {
            let Some(state) = self.keys.get_mut(key) else {
                continue;
            };
            state.holders.retain(|claim| claim.op != op);
            candidates.extend(state.waiters.iter().map(|claim| (claim.ticket, claim.op)));
            if state.holders.is_empty() && state.waiters.is_empty() {
                self.keys.remove(key);
            }
        }
        candidates.sort_unstable();
        candidates.dedup();
        for (_, waiter) in candidates {
            if self.try_grant(waiter) {
                granted(waiter);
            }
        }
    }

    /// Turns the claims of a waiting operation into holds, if no other claim conflicts.
    fn try_grant(&mut self, op: OpId) -> bool {
        let Some(waiter) = self.waiting.get(&op) else {
            return false;
        };
        let free = self.is_free(&waiter.locks, waiter.ticket);
        let Some(waiter) = free.then(|| self.waiting.remove(&op)).flatten() else {
            return false;
        };
        for &(key, mode) in &waiter.locks {
            let state = self.keys.entry(key).or_default();
            state.waiters.retain(|claim| claim.op != op);
            let ticket = waiter.ticket;
            state.holders.push(KeyClaim { op, mode, ticket });
        }
        true
    }

    /// Number of locks that are held or awaited. Counts them one by one.
    pub fn len(&self) -> usize {
        let of_key = |state: &KeyState| state.holders.len() + state.waiters.len();
        self.keys.values().map(of_key).sum()
    }

    /// Whether no lock is held or awaited.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
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
