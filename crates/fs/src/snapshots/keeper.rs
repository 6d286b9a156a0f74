//! Keeping the blocks of files that change for the first time since the newest snapshot.
//!
//! The keeper is told of each change of bytes before the change is made
//! ([`before_change`](crate::content::before_change)). A change goes on once the old blocks are durable in a pack: the kernel may
//! write a changed page to the disk at any moment, and a loss of power may keep exactly that page.
//!
//! The first change in a chunk keeps the blocks that change. The second one keeps the rest of the chunk: so scattered changes cost
//! what they change, and a region that is rewritten block by block costs two syncs a chunk.
//!
//! Not kept are
//! - blocks that no snapshot sees: those of younger files, and those beyond every size that a snapshot sees;
//! - blocks that are kept already;
//! - zeros that become zeros: holes in a range that is cut off or punched. A later write there keeps them, as zeros.
//!
//! Invariants:
//! - While a block is being kept, no other thread changes it: such a thread waits for the chunk, and finds the block kept.
//! - A block that is not kept has the bytes that the newest snapshot sees.
//! - A snapshot of this node's own copy gives way to a change for whose old bytes the disk has no room ([`given_up`](super::given_up)). For any
//!   other snapshot the change fails.
//!
//! Locks: the chunks of one call, in the order of their stripes, held while a pack is written and synced; then those of the packs, of
//! the namespace and of the cache. The caller holds no lock that a thread which keeps blocks takes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Ino, SnapshotId};
use parking_lot::{Mutex, MutexGuard};

use super::content_at::KeptSource;
use super::kept_cache::{KeptCache, Newest};
use crate::content::before_change::{ByteChange, ByteEdit, ByteObserver, Removal};
use crate::error::StoreError;
use crate::snapshots::packs::touch::{Blocks, CHUNK_BLOCKS, CHUNK_BYTES, FileChunk, NewTouch};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Chunks that are kept at once: 1 MiB.
const PIECE_CHUNKS: u64 = 16;
/// Most chunks of which the kept ones are left out of the count of space: those of the longest write.
const COUNTED_CHUNKS: u64 = 17;
/// Most space of the kept blocks of a chunk, with the header of their group.
const CHUNK_ROOM: u64 = CHUNK_BYTES + BLOCK;
/// Pieces that share a group at most, of several writes.
const AHEAD_PIECES: usize = 32;
/// Locks of chunks. Two chunks may have one.
const STRIPES: usize = 256;
/// A multiplier that spreads numbers over the stripes: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// See the head of this file.
pub struct BlockKeeper {
    kept: KeptSource,
    cache: KeptCache,
    stripes: Vec<Mutex<()>>,
}

/// A file with a change.
#[derive(Clone, Copy)]
struct TouchedFile<'a> {
    ino: Ino,
    /// The blocks that snapshots see are before this one.
    blocks_end: u64,
    old: &'a dyn BackingFile,
}

/// Blocks of a file that are about to change.
struct OldBlocks<'a> {
    file: TouchedFile<'a>,
    blocks: Range<u64>,
}

impl OldBlocks<'_> {
    fn chunks(&self) -> impl Iterator<Item = FileChunk> + use<> {
        let ino = self.file.ino;
        chunks_of(&self.blocks).map(move |number| FileChunk { ino, number })
    }
}

impl BlockKeeper {
    /// The keeper of a store.
    pub fn new(kept: KeptSource) -> Self {
        Self {
            kept,
            cache: KeptCache::default(),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
        }
    }

    /// The end of the blocks that any snapshot sees of a file. Not that of the newest snapshot alone: an older one may see zeros behind the
    /// size that the newest one sees, and nothing was kept for them when the file was cut.
    fn blocks_end(&self, newest: Newest, ino: Ino) -> Result<u64, StoreError> {
        if let Some(end) = self.cache.blocks_end(newest, ino) {
            return Ok(end);
        }
        let is_arriving = self.kept.snapshots.is_arriving();
        let end = match self.seen_size(newest.0, ino)? {
            // A snapshot whose values arrive may see zeros behind each size that is known here.
            Some(_) if is_arriving => u64::MAX / BLOCK,
            size => size.unwrap_or(0).div_ceil(BLOCK),
        };
        self.cache.set_blocks_end(newest, ino, end);
        Ok(end)
    }

    /// The largest size of a file that a snapshot sees of which this node has the bytes; `None` if no snapshot sees the content.
    fn seen_size(&self, newest: SnapshotId, ino: Ino) -> Result<Option<u64>, StoreError> {
        if self.kept.bodies.has_since(ino, newest)? {
            // The content is that of another inode of this number, which no snapshot sees yet.
            return Ok(None);
        }
        let size = if is_active(Mutant::KeepForNewestOnly) {
            self.kept.namespace.size_at(newest, ino)?.unwrap_or(0)
        } else {
            self.kept.namespace.largest_size_kept(newest, ino)?
        };
        Ok(Some(size))
    }

