//! Syncs of one file: one at a time, shared by all who wait for one.
//!
//! The kernel tells of a failed write-back once to each open file: of two threads that sync the same
//! one at once, the second hears of success although what it waits for is lost. So a sync counts only
//! when it has begun after what it is to cover, and none ran beside it.
//!
//! Invariant: nobody is answered by a sync that had begun before it asked.

use std::collections::HashMap;
use std::sync::Arc;

use lockstep_types::Ino;
use parking_lot::{Condvar, Mutex};

/// The syncs under way, by file.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<Ino, Arc<Turn>>>);

#[derive(Default)]
struct Turn {
    syncs: Mutex<Syncs>,
    ended: Condvar,
}

#[derive(Default)]
struct Syncs {
    begun: u64,
    /// The last that succeeded.
    succeeded: u64,
    running: bool,
}

impl Turns {
    /// Returns when a sync of `ino` that began after this was called has succeeded, by this thread or
    /// another; or with the failure of this thread's own.
    pub(super) fn share<E>(&self, ino: Ino, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let turn = Arc::clone(self.0.lock().entry(ino).or_default());
        let outcome = turn.take(sync);
        let mut turns = self.0.lock();
        // Ours and the table's: nobody else waits or runs.
        if Arc::strong_count(&turn) == 2 {
            turns.remove(&ino);
        }
        outcome
    }
}

impl Turn {
    fn take<E>(&self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let number = {
            let mut syncs = self.syncs.lock();
            let wanted = syncs.begun + 1;
            while syncs.running && syncs.succeeded < wanted {
                self.ended.wait(&mut syncs);
            }
            if syncs.succeeded >= wanted {
                return Ok(());
            }
            syncs.begun += 1;
            syncs.running = true;
            syncs.begun
        };
        let outcome = sync();
        let mut syncs = self.syncs.lock();
        syncs.running = false;
        if outcome.is_ok() {
            syncs.succeeded = number;
        }
        drop(syncs);
        self.ended.notify_all();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    /// Waits until so many threads, ours included, hold the turn of the file.
    fn until_held(turns: &Turns, holders: usize) {
        // And the table does.
        while turns.0.lock().get(&Ino::ROOT).map(Arc::strong_count) != Some(holders + 1) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_comes_during_a_sync_is_not_answered_by_it() {
        let turns = Turns::default();
        let (syncs, beside) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let sync = || -> Result<(), ()> {
            assert_eq!(beside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            syncs.fetch_add(1, Ordering::SeqCst);
            beside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            let (go_on, wait) = channel();
            let (begun, first_runs) = channel();
            let turns = &turns;
            scope.spawn(move || {
                let first = || -> Result<(), ()> {
                    begun.send(()).unwrap();
                    wait.recv().unwrap();
                    Ok(())
                };
                turns.share(Ino::ROOT, first).unwrap();
            });
            first_runs.recv().unwrap();
            for _ in 0..4 {
                scope.spawn(|| turns.share(Ino::ROOT, sync).unwrap());
            }
            until_held(turns, 5);
            assert_eq!(syncs.load(Ordering::SeqCst), 0);
            go_on.send(()).unwrap();
        });
        // One for all who were waiting, or more if some of them had not come that far.
        assert!((1..=4).contains(&syncs.load(Ordering::SeqCst)));
        assert!(turns.0.lock().is_empty());
    }

    #[test]
    fn a_failure_answers_nobody_else() {
        let turns = Turns::default();
        assert_eq!(turns.share(Ino::ROOT, || Err("lost")), Err("lost"));
        assert_eq!(turns.share(Ino::ROOT, || Err("again")), Err("again"));
        assert_eq!(turns.share(Ino::ROOT, || Ok::<(), &str>(())), Ok(()));
    }
}
