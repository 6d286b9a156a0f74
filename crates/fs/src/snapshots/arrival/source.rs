//! The node that has a snapshot: reads the values that arrive on the other one.
//!
//! A value is that of the snapshot if its label is the first one of its record, or of its block, from the snapshot on. So the page does not depend on
//! the labels that the node uses. The values of one window do not change: later changes have later labels.

use std::ops::ControlFlow;

use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Errno, Hash128, Ino, SnapshotId};

use super::{ArrivalItem, ArrivalPage, ArrivalPlace, ArrivalWindow};
use crate::error::{OpError, StoreError};
use crate::namespace::KeptValue;
use crate::namespace::keys;
use crate::namespace::record;
use crate::snapshots::content_at::KeptSource;
use crate::snapshots::packs::touch::{Blocks, CHUNK_BYTES, FileChunk, KeptBlock, NewTouch};
use crate::snapshots::view::SnapshotView;
use crate::view::StoreView;

/// Entries of the index that are read at once.
const ENTRIES: usize = 256;
/// Bytes of a value besides those of its content, about.
const ITEM_BYTES: usize = 512;

/// Reads one page.
pub struct ArrivalSource<'a> {
    source: &'a KeptSource,
    view: SnapshotView<'a>,
    window: ArrivalWindow,
    items: Vec<ArrivalItem>,
    /// Bytes that still fit the page.
    left: usize,
}

impl<'a> ArrivalSource<'a> {
    /// A page of a window, of a snapshot with this view. The page has `bytes_max` bytes, and one value more at most.
    pub const fn new(
        source: &'a KeptSource,
        view: SnapshotView<'a>,
        window: ArrivalWindow,
        bytes_max: usize,
    ) -> Self {
        Self {
            source,
            view,
            window,
            items: Vec::new(),
            left: bytes_max,
        }
    }

    /// The page from a place on.
    ///
    /// # Errors
    /// [`Errno::Stale`] if the snapshot, or one behind it in the window, is not whole any more. Otherwise if the store cannot be read.
    pub fn page(mut self, place: &ArrivalPlace) -> Result<ArrivalPage, OpError> {
        let stamp = self.stamp();
        let next = self.read(place);
        if !self.is_whole() {
            return Err(Errno::Stale.into());
        }
        Ok(ArrivalPage {
            next: next?,
            items: self.items,
            stamp,
        })
    }

    fn is_whole(&self) -> bool {
        let ArrivalWindow { of, until, last } = self.window;
        let is_whole = |id| {
            self.source
                .snapshots
                .get(id)
                .is_some_and(|it| it.is_whole())
        };
        [of, until, last].into_iter().all(is_whole)
    }

    /// The deletion of a snapshot of this node's own copy moves values to older labels.
    fn stamp(&self) -> Hash128 {
        let all = self.source.snapshots.all();
        let local = all.range(self.window.of..self.window.last);
        let local = local.filter(|(id, _)| id.is_local());
        let told = local.map(|(id, record)| (id.to_bytes(), record.is_deleted));
        Hash128::of(&record::encode(&told.collect::<Vec<_>>()))
    }

    fn read(&mut self, place: &ArrivalPlace) -> Result<Option<ArrivalPlace>, OpError> {
        let mut place = place.clone();
        loop {
            let entries = self.entries(&place.after)?;
            let is_last = entries.len() < ENTRIES;
            for entry in entries {
                if self.left == 0 {
                    return Ok(Some(place));
                }
                if let Some(chunk) = self.read_entry(&entry, place.chunk)? {
                    return Ok(Some(ArrivalPlace { chunk, ..place }));
                }
                place = ArrivalPlace {
                    after: entry,
                    chunk: 0,
                };
            }
            if is_last {
                return Ok(None);
            }
        }
    }

