//! The inodes that the kernel knows: those that it has looked up and not forgotten.
//!
//! The kernel drops a cache only by the number of an inode, so a drop of all caches needs the set of numbers
//! (`cache_drop`). An open file keeps its inode in the set: the kernel forgets an inode only after the last close.
//!
//! The numbers are in the memory of the mount, too. So the next process has the set, without the counts of references. The
//! kernel forgets all references to an inode at once, so a FORGET of more references than this process has counted is the last.
//!
//! Invariant: an inode whose number was in an answer is in the set, and in the memory of the mount, before the kernel gets the
//! answer. It may stay there after the kernel has forgotten the inode, never the other way round.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::Ino;
use parking_lot::Mutex;

use crate::memory::mount_memory::MountMemory;

const SHARDS: u64 = 16;

/// Two known inodes whose numbers differ by less go into one range, with the numbers between them.
const GAP_MAX: u64 = 16;

/// The references of the kernel, by inode.
#[derive(Debug)]
pub(crate) struct KnownInodes {
    shards: Vec<Mutex<InodeShard>>,
    memory: MountMemory,
    /// A number could not be written to the memory of the mount. The log says that once.
    is_incomplete: AtomicBool,
    has_old_sizes: AtomicBool,
}

/// The inodes whose numbers have the same remainder.
#[derive(Debug, Default)]
struct InodeShard {
    inodes: HashMap<Ino, KnownInode>,
    places: Places,
}

/// A known inode.
#[derive(Clone, Copy, Debug)]
struct KnownInode {
    /// References that this process has counted.
    references: u64,
    /// An earlier process has counted references, too.
    is_inherited: bool,
    /// The place of the number in the memory of the mount.
    place: u64,
}

/// The places of one shard in the memory of the mount: the numbers with one remainder.
#[derive(Debug, Default)]
struct Places {
    free: BTreeSet<u64>,
    /// Number of places that were ever in use.
    used: u64,
}

impl KnownInodes {
    /// The inodes in the memory of a mount, which an earlier process may have left.
    pub fn of(memory: &MountMemory) -> io::Result<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let known = Self {
            shards,
            memory: memory.clone(),
            is_incomplete: AtomicBool::new(false),
            has_old_sizes: AtomicBool::new(false),
        };
        for (place, ino) in memory.inodes()? {
            known.shard(ino).lock().inherit(ino, place);
        }
        Ok(known)
    }

    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn shard(&self, ino: Ino) -> &Mutex<InodeShard> {
        &self.shards[usize::try_from(ino.get() % SHARDS).unwrap_or(0)]
    }

    /// The other node may have served. A drop of the caches does not reach the size by which the kernel places an append.
    pub fn note_old_sizes(&self) {
        self.has_old_sizes.store(true, Ordering::Release);
    }

    /// Whether the kernel may place an append by an old size.
    pub fn has_old_sizes(&self) -> bool {
        self.has_old_sizes.load(Ordering::Acquire)
    }

    /// Counts more references.
    pub fn remember(&self, ino: Ino, count: u64) {
        let mut shard = self.shard(ino).lock();
        if let Some(known) = shard.inodes.get_mut(&ino) {
            known.references += count;
            return;
        }
        let place = shard.add(ino, count);
        self.note_failure(self.memory.write_inode(place, ino));
    }

    /// Counts references fewer.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut shard = self.shard(ino).lock();
        if let Some(place) = shard.forget(ino, count) {
            self.note_failure(self.memory.clear_inode(place));
        }
    }

    /// All known inodes in the order of their numbers. The root is always known.
    pub fn list(&self) -> Vec<Ino> {
        let mut all = vec![Ino::ROOT];
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.inodes.keys().filter(|ino| **ino != Ino::ROOT));
        }
        all.sort_unstable();
        all
    }

    fn note_failure(&self, written: io::Result<()>) {
        if let Err(error) = written
            && !self.is_incomplete.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                %error,
                "the memory of the mount cannot be written: after a restart of this process the kernel may show old attributes"
            );
        }
    }
}

impl InodeShard {
    /// Takes over an inode from an earlier process.
    fn inherit(&mut self, ino: Ino, place: u64) {
        self.places.take_given(place, ino.get() % SHARDS);
        let inherited = KnownInode {
            references: 0,
            is_inherited: true,
            place,
        };
        self.inodes.insert(ino, inherited);
    }

