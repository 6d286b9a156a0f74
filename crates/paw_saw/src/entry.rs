//! One entry and its form in a slot of the table.
//!
//! A slot is 64 bytes: 16 of checksum, then inode, generation, sequence, offset, length (u64 each)
//! and 8 bytes that name the format, all little endian. A checksum of zeros means empty, whatever
//! follows it.
//!
//! Invariant: a slot decodes as an entry only if every byte of it was written by the same
//! insertion. So a process may stop between any two bytes of an insertion or a removal: what it
//! leaves is empty, torn, or the whole entry, never another one.

use lockstep_types::{FrameHash, Generation, Ino, Osn};
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
pub struct Entry {
    /// The file written.
    pub ino: Ino,
    /// The number of the write.
    pub osn: Osn,
    /// First byte written.
    pub offset: u64,
    /// Bytes written.
    pub length: u32,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing.
    Empty,
    /// An entry.
    Entry(Entry),
    /// An insertion or a removal that the process did not finish, or damage.
    Torn,
}

impl Entry {
    /// The bytes of a slot that holds this entry.
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
        checksum.copy_from_slice(&FrameHash::of(body).0);
        slot
    }
}

impl Content {
    /// What these bytes of a slot mean.
    pub(crate) fn decode(slot: &[u8; SLOT_BYTES]) -> Self {
        let (checksum, body) = slot.split_at(CHECKSUM_BYTES);
        if checksum.iter().all(|&byte| byte == 0) {
            Self::Empty
        } else if checksum == FrameHash::of(body).0 {
            decode_body(body).map_or(Self::Torn, Self::Entry)
        } else {
            Self::Torn
        }
    }
}

fn decode_body(body: &[u8]) -> Option<Entry> {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(body.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [ino, generation, sequence, offset, length, FORMAT] = words else {
        return None;
    };
    Some(Entry {
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

    fn entry() -> Entry {
        Entry {
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
    fn round_trips_and_knows_every_flipped_byte() {
        let slot = entry().encode();
        assert_eq!(Content::decode(&slot), Content::Entry(entry()));
        for at in 0..SLOT_BYTES {
            let mut flipped = slot;
            flipped[at] ^= 0x10;
            assert_eq!(Content::decode(&flipped), Content::Torn, "byte {at}");
        }
    }

    /// Whatever subset of the bytes of an insertion a stopped process leaves over an old slot.
    #[test]
    fn half_an_insertion_is_never_an_entry() {
        let old = Entry {
            offset: 5,
            ..entry()
        };
        let mut before = old.encode();
        before[..CHECKSUM_BYTES].fill(0);
        let after = entry().encode();
        for done in 0..SLOT_BYTES {
            for (first, second) in [(&after, &before), (&before, &after)] {
                let mut slot = *second;
                slot[..done].copy_from_slice(&first[..done]);
                let content = Content::decode(&slot);
                let whole = slot == after;
                assert_eq!(content == Content::Entry(entry()), whole, "{done} bytes");
                assert!(whole || !matches!(content, Content::Entry(_)));
            }
        }
    }

    #[test]
    fn half_a_removal_is_the_entry_or_nothing() {
        let slot = entry().encode();
        for done in 0..=CHECKSUM_BYTES {
            let mut half = slot;
            half[..done].fill(0);
            let expected = match done {
                0 => Content::Entry(entry()),
                CHECKSUM_BYTES => Content::Empty,
                _ => Content::Torn,
            };
            assert_eq!(Content::decode(&half), expected);
        }
    }
}
