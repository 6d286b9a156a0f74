//! What every callback and every completion of one mount shares.
//!
//! Invariant: a request is answered exactly once. The reply object travels into the completion; if
//! a callback panics or a completion is dropped uncalled, dropping the reply answers `EIO`.

use std::any::Any;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use lockstep_driver::client::FileService;
use lockstep_types::{Attr, Errno, Ino, MetaRequest};

use super::MountError;
use super::doorway::Doorway;
use super::ending::Ending;
use super::page_cache::PageCache;
use super::reply::Refuse;

/// The service, and the way back to the kernel.
pub(super) struct Context {
    service: Arc<dyn FileService>,
    notifier: OnceLock<Notifier>,
    ending: Arc<Ending>,
    doorway: Doorway,
    page_cache: PageCache,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    pub fn new(service: Arc<dyn FileService>, ending: Arc<Ending>, page_cache: PageCache) -> Self {
        Self {
            service,
            notifier: OnceLock::new(),
            ending,
            doorway: Doorway::default(),
            page_cache,
        }
    }

    /// The datastore.
    pub fn service(&self) -> &dyn FileService {
        &*self.service
    }

    /// What is known of the kernel's page cache.
    pub const fn page_cache(&self) -> &PageCache {
        &self.page_cache
    }

    /// How the mount ends.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Gives the way to tell the kernel things, before the first request is answered.
    pub fn connect(&self, notifier: Notifier) {
        // Set once, when the mount is made.
        let _ = self.notifier.set(notifier);
    }

    /// From now on requests are refused instead of given to the service. Returns when those that were
    /// being given to it are: they may wait for answers, but work on the store no more.
    pub fn close(&self) {
        self.service.closing();
        self.doorway.close();
    }

    /// Runs `body`, which answers `reply`, so that a panic in it costs one request and is told.
    pub fn answer<R: Refuse>(&self, operation: &'static str, reply: R, body: impl FnOnce(R)) {
        match self.doorway.enter() {
            Some(_inside) => self.guard(operation, || body(reply)),
            None => reply.refuse(Errno::Io),
        }
    }

    /// Runs `body`, which has nobody to answer, unless the mount is closed.
    pub fn tell(&self, operation: &'static str, body: impl FnOnce()) {
        if let Some(_inside) = self.doorway.enter() {
            self.guard(operation, body);
        }
    }

    /// Runs `body` so that a panic in it ends neither the thread nor goes unheard.
    fn guard(&self, operation: &'static str, body: impl FnOnce()) {
        let Err(panic) = panic::catch_unwind(AssertUnwindSafe(body)) else {
            return;
        };
        let message = message_of(&*panic);
        tracing::error!(operation, message, "a request panicked");
        self.service.panicked();
        self.ending
            .fail(MountError::Panicked { operation, message });
    }

    /// A program has opened a file.
    pub fn open(&self, ino: Ino) -> Result<(), Errno> {
        self.service.opened(ino)?;
        self.page_cache.changes().opened(ino);
        Ok(())
    }

    /// A program has closed a file that it had opened.
    pub fn close_one(&self, ino: Ino) {
        self.page_cache.changes().closed(ino);
        self.service.closed(ino);
    }

    /// Asks for a change; one that could not even be formed goes to `then` as its error.
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

    /// The attributes a change answered with, or those the inode has now.
    pub fn attributes(&self, ino: Ino, changed: Option<Attr>) -> Result<Attr, Errno> {
        match changed {
            Some(attr) => Ok(attr),
            None => self.service.getattr(ino),
        }
    }

    /// Makes the kernel ask again for the attributes of `ino`, where it would not know by itself
    /// that they changed.
    pub fn expire(&self, ino: Ino) {
        /// An offset that says: attributes only, leave cached data.
        const ATTRIBUTES_ONLY: i64 = -1;
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        let told = notifier.inval_inode(INodeNo(ino.get()), ATTRIBUTES_ONLY, 0);
        if let Err(error) = told {
            tracing::warn!(%ino, %error, "the kernel may show old attributes");
        }
    }
}

impl Context {
    /// Makes the kernel write back and drop the pages that it holds of a range. Waits for the write-backs: no
    /// thread that takes requests of the kernel may call this.
    pub fn drop_pages(&self, ino: Ino, bytes: Range<u64>) {
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        let offset = i64::try_from(bytes.start).unwrap_or(i64::MAX);
        // Zero says: to the end of the file.
        let length = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
        if let Err(error) = notifier.inval_inode(INodeNo(ino.get()), offset, length) {
            // The mount is ending, and the mapping with it.
            tracing::debug!(%ino, %error, "the kernel did not drop pages");
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
