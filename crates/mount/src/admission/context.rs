//! The tools of a request that was let in: the service, in the tenure of the request, and the mount's knowledge of the
//! kernel.

use std::sync::Arc;
use std::vec;

use lockstep_driver::client::{Done, FileService, Tenure};
use lockstep_types::{Attr, Errno, Ino, MetaRequest, SnapshotIno};

use super::standby_queue::StandbyQueue;
use crate::kernel_cache::known_inodes::KnownInodes;
use crate::kernel_cache::lifetimes::CacheLifetimes;
use crate::kernel_cache::notifications::KernelCache;
use crate::kernel_cache::page_cache::PageCache;
use crate::memory::mount_memory::MountMemory;

/// See the head of this file.
#[derive(Clone)]
pub(crate) struct Context {
    /// The datastore.
    pub service: Arc<dyn FileService>,
    /// The queue that a change enters once more which has waited for other changes of the same pages.
    pub queue: Arc<StandbyQueue>,
    pub kernel_cache: Arc<KernelCache>,
    pub page_cache: Arc<PageCache>,
    /// The inodes that the kernel knows.
    pub known: Arc<KnownInodes>,
    /// The memory that outlives this process.
    pub memory: MountMemory,
    /// How long the kernel may cache an answer.
    pub lifetimes: CacheLifetimes,
    /// The tenure of the requests; `None` for those that belong to no tenure.
    pub tenure: Option<Tenure>,
}

impl Context {
    /// The context of the requests of a tenure.
    pub fn within(&self, tenure: Tenure) -> Self {
        let service = self.service.within(tenure);
        Self {
            service: service.unwrap_or_else(|| Arc::clone(&self.service)),
            tenure: Some(tenure),
            ..self.clone()
        }
    }

    /// The tenure in which a request was asked that is read or goes on now.
    pub fn asked(&self) -> Tenure {
        self.tenure.unwrap_or_else(|| self.service.tenure())
    }

    /// Counts a reference of the kernel's cache. Call it before the answer that gives the kernel the inode.
    pub fn remember(&self, ino: Ino) {
        // A file of a snapshot never changes: no cache of it is ever old.
        if SnapshotIno::of(ino).is_none() {
            self.known.remember(ino, 1);
        }
        self.service.remembered(ino, 1);
    }

    /// Counts references fewer.
    pub fn forget(&self, ino: Ino, count: u64) {
        if SnapshotIno::of(ino).is_none() {
            self.known.forget(ino, count);
        }
        self.service.forgotten(ino, count);
    }

    /// Counts an `open` of a file.
    pub fn open(&self, ino: Ino) -> Result<(), Errno> {
        self.service.opened(ino)?;
        self.page_cache.changes().opened(ino);
        Ok(())
    }

    /// Counts the close of an open file.
    pub fn close(&self, ino: Ino) {
        self.page_cache.changes().closed(ino);
        self.service.closed(ino);
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
        let then = move |outcome| match outcome {
            Ok(attr) => shared.submit_next(changes, attr, done),
            Err(errno) => done(Err(errno)),
        };
        self.service.change(change, Box::new(then));
    }

    /// The attributes that a change has answered with; otherwise the current ones of the inode.
    pub fn attributes(&self, ino: Ino, changed: Option<Attr>) -> Result<Attr, Errno> {
        match changed {
            Some(attr) => Ok(attr),
            None => self.service.getattr(ino),
        }
    }
}
