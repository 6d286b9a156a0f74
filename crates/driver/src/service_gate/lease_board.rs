//! The end of the lease as other processes of this machine see it (rule R7).
//!
//! A process that is suspended or gone drops no cache of the kernel. So the end of its lease is shown outside the process, where
//! another one watches it.
//!
//! Invariant: the shown end is never later than that of the lease. It may be earlier, if this process is suspended while it shows
//! the end.

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::mutants::{Mutant, is_active};

use crate::host::Host;

/// A place outside the process that shows for how long no other node serves: a process that is suspended or gone drops no
/// cache.
pub trait LeaseBoard: Send + Sync {
    /// The time of a monotonic clock that other processes of the machine read, too.
    fn time(&self) -> Duration;

    /// No other node serves before `end` on that clock, also if this process is suspended or ends. `None`: this node serves without a
    /// lease. Must not wait.
    fn show(&self, end: Option<Duration>);
}

/// The board of one datastore.
#[derive(Default)]
pub(crate) struct ShownLease {
    board: Option<Arc<dyn LeaseBoard>>,
    /// The end on the board, by the host's clock; [`Duration::MAX`] if this node serves without a lease.
    end: Option<Duration>,
}

impl ShownLease {
    /// Shows the ends on a board from now on.
    pub fn put_up(&mut self, board: Arc<dyn LeaseBoard>) {
        self.board = Some(board);
        self.end = None;
    }

    /// Shows an end by the host's clock, if it is a new one; `None` if this node serves without a lease.
    pub fn update(&mut self, host: &dyn Host, end: Option<Duration>) {
        let shown = Some(end.unwrap_or(Duration::MAX));
        let Some(board) = self.board.as_ref().filter(|_| self.end != shown) else {
            return;
        };
        // In this order: the process may be suspended between the two looks at a clock.
        let time = board.time();
        let factor = if is_active(Mutant::CachesOutliveLease) {
            4
        } else {
            1
        };
        let left = end.map(|end| end.saturating_sub(host.now()) * factor);
        board.show(left.map(|left| time.saturating_add(left)));
        self.end = shown;
    }
}
