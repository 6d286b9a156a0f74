//! The changes of content that are under way, and the bytes of the page cache that are older than the file.
//!
//! There are two kinds of change. A *direct* change (a `write` of a program, a punched hole) bypasses the
//! page cache of the kernel. A *write-back* brings whole pages of a mapping, with bytes that the mapping
//! never stored to: these bytes are as old as the page.
//!
//! Invariants, per file:
//! - A direct change and a write-back of the same page are never under way together. The earlier of them
//!   ends first.
//! - A byte that a direct change wrote is *stale in the cache* until the kernel reads its page again.
//!   No write-back of the byte reaches the file in that time: the page was read before the change.
//! - Two direct changes, or two write-backs, do not wait for each other here.
//!
//! The table knows besides which files may be longer than the kernel knows (`growth.rs`).
//!
//! This file does no input or output and parks no thread.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_driver::client::RequestKind;
use lockstep_types::Ino;
use parking_lot::Mutex;
use rangemap::RangeSet;
use smallvec::SmallVec;

use super::growth::FileGrowth;
use crate::kernel_cache::file_pages::pages_of;

const SHARDS: usize = 16;

/// Most ranges of stale bytes that one file may have. Beyond that all pages of the file are dropped.
const STALE_RANGES_MAX: usize = 65_536;

/// How a change reaches the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// The change bypasses the page cache.
    Direct,
    /// The change comes from the page cache.
    WriteBack,
}

impl ChangeKind {
    /// The kind of such a change for the admission to the service.
    pub const fn admission_kind(self) -> RequestKind {
        match self {
            Self::Direct => RequestKind::Program,
            Self::WriteBack => RequestKind::WriteBack,
        }
    }
}

/// How a change has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeEnd {
    /// Not all bytes of the range are changed.
    Failed,
    /// The range is changed. The file may be shorter.
    Changed,
    /// Each byte of the range is written. The file reaches to the end of the range.
    Written,
}

impl ChangeEnd {
    /// The end of a write.
    pub fn of_write<T, E>(outcome: &Result<T, E>) -> Self {
        outcome.as_ref().map_or(Self::Failed, |_| Self::Written)
    }

    /// The end of another change.
    pub fn of_change<T, E>(outcome: &Result<T, E>) -> Self {
        outcome.as_ref().map_or(Self::Failed, |_| Self::Changed)
    }
}

/// A change that is under way, until [`ChangeTable::finish`].
#[derive(Debug)]
pub(crate) struct ContentChange {
    /// The file.
    pub ino: Ino,
    /// How the change reaches the file.
    pub kind: ChangeKind,
    /// First byte, and the byte after the last.
    pub bytes: Range<u64>,
    id: u64,
}

/// Starts a delayed change.
pub(crate) type StartChange = Box<dyn FnOnce(ContentChange) + Send>;

/// Consequences of the end of a change.
pub(crate) struct FinishedChange {
    /// The page cache may hold pages of the changed range that are older than the file.
    pub is_cached: bool,
    /// All pages of the file should be dropped ([`ChangeTable::begin_drop`]): too many ranges are stale, or an earlier
    /// process served the mount when the pages were read.
    pub is_crowded: bool,
    /// Queued changes that may begin now.
    pub ready: Vec<(ContentChange, StartChange)>,
}

/// The changes of all files of a mount.
#[derive(Default)]
pub(crate) struct ChangeTable {
    shards: [Mutex<HashMap<Ino, FileChanges>>; SHARDS],
    /// Of an inode below this number the kernel may hold pages, and a program may have it open, since an earlier process
    /// served the mount. Zero: there was none.
    inherited_below: AtomicU64,
}

impl fmt::Debug for ChangeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeTable").finish_non_exhaustive()
    }
}

