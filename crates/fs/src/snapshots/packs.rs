//! Packs: old blocks of files, kept before their first change since a snapshot.
//!
//! A pack is a file to which groups of kept blocks are appended ([`group`]). The index of the packs ([`index`]) is in the namespace,
//! so a process that starts again reads the groups behind the last checkpoint once more ([`Packs::open`]).
//!
//! Invariants:
//! - Blocks are durable in a pack, and in the index, before [`Packs::keep`] returns.
//! - A pack has blocks for one newest snapshot, its label. Once no snapshot up to the label is alive, no reader needs the pack.
//! - Each opening of the store begins a pack of its own: nothing is appended behind a group that a crash may have torn.
//! - Blocks that have arrived from the other node are in packs that no opening reads: a snapshot that lacks something on this node is not alive, and a checkpoint
//!   that has it alive has the whole index.
//! - A checkpoint with touches of a group notes the place behind that group. A later opening would bring the touches back otherwise, for a snapshot that is
//!   deleted and for the next one of the same number.

mod files;
mod group;
pub mod index;
pub mod touch;
mod writer;

use std::sync::Arc;

use lockstep_types::SnapshotId;
use lockstep_types::backing::Backing;
use lockstep_types::limits::BLOCK_BYTES;

use self::files::{PackFile, PackFiles, offset_of};
use self::group::{Group, header_bytes};
use self::index::BlockIndex;
use self::touch::{ARRIVED_FROM, NewTouch, PackPlace};
use self::writer::{GroupWriter, PackDisk};
use crate::error::StoreError;
use crate::namespace::keys;
use crate::namespace::record::{self, RecordChange};
use crate::store_disk::StoreDisk;

/// The packs of one store.
pub struct Packs {
    disk: Arc<StoreDisk>,
    index: BlockIndex,
    files: PackFiles,
    /// The place behind the groups that the opening has read; `None` if there was no pack to read.
    read_to: Option<PackPlace>,
    writer: GroupWriter,
    /// Writes what arrives from the other node.
    arrivals: GroupWriter,
}

impl Packs {
    /// The packs on a disk. Notes the groups behind the last checkpoint, which the index lacks: to be called before anything else changes.
    pub fn open(disk: Arc<StoreDisk>, index: BlockIndex) -> Result<Self, StoreError> {
        let files = PackFiles::open(Arc::clone(disk.backing()) as Arc<dyn Backing>)?;
        let read_to = replay(&index, &files)?;
        Ok(Self {
            disk,
            index,
            files,
            read_to,
            writer: GroupWriter::default(),
            arrivals: GroupWriter::default(),
        })
    }

    /// The index.
    pub const fn index(&self) -> &BlockIndex {
        &self.index
    }

    /// Keeps blocks for `label`, the newest snapshot: returns once they are durable, and in the index. The caller lets no other
    /// thread keep blocks of the same chunks meanwhile.
    ///
    /// # Errors
    /// The blocks must not change.
    pub fn keep(&self, label: SnapshotId, touches: Vec<NewTouch>) -> Result<(), StoreError> {
        self.writer.keep(self.on_disk(1), label, touches)
    }

    /// Keeps blocks that have arrived from the other node, for any snapshot: as [`Self::keep`], but the index has them durably with the next checkpoint only.
    pub fn keep_arrived(
        &self,
        label: SnapshotId,
        touches: Vec<NewTouch>,
    ) -> Result<(), StoreError> {
        let on = self.on_disk(ARRIVED_FROM);
        self.arrivals.keep_alone(on, label, touches)
    }

