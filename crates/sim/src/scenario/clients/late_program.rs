//! A program that is killed while its request waits: for the service, in the kernel's queue, or in a thread that stands still.
//!
//! The request itself lives on. Once it goes on, the node serves, does not serve, or serves again after the other node. No
//! program gets the answer, so the history has the call as one that never returned. But it knows the node at which it was
//! asked: the call has no effect after the first answer of the other node (rule R13, `History::deadline`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_driver::client::Tenure;
use lockstep_types::MetaRequest;
use parking_lot::Mutex;

use super::mount::Mount;
use crate::history::CallId;
use crate::op::Op;
use crate::scenario::recording::history_recorder::HistoryRecorder;
use crate::world::{self, Side, Wait};

/// Share of the suitable requests whose program is killed, in percent.
const KILLED_PERCENT: u64 = 20;
/// The longest time for which a request stands still.
const STANDS_STILL_MAX: Duration = Duration::from_secs(3);
/// The interval between two attempts to enter a node that does not serve.
const ENTER_POLL: Duration = Duration::from_millis(5);

/// Draws whether the program of a request is killed.
pub fn is_drawn(mount: &Mount, op: &Op) -> bool {
    let is_suitable = matches!(op, Op::Write(_) | Op::Change(MetaRequest::Truncate { .. }));
    let shared = mount.process().shared();
    is_suitable && shared.with_random(|random| random.percent(KILLED_PERCENT))
}

/// A request without a program.
pub struct LateRequest {
    pub mount: Mount,
    pub recorder: Arc<Mutex<HistoryRecorder>>,
    pub side: Side,
    pub call: CallId,
    pub op: Op,
    /// The tenure in which the request was asked.
    pub asked: Tenure,
    /// The time for which the request stands still. `None`: random.
    pub stands_still: Option<Duration>,
    /// The schedule lets no more requests begin.
    pub is_over: Arc<AtomicBool>,
}

impl LateRequest {
    /// Lets the request go on, on a thread of its own.
    pub fn start(self) {
        self.recorder.lock().killed(self.call, self.side);
        let process = Arc::clone(self.mount.process());
        process.start(move || self.run());
    }

    fn run(&self) {
        let shared = self.mount.process().shared();
        let stands_still = self.stands_still.unwrap_or_else(|| {
            let most = u64::try_from(STANDS_STILL_MAX.as_micros()).unwrap_or(u64::MAX);
            Duration::from_micros(shared.with_random(|random| random.below(most)))
        });
        world::wait(Wait::Until(shared.now() + stands_still));
        while !self.is_over.load(Ordering::Relaxed) && !self.mount.is_unmounted() {
            let Ok(inside) = self.mount.enter() else {
                world::wait(Wait::Until(shared.now() + ENTER_POLL));
                continue;
            };
            if self.asked.may_run_in(inside.tenure()) {
                let mount = self.mount.within(self.asked);
                // Nobody gets the answer.
                let _answer = world::serving(|| mount.submit_inside(&self.op, inside));
            }
            return;
        }
    }
}
