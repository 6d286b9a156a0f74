//! Which changes of content are under way, and which bytes of the page cache are older than the file.
//!
//! Two kinds of change meet here. A *direct* change (a `write` of a program, a punched hole) bypasses the
//! page cache of the kernel. A *write-back* brings whole pages of a mapping, with bytes that the mapping
//! never stored to: those are as old as the page.
//!
//! Invariants, per file:
//! - A direct change and a write-back of the same page are never under way together. The one that came
//!   first ends first.
//! - A byte that a direct change wrote is *stale in the cache* until the kernel reads its page again.
//!   No write-back of the byte reaches the file in that time: the page was read before the change.
//! - Two direct changes, or two write-backs, do not wait for each other here.
//!
//! This file does no input or output and parks no thread.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;

use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;
use parking_lot::Mutex;
use rangemap::RangeSet;
use smallvec::SmallVec;

const SHARDS: usize = 16;

/// Most ranges of stale bytes that are remembered of one file before all pages of the file are dropped.
const STALE_RANGES_MAX: usize = 65_536;

/// How a change reaches the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) enum Kind {
    /// Past the page cache.
    Direct,
    /// From the page cache.
    WriteBack,
}

/// A change that is under way. It ends with [`Changes::finish`].
#[derive(Debug)]
pub(in crate::fuse) struct Change {
    /// The file.
    pub ino: Ino,
    /// How it reaches the file.
    pub kind: Kind,
    /// First byte, and the byte after the last.
    pub bytes: Range<u64>,
    id: u64,
}

/// What starts a change that had to wait.
pub(in crate::fuse) type Start = Box<dyn FnOnce(Change) + Send>;

/// What follows from the end of a change.
pub(in crate::fuse) struct Finished {
    /// The page cache may hold pages of the changed range that are older than the file.
    pub is_cached: bool,
    /// So many ranges are stale that all pages of the file should be dropped
    /// ([`Changes::begin_drop`]).
    pub is_crowded: bool,
    /// Changes that waited for this one.
    pub ready: Vec<(Change, Start)>,
}

/// The changes of all files of a mount.
#[derive(Default)]
pub(in crate::fuse) struct Changes {
    shards: [Mutex<HashMap<Ino, File>>; SHARDS],
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

/// What is known of one file, from its first open to its last close.
#[derive(Default)]
struct File {
    opens: u64,
    /// The kernel has read pages of the file into its cache.
    cached: bool,
    next_id: u64,
    running: SmallVec<[Running; 4]>,
    waiting: VecDeque<Waiting>,
    /// Bytes that are stale in the cache.
    stale: RangeSet<u64>,
    /// The same, of changes that ended before the pages of the whole file began to be dropped.
    dropping: RangeSet<u64>,
}

struct Running {
    id: u64,
    kind: Kind,
    pages: Range<u64>,
}

struct Waiting {
    kind: Kind,
    bytes: Range<u64>,
    start: Start,
}

impl Changes {
    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, File>> {
        &self.shards[usize::try_from(ino.get() % SHARDS as u64).unwrap_or(0)]
    }

    /// A program has opened the file.
    pub fn opened(&self, ino: Ino) {
        self.shard(ino).lock().entry(ino).or_default().opens += 1;
    }

    /// A program has closed the file, and every mapping made through that open file is gone.
    pub fn closed(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        if let Some(file) = shard.get_mut(&ino) {
            file.opens = file.opens.saturating_sub(1);
            if file.is_unused() {
                shard.remove(&ino);
            }
        }
    }

    /// The kernel is about to read bytes into its page cache. No write-back of their pages is under way.
    pub fn page_read(&self, ino: Ino, bytes: Range<u64>) {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_default();
        file.cached = true;
        let pages = pages_of(&bytes);
        if !pages.is_empty() {
            file.stale.remove(pages.clone());
            file.dropping.remove(pages);
        }
    }

    /// Whether the kernel may hold pages of the file.
    pub fn is_cached(&self, ino: Ino) -> bool {
        self.shard(ino)
            .lock()
            .get(&ino)
            .is_some_and(|file| file.cached)
    }

    /// Begins a change. `None`: the change has to wait ([`Self::wait`]).
    pub fn begin(&self, ino: Ino, kind: Kind, bytes: Range<u64>) -> Option<Change> {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_default();
        file.cached |= kind == Kind::WriteBack;
        file.begin(ino, kind, bytes)
    }

