//! The form of a table of marks on the disk: a header, region marks in slots, and the keys of changed records.
//!
//! | Place | Form |
//! |---|---|
//! | first 4 KiB | the header: length (2 bytes), body (postcard), then the hash of the body (16 bytes) |
//! | first half of the rest | slots of 32 bytes: inode, region, parts, first part of a cut, then a hash of these (8 bytes) |
//! | second half of the rest | keys, one after the other: length (2 bytes), key, then a hash of the key (8 bytes); zeros behind |
//!
//! A process may stop in the middle of a change, and a disk may flip a bit. So each piece has a hash, and a piece that does not
//! fit counts as much as it could have said: a slot as all content, a key as all records, and the header as no table.

use lockstep_types::{BootId, Hash128, Ino};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of this form.
pub(super) const VERSION: u16 = 2;
/// Bytes of the header's place.
pub(super) const HEADER_BYTES: usize = 4096;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = 32;
/// Bytes of a slot before its hash.
const MARK_BYTES: usize = 24;
/// The region in the slot of a cut.
const CUT: u32 = u32::MAX;
/// Bytes of the hash of a slot, and of a key.
const CHECK_BYTES: usize = 8;
/// Bytes of the length before a key.
const LENGTH_BYTES: usize = 2;

/// The opening of the store to which a table belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TableStamp {
    /// The run of the machine in which the table is memory.
    pub boot: BootId,
    /// The number of the opening.
    pub epoch: u32,
    /// The table was left by an earlier opening, and the store notes its next number at this moment: each later number counts.
    pub is_opening: bool,
    /// The opening has put the table on stable storage, and ended.
    pub is_closed: bool,
}

/// The header of a table, with the words of its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header<T> {
    pub version: u16,
    /// Slots of the table. A table of another length has its keys in another place.
    pub slots: usize,
    pub stamp: TableStamp,
    /// Any record may differ.
    pub all_records: bool,
    /// All files from this number on are marked.
    pub files_from: Option<u64>,
    pub owner: T,
}

/// The marked content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Parts of one region, by their bits.
    Region(u32, u16),
    /// Everything from this part on.
    From(u64),
}

/// A slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub ino: Ino,
    pub mark: Mark,
}

/// A slot as it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundSlot {
    Free,
    Used(Slot),
    /// The hash does not fit.
    Broken,
}

impl<T: Serialize + DeserializeOwned> Header<T> {
    pub fn encode(&self) -> Vec<u8> {
        seal(&postcard::to_allocvec(self).unwrap_or_default())
    }

    /// The header in these bytes; `None` for bytes that say nothing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let found: Self = postcard::from_bytes(unseal(bytes)?).ok()?;
        (found.version == VERSION).then_some(found)
    }
}

/// A body with its length before and its hash behind.
pub(super) fn seal(body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap_or(0);
    let hash = Hash128::of(body).0;
    [&length.to_le_bytes()[..], body, &hash].concat()
}

/// The body at the begin of these bytes; `None` if its hash does not fit.
pub(super) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (body, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    (*rest.first_chunk()? == Hash128::of(body).0).then_some(body)
}

impl Slot {
    pub fn encode(self) -> [u8; SLOT_BYTES] {
        let (region, parts, from) = match self.mark {
            Mark::Region(region, parts) => (region, parts, 0),
            Mark::From(part) => (CUT, 0, part),
        };
        let body = [
            &self.ino.get().to_le_bytes()[..],
            &region.to_le_bytes(),
            &parts.to_le_bytes(),
            &[0; 2],
            &from.to_le_bytes(),
        ]
        .concat();
        let mut slot = [0; SLOT_BYTES];
        let (mark, check) = slot.split_at_mut(MARK_BYTES);
        mark.copy_from_slice(&body);
        check.copy_from_slice(&check_of(&body));
        slot
    }

