//! The file for the bytes of waiting writes. Each write has a slot; the slots lie as far apart as the largest write is
//! long.
//!
//! Invariants:
//! - A taken slot belongs to one write.
//! - A free slot has as many bytes of the disk as it says, so a write that is not longer needs no more space.
//! - No lock is held here while the disk is called.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use lockstep_types::backing::BackingFile;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

/// A spill file.
pub(crate) struct SpillFile {
    file: Arc<dyn BackingFile>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// The free slots: the bytes of the disk that each has, and its number.
    free: BTreeSet<(u64, u64)>,
    /// The lowest number that was never given out.
    next: u64,
    taken: usize,
    /// Bytes of the disk that all slots have.
    bytes: u64,
}

impl Slots {
    /// The smallest free slot that has enough bytes; otherwise the largest free slot; otherwise a new one.
    fn choose(&self, wanted: u64) -> (u64, u64) {
        let fitting = self.free.range((wanted, 0)..).next();
        let chosen = fitting.or_else(|| self.free.last());
        chosen.copied().unwrap_or((0, self.next))
    }
}

/// One slot. Dropped, it is free again.
pub(crate) struct FileSlot {
    of: Arc<SpillFile>,
    number: u64,
    /// Bytes of the disk that the slot has.
    has: u64,
    /// Bytes of the disk that the slot has once it is written.
    bytes: u64,
}

impl SpillFile {
    /// An empty spill file.
    pub fn new(file: Arc<dyn BackingFile>) -> Arc<Self> {
        let slots = Mutex::default();
        Arc::new(Self { file, slots })
    }

    /// Takes a slot for `length` bytes; `None` if the file would take more than `most` bytes of the disk.
    pub fn take(self: &Arc<Self>, length: usize, most: u64) -> Option<FileSlot> {
        let wanted = (length as u64).next_multiple_of(BLOCK_BYTES as u64);
        let mut slots = self.slots.lock();
        let (has, number) = if is_active(Mutant::OneSlot) {
            (wanted, 0)
        } else {
            slots.choose(wanted)
        };
        let bytes = has.max(wanted);
        let growth = bytes - has;
        if growth > 0 && slots.bytes.saturating_add(growth) > most {
            return None;
        }
        slots.free.remove(&(has, number));
        slots.next = slots.next.max(number + 1);
        slots.bytes += growth;
        slots.taken += 1;
        Some(FileSlot {
            of: Arc::clone(self),
            number,
            has,
            bytes,
        })
    }

    /// Number of taken slots.
    pub fn taken(&self) -> usize {
        self.slots.lock().taken
    }

    /// Bytes of the disk that the slots have.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.slots.lock().bytes
    }
}

impl FileSlot {
    /// Number of bytes by which the file grows when the slot is written.
    pub const fn growth(&self) -> u64 {
        self.bytes - self.has
    }

    const fn offset(&self) -> u64 {
        self.number.saturating_mul(WRITE_BYTES_MAX as u64)
    }

    /// Writes bytes into the slot, at most as many as it was taken for.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.of.file.write_at(self.offset(), data)?;
        self.has = self.bytes;
        Ok(())
    }

    /// Reads the first bytes of the slot.
    pub fn read(&self, length: usize) -> io::Result<Arc<[u8]>> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, length).collect();
        let into = Arc::get_mut(&mut bytes).unwrap_or_default();
        match self.of.file.read_at(self.offset(), into)? {
            read if read == length => Ok(bytes),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Damages the bytes.
    #[cfg(test)]
    pub fn damage(&self) {
        self.of.file.write_at(self.offset(), b"damage").unwrap();
    }
}

impl Drop for FileSlot {
    fn drop(&mut self) {
        let mut slots = self.of.slots.lock();
        slots.taken -= 1;
        slots.bytes -= self.growth();
        slots.free.insert((self.has, self.number));
    }
}
