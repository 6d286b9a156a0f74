//! Admits one thread at a time. Unlike the holder of a lock, the admitted thread may wait for others (rule P9).

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Gate, Host};

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Exclusive(Mutex<ExclusiveState>);

#[derive(Default)]
struct ExclusiveState {
    is_taken: bool,
    /// Number of calls of [`Exclusive::acquire_latest`] so far.
    arrivals: u64,
    waiting: Vec<Arc<dyn Gate>>,
}

impl ExclusiveState {
    fn take(&mut self) -> bool {
        !std::mem::replace(&mut self.is_taken, true)
    }

    fn gate(&mut self, host: &dyn Host) -> Arc<dyn Gate> {
        let gate = host.gate();
        self.waiting.push(Arc::clone(&gate));
        gate
    }
}

impl Exclusive {
    /// Waits until no other thread is admitted.
    pub fn acquire(&self, host: &dyn Host) -> ExclusiveGuard<'_> {
        loop {
            let gate = {
                let mut admission = self.0.lock();
                if admission.take() {
                    return ExclusiveGuard(self);
                }
                admission.gate(host)
            };
            gate.wait();
        }
    }

    /// The same, but returns `None` when a later call of this method arrives.
    pub fn acquire_latest(&self, host: &dyn Host) -> Option<ExclusiveGuard<'_>> {
        let (mine, others) = {
            let mut admission = self.0.lock();
            admission.arrivals += 1;
            let waiting = std::mem::take(&mut admission.waiting);
            (admission.arrivals, waiting)
        };
        open_all(others);
        loop {
            let gate = {
                let mut admission = self.0.lock();
                if admission.arrivals != mine {
                    return None;
                }
                if admission.take() {
                    return Some(ExclusiveGuard(self));
                }
                admission.gate(host)
            };
            gate.wait();
        }
    }
}

/// The admission of one thread, until this is dropped.
pub(crate) struct ExclusiveGuard<'a>(&'a Exclusive);

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut admission = self.0.0.lock();
            admission.is_taken = false;
            std::mem::take(&mut admission.waiting)
        };
        open_all(waiting);
    }
}

fn open_all(gates: Vec<Arc<dyn Gate>>) {
    for gate in gates {
        gate.open();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::host::OsHost;

    #[test]
    fn of_the_waiting_threads_only_the_latest_is_admitted() {
        let host = OsHost::start("test").unwrap();
        let (exclusive, admitted) = (Exclusive::default(), AtomicUsize::new(0));
        let has_waiting = || !exclusive.0.lock().waiting.is_empty();
        let guard = exclusive.acquire(&host);
        std::thread::scope(|scope| {
            let wait = || {
                let guard = exclusive.acquire_latest(&host);
                guard.is_some() && admitted.fetch_add(1, Ordering::SeqCst) == 0
            };
            let mut threads: Vec<_> = (0..5)
                .map(|_| {
                    let before = exclusive.0.lock().arrivals;
                    let thread = scope.spawn(wait);
                    while exclusive.0.lock().arrivals == before || !has_waiting() {
                        std::thread::yield_now();
                    }
                    thread
                })
                .collect();
            let latest = threads.pop().unwrap();
            for thread in threads {
                assert!(!thread.join().unwrap(), "it gives up while one is admitted");
            }
            drop(guard);
            assert!(latest.join().unwrap());
        });
        host.stop();
    }

    #[test]
    fn one_thread_at_a_time_is_admitted() {
        let host = OsHost::start("test").unwrap();
        let (exclusive, inside) = (Exclusive::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _guard = exclusive.acquire(&host);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        host.stop();
    }
}