    pub fn decode(bytes: &[u8; SLOT_BYTES]) -> FoundSlot {
        if *bytes == [0; SLOT_BYTES] {
            return FoundSlot::Free;
        }
        read_slot(bytes).map_or(FoundSlot::Broken, FoundSlot::Used)
    }
}

fn read_slot(bytes: &[u8; SLOT_BYTES]) -> Option<Slot> {
    let (body, check) = bytes.split_at_checked(MARK_BYTES)?;
    if check != check_of(body) {
        return None;
    }
    let (ino, rest) = body.split_first_chunk()?;
    let (region, rest) = rest.split_first_chunk()?;
    let (parts, rest) = rest.split_first_chunk()?;
    let region = u32::from_le_bytes(*region);
    let mark = if region == CUT {
        Mark::From(u64::from_le_bytes(*rest.last_chunk()?))
    } else {
        Mark::Region(region, u16::from_le_bytes(*parts))
    };
    let ino = Ino::new(u64::from_le_bytes(*ino))?;
    Some(Slot { ino, mark })
}

fn check_of(body: &[u8]) -> [u8; CHECK_BYTES] {
    let hash = Hash128::of(body).0;
    std::array::from_fn(|at| hash.get(at).copied().unwrap_or(0))
}

/// Adds a key to the bytes of a run of keys.
pub(super) fn add_key(run: &mut Vec<u8>, key: &[u8]) {
    let length = u16::try_from(key.len()).unwrap_or(u16::MAX);
    run.extend_from_slice(&length.to_le_bytes());
    run.extend_from_slice(key);
    run.extend_from_slice(&check_of(key));
}

/// The keys in the bytes of a table, and the number of bytes that they take.
pub(super) struct FoundKeys {
    pub keys: Vec<Vec<u8>>,
    pub length: usize,
    /// Bytes follow that are no key: there may be others.
    pub is_broken: bool,
}

/// Reads keys up to the zeros behind them.
pub(super) fn read_keys(bytes: &[u8]) -> FoundKeys {
    let mut found = FoundKeys {
        keys: Vec::new(),
        length: 0,
        is_broken: false,
    };
    let mut rest = bytes;
    while let Some((key, behind)) = split_key(rest) {
        found.keys.push(key.to_vec());
        rest = behind;
    }
    found.length = bytes.len() - rest.len();
    found.is_broken = rest.iter().any(|byte| *byte != 0);
    found
}

fn split_key(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let length = u16::from_le_bytes(*length);
    if length == 0 {
        return None;
    }
    let (key, rest) = rest.split_at_checked(length.into())?;
    let (check, rest) = rest.split_first_chunk()?;
    (*check == check_of(key)).then_some((key, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    }

    #[test]
    fn a_slot_says_what_it_said_or_is_broken() {
        let ino = Ino::new(0x1_0000_0005).unwrap();
        for mark in [Mark::Region(7, 0x8001), Mark::From(1 << 40)] {
            let slot = Slot { ino, mark };
            let bytes = slot.encode();
            assert_eq!(Slot::decode(&bytes), FoundSlot::Used(slot));
            for bit in 0..8 * SLOT_BYTES {
                let bytes = flipped(&bytes, bit).try_into().unwrap();
                assert_eq!(Slot::decode(&bytes), FoundSlot::Broken, "bit {bit}");
            }
        }
        assert_eq!(Slot::decode(&[0; SLOT_BYTES]), FoundSlot::Free);
    }

    #[test]
    fn a_flipped_bit_takes_no_key_silently() {
        let mut run = Vec::new();
        // A length with one bit, which may flip to zero.
        for key in [&b"iabcdefg"[..], &[b'd'; 16], b"x"] {
            add_key(&mut run, key);
        }
        let length = run.len();
        run.extend_from_slice(&[0; 40]);
        let whole = read_keys(&run);
        assert_eq!((whole.keys.len(), whole.length), (3, length));
        assert!(!whole.is_broken);
        for bit in 0..8 * run.len() {
            let found = read_keys(&flipped(&run, bit));
            assert!(found.is_broken, "bit {bit}");
        }
    }
}
