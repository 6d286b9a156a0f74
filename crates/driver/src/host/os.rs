//! A datastore's host in a node: the threads and clocks of the operating system.
//!
//! A worker pool does disk flushes and long jobs. One courier thread does the jobs that must stay in order.

#![allow(clippy::disallowed_methods)] // this file is the host

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use lockstep_types::{DatastoreUuid, Timestamp};
use parking_lot::{Condvar, Mutex};

use super::alarm::GateAlarm;
use super::timer::SystemTimer;
use super::{Alarm, Gate, HookCommand, HookFailure, Host, Job, hook_process};
use crate::host::{memory, threads};

thread_local! {
    /// Whether this thread reads from a peer.
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// Time between two calls of `meanwhile` during a long job.
const ATTEND: Duration = Duration::from_millis(50);

/// Threads of the worker pool.
const POOL_THREADS: usize = 8;

/// The threads and clocks of one datastore. A stop does the queued jobs first.
pub struct OsHost {
    started: Instant,
    pool: Queue,
    courier: Queue,
}

impl OsHost {
    /// Starts the threads of the datastore of that name.
    pub fn start(name: &str) -> std::io::Result<Self> {
        Ok(Self {
            started: Instant::now(),
            pool: Queue::start(&format!("{name}-pool"), POOL_THREADS)?,
            courier: Queue::start(&format!("{name}-courier"), 1)?,
        })
    }
}

impl Host for OsHost {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn time_of_day(&self) -> Timestamp {
        SystemTime::now().into()
    }

    fn random_id(&self) -> [u8; 16] {
        *DatastoreUuid::random().as_bytes()
    }

    fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(ThreadGate::default())
    }

    fn alarm(&self) -> Arc<dyn Alarm> {
        match SystemTimer::new() {
            Ok(timer) => Arc::new(timer),
            Err(error) => {
                tracing::warn!(%error, "no timer of the system: a thread wakes more often");
                Arc::new(GateAlarm::default())
            }
        }
    }

    fn spawn(&self, job: Job) {
        self.pool.push(job);
    }

    fn spawn_ordered(&self, job: Job) {
        self.courier.push(job);
    }

    fn spawn_alone(&self, job: Job) {
        if let Err(error) = threads::spawn("disk-probe", job) {
            tracing::warn!(%error, "no thread for a job");
        }
    }

    fn attend(&self, job: &mut (dyn FnMut() + Send), meanwhile: &mut dyn FnMut()) {
        let over = ThreadGate::default();
        std::thread::scope(|scope| {
            let job = scope.spawn(|| {
                let _over = OpenAtEnd(&over);
                job();
            });
            while !over.wait_for(Some(ATTEND)) {
                meanwhile();
            }
            // After a panic there is no result; the caller handles that.
            let _ended = job.join();
            meanwhile();
        });
    }

    fn run_hook(
        &self,
        hook: &HookCommand,
        gives_up: &dyn Fn() -> bool,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), HookFailure> {
        hook_process::run(hook, gives_up, log)
    }

    fn give_memory_back(&self) {
        memory::give_back();
    }

    fn set_reading(&self, is_reading: bool) {
        READING.set(is_reading);
    }

    fn is_reading(&self) -> bool {
        READING.get()
    }

    fn stop(&self) {
        self.courier.stop();
        self.pool.stop();
    }
}

/// Opens a gate when it is dropped.
struct OpenAtEnd<'a>(&'a ThreadGate);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A gate between threads.
#[derive(Default)]
struct ThreadGate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate for ThreadGate {
    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    fn wait_for(&self, limit: Option<Duration>) -> bool {
        // A limit beyond the end of the clock is none.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut open = self.open.lock();
        while !*open {
            match end {
                Some(end) if self.opened.wait_until(&mut open, end).timed_out() => return *open,
                Some(_) => {}
                None => self.opened.wait(&mut open),
            }
        }
        true
    }
}

/// A queue of jobs, and the threads that do them.
struct Queue {
    jobs: Arc<QueuedJobs>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The jobs of a queue. A job wakes one thread.
struct QueuedJobs {
    waiting: Mutex<WaitingJobs>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingJobs {
    jobs: VecDeque<Job>,
    /// No more jobs are taken.
    is_stopped: bool,
}

impl QueuedJobs {
    /// Waits for a job; `None` once the queue is stopped and all jobs have begun.
    fn next(&self) -> Option<Job> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.is_stopped {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }
}

impl Queue {
    fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let jobs = Arc::new(QueuedJobs {
            waiting: Mutex::default(),
            changed: Condvar::new(),
        });
        let threads = (0..threads)
            .map(|number| {
                let jobs = Arc::clone(&jobs);
                threads::spawn(&format!("{name}-{number}"), move || {
                    while let Some(job) = jobs.next() {
                        job();
                    }
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            jobs,
            threads: Mutex::new(threads),
        })
    }

    fn push(&self, job: Job) {
        let mut waiting = self.jobs.waiting.lock();
        if waiting.is_stopped {
            drop(waiting);
            // The job may own what calls this again.
            drop(job);
            return;
        }
        waiting.jobs.push_back(job);
        drop(waiting);
        self.jobs.changed.notify_one();
    }

    fn stop(&self) {
        self.jobs.waiting.lock().is_stopped = true;
        self.jobs.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                let _ended = thread.join();
            }
        }
    }
}
