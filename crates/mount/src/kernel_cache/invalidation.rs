//! One part of the kernel's caches that goes: attributes, or pages and attributes, of inodes with consecutive numbers.
//!
//! The call that drops pages waits for write-backs, and for reads that fill the pages (`invalidator`).

use std::ops::Range;

use rustix::io::Errno;

use super::file_pages::FilePages;
use crate::device::fuse_device::Device;

/// An offset that means: drop attributes only, keep cached data.
pub(crate) const ATTRIBUTES_ONLY: i64 = -1;

/// A length that means: to the end of the file.
const TO_THE_END: i64 = 0;

/// Bytes of an [`Invalidation`] in a packet.
const INVALIDATION_BYTES: usize = 32;

/// The part of the kernel's caches that goes, for inodes with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalidation {
    first: u64,
    count: u64,
    offset: i64,
    length: i64,
}

impl Invalidation {
    /// The attributes of inodes with consecutive numbers.
    pub const fn attributes(inodes: &Range<u64>) -> Self {
        Self {
            first: inodes.start,
            count: inodes.end.saturating_sub(inodes.start),
            offset: ATTRIBUTES_ONLY,
            length: 0,
        }
    }

    /// The attributes of the inodes of pages.
    pub const fn attributes_of(pages: &FilePages) -> Self {
        Self::attributes(&pages.inodes)
    }

    /// Pages, and the attributes of their inodes.
    pub fn pages(pages: &FilePages) -> Self {
        let length = pages.bytes.end - pages.bytes.start;
        Self {
            offset: i64::try_from(pages.bytes.start).unwrap_or(i64::MAX),
            // Only a length that means the end of the file is larger.
            length: i64::try_from(length).unwrap_or(TO_THE_END),
            ..Self::attributes(&pages.inodes)
        }
    }

    pub fn to_bytes(self) -> Vec<u8> {
        let words = [
            self.first.to_ne_bytes(),
            self.count.to_ne_bytes(),
            self.offset.to_ne_bytes(),
            self.length.to_ne_bytes(),
        ];
        words.concat()
    }

    /// The invalidations in a packet; `None` if it is no such packet.
    pub fn all_from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let (parts, []) = bytes.as_chunks::<INVALIDATION_BYTES>() else {
            return None;
        };
        parts.iter().map(|part| Self::from_bytes(part)).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [first, count, offset, length] = words else {
            return None;
        };
        Some(Self {
            first: u64::from_ne_bytes(*first),
            count: u64::from_ne_bytes(*count),
            offset: i64::from_ne_bytes(*offset),
            length: i64::from_ne_bytes(*length),
        })
    }

    /// Makes the calls. Returns whether the kernel knows one of the inodes.
    pub fn call(self, device: &Device) -> Result<bool, Errno> {
        let range = [self.offset.to_ne_bytes(), self.length.to_ne_bytes()].concat();
        let mut knows = false;
        for ino in self.first..self.first.saturating_add(self.count) {
            match device.invalidate(&[&ino.to_ne_bytes(), range.as_slice()].concat()) {
                Err(Errno::NOENT) => {}
                other => knows |= other.map(|()| true)?,
            }
        }
        Ok(knows)
    }

    pub fn call_all(all: &[Self], device: &Device) -> Result<bool, Errno> {
        let mut knows = false;
        for invalidation in all {
            knows |= invalidation.call(device)?;
        }
        Ok(knows)
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::Ino;

    use super::*;

    #[test]
    fn invalidations_are_read_as_they_were_written() {
        let one = Invalidation::pages(&FilePages::of(Ino::ROOT, 4096..8192));
        let many = Invalidation::attributes(&(7..16));
        let bytes = [one.to_bytes(), many.to_bytes()].concat();
        assert_eq!(Invalidation::all_from_bytes(&bytes), Some(vec![one, many]));
        assert_eq!(Invalidation::all_from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn pages_without_an_end_reach_to_the_end_of_the_file() {
        let range = |bytes| {
            let one = Invalidation::pages(&FilePages::of(Ino::ROOT, bytes));
            (one.first, one.count, one.offset, one.length)
        };
        assert_eq!(range(0..u64::MAX), (1, 1, 0, TO_THE_END));
        assert_eq!(range(4096..12288), (1, 1, 4096, 8192));
        let (_, _, offset, length) = range(4096..u64::MAX);
        assert_eq!((offset, length), (4096, TO_THE_END));
    }
}
