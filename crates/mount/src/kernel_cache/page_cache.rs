//! The kernel's page cache, beside changes of content that bypass it.
//!
//! Every `open` of a mount bypasses the page cache, so that the writes of one file run in parallel. A
//! mapping uses the page cache nevertheless. Before the kernel sends a direct write, it writes the dirty
//! pages of the range back and drops them. A program may read a page into its mapping again before the write
//! has reached the file: such a page is older than the write. Without the rules below two things go wrong.
//! The mapping shows the old bytes for as long as the page lives. And if the mapping stores to other bytes
//! of the page, the kernel writes the whole page back, and the old bytes replace those of the write.
//!
//! Rules:
//! 1. A request of the kernel for a page has no lock owner; a `read` of a program has one. From the first
//!    request without an owner until the last close the file is *cached*. A write of a file that is not
//!    cached costs only an entry in a table.
//! 2. A write-back and a direct change of one page go one after the other ([`ChangeTable`]).
//! 3. After a direct change of a cached file is done, its bytes are left out of every write-back until the
//!    kernel has read their page again.
//! 4. After a direct change of a cached file is done, and before the program gets the answer, the kernel drops
//!    the pages of the range. The kernel first writes back the bytes that mappings have stored to these pages.
//!
//! Freedom from deadlock: the drop of pages (rule 4) waits for write-backs. A write-back waits for direct
//! changes that are under way in the datastore (rule 2), and these wait for disk and peer only. So the drops
//! have a thread of their own, delayed write-backs start on another thread, and no thread that takes requests
//! of the kernel or answers of the peer waits in this module.
//! Asynchronous writes and write-backs share the kernel's background slots: at most [`DROPS_MAX`] writes
//! wait for their pages at a time. Further writes are answered before their pages are dropped.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockstep_types::Ino;

use super::notifications::KernelCache;
use crate::device::init::BACKGROUND_MAX;
use crate::worker::Worker;
use changes::ChangeTable;
pub(crate) use changes::{ChangeEnd, ChangeKind, ContentChange, StartChange};

mod changes;
mod growth;

/// Most changes at a time that are answered only after their pages are dropped.
const DROPS_MAX: usize = BACKGROUND_MAX as usize / 4;

/// The knowledge of one mount about the kernel's page cache.
#[derive(Debug)]
pub(crate) struct PageCache {
    changes: ChangeTable,
    kernel: Arc<KernelCache>,
    /// Drops pages: waits for write-backs.
    dropper: Worker,
    /// Starts delayed changes: waits for nothing here.
    starter: Worker,
    /// Changes that are not answered yet because their pages are being dropped.
    drops: AtomicUsize,
}

impl PageCache {
    /// A page cache that holds nothing yet.
    pub fn new(kernel: Arc<KernelCache>) -> io::Result<Self> {
        Ok(Self {
            changes: ChangeTable::default(),
            kernel,
            dropper: Worker::start("fuse-drop-pages")?,
            starter: Worker::start("fuse-start-write")?,
            drops: AtomicUsize::new(0),
        })
    }

    /// The changes that are under way, by file.
    pub const fn changes(&self) -> &ChangeTable {
        &self.changes
    }

    /// Queues a change until it may begin, and then starts it on another thread.
    pub fn begin_later(&self, ino: Ino, kind: ChangeKind, bytes: Range<u64>, start: StartChange) {
        if let Some((change, start)) = self.changes.wait(ino, kind, bytes, start) {
            self.start_later(change, start);
        }
    }

    fn start_later(&self, change: ContentChange, start: StartChange) {
        self.starter.submit(Box::new(move || start(change)));
    }

    fn start_ready(&self, ready: Vec<(ContentChange, StartChange)>) {
        for (change, start) in ready {
            self.start_later(change, start);
        }
    }

    /// Ends a change that has not begun in the datastore. There is no answer for it.
    pub fn abandon(&self, change: &ContentChange) {
        self.start_ready(self.changes.finish(change, ChangeEnd::Failed).ready);
    }

    /// Ends a change of content, drops the pages of its range if the file is cached, and answers. May be called
    /// by any thread, and waits for nothing.
    pub fn finish(
        self: &Arc<Self>,
        change: ContentChange,
        end: ChangeEnd,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let finished = self.changes.finish(&change, end);
        if !finished.is_cached {
            // The answer comes before the changes that have waited. Otherwise, if this process were killed in between,
            // the kernel would send this one again, and its old bytes would replace theirs.
            answer();
            return self.start_ready(finished.ready);
        }
        self.start_ready(finished.ready);
        let waiting = self.drops.fetch_add(1, Ordering::Relaxed);
        let answer_last = if waiting < DROPS_MAX {
            Some(answer)
        } else {
            answer();
            None
        };
        let is_crowded = finished.is_crowded;
        let shared = Arc::clone(self);
        self.dropper.submit(Box::new(move || {
            shared.drop_pages(&change, is_crowded);
            shared.drops.fetch_sub(1, Ordering::Relaxed);
            if let Some(answer) = answer_last {
                answer();
            }
        }));
    }

    /// Makes the kernel write back and drop the pages of a change. If the file has too many stale ranges to
    /// remember, the kernel drops all pages of the file.
    fn drop_pages(&self, change: &ContentChange, is_crowded: bool) {
        if !is_crowded {
            return self.kernel.drop_pages(change.ino, change.bytes.clone());
        }
        self.changes.begin_drop(change.ino);
        self.kernel.drop_pages(change.ino, 0..u64::MAX);
        self.changes.end_drop(change.ino);
    }
}
