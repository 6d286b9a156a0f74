//! Reads of content, and the search for data and holes.

use lockstep_types::{Errno, Ino};

use super::ContentStore;
use crate::error::{OpError, StoreError};
use crate::namespace::Namespace;

/// The kinds of place that `lseek` finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// Data.
    Data,
    /// A hole.
    Hole,
}

/// Reads.
impl ContentStore {
    /// Reads into `buffer` from `offset`; fewer bytes only at the end of the file.
    pub fn read(
        &self,
        namespace: &Namespace,
        ino: Ino,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, OpError> {
        let file = self.file(namespace, ino)?;
        if file.is_indeterminate() {
            return Err(Errno::Io.into());
        }
        let left = file.size().saturating_sub(offset);
        let wanted = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let Some(part) = buffer.get_mut(..wanted).filter(|part| !part.is_empty()) else {
            return Ok(0);
        };
        let read = match file.content(self.disk.backing().as_ref())? {
            Some(content) => content
                .read_at(offset, part)
                .map_err(StoreError::content("read", ino))?,
            None => 0,
        };
        // The bytes between the end of the content and the size were never written.
        part.iter_mut().skip(read).for_each(|byte| *byte = 0);
        Ok(wanted)
    }

    /// Next data or hole of a file at or after `offset`.
    pub fn seek(
        &self,
        namespace: &Namespace,
        ino: Ino,
        offset: u64,
        target: SeekFor,
    ) -> Result<u64, OpError> {
        let file = self.file(namespace, ino)?;
        let size = file.size();
        if offset >= size {
            return Err(Errno::NoDevice.into());
        }
        let found = match (file.content(self.disk.backing().as_ref())?, target) {
            (None, SeekFor::Data) => None,
            (None, SeekFor::Hole) => Some(offset),
            (Some(content), SeekFor::Data) => content
                .seek_data(offset)
                .map_err(StoreError::content("seek", ino))?,
            (Some(content), SeekFor::Hole) => content
                .seek_hole(offset)
                .map_err(StoreError::content("seek", ino))?,
        };
        match (found, target) {
            (Some(found), SeekFor::Data) if found < size => Ok(found),
            (_, SeekFor::Data) => Err(Errno::NoDevice.into()),
            (found, SeekFor::Hole) => Ok(found.unwrap_or(size).min(size)),
        }
    }
}
