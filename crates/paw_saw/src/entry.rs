//! One entry and its encoding in a slot of the table.
//!
//! A slot is 64 bytes: 16 bytes of checksum, then inode, generation, sequence, offset, length (u64 each) and 8 bytes
//! that name the format, all little endian. A checksum of zeros means empty; the words between checksum and format then
//! have no meaning.
//!
//! An insertion stores the words and then the checksum; a removal stores zeros in the checksum. If a process stops
//! between two bytes, each byte of the checksum is therefore either right or zero. Such a slot is treated as the entry:
//! the entry's write had not begun or was done on both sides, and its blocks may be sent once more.
//!
//! Invariant: a stopped process leaves no other incomplete slot. Every other incomplete slot is damaged, and never
//! treated as empty. A slot of zeros is damaged, too: creation writes the format into all slots.

use lockstep_types::{Generation, Hash128, Ino, Osn};
use serde::{Deserialize, Serialize};

/// Bytes of one slot: a cache line.
pub const SLOT_BYTES: usize = 64;

/// Bytes at the start of a slot that hold its checksum.
pub(crate) const CHECKSUM_BYTES: usize = 16;

/// The words after the checksum.
const WORDS: usize = (SLOT_BYTES - CHECKSUM_BYTES) / 8;

/// Last word of every slot; another number is another format.
const FORMAT: u64 = u64::from_le_bytes(*b"LSWRITE1");

/// A write that waits for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InFlightEntry {
    /// The written file.
    pub ino: Ino,
    /// The write's number.
    pub osn: Osn,
    /// The first written byte.
    pub offset: u64,
    /// The number of written bytes.
    pub length: u32,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// No entry.
    Empty,
    /// An entry.
    Entry(InFlightEntry),
    /// Neither empty nor an entry.
    Damaged,
}

/// The bytes of an empty slot.
pub(crate) const EMPTY: [u8; SLOT_BYTES] = {
    let mut slot = [0; SLOT_BYTES];
    let (_, format) = slot.split_at_mut(SLOT_BYTES - 8);
    format.copy_from_slice(&FORMAT.to_le_bytes());
    slot
};

impl InFlightEntry {
    /// The bytes of a slot with this entry.
    pub(crate) fn encode(&self) -> [u8; SLOT_BYTES] {
        let words = [
            self.ino.get(),
            self.osn.generation.get(),
            self.osn.sequence,
            self.offset,
            u64::from(self.length),
            FORMAT,
        ];
        let mut slot = [0; SLOT_BYTES];
        let (checksum, body) = slot.split_at_mut(CHECKSUM_BYTES);
        for (place, word) in body.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        checksum.copy_from_slice(&Hash128::of(body).0);
        slot
    }
}

impl Content {
    /// The meaning of a slot's bytes.
    pub(crate) fn decode(slot: &[u8; SLOT_BYTES]) -> Self {
        let (checksum, body) = slot.split_at(CHECKSUM_BYTES);
        if checksum.iter().all(|&byte| byte == 0) {
            return if body.ends_with(&FORMAT.to_le_bytes()) {
                Self::Empty
            } else {
                Self::Damaged
            };
        }
        let right = Hash128::of(body).0;
        let mut pairs = checksum.iter().zip(right);
        match decode_body(body) {
            Some(entry) if pairs.all(|(&found, right)| found == right || found == 0) => {
                Self::Entry(entry)
            }
            _ => Self::Damaged,
        }
    }
}

fn decode_body(body: &[u8]) -> Option<InFlightEntry> {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(body.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [ino, generation, sequence, offset, length, FORMAT] = words else {
        return None;
    };
    Some(InFlightEntry {
        ino: Ino::new(ino)?,
        osn: Osn {
            generation: Generation::new(generation)?,
            sequence,
        },
        offset,
        length: u32::try_from(length).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> InFlightEntry {
        InFlightEntry {
            ino: Ino::new(7).unwrap(),
            osn: Osn {
                generation: Generation::new(3).unwrap(),
                sequence: 99,
            },
            offset: 1 << 43,
            length: 1 << 20,
        }
    }

    #[test]
    fn round_trips_and_knows_every_flipped_bit() {
        let slot = entry().encode();
        assert_eq!(Content::decode(&slot), Content::Entry(entry()));
        for at in 0..SLOT_BYTES {
            for bit in 0..8 {
                let mut flipped = slot;
                flipped[at] ^= 1 << bit;
                let expected = if flipped[at] == 0 && at < CHECKSUM_BYTES {
                    // An interrupted removal leaves such a slot: the entry is sent once more, never forgotten.
                    Content::Entry(entry())
                } else {
                    Content::Damaged
                };
                assert_eq!(Content::decode(&flipped), expected, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn only_an_empty_slot_of_this_format_is_empty() {
        assert_eq!(Content::decode(&EMPTY), Content::Empty);
        assert_eq!(Content::decode(&[0; SLOT_BYTES]), Content::Damaged);
        let mut other = entry().encode();
        other[SLOT_BYTES - 1] = b'2';
        other[..CHECKSUM_BYTES].fill(0);
        assert_eq!(Content::decode(&other), Content::Damaged, "another format");
    }

    /// A stopped process may leave any part of an insertion over an old slot.
    #[test]
    fn half_an_insertion_is_empty_or_the_entry() {
        let mut before = InFlightEntry {
            offset: 5,
            ..entry()
        }
        .encode();
        before[..CHECKSUM_BYTES].fill(0);
        let after = entry().encode();
        for done in CHECKSUM_BYTES..SLOT_BYTES {
            let mut slot = before;
            slot[CHECKSUM_BYTES..done].copy_from_slice(&after[CHECKSUM_BYTES..done]);
            assert_eq!(Content::decode(&slot), Content::Empty, "{done} bytes");
        }
        for done in 1..=CHECKSUM_BYTES {
            let mut slot = after;
            slot[done..CHECKSUM_BYTES].fill(0);
            let expected = Content::Entry(entry());
            assert_eq!(Content::decode(&slot), expected, "{done} bytes");
        }
    }

    #[test]
    fn half_a_removal_is_the_entry_or_empty() {
        let slot = entry().encode();
        for done in 0..=CHECKSUM_BYTES {
            let mut half = slot;
            half[..done].fill(0);
            let expected = match done {
                CHECKSUM_BYTES => Content::Empty,
                _ => Content::Entry(entry()),
            };
            assert_eq!(Content::decode(&half), expected);
        }
    }
}
