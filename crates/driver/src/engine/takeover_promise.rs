//! The promise of a secondary not to take over for a time (rule R7).
//!
//! Each answer to a `Ping` gives it: the primary's lease follows from the `Ping`. The thread that answers notes the moment
//! before it sends the answer. So the promise follows from a time stamp alone. No other thread has to look in time, neither
//! when the connection is lost nor while the witness is slow.
//!
//! Invariants:
//! - The moment only grows.
//! - A process that starts does not know when the last one gave its promise: it counts from its start.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_types::mutants::{Mutant, is_active};

use crate::host::Host;

/// See the head of this file.
pub(crate) struct TakeoverPromise {
    /// The moment at which the promise was last given, on the host's clock, in nanoseconds.
    given_ns: AtomicU64,
}

impl TakeoverPromise {
    /// A promise that may have been given until now.
    pub fn new(now: Duration) -> Self {
        Self {
            given_ns: AtomicU64::new(nanos(now)),
        }
    }

    /// Notes that the promise is given now. The answer that gives the promise leaves after the call.
    pub fn give(&self, host: &dyn Host) {
        self.given_ns.fetch_max(nanos(host.now()), Ordering::AcqRel);
    }

    /// The moment at which the promise is over, `time` after it was last given.
    pub fn end(&self, time: Duration) -> Duration {
        Duration::from_nanos(self.given_ns.load(Ordering::Acquire)).saturating_add(time)
    }

    /// Whether the promise was last given at least `time` ago.
    pub fn is_over(&self, host: &dyn Host, time: Duration) -> bool {
        let given = Duration::from_nanos(self.given_ns.load(Ordering::Acquire));
        host.since(given) >= time || is_active(Mutant::SilenceFromLook)
    }
}

fn nanos(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}
