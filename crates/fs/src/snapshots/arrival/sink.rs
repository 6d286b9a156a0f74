//! The node that lacks a snapshot S: puts the values that arrive.
//!
//! An older snapshot P that this node has whole sees none of them: see `namespace/history/arrived.rs`. For blocks the rule is the same: where this node has kept
//! nothing between P and S, and the block that P sees is another one, that block gets the label P first.

use std::sync::Arc;

use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Ino, SnapshotId};

use super::ArrivalItem;
use crate::content::ContentStore;
use crate::error::StoreError;
use crate::namespace::record::RecordChange;
use crate::snapshots::content_at::KeptSource;
use crate::snapshots::packs::touch::{Blocks, CHUNK_BYTES, FileChunk, NewTouch};
use crate::snapshots::view::SnapshotView;
use crate::view::StoreView;

/// Puts what arrives for one snapshot.
pub struct ArrivalSink<'a> {
    source: &'a KeptSource,
    content: &'a ContentStore,
    /// S.
    id: SnapshotId,
    /// P, if there is one.
    older: Option<SnapshotView<'a>>,
}

impl<'a> ArrivalSink<'a> {
    /// For snapshot `id`, which is not alive. `older` is the newest older snapshot that is.
    pub const fn new(
        source: &'a KeptSource,
        content: &'a ContentStore,
        id: SnapshotId,
        older: Option<SnapshotView<'a>>,
    ) -> Self {
        Self {
            source,
            content,
            id,
            older,
        }
    }

    /// Puts these values. They are durable with the next checkpoint.
    ///
    /// # Errors
    /// The disk fails or is full: some values may be there.
    pub fn put(&self, items: Vec<ArrivalItem>) -> Result<(), StoreError> {
        let (mut records, mut touches) = (Vec::<RecordChange>::new(), Vec::new());
        for item in items {
            match item {
                ArrivalItem::Record { key, value } => {
                    records.push((key, value.map(serde_bytes::ByteBuf::into_vec)));
                }
                ArrivalItem::Blocks(touch) => touches.push(touch),
                ArrivalItem::Content {
                    ino,
                    from,
                    to,
                    touches: of_file,
                } => touches.extend(self.whole_content(ino, from..to, of_file)?),
            }
        }
        self.source.namespace.put_arrived(self.id, records)?;
        self.put_touches(touches)
    }

    fn put_touches(&self, touches: Vec<NewTouch>) -> Result<(), StoreError> {
        let index = self.source.packs.index();
        let (mut of_older, mut arrived) = (Vec::new(), Vec::new());
        for touch in touches {
            // A page may come again.
            let here = index.kept_since(touch.chunk, self.id..=self.id)?;
            let touch = touch.without(here);
            if touch.kept.is_empty() {
                continue;
            }
            of_older.extend(self.seen_through(&touch)?);
            arrived.push(touch);
        }
        if let Some(older) = &self.older
            && !of_older.is_empty()
        {
            self.source.packs.keep_arrived(older.id(), of_older)?;
        }
        if arrived.is_empty() {
            return Ok(());
        }
        self.source.packs.keep_arrived(self.id, arrived)
    }

    /// The blocks that P sees behind S, where they are others than those that have arrived.
    fn seen_through(&self, touch: &NewTouch) -> Result<Option<NewTouch>, StoreError> {
        let chunk = touch.chunk;
        let Some(older) = &self.older else {
            return Ok(None);
        };
        let size = self.source.namespace.size_at(older.id(), chunk.ino)?;
        let index = self.source.packs.index();
        let hidden = index.kept_between(chunk, older.id(), self.id)?;
        let visible = chunk.blocks_before(size.unwrap_or(0));
        let seen = touch.kept.and(visible).without(hidden);
        if seen.is_empty() {
            return Ok(None);
        }
        let Some(content) = older.content(chunk.ino)? else {
            return Ok(None);
        };
        let bytes = read_chunk(&*content, chunk)?;
        let zeros = [0; BLOCK_BYTES];
        let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
        let others = (0..).zip(blocks).filter(|(block, bytes)| {
            let arrives = touch.bytes_of(*block).unwrap_or(&zeros);
            seen.has(*block) && arrives != bytes.as_slice()
        });
        let others = NewTouch::of(
            chunk,
            others.map(|(block, bytes)| (block, bytes.as_slice())),
        );
        Ok((!others.kept.is_empty()).then_some(others))
    }

    /// The blocks of a file that this node has freed before, or never had: also zeros over a content that it has freed under this number.
    fn whole_content(
        &self,
        ino: Ino,
        chunks: std::ops::Range<u64>,
        touches: Vec<NewTouch>,
    ) -> Result<Vec<NewTouch>, StoreError> {
        let backing = self.content.disk().backing();
        let base = self
            .source
            .bodies
            .of_arrival(backing.as_ref(), ino, self.id)?;
        let mut all = touches;
        let mut at = chunks.start;
        while let Some(number) = next_data(&base, ino, at)?
            && number < chunks.end
        {
            let chunk = FileChunk { ino, number };
            let of_chunk = all.iter().filter(|touch| touch.chunk == chunk);
            let told = of_chunk.fold(Blocks::NONE, |told, touch| told.with(touch.kept));
            let zeros = NewTouch {
                chunk,
                kept: Blocks::ALL.without(told),
                dense: Blocks::NONE,
                bytes: Vec::new(),
            };
            all.push(zeros);
            at = number + 1;
        }
        Ok(all)
    }
}

fn next_data(base: &Arc<dyn BackingFile>, ino: Ino, from: u64) -> Result<Option<u64>, StoreError> {
    let data = base.seek_data(from.saturating_mul(CHUNK_BYTES));
    let data = data.map_err(StoreError::content("seek", ino))?;
    Ok(data.map(|offset| offset / CHUNK_BYTES))
}

fn read_chunk(content: &dyn BackingFile, chunk: FileChunk) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![0; usize::try_from(CHUNK_BYTES).unwrap_or(0)];
    let read = content.read_at(chunk.number.saturating_mul(CHUNK_BYTES), &mut bytes);
    read.map_err(StoreError::content("read", chunk.ino))?;
    Ok(bytes)
}
