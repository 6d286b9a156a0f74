//! A stripe: the sums of some files in memory.
//!
//! Locks: the keeper holds the lock of the stripe for each call here.

use std::collections::HashMap;

use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;

use super::change::{blocks_of, length_of};
use super::file_sums::{FileSums, SumPlace};
use crate::error::StoreError;

/// Files of a stripe whose sums stay in memory. Each may have a descriptor.
const STRIPE_FILES_MAX: usize = 16;

/// See the head of this file.
#[derive(Default)]
pub(super) struct SumStripe(HashMap<Ino, FileSums>);

impl SumStripe {
    /// The sums of a file, if it has any in this era.
    pub fn get(
        &mut self,
        place: SumPlace<'_>,
        ino: Ino,
    ) -> Result<Option<&mut FileSums>, StoreError> {
        if !self.0.contains_key(&ino) {
            let Some(sums) = FileSums::load(place, ino)? else {
                return Ok(None);
            };
            self.insert(place, ino, sums);
        }
        Ok(self.0.get_mut(&ino))
    }

    /// The sums of a file. If it has none in this era, all its present blocks are void.
    pub fn get_or_begin(
        &mut self,
        place: SumPlace<'_>,
        ino: Ino,
        content: &dyn BackingFile,
    ) -> Result<&mut FileSums, StoreError> {
        if self.get(place, ino)?.is_none() {
            let sums = FileSums::begin(place, ino, blocks_of(length_of(content, ino)?))?;
            self.insert(place, ino, sums);
        }
        match self.0.get_mut(&ino) {
            Some(sums) => Ok(sums),
            None => unreachable!("the sums were put there under the lock"),
        }
    }

    /// Drops the sums of a file from memory, and stores nothing.
    pub fn forget(&mut self, ino: Ino) {
        self.0.remove(&ino);
    }

    /// Drops all sums from memory, and stores nothing.
    pub fn forget_all(&mut self) {
        self.0.clear();
    }

    fn insert(&mut self, place: SumPlace<'_>, ino: Ino, sums: FileSums) {
        if self.0.len() >= STRIPE_FILES_MAX {
            self.clear(place);
        }
        self.0.insert(ino, sums);
    }

    /// Takes all sums of a file away. Returns whether the file sum was that of the blocks.
    pub fn remove(&mut self, place: SumPlace<'_>, ino: Ino) -> Result<bool, StoreError> {
        let sums = match self.0.remove(&ino) {
            Some(sums) => Some(sums),
            None => FileSums::load(place, ino)?,
        };
        let is_right = match sums {
            Some(mut sums) => sums.is_sum_of_blocks(place)?,
            None => true,
        };
        place.files.clear_slot(ino)?;
        place.files.remove(ino)?;
        Ok(is_right)
    }

    /// Drops all files. A file sum that cannot be stored is made anew when the file is read again.
    pub fn clear(&mut self, place: SumPlace<'_>) {
        for (ino, mut sums) in self.0.drain() {
            if let Err(error) = sums.settle(place) {
                tracing::warn!(%ino, %error, "the sum of a file is not stored");
            }
        }
    }
}
