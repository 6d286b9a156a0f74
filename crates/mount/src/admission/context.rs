//! The state that all callbacks and completions of one mount share.
//!
//! A request that is let in runs with a context of its tenure ([`Context::within`]): what it begins later, on any thread, does
//! not reach the service of a later tenure (rule R13).
//!
//! Invariant: a request is answered exactly once. The reply object travels into the completion; if
//! a callback panics or a completion is dropped uncalled, dropping the reply answers `EIO`. A request that waits for this
//! node to serve lies in [`Admissions`].

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use fuser::Request;
use lockstep_driver::client::{Done, FileService, RequestKind, Tenure};
use lockstep_types::{Attr, Errno, Ino, MetaRequest};
use parking_lot::RwLock;

use super::caller_thread::CallerThread;
use super::refuse::Refuse;
use super::standby_queue::{AdmissionAnswer, AdmissionWish, Admissions, Admitted, ParkedRequest};
use super::tenure_bond::TenureBond;
use crate::device::session_end::SessionEnd;
use crate::error::MountError;
use crate::kernel_cache::file_pages::PageRead;
use crate::kernel_cache::known_inodes::KnownInodes;
use crate::kernel_cache::notifications::KernelCache;
use crate::kernel_cache::page_cache::PageCache;
use crate::memory::delivery::RequestDelivery;
use crate::memory::mount_memory::MountMemory;
use crate::resume::resent;

/// How long the kernel may cache what a node answers that does not serve.
pub(crate) const NOT_AT_ALL: Duration = Duration::ZERO;

/// The longest time of [`Context::short_lifetime`].
const SHORT_LIFETIME: Duration = Duration::from_secs(1);

/// One mount: the service, the kernel's caches and the end of the session.
pub(crate) struct Context {
    service: Arc<dyn FileService>,
    /// The tenure of the requests that run with this context; `None` for the mount as a whole.
    tenure: Option<Tenure>,
    parts: Arc<MountParts>,
    /// The context of the latest tenure, for the mount as a whole.
    latest: RwLock<Option<Arc<Self>>>,
}

/// The parts of one mount that all tenures share.
struct MountParts {
    admissions: Arc<Admissions>,
    kernel_cache: Arc<KernelCache>,
    session_end: SessionEnd,
    known: Arc<KnownInodes>,
    page_cache: Arc<PageCache>,
    memory: MountMemory,
    lifetime: Duration,
}

/// The form of a request, for its admission.
pub(crate) struct RequestForm {
    /// The name of the request.
    pub operation: &'static str,
    pub kind: RequestKind,
    /// The pages that the kernel holds locked until the answer.
    pub page_read: Option<PageRead>,
    pub bond: TenureBond,
    pub thread: CallerThread,
}

impl RequestForm {
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

    /// The form of a request of the kernel.
    pub fn of(self, request: &Request) -> Self {
        self.by(CallerThread::new(request.pid()))
    }

    /// The form of a request for which a thread waits.
    pub const fn by(self, thread: CallerThread) -> Self {
        Self { thread, ..self }
    }

    /// The wish of the request at its admission, if it was asked in a tenure.
    pub const fn wish(&self, asked: Tenure) -> AdmissionWish {
        AdmissionWish {
            kind: self.kind,
            asked,
            bond: self.bond,
            thread: self.thread,
        }
    }
}

