//! The work in flight of a datastore, in numbers, for checks from outside that everything stays bounded and ends. The locks
//! are counted one by one, which is too slow for `status`.

use lockstep_intentlog::Usage;
use lockstep_repl::core::{InFlight, LockCounts};

use crate::engine::Engine;
use crate::ops::spill::SpillLoad;
use crate::session::Session;

/// The work in flight at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatastoreUsage {
    /// Entries of the PAW table, at most `limits::WRITES_IN_FLIGHT_MAX`; 0 on a secondary.
    pub paw: usize,
    /// Entries of the SAW table, at most as many; 0 on a primary.
    pub saw: usize,
    /// Operations that the core has and has not finished.
    pub operations: usize,
    /// Operations of which the driver remembers the work.
    pub pending: usize,
    /// Operations that wait for a state in which they may begin.
    pub held: usize,
    /// Operations that wait for the other side.
    pub in_flight: InFlight,
    /// Locks of the core.
    pub locks: LockCounts,
    /// Bytes of waiting writes.
    pub kept: SpillLoad,
    /// How full the intent log is; `None` for a store that is only read.
    pub log: Option<Usage>,
}

impl DatastoreUsage {
    /// The numbers of this moment.
    pub(crate) fn of(engine: &Engine, session: &Session) -> Self {
        let core = session.replication().core.lock();
        let (usage, in_flight) = (session.usage(), core.in_flight());
        let (paw, saw) = match session {
            Session::Primary(_) => (usage.in_flight, 0),
            Session::Undecided(_) | Session::Secondary(_) => (0, usage.in_flight),
        };
        Self {
            paw,
            saw,
            operations: in_flight.submitted,
            held: in_flight.held,
            pending: usage.pending,
            in_flight,
            locks: core.lock_counts(),
            kept: usage.kept,
            log: engine.store.log_usage(),
        }
    }
}
