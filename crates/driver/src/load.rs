//! How much a datastore has under way, in numbers: for who looks from outside whether all of it stays
//! bounded and ends. Locks are counted one by one, so it is nothing for status.

use lockstep_intentlog::Usage;
use lockstep_repl::core::{InFlight, LockCounts};

use super::{Datastore, KeptLoad};

/// What is under way at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Entries of the PAW table, at most `limits::WRITES_IN_FLIGHT_MAX`.
    pub paw: usize,
    /// Entries of the SAW table, at most as many.
    pub saw: usize,
    /// Operations that the core has and has not finished.
    pub operations: usize,
    /// Operations of which the driver remembers what has to be done.
    pub works: usize,
    /// Operations that wait for the state to let them begin.
    pub held: usize,
    /// What waits for the other side.
    pub in_flight: InFlight,
    /// Locks of the core.
    pub locks: LockCounts,
    /// Bytes of writes that wait.
    pub kept: KeptLoad,
    /// How full the intent log is; `None` for a store that is only read.
    pub log: Option<Usage>,
}

impl Datastore {
    /// What is under way now.
    pub fn load(&self) -> Load {
        let core = self.core.lock();
        Load {
            paw: self.paw.len(),
            saw: self.saw.len(),
            operations: core.operations(),
            held: core.held(),
            works: self.works.lock().len(),
            in_flight: core.in_flight(),
            locks: core.lock_counts(),
            kept: self.keeper.load(),
            log: self.store.log_usage(),
        }
    }
}