    fn kept(&self, newest: Newest, chunk: FileChunk) -> Result<Blocks, StoreError> {
        if is_active(Mutant::KeepTwice) {
            return Ok(Blocks::NONE);
        }
        if let Some(kept) = self.cache.kept(newest, chunk) {
            return Ok(kept);
        }
        let index = self.kept.packs.index();
        let kept = index.kept_since(chunk, newest.0..=SnapshotId::LAST)?;
        self.cache.add(newest, chunk, kept);
        Ok(kept)
    }

    /// Whether the memory knows that these blocks are kept.
    fn are_known_kept(&self, newest: Newest, ino: Ino, blocks: &Range<u64>) -> bool {
        let knows = !is_active(Mutant::KeepTwice);
        knows
            && chunks_of(blocks).all(|number| {
                let chunk = FileChunk { ino, number };
                let kept = self.cache.kept(newest, chunk);
                kept.is_some_and(|kept| kept.covers(part_of(blocks, number)))
            })
    }

    /// Keeps the blocks of a range that are not kept.
    fn keep(
        &self,
        newest: Newest,
        file: TouchedFile<'_>,
        blocks: &Range<u64>,
    ) -> Result<(), StoreError> {
        for blocks in pieces_of(blocks) {
            if !self.are_known_kept(newest, file.ino, &blocks) {
                self.keep_pieces(newest, &[OldBlocks { file, blocks }])?;
            }
        }
        Ok(())
    }

