//! One thread of a mount that does jobs in the order in which they come.
//!
//! The thread ends when its [`Worker`] is dropped and all jobs are done.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use lockstep_driver::threads;

/// Something to do.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Worker(Mutex<Sender<Job>>);

impl Worker {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let (sender, receiver) = channel();
        threads::spawn(name, move || work(&receiver))?;
        Ok(Self(Mutex::new(sender)))
    }

    /// Has a job done.
    pub fn submit(&self, job: Job) {
        // The thread takes jobs for as long as this sender lives.
        let _sent = self.0.lock().send(job);
    }
}

fn work(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        job();
    }
}
