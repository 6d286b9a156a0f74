//! The bytes of a write, from the request of a program to the disk and the peer: one type on the whole way.
//!
//! The bytes stay in the buffer of the thread that brings them for as long as that thread carries the write. A write that
//! begins later, or on another thread, owns its bytes: in memory, or in the spill file.

use std::ops::{Deref, Range};
use std::sync::Arc;

use lockstep_types::Errno;

/// The bytes of a write.
pub enum WriteData<'a> {
    /// In the buffer of the thread that brings the write.
    Borrowed(&'a [u8]),
    /// Owned by the write.
    Spilled(Arc<dyn SpilledBytes>),
}

/// The bytes of a write that begins later. Dropped, they give their memory or disk space back.
pub trait SpilledBytes: Send + Sync {
    /// Number of bytes.
    fn length(&self) -> usize;

    /// The bytes. May wait for the disk.
    ///
    /// # Errors
    /// `Io` when they cannot be read again; every later call then returns the same error.
    fn load(&self) -> Result<Arc<[u8]>, Errno>;
}

/// The bytes of a write in memory.
pub enum LoadedData<'a> {
    /// In the buffer of the thread that brings the write.
    Borrowed(&'a [u8]),
    /// Owned by the write.
    Owned(Arc<[u8]>),
}

impl WriteData<'_> {
    /// Number of bytes.
    pub fn length(&self) -> usize {
        match self {
            Self::Borrowed(data) => data.len(),
            Self::Spilled(spilled) => spilled.length(),
        }
    }

    /// A part of the bytes.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Borrowed(data) => Self::Borrowed(data.get(range).unwrap_or_default()),
            Self::Spilled(whole) => Self::Spilled(Arc::new(SpilledPart {
                whole: Arc::clone(whole),
                range,
            })),
        }
    }

    /// The same bytes for a write that begins later; `spill` takes those in the buffer of this thread over.
    pub fn owned_by(
        self,
        spill: impl FnOnce(&[u8]) -> Arc<dyn SpilledBytes>,
    ) -> WriteData<'static> {
        WriteData::Spilled(match self {
            Self::Borrowed(data) => spill(data),
            Self::Spilled(spilled) => spilled,
        })
    }

    /// The bytes in memory. May wait for the disk.
    ///
    /// # Errors
    /// `Io` when they cannot be read again.
    pub fn load(&self) -> Result<LoadedData<'_>, Errno> {
        match self {
            Self::Borrowed(data) => Ok(LoadedData::Borrowed(data)),
            Self::Spilled(spilled) => spilled.load().map(LoadedData::Owned),
        }
    }
}

impl Deref for LoadedData<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(data) => data,
            Self::Owned(data) => data,
        }
    }
}

/// Bytes in memory that no limit counts.
pub fn in_memory(data: &[u8]) -> Arc<dyn SpilledBytes> {
    let bytes: Arc<[u8]> = data.into();
    Arc::new(bytes)
}

impl SpilledBytes for Arc<[u8]> {
    fn length(&self) -> usize {
        self.len()
    }

    fn load(&self) -> Result<Self, Errno> {
        Ok(Self::clone(self))
    }
}

/// A part of the bytes of a write.
struct SpilledPart {
    whole: Arc<dyn SpilledBytes>,
    range: Range<usize>,
}

impl SpilledBytes for SpilledPart {
    fn length(&self) -> usize {
        self.range.len()
    }

    fn load(&self) -> Result<Arc<[u8]>, Errno> {
        let whole = self.whole.load()?;
        let part = whole.get(self.range.clone());
        part.map(Arc::from).ok_or(Errno::Io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_bytes_wherever_the_whole_is() {
        let bytes: Vec<u8> = (0..10).collect();
        for whole in [
            WriteData::Borrowed(&bytes),
            WriteData::Spilled(in_memory(&bytes)),
        ] {
            let part = whole.part(3..7);
            assert_eq!((whole.length(), part.length()), (10, 4));
            assert_eq!(&*part.load().unwrap(), [3, 4, 5, 6]);
        }
    }

    #[test]
    fn only_borrowed_bytes_are_taken_over() {
        let owned = WriteData::Borrowed(&[1, 2]).owned_by(in_memory);
        assert_eq!(&*owned.load().unwrap(), [1, 2]);
        let same = owned.owned_by(|_| unreachable!("the write owns its bytes"));
        assert_eq!(&*same.load().unwrap(), [1, 2]);
    }
}
