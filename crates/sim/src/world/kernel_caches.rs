//! The time for which the kernel of a machine may answer from its caches: up to the end of the lease that its node has shown
//! last. Then the guard drops the caches, also if the process is gone (docs/adr/0014). A process that follows drops them itself.
//!
//! The content of the caches is not simulated: the mount decides what the kernel may keep, and the simulator has no mount. So
//! the kernel may answer anything from them for that time.

use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::client::LeaseBoard;
use parking_lot::Mutex;

use super::process::Process;

/// The caches of the kernel of a machine.
#[derive(Clone, Default)]
pub struct KernelCaches(Arc<Mutex<Option<HeldCaches>>>);

/// Caches that the guard will drop.
struct HeldCaches {
    /// The end, by the clock of the machine.
    until: Duration,
    /// The process that has shown the end. It may be gone.
    process: Arc<Process>,
}

impl KernelCaches {
    /// The caches are empty.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Returns whether the kernel may answer from its caches.
    pub fn are_kept(&self) -> bool {
        let held = self.0.lock();
        held.as_ref()
            .is_some_and(|held| held.process.machine_time() < held.until)
    }

    /// Returns the place where a process shows the end of its lease.
    pub fn board(&self, process: &Arc<Process>) -> Arc<dyn LeaseBoard> {
        Arc::new(Board {
            caches: self.clone(),
            process: Arc::clone(process),
        })
    }
}

struct Board {
    caches: KernelCaches,
    process: Arc<Process>,
}

impl LeaseBoard for Board {
    fn time(&self) -> Duration {
        self.process.machine_time()
    }

    fn show(&self, end: Option<Duration>) {
        if !self.process.is_dead() {
            *self.caches.0.lock() = end.map(|until| HeldCaches {
                until,
                process: Arc::clone(&self.process),
            });
        }
    }
}
