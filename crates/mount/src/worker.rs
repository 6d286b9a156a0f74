//! A thread of a mount that runs tasks in the order of their submission.
//!
//! The thread ends when its [`Worker`] is dropped and all tasks are done.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use lockstep_driver::threads;

/// A piece of work.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// The sending side of the thread's queue.
#[derive(Debug)]
pub(crate) struct Worker(Mutex<Sender<Task>>);

impl Worker {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let (sender, receiver) = channel();
        threads::spawn(name, move || run(&receiver))?;
        Ok(Self(Mutex::new(sender)))
    }

    /// Queues a task.
    pub fn submit(&self, task: Task) {
        // The thread receives tasks for as long as this sender lives.
        let _sent = self.0.lock().send(task);
    }
}

fn run(tasks: &Receiver<Task>) {
    while let Ok(task) = tasks.recv() {
        task();
    }
}
