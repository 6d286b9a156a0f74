//! The files of the sums: `sums/slots.N` and `sums/HI/INO`.
//!
//! Only bytes: [`file_sums`](super::file_sums) gives them their meaning. Nothing is synced before the store is closed: sums
//! that a loss of power takes were void anyway.
//!
//! Locks: `slots` and `changed` are held for no call of the disk but the opening of a file of slots.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::backing::{Backing, BackingFile};
use parking_lot::Mutex;

use super::slot::SLOT_BYTES;
use crate::error::StoreError;
use crate::paths::{
    CHANGING_FILE, SUMS_DIR, TABLES_DIR, block_sums_dir, block_sums_path, sum_slots_path,
};

/// Files of slots that stay open.
const SLOT_FILES_MAX: usize = 64;
/// Files that a sync puts on stable storage one by one: more, and the whole disk is synced.
const SYNC_EACH_MAX: usize = 256;
const SLOTS_OF_FILE: u64 = 1 << 20;

/// See the head of this file.
pub(super) struct SumFiles {
    backing: Arc<dyn Backing>,
    slots: Mutex<BTreeMap<u64, Arc<dyn BackingFile>>>,
    changed: Mutex<BTreeSet<String>>,
}

impl SumFiles {
    pub fn new(backing: Arc<dyn Backing>) -> Self {
        Self {
            backing,
            slots: Mutex::default(),
            changed: Mutex::default(),
        }
    }

    pub fn backing(&self) -> &dyn Backing {
        &*self.backing
    }
}

/// Slots.
impl SumFiles {
    /// The bytes of a slot; zeros if there is none.
    pub fn read_slot(&self, ino: Ino) -> Result<[u8; SLOT_BYTES], StoreError> {
        let mut bytes = [0; SLOT_BYTES];
        if let Some(file) = self.slots(ino, false)? {
            let read = file.read_at(slot_offset(ino), &mut bytes);
            read.map_err(StoreError::disk_at("read", sum_slots_path, ino))?;
        }
        Ok(bytes)
    }

    pub fn write_slot(&self, ino: Ino, bytes: &[u8; SLOT_BYTES]) -> Result<(), StoreError> {
        let Some(file) = self.slots(ino, true)? else {
            return Ok(());
        };
        let written = file.write_at(slot_offset(ino), bytes);
        written.map_err(StoreError::disk_at("write", sum_slots_path, ino))
    }

    /// Makes a slot void.
    pub fn clear_slot(&self, ino: Ino) -> Result<(), StoreError> {
        if self.read_slot(ino)? == [0; SLOT_BYTES] {
            return Ok(());
        }
        self.write_slot(ino, &[0; SLOT_BYTES])
    }

    fn slots(&self, ino: Ino, create: bool) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        let number = ino.get() / SLOTS_OF_FILE;
        let mut open = self.slots.lock();
        if let Some(file) = open.get(&number) {
            return Ok(Some(Arc::clone(file)));
        }
        let path = sum_slots_path(ino);
        let file = match self.backing.open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && create => {
                let made = self.backing.open_or_create(&path);
                made.map_err(StoreError::disk("create", path.clone()))?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(StoreError::disk("open", path.clone()))?,
        };
        if open.len() >= SLOT_FILES_MAX {
            open.clear();
        }
        open.insert(number, Arc::clone(&file));
        self.changed.lock().insert(path);
        Ok(Some(file))
    }
}

fn slot_offset(ino: Ino) -> u64 {
    ino.get() % SLOTS_OF_FILE * SLOT_BYTES as u64
}

/// The sums of further blocks.
impl SumFiles {
    /// The file of an inode; `None` if it has none.
    pub fn open(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        let path = block_sums_path(ino);
        match self.backing.open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::disk("open", path)(error)),
            Ok(file) => {
                self.changed.lock().insert(path);
                Ok(Some(file))
            }
        }
    }

    pub fn create(&self, ino: Ino) -> Result<Arc<dyn BackingFile>, StoreError> {
        let path = block_sums_path(ino);
        let file = self.backing.open_or_create(&path);
        let file = file.map_err(StoreError::disk("create", path.clone()))?;
        self.changed.lock().insert(path);
        Ok(file)
    }

    /// Removes the file of an inode, and its directory if that is empty then.
    pub fn remove(&self, ino: Ino) -> Result<(), StoreError> {
        let path = block_sums_path(ino);
        match self.backing.remove(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            removed => removed.map_err(StoreError::disk("remove", path.clone()))?,
        }
        self.changed.lock().remove(&path);
        let directory = block_sums_dir(ino);
        let removed = self.backing.remove_empty_dir(&directory);
        removed.map_err(StoreError::disk("remove", directory))?;
        Ok(())
    }
}

/// Syncs.
impl SumFiles {
    /// Puts everything on stable storage that this process has changed.
    pub fn sync(&self) -> Result<(), StoreError> {
        let changed: Vec<String> = self.changed.lock().iter().cloned().collect();
        if changed.len() > SYNC_EACH_MAX {
            let synced = self.backing.sync_all();
            return synced.map_err(StoreError::disk("sync", "."));
        }
        let mut directories = BTreeSet::from([SUMS_DIR.to_owned(), TABLES_DIR.to_owned()]);
        for path in changed.into_iter().chain([CHANGING_FILE.to_owned()]) {
            let synced = self.backing.open(&path).and_then(|file| file.sync());
            synced.map_err(StoreError::disk("sync", path.clone()))?;
            if let Some((directory, _)) = path.rsplit_once('/') {
                directories.insert(directory.to_owned());
            }
        }
        for directory in directories {
            let named = self.backing.sync_dir(&directory);
            named.map_err(StoreError::disk("sync the names in", directory))?;
        }
        Ok(())
    }
}
