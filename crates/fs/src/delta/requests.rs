//! Begins and ends of a delta of which the table has not heard (head of [`delta`](super)).
//!
//! Invariant: requests are carried out in their order. The flags that threads read without a lock say what is so after the last one.
//!
//! Locks: that of the queue is held for no call of a table. It is taken under the lock of the delta, or alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::kept::Lead;

/// How a rest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestEnd {
    /// The copies are equal, but the other one may lose the places of the rest: the open column gets them.
    Equal,
    /// The rest is lost. So are the columns.
    Lost,
    /// There is no rest, or another one follows that contains this one.
    Contained,
}

/// A begin or an end of which the table has not heard.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeltaRequest {
    BeginAlone(Lead),
    End(RestEnd),
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct DeltaRequests {
    waiting: Mutex<VecDeque<DeltaRequest>>,
    are_waiting: AtomicBool,
}

impl DeltaRequests {
    /// Whether the table may have to hear of something.
    pub fn are_waiting(&self) -> bool {
        self.are_waiting.load(Ordering::Acquire)
    }

    /// Adds a request. `notes`: whether the node is alone then.
    pub fn push(&self, request: DeltaRequest, notes: &AtomicBool) {
        let mut waiting = self.waiting.lock();
        waiting.push_back(request);
        self.are_waiting.store(true, Ordering::Release);
        let is_alone = matches!(request, DeltaRequest::BeginAlone(_));
        notes.store(is_alone, Ordering::Release);
    }

    pub fn next(&self) -> Option<DeltaRequest> {
        self.waiting.lock().pop_front()
    }

    /// Tells the threads that take no lock whether the node is alone, unless a request says so already.
    pub fn publish(&self, is_alone: bool, notes: &AtomicBool) {
        let waiting = self.waiting.lock();
        if waiting.is_empty() {
            notes.store(is_alone, Ordering::Release);
            self.are_waiting.store(false, Ordering::Release);
        }
    }
}
