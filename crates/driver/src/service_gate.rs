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
//! [`VisibilityHold`] (rule P4).
//!
//! A request belongs to the *tenure* in which it was asked: the time for which this node serves, or is undecided, without
//! another node having served in between. A change runs in its own tenure or not at all (rule R13).
//!
//! Invariants:
//! - A tenure ends before the session begins that leads the next one.
//! - A job that waits for the service runs once, when the node serves, unless the datastore is stopped before: then it is
//!   dropped.
//! - The clock is read when a request comes in. So a process that was suspended lets nothing in after its lease.

pub(crate) mod client_waits;
mod lease;
pub(crate) mod lease_board;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use crate::host::signal::Signal;
use crate::host::{Host, Job};
use crate::service_gate::client_waits::{ClientWaits, TimedOperation};
use crate::service_gate::lease::{Lease, LeaseWatches};
use crate::service_gate::lease_board::LeaseBoard;

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

/// The number of a tenure of this process. See the head of this file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenure(u64);

impl Tenure {
    /// The tenure in which the process begins. The requests to an earlier process belong to it, too: that process may have
    /// served until this one began.
    pub const FIRST: Self = Self(0);

    /// The tenure after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Whether a change that was asked in this tenure may run in another one, or go on there.
    pub fn may_run_in(self, other: Self) -> bool {
        self == other || is_active(Mutant::RunOvertaken)
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
    /// The present [`Tenure`], which changes under the lock of the state.
    tenure: AtomicU64,
    /// Requests of programs that wait in the mount.
    waiting_requests: AtomicU64,
    /// The times of the operations inside.
    pub waits: Arc<ClientWaits>,
    /// Raised when nothing is inside, while a thread waits for that.
    emptied: Signal,
    /// Raised when this node begins or ceases to serve, and when a lease begins.
    changes: Arc<Signal>,
}

struct ServiceGateState {
    standing: Standing,
    lease: Lease,
    /// The time at which this node last began or ceased to serve.
    since: Duration,
    /// Requests and operations inside.
    inside: usize,
    /// Threads that wait until nothing is inside.
    draining: usize,
    /// Number of [`VisibilityHold`]s.
    visibility_holds: usize,
    /// Jobs that wait for the service.
    waiting: Vec<Job>,
    watches: LeaseWatches,
    /// No job waits any more: the datastore is stopped.
    is_stopped: bool,
}

impl ServiceGateState {
    /// Shows the lease under which this node serves. While it does not serve, an earlier end stays on the board: the kernel's
    /// caches are of that time.
    fn show_lease(&mut self, host: &dyn Host) {
        if self.standing.serves() {
            self.watches.show(host, self.lease);
        }
        let is_serving = self.standing == Standing::Serving;
        self.watches
            .set_alarm(host, is_serving.then_some(self.lease));
    }

    /// Whether requests of programs are let in.
    fn serves(&self, host: &dyn Host) -> bool {
        self.standing == Standing::Serving
            && self.visibility_holds == 0
            && !self.lease.is_over(host)
    }

    /// Whether the node would serve, but for a [`VisibilityHold`].
    fn is_in_doubt(&self) -> bool {
        self.standing.serves() && self.visibility_holds > 0
    }

    /// Whether the node would serve, but for its lease.
    fn is_lapsed(&self, host: &dyn Host) -> bool {
        self.standing == Standing::Serving && self.lease.is_over(host)
    }

    /// Whether no other node can serve by now.
    fn excludes_other(&self, host: &dyn Host) -> bool {
        self.standing.serves() && !self.lease.is_over(host)
    }

    /// The part of the state for which threads wait.
    fn look(&self, host: &dyn Host) -> (Standing, bool, bool, bool) {
        let lease = self.lease;
        let is_held = self.visibility_holds > 0;
        (self.standing, is_held, lease.is_needed, lease.is_over(host))
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
pub struct Inside {
    gate: Option<Arc<ServiceGate>>,
    tenure: Tenure,
    /// Dropped when the operation ends.
    #[allow(dead_code)] // its drop is its use
    timed: Option<TimedOperation>,
}

impl Inside {
    /// A request of a service that has no gate, or another one.
    pub const fn ungated(tenure: Tenure) -> Self {
        Self {
            gate: None,
            tenure,
            timed: None,
        }
    }

    /// The tenure in which the request was let in.
    pub const fn tenure(&self) -> Tenure {
        self.tenure
    }
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            let is_awaited = {
                let mut state = gate.state.lock();
                state.inside -= 1;
                state.inside == 0 && state.draining > 0
            };
            if is_awaited {
                gate.emptied.raise();
            }
        }
    }
}

/// Hides the changes on the disk that no client may see yet: while there is a hold, the gate lets nothing in, with any standing.
/// A drop ends the hold.
#[must_use]
pub(crate) struct VisibilityHold {
    gate: Arc<ServiceGate>,
    host: Arc<dyn Host>,
}

impl VisibilityHold {
    /// Closes the gate until the hold ends.
    pub fn of(gate: &Arc<ServiceGate>, host: &Arc<dyn Host>) -> Self {
        gate.change(&**host, |state| state.visibility_holds += 1);
        Self {
            gate: Arc::clone(gate),
            host: Arc::clone(host),
        }
    }
}

impl Drop for VisibilityHold {
    fn drop(&mut self) {
        self.gate
            .change(&*self.host, |state| state.visibility_holds -= 1);
    }
}

impl ServiceGate {
    /// A closed gate. Raises `changes` when this node begins or ceases to serve, and when a lease begins.
    pub fn new(host: &Arc<dyn Host>, changes: Arc<Signal>) -> Self {
        let state = ServiceGateState {
            standing: Standing::Following,
            lease: Lease::default(),
            since: Duration::ZERO,
            inside: 0,
            draining: 0,
            visibility_holds: 0,
            waiting: Vec::new(),
            watches: LeaseWatches::new(&**host),
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
            tenure: AtomicU64::new(Tenure::FIRST.0),
            waiting_requests: AtomicU64::new(0),
            waits: Arc::new(ClientWaits::new(Arc::clone(host))),
            emptied: Signal::default(),
            changes,
        }
    }

