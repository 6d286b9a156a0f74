//! A value that one thread gives and another waits for, once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Gate, Host};

/// Makes the two ends.
pub(crate) fn promise<T>(host: &dyn Host) -> (Promise<T>, Awaited<T>) {
    let gate = host.gate();
    let value = Arc::new(Mutex::new(None));
    let promise = Promise {
        value: Arc::clone(&value),
        gate: Arc::clone(&gate),
    };
    (promise, Awaited { value, gate })
}

/// The end that gives the value. If it is dropped without a value, the other end learns that there is none.
pub(crate) struct Promise<T> {
    value: Arc<Mutex<Option<T>>>,
    gate: Arc<dyn Gate>,
}

impl<T> Promise<T> {
    /// Gives the value.
    pub fn keep(self, value: T) {
        *self.value.lock() = Some(value);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.gate.open();
    }
}

/// The outcome of a wait that has an end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PromiseOutcome<T> {
    /// The value.
    Fulfilled(T),
    /// There will be none.
    Never,
    /// It was not given in time.
    Late,
}

/// The end that waits.
pub(crate) struct Awaited<T> {
    value: Arc<Mutex<Option<T>>>,
    gate: Arc<dyn Gate>,
}

impl<T> Awaited<T> {
    /// Whether the value is given already.
    pub fn is_kept(&self) -> bool {
        self.value.lock().is_some()
    }

    /// Waits for the value until a moment of [`Host::now`].
    pub fn get_until(self, host: &dyn Host, moment: Duration) -> PromiseOutcome<T> {
        let left = moment.saturating_sub(host.now());
        if !self.gate.wait_for(Some(left)) {
            return PromiseOutcome::Late;
        }
        self.value
            .lock()
            .take()
            .map_or(PromiseOutcome::Never, PromiseOutcome::Fulfilled)
    }

    /// Waits for the value; `None` if there will be none.
    pub fn get(self) -> Option<T> {
        self.gate.wait();
        self.value.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::OsHost;

    #[test]
    fn a_promise_is_kept_or_dropped() {
        let host = OsHost::start("test").unwrap();
        let (kept, awaited) = promise(&host);
        host.spawn(Box::new(move || kept.keep(7)));
        assert_eq!(awaited.get(), Some(7));
        let (dropped, awaited) = promise::<u8>(&host);
        host.spawn_ordered(Box::new(move || drop(dropped)));
        assert_eq!(awaited.get(), None);
        let (held, awaited) = promise::<u8>(&host);
        assert_eq!(awaited.get_until(&host, host.now()), PromiseOutcome::Late);
        held.keep(3);
        let (kept, awaited) = promise(&host);
        kept.keep(4);
        assert_eq!(
            awaited.get_until(&host, Duration::ZERO),
            PromiseOutcome::Fulfilled(4)
        );
        let (dropped, awaited) = promise::<u8>(&host);
        drop(dropped);
        assert_eq!(
            awaited.get_until(&host, Duration::ZERO),
            PromiseOutcome::Never
        );
        host.stop();
        let (refused, awaited) = promise::<u8>(&host);
        host.spawn_ordered(Box::new(move || refused.keep(1)));
        assert_eq!(awaited.get(), None, "a job that is never done");
    }
}
