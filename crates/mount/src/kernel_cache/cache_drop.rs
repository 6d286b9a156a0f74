//! The drop of everything that the kernel caches of a mount: names, attributes, listings, access lists and pages.
//!
//! The order of a drop: first each name expires, then the attributes of each known inode go, and last the pages
//! (`page_sweep`). Only the last step waits: the kernel writes dirty pages back before it drops them. A moment later the
//! attributes go once more: the kernel may just have been learning of an inode, by an answer whose attributes have a short
//! lifetime ([`CacheLifetimes::of_new_inode`](super::lifetimes::CacheLifetimes::of_new_inode)).
//!
//! A drop has a thread of its own. A thread that answers requests, or that the datastore waits for without
//! bound, must never drop: the write-backs come as requests to the mount.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use lockstep_driver::threads;

use super::file_pages::PageRead;
use super::invalidator::Invalidator;
use super::known_inodes::{KnownInodes, ranges};
use super::page_cache::PageCache;
use super::page_sweep;
use super::unfinished_drops::UnfinishedDrop;
use crate::device::fuse_device::Device;

/// How often a drop is tried, and the time between two tries.
const TRIES_MAX: u32 = 40;
const RETRY: Duration = Duration::from_millis(250);

/// Time in which the kernel reads most answers. Attributes of a later one end by themselves.
const LATE: Duration = Duration::from_millis(200);

/// The reads of pages that wait at this moment, and have not been admitted.
pub(crate) type ParkedReads = Box<dyn Fn() -> Vec<PageRead> + Send + Sync>;

/// Drops the kernel's caches of one mount.
pub(crate) struct CacheDropper {
    device: Device,
    /// This program, for a child process that makes the calls which wait (see `invalidator`).
    program: Option<PathBuf>,
    known: Arc<KnownInodes>,
    page_cache: Arc<PageCache>,
    parked_reads: ParkedReads,
}

impl CacheDropper {
    pub fn new(
        device: Device,
        program: Option<PathBuf>,
        known: Arc<KnownInodes>,
        page_cache: Arc<PageCache>,
        parked_reads: ParkedReads,
    ) -> Self {
        Self {
            device,
            program,
            known,
            page_cache,
            parked_reads,
        }
    }

    /// The inodes that the kernel knows.
    pub fn known(&self) -> &KnownInodes {
        &self.known
    }

    /// Makes the kernel ask for all names again. A kernel without epochs keeps names for a second only.
    pub fn expire_names(&self) {
        if let Err(error) = self.device.expire_names() {
            tracing::debug!(%error, "the kernel keeps names for a moment");
        }
    }

    /// Begins a drop. The receiver gets its message when the drop is done, and the channel is closed if the drop fails. The
    /// log says that. `unfinished`: the drop before another node serves.
    pub fn begin(self: &Arc<Self>, unfinished: Option<UnfinishedDrop>) -> Receiver<()> {
        let (done, is_done) = channel();
        let shared = Arc::clone(self);
        let body = move || {
            let invalidator = match shared.drop_until_done() {
                Ok(invalidator) => invalidator,
                Err(error) => return note_failure(&error),
            };
            if let Some(unfinished) = unfinished {
                unfinished.end();
            }
            // The receiver may have given up.
            let _sent = done.send(());
            match shared.drop_late(&invalidator) {
                Ok(()) => tracing::debug!("the kernel has dropped its caches"),
                Err(error) => tracing::warn!(%error, "the kernel may show old attributes"),
            }
        };
        if let Err(error) = threads::spawn("fuse-drop-caches", body) {
            note_failure(&error);
        }
        is_done
    }

    fn invalidator(&self) -> io::Result<Arc<Invalidator>> {
        let program = self.program.as_deref();
        Invalidator::start(self.device.again()?, program).or_else(|error| {
            tracing::warn!(%error, "no process that drops caches: this process does so");
            Invalidator::start(self.device.again()?, None)
        })
    }

    /// Drops the attributes of known inodes once more. A thread of the kernel may have been about to read the answer that
    /// brought an inode, and so the kernel did not know the inode before.
    fn drop_late(&self, invalidator: &Invalidator) -> io::Result<()> {
        thread::sleep(LATE);
        invalidator.drop_attributes(&self.known_ranges())?;
        Ok(())
    }

    /// Drops everything. Tries again for a while: a drop needs descriptors and threads, of which the process may have too
    /// few at the moment.
    fn drop_until_done(&self) -> io::Result<Arc<Invalidator>> {
        let mut tries = 1;
        loop {
            match self.drop_all() {
                Err(error) if tries < TRIES_MAX => {
                    tracing::warn!(%error, tries, "the kernel has not dropped its caches yet");
                    tries += 1;
                    thread::sleep(RETRY);
                }
                dropped => return dropped,
            }
        }
    }

    fn drop_all(&self) -> io::Result<Arc<Invalidator>> {
        // A kernel without epochs keeps names for a second only.
        let expired = self.device.expire_names();
        self.page_cache.changes().forget_sizes();
        let invalidator = self.invalidator()?;
        let known = self.known_ranges();
        tracing::debug!(
            ?expired,
            ranges = known.len(),
            "the kernel drops its caches"
        );
        invalidator.drop_attributes(&known)?;
        self.drop_pages(&invalidator, &known)?;
        Ok(invalidator)
    }

    fn drop_pages(&self, invalidator: &Invalidator, inodes: &[Range<u64>]) -> io::Result<()> {
        page_sweep::drop_pages(invalidator, inodes, &self.parked_reads)
    }

    /// Ranges with the inodes that the kernel knows.
    fn known_ranges(&self) -> Vec<Range<u64>> {
        let mut known = self.known.list();
        known.extend(self.page_cache.changes().files());
        known.sort_unstable();
        known.dedup();
        ranges(&known)
    }
}

/// Logs that a drop has failed.
fn note_failure(error: &io::Error) {
    tracing::error!(
        %error,
        "the kernel has not dropped its caches: programs on this node may see old names and attributes, and bytes that they \
         store through mappings are lost with an error until the next change of the role. Give the node more descriptors \
         and threads, and restart it"
    );
}
