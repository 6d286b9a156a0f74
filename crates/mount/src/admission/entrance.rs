//! The entrance of a mount: each request of the kernel comes in here, and runs, waits for this node to serve, or is refused.
//!
//! A request that is let in runs with the [`Context`] of its tenure: an operation that the request begins later, on any
//! thread, does not reach the service of a later tenure (rule R13).
//!
//! Invariant: a request is answered exactly once. The reply object travels into the completion; if a request panics or a
//! completion is dropped uncalled, dropping the reply answers `EIO`. A request that waits for this node to serve lies in
//! the [`StandbyQueue`].

use std::sync::Arc;

use fuser::Request;
use lockstep_driver::client::Tenure;
use lockstep_types::Errno;
use parking_lot::RwLock;

use super::admitted::Admitted;
use super::context::Context;
use super::parked_requests::ParkedRequest;
use super::refuse::Refuse;
use super::request_info::{RequestClass, RequestInfo};
use super::standby_queue::{AdmissionAnswer, StandbyQueue};
use crate::memory::delivery::RequestDelivery;

/// The entrance of one mount.
pub(crate) struct Entrance {
    queue: Arc<StandbyQueue>,
    /// The context of requests that belong to no tenure.
    anytime: Arc<Context>,
    /// The context of the latest tenure.
    latest: RwLock<Option<(Tenure, Arc<Context>)>>,
}

impl Entrance {
    /// The entrance to the service of a context.
    pub fn new(anytime: Context) -> Self {
        Self {
            queue: Arc::clone(&anytime.queue),
            anytime: Arc::new(anytime),
            latest: RwLock::new(None),
        }
    }

    /// The delivery of a request. An earlier process has not executed a request that it has only parked.
    pub fn delivery(&self, request: &Request) -> RequestDelivery {
        self.anytime.memory.delivery_of(request)
    }

    /// The context of the requests of a tenure.
    fn within(&self, tenure: Tenure) -> Arc<Context> {
        if let Some((of, latest)) = &*self.latest.read()
            && *of == tenure
        {
            return Arc::clone(latest);
        }
        let within = Arc::new(self.anytime.within(tenure));
        *self.latest.write() = Some((tenure, Arc::clone(&within)));
        within
    }

    /// Runs `body`, which answers `reply`: now, or when this node serves. A panic in `body` costs one request and is
    /// reported.
    pub fn answer<R: Refuse + Send + 'static>(
        self: &Arc<Self>,
        info: RequestInfo,
        reply: R,
        body: impl FnOnce(&Arc<Context>, R) + Send + 'static,
    ) {
        let class = info.class(self.anytime.asked());
        match self.queue.enter(class) {
            AdmissionAnswer::Inside(admitted) => self.run(&info, admitted, reply, body),
            AdmissionAnswer::Refused(errno) => reply.refuse(errno),
            AdmissionAnswer::Waits(passed) => {
                let request = self.parked((info, class), reply, body);
                self.queue.park(request, passed);
            }
        }
    }

    /// The same, for a request with data in the buffer of this thread. If the request must wait, `keep` gives the number
    /// of bytes that it copies, and a body that owns the copy.
    pub fn answer_or_keep<R, B>(
        self: &Arc<Self>,
        info: RequestInfo,
        reply: R,
        body: impl FnOnce(&Arc<Context>, R),
        keep: impl FnOnce() -> (usize, B),
    ) where
        R: Refuse + Send + 'static,
        B: FnOnce(&Arc<Context>, R) + Send + 'static,
    {
        let class = info.class(self.anytime.asked());
        match self.queue.enter(class) {
            AdmissionAnswer::Inside(admitted) => self.run(&info, admitted, reply, body),
            AdmissionAnswer::Refused(errno) => reply.refuse(errno),
            AdmissionAnswer::Waits(passed) => {
                let (bytes, body) = keep();
                let request = self.parked((info, class), reply, body);
                let request = ParkedRequest { bytes, ..request };
                self.queue.park(request, passed);
            }
        }
    }

    /// Runs `body`, which answers `reply`, whether this node serves or not. `body` only counts references, or needs nothing
    /// that the other node may change.
    pub fn answer_counting<R: Refuse>(
        &self,
        operation: &'static str,
        reply: R,
        body: impl FnOnce(&Arc<Context>, R),
    ) {
        match self.queue.pass() {
            Some(passed) => passed.run(operation, || body(&self.anytime, reply)),
            None => reply.refuse(Errno::Io),
        }
    }

    /// Runs `body`, which answers `reply`, whether this node serves or not. `body` learns whether it serves.
    pub fn answer_anywhere<R: Refuse>(
        &self,
        operation: &'static str,
        reply: R,
        body: impl FnOnce(&Context, R, bool),
    ) {
        match self.queue.enter_anywhere() {
            Some((passed, inside)) => {
                passed.run(operation, || body(&self.anytime, reply, inside.is_some()));
                drop(inside);
            }
            None => reply.refuse(Errno::Io),
        }
    }

    /// Runs `body` for a request without a reply, unless the mount is closed. `body` only counts references.
    pub fn run_without_reply(&self, operation: &'static str, body: impl FnOnce(&Context)) {
        if let Some(passed) = self.queue.pass() {
            passed.run(operation, || body(&self.anytime));
        }
    }

    fn run<R>(
        &self,
        info: &RequestInfo,
        admitted: Admitted<'_>,
        reply: R,
        body: impl FnOnce(&Arc<Context>, R),
    ) {
        let within = self.within(admitted.tenure());
        admitted.run(info.operation, || body(&within, reply));
    }

    /// A request to park, without data.
    fn parked<R: Refuse + Send + 'static>(
        self: &Arc<Self>,
        (info, class): (RequestInfo, RequestClass),
        reply: R,
        body: impl FnOnce(&Arc<Context>, R) + Send + 'static,
    ) -> ParkedRequest {
        let (shared, page_read) = (Arc::clone(self), info.page_read.clone());
        let answer = move |turn: Result<Admitted<'_>, Errno>| match turn {
            Ok(admitted) => shared.run(&info, admitted, reply, body),
            Err(errno) => reply.refuse(errno),
        };
        ParkedRequest {
            page_read,
            ..ParkedRequest::new(class, Box::new(answer))
        }
    }
}
