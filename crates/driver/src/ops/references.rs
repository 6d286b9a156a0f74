//! The references that keep an inode without a name: open handles, and the kernel's cache.

use std::collections::{HashMap, HashSet};

use lockstep_types::Ino;
use parking_lot::Mutex;

const SHARDS: usize = 16;

/// Counts of one inode.
#[derive(Clone, Copy, Default)]
struct Counts {
    opens: u64,
    lookups: u64,
}

impl Counts {
    const fn is_zero(self) -> bool {
        self.opens == 0 && self.lookups == 0
    }
}

/// Counts of all inodes with references, and the inodes without a name.
#[derive(Default)]
pub(crate) struct References {
    shards: [Mutex<HashMap<Ino, Counts>>; SHARDS],
    orphans: Mutex<HashSet<Ino>>,
}

impl References {
    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Counts>> {
        &self.shards[usize::try_from(ino.get() % SHARDS as u64).unwrap_or(0)]
    }

    /// Counts one more open handle.
    pub fn opened(&self, ino: Ino) {
        self.shard(ino).lock().entry(ino).or_default().opens += 1;
    }

    /// Counts `count` more references of the kernel's cache.
    pub fn remembered(&self, ino: Ino, count: u64) {
        self.shard(ino).lock().entry(ino).or_default().lookups += count;
    }

    /// Counts one open handle fewer. Returns whether the inode is to be freed now.
    pub fn closed(&self, ino: Ino) -> bool {
        self.lower(ino, |counts| counts.opens = counts.opens.saturating_sub(1))
    }

    /// Counts `count` references of the kernel's cache fewer. Returns whether the inode is to be freed now.
    pub fn forgotten(&self, ino: Ino, count: u64) -> bool {
        self.lower(ino, |counts| {
            counts.lookups = counts.lookups.saturating_sub(count);
        })
    }

    fn lower(&self, ino: Ino, change: impl FnOnce(&mut Counts)) -> bool {
        let unused = {
            let mut shard = self.shard(ino).lock();
            let Some(counts) = shard.get_mut(&ino) else {
                return false;
            };
            change(counts);
            let unused = counts.is_zero();
            if unused {
                shard.remove(&ino);
            }
            unused
        };
        unused && self.orphans.lock().remove(&ino)
    }

    /// Notes that an inode has lost its last name. Returns whether the inode is to be freed now.
    pub fn orphaned(&self, ino: Ino) -> bool {
        self.orphans.lock().insert(ino);
        let used = self.shard(ino).lock().contains_key(&ino);
        !used && self.orphans.lock().remove(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reference_frees_an_orphan_once() {
        let ino = Ino::new(5).unwrap();
        let references = References::default();
        references.remembered(ino, 2);
        references.opened(ino);
        assert!(!references.orphaned(ino));
        assert!(!references.forgotten(ino, 2));
        assert!(references.closed(ino));
        assert!(!references.closed(ino));
    }

    #[test]
    fn an_inode_with_a_name_is_never_freed() {
        let ino = Ino::new(5).unwrap();
        let references = References::default();
        references.opened(ino);
        assert!(!references.closed(ino));
        assert!(
            references.orphaned(ino),
            "nobody needs it when its name goes"
        );
    }
}
