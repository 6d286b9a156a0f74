//! How long the operations of clients take, for a job that gives way to them (rule P19).
//!
//! The time of an operation runs from the moment at which the session takes the operation until the client is answered. It is
//! measured only while a job asks: before that, an operation costs one look at a number in memory. While a job asks, it costs two
//! looks at the clock and some additions, and no lock.
//!
//! The measure is the share of slow operations, and not their mean time: many fast operations beside a few slow ones leave the
//! mean low, although programs wait. A share is also a percentile. Its threshold is known when an operation ends, so two
//! numbers are enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::host::Host;

/// See the head of this file.
pub(crate) struct ClientWaits {
    host: Arc<dyn Host>,
    /// An operation that takes longer is slow, in nanoseconds; zero: no job asks.
    limit_ns: AtomicU64,
    /// Operations under way whose time is measured.
    under_way: AtomicU64,
    /// Operations that ended since the last sample.
    ended: AtomicU64,
    /// The slow ones among them.
    slow: AtomicU64,
}

/// The operations that ended since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitSample {
    pub ended: u64,
    pub slow: u64,
    /// Operations that are under way now.
    pub under_way: u64,
}

impl ClientWaits {
    /// No job asks.
    pub const fn new(host: Arc<dyn Host>) -> Self {
        Self {
            host,
            limit_ns: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            slow: AtomicU64::new(0),
        }
    }

    /// Measures operations from now on, and counts those as slow that take longer than the limit; `None`: measures none.
    pub fn ask(&self, limit: Option<Duration>) {
        let limit = limit.map_or(0, |limit| {
            u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
        });
        self.limit_ns.store(limit, Ordering::Relaxed);
    }

    /// The operations that ended since the last sample.
    pub fn sample(&self) -> WaitSample {
        WaitSample {
            ended: self.ended.swap(0, Ordering::Relaxed),
            slow: self.slow.swap(0, Ordering::Relaxed),
            under_way: self.under_way.load(Ordering::Relaxed),
        }
    }

    /// An operation begins; `None` if its time is not measured.
    pub(super) fn begin(self: &Arc<Self>) -> Option<TimedOperation> {
        if self.limit_ns.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Some(TimedOperation {
            waits: Arc::clone(self),
            begun: self.host.now(),
        })
    }
}

/// An operation whose time is measured. A drop ends it.
pub(super) struct TimedOperation {
    waits: Arc<ClientWaits>,
    begun: Duration,
}

impl Drop for TimedOperation {
    fn drop(&mut self) {
        let waits = &self.waits;
        let took = waits.host.since(self.begun).as_nanos();
        let limit = waits.limit_ns.load(Ordering::Relaxed);
        if limit > 0 && took > u128::from(limit) {
            waits.slow.fetch_add(1, Ordering::Relaxed);
        }
        waits.ended.fetch_add(1, Ordering::Relaxed);
        waits.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::OsHost;

    #[test]
    fn operations_are_measured_while_a_job_asks() {
        let host = Arc::new(OsHost::start("test").unwrap());
        let waits = Arc::new(ClientWaits::new(host.clone()));
        assert!(waits.begin().is_none());
        waits.ask(Some(Duration::from_nanos(1)));
        let (slow, other) = (waits.begin(), waits.begin());
        assert_eq!(waits.sample().under_way, 2);
        std::thread::sleep(Duration::from_millis(1));
        drop(slow);
        waits.ask(Some(Duration::from_secs(3600)));
        drop(other);
        let sample = WaitSample {
            ended: 2,
            slow: 1,
            under_way: 0,
        };
        assert_eq!(waits.sample(), sample);
        assert_eq!(waits.sample(), WaitSample::default());
        // One that began while a job asked ends after that.
        let last = waits.begin();
        waits.ask(None);
        drop(last);
        assert_eq!(waits.sample().under_way, 0);
        assert!(waits.begin().is_none());
        host.stop();
    }
}
