//! The gate through which the requests of clients reach a datastore: open while this node serves the datastore.
//!
//! A front end lets a request in with [`ServiceGate::enter`], and keeps the [`Inside`] until the request is handed to the
//! datastore. The operations that the request has begun count until each is answered. So once the gate is closed and
//! empty, no client can see or cause a change on this node.
//!
//! With a witness, a primary whose secondary may take over serves under a *lease* (rule R7): the gate lets nothing in once
//! the lease is over.
//!
//! A restarted primary may see changes on its disk that no client may see yet: the gate lets nothing in while there is such a
//! [`Doubt`] (rule P4).
//!
//! Invariants:
//! - A job that waits for the service runs once, when the node serves, unless the datastore is stopped before: then it is
//!   dropped.
//! - The clock is read when a request comes in. So a process that was suspended lets nothing in after its lease.

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use crate::host::{Host, Job};

/// Time between two looks whether the gate is empty.
const DRAIN_POLL: Duration = Duration::from_millis(1);

/// Whether this node serves the datastore, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Requests are executed.
    Serving,
    /// This node is about to give its role away. Only write-backs of the kernel's pages are still executed, and requests for
    /// which the kernel holds write-backs back.
    Retiring,
    /// No other node has served since this node did, as far as known: this node was the primary, and may serve again once
    /// it has met its peer. The kernel's caches are right.
    Undecided,
    /// The other node may serve. The kernel's caches may be stale.
    Following,
}

impl Standing {
    /// Whether no other node can serve: this node serves, or is about to give its role away and has not done so.
    pub const fn serves(self) -> bool {
        match self {
            Self::Serving | Self::Retiring => true,
            Self::Undecided | Self::Following => false,
        }
    }
}

/// The kind of a request at the gate of a datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A request of a program.
    Program,
    /// The kernel writes back pages that a program has stored through a mapping.
    WriteBack,
    /// A program changes the size of a file. The kernel holds the write-backs of the file back until the answer.
    SizeChange,
}

/// See the head of this file.
pub(crate) struct ServiceGate {
    state: Mutex<ServiceGateState>,
}

struct ServiceGateState {
    standing: Standing,
    lease: Lease,
    /// The time at which this node last began or ceased to serve.
    since: Duration,
    /// Requests and operations inside.
    inside: usize,
    /// Doubts about what clients may see ([`Doubt`]).
    doubts: usize,
    /// Jobs that wait for the service.
    waiting: Vec<Job>,
    /// No job waits any more: the datastore is stopped.
    is_stopped: bool,
}

/// The time for which no other node takes over.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    /// The other node may take over once the lease is over.
    is_needed: bool,
    /// End of the lease on the host's clock.
    until: Duration,
}

impl Lease {
    /// Whether the other node may serve by now. Reads the clock only if a lease is needed.
    fn is_over(self, host: &dyn Host) -> bool {
        self.is_needed && host.now() >= self.until && !is_active(Mutant::ServeWithoutLease)
    }

    /// Time until the end.
    fn left(self, host: &dyn Host) -> Duration {
        self.until.saturating_sub(host.now())
    }
}

impl ServiceGateState {
    /// Whether requests of programs are let in.
    fn serves(&self, host: &dyn Host) -> bool {
        self.standing == Standing::Serving && self.doubts == 0 && !self.lease.is_over(host)
    }

    /// Whether the node would serve, but for a doubt.
    fn is_in_doubt(&self) -> bool {
        self.standing.serves() && self.doubts > 0
    }

    /// Whether the node would serve, but for its lease.
    fn is_lapsed(&self, host: &dyn Host) -> bool {
        self.standing == Standing::Serving && self.lease.is_over(host)
    }

    /// Whether no other node can serve by now.
    fn excludes_other(&self, host: &dyn Host) -> bool {
        self.standing.serves() && !self.lease.is_over(host)
    }

    /// Takes the jobs that wait for the service, if the node serves.
    fn take_due(&mut self, host: &dyn Host) -> Vec<Job> {
        if self.serves(host) {
            if is_active(Mutant::ForgetWaiting) {
                self.waiting.clear();
            }
            std::mem::take(&mut self.waiting)
        } else {
            Vec::new()
        }
    }
}

/// A request or an operation inside a gate. A drop ends it.
#[must_use]
pub struct Inside(Option<Arc<ServiceGate>>);

impl Inside {
    /// A request of a service that has no gate.
    pub const fn ungated() -> Self {
        Self(None)
    }
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.state.lock().inside -= 1;
        }
    }
}

/// A doubt about what clients may see: while there is one, the gate lets nothing in, whatever the standing. A drop ends the
/// doubt.
#[must_use]
pub(crate) struct Doubt {
    gate: Arc<ServiceGate>,
    host: Arc<dyn Host>,
}

impl Doubt {
    /// Closes the gate for a doubt.
    pub fn of(gate: &Arc<ServiceGate>, host: &Arc<dyn Host>) -> Self {
        gate.change(&**host, |state| state.doubts += 1);
        Self {
            gate: Arc::clone(gate),
            host: Arc::clone(host),
        }
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        self.gate.change(&*self.host, |state| state.doubts -= 1);
    }
}

