//! The bytes of one file, sparse, in pages of 4 KiB.
//!
//! This module holds only the bytes that reads see. Only [`super::inode`] knows which of them survive a power
//! loss, so only that module changes them.
//!
//! Invariants: a page that is not held is a hole. Bytes past the length of the file are zeros. No page with
//! bytes lies wholly past the length; reserved pages may.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use lockstep_types::backing::ReservedRuns;
use lockstep_types::limits::BLOCK_BYTES;

use super::data_runs::DataRuns;

/// Bytes of a page: the grain of a power loss, and of space.
pub(super) const PAGE_BYTES: u64 = BLOCK_BYTES as u64;

type Bytes = [u8; BLOCK_BYTES];

/// Held once, because logs and tables are mostly zeros.
static ZEROS: LazyLock<Arc<Bytes>> = LazyLock::new(|| Arc::new([0; BLOCK_BYTES]));

/// One page. Copies share the bytes.
#[derive(Clone, Debug, Default)]
pub(super) enum Page {
    /// Nothing: reads as zeros, takes no space.
    #[default]
    Hole,
    /// Space that was never written: reads as zeros, and is a hole for `SEEK_DATA`.
    Reserved,
    /// Bytes.
    Data(Arc<Bytes>),
}

impl Page {
    /// The bytes of a page with data.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Hole | Self::Reserved => None,
            Self::Data(bytes) => Some(bytes),
        }
    }

    /// The page with `data` written at `at`; both lie in one page.
    pub(super) fn with(&self, at: usize, data: &[u8]) -> Self {
        if data == ZEROS.as_slice() {
            return Self::Data(Arc::clone(&ZEROS));
        }
        let mut bytes = *self.bytes().unwrap_or(&ZEROS);
        part(&mut bytes, at, data.len()).copy_from_slice(data);
        Self::Data(Arc::new(bytes))
    }

    /// The page with zeros from `within.start` to `within.end`.
    pub(super) fn with_zeros(&self, within: &Range<usize>) -> Self {
        let Some(bytes) = self.bytes() else {
            return self.clone();
        };
        let mut bytes = *bytes;
        part(&mut bytes, within.start, within.len()).fill(0);
        Self::Data(Arc::new(bytes))
    }

    /// Flips one bit. Returns false if the page has no bytes.
    pub(super) fn flip(&mut self, at: usize, bit: u32) -> bool {
        let Self::Data(bytes) = self else {
            return false;
        };
        let bytes: &mut Bytes = Arc::make_mut(bytes);
        for byte in part(bytes, at, 1) {
            *byte ^= 1_u8.rotate_left(bit);
        }
        true
    }

    /// Whether both pages are the same kind of gap.
    pub(super) fn is_same_gap(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::Hole, Self::Hole) | (Self::Reserved, Self::Reserved)
        )
    }
}

fn part(bytes: &mut [u8], at: usize, count: usize) -> &mut [u8] {
    let end = at.saturating_add(count).min(bytes.len());
    bytes.get_mut(at..end).unwrap_or_default()
}

/// A part of a file that lies in one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Number of the page.
    pub number: u64,
    /// The bytes within the page.
    pub within: Range<usize>,
}

/// The pieces of a range, in order.
pub(super) fn pieces(range: Range<u64>) -> impl Iterator<Item = Piece> {
    let mut offset = range.start;
    std::iter::from_fn(move || {
        let number = offset / PAGE_BYTES;
        let start = offset - number * PAGE_BYTES;
        let end = (range.end - number * PAGE_BYTES).min(PAGE_BYTES);
        (offset < range.end).then(|| {
            offset = number * PAGE_BYTES + end;
            let within = index(start)..index(end);
            Piece { number, within }
        })
    })
}

/// The numbers of all pages that a range touches.
pub(super) fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

/// An offset as an index into memory.
pub(super) fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// The bytes of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    length: u64,
    held: BTreeMap<u64, Page>,
    /// The pages of `held` with bytes.
    runs: DataRuns,
}