/// The changes and cached pages of one file, from its first open to its last close, or until the kernel forgets the
/// inode if the opens are not known.
#[derive(Default)]
struct FileChanges {
    opens: u64,
    /// The kernel has read pages of the file into its cache.
    cached: bool,
    origin: FileOrigin,
    /// The kernel has read pages since the last drop of all pages began.
    read_since_drop: bool,
    next_id: u64,
    running: SmallVec<[RunningChange; 4]>,
    waiting: VecDeque<WaitingChange>,
    /// Bytes that are stale in the cache.
    stale: RangeSet<u64>,
    /// Stale bytes of changes that ended before the drop of all pages of the file began.
    dropping: RangeSet<u64>,
    growth: FileGrowth,
}

/// Where the opens and cached pages of a file come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FileOrigin {
    /// This process has seen all of them.
    #[default]
    Known,
    /// Programs may have opened the file before this process served the mount: `opens` may be too low. Since then the
    /// cache may hold pages of any age.
    Unsettled,
    /// `opens` may be too low. A drop of all pages has settled the age of the others.
    Settled,
}

struct RunningChange {
    id: u64,
    kind: ChangeKind,
    pages: Range<u64>,
    /// The end of a change that may make the file longer than the kernel knows.
    grows_to: Option<u64>,
    /// The size of the file was set while the change was under way.
    was_cut: bool,
}

struct WaitingChange {
    kind: ChangeKind,
    bytes: Range<u64>,
    start: StartChange,
}

impl ChangeTable {
    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, FileChanges>> {
        &self.shards[usize::try_from(ino.get() % SHARDS as u64).unwrap_or(0)]
    }

    /// Notes that an earlier process served the mount, in which all inodes have numbers below this one.
    pub fn inherit(&self, below: Ino) {
        self.inherited_below.store(below.get(), Ordering::Relaxed);
    }

    fn is_inherited(&self, ino: Ino) -> bool {
        ino.get() < self.inherited_below.load(Ordering::Relaxed)
    }

    /// A file without changes or known opens.
    fn new_file(&self, ino: Ino) -> FileChanges {
        if !self.is_inherited(ino) {
            return FileChanges::default();
        }
        FileChanges {
            cached: true,
            growth: FileGrowth::unknown(),
            origin: FileOrigin::Unsettled,
            ..FileChanges::default()
        }
    }

    /// The files in the table. Those that an earlier process served, and whose pages the kernel has read or written since,
    /// are among them.
    pub fn files(&self) -> Vec<Ino> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Counts an `open` of the file.
    pub fn opened(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_insert_with(|| self.new_file(ino));
        file.opens += 1;
    }

    /// Counts a close: a program has closed the file, and every mapping made through that open file is gone.
    pub fn closed(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        if let Some(file) = shard.get_mut(&ino) {
            file.opens = file.opens.saturating_sub(1);
            if file.is_unused() {
                shard.remove(&ino);
            }
        }
    }

    /// Notes that the kernel has forgotten an inode, and so all pages of the file.
    pub fn forgotten(&self, ino: Ino) {
        if !self.is_inherited(ino) {
            return;
        }
        let mut shard = self.shard(ino).lock();
        if shard.get(&ino).is_some_and(FileChanges::is_idle) {
            shard.remove(&ino);
        }
    }

    /// Notes that the kernel is about to read bytes into its page cache. No write-back of their pages is under
    /// way.
    pub fn page_read(&self, ino: Ino, bytes: Range<u64>) {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_insert_with(|| self.new_file(ino));
        file.cached = true;
        file.read_since_drop = true;
        let pages = pages_of(&bytes);
        if !pages.is_empty() {
            file.stale.remove(pages.clone());
            file.dropping.remove(pages);
        }
    }

    /// Returns whether the kernel may hold pages of the file.
    pub fn is_cached(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        let known = shard.get(&ino).map(|file| file.cached);
        known.unwrap_or_else(|| self.is_inherited(ino))
    }