impl ServiceGate {
    /// A closed gate.
    pub fn new() -> Self {
        let state = ServiceGateState {
            standing: Standing::Following,
            lease: Lease::default(),
            since: Duration::ZERO,
            inside: 0,
            doubts: 0,
            waiting: Vec::new(),
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Whether the node serves, and if not, why.
    pub fn standing(&self) -> Standing {
        self.state.lock().standing
    }

    /// The standing of this moment, and the time at which this node last began or ceased to serve; zero before the first
    /// such change. A node without a lease is undecided, and so is a node in doubt.
    pub fn standing_and_since(&self, host: &dyn Host) -> (Standing, Duration) {
        let state = self.state.lock();
        if state.standing.serves() && state.lease.is_over(host) {
            (Standing::Undecided, state.lease.until)
        } else if state.is_in_doubt() {
            (Standing::Undecided, state.since)
        } else {
            (state.standing, state.since)
        }
    }

    /// Lets a request in, or returns why not. A node without a lease is undecided, and so is a node in doubt.
    pub fn enter(self: &Arc<Self>, host: &dyn Host, kind: RequestKind) -> Result<Inside, Standing> {
        let mut state = self.state.lock();
        if state.is_lapsed(host) || state.is_in_doubt() {
            return Err(Standing::Undecided);
        }
        let is_admitted = match state.standing {
            Standing::Serving => true,
            Standing::Retiring => kind != RequestKind::Program,
            Standing::Undecided | Standing::Following => false,
        };
        if !is_admitted && !is_active(Mutant::AdmitInAnyStanding) {
            return Err(state.standing);
        }
        state.inside += 1;
        Ok(Inside(Some(Arc::clone(self))))
    }

    /// Counts an operation of a request that is inside.
    pub fn hold(self: &Arc<Self>) -> Inside {
        self.state.lock().inside += 1;
        Inside(Some(Arc::clone(self)))
    }

    /// Has the worker pool do a job once the node serves.
    pub fn when_serving(&self, host: &dyn Host, job: Job) {
        let mut state = self.state.lock();
        if state.serves(host) {
            drop(state);
            host.spawn(job);
        } else if !state.is_stopped {
            state.waiting.push(job);
        }
    }

    /// Changes the standing. Jobs that wait for the service run if the node serves now.
    pub fn set(&self, host: &dyn Host, standing: Standing) {
        self.change(host, |state| state.standing = standing);
    }

    /// Notes whether the other node may take over once the lease is over. Otherwise the node serves without a lease.
    pub fn need_lease(&self, host: &dyn Host, is_needed: bool) {
        self.change(host, |state| state.lease.is_needed = is_needed);
    }

    /// Extends the lease up to a moment of the host's clock.
    pub fn extend_lease(&self, host: &dyn Host, until: Duration) {
        self.change(host, |state| {
            state.lease.until = until.max(state.lease.until);
        });
    }

    /// The end of the lease, if this node would serve and its lease is over.
    pub fn lapse(&self, host: &dyn Host) -> Option<Duration> {
        let state = self.state.lock();
        state.is_lapsed(host).then_some(state.lease.until)
    }

    /// Time until the end of the lease, if this node serves under one.
    pub fn lease_left(&self, host: &dyn Host) -> Option<Duration> {
        let state = self.state.lock();
        let holds = state.lease.is_needed && state.serves(host);
        holds.then(|| state.lease.left(host))
    }

    /// Time for which no other node takes over, whatever becomes of this process: until the end of the lease. A node that
    /// needs no lease gets `without_lease`. `None` if the node does not serve, or is about to give its role away.
    pub fn restart_within(&self, host: &dyn Host, without_lease: Duration) -> Option<Duration> {
        let state = self.state.lock();
        let serves = state.standing == Standing::Serving && state.excludes_other(host);
        let left = if state.lease.is_needed {
            state.lease.left(host)
        } else {
            without_lease
        };
        serves.then_some(left)
    }

    /// Whether the node serves now: its gate is open, and its lease holds.
    pub fn serves(&self, host: &dyn Host) -> bool {
        self.state.lock().serves(host)
    }

    /// Whether no other node can serve now, also while this node lets nothing in for a doubt.
    pub fn excludes_other(&self, host: &dyn Host) -> bool {
        self.state.lock().excludes_other(host)
    }

    fn change(&self, host: &dyn Host, change: impl FnOnce(&mut ServiceGateState)) {
        let due = {
            let mut state = self.state.lock();
            let excluded = state.excludes_other(host);
            change(&mut state);
            if excluded != state.excludes_other(host) {
                state.since = host.now();
            }
            state.take_due(host)
        };
        for job in due {
            host.spawn(job);
        }
    }

    /// Ends the waiting: drops the jobs.
    pub fn stop(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_stopped = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    /// Waits until nothing is inside. Returns `false` when that takes longer than `limit`.
    pub fn drain(&self, host: &dyn Host, limit: Duration) -> bool {
        let start = host.now();
        loop {
            if self.state.lock().inside == 0 {
                return true;
            }
            if host.since(start) >= limit {
                return false;
            }
            host.sleep(DRAIN_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::tests::Place;

    #[test]
    fn a_restart_is_no_failover_while_the_node_serves_and_its_lease_lasts() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let (gate, host) = (datastore.gate(), &*datastore.engine().host);
        let (without_lease, hour) = (Duration::from_secs(2), Duration::from_hours(1));
        let within = || gate.restart_within(host, without_lease);
        gate.set(host, Standing::Undecided);
        assert_eq!(within(), None, "the node has not met the other one");
        gate.set(host, Standing::Serving);
        assert_eq!(within(), Some(without_lease));
        gate.need_lease(host, true);
        assert_eq!(within(), None, "the other node may serve");
        gate.extend_lease(host, host.now() + hour);
        assert!(within().is_some_and(|left| left <= hour && left > without_lease));
        gate.set(host, Standing::Retiring);
        assert_eq!(within(), None, "the role is about to go");
        datastore.stop();
    }
}
