//! Files with unflushed writes, and the time of the last write to each, in memory that survives the process.
//!
//! A write changes size and times of a file. To write them to the namespace each time would cost a record per write. To
//! keep them in the memory of the process alone would lose them with the process. So each file that is being written
//! owns a slot of this table: to store a slot costs a memory copy. A slot says "the length of the content on disk is
//! the truth for this file, and this was its last write".
//!
//! Invariants: a slot is stored before the first byte of a write reaches the content; it is cleared only after a
//! durable checkpoint has taken size and times into the namespace. A torn slot (its hash does not match) names no file:
//! then every file takes its size from its content.

use std::sync::Arc;

use lockstep_types::backing::BackingTable;
use lockstep_types::{Generation, Hash128, Ino, Osn, Timestamp};
use parking_lot::Mutex;

/// Bytes of a slot: 44 of data, 16 of hash, 4 spare.
const SLOT_BYTES: usize = 64;
const BODY_BYTES: usize = 44;

/// Number of files that may have unflushed writes at once; more force a checkpoint.
pub const SLOTS: usize = 16 * 1024;
/// Slots that threads may take at the same moment, after each thread has seen a free slot.
const SLOTS_SPARE: usize = 64;
/// Slots that are read at once; a divisor of [`SLOTS`].
const READ_SLOTS: usize = 256;
/// A run of free slots.
static NO_SLOTS: [u8; READ_SLOTS * SLOT_BYTES] = [0; READ_SLOTS * SLOT_BYTES];

/// Bytes the table takes.
pub const TABLE_BYTES: usize = SLOTS * SLOT_BYTES;

/// The number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotNumber(usize);

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedSlot {
    /// The file.
    pub ino: Ino,
    /// Its last completed write, if it has one: number and time.
    pub last_write: Option<(Osn, Timestamp)>,
}

/// Slots that an earlier process has left.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftoverSlots {
    /// Slots of files whose records may be behind.
    pub slots: Vec<(SlotNumber, UnflushedSlot)>,
    /// Torn slots: a process was stopped while it stored the slot, or power was lost.
    pub torn: Vec<SlotNumber>,
}

impl LeftoverSlots {
    /// Numbers of all leftover slots, to be cleared once they are no longer needed.
    pub fn numbers(&self) -> impl Iterator<Item = SlotNumber> {
        let slots = self.slots.iter().map(|(number, _)| number);
        slots.chain(&self.torn).copied()
    }
}

/// The table of slots.
pub struct UnflushedTable {
    table: Arc<dyn BackingTable>,
    free: Mutex<Vec<usize>>,
}

impl UnflushedTable {
    /// Opens the table and reads the slots that the last process has left.
    pub fn open(table: Arc<dyn BackingTable>) -> (Self, LeftoverSlots) {
        let mut free = Vec::with_capacity(SLOTS);
        let mut left = LeftoverSlots::default();
        // Many slots at once: a call for each slot costs far more than its decoding.
        let mut bytes = [0; READ_SLOTS * SLOT_BYTES];
        for first in (0..SLOTS).step_by(READ_SLOTS).rev() {
            table.load(first * SLOT_BYTES, &mut bytes);
            let numbers = first..first + READ_SLOTS;
            if bytes == NO_SLOTS {
                free.extend(numbers.rev());
                continue;
            }
            for (number, bytes) in numbers.zip(bytes.as_chunks().0).rev() {
                if *bytes == [0; SLOT_BYTES] {
                    free.push(number);
                    continue;
                }
                match decode(bytes) {
                    Some(slot) => left.slots.push((SlotNumber(number), slot)),
                    None => left.torn.push(SlotNumber(number)),
                }
            }
        }
        let free = Mutex::new(free);
        (Self { table, free }, left)
    }

    /// Takes a free slot for `slot`; `None` when all are in use.
    pub fn take(&self, slot: &UnflushedSlot) -> Option<SlotNumber> {
        let number = SlotNumber(self.free.lock().pop()?);
        self.store(number, slot);
        Some(number)
    }

