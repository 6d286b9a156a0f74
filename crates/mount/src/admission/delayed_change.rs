//! A change of content that has waited for other changes of the same pages, and begins now.
//!
//! The node may have stopped to serve meanwhile, so the change asks for admission again. A change that must wait for the
//! service gives its place among the changes of the file away. Otherwise a write-back of the same page would wait for the
//! service, too, and could reach the file after the other node has changed it.

use std::sync::Arc;

use lockstep_types::Errno;

use super::context::{Context, RequestForm};
use super::standby_queue::{AdmissionAnswer, Admitted, ParkedRequest};
use crate::kernel_cache::page_cache::ContentChange;

/// A change whose turn has come.
pub(crate) struct DelayedChange {
    form: RequestForm,
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
    /// A change whose turn has come, of a request with a form.
    pub const fn new(form: RequestForm, change: ContentChange) -> Self {
        Self { form, change }
    }

    /// Asks for admission, and gives `body` the turn: now, or when this node serves.
    pub fn start(
        self,
        context: &Arc<Context>,
        body: impl FnOnce(&Arc<Context>, DelayedTurn) + Send + 'static,
    ) {
        let Self { form, change } = self;
        let (operation, wish) = (form.operation, form.wish(context.asked()));
        match context.admissions().enter(wish) {
            AdmissionAnswer::Inside(admitted) => {
                context.run(operation, admitted, || {
                    body(context, DelayedTurn::Begin(change));
                });
            }
            AdmissionAnswer::Refused(errno) => {
                context.page_cache().abandon(&change);
                body(context, DelayedTurn::Refused(errno));
            }
            AdmissionAnswer::Waits(in_flight) => {
                context.page_cache().abandon(&change);
                let shared = Arc::clone(context);
                let answer = move |turn: Result<Admitted<'_>, Errno>| match turn {
                    Ok(admitted) => shared.run(operation, admitted, || {
                        body(&shared, DelayedTurn::Again);
                    }),
                    Err(errno) => body(&shared, DelayedTurn::Refused(errno)),
                };
                // The service keeps the bytes of the change.
                let request = ParkedRequest::new(wish, Box::new(answer));
                context.admissions().park(request, in_flight);
            }
        }
    }
}