    fn on_disk(&self, numbers_from: u64) -> PackDisk<'_> {
        PackDisk {
            disk: &self.disk,
            files: &self.files,
            index: &self.index,
            numbers_from,
        }
    }

    /// Reads a kept block of [`BLOCK_BYTES`], and checks its sum.
    pub fn read(&self, place: PackPlace, sum: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.files.read(place, sum, into)
    }

    /// The record that a checkpoint has of the packs: the place up to which the index in the checkpoint has every group.
    /// To be taken before the checkpoint freezes its records.
    pub fn checkpoint(&self) -> Option<RecordChange> {
        // A group of this process is in a younger pack than any that the opening has read.
        let place = self.writer.noted_to().or(self.read_to)?;
        Some((keys::PACKS.to_vec(), Some(record::encode(&place))))
    }

    /// Gives the space of blocks back that no snapshot needs: so many from each place on. A pack that is gone has none.
    pub fn punch(&self, places: &[(PackPlace, u32)]) -> Result<(), StoreError> {
        for (place, blocks) in places {
            let Some(file) = self.files.get(place.pack)? else {
                continue;
            };
            let length = offset_of(*blocks);
            let punched = file.bytes.punch_hole(offset_of(place.block), length);
            let path = format!("pack {:x}", place.pack);
            punched.map_err(StoreError::disk("punch a hole in", path))?;
        }
        Ok(())
    }

    /// Removes the packs that no snapshot needs whose label `is_needless`.
    pub fn remove(&self, is_needless: impl Fn(SnapshotId) -> bool) -> Result<(), StoreError> {
        let current = [self.writer.current(), self.arrivals.current()];
        self.files.remove(current, is_needless)
    }
}

/// Notes the groups behind the last checkpoint. Returns the place behind them.
fn replay(index: &BlockIndex, files: &PackFiles) -> Result<Option<PackPlace>, StoreError> {
    let from = index.covers_to()?;
    let mut read_to = None;
    let kept_here = files.from(from.pack).into_iter();
    for (pack, _) in kept_here.take_while(|(pack, _)| *pack < ARRIVED_FROM) {
        let block = if pack == from.pack { from.block } else { 1 };
        let mut at = PackPlace { pack, block };
        if let Some(file) = files.get(pack)? {
            at = replay_pack(index, &file, at)?;
        }
        read_to = Some(at);
    }
    Ok(read_to)
}

/// Notes the groups of a pack from a place on, up to the first one that is not whole. Returns the place behind them.
fn replay_pack(
    index: &BlockIndex,
    file: &PackFile,
    from: PackPlace,
) -> Result<PackPlace, StoreError> {
    let mut at = from;
    while let Some(group) = read_group(file, at)? {
        index.add(file.label, &group.touches)?;
        at.block = at.block.saturating_add(group.blocks());
    }
    Ok(at)
}

/// The group at a place, if its header and its blocks are whole.
fn read_group(file: &PackFile, at: PackPlace) -> Result<Option<Group>, StoreError> {
    let read = |block: u32, length: usize| {
        let mut bytes = vec![0; length];
        let read = file.bytes.read_at(offset_of(block), &mut bytes);
        let read = read.map_err(StoreError::disk("read", format!("pack {:x}", at.pack)))?;
        bytes.truncate(read);
        Ok::<_, StoreError>(bytes)
    };
    let begin = read(at.block, BLOCK_BYTES)?;
    let length = file.bytes.stat();
    let length = length.map_err(StoreError::disk("stat", format!("pack {:x}", at.pack)))?;
    let fits = |header: &usize| offset_of(at.block).saturating_add(*header as u64) <= length.length;
    let Some(header) = header_bytes(&begin).filter(fits) else {
        return Ok(None);
    };
    let Some(group) = Group::read(&file.key, at, &read(at.block, header)?) else {
        return Ok(None);
    };
    for (_, touch) in &group.touches {
        let bytes = read(touch.place.block, touch.sums.len() * BLOCK_BYTES)?;
        let found = bytes.chunks(BLOCK_BYTES).map(|block| file.key.sum(block));
        if bytes.len() != touch.sums.len() * BLOCK_BYTES || !found.eq(touch.sums.iter().copied()) {
            return Ok(None);
        }
    }
    Ok(Some(group))
}
