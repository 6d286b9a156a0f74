//! Putting a copy back to one of its snapshots: the records like those of another node that come in a resync, the contents block by
//! block.
//!
//! The snapshot stays as it is meanwhile, since each change of the copy keeps what the snapshot sees. So the work may stop anywhere, and begin
//! anew.

use std::ops::{ControlFlow, Range};

use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Ino, SnapshotId};

use super::facade::Store;
use super::image::{ImageAccess, ImageChunk};
use super::replica_access::ReplicaAccess;
use super::whole_sync::sync_everything;
use crate::error::{OpError, StoreError};
use crate::metadata_log::MetadataLog;
use crate::namespace::keys;
use crate::snapshots::packs::touch::CHUNK_BYTES;
use crate::snapshots::view::SnapshotView;
use crate::tree::Tree;
use crate::view::StoreView;

/// Bytes of records that are compared at once.
const RECORD_BYTES: usize = 256 << 10;
/// Kept values that are looked up at once.
const PAGE: usize = 1_000;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The parts of a store that change when its copy is put back.
#[derive(Clone, Copy)]
pub struct CopyAccess<'a> {
    tree: Tree<'a>,
    log: &'a MetadataLog,
    image: ImageAccess<'a>,
    replica: ReplicaAccess<'a>,
}

impl<'a> CopyAccess<'a> {
    /// The parts of this store.
    pub fn of(store: &'a Store) -> Self {
        Self {
            tree: store.tree(),
            log: &store.metadata_log,
            image: store.image(),
            replica: store.replica(),
        }
    }

    /// Makes everything durable.
    pub fn sync(self) -> Result<(), StoreError> {
        sync_everything(self.tree, self.log)
    }
}

/// See the head of this file.
pub struct PutBack<'a> {
    copy: CopyAccess<'a>,
    past: &'a SnapshotView<'a>,
}

impl<'a> PutBack<'a> {
    /// The work on a copy, with the view of the snapshot.
    pub const fn new(copy: CopyAccess<'a>, past: &'a SnapshotView<'a>) -> Self {
        Self { copy, past }
    }

    /// Puts records and contents back, durably.
    pub fn run(&self, id: SnapshotId, inos_below: u64) -> Result<(), OpError> {
        let image = self.copy.image;
        image.begin()?;
        for table in keys::REPLICATED {
            self.put_table(table)?;
        }
        image.prepare_finish()?;
        self.put_contents(id)?;
        self.copy.sync()?;
        image.finish(id.osn, inos_below)?;
        Ok(())
    }

    fn put_table(&self, table: u8) -> Result<(), OpError> {
        let mut after = Vec::new();
        loop {
            let chunk = ImageChunk::read(self.past, table, &after, RECORD_BYTES)?;
            self.copy.image.load_chunk(&chunk)?;
            match chunk.records.into_iter().next_back() {
                Some(last) if !chunk.last => after = last.key,
                _ => return Ok(()),
            }
        }
    }

    /// Puts the bytes back for which the snapshot has a kept value.
    fn put_contents(&self, id: SnapshotId) -> Result<(), OpError> {
        let mut range = keys::kept_index_range(id, None);
        loop {
            let mut page = Vec::new();
            self.copy.tree.namespace.scan(&range, &mut |key, _| {
                page.push(key.to_vec());
                if page.len() < PAGE {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            for key in &page {
                self.put_kept(keys::kept_of_index(key))?;
            }
            match page.last() {
                Some(last) => range = range.after(last),
                None => return Ok(()),
            }
        }
    }

    /// Puts the bytes of a kept value back: of a chunk, or of a whole file.
    fn put_kept(&self, kept: &[u8]) -> Result<(), OpError> {
        let Some(ino) = keys::ino_of(kept) else {
            return Ok(());
        };
        match (kept.first(), keys::chunk_of(kept)) {
            (Some(&keys::KEPT_BLOCKS), Some(number)) => {
                let first = number.saturating_mul(CHUNK_BYTES);
                self.put_bytes(ino, first..first.saturating_add(CHUNK_BYTES))
            }
            (Some(&keys::BODIES), _) => self.put_bytes(ino, 0..u64::MAX),
            _ => Ok(()),
        }
    }

    fn put_bytes(&self, ino: Ino, bytes: Range<u64>) -> Result<(), OpError> {
        let Some(times) = self.past.file_times(ino)? else {
            return Ok(());
        };
        let end = bytes.end.min(times.size);
        let mut at = bytes.start;
        while let Some(data) = self.next_data(ino, at)?.filter(|data| *data < end) {
            let first = data.max(bytes.start);
            let piece = first..end.min(first.saturating_add(CHUNK_BYTES));
            self.put_piece(ino, &piece)?;
            at = piece.end;
        }
        Ok(())
    }

    /// The first block with data from `at` on, in the past or at present.
    fn next_data(&self, ino: Ino, at: u64) -> Result<Option<u64>, OpError> {
        let past = self.past.next_data(ino, at)?;
        let present = self.copy.tree.next_data(ino, at)?;
        let first = past.into_iter().chain(present).min();
        Ok(first.map(|data| data - data % BLOCK))
    }

    /// Overwrites the blocks of at most a chunk that differ. Blocks that the snapshot does not keep are equal: so nothing more is kept.
    fn put_piece(&self, ino: Ino, bytes: &Range<u64>) -> Result<(), OpError> {
        let length = usize::try_from(bytes.end - bytes.start).unwrap_or(0);
        let (mut past, mut present) = (vec![0; length], vec![0; length]);
        self.past.read_raw(ino, bytes.start, &mut past)?;
        self.copy.tree.read_raw(ino, bytes.start, &mut present)?;
        let replica = self.copy.replica;
        let blocks = past
            .chunks(BLOCK_BYTES)
            .zip(present.chunks(BLOCK_BYTES))
            .zip((bytes.start..).step_by(BLOCK_BYTES));
        for ((past, present), at) in blocks {
            if past == present {
                continue;
            }
            if past.iter().all(|byte| *byte == 0) {
                replica.punch(ino, at, BLOCK.min(bytes.end - at))?;
            } else {
                replica.put_blocks(ino, at, past)?;
            }
        }
        Ok(())
    }
}
