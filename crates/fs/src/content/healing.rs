//! The repair of blocks that a disk has changed by itself: the bytes that their sums speak of are put back.
//!
//! The file keeps the content that it should have, so no observer is told: the sums stay as they are, and so do size and times. A
//! kill in the middle leaves a block that does not fit its sum, as before. If the sums were told of a write, the next process
//! would make a sum of the bytes that the kill has left.
//!
//! Invariant: the caller has compared the bytes with the sum of each block, and keeps all changes of the blocks away.

use lockstep_types::{Errno, Ino};

use super::ContentStore;
use crate::error::{OpError, StoreError};

impl ContentStore {
    /// Puts bytes back and syncs them. They lie within the content.
    ///
    /// # Errors
    /// If there is no such content, or the disk fails or is full.
    pub fn heal(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
        self.disk.check_not_poisoned()?;
        let content = self.open_content(ino)?.ok_or(Errno::Stale)?;
        let stat = content.stat().map_err(StoreError::content("stat", ino))?;
        if offset.saturating_add(data.len() as u64) > stat.length {
            return Err(Errno::Invalid.into());
        }
        let written = content.write_at(offset, data);
        self.sync.dirty().content_changed(ino);
        written.map_err(StoreError::content("heal", ino))?;
        Ok(self.sync_file(ino)?)
    }
}