impl Pages {
    /// Length of the file in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Sets only the length. The caller clears the bytes past it.
    pub(super) fn set_length(&mut self, length: u64) {
        self.length = length;
    }

    /// Pages that take space.
    pub(super) fn count(&self) -> u64 {
        self.held.len() as u64
    }

    /// Pages of a range that take space.
    pub(super) fn count_in(&self, range: &Range<u64>) -> u64 {
        self.held.range(range.clone()).count() as u64
    }

    /// Numbers of the pages of a range that take space.
    pub(super) fn held_in(&self, range: Range<u64>) -> Vec<u64> {
        self.held.range(range).map(|(number, _)| *number).collect()
    }

    /// Whether a page takes space.
    pub(super) fn is_held(&self, number: u64) -> bool {
        self.held.contains_key(&number)
    }

    /// A page.
    pub(super) fn get(&self, number: u64) -> Page {
        self.held.get(&number).cloned().unwrap_or_default()
    }

    /// Replaces a page, and returns the earlier page.
    pub(super) fn replace(&mut self, number: u64, page: Page) -> Page {
        self.runs.set(number, page.bytes().is_some());
        let before = match page {
            Page::Hole => self.held.remove(&number),
            page => self.held.insert(number, page),
        };
        before.unwrap_or_default()
    }

    /// Every page that takes space.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.held.iter().map(|(number, page)| (*number, page))
    }

    /// Clears the bytes past the length, for a length that came back from a power loss.
    pub(super) fn trim(&mut self) {
        let length = self.length;
        let runs = &mut self.runs;
        self.held.retain(|number, page| {
            let kept = length.saturating_sub(number * PAGE_BYTES);
            if kept < PAGE_BYTES && page.bytes().is_some() {
                *page = page.with_zeros(&(index(kept)..BLOCK_BYTES));
            }
            let is_kept = kept > 0 || page.bytes().is_none();
            runs.set(*number, is_kept && page.bytes().is_some());
            is_kept
        });
    }

    /// Reads at `offset`. Returns fewer bytes than asked only at the end of the file.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let left = self.length.saturating_sub(offset);
        let count = index(left).min(into.len());
        let mut rest = into.get_mut(..count).unwrap_or_default();
        for piece in pieces(offset..offset.saturating_add(count as u64)) {
            let (now, later) = rest.split_at_mut(piece.within.len());
            match self.held.get(&piece.number).and_then(Page::bytes) {
                Some(bytes) => now.copy_from_slice(bytes.get(piece.within).unwrap_or_default()),
                None => now.fill(0),
            }
            rest = later;
        }
        count
    }

    /// The first run of reserved pages in a range.
    pub(super) fn reserved(&self, range: &Range<u64>) -> ReservedRuns {
        let is_reserved = |page: &Page| matches!(page, Page::Reserved);
        if range.is_empty() {
            return ReservedRuns::none(range);
        }
        let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        let mut from_here = self.held.range(pages);
        let Some((&first, _)) = from_here.find(|(_, page)| is_reserved(page)) else {
            return ReservedRuns::none(range);
        };
        let mut end = first + 1;
        while let Some((&number, page)) = from_here.next()
            && number == end
            && is_reserved(page)
        {
            end += 1;
        }
        let run = (first * PAGE_BYTES).max(range.start)..(end * PAGE_BYTES).min(range.end);
        ReservedRuns {
            looked_to: run.end,
            runs: vec![run],
        }
    }

    /// First offset at or after `offset` with bytes.
    pub(super) fn seek_data(&self, offset: u64) -> Option<u64> {
        if offset >= self.length {
            return None;
        }
        let number = self.runs.next_data(offset / PAGE_BYTES)?;
        Some((number * PAGE_BYTES).max(offset))
    }

    /// First offset at or after `offset` without bytes. The end of the file is such an offset.
    pub(super) fn seek_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.length {
            return None;
        }
        let number = self.runs.next_hole(offset / PAGE_BYTES);
        Some((number * PAGE_BYTES).clamp(offset, self.length))
    }
}
