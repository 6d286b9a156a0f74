//! A stop in order, as a node makes it at SIGTERM (`src/node.rs`): the mount goes first, so that no
//! request begins any more; then the datastore is stopped and its threads end; then the store is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_driver::DatastoreHandle;
use lockstep_driver::client::FileService;

use super::fibers::{self, Wait};
use super::node::Life;
use super::process::Process;

/// How often it looks whether who is to end has ended.
const LOOK: Duration = Duration::from_millis(1);

/// How far a process is with its stop in order.
#[derive(Default)]
pub struct Leaving {
    is_asked: AtomicBool,
    is_unmounted: AtomicBool,
    is_over: AtomicBool,
    /// Requests that are being given to the service.
    inside: AtomicU64,
    /// Threads that work until the datastore is stopped.
    threads: AtomicU64,
}

/// A request while it is given to the service; whether it is answered by then is another matter.
pub struct Inside<'a>(&'a Leaving);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Leaving {
    /// Whether it has come to its end.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether no request comes through any more.
    pub fn is_unmounted(&self) -> bool {
        self.is_unmounted.load(Ordering::Relaxed)
    }

    /// A request comes through the mount. Who comes too late waits for ever.
    pub fn enter(&self) -> Inside<'_> {
        if self.is_unmounted() {
            fibers::wait(Wait::Dead);
        }
        self.inside.fetch_add(1, Ordering::Relaxed);
        Inside(self)
    }

    /// Starts a thread that works until the datastore is stopped.
    pub fn start(self: &Arc<Self>, process: &Process, body: impl FnOnce() + Send + 'static) {
        self.threads.fetch_add(1, Ordering::Relaxed);
        let leaving = Arc::clone(self);
        process.start(move || {
            body();
            leaving.threads.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Whether somebody asks for the stop who is the first.
    pub fn ask(&self) -> bool {
        !self.is_asked.swap(true, Ordering::Relaxed)
    }
}

/// What a process does when it is asked to stop.
pub fn leave(life: &Life) {
    let rest = || fibers::wait(Wait::Until(life.process.shared().now() + LOOK));
    let leaving = &life.leaving;
    // While it starts it hears nothing; if it refuses to, it is over by itself.
    let datastore = loop {
        match life.datastore() {
            Some(datastore) => break datastore,
            None => rest(),
        }
    };
    leaving.is_unmounted.store(true, Ordering::Relaxed);
    DatastoreHandle(Arc::clone(&datastore)).closing();
    while leaving.inside.load(Ordering::Relaxed) > 0 {
        rest();
    }
    datastore.stop();
    while leaving.threads.load(Ordering::Relaxed) > 0 {
        rest();
    }
    datastore.close();
    leaving.is_over.store(true, Ordering::Relaxed);
}
