//! The blocks that are kept already, as far as the memory of a store has them: so a write asks the index once for each chunk.
//!
//! Invariant: a block is noted as kept after it was durable in a pack. A note holds for one newest snapshot, and is forgotten with the
//! next one. Forgetting is always allowed: the index has everything.
//!
//! Locks: one for each part, held for no call.

use std::collections::HashMap;

use lockstep_types::{Ino, SnapshotId};
use parking_lot::Mutex;

use crate::snapshots::packs::touch::{Blocks, FileChunk};

/// Parts with a lock each.
const SHARDS: usize = 16;
/// Chunks that one part has in memory: 4 GiB of files that change, and about 2 MiB of memory.
const CHUNKS_MAX: usize = 1 << 16;

/// The newest snapshot, and the count of the changes of the list in which it is that.
pub type Newest = (SnapshotId, u64);

/// A file that the newest snapshot sees.
#[derive(Default)]
struct KeptFile {
    /// The blocks that snapshots see are before this one.
    blocks_end: u64,
    chunks: HashMap<u64, Blocks>,
}

#[derive(Default)]
struct CacheShard {
    newest: Option<Newest>,
    files: HashMap<Ino, KeptFile>,
    chunks: usize,
}

impl CacheShard {
    /// The notes of a snapshot: none if they are of another one.
    fn of(&mut self, newest: Newest) -> &mut Self {
        if self.newest != Some(newest) || self.chunks > CHUNKS_MAX || self.files.len() > CHUNKS_MAX
        {
            *self = Self {
                newest: Some(newest),
                ..Self::default()
            };
        }
        self
    }
}

/// See the head of this file.
#[derive(Default)]
pub struct KeptCache([Mutex<CacheShard>; SHARDS]);

impl KeptCache {
    fn shard(&self, ino: Ino) -> &Mutex<CacheShard> {
        let [first, ..] = &self.0;
        let number = usize::try_from(ino.get() % SHARDS as u64).unwrap_or(0);
        self.0.get(number).unwrap_or(first)
    }

    /// The end of the blocks of a file that the newest snapshot sees, if it is known.
    pub fn blocks_end(&self, newest: Newest, ino: Ino) -> Option<u64> {
        let mut shard = self.shard(ino).lock();
        Some(shard.of(newest).files.get(&ino)?.blocks_end)
    }

    /// Notes the end of the blocks that the newest snapshot sees.
    pub fn set_blocks_end(&self, newest: Newest, ino: Ino, blocks_end: u64) {
        let mut shard = self.shard(ino).lock();
        shard.of(newest).files.entry(ino).or_default().blocks_end = blocks_end;
    }

    /// Forgets a file.
    pub fn forget_file(&self, ino: Ino) {
        self.shard(ino).lock().files.remove(&ino);
    }

    /// The blocks of a chunk that are kept, if they are known.
    pub fn kept(&self, newest: Newest, chunk: FileChunk) -> Option<Blocks> {
        let mut shard = self.shard(chunk.ino).lock();
        let file = shard.of(newest).files.get(&chunk.ino)?;
        file.chunks.get(&chunk.number).copied()
    }

    /// Notes that these blocks of a chunk are kept, and those that are noted already.
    pub fn add(&self, newest: Newest, chunk: FileChunk, kept: Blocks) {
        let mut shard = self.shard(chunk.ino).lock();
        let shard = shard.of(newest);
        // Without the end of its blocks a file has no notes.
        let Some(file) = shard.files.get_mut(&chunk.ino) else {
            return;
        };
        let known = file.chunks.entry(chunk.number);
        let noted = known.or_insert_with(|| {
            shard.chunks += 1;
            Blocks::NONE
        });
        *noted = noted.with(kept);
    }
}
