//! The slot of an inode: its file sum, the state of its block sums, and the sums of its first blocks.
//!
//! A sum is stored as a number of 8 bytes, its *entry*. An entry of zero is what a new file of the disk has everywhere: outside
//! of the *void range* of the slot it says that the block has only zeros, within the range that the sum is void. Two other
//! numbers say the same in every place. A block that has one of these two numbers as its sum is void, once in 2^63.
//!
//! Pure: no file, no lock.

use std::ops::Range;

use lockstep_sums::{BlockSum, FileSum, SumKey};
use lockstep_types::Ino;

/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = 256;
/// Number of blocks whose entries are in the slot.
pub(super) const SLOT_BLOCKS: u32 = 26;
const HEAD_BYTES: usize = 48;
const ENTRIES: usize = SLOT_BLOCKS as usize;

/// The sum is void.
const VOID: u64 = u64::MAX;
/// The block has only zeros.
const ZEROS: u64 = u64::MAX - 1;

/// The slot says neither file sum nor number of void blocks.
const IS_BEHIND: u32 = 1;

/// The number of an era. Slots of another era are void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SumEra(pub u64);

/// The state of the sum of one block: `None` if it is void.
pub(super) type BlockState = Option<BlockSum>;

/// The state that an entry says.
pub(super) fn state_of(entry: u64, is_in_void: bool) -> BlockState {
    match entry {
        VOID => None,
        0 if is_in_void => None,
        0 | ZEROS => Some(BlockSum::ZEROS),
        sum => Some(sum.into()),
    }
}

/// The entry that says this.
pub(super) fn entry_of(state: BlockState, is_in_void: bool) -> u64 {
    match (state.map(BlockSum::get), is_in_void) {
        (None, true) | (Some(0), false) => 0,
        (Some(0), true) => ZEROS,
        (None | Some(VOID | ZEROS), _) => VOID,
        (Some(sum), _) => sum,
    }
}

/// The state that an entry can say: of two sums it says nothing.
pub(super) fn storable(state: BlockState) -> BlockState {
    state.filter(|sum| !matches!(sum.get(), VOID | ZEROS))
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SumSlot {
    pub era: SumEra,
    /// The sum of the known blocks.
    pub sum: FileSum,
    /// The blocks in which an entry of zero says void.
    pub void: Range<u32>,
    /// Number of void blocks.
    pub void_blocks: u32,
    /// File sum and number are to be made anew from the entries.
    pub is_behind: bool,
    pub entries: [u64; ENTRIES],
}

impl SumSlot {
    /// The slot of a file with so many blocks, of which nothing is known.
    pub fn unknown(era: SumEra, blocks: u32) -> Self {
        Self {
            era,
            sum: FileSum::ZEROS,
            void: 0..blocks,
            void_blocks: blocks,
            is_behind: false,
            entries: [0; ENTRIES],
        }
    }

    /// The bytes of the slot, with a check for this inode.
    pub fn encode(&self, key: &SumKey, ino: Ino) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let flags = if self.is_behind { IS_BEHIND } else { 0 };
        put(&mut bytes, 0, &self.sum.to_bytes());
        put(&mut bytes, 16, &self.era.0.to_le_bytes());
        put(&mut bytes, 24, &self.void.start.to_le_bytes());
        put(&mut bytes, 28, &self.void.end.to_le_bytes());
        put(&mut bytes, 32, &self.void_blocks.to_le_bytes());
        put(&mut bytes, 36, &flags.to_le_bytes());
        for (number, entry) in self.entries.iter().enumerate() {
            put(&mut bytes, HEAD_BYTES + number * 8, &entry.to_le_bytes());
        }
        let check = check_of(&mut bytes, key, ino);
        put(&mut bytes, CHECK, &check);
        bytes
    }

    /// Reads a slot of this inode; `None` if it is of another era, damaged, or was never stored.
    pub fn decode(bytes: &[u8; SLOT_BYTES], key: &SumKey, ino: Ino, era: SumEra) -> Option<Self> {
        let found = SumEra(u64::from_le_bytes(take(bytes, 16)?));
        if found != era {
            return None;
        }
        let mut checked = *bytes;
        if take::<8>(bytes, CHECK)? != check_of(&mut checked, key, ino) {
            return None;
        }
        let word = |at| Some(u32::from_le_bytes(take(bytes, at)?));
        let mut entries = [0; ENTRIES];
        for (number, entry) in entries.iter_mut().enumerate() {
            *entry = u64::from_le_bytes(take(bytes, HEAD_BYTES + number * 8)?);
        }
        Some(Self {
            era: found,
            sum: FileSum::from_bytes(take(bytes, 0)?),
            void: word(24)?..word(28)?,
            void_blocks: word(32)?,
            is_behind: word(36)? & IS_BEHIND != 0,
            entries,
        })
    }

    /// Whether an entry of zero says void for this block.
    pub fn is_in_void(&self, block: u32) -> bool {
        self.void.contains(&block)
    }

    /// The void range once each block of `known` has an entry that says more than zero does in the range.
    pub fn void_without(&self, known: &Range<u32>) -> Range<u32> {
        let mut void = self.void.clone();
        if known.start <= void.start && void.start < known.end {
            void.start = known.end.min(void.end);
        }
        if known.start < void.end && void.end <= known.end {
            void.end = known.start.max(void.start);
        }
        if void.is_empty() { 0..0 } else { void }
    }
}