    /// Replaces the content of a slot.
    pub fn store(&self, number: SlotNumber, slot: &UnflushedSlot) {
        self.table.store(number.0 * SLOT_BYTES, &encode(slot));
    }

    /// Clears a slot for reuse.
    pub fn clear(&self, number: SlotNumber) {
        self.table.store(number.0 * SLOT_BYTES, &[0; SLOT_BYTES]);
        self.free.lock().push(number.0);
    }

    /// Whether there are slots for all threads that may take one at the same moment.
    pub fn has_free(&self) -> bool {
        self.free.lock().len() > SLOTS_SPARE
    }

    /// Whether so many slots are in use that a checkpoint should free some.
    pub fn is_filling(&self) -> bool {
        self.free.lock().len() < SLOTS / 2
    }
}

fn encode(slot: &UnflushedSlot) -> [u8; SLOT_BYTES] {
    let (osn, time) = slot.last_write.unwrap_or((Osn::ZERO, Timestamp::default()));
    let mut bytes = [0; SLOT_BYTES];
    let parts: [&[u8]; 6] = [
        &slot.ino.get().to_le_bytes(),
        &osn.generation.get().to_le_bytes(),
        &osn.sequence.to_le_bytes(),
        &time.secs.to_le_bytes(),
        &time.nanos.to_le_bytes(),
        &u64::from(slot.last_write.is_some()).to_le_bytes(),
    ];
    let body = parts.concat();
    let (head, tail) = bytes.split_at_mut(BODY_BYTES);
    head.copy_from_slice(&body);
    if let Some(hash) = tail.first_chunk_mut::<16>() {
        *hash = Hash128::of(&body).0;
    }
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<UnflushedSlot> {
    let (body, tail) = bytes.split_at_checked(BODY_BYTES)?;
    if *tail.first_chunk::<16>()? != Hash128::of(body).0 {
        return None;
    }
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?))
    };
    let nanos = u32::from_le_bytes(body.get(32..36)?.try_into().ok()?);
    let osn = Osn {
        generation: Generation::new(word(8)?)?,
        sequence: word(16)?,
    };
    let time = Timestamp {
        secs: word(24)?.cast_signed(),
        nanos,
    };
    Some(UnflushedSlot {
        ino: Ino::new(word(0)?)?,
        last_write: (word(36)? != 0).then_some((osn, time)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory(Mutex<Vec<u8>>);

    impl BackingTable for Memory {
        fn len(&self) -> usize {
            self.0.lock().len()
        }
        fn load(&self, offset: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0.lock()[offset..offset + into.len()]);
        }
        fn store(&self, offset: usize, data: &[u8]) {
            self.0.lock()[offset..offset + data.len()].copy_from_slice(data);
        }
    }

    fn slot(ino: u64) -> UnflushedSlot {
        UnflushedSlot {
            ino: Ino::new(ino).unwrap(),
            last_write: Some((
                Osn {
                    generation: Generation::FIRST,
                    sequence: 7 + ino,
                },
                Timestamp { secs: -5, nanos: 9 },
            )),
        }
    }

    #[test]
    fn slots_outlive_the_table_object() {
        let memory = Arc::new(Memory(Mutex::new(vec![0; TABLE_BYTES])));
        let (table, found) = UnflushedTable::open(memory.clone());
        assert_eq!(found, LeftoverSlots::default());
        let one = table.take(&slot(1)).unwrap();
        let two = table.take(&slot(2)).unwrap();
        table.store(two, &slot(22));
        table.clear(one);
        drop(table);
        let (_, found) = UnflushedTable::open(memory.clone());
        assert_eq!(found.slots, [(two, slot(22))]);
        memory.0.lock()[two.0 * SLOT_BYTES + 3] ^= 1;
        let left = UnflushedTable::open(memory).1;
        assert!(left.slots.is_empty(), "a torn slot names no file");
        assert_eq!(left.torn, [two]);
    }

    #[test]
    fn a_file_without_completed_write_keeps_its_mark() {
        let mark = UnflushedSlot {
            last_write: None,
            ..slot(3)
        };
        assert_eq!(decode(&encode(&mark)), Some(mark));
    }
}
