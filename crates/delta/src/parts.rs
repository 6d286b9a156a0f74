//! The parts of a file: 64 KiB each, the unit of a region mark and of the question whether the other node has it.

use std::ops::Range;

/// Bytes of a part.
pub const PART_BYTES: u64 = 64 * 1024;
/// Parts of a region: one entry of a table of region marks has a bit for each.
pub const PARTS_IN_REGION: u64 = 16;

/// Parts of a file that follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileParts(Range<u64>);

impl FileParts {
    /// The parts that some bytes touch.
    pub const fn of_bytes(offset: u64, length: u64) -> Self {
        let first = offset / PART_BYTES;
        let end = offset.saturating_add(length).div_ceil(PART_BYTES);
        Self(first..if length == 0 { first } else { end })
    }

    /// These parts and as many behind them as a write announces (*mark ahead*).
    #[must_use]
    pub const fn with_ahead(&self, ahead: u8) -> Self {
        Self(self.0.start..self.0.end.saturating_add(ahead as u64))
    }

    /// Each region of these parts: its number, and one bit for each of its parts that is among them.
    pub fn regions(&self) -> impl Iterator<Item = (u64, u16)> + use<> {
        let Range { start, end } = self.0;
        let regions = start / PARTS_IN_REGION..end.div_ceil(PARTS_IN_REGION);
        let regions = if start < end { regions } else { 0..0 };
        regions.map(move |region| {
            let first = region * PARTS_IN_REGION;
            let from = start.saturating_sub(first).min(PARTS_IN_REGION);
            let to = end.saturating_sub(first).min(PARTS_IN_REGION);
            let below = |count: u64| u16::try_from((1_u32 << count) - 1).unwrap_or(u16::MAX);
            (region, below(to) & !below(from))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_bytes_are_all_that_they_touch() {
        let regions = |offset, length| -> Vec<_> {
            let parts = FileParts::of_bytes(offset, length);
            parts.regions().collect()
        };
        assert_eq!(regions(0, 0), []);
        assert_eq!(regions(0, 1), [(0, 1)]);
        assert_eq!(regions(PART_BYTES - 1, 2), [(0, 0b11)]);
        assert_eq!(regions(15 * PART_BYTES, PART_BYTES), [(0, 1 << 15)]);
        assert_eq!(
            regions(15 * PART_BYTES, 18 * PART_BYTES),
            [(0, 1 << 15), (1, u16::MAX), (2, 1)]
        );
        assert_eq!(regions(u64::MAX, u64::MAX).len(), 1);
    }

    #[test]
    fn parts_ahead_follow_those_of_the_write() {
        let parts = FileParts::of_bytes(PART_BYTES, 1).with_ahead(2);
        assert_eq!(parts, FileParts::of_bytes(PART_BYTES, 3 * PART_BYTES));
    }
}
