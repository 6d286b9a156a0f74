//! Threads for what must not hold up the thread that has it: a pool for disk flushes and long
//! jobs, and one courier for sends that must stay in order.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::threads;

/// Something to do.
type Job = Box<dyn FnOnce() + Send>;

/// The threads of one datastore. Jobs hold what they need; stopping runs what is queued.
pub(super) struct Workers {
    pool: Queue,
    courier: Queue,
}

impl Workers {
    /// Starts `pool_threads` and the courier.
    pub fn start(name: &str, pool_threads: usize) -> std::io::Result<Self> {
        Ok(Self {
            pool: Queue::start(&format!("{name}-pool"), pool_threads)?,
            courier: Queue::start(&format!("{name}-courier"), 1)?,
        })
    }

    /// Does a job soon, in no order.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.pool.push(Box::new(job));
    }

    /// Does a job soon, after all that were given to this function before.
    pub fn in_order(&self, job: impl FnOnce() + Send + 'static) {
        self.courier.push(Box::new(job));
    }

    /// Waits until all that was given to [`Workers::in_order`] before is done.
    pub fn finish_ordered(&self) {
        let (done, wait) = channel::<()>();
        self.in_order(move || drop(done));
        // The end of the channel is the news, also when the courier has ended.
        let _ended = wait.recv();
    }

    /// Does what is queued and ends the threads.
    pub fn stop(&self) {
        self.courier.stop();
        self.pool.stop();
    }
}

/// A queue of jobs and the threads that do them.
struct Queue {
    jobs: Mutex<Option<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Queue {
    fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let threads = (0..threads)
            .map(|number| {
                let receiver = Arc::clone(&receiver);
                threads::spawn(&format!("{name}-{number}"), move || work(&receiver))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            jobs: Mutex::new(Some(sender)),
            threads: Mutex::new(threads),
        })
    }

    fn push(&self, job: Job) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*jobs {
            // The receivers live until the sender is dropped.
            let _sent = sender.send(job);
        }
    }

    fn stop(&self) {
        drop(
            self.jobs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                let _ended = thread.join();
            }
        }
    }
}

fn work(receiver: &Mutex<Receiver<Job>>) {
    loop {
        let job = receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
