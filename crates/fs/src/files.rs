//! What is known in memory of files with content: the open content file, the size, unflushed times.
//!
//! Invariants: a file's entry is loaded under its shard's lock, and whoever changes the inode
//! record of a file tells this table right after; so an entry never keeps an older size than the
//! record. An entry with unflushed writes is never dropped. Content files are closed when too many
//! are open; that loses nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::{Ino, Osn, StateVersion, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::error::StoreError;
use crate::times::SlotNumber;

const SHARDS: usize = 16;
/// Files kept per shard before idle ones are dropped.
const SHARD_IDLE_MAX: usize = 256;

/// The directory above all content.
pub const CONTENT_DIR: &str = "content";

/// The directory in which the content of an inode lies: 256 inodes to each. The disk lays each of
/// these directories, with its files, in another place ([`Backing::scatter`]). Few in one place,
/// because ext4 without a journal steps over every inode that was freed in the same place within the
/// last half minute, one by one, for each new file.
pub fn content_dir(ino: Ino) -> String {
    format!("{CONTENT_DIR}/{:x}", ino.get() >> 8)
}

/// Whether a name in the directory above all content is one that [`content_dir`] gives.
pub fn is_content_dir(name: &str) -> bool {
    let number = u64::from_str_radix(name, 16);
    number.is_ok_and(|number| number <= u64::MAX >> 8 && format!("{number:x}") == name)
}

/// Opens the content file of an inode, if it exists.
pub fn open_content(
    backing: &dyn Backing,
    ino: Ino,
) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
    let path = content_path(ino);
    match backing.open(&path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::disk("open", path)(error)),
    }
}

/// Where the content of an inode lies.
pub fn content_path(ino: Ino) -> String {
    format!("{}/{:x}", content_dir(ino), ino.get())
}

/// Whose content lies there; `None` when it is not where [`content_path`] puts any.
pub fn content_owner(path: &str) -> Option<Ino> {
    let (_, name) = path.rsplit_once('/')?;
    let ino = u64::from_str_radix(name, 16).ok().and_then(Ino::new)?;
    (content_path(ino) == path).then_some(ino)
}

/// One file with content.
pub struct FileState {
    ino: Ino,
    content: RwLock<Option<Arc<dyn BackingFile>>>,
    facts: Mutex<FileFacts>,
    /// Nobody knows what of a change has reached the content: its bytes are not to be seen.
    lost_track: AtomicBool,
}

/// What is known of a file beyond its record.
#[derive(Clone, Copy, Debug)]
pub struct FileFacts {
    /// Size that clients see: ends of completed writes, not of those still waiting for the peer.
    pub size: u64,
    /// The last completed write that the record does not know of.
    pub last_write: Option<(Osn, Timestamp)>,
    /// The last write that a checkpoint has put in the record, until the next checkpoint: a write
    /// with a lower number that comes late must not set the times back.
    pub folded: Option<Osn>,
    /// The last write whose time is in the intent log.
    pub logged: Option<Osn>,
    /// A metadata operation has put the time of a write into the file's record, and neither the log
    /// nor a checkpoint has it: a sync still owes it.
    pub owes_time: bool,
    /// Slot in the time table, held while the record may be behind.
    pub slot: Option<SlotNumber>,
    /// Writes begun and not yet ended.
    pub active: u32,
    /// Number of the last write begun; no two writes to any file have the same.
    pub begun: u64,
    /// Number of the last write begun that is not made durable by itself; before the first, a
    /// number that nothing else has.
    pub undurable: u64,
    /// How many such writes have ended.
    pub undurable_ended: u64,
    /// A write has failed and may have left bytes beyond the size.
    pub leftover: bool,
    /// What the last sync on both nodes covered.
    pub synced: Option<SyncPoint>,
}

