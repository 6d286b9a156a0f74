//! Berths: the number of client threads that may be inside a change at once.
//!
//! The kernel hands its requests to a few threads, in the order of arrival. If every thread were inside a change that
//! waits for the disk, a later lookup would wait, too. So some threads are never inside a change. The worker pool
//! executes a change whose thread finds no berth; that costs a hand-over, and for a write a copy.
//!
//! Invariant: a berth is given back when its [`Berth`] is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};

/// One thread in this many is kept free, and at least one.
const FREE_ONE_IN: usize = 4;

/// Berths for threads of clients.
#[derive(Debug)]
pub(crate) struct Berths {
    taken: AtomicUsize,
    most: usize,
}

/// A berth that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Berth<'a>(&'a Berths);

impl Berths {
    /// The berths of `threads` client threads.
    pub fn of(threads: usize) -> Self {
        let free = threads.div_ceil(FREE_ONE_IN);
        Self {
            taken: AtomicUsize::new(0),
            most: threads.saturating_sub(free),
        }
    }

    /// Takes a berth, if one is free.
    pub fn take(&self) -> Option<Berth<'_>> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let berth = Berth(self);
        (before < self.most).then_some(berth)
    }

    /// Whether a berth is free at this moment.
    pub fn is_free(&self) -> bool {
        self.taken.load(Ordering::Relaxed) < self.most
    }
}

impl Drop for Berth<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_threads_are_always_free_and_berths_come_back() {
        for (threads, most) in [(1, 0), (2, 1), (4, 3), (8, 6), (64, 48)] {
            let berths = Berths::of(threads);
            for _ in 0..2 {
                assert_eq!(berths.is_free(), most > 0);
                let taken: Vec<_> = std::iter::from_fn(|| berths.take()).collect();
                assert_eq!(taken.len(), most, "of {threads}");
                assert!(berths.take().is_none() && !berths.is_free());
            }
        }
    }
}
