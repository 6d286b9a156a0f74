//! The content of a file from its begin to its end, in pieces: data, and the zeros of holes.

use std::io;
use std::sync::Arc;

use blake3::Hasher;
use lockstep_types::backing::BackingFile;

use crate::error::{OpError, StoreError};

/// Bytes read at a time.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// A piece of the content.
pub(super) enum ContentPiece<'b> {
    /// So many zeros, which take no space.
    Hole(u64),
    /// Bytes, and the offset of the first one.
    Data(u64, &'b [u8]),
}

impl ContentPiece<'_> {
    /// Adds the bytes to a hash.
    pub fn hash(&self, hasher: &mut Hasher) {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        match self {
            Self::Data(_, bytes) => {
                hasher.update(bytes);
            }
            Self::Hole(length) => {
                let mut left = *length;
                while left > 0 {
                    let most = ZEROS.len();
                    let piece = usize::try_from(left).map_or(most, |left| left.min(most));
                    hasher.update(ZEROS.get(..piece).unwrap_or(&ZEROS));
                    left -= piece as u64;
                }
            }
        }
    }
}

/// See the head of this file.
pub(super) struct ContentReader {
    content: Option<Arc<dyn BackingFile>>,
    size: u64,
    at: u64,
    /// The end of the data at `at`.
    data_end: u64,
}

impl ContentReader {
    /// The content of a file of this size.
    pub fn new(content: Option<Arc<dyn BackingFile>>, size: u64) -> Self {
        Self {
            content,
            size,
            at: 0,
            data_end: 0,
        }
    }

    /// The next piece, in a buffer of [`PIECE_BYTES`]; `None` at the end of the file.
    pub fn next<'b>(&mut self, buffer: &'b mut [u8]) -> Result<Option<ContentPiece<'b>>, OpError> {
        if self.at >= self.size {
            return Ok(None);
        }
        if self.at >= self.data_end {
            let (from, to) = self
                .next_data()
                .map_err(StoreError::disk("seek", "content"))?;
            self.data_end = to;
            if from > self.at {
                let hole = from - self.at;
                self.at = from;
                return Ok(Some(ContentPiece::Hole(hole)));
            }
        }
        let left = usize::try_from(self.data_end - self.at).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let piece = buffer.get_mut(..wanted).unwrap_or_default();
        self.read(piece)
            .map_err(StoreError::disk("read", "content"))?;
        let offset = self.at;
        self.at += piece.len() as u64;
        Ok(Some(ContentPiece::Data(offset, piece)))
    }

    /// The next range of data; empty and at the end of the file if there is none.
    fn next_data(&self) -> io::Result<(u64, u64)> {
        let size = self.size;
        let Some(content) = &self.content else {
            return Ok((size, size));
        };
        let Some(from) = content.seek_data(self.at)?.filter(|from| *from < size) else {
            return Ok((size, size));
        };
        let to = content.seek_hole(from)?.unwrap_or(size);
        Ok((from, to.min(size)))
    }

    fn read(&self, piece: &mut [u8]) -> io::Result<()> {
        if let Some(content) = &self.content {
            let read = content.read_at(self.at, piece)?;
            // Only a file that shrinks meanwhile ends early: its missing bytes read as zeros.
            piece.get_mut(read..).unwrap_or_default().fill(0);
        }
        Ok(())
    }
}
