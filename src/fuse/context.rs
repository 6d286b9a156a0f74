//! The state that all callbacks and completions of one mount share.
//!
//! Invariant: a request is answered exactly once. The reply object travels into the completion; if
//! a callback panics or a completion is dropped uncalled, dropping the reply answers `EIO`.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::vec;

use lockstep_driver::client::{Done, FileService};
use lockstep_types::{Attr, Errno, Ino, MetaRequest};

use super::error::MountError;
use super::kernel_cache::KernelCache;
use super::mount_memory::MountMemory;
use super::page_cache::PageCache;
use super::refuse::Refuse;
use super::request_gate::RequestGate;
use super::resent::{self, RequestDelivery};
use super::session_end::SessionEnd;

/// One mount: the service, the kernel's caches and the end of the session.
pub(super) struct Context {
    service: Arc<dyn FileService>,
    kernel_cache: Arc<KernelCache>,
    session_end: Arc<SessionEnd>,
    gate: RequestGate,
    page_cache: Arc<PageCache>,
    memory: MountMemory,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    pub fn new(
        service: Arc<dyn FileService>,
        session_end: Arc<SessionEnd>,
        kernel_cache: Arc<KernelCache>,
        page_cache: Arc<PageCache>,
        memory: MountMemory,
    ) -> Self {
        Self {
            service,
            kernel_cache,
            session_end,
            gate: RequestGate::default(),
            page_cache,
            memory,
        }
    }

    /// The memory that outlives this process.
    pub const fn memory(&self) -> &MountMemory {
        &self.memory
    }

    /// The datastore.
    pub fn service(&self) -> &dyn FileService {
        &*self.service
    }

    /// The kernel's page cache, as far as this process knows it.
    pub const fn page_cache(&self) -> &Arc<PageCache> {
        &self.page_cache
    }

    /// The kernel's caches.
    pub fn kernel_cache(&self) -> &KernelCache {
        &self.kernel_cache
    }

    /// The end of the session.
    pub fn session_end(&self) -> &SessionEnd {
        &self.session_end
    }

    /// Refuses all further requests. Returns when no thread hands a request to the service any more: an
    /// operation may still wait for its answer, but no request works on the store.
    pub fn close(&self) {
        self.service.closing();
        self.gate.close();
    }

    /// Runs `body`, which answers `reply`. A panic in `body` costs one request and is reported.
    pub fn answer<R: Refuse>(&self, operation: &'static str, reply: R, body: impl FnOnce(R)) {
        match self.gate.enter() {
            Some(_in_flight) => self.catch_panic(operation, || body(reply)),
            None => reply.refuse(Errno::Io),
        }
    }

    /// Runs `body` for a request without a reply, unless the mount is closed.
    pub fn run_without_reply(&self, operation: &'static str, body: impl FnOnce()) {
        if let Some(_in_flight) = self.gate.enter() {
            self.catch_panic(operation, body);
        }
    }

    /// Runs `body`. A panic in `body` is logged and reported, and does not end the thread.
    fn catch_panic(&self, operation: &'static str, body: impl FnOnce()) {
        let Err(panic) = panic::catch_unwind(AssertUnwindSafe(body)) else {
            return;
        };
        let message = message_of(&*panic);
        tracing::error!(operation, message, "a request panicked");
        self.service.panicked();
        self.session_end
            .fail(MountError::Panicked { operation, message });
    }

    /// Counts an `open` of a file.
    pub fn open(&self, ino: Ino) -> Result<(), Errno> {
        self.service.opened(ino)?;
        self.page_cache.changes().opened(ino);
        Ok(())
    }

    /// Counts the close of an open file.
    pub fn close_one(&self, ino: Ino) {
        self.page_cache.changes().closed(ino);
        self.service.closed(ino);
    }

    /// Submits a change. If the request could not even be formed, `then` receives the error at once.
    pub fn change(
        &self,
        request: Result<MetaRequest, Errno>,
        then: impl FnOnce(Result<Option<Attr>, Errno>) + Send + 'static,
    ) {
        match request {
            Ok(request) => self.service.change(request, Box::new(then)),
            Err(errno) => then(Err(errno)),
        }
    }

    /// Submits a change, which an earlier process may have executed.
    pub fn change_delivered(
        &self,
        delivery: RequestDelivery,
        request: MetaRequest,
        done: Done<Option<Attr>>,
    ) {
        let done = if delivery.is_resent {
            resent::wrap(&self.service, &request, done)
        } else {
            done
        };
        self.service.change(request, done);
    }

    /// Submits several changes of one inode one after the other, and stops at the first failure. `done` receives the
    /// outcome of the last submitted change. The kernel holds the lock of the inode meanwhile, so no other change
    /// comes in between.
    pub fn change_in_order(self: &Arc<Self>, changes: Vec<MetaRequest>, done: Done<Option<Attr>>) {
        self.submit_next(changes.into_iter(), None, done);
    }

    /// The same, for a request whose last change is the one that it asks for. An earlier process may have executed it.
    pub fn change_in_order_delivered(
        self: &Arc<Self>,
        delivery: RequestDelivery,
        changes: Vec<MetaRequest>,
        done: Done<Option<Attr>>,
    ) {
        let done = match changes.last() {
            Some(last) if delivery.is_resent => resent::wrap(&self.service, last, done),
            _ => done,
        };
        self.change_in_order(changes, done);
    }

    fn submit_next(
        self: &Arc<Self>,
        mut changes: vec::IntoIter<MetaRequest>,
        last: Option<Attr>,
        done: Done<Option<Attr>>,
    ) {
        let Some(change) = changes.next() else {
            return done(Ok(last));
        };
        let shared = Arc::clone(self);
        self.change(Ok(change), move |outcome| match outcome {
            Ok(attr) => shared.submit_next(changes, attr, done),
            Err(errno) => done(Err(errno)),
        });
    }

    /// The attributes that a change has answered with; otherwise the current ones of the inode.
    pub fn attributes(&self, ino: Ino, changed: Option<Attr>) -> Result<Attr, Errno> {
        match changed {
            Some(attr) => Ok(attr),
            None => self.service.getattr(ino),
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
