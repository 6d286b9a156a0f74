//! A request that is let in, and how it runs: a panic costs one request, is reported, and does not end the thread.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use lockstep_driver::client::{FileService, Inside, Tenure};

use super::in_flight_requests::InFlightGuard;
use crate::device::session_end::SessionEnd;
use crate::error::MountError;

/// Runs the requests of one mount.
pub(crate) struct RequestRunner {
    service: Arc<dyn FileService>,
    session_end: Arc<SessionEnd>,
}

/// A request that may pass, until this is dropped, although this node may not serve.
pub(crate) struct Passed<'a> {
    runner: &'a RequestRunner,
    _in_flight: InFlightGuard<'a>,
}

/// A request that may use the service until this is dropped. An operation that the request has begun may last longer.
pub(crate) struct Admitted<'a> {
    // The service is left before the mount is: a mount that is closed has no request inside.
    inside: Inside,
    passed: Passed<'a>,
}

impl RequestRunner {
    /// A runner that reports panics to the service and to the owner of the mount.
    pub const fn new(service: Arc<dyn FileService>, session_end: Arc<SessionEnd>) -> Self {
        Self {
            service,
            session_end,
        }
    }

    fn run(&self, operation: &'static str, body: impl FnOnce()) {
        let Err(panic) = panic::catch_unwind(AssertUnwindSafe(body)) else {
            return;
        };
        let message = message_of(&*panic);
        tracing::error!(operation, message, "a request panicked");
        self.service.panicked();
        self.session_end
            .fail(MountError::Panicked { operation, message });
    }
}

impl<'a> Passed<'a> {
    /// A request that a thread hands to the service from now on.
    pub const fn new(runner: &'a RequestRunner, in_flight: InFlightGuard<'a>) -> Self {
        Self {
            runner,
            _in_flight: in_flight,
        }
    }

    /// Runs the request.
    pub fn run(&self, operation: &'static str, body: impl FnOnce()) {
        self.runner.run(operation, body);
    }
}

impl<'a> Admitted<'a> {
    /// A request that the service has let in.
    pub const fn new(inside: Inside, passed: Passed<'a>) -> Self {
        Self { inside, passed }
    }

    /// The tenure in which the request runs.
    pub const fn tenure(&self) -> Tenure {
        self.inside.tenure()
    }

    /// Runs the request.
    pub fn run(self, operation: &'static str, body: impl FnOnce()) {
        self.passed.run(operation, body);
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
