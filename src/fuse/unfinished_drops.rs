//! The drops of the kernel's caches that are under way, and the pages that are too old to be written back.
//!
//! A drop may still be under way when the other node begins to serve, and when this node serves again after that. A dirty
//! page that the drop has not reached is then older than the file: its write-back would replace bytes of the other node. So
//! from the moment at which the other node may serve until the end of all drops, no write-back reaches the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The drops of one mount that are under way.
#[derive(Debug, Default)]
pub(super) struct UnfinishedDrops {
    count: Mutex<usize>,
    /// The kernel may hold dirty pages from before the time of the other node.
    may_hold_old_pages: AtomicBool,
}

/// One drop. The drop of this value ends it.
#[derive(Debug)]
pub(super) struct UnfinishedDrop(Arc<UnfinishedDrops>);

impl UnfinishedDrops {
    /// Notes that a drop begins.
    pub fn begin(self: &Arc<Self>) -> UnfinishedDrop {
        *self.count.lock() += 1;
        UnfinishedDrop(Arc::clone(self))
    }

    /// Notes that the other node may serve from now on. Drops that begin later are of no importance.
    pub fn note_other_node(&self) {
        let count = self.count.lock();
        self.may_hold_old_pages.store(*count > 0, Ordering::SeqCst);
    }

    /// Whether a write-back may bring bytes from before the time of the other node.
    pub fn may_hold_old_pages(&self) -> bool {
        self.may_hold_old_pages.load(Ordering::SeqCst)
    }
}

impl Drop for UnfinishedDrop {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.may_hold_old_pages.store(false, Ordering::SeqCst);
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
        drop(first);
        assert!(drops.may_hold_old_pages());
        drop(second);
        assert!(!drops.may_hold_old_pages());
    }
}