    /// Keeps the blocks of some pieces that are not kept, in one group.
    fn keep_pieces(&self, newest: Newest, pieces: &[OldBlocks<'_>]) -> Result<(), StoreError> {
        let _alone = self.lock_chunks(pieces);
        let mut touches: BTreeMap<FileChunk, NewTouch> = BTreeMap::new();
        for OldBlocks { file, blocks } in pieces {
            for number in chunks_of(blocks) {
                let chunk = FileChunk {
                    ino: file.ino,
                    number,
                };
                let kept = self.kept(newest, chunk)?;
                let here = touches.get(&chunk).map_or(Blocks::NONE, |touch| touch.kept);
                let missing = part_of(blocks, number).without(kept).without(here);
                if missing.is_empty() {
                    continue;
                }
                let visible = part_of(&(0..file.blocks_end), number);
                let wanted = if kept.is_empty() && here.is_empty() {
                    missing
                } else {
                    visible.without(kept)
                };
                touches.insert(chunk, read_touch(file.old, chunk, wanted)?);
            }
        }
        if touches.is_empty() {
            return Ok(());
        }
        let touches: Vec<NewTouch> = touches.into_values().collect();
        let noted: Vec<(FileChunk, Blocks)> =
            touches.iter().map(|it| (it.chunk, it.kept)).collect();
        if is_active(Mutant::TouchedBeforeSync) {
            self.note_kept(newest, &noted);
        }
        self.kept.packs.keep(newest.0, touches)?;
        self.note_kept(newest, &noted);
        Ok(())
    }

    fn note_kept(&self, newest: Newest, noted: &[(FileChunk, Blocks)]) {
        for (chunk, kept) in noted {
            self.cache.add(newest, *chunk, *kept);
        }
    }

    /// Keeps other threads from keeping blocks of the same chunks.
    fn lock_chunks(&self, pieces: &[OldBlocks<'_>]) -> Vec<MutexGuard<'_, ()>> {
        let stripe = |FileChunk { ino, number }: FileChunk| {
            let spread = (ino.get() ^ number.rotate_left(32)).wrapping_mul(SPREAD);
            usize::try_from(spread >> 32).unwrap_or(0) % STRIPES
        };
        let chunks = pieces.iter().flat_map(OldBlocks::chunks);
        let mut stripes: Vec<usize> = chunks.map(stripe).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let locks = stripes
            .iter()
            .filter_map(|stripe| self.stripes.get(*stripe));
        locks.map(Mutex::lock).collect()
    }

    /// The newest snapshot, if a change of this file may have to be kept for a snapshot.
    fn newest_for(&self, ino: Ino) -> Option<Newest> {
        // The count first: notes for it hold for this list or for none.
        let changes = self.kept.snapshots.changes();
        let (newest, _) = self.kept.snapshots.newest()?;
        (ino.get() < self.kept.snapshots.all_inos_below()).then_some((newest, changes))
    }

    fn keep_before(
        &self,
        newest: Newest,
        change: &ByteChange<'_>,
        old: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        let ino = change.ino;
        let blocks_end = self.blocks_end(newest, ino)?;
        let blocks = blocks_of(&change.edit.range(), blocks_end);
        let file = TouchedFile {
            ino,
            blocks_end,
            old,
        };
        if matches!(change.edit, ByteEdit::Write { .. }) {
            return self.keep(newest, file, &blocks);
        }
        let mut at = blocks.start;
        while let Some(data) = next_data(ino, old, &(at..blocks.end))? {
            self.keep(newest, file, &data)?;
            at = data.end;
        }
        Ok(())
    }

    /// Has a snapshot of this node's own copy give way to a change whose old bytes find no room. The mark outlives everything before
    /// the change is made.
    fn give_way(&self, id: SnapshotId, error: &StoreError) -> Result<(), StoreError> {
        self.kept.given_up.add(id)?;
        if let Some(record) = self.kept.snapshots.get(id) {
            tracing::error!(
                snapshot = %record.name, %error,
                "the disk is full: the snapshot is given up, and its space is given back",
            );
        }
        let _later = self.kept.namespace.delete_snapshot(id);
        Ok(())
    }
}

/// For callers that know more than one change.
impl BlockKeeper {
    /// Whether a write of these bytes may have to wait for the disk before the bytes change. Asks the memory alone.
    pub fn may_keep(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        let Some(newest) = self.newest_for(ino) else {
            return false;
        };
        let Some(blocks_end) = self.cache.blocks_end(newest, ino) else {
            return true;
        };
        let blocks = blocks_of(bytes, blocks_end);
        !blocks.is_empty() && !self.are_known_kept(newest, ino, &blocks)
    }

    /// Most space that a change of these bytes takes for old bytes that snapshots of the datastore see. Those of this node's own copy give way,
    /// and are not counted.
    pub fn room_to_keep(&self, ino: Ino, bytes: &Range<u64>) -> Result<u64, StoreError> {
        let Some(newest) = self
            .newest_for(ino)
            .filter(|_| self.kept.snapshots.has_shared())
        else {
            return Ok(0);
        };
        let blocks_end = if self.kept.snapshots.is_arriving() {
            // Behind this end only zeros are kept, which take little.
            let seen = self.seen_size(newest.0, ino)?;
            seen.unwrap_or(0).div_ceil(BLOCK)
        } else {
            self.blocks_end(newest, ino)?
        };
        let blocks = blocks_of(bytes, blocks_end);
        let chunks = chunks_of(&blocks);
        let count = chunks.end.saturating_sub(chunks.start);
        let is_kept = |number: u64| {
            let part = number * u64::from(CHUNK_BLOCKS);
            let part = part.max(blocks.start)..(part + u64::from(CHUNK_BLOCKS)).min(blocks.end);
            self.are_known_kept(newest, ino, &part)
        };
        let kept = if count <= COUNTED_CHUNKS {
            chunks.filter(|number| is_kept(*number)).count() as u64
        } else {
            0
        };
        Ok(count.saturating_sub(kept).saturating_mul(CHUNK_ROOM))
    }

    /// Keeps the old bytes of several writes with few syncs, before the first of the writes: each of them finds its blocks kept. `old` opens
    /// the content of a file. The bytes of a full disk are left to the writes themselves.
    pub fn keep_ahead(
        &self,
        writes: &[(Ino, Range<u64>)],
        old: impl Fn(Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError>,
    ) -> Result<(), StoreError> {
        let (mut newest, mut ahead) = (None, Vec::new());
        for (ino, bytes) in writes {
            let Some(of) = self.newest_for(*ino) else {
                continue;
            };
            let blocks_end = self.blocks_end(of, *ino)?;
            if let Some(content) = old(*ino)? {
                // Each write keeps the zeros behind the content itself.
                let length = content
                    .stat()
                    .map_err(StoreError::content("stat", *ino))?
                    .length;
                let content_end = length.div_ceil(BLOCK);
                let blocks = blocks_of(bytes, blocks_end.min(content_end));
                newest = Some(of);
                ahead.push(AheadWrite {
                    ino: *ino,
                    blocks_end,
                    blocks,
                    content,
                });
            }
        }
        let Some(newest) = newest else {
            return Ok(());
        };
        let pieces: Vec<OldBlocks<'_>> = ahead.iter().flat_map(AheadWrite::pieces).collect();
        for pieces in pieces.chunks(AHEAD_PIECES) {
            match self.keep_pieces(newest, pieces) {
                Err(error) if error.is_full_disk() => return Ok(()),
                kept => kept?,
            }
        }
        Ok(())
    }
}

/// A write of [`BlockKeeper::keep_ahead`], with the content that it changes.
struct AheadWrite {
    ino: Ino,
    blocks_end: u64,
    blocks: Range<u64>,
    content: Arc<dyn BackingFile>,
}

impl AheadWrite {
    fn pieces(&self) -> impl Iterator<Item = OldBlocks<'_>> {
        let file = TouchedFile {
            ino: self.ino,
            blocks_end: self.blocks_end,
            old: &*self.content,
        };
        pieces_of(&self.blocks).map(move |blocks| OldBlocks { file, blocks })
    }
}

impl ByteObserver for BlockKeeper {
    fn before_change(
        &self,
        change: &ByteChange<'_>,
        old: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        if !changes_bytes(&change.edit) {
            return Ok(());
        }
        // Once more for an older snapshot where the newest one has given way.
        while let Some(newest) = self.newest_for(change.ino) {
            match self.keep_before(newest, change, old) {
                Err(error) if error.is_full_disk() && newest.0.is_local() => {
                    self.give_way(newest.0, &error)?;
                }
                kept => return kept,
            }
        }
        Ok(())
    }

    fn before_removal(&self, removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        let directory = self.kept.bodies.set_aside(removal)?;
        // A file that gets the number of the removed one has other blocks.
        self.cache.forget_file(removal.ino);
        Ok(directory)
    }
}

/// The blocks with these bytes, up to the last one that snapshots see.
fn blocks_of(bytes: &Range<u64>, blocks_end: u64) -> Range<u64> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK).min(blocks_end)
}

/// A range of blocks, cut at every [`PIECE_CHUNKS`] chunks.
fn pieces_of(blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut first, last) = (blocks.start, blocks.end);
    std::iter::from_fn(move || {
        let chunk = first / u64::from(CHUNK_BLOCKS);
        let end = (chunk + PIECE_CHUNKS) * u64::from(CHUNK_BLOCKS);
        let piece = first..end.min(last);
        first = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Whether a change may change bytes that a client has seen.
const fn changes_bytes(edit: &ByteEdit<'_>) -> bool {
    match edit {
        ByteEdit::Write { .. }
        | ByteEdit::Resize { .. }
        | ByteEdit::Punch { .. }
        | ByteEdit::Zero { .. } => true,
        // Bytes beyond the size, which no client has seen, or space alone.
        ByteEdit::TakeBack { .. } | ByteEdit::Reserve { .. } => false,
    }
}

/// The chunks with these blocks.
fn chunks_of(blocks: &Range<u64>) -> Range<u64> {
    let chunk_blocks = u64::from(CHUNK_BLOCKS);
    blocks.start / chunk_blocks..blocks.end.div_ceil(chunk_blocks)
}

/// Those of these blocks that lie in a chunk.
fn part_of(blocks: &Range<u64>, chunk: u64) -> Blocks {
    let first = chunk.saturating_mul(u64::from(CHUNK_BLOCKS));
    let within = |block: u64| {
        let block = block.saturating_sub(first).min(u64::from(CHUNK_BLOCKS));
        u32::try_from(block).unwrap_or(CHUNK_BLOCKS)
    };
    Blocks::range(within(blocks.start), within(blocks.end))
}

/// The first run of blocks with data in a range.
fn next_data(
    ino: Ino,
    old: &dyn BackingFile,
    blocks: &Range<u64>,
) -> Result<Option<Range<u64>>, StoreError> {
    if blocks.is_empty() {
        return Ok(None);
    }
    let failed = StoreError::content("seek", ino);
    let found = || {
        let Some(data) = old.seek_data(blocks.start * BLOCK)? else {
            return Ok(None);
        };
        let hole = old.seek_hole(data)?.unwrap_or(u64::MAX);
        Ok(Some(
            (data / BLOCK).max(blocks.start)..hole.div_ceil(BLOCK).min(blocks.end),
        ))
    };
    let found = found().map_err(failed)?;
    Ok(found.filter(|run| !run.is_empty()))
}

/// Reads blocks of a chunk that are to be kept. Bytes beyond the end of the content are zeros.
fn read_touch(
    old: &dyn BackingFile,
    chunk: FileChunk,
    wanted: Blocks,
) -> Result<NewTouch, StoreError> {
    let mut bytes = vec![0; CHUNK_BLOCKS as usize * BLOCK_BYTES];
    let (first, end) = (
        wanted.numbers().next().unwrap_or(0),
        wanted.numbers().last().map_or(0, |last| last + 1),
    );
    let at = |block: u32| block as usize * BLOCK_BYTES;
    let wanted_bytes = bytes.get_mut(at(first)..at(end)).unwrap_or_default();
    let offset = chunk.number * CHUNK_BYTES + at(first) as u64;
    let read = old.read_at(offset, wanted_bytes);
    read.map_err(StoreError::content("read", chunk.ino))?;
    let block_bytes = |block| bytes.get(at(block)..at(block + 1)).unwrap_or_default();
    let blocks = wanted.numbers().map(|block| (block, block_bytes(block)));
    let mut touch = NewTouch::of(chunk, blocks);
    if is_active(Mutant::KeepNoHole) {
        touch.kept = touch.dense;
    }
    Ok(touch)
}
