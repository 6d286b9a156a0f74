//! A request, as its admission sees it: the kind, the tenure, the pages and the program behind the request.

use fuser::Request;
use lockstep_driver::client::{RequestKind, Tenure};

use super::caller_thread::CallerThread;
use super::tenure_bond::TenureBond;
use crate::kernel_cache::file_pages::PageRead;
use crate::memory::delivery::RequestDelivery;

/// A request, as its admission sees it.
pub(crate) struct RequestInfo {
    /// The name of the request.
    pub operation: &'static str,
    pub kind: RequestKind,
    /// The pages that the kernel holds locked until the answer.
    pub page_read: Option<PageRead>,
    pub bond: TenureBond,
    pub thread: CallerThread,
}

impl RequestInfo {
    /// A request of a program to change something.
    pub fn change(operation: &'static str, delivery: RequestDelivery) -> Self {
        Self {
            bond: TenureBond::Change(delivery),
            ..operation.into()
        }
    }

    /// A request of a program to look at the attributes of an inode.
    pub fn look(operation: &'static str, request: &Request) -> Self {
        Self {
            bond: TenureBond::Look(RequestDelivery::of(request)),
            ..operation.into()
        }
    }

    /// The same of a request of the kernel.
    pub fn of(self, request: &Request) -> Self {
        self.by(CallerThread::new(request.pid()))
    }

    /// The same of a request for which a thread waits.
    pub const fn by(self, thread: CallerThread) -> Self {
        Self { thread, ..self }
    }

    /// The class of the request, if it was asked in a tenure.
    pub const fn class(&self, asked: Tenure) -> RequestClass {
        RequestClass {
            kind: self.kind,
            asked,
            bond: self.bond,
            thread: self.thread,
        }
    }
}

impl From<&'static str> for RequestInfo {
    /// A request of a program that fills no page and changes nothing.
    fn from(operation: &'static str) -> Self {
        Self {
            operation,
            kind: RequestKind::Program,
            page_read: None,
            bond: TenureBond::Free,
            thread: CallerThread::default(),
        }
    }
}

/// The class of a request decides whether the request runs, waits or fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestClass {
    pub kind: RequestKind,
    /// The tenure in which this process has read the request.
    pub asked: Tenure,
    pub bond: TenureBond,
    /// The thread that waits for the answer.
    pub thread: CallerThread,
}

impl RequestClass {
    /// Whether the request may run in a tenure.
    pub fn may_run_in(self, tenure: Tenure) -> bool {
        self.bond.lets_run_in(tenure, self.asked)
    }

    /// Whether no program gets the answer. The kernel's own requests are for no single program.
    pub fn is_of_killed(self) -> bool {
        self.kind != RequestKind::WriteBack && self.thread.is_dying()
    }

    /// Whether an earlier process may have executed the request.
    pub fn may_be_done(self) -> bool {
        self.bond.change().is_some_and(|change| change.is_resent)
    }
}
