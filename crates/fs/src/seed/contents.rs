//! The list of the contents of a seed: number, size and sum of each regular file that is not empty, by number.

use std::io;

use blake3::Hash;
use lockstep_types::Ino;
use lockstep_types::backing::Backing;

use super::error::SeedError;
use super::part::{PartReader, PartWriter, SeedPart};

/// The file in the directory of a seed.
pub(super) const CONTENTS_FILE: &str = "contents";
/// Bytes of an entry: two numbers with the highest byte first, and the sum.
const ENTRY_BYTES: usize = 48;

/// One content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentEntry {
    pub ino: Ino,
    /// Length in bytes, and not zero.
    pub size: u64,
    /// The sum of its blocks.
    pub sum: Hash,
}

/// Appends an entry.
pub(super) fn push(list: &mut PartWriter, entry: &ContentEntry) -> io::Result<()> {
    let ContentEntry { ino, size, sum } = entry;
    list.push(&ino.get().to_be_bytes())?;
    list.push(&size.to_be_bytes())?;
    list.push(sum.as_bytes())
}

/// Reads the list.
pub(super) struct ContentList {
    part: PartReader,
    last: Option<Ino>,
}

impl ContentList {
    /// Opens the list of a seed.
    pub fn open(seed: &dyn Backing, part: &SeedPart) -> Result<Self, SeedError> {
        let part = PartReader::open(seed, CONTENTS_FILE, part)?;
        Ok(Self { part, last: None })
    }

    /// The next content; `None` at the end of the list.
    pub fn next(&mut self) -> Result<Option<ContentEntry>, SeedError> {
        let mut bytes = [0; ENTRY_BYTES];
        if !self.part.take(&mut bytes)? {
            return Ok(None);
        }
        let ([ino, size, ..], _) = bytes.as_chunks::<8>() else {
            unreachable!("an entry has 48 bytes")
        };
        let ino = Ino::new(u64::from_be_bytes(*ino)).filter(|ino| Some(*ino) > self.last);
        let Some(ino) = ino else {
            return Err(self.part.damaged("its numbers are out of order"));
        };
        self.last = Some(ino);
        let sum = bytes.last_chunk().map_or([0; 32], |sum| *sum);
        Ok(Some(ContentEntry {
            ino,
            size: u64::from_be_bytes(*size),
            sum: Hash::from_bytes(sum),
        }))
    }

    /// Checks the sum of the list, at its end.
    pub fn check(self) -> Result<(), SeedError> {
        self.part.check()
    }
}
