//! A change of content that has waited for other changes of the same pages, and begins now.
//!
//! The node may have stopped to serve meanwhile, so the change asks for admission again. A change that must wait for the
//! service gives its place among the changes of the file away. Otherwise a write-back of the same page would wait for the
//! service, too, and could reach the file after the other node has changed it.

use std::sync::Arc;

use lockstep_types::Errno;

use super::admitted::Admitted;
use super::context::Context;
use super::parked_requests::ParkedRequest;
use super::request_info::RequestInfo;
use super::standby_queue::AdmissionAnswer;
use crate::kernel_cache::page_cache::ContentChange;

/// A change whose turn has come.
pub(crate) struct DelayedChange {
    info: RequestInfo,
    change: ContentChange,
}

/// The outcome for a change whose turn has come.
pub(crate) enum DelayedTurn {
    /// The change begins now.
    Begin(ContentChange),
    /// The change is admitted, but has no place among the changes of the file: it asks for one again.
    Again,
    /// The change fails.
    Refused(Errno),
}

impl DelayedChange {
    /// A change whose turn has come, of this request.
    pub const fn new(info: RequestInfo, change: ContentChange) -> Self {
        Self { info, change }
    }

    /// Asks for admission, and gives `body` the turn: now, or when this node serves.
    pub fn start(
        self,
        context: &Arc<Context>,
        body: impl FnOnce(&Arc<Context>, DelayedTurn) + Send + 'static,
    ) {
        let Self { info, change } = self;
        let (operation, class) = (info.operation, info.class(context.asked()));
        match context.queue.enter(class) {
            AdmissionAnswer::Inside(admitted) => {
                admitted.run(operation, || {
                    body(context, DelayedTurn::Begin(change));
                });
            }
            AdmissionAnswer::Refused(errno) => {
                context.page_cache.abandon(&change);
                body(context, DelayedTurn::Refused(errno));
            }
            AdmissionAnswer::Waits(passed) => {
                context.page_cache.abandon(&change);
                let shared = Arc::clone(context);
                let answer = move |turn: Result<Admitted<'_>, Errno>| match turn {
                    Ok(admitted) => admitted.run(operation, || {
                        body(&shared, DelayedTurn::Again);
                    }),
                    Err(errno) => body(&shared, DelayedTurn::Refused(errno)),
                };
                // The service keeps the bytes of the change.
                let request = ParkedRequest::new(class, Box::new(answer));
                context.queue.park(request, passed);
            }
        }
    }
}