impl From<&'static str> for RequestForm {
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

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    pub fn new(
        service: Arc<dyn FileService>,
        admissions: Arc<Admissions>,
        kernel_cache: Arc<KernelCache>,
        page_cache: Arc<PageCache>,
        memory: MountMemory,
        known: KnownInodes,
        lifetime: Duration,
    ) -> Self {
        let parts = Arc::new(MountParts {
            admissions,
            kernel_cache,
            session_end: SessionEnd::default(),
            known: Arc::new(known),
            page_cache,
            memory,
            lifetime,
        });
        Self::of(service, None, parts)
    }

    const fn of(
        service: Arc<dyn FileService>,
        tenure: Option<Tenure>,
        parts: Arc<MountParts>,
    ) -> Self {
        Self {
            service,
            tenure,
            parts,
            latest: RwLock::new(None),
        }
    }

    /// The context of the requests of a tenure.
    fn within(self: &Arc<Self>, tenure: Tenure) -> Arc<Self> {
        if self.tenure.is_some() {
            return Arc::clone(self);
        }
        if let Some(latest) = &*self.latest.read()
            && latest.tenure == Some(tenure)
        {
            return Arc::clone(latest);
        }
        let service = self.service.within(tenure);
        let service = service.unwrap_or_else(|| Arc::clone(&self.service));
        let within = Arc::new(Self::of(service, Some(tenure), Arc::clone(&self.parts)));
        *self.latest.write() = Some(Arc::clone(&within));
        within
    }

    /// The tenure in which a request was asked that is read or goes on now.
    pub fn asked(&self) -> Tenure {
        self.tenure.unwrap_or_else(|| self.service.tenure())
    }

    /// The delivery of a request. An earlier process has not executed a request that it has only parked.
    pub fn delivery(&self, request: &Request) -> RequestDelivery {
        let marked = RequestDelivery::of(request);
        RequestDelivery {
            is_resent: marked.is_resent && !self.parts.memory.take_parked(marked.unique),
            ..marked
        }
    }

    /// The memory that outlives this process.
    pub fn memory(&self) -> &MountMemory {
        &self.parts.memory
    }

    /// The datastore.
    pub fn service(&self) -> &dyn FileService {
        &*self.service
    }

    /// The datastore, for a completion.
    pub const fn shared_service(&self) -> &Arc<dyn FileService> {
        &self.service
    }

    /// The kernel's page cache, as far as this process knows it.
    pub fn page_cache(&self) -> &Arc<PageCache> {
        &self.parts.page_cache
    }

    /// The kernel's caches.
    pub fn kernel_cache(&self) -> &KernelCache {
        &self.parts.kernel_cache
    }

    /// The end of the session.
    pub fn session_end(&self) -> &SessionEnd {
        &self.parts.session_end
    }

    /// The admission of requests to the service.
    pub fn admissions(&self) -> &Arc<Admissions> {
        &self.parts.admissions
    }

    /// The inodes that the kernel knows.
    pub fn known(&self) -> &Arc<KnownInodes> {
        &self.parts.known
    }

    /// How long the kernel may cache names that it is answered now, and attributes that it has asked for. Every change of them comes
    /// through this mount, so the kernel knows of it. There are three exceptions. A change of content clears set-id bits, and a read
    /// shows the end of an append before the kernel knows it: then [`KernelCache::expire`] notifies the kernel. And the other node
    /// may serve: before that the kernel drops its caches (`role`, `guard`), and keeps nothing of an answer that comes later.
    /// On a kernel that cannot drop all names, they end at the end of the lease.
    pub fn lifetime(&self) -> Duration {
        let longest = self.parts.lifetime;
        if longest > SHORT_LIFETIME && self.service.serves() {
            longest
        } else {
            self.short_lifetime()
        }
    }

    /// The same for an answer that brings an inode with one lifetime for the name and the attributes. If the kernel does not know
    /// the inode while it drops its caches, and takes the answer up after that, it keeps the attributes. So they end at the end of
    /// the lease, and soon without one. Where attributes have a lifetime of their own, such an answer gives them none.
    pub fn short_lifetime(&self) -> Duration {
        self.service.serves_for().min(SHORT_LIFETIME)
    }

    /// Refuses all further requests, and those that wait for this node to serve. Returns when no thread hands a request to
    /// the service any more: an operation may still wait for its answer, but no request works on the store.
    pub fn close(&self) {
        self.service.closing();
        self.parts.admissions.close();
    }

    /// Runs `body`, which answers `reply`: now, or when this node serves. A panic in `body` costs one request and is
    /// reported.
    pub fn answer<R: Refuse + Send + 'static>(
        self: &Arc<Self>,
        form: impl Into<RequestForm>,
        reply: R,
        body: impl FnOnce(&Arc<Self>, R) + Send + 'static,
    ) {
        let form = form.into();
        let wish = form.wish(self.asked());
        match self.parts.admissions.enter(wish) {
            AdmissionAnswer::Inside(admitted) => {
                let within = self.within(admitted.tenure());
                self.run(form.operation, admitted, || body(&within, reply));
            }
            AdmissionAnswer::Refused(errno) => reply.refuse(errno),
            AdmissionAnswer::Waits(in_flight) => {
                let request = self.parked((form, wish), reply, body);
                self.parts.admissions.park(request, in_flight);
            }
        }
    }

    /// The same, for a request with data in the buffer of this thread. If the request must wait, `keep` gives the number
    /// of bytes that it copies, and a body that owns the copy.
    pub fn answer_or_keep<R, B>(
        self: &Arc<Self>,
        form: impl Into<RequestForm>,
        reply: R,
        body: impl FnOnce(&Arc<Self>, R),
        keep: impl FnOnce() -> (usize, B),
    ) where
        R: Refuse + Send + 'static,
        B: FnOnce(&Arc<Self>, R) + Send + 'static,
    {
        let form = form.into();
        let wish = form.wish(self.asked());
        match self.parts.admissions.enter(wish) {
            AdmissionAnswer::Inside(admitted) => {
                let within = self.within(admitted.tenure());
                self.run(form.operation, admitted, || body(&within, reply));
            }
            AdmissionAnswer::Refused(errno) => reply.refuse(errno),
            AdmissionAnswer::Waits(in_flight) => {
                let (bytes, body) = keep();
                let request = self.parked((form, wish), reply, body);
                let request = ParkedRequest { bytes, ..request };
                self.parts.admissions.park(request, in_flight);
            }
        }
    }

    /// Runs `body`, which answers `reply`, whether this node serves or not. `body` only counts references, or needs nothing
    /// that the other node may change.
    pub fn answer_counting<R: Refuse>(
        &self,
        operation: &'static str,
        reply: R,
        body: impl FnOnce(R),
    ) {
        match self.parts.admissions.pass() {
            Some(_in_flight) => self.catch_panic(operation, || body(reply)),
            None => reply.refuse(Errno::Io),
        }
    }

    /// Runs `body`, which answers `reply`, whether this node serves or not. `body` learns whether it serves.
    pub fn answer_anywhere<R: Refuse>(
        &self,
        operation: &'static str,
        reply: R,
        body: impl FnOnce(R, bool),
    ) {
        match self.parts.admissions.enter_anywhere() {
            Some((_in_flight, inside)) => {
                self.catch_panic(operation, || body(reply, inside.is_some()));
            }
            None => reply.refuse(Errno::Io),
        }
    }

    /// Runs `body` for a request without a reply, unless the mount is closed. `body` only counts references.
    pub fn run_without_reply(&self, operation: &'static str, body: impl FnOnce()) {
        if let Some(_in_flight) = self.parts.admissions.pass() {
            self.catch_panic(operation, body);
        }
    }

    /// Runs an admitted request.
    pub fn run(&self, operation: &'static str, _admitted: Admitted<'_>, body: impl FnOnce()) {
        self.catch_panic(operation, body);
    }

    /// A request to park, without data.
    fn parked<R: Refuse + Send + 'static>(
        self: &Arc<Self>,
        (form, wish): (RequestForm, AdmissionWish),
        reply: R,
        body: impl FnOnce(&Arc<Self>, R) + Send + 'static,
    ) -> ParkedRequest {
        let (shared, operation) = (Arc::clone(self), form.operation);
        let answer = move |turn: Result<Admitted<'_>, Errno>| match turn {
            Ok(admitted) => {
                let within = shared.within(admitted.tenure());
                shared.run(operation, admitted, || body(&within, reply));
            }
            Err(errno) => reply.refuse(errno),
        };
        ParkedRequest {
            page_read: form.page_read,
            ..ParkedRequest::new(wish, Box::new(answer))
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
        self.parts
            .session_end
            .fail(MountError::Panicked { operation, message });
    }

    /// Counts a reference of the kernel's cache. Call it before the answer that gives the kernel the inode.
    pub fn remember(&self, ino: Ino) {
        self.parts.known.remember(ino, 1);
        self.service.remembered(ino, 1);
    }

    /// Counts references fewer.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.parts.known.forget(ino, count);
        self.service.forgotten(ino, count);
    }

    /// Counts an `open` of a file.
    pub fn open(&self, ino: Ino) -> Result<(), Errno> {
        self.service.opened(ino)?;
        self.parts.page_cache.changes().opened(ino);
        Ok(())
    }

    /// Counts the close of an open file.
    pub fn close_one(&self, ino: Ino) {
        self.parts.page_cache.changes().closed(ino);
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