    /// Adds an inode, and returns its place.
    fn add(&mut self, ino: Ino, references: u64) -> u64 {
        let place = self.places.take(ino.get() % SHARDS);
        let known = KnownInode {
            references,
            is_inherited: false,
            place,
        };
        self.inodes.insert(ino, known);
        place
    }

    /// Counts references fewer. Returns the place of the inode if these were the last.
    fn forget(&mut self, ino: Ino, count: u64) -> Option<u64> {
        let known = self.inodes.get_mut(&ino)?;
        let is_last = if known.is_inherited {
            count > known.references
        } else {
            count >= known.references
        };
        if !is_last {
            known.references -= count;
            return None;
        }
        let place = known.place;
        self.inodes.remove(&ino);
        self.places.free.insert(place);
        Some(place)
    }
}

impl Places {
    fn take(&mut self, remainder: u64) -> u64 {
        self.free.pop_first().unwrap_or_else(|| {
            self.used += 1;
            (self.used - 1) * SHARDS + remainder
        })
    }

    /// Takes a place that is in use already.
    fn take_given(&mut self, place: u64, remainder: u64) {
        let used = place / SHARDS + 1;
        self.free
            .extend((self.used..used).map(|at| at * SHARDS + remainder));
        self.used = self.used.max(used);
        self.free.remove(&place);
    }
}

/// The ranges of sorted numbers.
pub(crate) fn ranges(sorted: &[Ino]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for ino in sorted {
        let (first, end) = (ino.get(), ino.get().saturating_add(1));
        match ranges.last_mut() {
            Some(last) if first.saturating_sub(last.end) < GAP_MAX => last.end = end,
            _ => ranges.push(first..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mount_memory::MountRecord;

    fn memory() -> MountMemory {
        MountMemory::create(&MountRecord::new(7, "/srv/data".into())).unwrap()
    }

    /// Numbers of one shard.
    fn inodes() -> [Ino; 3] {
        [3, 19, 35].map(|number| Ino::new(number).unwrap())
    }

    #[test]
    fn an_inode_is_known_until_its_last_reference_goes() {
        let known = KnownInodes::of(&memory()).unwrap();
        let [one, two, _] = inodes();
        known.remember(two, 2);
        known.remember(one, 1);
        known.remember(Ino::ROOT, 1);
        assert_eq!(known.list(), [Ino::ROOT, one, two]);
        known.forget(two, 1);
        known.forget(one, 5);
        known.forget(Ino::ROOT, 1);
        assert_eq!(known.list(), [Ino::ROOT, two]);
        known.forget(two, 1);
        assert_eq!(known.list(), [Ino::ROOT]);
    }

    #[test]
    fn the_next_process_knows_the_inodes_that_were_not_forgotten() {
        let memory = memory();
        let [one, two, three] = inodes();
        let first = KnownInodes::of(&memory).unwrap();
        for ino in [one, two, three] {
            first.remember(ino, 2);
        }
        first.forget(one, 2);
        let second = KnownInodes::of(&memory).unwrap();
        assert_eq!(second.list(), [Ino::ROOT, two, three]);
        // The place of the forgotten inode is used again, and no other.
        second.remember(one, 1);
        second.remember(two, 1);
        // A failed lookup gives back one reference, and the end of an inode all, also those of the earlier process.
        second.forget(two, 1);
        second.forget(three, 2);
        assert_eq!(second.list(), [Ino::ROOT, one, two]);
        second.forget(two, 2);
        let third = KnownInodes::of(&memory).unwrap();
        assert_eq!(third.list(), [Ino::ROOT, one]);
        assert_eq!(memory.inodes().unwrap(), [(3, one)]);
    }

    #[test]
    fn near_numbers_share_a_range() {
        let numbers = [1, 2, 3, 10, 40, 100, 101];
        let inodes: Vec<Ino> = numbers.iter().filter_map(|n| Ino::new(*n)).collect();
        assert_eq!(ranges(&inodes), [1..11, 40..41, 100..102]);
        assert_eq!(ranges(&[]), []);
    }
}