    /// Notes how many requests of programs wait for the service, for the status.
    pub fn note_waiting(&self, requests: u64) {
        self.waiting_requests.store(requests, Ordering::Relaxed);
    }

    /// The requests of programs that wait for the service.
    pub fn waiting_requests(&self) -> u64 {
        self.waiting_requests.load(Ordering::Relaxed)
    }

    /// The tenure of this moment. A thread that then finds a session of the datastore, and then the same tenure, has a
    /// session of that tenure.
    pub fn tenure(&self) -> Tenure {
        Tenure(self.tenure.load(Ordering::SeqCst))
    }

    /// Whether the node serves, and if not, why.
    pub fn standing(&self) -> Standing {
        self.state.lock().standing
    }

    /// The standing of this moment, and the time at which this node last began or ceased to serve; zero before the first
    /// such change. A node without a lease is undecided, and so is a node with a hold.
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

    /// Lets a request in, or returns why not. A node without a lease is undecided, and so is a node with a hold.
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
        Ok(self.count_in(&mut state, None))
    }

    /// Counts an operation of a request that is inside.
    pub fn hold(self: &Arc<Self>) -> Inside {
        let timed = self.waits.begin();
        self.count_in(&mut self.state.lock(), timed)
    }

    fn count_in(
        self: &Arc<Self>,
        state: &mut ServiceGateState,
        timed: Option<TimedOperation>,
    ) -> Inside {
        state.inside += 1;
        Inside {
            gate: Some(Arc::clone(self)),
            tenure: self.tenure(),
            timed,
        }
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

    /// The standing with which the process begins. The first tenure goes on.
    pub fn begin(&self, host: &dyn Host, standing: Standing) {
        self.change(host, |state| state.standing = standing);
    }

    /// Changes the standing. Jobs that wait for the service run if the node serves now. Another tenure begins when the other
    /// node may serve, and when this node may serve again after that.
    pub fn set(&self, host: &dyn Host, standing: Standing) {
        let is_following = |standing| standing == Standing::Following;
        self.change(host, |state| {
            if is_following(state.standing) != is_following(standing) {
                self.next_tenure();
            }
            state.standing = standing;
        });
    }

    /// Ends the tenure of a node that does not follow, because the other node may have served all the same.
    pub fn end_tenure(&self, host: &dyn Host) {
        self.change(host, |_| self.next_tenure());
    }

    fn next_tenure(&self) {
        self.tenure.store(self.tenure().next().0, Ordering::SeqCst);
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

    /// Shows the end of each lease under which this node serves, from now on.
    pub fn show_lease(&self, host: &dyn Host, board: Arc<dyn LeaseBoard>) {
        let mut state = self.state.lock();
        state.watches.put_up(board);
        state.show_lease(host);
    }

    /// The end of the lease, if this node would serve and its lease is over.
    pub fn expired_lease(&self, host: &dyn Host) -> Option<Duration> {
        let state = self.state.lock();
        state.is_lapsed(host).then_some(state.lease.until)
    }

    /// Waits until the lease under which this node serves may be over, or the gate is stopped. A lease that goes on wakes nobody.
    pub fn wait_for_lease_end(&self, host: &dyn Host) {
        let alarm = Arc::clone(self.state.lock().watches.alarm());
        alarm.wait(host);
    }

    /// Time for which no other node takes over, even if this process ends: until the end of the lease. A node that
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

    /// Time until the end of the lease, without end if this node serves without one; zero if it does not serve.
    pub fn serves_for(&self, host: &dyn Host) -> Duration {
        let state = self.state.lock();
        if !state.serves(host) {
            Duration::ZERO
        } else if state.lease.is_needed {
            state.lease.left(host)
        } else {
            Duration::MAX
        }
    }

    /// Whether the node serves now: its gate is open, and its lease holds.
    pub fn serves(&self, host: &dyn Host) -> bool {
        self.state.lock().serves(host)
    }

    /// Whether no other node can serve now, also while this node has a [`VisibilityHold`].
    pub fn excludes_other(&self, host: &dyn Host) -> bool {
        self.state.lock().excludes_other(host)
    }

    fn change(&self, host: &dyn Host, change: impl FnOnce(&mut ServiceGateState)) {
        let (due, is_changed) = {
            let mut state = self.state.lock();
            let (before, excluded) = (state.look(host), state.excludes_other(host));
            change(&mut state);
            state.show_lease(host);
            if excluded != state.excludes_other(host) {
                state.since = host.now();
            }
            (state.take_due(host), before != state.look(host))
        };
        // A lease that goes on wakes nobody.
        if is_changed {
            self.changes.raise();
        }
        for job in due {
            host.spawn(job);
        }
    }

    /// Ends the waiting: drops the jobs.
    pub fn stop(&self, host: &dyn Host) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_stopped = true;
            state.watches.stop(host);
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    /// Waits until nothing is inside. Returns `false` when that takes longer than `limit`.
    pub fn drain(&self, host: &dyn Host, limit: Duration) -> bool {
        self.state.lock().draining += 1;
        let until = host.now() + limit;
        let is_empty = || self.state.lock().inside == 0;
        let is_drained = self.emptied.wait_until(host, Some(until), is_empty);
        self.state.lock().draining -= 1;
        is_drained
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

    #[test]
    fn a_tenure_lasts_until_another_node_may_have_served() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let (gate, host) = (datastore.gate(), &*datastore.engine().host);
        assert_eq!(gate.tenure(), Tenure::FIRST);
        let same = [Standing::Undecided, Standing::Serving, Standing::Retiring];
        for standing in same.into_iter().chain([Standing::Undecided]) {
            gate.set(host, standing);
        }
        assert_eq!(gate.tenure(), Tenure::FIRST, "no other node could serve");
        let mut earlier = Tenure::FIRST;
        for standing in [Standing::Following, Standing::Serving, Standing::Following] {
            gate.set(host, standing);
            assert_eq!(gate.tenure(), earlier.next(), "{standing:?}");
            earlier = gate.tenure();
        }
        gate.set(host, Standing::Following);
        assert_eq!(gate.tenure(), earlier);
        gate.set(host, Standing::Serving);
        let asked = gate.tenure();
        gate.end_tenure(host);
        let inside = gate.enter(host, RequestKind::Program).unwrap();
        assert!(
            !asked.may_run_in(inside.tenure()),
            "an operator has forced the node"
        );
        drop(inside);
        datastore.stop();
    }

    /// The ends that a gate has shown, with a clock at one hour.
    #[derive(Default)]
    struct Board(Mutex<Vec<Option<Duration>>>);

    const HOUR: Duration = Duration::from_hours(1);

    impl LeaseBoard for Board {
        fn time(&self) -> Duration {
            HOUR
        }

        fn show(&self, end: Option<Duration>) {
            self.0.lock().push(end);
        }
    }

    #[test]
    fn a_node_serves_until_its_lease_is_over() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let (gate, host) = (datastore.gate(), &*datastore.engine().host);
        gate.set(host, Standing::Undecided);
        assert_eq!(gate.serves_for(host), Duration::ZERO);
        gate.set(host, Standing::Serving);
        assert_eq!(gate.serves_for(host), Duration::MAX);
        gate.need_lease(host, true);
        assert_eq!(gate.serves_for(host), Duration::ZERO);
        gate.extend_lease(host, host.now() + HOUR);
        let left = gate.serves_for(host);
        assert!(left <= HOUR && left > Duration::ZERO);
        datastore.stop();
    }

    #[test]
    fn a_lease_is_shown_while_the_node_serves_and_never_too_late() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let (gate, host) = (datastore.gate(), &*datastore.engine().host);
        let board = Arc::new(Board::default());
        gate.set(host, Standing::Undecided);
        gate.show_lease(host, Arc::clone(&board) as _);
        gate.need_lease(host, true);
        gate.extend_lease(host, host.now() + HOUR);
        assert_eq!(*board.0.lock(), [], "the node does not serve");
        gate.set(host, Standing::Serving);
        gate.set(host, Standing::Retiring);
        gate.set(host, Standing::Serving);
        gate.extend_lease(host, host.now() + HOUR * 2);
        gate.need_lease(host, false);
        gate.set(host, Standing::Following);
        gate.need_lease(host, true);
        let shown = board.0.lock().clone();
        let [Some(first), Some(second), None] = *shown else {
            panic!("{shown:?}");
        };
        assert!(first > HOUR && first <= HOUR * 2, "{shown:?}");
        assert!(second > first && second <= HOUR * 3, "{shown:?}");
        datastore.stop();
    }
}