const CHECK: usize = 40;

/// The check of a slot, whose place of the check it overwrites with the number of the inode.
fn check_of(bytes: &mut [u8; SLOT_BYTES], key: &SumKey, ino: Ino) -> [u8; 8] {
    put(bytes, CHECK, &ino.get().to_le_bytes());
    key.piece(bytes).to_le_bytes()
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: &[u8; N]) {
    if let Some(place) = bytes.get_mut(at..at + N) {
        place.copy_from_slice(value);
    }
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use lockstep_sums::SumSecret;

    use super::*;

    #[test]
    fn an_entry_says_what_was_stored() {
        for is_in_void in [false, true] {
            for state in [None, Some(0), Some(1), Some(u64::MAX - 2)] {
                let state = state.map(BlockSum::from);
                let entry = entry_of(state, is_in_void);
                assert_eq!(state_of(entry, is_in_void), state, "{is_in_void}");
            }
            for sum in [VOID, ZEROS] {
                let entry = entry_of(Some(sum.into()), is_in_void);
                assert_eq!(state_of(entry, is_in_void), None);
                assert_eq!(storable(Some(sum.into())), None);
            }
        }
    }

    #[test]
    fn a_slot_counts_for_its_inode_and_its_era_only() {
        let key = SumKey::new(&SumSecret::new([3; 32]));
        let ino = |number| Ino::new(number).unwrap();
        let mut slot = SumSlot::unknown(SumEra(7), 100);
        slot.entries[25] = 12;
        slot.sum = FileSum::from_bytes([9; 16]);
        slot.void_blocks = 99;
        let bytes = slot.encode(&key, ino(5));
        let read = |bytes: &[u8; SLOT_BYTES], number, era| {
            SumSlot::decode(bytes, &key, ino(number), SumEra(era))
        };
        assert_eq!(read(&bytes, 5, 7), Some(slot));
        assert_eq!(read(&bytes, 6, 7), None);
        assert_eq!(read(&bytes, 5, 8), None);
        for bit in 0..SLOT_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&bytes, 5, 7), None, "bit {bit}");
        }
        assert_eq!(read(&[0; SLOT_BYTES], 5, 7), None);
    }

    #[test]
    fn the_void_range_shrinks_at_its_borders_only() {
        let slot = SumSlot::unknown(SumEra(1), 100);
        assert_eq!(slot.void_without(&(0..10)), 10..100);
        assert_eq!(slot.void_without(&(1..10)), 0..100);
        assert_eq!(slot.void_without(&(90..u32::MAX)), 0..90);
        assert_eq!(slot.void_without(&(0..100)), 0..0);
        assert_eq!(slot.void_without(&(100..200)), 0..100);
        assert_eq!(slot.void_without(&(50..50)), 0..100);
    }
}