    fn entries(&self, after: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut range = keys::kept_index_range(self.window.of, Some(self.window.last));
        if !after.is_empty() {
            range = range.after(after);
        }
        let mut entries = Vec::new();
        self.source.namespace.scan(&range, &mut |key, _| {
            entries.push(key.to_vec());
            if entries.len() < ENTRIES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(entries)
    }

    /// Reads the value of an entry; of a content from a chunk on. Returns the chunk at which the page ends, if it ends within the entry.
    fn read_entry(&mut self, entry: &[u8], chunk: u64) -> Result<Option<u64>, OpError> {
        let unreadable = || StoreError::unreadable(entry);
        let kept = keys::kept_of_index(entry);
        let label = keys::label_of_index(entry).ok_or_else(unreadable)?;
        let is_within = label < self.window.until;
        match kept.first() {
            Some(&keys::HISTORY) if is_within => {
                let key = keys::record_of_history(kept).ok_or_else(unreadable)?;
                return self.read_record(key, label, chunk);
            }
            Some(&keys::KEPT_BLOCKS) => {
                let number = keys::chunk_of(kept).ok_or_else(unreadable)?;
                let ino = keys::ino_of(kept).ok_or_else(unreadable)?;
                self.read_chunk(FileChunk { ino, number }, label)?;
            }
            _ => {}
        }
        Ok(None)
    }

    fn push(&mut self, bytes: usize, item: ArrivalItem) {
        self.left = self.left.saturating_sub(bytes + ITEM_BYTES);
        self.items.push(item);
    }

    /// Reads a record; with that of a file also the content, from a chunk on, if the end of the window does not see the file.
    fn read_record(
        &mut self,
        key: &[u8],
        label: SnapshotId,
        chunk: u64,
    ) -> Result<Option<u64>, OpError> {
        let first = self.source.namespace.first_kept(key, self.window.of)?;
        let Some(KeptValue { value, .. }) = first.filter(|first| first.id == label) else {
            return Ok(None);
        };
        if chunk == 0 {
            let bytes = key.len() + value.as_ref().map_or(0, Vec::len);
            let (key, value) = (key.to_vec(), value.map(Into::into));
            self.push(bytes, ArrivalItem::Record { key, value });
        }
        match keys::ino_of(key) {
            Some(ino) if key.first() == Some(&keys::INODES) && self.is_gone(ino)? => {
                self.read_content(ino, chunk)
            }
            _ => Ok(None),
        }
    }

    /// Whether an inode is freed at the end of the window, or another one has its number.
    fn is_gone(&self, ino: Ino) -> Result<bool, OpError> {
        let ArrivalWindow { of, until, .. } = self.window;
        let body = self.source.bodies.label_since(ino, of)?;
        let is_replaced = body.is_some_and(|label| label < until);
        Ok(is_replaced || self.source.namespace.size_at(until, ino)?.is_none())
    }

    fn read_chunk(&mut self, chunk: FileChunk, label: SnapshotId) -> Result<(), OpError> {
        let index = self.source.packs.index();
        let hidden = index.kept_between(chunk, self.window.of, label)?;
        let wanted = Blocks::ALL.without(hidden);
        let mut found = index.find(chunk, wanted, label..=label)?;
        if label >= self.window.until {
            let until = self.window.until;
            let Some(size) = self.source.namespace.size_at(until, chunk.ino)? else {
                return Ok(());
            };
            let seen = chunk.blocks_before(size);
            found.retain(|(block, kept)| !seen.has(*block) && *kept == KeptBlock::Zeros);
        }
        if found.is_empty() {
            return Ok(());
        }
        // They come touch by touch.
        found.sort_unstable_by_key(|(block, _)| *block);
        let touch = self.read_blocks(chunk, &found)?;
        self.push(touch.bytes.len(), ArrivalItem::Blocks(touch));
        Ok(())
    }

    fn read_blocks(
        &self,
        chunk: FileChunk,
        found: &[(u32, KeptBlock)],
    ) -> Result<NewTouch, StoreError> {
        let mut blocks = Vec::with_capacity(found.len());
        for (block, kept) in found {
            let mut bytes = vec![0; BLOCK_BYTES];
            if let KeptBlock::Dense(place, sum) = *kept {
                self.source.packs.read(place, sum, &mut bytes)?;
            }
            blocks.push((*block, bytes));
        }
        let blocks = blocks.iter().map(|(block, bytes)| (*block, &bytes[..]));
        Ok(NewTouch::of(chunk, blocks))
    }

    /// Reads the content of a file that the end of the window does not see: the other node may have freed another content.
    fn read_content(&mut self, ino: Ino, chunk: u64) -> Result<Option<u64>, OpError> {
        let Some(content) = self.view.content(ino)? else {
            return Ok(None);
        };
        let (mut at, mut touches) = (chunk, Vec::new());
        let mut end = None;
        while let Some(number) = next_chunk(ino, &*content, at)? {
            if self.left == 0 {
                end = Some(at);
                break;
            }
            let touch = dense_blocks(ino, &*content, number)?;
            self.left = self.left.saturating_sub(touch.bytes.len() + ITEM_BYTES);
            touches.push(touch);
            at = number + 1;
        }
        let to = end.unwrap_or(u64::MAX);
        self.items.push(ArrivalItem::Content {
            ino,
            from: chunk,
            to,
            touches,
        });
        Ok(end)
    }
}

fn next_chunk(ino: Ino, content: &dyn BackingFile, from: u64) -> Result<Option<u64>, StoreError> {
    let data = content.seek_data(from.saturating_mul(CHUNK_BYTES));
    let data = data.map_err(StoreError::content("seek", ino))?;
    Ok(data.map(|offset| offset / CHUNK_BYTES))
}

fn dense_blocks(ino: Ino, content: &dyn BackingFile, number: u64) -> Result<NewTouch, StoreError> {
    let mut bytes = vec![0; usize::try_from(CHUNK_BYTES).unwrap_or(0)];
    let read = content.read_at(number.saturating_mul(CHUNK_BYTES), &mut bytes);
    read.map_err(StoreError::content("read", ino))?;
    let blocks = (0..).zip(bytes.chunks(BLOCK_BYTES));
    let dense = blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
    Ok(NewTouch::of(FileChunk { ino, number }, dense))
}
