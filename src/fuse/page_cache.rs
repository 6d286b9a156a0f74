//! The page cache of the kernel beside changes of content that bypass it.
//!
//! Every open of a mount of ours bypasses the page cache, so that the writes of one file run in parallel. A
//! mapping uses the page cache nevertheless. Before the kernel sends us a direct write, it writes the dirty
//! pages of the range back and drops them. A program may read a page into its mapping again before the write
//! has reached the file: such a page is older than the write. Without the rules below two things go wrong.
//! The mapping shows the old bytes for as long as the page lives. And if the mapping stores to other bytes
//! of the page, the kernel writes the whole page back, and the old bytes replace those of the write.
//!
//! Rules:
//! 1. The kernel asks for a page of its cache without the owner that a `read` of a program has. From the
//!    first such request until the last close the file is *cached*. A file that is not cached pays nothing
//!    but an entry in a table for each write.
//! 2. A write-back and a direct change of one page go one after the other ([`Changes`]).
//! 3. Once a direct change of a cached file is done, its bytes are left out of every write-back until the
//!    kernel has read their page again.
//! 4. Once it is done, and before the program hears so, the kernel drops the pages of the range. It writes
//!    back what mappings stored to them first.
//!
//! Why nothing waits in a circle: the drop of pages (rule 4) waits for write-backs. A write-back waits for
//! direct changes that are under way in the datastore (rule 2), and these wait for disk and peer only. So
//! the drops have a thread of their own, write-backs that had to wait start on another one, and no thread
//! that takes requests of the kernel or answers of the peer waits here.
//! Asynchronous writes and write-backs share the kernel's background slots: at most [`DROPS_MAX`] writes
//! wait for their pages at a time. The writes beyond are answered before their pages are dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockstep_types::Ino;

use super::context::Context;
use super::handshake::BACKGROUND_MAX;
use changes::Changes;
pub(super) use changes::{Change, Kind, Start};
use worker::Worker;

mod changes;
mod worker;

/// Most changes that are answered only after their pages are dropped, at a time.
const DROPS_MAX: usize = BACKGROUND_MAX as usize / 4;

/// What a mount knows of the kernel's page cache.
#[derive(Debug)]
pub(super) struct PageCache {
    changes: Changes,
    /// Drops pages: waits for write-backs.
    dropper: Worker,
    /// Starts changes that had to wait: waits for nothing here.
    starter: Worker,
    /// Changes that are not answered yet because their pages are being dropped.
    drops: AtomicUsize,
}

impl PageCache {
    /// Nothing is cached yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            changes: Changes::default(),
            dropper: Worker::start("fuse-drop-pages")?,
            starter: Worker::start("fuse-start-write")?,
            drops: AtomicUsize::new(0),
        })
    }

    /// What is under way, by file.
    pub const fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Keeps a change until it can begin; it starts on another thread then.
    pub fn begin_later(&self, ino: Ino, kind: Kind, bytes: std::ops::Range<u64>, start: Start) {
        if let Some((change, start)) = self.changes.wait(ino, kind, bytes, start) {
            self.start_later(change, start);
        }
    }

    fn start_later(&self, change: Change, start: Start) {
        self.starter.submit(Box::new(move || start(change)));
    }
}

/// Ends a change of content, drops what the page cache has of its range if the file is cached, and answers.
/// May be called by any thread, and waits for nothing.
pub(super) fn finish(
    context: &Arc<Context>,
    change: Change,
    succeeded: bool,
    answer: impl FnOnce() + Send + 'static,
) {
    let cache = context.page_cache();
    let finished = cache.changes.finish(&change, succeeded);
    for (change, start) in finished.ready {
        cache.start_later(change, start);
    }
    if !finished.is_cached {
        return answer();
    }
    let waiting = cache.drops.fetch_add(1, Ordering::Relaxed);
    let answer_last = if waiting < DROPS_MAX {
        Some(answer)
    } else {
        answer();
        None
    };
    let is_crowded = finished.is_crowded;
    let shared = Arc::clone(context);
    cache.dropper.submit(Box::new(move || {
        drop_pages(&shared, &change, is_crowded);
        shared.page_cache().drops.fetch_sub(1, Ordering::Relaxed);
        if let Some(answer) = answer_last {
            answer();
        }
    }));
}

/// Makes the kernel write back and drop the pages of a range; those of the whole file where too much of it
/// is stale to be remembered.
fn drop_pages(context: &Context, change: &Change, is_crowded: bool) {
    let changes = &context.page_cache().changes;
    if !is_crowded {
        return context.drop_pages(change.ino, change.bytes.clone());
    }
    changes.begin_drop(change.ino);
    context.drop_pages(change.ino, 0..u64::MAX);
    changes.end_drop(change.ino);
}
