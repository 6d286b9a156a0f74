//! The ranges that distributed recovery must send: the blocks of all writes that were in flight on either side (paper,
//! section 4.2).

use lockstep_types::Ino;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use serde::{Deserialize, Serialize};

use crate::entry::InFlightEntry;

/// Bytes of one file that the primary sends from its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecoveryRange {
    /// The file.
    pub ino: Ino,
    /// The first byte, a multiple of [`BLOCK_BYTES`].
    pub offset: u64,
    /// The number of bytes: a multiple of [`BLOCK_BYTES`], at least one block, at most [`WRITE_BYTES_MAX`]. The range
    /// may end beyond the end of the file.
    pub length: u64,
}

/// Whole blocks of one file; `end` is excluded.
struct Span {
    ino: Ino,
    start: u64,
    end: u64,
}

/// The blocks that the entries touch, each once, sorted, in as few ranges as the bound on one write allows.
pub fn recovery_ranges(paw: &[InFlightEntry], saw: &[InFlightEntry]) -> Vec<RecoveryRange> {
    let mut spans: Vec<Span> = paw.iter().chain(saw).filter_map(whole_blocks).collect();
    spans.sort_unstable_by_key(|span| (span.ino, span.start));
    let mut ranges = Vec::new();
    let mut spans = spans.into_iter();
    let Some(mut open) = spans.next() else {
        return ranges;
    };
    for span in spans {
        if span.ino == open.ino && span.start <= open.end {
            open.end = open.end.max(span.end);
        } else {
            ranges.extend(pieces(&open));
            open = span;
        }
    }
    ranges.extend(pieces(&open));
    ranges
}

/// The blocks of one entry; `None` for an entry without bytes. No block lies beyond the largest multiple of the block
/// size.
fn whole_blocks(entry: &InFlightEntry) -> Option<Span> {
    let block = BLOCK_BYTES as u64;
    let last = entry
        .offset
        .saturating_add(u64::from(entry.length.checked_sub(1)?));
    let start = entry.offset / block * block;
    let end = (last / block).saturating_add(1).saturating_mul(block);
    let end = end / block * block;
    (start < end).then_some(Span {
        ino: entry.ino,
        start,
        end,
    })
}

fn pieces(span: &Span) -> impl Iterator<Item = RecoveryRange> + use<> {
    let (ino, end) = (span.ino, span.end);
    let starts = (span.start..end).step_by(WRITE_BYTES_MAX);
    starts.map(move |offset| RecoveryRange {
        ino,
        offset,
        length: (end - offset).min(WRITE_BYTES_MAX as u64),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lockstep_types::Osn;
    use proptest::prelude::*;

    use super::*;

    fn write(ino: u64, offset: u64, length: u32) -> InFlightEntry {
        InFlightEntry {
            ino: Ino::new(ino).unwrap(),
            osn: Osn::ZERO,
            offset,
            length,
        }
    }

    fn plain(ranges: &[RecoveryRange]) -> Vec<(u64, u64, u64)> {
        let parts = |range: &RecoveryRange| (range.ino.get(), range.offset, range.length);
        ranges.iter().map(parts).collect()
    }

    #[test]
    fn joins_adjacent_blocks_and_keeps_others_apart() {
        let paw = [write(2, 0, 4096), write(1, 4095, 2), write(1, 100_000, 0)];
        let saw = [write(1, 8192, 10), write(1, 16_384, 1), write(1, 4095, 2)];
        let expected = [(1, 0, 12_288), (1, 16_384, 4096), (2, 0, 4096)];
        assert_eq!(plain(&recovery_ranges(&paw, &saw)), expected);
        assert!(recovery_ranges(&[], &[]).is_empty());
    }

    #[test]
    fn cuts_ranges_longer_than_a_write() {
        let paw = [write(1, 0, 1 << 20), write(1, 1 << 20, 1)];
        let expected = [(1, 0, 1 << 20), (1, 1 << 20, 4096)];
        assert_eq!(plain(&recovery_ranges(&paw, &[])), expected);
    }

    #[test]
    fn the_end_of_all_offsets_does_not_overflow() {
        let paw = [write(1, u64::MAX - 10_000, u32::MAX)];
        for range in recovery_ranges(&paw, &[]) {
            assert!(range.offset.checked_add(range.length).is_some());
        }
    }

    fn entries() -> impl Strategy<Value = Vec<InFlightEntry>> {
        let one = (1..4u64, 0..4_000_000u64, 0..1_048_577u32)
            .prop_map(|(ino, offset, length)| write(ino, offset, length));
        let small = (1..4u64, 0..200_000u64, 0..9000u32)
            .prop_map(|(ino, offset, length)| write(ino, offset, length));
        prop::collection::vec(prop_oneof![one, small], 0..30)
    }

    fn blocks(ino: Ino, offset: u64, length: u64) -> impl Iterator<Item = (Ino, u64)> {
        let block = BLOCK_BYTES as u64;
        (offset / block..(offset + length).div_ceil(block)).map(move |at| (ino, at))
    }

    proptest! {
        #[test]
        fn covers_exactly_the_blocks_touched(paw in entries(), saw in entries()) {
            let ranges = recovery_ranges(&paw, &saw);
            let touched: BTreeSet<_> = paw.iter().chain(&saw)
                .filter(|entry| entry.length > 0)
                .flat_map(|entry| blocks(entry.ino, entry.offset, u64::from(entry.length)))
                .collect();
            let sent: Vec<_> = ranges.iter()
                .flat_map(|range| blocks(range.ino, range.offset, range.length))
                .collect();
            // Equal lists: sorted, and no block twice.
            prop_assert_eq!(sent, touched.into_iter().collect::<Vec<_>>());
            for range in &ranges {
                prop_assert_eq!(range.offset % BLOCK_BYTES as u64, 0);
                prop_assert_eq!(range.length % BLOCK_BYTES as u64, 0);
                prop_assert!(range.length <= WRITE_BYTES_MAX as u64);
            }
            for pair in ranges.windows(2) {
                let touch = pair[0].ino == pair[1].ino
                    && pair[0].offset + pair[0].length == pair[1].offset;
                prop_assert!(!touch || pair[0].length == WRITE_BYTES_MAX as u64);
            }
        }
    }
}
