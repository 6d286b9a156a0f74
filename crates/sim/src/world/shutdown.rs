//! The progress of a clean shutdown, as the program makes it at SIGTERM (`src/node.rs`): first the
//! unmount, so that no request begins any more; then the stop of the datastore and of its threads;
//! then the close of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_driver::client::FileService;
use lockstep_driver::{Datastore, DatastoreHandle};

use super::fibers::{self, Wait};
use super::process::Process;

/// The interval between two looks at the progress of other threads.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The state of a process's clean shutdown.
#[derive(Default)]
pub struct Shutdown {
    is_requested: AtomicBool,
    is_unmounted: AtomicBool,
    is_finished: AtomicBool,
    /// Number of requests that clients are giving to the service.
    entering: AtomicU64,
    /// Number of threads that run until the datastore is stopped.
    threads: AtomicU64,
}

/// A request while a client gives it to the service. The answer may come later.
pub struct EnteringRequest<'a>(&'a Shutdown);

impl Drop for EnteringRequest<'_> {
    fn drop(&mut self) {
        self.0.entering.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shutdown {
    /// Returns whether the shutdown is finished.
    pub fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Relaxed)
    }

    /// Returns whether the mount is gone, so that no request enters any more.
    pub fn is_unmounted(&self) -> bool {
        self.is_unmounted.load(Ordering::Relaxed)
    }

    /// Lets a request enter through the mount. After the unmount, the caller waits forever.
    pub fn enter(&self) -> EnteringRequest<'_> {
        if self.is_unmounted() {
            fibers::wait(Wait::Dead);
        }
        self.entering.fetch_add(1, Ordering::Relaxed);
        EnteringRequest(self)
    }

    /// Starts a thread of `process` that runs until the datastore is stopped.
    pub fn start(self: &Arc<Self>, process: &Process, body: impl FnOnce() + Send + 'static) {
        self.threads.fetch_add(1, Ordering::Relaxed);
        let shutdown = Arc::clone(self);
        process.start(move || {
            body();
            shutdown.threads.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Requests the shutdown. Returns whether this request is the first.
    pub fn request(&self) -> bool {
        !self.is_requested.swap(true, Ordering::Relaxed)
    }

    /// Shuts the process down. `opened` returns the datastore once the process has opened it. A
    /// process that is still starting delays the shutdown. A process that refuses to start never
    /// gets further; it ends by itself.
    pub fn run(&self, process: &Process, opened: impl Fn() -> Option<Arc<Datastore>>) {
        let pause = || fibers::wait(Wait::Until(process.shared().now() + POLL_INTERVAL));
        let datastore = loop {
            match opened() {
                Some(datastore) => break datastore,
                None => pause(),
            }
        };
        self.is_unmounted.store(true, Ordering::Relaxed);
        DatastoreHandle::new(Arc::clone(&datastore)).closing();
        while self.entering.load(Ordering::Relaxed) > 0 {
            pause();
        }
        datastore.stop();
        while self.threads.load(Ordering::Relaxed) > 0 {
            pause();
        }
        datastore.close();
        self.is_finished.store(true, Ordering::Relaxed);
    }
}
