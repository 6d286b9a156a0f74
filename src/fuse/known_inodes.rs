//! The inodes that the kernel knows: those that it has looked up and not forgotten.
//!
//! The kernel drops a cache only by the number of an inode, so a drop of all caches needs the set of numbers
//! (`cache_drop`). An open file keeps its inode in the set: the kernel forgets an inode only after the last close.
//!
//! Invariant: an inode whose number was in an answer is in the set before the kernel gets the answer. It may stay there
//! after the kernel has forgotten the inode, never the other way round.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::Ino;
use parking_lot::Mutex;

const SHARDS: usize = 16;

/// The references of the kernel, by inode.
#[derive(Debug, Default)]
pub(super) struct KnownInodes {
    shards: [Mutex<HashMap<Ino, u64>>; SHARDS],
    has_old_sizes: AtomicBool,
}

impl KnownInodes {
    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, u64>> {
        &self.shards[usize::try_from(ino.get() % SHARDS as u64).unwrap_or(0)]
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
        *self.shard(ino).lock().entry(ino).or_default() += count;
    }

    /// Counts references fewer. The kernel may forget more than this process has counted: an earlier process may have
    /// served the mount.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut shard = self.shard(ino).lock();
        if let Some(references) = shard.get_mut(&ino) {
            *references = references.saturating_sub(count);
            if *references == 0 {
                shard.remove(&ino);
            }
        }
    }

    /// All known inodes in the order of their numbers. The root is always known.
    pub fn list(&self) -> Vec<Ino> {
        let mut all = vec![Ino::ROOT];
        for shard in &self.shards {
            all.extend(shard.lock().keys().filter(|ino| **ino != Ino::ROOT));
        }
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_known_until_its_last_reference_goes() {
        let known = KnownInodes::default();
        let (one, two) = (Ino::ROOT.next(), Ino::ROOT.next().next());
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
}
