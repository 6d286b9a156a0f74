//! A file of a seed that is written and read from its begin to its end, with its length and its sum in the manifest.

use std::io;
use std::sync::Arc;

use blake3::Hasher;
use lockstep_types::backing::{Backing, BackingFile};
use serde::{Deserialize, Serialize};

use super::error::SeedError;
use crate::text::hex;

/// Bytes that are written or read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// The length of a file, and its BLAKE3 sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedPart {
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 of all bytes.
    pub sum: String,
}

/// Writes the file.
pub(super) struct PartWriter {
    file: Arc<dyn BackingFile>,
    written: u64,
    pending: Vec<u8>,
    hasher: Hasher,
}

impl PartWriter {
    /// A new file at `path`.
    pub fn create(seed: &dyn Backing, path: &str) -> io::Result<Self> {
        Ok(Self {
            file: seed.open_or_create(path)?,
            written: 0,
            pending: Vec::with_capacity(2 * BUFFER_BYTES),
            hasher: Hasher::new(),
        })
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() < BUFFER_BYTES {
            return Ok(());
        }
        self.write_pending()
    }

    fn write_pending(&mut self) -> io::Result<()> {
        self.hasher.update(&self.pending);
        self.file.write_at(self.written, &self.pending)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes the rest.
    pub fn finish(mut self) -> io::Result<SeedPart> {
        self.write_pending()?;
        Ok(SeedPart {
            bytes: self.written,
            sum: hex(self.hasher.finalize()),
        })
    }
}

/// Reads the file. The bytes count only once [`Self::check`] has found the sum right.
pub(super) struct PartReader {
    file: Arc<dyn BackingFile>,
    path: &'static str,
    part: SeedPart,
    read: u64,
    buffer: Vec<u8>,
    /// The bytes of the buffer that were taken.
    taken: usize,
    hasher: Hasher,
}

impl PartReader {
    /// Opens the file at `path`, whose length must be that of the manifest.
    pub fn open(
        seed: &dyn Backing,
        path: &'static str,
        part: &SeedPart,
    ) -> Result<Self, SeedError> {
        let file = match seed.open_to_read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SeedError::damaged(path, "it is missing"));
            }
            opened => opened.map_err(SeedError::reading(path))?,
        };
        let length = file.stat().map_err(SeedError::reading(path))?.length;
        if length != part.bytes {
            return Err(SeedError::length(path, length, part.bytes));
        }
        Ok(Self {
            file,
            path,
            part: part.clone(),
            read: 0,
            buffer: Vec::new(),
            taken: 0,
            hasher: Hasher::new(),
        })
    }

    /// Fills `into` with the next bytes. Returns false at the end of the file.
    pub fn take(&mut self, into: &mut [u8]) -> Result<bool, SeedError> {
        let mut filled = 0;
        while filled < into.len() {
            if self.taken == self.buffer.len() && !self.read_more()? {
                if filled == 0 {
                    return Ok(false);
                }
                return Err(self.damaged("it ends in the middle of an entry"));
            }
            let left = self.buffer.get(self.taken..).unwrap_or_default();
            let room = into.get_mut(filled..).unwrap_or_default();
            let count = left.len().min(room.len());
            for (to, from) in room.iter_mut().zip(left) {
                *to = *from;
            }
            self.taken += count;
            filled += count;
        }
        Ok(true)
    }

    /// Reads the next bytes of the file. Returns false at its end.
    fn read_more(&mut self) -> Result<bool, SeedError> {
        let left = usize::try_from(self.part.bytes - self.read).unwrap_or(usize::MAX);
        let wanted = left.min(BUFFER_BYTES);
        if wanted == 0 {
            return Ok(false);
        }
        self.buffer.resize(wanted, 0);
        let read = self.file.read_at(self.read, &mut self.buffer);
        let read = read.map_err(SeedError::reading(self.path))?;
        if read < wanted {
            return Err(self.damaged("it has become shorter"));
        }
        self.hasher.update(&self.buffer);
        self.read += wanted as u64;
        self.taken = 0;
        Ok(true)
    }

    /// Checks the sum, at the end of the file.
    pub fn check(self) -> Result<(), SeedError> {
        let is_whole = self.read == self.part.bytes && self.taken == self.buffer.len();
        if is_whole && hex(self.hasher.finalize()) == self.part.sum {
            Ok(())
        } else {
            Err(self.damaged("it does not fit its sum"))
        }
    }

    /// The error of a file with other bytes than were written.
    pub fn damaged(&self, what: &str) -> SeedError {
        SeedError::damaged(self.path, what)
    }
}
