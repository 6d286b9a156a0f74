//! The drops of the kernel's caches that are under way, and the pages that are too old to be written back.
//!
//! A drop may still be under way when the other node begins to serve, and when this node serves again after that. A dirty
//! page that the drop has not reached is then older than the file: its write-back would replace bytes of the other node. So
//! from the moment at which the other node may serve until the end of all drops, no write-back reaches the service.
//!
//! Invariant: a drop that fails does not end. A later drop of everything ends it, because no page from before is left then.
//! So the drops under way are those after the latest one that has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The drops of one mount that are under way.
#[derive(Debug, Default)]
pub(crate) struct UnfinishedDrops {
    numbers: Mutex<DropNumbers>,
    /// The kernel may hold dirty pages from before the time of the other node.
    may_hold_old_pages: AtomicBool,
}

/// Drops have successive numbers from one on.
#[derive(Debug, Default)]
struct DropNumbers {
    /// The latest drop that has begun.
    begun: u64,
    /// The latest drop that has ended.
    ended: u64,
}

/// One drop, which is under way until [`UnfinishedDrop::end`].
#[derive(Debug)]
pub(crate) struct UnfinishedDrop {
    drops: Arc<UnfinishedDrops>,
    number: u64,
}

impl UnfinishedDrops {
    /// Notes that a drop begins.
    pub fn begin(self: &Arc<Self>) -> UnfinishedDrop {
        let mut numbers = self.numbers.lock();
        numbers.begun += 1;
        UnfinishedDrop {
            drops: Arc::clone(self),
            number: numbers.begun,
        }
    }

    /// Notes that the other node may serve from now on. Drops that begin later are of no importance.
    pub fn note_other_node(&self) {
        let numbers = self.numbers.lock();
        let is_under_way = numbers.ended < numbers.begun;
        self.may_hold_old_pages
            .store(is_under_way, Ordering::SeqCst);
    }

    /// Whether a write-back may bring bytes from before the time of the other node.
    pub fn may_hold_old_pages(&self) -> bool {
        self.may_hold_old_pages.load(Ordering::SeqCst)
    }
}

impl UnfinishedDrop {
    /// Notes that the kernel holds no page from before this drop.
    pub fn end(self) {
        let mut numbers = self.drops.numbers.lock();
        numbers.ended = numbers.ended.max(self.number);
        if numbers.ended == numbers.begun {
            self.drops.may_hold_old_pages.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_pages_are_possible_until_the_last_drop_ends() {
        let drops = Arc::new(UnfinishedDrops::default());
        drops.note_other_node();
        assert!(!drops.may_hold_old_pages());
        let (first, second) = (drops.begin(), drops.begin());
        assert!(!drops.may_hold_old_pages());
        drops.note_other_node();
        first.end();
        assert!(drops.may_hold_old_pages());
        second.end();
        assert!(!drops.may_hold_old_pages());
    }

    #[test]
    fn old_pages_are_possible_after_a_failed_drop_until_a_later_one_ends() {
        let drops = Arc::new(UnfinishedDrops::default());
        drop(drops.begin());
        drops.note_other_node();
        assert!(drops.may_hold_old_pages());
        drops.begin().end();
        assert!(!drops.may_hold_old_pages());
    }
}