    /// Whether the kernel may show a smaller size of a file than `end`, where a read is about to show the bytes before `end`.
    /// Then the kernel has to forget the attributes of the file first, and the caller calls [`Self::size_shown`].
    pub fn hides_growth(&self, ino: Ino, end: u64) -> bool {
        let shard = self.shard(ino).lock();
        shard.get(&ino).is_some_and(|file| file.hides(end))
    }

    /// Notes that the kernel shows no smaller size of a file from now on. Nothing has cut the file since
    /// [`Self::hides_growth`].
    pub fn size_shown(&self, ino: Ino, end: u64) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.growth.show(end);
        }
    }

    /// Whether the kernel may not know the size of a file yet. If it kept the attributes of an answer, another program could see
    /// the size before: the kernel marks attributes as valid a moment before it takes the size from them.
    pub fn grows(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        shard.get(&ino).is_some_and(FileChanges::grows)
    }

    /// Notes that the size of a file was set. The answer comes after this call.
    pub fn resized(&self, ino: Ino) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.forget_sizes();
        }
    }

    /// Forgets which sizes the kernel shows: the other node may set others.
    pub fn forget_sizes(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.values_mut().for_each(FileChanges::forget_sizes);
        }
    }

    /// Begins a change. Returns `None` if the change has to wait ([`Self::wait`]).
    pub fn begin(&self, ino: Ino, kind: ChangeKind, bytes: Range<u64>) -> Option<ContentChange> {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_insert_with(|| self.new_file(ino));
        let is_write_back = kind == ChangeKind::WriteBack;
        file.cached |= is_write_back;
        file.read_since_drop |= is_write_back;
        file.begin(ino, kind, bytes)
    }

    /// Queues a change until it may begin. Gives the change back if it may begin now.
    pub fn wait(
        &self,
        ino: Ino,
        kind: ChangeKind,
        bytes: Range<u64>,
        start: StartChange,
    ) -> Option<(ContentChange, StartChange)> {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_insert_with(|| self.new_file(ino));
        if let Some(change) = file.begin(ino, kind, bytes.clone()) {
            return Some((change, start));
        }
        file.waiting.push_back(WaitingChange { kind, bytes, start });
        None
    }

    /// Returns the parts of a write-back that are not stale: only these may reach the file.
    pub fn fresh_parts(&self, change: &ContentChange) -> Vec<Range<u64>> {
        let mut shard = self.shard(change.ino).lock();
        let Some(file) = shard.get_mut(&change.ino) else {
            return vec![change.bytes.clone()];
        };
        let fresh = file.stale.gaps(&change.bytes);
        fresh
            .flat_map(|part| file.dropping.gaps(&part).collect::<Vec<_>>())
            .collect()
    }

    /// Ends a change.
    pub fn finish(&self, change: &ContentChange, end: ChangeEnd) -> FinishedChange {
        let mut shard = self.shard(change.ino).lock();
        let Some(file) = shard.get_mut(&change.ino) else {
            return FinishedChange {
                is_cached: false,
                is_crowded: false,
                ready: Vec::new(),
            };
        };
        file.end(change.id, end);
        let is_cached = file.cached && change.kind == ChangeKind::Direct;
        if is_cached && end != ChangeEnd::Failed && !change.bytes.is_empty() {
            file.stale.insert(change.bytes.clone());
        }
        let finished = FinishedChange {
            is_cached,
            is_crowded: is_cached && file.is_crowded(),
            ready: file.begin_waiting(change.ino),
        };
        if file.is_unused() {
            shard.remove(&change.ino);
        }
        finished
    }

    /// Notes that the kernel is about to drop all pages of the file.
    pub fn begin_drop(&self, ino: Ino) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.read_since_drop = false;
            if file.dropping.is_empty() {
                file.dropping = std::mem::take(&mut file.stale);
            }
        }
    }

    /// Notes that all pages that the cache held at [`Self::begin_drop`] are written back and gone.
    pub fn end_drop(&self, ino: Ino) {
        if let Some(file) = self.shard(ino).lock().get_mut(&ino) {
            file.dropping.clear();
            if file.origin == FileOrigin::Unsettled {
                file.origin = FileOrigin::Settled;
                file.cached = file.read_since_drop;
            }
        }
    }
}

