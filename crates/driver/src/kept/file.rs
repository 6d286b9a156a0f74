//! The file for the bytes of writes that wait: one slot for each write, as far from the next as the largest write
//! is long.
//!
//! Invariants:
//! - A slot that is taken belongs to one write.
//! - The disk has given each free slot as many bytes as the slot says, so a write that is no longer needs no more.
//! - Nothing here is locked while the disk is asked.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use lockstep_types::backing::BackingFile;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

/// A waiting file.
pub(super) struct WaitingFile {
    file: Arc<dyn BackingFile>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// Those that are free again: how many bytes of the disk each has, and its number.
    free: BTreeSet<(u64, u64)>,
    /// The first number that was never given out.
    next: u64,
    taken: usize,
    /// Bytes of the disk that all slots have.
    bytes: u64,
}

impl Slots {
    /// The free slot that has enough and the least of these, or the one that has the most, or a new one.
    fn choose(&self, wanted: u64) -> (u64, u64) {
        let fitting = self.free.range((wanted, 0)..).next();
        let chosen = fitting.or_else(|| self.free.last());
        chosen.copied().unwrap_or((0, self.next))
    }
}

/// One slot; free again when dropped.
pub(super) struct Slot {
    of: Arc<WaitingFile>,
    number: u64,
    /// Bytes that the disk has given it.
    has: u64,
    /// Bytes that it has once it is written.
    bytes: u64,
}

impl WaitingFile {
    /// One that nothing is in.
    pub fn new(file: Arc<dyn BackingFile>) -> Arc<Self> {
        let slots = Mutex::default();
        Arc::new(Self { file, slots })
    }

    /// Takes a slot for so many bytes; `None` if the file would take more than `most` bytes of the disk.
    pub fn take(self: &Arc<Self>, length: usize, most: u64) -> Option<Slot> {
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
        Some(Slot {
            of: Arc::clone(self),
            number,
            has,
            bytes,
        })
    }

    /// How many slots are taken.
    pub fn taken(&self) -> usize {
        self.slots.lock().taken
    }

    /// Bytes of the disk that the slots have.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.slots.lock().bytes
    }
}

impl Slot {
    /// How many bytes the file grows by when the slot is written.
    pub const fn growth(&self) -> u64 {
        self.bytes - self.has
    }

    const fn offset(&self) -> u64 {
        self.number.saturating_mul(WRITE_BYTES_MAX as u64)
    }

    /// Puts bytes into it, no more than it was taken for.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.of.file.write_at(self.offset(), data)?;
        self.has = self.bytes;
        Ok(())
    }

    /// The first bytes in it.
    pub fn read(&self, length: usize) -> io::Result<Arc<[u8]>> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, length).collect();
        let into = Arc::get_mut(&mut bytes).unwrap_or_default();
        match self.of.file.read_at(self.offset(), into)? {
            read if read == length => Ok(bytes),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Changes the bytes behind the back of the keeper.
    #[cfg(test)]
    pub fn damage(&self) {
        self.of.file.write_at(self.offset(), b"damage").unwrap();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.of.slots.lock();
        slots.taken -= 1;
        slots.bytes -= self.growth();
        slots.free.insert((self.has, self.number));
    }
}
