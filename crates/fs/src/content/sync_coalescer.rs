//! Syncs of one file: one at a time, shared by all threads that wait for one.
//!
//! The kernel reports a failed write-back once to each open file. If two threads sync the same open file at once, the
//! second sync succeeds although the bytes that it should save are lost. So a sync answers a thread only if it began
//! after the thread asked, and no other sync ran beside it.
//!
//! Invariant: a sync answers no thread that asked after the sync had begun.
//!
//! Locks: the table before the syncs of a file. No lock is held during a sync.

use std::collections::HashMap;
use std::sync::Arc;

use lockstep_types::Ino;
use parking_lot::{Condvar, Mutex};

/// The syncs under way, by file.
#[derive(Default)]
pub struct SyncCoalescer(Mutex<HashMap<Ino, Arc<FileSyncs>>>);

/// The syncs of one file.
#[derive(Default)]
struct FileSyncs {
    counts: Mutex<SyncCounts>,
    ended: Condvar,
}

#[derive(Default)]
struct SyncCounts {
    begun: u64,
    /// The last sync that succeeded.
    succeeded: u64,
    is_running: bool,
}

impl SyncCoalescer {
    /// Returns once a sync of `ino` that began after this call has succeeded, by this thread or another; or with the
    /// failure of this thread's own sync.
    pub fn sync<E>(&self, ino: Ino, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let file = Arc::clone(self.0.lock().entry(ino).or_default());
        let outcome = file.sync(sync);
        let mut files = self.0.lock();
        // Held by this thread and by the table: no other thread waits or syncs.
        if Arc::strong_count(&file) == 2 {
            files.remove(&ino);
        }
        outcome
    }
}

impl FileSyncs {
    fn sync<E>(&self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let number = {
            let mut counts = self.counts.lock();
            let wanted = counts.begun + 1;
            while counts.is_running && counts.succeeded < wanted {
                self.ended.wait(&mut counts);
            }
            if counts.succeeded >= wanted {
                return Ok(());
            }
            counts.begun += 1;
            counts.is_running = true;
            counts.begun
        };
        let outcome = sync();
        let mut counts = self.counts.lock();
        counts.is_running = false;
        if outcome.is_ok() {
            counts.succeeded = number;
        }
        drop(counts);
        self.ended.notify_all();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    /// Waits until `holders` threads, this thread included, sync the file or wait for a sync.
    fn until_held(coalescer: &SyncCoalescer, holders: usize) {
        // The table is one more holder.
        while coalescer.0.lock().get(&Ino::ROOT).map(Arc::strong_count) != Some(holders + 1) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_sync_answers_no_thread_that_asked_while_it_ran() {
        let coalescer = SyncCoalescer::default();
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
            let coalescer = &coalescer;
            scope.spawn(move || {
                let first = || -> Result<(), ()> {
                    begun.send(()).unwrap();
                    wait.recv().unwrap();
                    Ok(())
                };
                coalescer.sync(Ino::ROOT, first).unwrap();
            });
            first_runs.recv().unwrap();
            for _ in 0..4 {
                scope.spawn(|| coalescer.sync(Ino::ROOT, sync).unwrap());
            }
            until_held(coalescer, 5);
            assert_eq!(syncs.load(Ordering::SeqCst), 0);
            go_on.send(()).unwrap();
        });
        // One sync for all waiting threads, or more if some threads had not begun to wait.
        assert!((1..=4).contains(&syncs.load(Ordering::SeqCst)));
        assert!(coalescer.0.lock().is_empty());
    }

    #[test]
    fn a_failure_answers_no_other_thread() {
        let coalescer = SyncCoalescer::default();
        assert_eq!(coalescer.sync(Ino::ROOT, || Err("lost")), Err("lost"));
        assert_eq!(coalescer.sync(Ino::ROOT, || Err("again")), Err("again"));
        assert_eq!(coalescer.sync(Ino::ROOT, || Ok::<(), &str>(())), Ok(()));
    }
}
