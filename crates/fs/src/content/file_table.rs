//! The regular files in use, by inode.
//!
//! Invariants: an entry is loaded under the lock of its shard, and a thread that changes the record of a file changes
//! the entry right after. So an entry never keeps an older size than the record. An entry with unflushed writes is
//! never dropped. Idle entries are dropped when many exist, which closes their content files and loses nothing.
//!
//! Locks: a shard before the state of one of its files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::{Ino, InodeFlags};
use parking_lot::Mutex;

use super::open_file::OpenFile;

const SHARDS: usize = 16;
/// Idle files kept per shard, beside those in use, before they are dropped. Each has an open content file, and a process may have
/// few descriptors.
const SHARD_IDLE_MAX: usize = 256;

/// All regular files in use.
#[derive(Default)]
pub struct FileTable {
    shards: [Mutex<Shard>; SHARDS],
    /// Numbers given to writes.
    writes: AtomicU64,
}

struct Shard {
    files: HashMap<Ino, Arc<OpenFile>>,
    /// Number of files at which idle files are next dropped: [`SHARD_IDLE_MAX`] more than were in use at the last search.
    sweep_at: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            files: HashMap::new(),
            sweep_at: SHARD_IDLE_MAX,
        }
    }
}

impl Shard {
    fn drop_idle(&mut self) {
        self.files.retain(|_, file| !OpenFile::is_idle(file));
        self.sweep_at = self.files.len() + SHARD_IDLE_MAX;
    }
}

impl FileTable {
    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[usize::try_from(ino.get() % SHARDS as u64).unwrap_or(0)]
    }

    /// A number for a write, higher than all earlier ones.
    pub fn number_write(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The entry of a file, if it has one.
    pub fn get(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.shard(ino).lock().files.get(&ino).cloned()
    }

    /// The entry of a file; `load` gives size and flags by the record for a new entry.
    pub fn get_or_load<E>(
        &self,
        ino: Ino,
        load: impl FnOnce() -> Result<(u64, InodeFlags), E>,
    ) -> Result<Arc<OpenFile>, E> {
        let mut shard = self.shard(ino).lock();
        if let Some(file) = shard.files.get(&ino) {
            return Ok(Arc::clone(file));
        }
        let (size, flags) = load()?;
        let file = Arc::new(OpenFile::new(ino, size, self.number_write()));
        file.set_flags(flags);
        if shard.files.len() >= shard.sweep_at {
            shard.drop_idle();
        }
        shard.files.insert(ino, Arc::clone(&file));
        Ok(file)
    }

    /// Drops the entry of a file that no longer exists.
    pub fn remove(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.shard(ino).lock().files.remove(&ino)
    }

    /// Whether a write is under way.
    pub fn are_written(&self) -> bool {
        self.unflushed().iter().any(|file| file.is_written())
    }

    /// Every file whose record may be behind, by number: a checkpoint takes them in the same order each time.
    pub fn unflushed(&self) -> Vec<Arc<OpenFile>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let unflushed = shard.files.values().filter(|file| file.is_unflushed());
            found.extend(unflushed.cloned());
        }
        found.sort_unstable_by_key(|file| file.ino());
        found
    }

    /// Closes content files that were not used since the last checkpoint but one.
    pub fn close_idle(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.files.values().for_each(|file| file.forget_folded());
            shard.drop_idle();
        }
    }

    /// Drops every entry, for a store whose namespace was replaced.
    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn load(table: &FileTable, raw: u64) -> Arc<OpenFile> {
        let ino = Ino::new(raw).unwrap();
        let loaded = table.get_or_load(ino, || Ok::<_, Infallible>((0, InodeFlags::from_bits(0))));
        loaded.unwrap()
    }

    /// Each entry may have a descriptor.
    #[test]
    fn few_idle_files_stay_open_beside_many_in_use() {
        const IN_USE: u64 = 16_000;
        let table = FileTable::default();
        let in_use: Vec<_> = (1..=IN_USE).map(|raw| load(&table, raw)).collect();
        for raw in IN_USE + 1..=4 * IN_USE {
            load(&table, raw);
            let entries: usize = table.shards.iter().map(|one| one.lock().files.len()).sum();
            let idle = entries - in_use.len();
            // A search finds all idle files of its shard.
            assert!(idle <= 2 * SHARDS * SHARD_IDLE_MAX, "{idle} idle files");
        }
        let first = load(&table, 1);
        assert!(in_use.first().is_some_and(|one| Arc::ptr_eq(one, &first)));
    }
}
