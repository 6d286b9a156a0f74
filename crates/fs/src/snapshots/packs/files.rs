//! The files of the packs: which there are, and reading from them.
//!
//! A pack is named after its number and the snapshot for which its blocks are kept. No number is given out twice, so a place in
//! a pack never means other bytes.
//!
//! Locks: one inside, held for no call of the disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use lockstep_types::SnapshotId;
use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::limits::BLOCK_BYTES;
use parking_lot::Mutex;

use super::group::PackKey;
use super::touch::{ARRIVED_FROM, PackPlace};
use crate::error::StoreError;
use crate::paths::{PACKS_DIR, pack_owner, pack_path};

/// Packs that are open for readers at once.
const OPEN_MAX: usize = 32;

/// The offset of a block.
pub fn offset_of(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

/// A pack that is open.
pub struct PackFile {
    /// The snapshot for which the blocks are kept.
    pub label: SnapshotId,
    /// The key of the sums.
    pub key: PackKey,
    /// The bytes.
    pub bytes: Arc<dyn BackingFile>,
}

#[derive(Default)]
struct KnownPacks {
    /// The label of each pack.
    labels: BTreeMap<u64, SnapshotId>,
    open: BTreeMap<u64, Arc<PackFile>>,
}

/// See the head of this file.
pub struct PackFiles {
    backing: Arc<dyn Backing>,
    listed: Mutex<KnownPacks>,
}

impl PackFiles {
    /// The packs on a disk.
    pub fn open(backing: Arc<dyn Backing>) -> Result<Self, StoreError> {
        let names = backing.list(PACKS_DIR);
        let names = names.map_err(StoreError::disk("list", PACKS_DIR))?;
        let labels = names.iter().filter_map(|name| pack_owner(name)).collect();
        let listed = KnownPacks {
            labels,
            open: BTreeMap::new(),
        };
        Ok(Self {
            backing,
            listed: Mutex::new(listed),
        })
    }

    /// The numbers of all packs from `first` on, in order, with their labels.
    pub fn from(&self, first: u64) -> Vec<(u64, SnapshotId)> {
        let listed = self.listed.lock();
        let packs = listed.labels.range(first..);
        packs.map(|(number, label)| (*number, *label)).collect()
    }

    /// A number that no pack has had, of those from `first` on up to the next half of all numbers.
    pub fn next_number(&self, first: u64) -> u64 {
        let listed = self.listed.lock();
        let last = last_of(&listed.labels, first);
        last.map_or(first, |last| last + 1)
    }

    /// Makes a pack, whose header is not durable yet. Its name is. After an error the number belongs to this pack all the same: the disk may have the name,
    /// and an opening knows one pack of a number.
    pub fn create(&self, number: u64, label: SnapshotId) -> Result<Arc<PackFile>, StoreError> {
        let path = pack_path(number, label);
        self.listed.lock().labels.insert(number, label);
        let key = PackKey::of(number, label);
        let made = self.backing.open_or_create(&path).and_then(|bytes| {
            // A pack of this number from a stop in the middle of its making has no group.
            bytes.set_len(0)?;
            bytes.write_at(0, &key.pack_header(label))?;
            self.backing.sync_dir(PACKS_DIR)?;
            self.backing.sync_dir(".")?;
            Ok(bytes)
        });
        let bytes = made.map_err(StoreError::disk("make", path))?;
        let file = Arc::new(PackFile { label, key, bytes });
        self.listed.lock().open.insert(number, Arc::clone(&file));
        Ok(file)
    }

    /// Opens a pack. `None` if there is no pack of this number, or its header is not whole: the pack has no group then.
    pub fn get(&self, number: u64) -> Result<Option<Arc<PackFile>>, StoreError> {
        let label = {
            let listed = self.listed.lock();
            if let Some(file) = listed.open.get(&number) {
                return Ok(Some(Arc::clone(file)));
            }
            listed.labels.get(&number).copied()
        };
        let Some(label) = label else {
            return Ok(None);
        };
        let path = pack_path(number, label);
        let opened = self.read_header(&path);
        let opened = opened.map_err(StoreError::disk("open", path))?;
        let Some(file) = opened.filter(|file| file.label == label).map(Arc::new) else {
            return Ok(None);
        };
        let mut listed = self.listed.lock();
        if listed.open.len() >= OPEN_MAX {
            listed.open.pop_first();
        }
        listed.open.insert(number, Arc::clone(&file));
        Ok(Some(file))
    }

    fn read_header(&self, path: &str) -> io::Result<Option<PackFile>> {
        let bytes = match self.backing.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut header = [0; BLOCK_BYTES];
        bytes.read_at(0, &mut header)?;
        let read = PackKey::of_pack(&header);
        Ok(read.map(|(label, key)| PackFile { label, key, bytes }))
    }

    /// Reads a kept block, and checks its sum.
    pub fn read(&self, place: PackPlace, sum: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let damaged = |what: &str| StoreError::Damaged {
            what: format!("block {} of pack {:x} {what}", place.block, place.pack),
        };
        let file = self.get(place.pack)?;
        let file = file.ok_or_else(|| damaged("is kept in a pack that is missing"))?;
        let read = file.bytes.read_at(offset_of(place.block), into);
        let read = read.map_err(StoreError::disk("read", pack_path(place.pack, file.label)))?;
        if read != into.len() || file.key.sum(into) != sum {
            return Err(damaged("does not fit its sum"));
        }
        Ok(())
    }

    /// Removes the packs whose label `is_needless`, but for those with the numbers `except`. The last pack of each kind stays, empty: its number
    /// must not be given out again.
    pub fn remove(
        &self,
        except: [Option<u64>; 2],
        is_needless: impl Fn(SnapshotId) -> bool,
    ) -> Result<(), StoreError> {
        let all = self.from(0);
        let last = {
            let labels = &self.listed.lock().labels;
            [last_of(labels, 1), last_of(labels, ARRIVED_FROM)]
        };
        for (number, label) in all {
            if except.contains(&Some(number)) || !is_needless(label) {
                continue;
            }
            let path = pack_path(number, label);
            let removed = if last.contains(&Some(number)) {
                self.empty(&path)
            } else {
                self.backing.remove(&path)
            };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::disk("remove", path)(error));
                }
                _ => {}
            }
            let mut listed = self.listed.lock();
            listed.open.remove(&number);
            if !last.contains(&Some(number)) {
                listed.labels.remove(&number);
            }
        }
        Ok(())
    }

    /// Takes all groups out of a pack.
    fn empty(&self, path: &str) -> io::Result<()> {
        let file = self.backing.open(path)?;
        let length = file.stat()?.length;
        file.set_len(length.min(offset_of(1)))
    }
}

/// The last number of a kind of packs, which have numbers from `first` on.
fn last_of(labels: &BTreeMap<u64, SnapshotId>, first: u64) -> Option<u64> {
    let end = if first < ARRIVED_FROM {
        ARRIVED_FROM - 1
    } else {
        u64::MAX
    };
    let last = labels.range(first..=end).next_back();
    last.map(|(number, _)| *number)
}