    /// Keeps a change until it can begin. Gives the change back if it can begin now.
    pub fn wait(
        &self,
        ino: Ino,
        kind: Kind,
        bytes: Range<u64>,
        start: Start,
    ) -> Option<(Change, Start)> {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_default();
        if let Some(change) = file.begin(ino, kind, bytes.clone()) {
            return Some((change, start));
        }
        file.waiting.push_back(Waiting { kind, bytes, start });
        None
    }

    /// The parts of a write-back that are not stale: the ones that may reach the file.
    pub fn fresh_parts(&self, change: &Change) -> Vec<Range<u64>> {
        let mut shard = self.shard(change.ino).lock();
        let Some(file) = shard.get_mut(&change.ino) else {
            return vec![change.bytes.clone()];
        };
        let fresh = file.stale.gaps(&change.bytes);
        fresh
            .flat_map(|part| file.dropping.gaps(&part).collect::<Vec<_>>())
            .collect()
    }

    /// Ends a change. `succeeded` says whether a direct change wrote all of its bytes.
    pub fn finish(&self, change: &Change, succeeded: bool) -> Finished {
        let mut shard = self.shard(change.ino).lock();
        let Some(file) = shard.get_mut(&change.ino) else {
            return Finished {
                is_cached: false,
                is_crowded: false,
                ready: Vec::new(),
            };
        };
        file.running.retain(|running| running.id != change.id);
        let is_cached = file.cached && change.kind == Kind::Direct;
        if is_cached && succeeded && !change.bytes.is_empty() {
            file.stale.insert(change.bytes.clone());
        }
        let finished = Finished {
            is_cached,
            is_crowded: file.stale.len() >= STALE_RANGES_MAX && file.dropping.is_empty(),
            ready: file.begin_waiting(change.ino),
        };
        if file.is_unused() {
            shard.remove(&change.ino);
        }
        finished
    }

    /// All pages of the file are about to be dropped.
    pub fn begin_drop(&self, ino: Ino) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino)
            && file.dropping.is_empty()
        {
            file.dropping = std::mem::take(&mut file.stale);
        }
    }

    /// All pages that the cache held when [`Self::begin_drop`] was called are gone, and written back.
    pub fn end_drop(&self, ino: Ino) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.dropping.clear();
        }
    }
}

impl File {
    fn is_unused(&self) -> bool {
        self.opens == 0 && self.running.is_empty() && self.waiting.is_empty()
    }

    fn begin(&mut self, ino: Ino, kind: Kind, bytes: Range<u64>) -> Option<Change> {
        let pages = pages_of(&bytes);
        let waits = self.waiting.iter();
        let waits = waits.map(|waiting| (waiting.kind, pages_of(&waiting.bytes)));
        if self.is_kept_from(kind, &pages, waits) {
            return None;
        }
        Some(self.run(ino, kind, bytes))
    }

    /// Whether a change of the other kind is under way on one of the pages, or came `before`.
    fn is_kept_from(
        &self,
        kind: Kind,
        pages: &Range<u64>,
        mut before: impl Iterator<Item = (Kind, Range<u64>)>,
    ) -> bool {
        let meets = |other: Kind, its: &Range<u64>| {
            other != kind && its.start < pages.end && pages.start < its.end
        };
        self.running
            .iter()
            .any(|running| meets(running.kind, &running.pages))
            || before.any(|(other, its)| meets(other, &its))
    }

    fn run(&mut self, ino: Ino, kind: Kind, bytes: Range<u64>) -> Change {
        let id = self.next_id;
        self.next_id += 1;
        let pages = pages_of(&bytes);
        self.running.push(Running { id, kind, pages });
        Change {
            ino,
            kind,
            bytes,
            id,
        }
    }

    /// Begins the changes that nothing keeps from it any more, in the order in which they came.
    fn begin_waiting(&mut self, ino: Ino) -> Vec<(Change, Start)> {
        let mut ready = Vec::new();
        let mut kept: VecDeque<Waiting> = VecDeque::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let pages = pages_of(&waiting.bytes);
            let before = kept.iter().map(|one| (one.kind, pages_of(&one.bytes)));
            if self.is_kept_from(waiting.kind, &pages, before) {
                kept.push_back(waiting);
            } else {
                let change = self.run(ino, waiting.kind, waiting.bytes);
                ready.push((change, waiting.start));
            }
        }
        self.waiting = kept;
        ready
    }
}

/// The bytes of the whole pages that a range touches.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    let page = BLOCK_BYTES as u64;
    let end = bytes.end.div_ceil(page).saturating_mul(page);
    bytes.start / page * page..end
}

#[cfg(test)]
mod tests;