impl FileChanges {
    fn is_crowded(&self) -> bool {
        let is_full = self.stale.len() >= STALE_RANGES_MAX && self.dropping.is_empty();
        is_full || self.origin == FileOrigin::Unsettled
    }

    fn is_idle(&self) -> bool {
        self.opens == 0 && self.running.is_empty() && self.waiting.is_empty()
    }

    fn is_unused(&self) -> bool {
        self.is_idle() && self.origin == FileOrigin::Known
    }

    fn begin(&mut self, ino: Ino, kind: ChangeKind, bytes: Range<u64>) -> Option<ContentChange> {
        let pages = pages_of(&bytes);
        let waits = self.waiting.iter();
        let waits = waits.map(|waiting| (waiting.kind, pages_of(&waiting.bytes)));
        if self.must_wait(kind, &pages, waits) {
            return None;
        }
        Some(self.run(ino, kind, bytes))
    }

    /// Returns whether a change of the other kind on one of the pages is under way, or is in `before`, which
    /// holds the earlier changes of the queue.
    fn must_wait(
        &self,
        kind: ChangeKind,
        pages: &Range<u64>,
        mut before: impl Iterator<Item = (ChangeKind, Range<u64>)>,
    ) -> bool {
        let meets = |other: ChangeKind, its: &Range<u64>| {
            other != kind && its.start < pages.end && pages.start < its.end
        };
        self.running
            .iter()
            .any(|running| meets(running.kind, &running.pages))
            || before.any(|(other, its)| meets(other, &its))
    }

    fn run(&mut self, ino: Ino, kind: ChangeKind, bytes: Range<u64>) -> ContentChange {
        let id = self.next_id;
        self.next_id += 1;
        self.running.push(RunningChange {
            id,
            kind,
            pages: pages_of(&bytes),
            grows_to: (kind == ChangeKind::Direct && self.growth.is_beyond(bytes.end))
                .then_some(bytes.end),
            was_cut: false,
        });
        ContentChange {
            ino,
            kind,
            bytes,
            id,
        }
    }

    fn end(&mut self, id: u64, end: ChangeEnd) {
        let ended = self.running.iter().position(|running| running.id == id);
        let Some(ended) = ended.map(|place| self.running.swap_remove(place)) else {
            return;
        };
        if let Some(grown_to) = ended.grows_to {
            self.growth.note_end(grown_to);
            if end == ChangeEnd::Written && !ended.was_cut {
                self.growth.note_written(grown_to);
            }
        }
    }

    /// Forgets all sizes that the file has had.
    fn forget_sizes(&mut self) {
        self.growth.forget_sizes();
        for running in &mut self.running {
            running.was_cut = true;
        }
    }

    /// See [`ChangeTable::grows`].
    fn grows(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|running| running.grows_to.is_some()) || self.growth.is_settling()
    }

    /// See [`ChangeTable::hides_growth`].
    fn hides(&self, end: u64) -> bool {
        let running = self.running.iter().filter_map(|running| running.grows_to);
        self.growth.hides(end, running.max())
    }

    /// Begins the queued changes that need not wait any longer, in the order of their arrival.
    fn begin_waiting(&mut self, ino: Ino) -> Vec<(ContentChange, StartChange)> {
        let mut ready = Vec::new();
        let mut kept: VecDeque<WaitingChange> = VecDeque::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let pages = pages_of(&waiting.bytes);
            let before = kept.iter().map(|kept| (kept.kind, pages_of(&kept.bytes)));
            if self.must_wait(waiting.kind, &pages, before) {
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

#[cfg(test)]
mod tests;
