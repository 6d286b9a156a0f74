//! The keepers of an inode without a name: references, which are open handles and the kernel's cache, and the trash.
//!
//! If an earlier process has served the mount, its counts are lost. Then each inode without a name is kept until the
//! kernel has said that it does not know the inode.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use lockstep_types::Ino;
use parking_lot::Mutex;

use super::trash_ledger::TrashLedger;
use crate::client::AskKernel;

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
    /// Set if an earlier process has served the mount.
    ask: OnceLock<AskKernel>,
    /// The inodes that the trash keeps.
    pub trash: TrashLedger,
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

    /// The counts begin at zero although the kernel has references: `ask` finds out whether it has any.
    pub fn inherit(&self, ask: AskKernel) {
        // A mount is resumed once, before its first request.
        let _ = self.ask.set(ask);
    }

    /// The kernel does not know an inode. Returns whether the inode is to be freed now.
    pub fn unreferenced(&self, ino: Ino) -> bool {
        // A reference in the making: the kernel learns of it by the answer to a lookup.
        let used = self.shard(ino).lock().contains_key(&ino);
        !used && self.orphans.lock().remove(&ino)
    }

    /// Whether an inode has a reference that this process has counted.
    pub fn has(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Whether an inode that was to be freed is used again. Then its last reference frees it.
    pub fn keeps(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        let used = shard.contains_key(&ino);
        if used {
            self.orphans.lock().insert(ino);
        }
        used
    }

    fn lower(&self, ino: Ino, change: impl FnOnce(&mut Counts)) -> bool {
        let unused = self.lower_counts(ino, change);
        match self.ask.get() {
            None => unused && self.orphans.lock().remove(&ino),
            Some(ask) => {
                let is_orphan = self.orphans.lock().contains(&ino);
                if is_orphan {
                    ask(ino);
                }
                false
            }
        }
    }

    /// Returns whether the last reference is gone.
    fn lower_counts(&self, ino: Ino, change: impl FnOnce(&mut Counts)) -> bool {
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
    }

    /// Notes that an inode has lost its last name. Returns whether the inode is to be freed now.
    pub fn orphaned(&self, ino: Ino) -> bool {
        self.orphans.lock().insert(ino);
        if let Some(ask) = self.ask.get() {
            ask(ino);
            return false;
        }
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
    fn an_orphan_that_is_opened_before_it_is_freed_stays() {
        let ino = Ino::new(5).unwrap();
        let references = References::default();
        assert!(references.orphaned(ino) && !references.keeps(ino));
        references.opened(ino);
        assert!(references.keeps(ino));
        assert!(references.closed(ino) && !references.keeps(ino));
    }

    #[test]
    fn an_inherited_orphan_is_freed_when_the_kernel_does_not_know_it() {
        let ino = Ino::new(5).unwrap();
        let asked = std::sync::Arc::new(Mutex::new(Vec::new()));
        let references = References::default();
        let asks = std::sync::Arc::clone(&asked);
        references.inherit(Box::new(move |ino| asks.lock().push(ino)));
        assert!(!references.forgotten(ino, 1));
        assert!(!references.closed(ino));
        assert!(asked.lock().is_empty(), "the inode has a name");
        assert!(!references.orphaned(ino));
        references.remembered(ino, 1);
        assert!(!references.unreferenced(ino), "a lookup is under way");
        assert!(!references.forgotten(ino, 7));
        assert_eq!(*asked.lock(), [ino, ino]);
        assert!(references.unreferenced(ino));
        assert!(!references.unreferenced(ino));
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
