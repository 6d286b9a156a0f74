//! The lease of a node (rule R7), and all that learns of its end: the board outside the process, and the thread that tells
//! the observers (`role/lease_expiry.rs`).

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::mutants::{Mutant, is_active};

use super::lease_board::{LeaseBoard, ShownLease};
use crate::host::{Alarm, Host};

/// The time for which no other node takes over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lease {
    /// The other node may take over once the lease is over.
    pub is_needed: bool,
    /// End of the lease on the host's clock.
    pub until: Duration,
}

impl Lease {
    /// Whether the other node may serve by now. Reads the clock only if a lease is needed.
    pub fn is_over(self, host: &dyn Host) -> bool {
        self.is_needed && host.now() >= self.until && !is_active(Mutant::ServeWithoutLease)
    }

    /// Time until the end.
    pub fn left(self, host: &dyn Host) -> Duration {
        self.until.saturating_sub(host.now())
    }

    /// The end; `None` for a node that needs no lease.
    fn end(self) -> Option<Duration> {
        self.is_needed.then_some(self.until)
    }
}

/// The board and the alarm of a lease.
pub(super) struct LeaseWatches {
    board: ShownLease,
    alarm: Arc<dyn Alarm>,
    /// The moment to which the alarm is set.
    alarm_at: Option<Duration>,
    is_stopped: bool,
}

impl LeaseWatches {
    /// No board, and an alarm that is not set.
    pub fn new(host: &dyn Host) -> Self {
        Self {
            board: ShownLease::default(),
            alarm: host.alarm(),
            alarm_at: None,
            is_stopped: false,
        }
    }

    /// Shows the ends of leases on a board from now on.
    pub fn put_up(&mut self, board: Arc<dyn LeaseBoard>) {
        self.board.put_up(board);
    }

    /// The alarm that comes when the lease under which this node serves is over, and at the stop. It may come too early.
    pub fn alarm(&self) -> &Arc<dyn Alarm> {
        &self.alarm
    }

    /// Shows the lease under which the node serves.
    pub fn show(&mut self, host: &dyn Host, lease: Lease) {
        self.board.update(host, lease.end());
    }

    /// Sets the alarm to the end of a lease. `None`: the node does not serve.
    pub fn set_alarm(&mut self, host: &dyn Host, lease: Option<Lease>) {
        let end = lease.and_then(Lease::end);
        if self.alarm_at != end && !self.is_stopped {
            self.alarm_at = end;
            self.alarm.set(host, end);
        }
    }

    /// Ends the wait at the alarm for good.
    pub fn stop(&mut self, host: &dyn Host) {
        self.is_stopped = true;
        self.alarm.set(host, Some(Duration::ZERO));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::OsHost;

    const HOUR: Duration = Duration::from_hours(1);

    fn lease(until: Duration) -> Lease {
        Lease {
            is_needed: true,
            until,
        }
    }

    #[test]
    fn the_alarm_comes_at_the_end_of_the_last_lease() {
        let host = OsHost::start("test").unwrap();
        let mut watches = LeaseWatches::new(&host);
        let end = host.now() + Duration::from_millis(20);
        watches.set_alarm(&host, Some(lease(end)));
        watches.set_alarm(&host, Some(lease(end + Duration::from_millis(20))));
        watches.alarm().wait(&host);
        assert!(host.now() >= end + Duration::from_millis(20));
        // The same end again is no news, and the next one is.
        watches.set_alarm(&host, None);
        watches.set_alarm(&host, Some(lease(end)));
        watches.alarm().wait(&host);
        host.stop();
    }

    #[test]
    fn nothing_puts_the_alarm_off_once_the_gate_is_stopped() {
        let host = OsHost::start("test").unwrap();
        let mut watches = LeaseWatches::new(&host);
        watches.set_alarm(&host, Some(lease(HOUR)));
        watches.stop(&host);
        watches.set_alarm(&host, Some(lease(HOUR * 2)));
        watches.set_alarm(&host, None);
        watches.alarm().wait(&host);
        host.stop();
    }
}
