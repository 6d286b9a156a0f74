//! The counter of inode numbers.
//!
//! Invariant: no number is given out twice, even if power is lost (rule P13). A number is given out only below the
//! limit, and a checkpoint has made the limit durable before.

use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::Ino;

/// The next inode number, and the durable limit of numbers.
pub struct InoNumbers {
    next: AtomicU64,
    limit: AtomicU64,
}

impl InoNumbers {
    /// A counter that starts at the limit of the last checkpoint: any number below may have been given out.
    pub(super) const fn new(limit: u64) -> Self {
        Self {
            next: AtomicU64::new(limit),
            limit: AtomicU64::new(limit),
        }
    }

    /// Takes the next number. The caller uses the number only once [`Self::limit`] is above it.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Every number that was given out here, or came from the other node, is below this.
    pub fn below(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The durable limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// A checkpoint has made a limit durable.
    pub fn raise_limit(&self, limit: u64) {
        self.limit.fetch_max(limit, Ordering::Release);
    }

    /// The other node has given out numbers below `below`: this node gives none of them out.
    pub fn skip_below(&self, below: u64) {
        self.next.fetch_max(below, Ordering::Relaxed);
    }

    /// The other node may have given out the next `count` numbers: this node gives none of them out.
    pub fn leave_out(&self, count: u64) {
        self.next.fetch_add(count, Ordering::Relaxed);
    }

    /// The other node has given out `ino`: this node does not give out the number again.
    pub fn skip(&self, ino: Ino) {
        self.skip_below(ino.next().get());
    }
}
