//! What is known in memory of files with content: the open content file, the size, unflushed times.
//!
//! Invariants: a file's entry is loaded under its shard's lock, and whoever changes the inode
//! record of a file tells this table right after; so an entry never keeps an older size than the
//! record. An entry with unflushed writes is never dropped. Content files are closed when too many
//! are open; that loses nothing.

use std::collections::HashMap;
use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::{Ino, Osn, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::error::StoreError;
use crate::times::SlotNumber;

const SHARDS: usize = 16;
/// Files kept per shard before idle ones are dropped.
const SHARD_IDLE_MAX: usize = 256;

/// Where the content of an inode lies: 4096 inodes to a directory.
pub fn content_path(ino: Ino) -> String {
    format!("content/{:x}/{:x}", ino.get() >> 12, ino.get())
}

/// One file with content.
pub struct FileState {
    ino: Ino,
    content: RwLock<Option<Arc<dyn BackingFile>>>,
    facts: Mutex<FileFacts>,
}

/// What is known of a file beyond its record.
#[derive(Clone, Copy, Debug)]
pub struct FileFacts {
    /// Size that clients see: ends of completed writes, not of those still waiting for the peer.
    pub size: u64,
    /// The last completed write that the record does not know of.
    pub last_write: Option<(Osn, Timestamp)>,
    /// The last write whose time is in the intent log.
    pub logged: Option<Osn>,
    /// Slot in the time table, held while the record may be behind.
    pub slot: Option<SlotNumber>,
    /// Writes begun and not yet ended.
    pub active: u32,
    /// Writes ever begun.
    pub begun: u64,
}

impl FileState {
    /// Which file.
    pub const fn ino(&self) -> Ino {
        self.ino
    }

    /// Runs `body` on the facts, alone.
    pub fn with_facts<T>(&self, body: impl FnOnce(&mut FileFacts) -> T) -> T {
        body(&mut self.facts.lock())
    }

    /// Size that clients see.
    pub fn size(&self) -> u64 {
        self.facts.lock().size
    }

    /// The content file if it is open already.
    pub fn opened(&self) -> Option<Arc<dyn BackingFile>> {
        self.content.read().clone()
    }

    /// The content file if it exists.
    pub fn content(
        &self,
        backing: &dyn Backing,
    ) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        if let Some(content) = &*self.content.read() {
            return Ok(Some(Arc::clone(content)));
        }
        let path = content_path(self.ino);
        match backing.open(&path) {
            Ok(content) => Ok(Some(self.remember(content))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::disk("open", path)(error)),
        }
    }

    /// The content file, made if it does not exist.
    pub fn content_to_write(
        &self,
        backing: &dyn Backing,
    ) -> Result<Arc<dyn BackingFile>, StoreError> {
        if let Some(content) = &*self.content.read() {
            return Ok(Arc::clone(content));
        }
        let path = content_path(self.ino);
        let content = backing
            .open_or_create(&path)
            .map_err(StoreError::disk("create", path))?;
        Ok(self.remember(content))
    }

    fn remember(&self, content: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        let mut slot = self.content.write();
        Arc::clone(slot.get_or_insert(content))
    }

    fn is_idle(state: &Arc<Self>) -> bool {
        Arc::strong_count(state) == 1 && state.facts.lock().slot.is_none()
    }
}

/// All files with content that are in use.
#[derive(Default)]
pub struct FileTable {
    shards: [Mutex<Shard>; SHARDS],
}

/// Some of the files.
struct Shard {
    files: HashMap<Ino, Arc<FileState>>,
    /// Number of files at which idle ones are next dropped; doubles while nothing is idle, so that
    /// looking for them stays cheap.
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
        self.files.retain(|_, state| !FileState::is_idle(state));
        self.sweep_at = SHARD_IDLE_MAX.max(self.files.len() * 2);
    }
}

impl FileTable {
    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[usize::try_from(ino.get() % SHARDS as u64).unwrap_or(0)]
    }

    /// The entry of a file, if there is one.
    pub fn get(&self, ino: Ino) -> Option<Arc<FileState>> {
        self.shard(ino).lock().files.get(&ino).cloned()
    }

    /// The entry of a file, loaded by `size` (its size by the record) if there is none.
    pub fn get_or_load<E>(
        &self,
        ino: Ino,
        size: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Arc<FileState>, E> {
        let mut shard = self.shard(ino).lock();
        if let Some(state) = shard.files.get(&ino) {
            return Ok(Arc::clone(state));
        }
        let state = Arc::new(FileState {
            ino,
            content: RwLock::new(None),
            facts: Mutex::new(FileFacts {
                size: size()?,
                last_write: None,
                logged: None,
                slot: None,
                active: 0,
                begun: 0,
            }),
        });
        if shard.files.len() >= shard.sweep_at {
            shard.drop_idle();
        }
        shard.files.insert(ino, Arc::clone(&state));
        Ok(state)
    }

    /// Drops the entry of a file that no longer exists.
    pub fn remove(&self, ino: Ino) -> Option<Arc<FileState>> {
        self.shard(ino).lock().files.remove(&ino)
    }

    /// Every file whose record may be behind.
    pub fn unflushed(&self) -> Vec<Arc<FileState>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            found.extend(
                shard
                    .files
                    .values()
                    .filter(|state| state.facts.lock().slot.is_some())
                    .cloned(),
            );
        }
        found
    }

    /// Closes content files nobody uses.
    pub fn close_idle(&self) {
        for shard in &self.shards {
            shard.lock().drop_idle();
        }
    }

    /// Forgets everything, for a store whose namespace was replaced.
    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }
}
