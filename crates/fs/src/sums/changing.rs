//! The table of the changing blocks: memory that outlives the process.
//!
//! Invariants:
//! - An entry is there from before the bytes of its blocks change until their sums are in place.
//! - A torn entry counts nothing: the process was stopped while it made the entry, before the change, or while it took the
//!   entry away, after the change. Nor does an entry that was made with another secret, whose sums are void.

use std::ops::Range;
use std::sync::Arc;

use lockstep_sums::SumKey;
use lockstep_types::Ino;
use lockstep_types::backing::{Backing, BackingTable};
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::paths::CHANGING_FILE;

const ENTRY_BYTES: usize = 32;
/// Number of changes that may be under way at once, and one for the end of the era.
const ENTRIES: usize = 512;
const TABLE_BYTES: usize = ENTRIES * ENTRY_BYTES;
/// The entry that says that no sum of this era counts any more.
const END_OF_ERA: usize = ENTRIES - 1;
/// In the first word of a change that makes zeros.
const MAKES_ZEROS: u64 = 1 << 32;

/// Blocks of a file that were changing when the process was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangingBlocks {
    pub ino: Ino,
    pub blocks: Range<u32>,
    /// The new bytes are zeros.
    pub makes_zeros: bool,
}

/// The number of an entry.
pub(super) struct EntryNumber(usize);

/// See the head of this file.
pub(super) struct ChangingTable {
    table: Arc<dyn BackingTable>,
    free: Mutex<Vec<usize>>,
}

/// The entries that the last process has left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InterruptedChanges {
    pub changes: Vec<ChangingBlocks>,
    /// No sum of this era counts.
    pub is_era_over: bool,
}

impl ChangingTable {
    /// Opens the table, and reads what the last process has left.
    pub fn open(
        backing: &dyn Backing,
        key: &SumKey,
    ) -> Result<(Self, InterruptedChanges), StoreError> {
        let table = backing.open_table(CHANGING_FILE, TABLE_BYTES);
        let table = table.map_err(StoreError::disk("open", CHANGING_FILE))?;
        let mut bytes = [0; TABLE_BYTES];
        table.load(0, &mut bytes);
        let entries = bytes.as_chunks::<ENTRY_BYTES>().0;
        let is_era_over = entries
            .get(END_OF_ERA)
            .is_some_and(|entry| *entry != [0; ENTRY_BYTES]);
        let left = InterruptedChanges {
            changes: entries
                .iter()
                .filter_map(|entry| decode(entry, key))
                .collect(),
            is_era_over,
        };
        let free = Mutex::new((0..END_OF_ERA).rev().collect());
        Ok((Self { table, free }, left))
    }

    /// Drops what the last process has left.
    pub fn clear(&self) {
        self.table.store(0, &[0; TABLE_BYTES]);
    }

    /// Notes blocks that are about to change; `None` if too many changes are under way.
    pub fn note(&self, changing: &ChangingBlocks, key: &SumKey) -> Option<EntryNumber> {
        let number = self.free.lock().pop()?;
        if !is_active(Mutant::ChangingUnnoted) {
            self.table
                .store(number * ENTRY_BYTES, &encode(changing, key));
        }
        Some(EntryNumber(number))
    }

    /// The sums of these blocks are in place.
    pub fn remove(&self, EntryNumber(number): EntryNumber) {
        self.table.store(number * ENTRY_BYTES, &[0; ENTRY_BYTES]);
        self.free.lock().push(number);
    }

    /// No sum of this era counts any more, for the next process either.
    pub fn end_era(&self) {
        self.table
            .store(END_OF_ERA * ENTRY_BYTES, &[1; ENTRY_BYTES]);
    }
}

fn encode(changing: &ChangingBlocks, key: &SumKey) -> [u8; ENTRY_BYTES] {
    let kind = if changing.makes_zeros { MAKES_ZEROS } else { 0 };
    let words = [
        changing.ino.get(),
        u64::from(changing.blocks.start) | kind,
        u64::from(changing.blocks.end),
    ];
    let mut bytes = [0; ENTRY_BYTES];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    let check = check_of(&bytes, key);
    if let Some(place) = bytes.last_chunk_mut() {
        *place = check;
    }
    bytes
}

fn decode(bytes: &[u8; ENTRY_BYTES], key: &SumKey) -> Option<ChangingBlocks> {
    if *bytes.last_chunk::<8>()? != check_of(bytes, key) {
        return None;
    }
    let [ino, first, end, _] = *bytes.as_chunks::<8>().0 else {
        return None;
    };
    let (first, end) = (u64::from_le_bytes(first), u64::from_le_bytes(end));
    let block = |word: u64| u32::try_from(word).ok();
    Some(ChangingBlocks {
        ino: Ino::new(u64::from_le_bytes(ino))?,
        blocks: block(first & !MAKES_ZEROS)?..block(end)?,
        makes_zeros: first & MAKES_ZEROS != 0,
    })
}

/// XXH3 is enough: it shall find a torn entry, and the bytes of an entry come from no one but this node.
fn check_of(bytes: &[u8; ENTRY_BYTES], key: &SumKey) -> [u8; 8] {
    let (body, _) = bytes.split_at(ENTRY_BYTES - 8);
    key.piece(body).to_le_bytes()
}