/// What a sync of a file covers: while nothing of this changes, another sync has nothing to do.
/// A write that is under way may put its bytes in place before the sync or after it, so its end
/// counts as well as its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPoint {
    /// The last write begun that is not made durable by itself.
    pub undurable: u64,
    /// How many such writes have ended.
    pub undurable_ended: u64,
    /// Highest metadata operation applied.
    pub applied: Osn,
    /// The state in which it counts: what was synced alone is not synced on both nodes.
    pub state: StateVersion,
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
        let found = open_content(backing, self.ino)?;
        Ok(found.map(|content| self.remember(content)))
    }

    /// The content file, made if it does not exist; `made` hears of it then, before anybody else
    /// can write to it: a sync of that write has to know that the name is new.
    pub fn content_to_write(
        &self,
        backing: &dyn Backing,
        made: impl FnOnce(),
    ) -> Result<Arc<dyn BackingFile>, StoreError> {
        if let Some(content) = &*self.content.read() {
            return Ok(Arc::clone(content));
        }
        let mut opened = self.content.write();
        if let Some(content) = &*opened {
            return Ok(Arc::clone(content));
        }
        if let Some(content) = open_content(backing, self.ino)? {
            return Ok(Arc::clone(opened.insert(content)));
        }
        let path = content_path(self.ino);
        let content = backing.open_or_create(&path);
        let content = content.map_err(StoreError::disk("create", path))?;
        made();
        Ok(Arc::clone(opened.insert(content)))
    }

    fn remember(&self, content: Arc<dyn BackingFile>) -> Arc<dyn BackingFile> {
        let mut slot = self.content.write();
        Arc::clone(slot.get_or_insert(content))
    }

    /// A change of the content may have been carried out, and the record says otherwise.
    pub fn lose_track(&self) {
        self.lost_track.store(true, Ordering::Release);
    }

    /// Whether nobody knows what the content is.
    pub fn has_lost_track(&self) -> bool {
        self.lost_track.load(Ordering::Acquire)
    }

    /// A write has ended. The last one under way takes back what failed ones have left beyond the
    /// size: before, it might cut off what another has put there. None can begin meanwhile. Returns
    /// whether anything was taken back.
    pub fn write_ended(&self, durable: bool) -> bool {
        let mut facts = self.facts.lock();
        facts.active = facts.active.saturating_sub(1);
        facts.undurable_ended += u64::from(!durable);
        let is_left = facts.active == 0 && std::mem::take(&mut facts.leftover);
        if is_left {
            self.cut_leftover(facts.size);
        }
        is_left
    }

    fn cut_leftover(&self, size: u64) {
        let Some(content) = self.content.read().clone() else {
            return;
        };
        let cut = content.stat().and_then(|stat| {
            if stat.length > size {
                content.set_len(size)
            } else {
                Ok(())
            }
        });
        if let Err(error) = cut {
            tracing::warn!(%error, ino = %self.ino, "could not take back a failed write");
        }
    }

    fn is_idle(state: &Arc<Self>) -> bool {
        let facts = state.facts.lock();
        Arc::strong_count(state) == 1 && facts.slot.is_none() && facts.folded.is_none()
    }
}

/// All files with content that are in use.
#[derive(Default)]
pub struct FileTable {
    shards: [Mutex<Shard>; SHARDS],
    writes: AtomicU64,
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

    /// A number for a write that begins, higher than all before.
    pub fn number_write(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed) + 1
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
            lost_track: AtomicBool::new(false),
            facts: Mutex::new(FileFacts {
                size: size()?,
                last_write: None,
                folded: None,
                logged: None,
                owes_time: false,
                slot: None,
                active: 0,
                begun: 0,
                undurable: self.number_write(),
                undurable_ended: 0,
                leftover: false,
                synced: None,
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

    /// Whether a write was begun that has not ended.
    pub fn are_written(&self) -> bool {
        let unflushed = self.unflushed();
        let mut active = unflushed
            .iter()
            .map(|file| file.with_facts(|facts| facts.active));
        active.any(|active| active > 0)
    }

    /// Every file whose record may be behind, by number: what a checkpoint does, it does in the same order
    /// each time.
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
        found.sort_unstable_by_key(|state| state.ino);
        found
    }

    /// Closes content files that nobody has used since the last checkpoint but one.
    pub fn close_idle(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for state in shard.files.values() {
                state.facts.lock().folded = None;
            }
            shard.drop_idle();
        }
    }

    /// Forgets everything, for a store whose namespace was replaced.
    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_content_names_its_inode_and_no_other_does() {
        for number in [1, 255, 256, 0x1234_5678, u64::MAX] {
            let ino = Ino::new(number).unwrap();
            assert_eq!(content_owner(&content_path(ino)), Some(ino));
        }
        for path in [
            "1a",
            "content/1a",
            "content/1/1a",
            "content/0/01a",
            "content/0/1A",
            "content/0/+1",
            "content/0/0",
            "tables/0/1a",
            "content/0/1a.old",
        ] {
            assert_eq!(content_owner(path), None, "{path}");
        }
    }

    #[test]
    fn a_directory_of_content_is_told_by_its_name() {
        for number in [1, 255, 256, 0x1234_5678, u64::MAX] {
            let path = content_dir(Ino::new(number).unwrap());
            let name = path.strip_prefix("content/").unwrap();
            assert!(is_content_dir(name), "{name}");
        }
        for name in [
            "",
            "lost+found",
            "A",
            "01",
            "+1",
            "100000000000000",
            "1.old",
        ] {
            assert!(!is_content_dir(name), "{name}");
        }
    }
}
