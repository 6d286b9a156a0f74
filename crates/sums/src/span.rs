//! The blocks that a change of bytes touches.

use std::ops::Range;

use lockstep_types::limits::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The blocks of a range of bytes. The sum of a block that is covered whole follows from the new bytes; a block that is
/// covered in part must be read back after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// The first block, if the range begins within it, or covers nothing but a part of it.
    pub head: Option<u64>,
    /// The blocks covered whole.
    pub whole: Range<u64>,
    /// The last block, if the range ends within it and the block is not the head.
    pub tail: Option<u64>,
}

impl BlockSpan {
    /// The blocks of a range. An empty range has none. A range up to `u64::MAX` has no end: all its blocks behind the head are
    /// covered whole.
    pub const fn of(bytes: &Range<u64>) -> Self {
        let (first, end) = (bytes.start / BLOCK, bytes.end / BLOCK);
        if bytes.start >= bytes.end {
            return Self {
                head: None,
                whole: first..first,
                tail: None,
            };
        }
        if bytes.end == u64::MAX {
            let cuts_head = !bytes.start.is_multiple_of(BLOCK);
            return Self {
                head: if cuts_head { Some(first) } else { None },
                whole: if cuts_head { first + 1 } else { first }..u64::MAX,
                tail: None,
            };
        }
        let cuts_head = !bytes.start.is_multiple_of(BLOCK);
        let cuts_tail = !bytes.end.is_multiple_of(BLOCK);
        let start = if cuts_head { first + 1 } else { first };
        Self {
            head: if cuts_head { Some(first) } else { None },
            whole: start..if end > start { end } else { start },
            tail: if cuts_tail && end >= start {
                Some(end)
            } else {
                None
            },
        }
    }

    /// The blocks that must be read back.
    pub fn partial(&self) -> impl Iterator<Item = u64> {
        self.head.into_iter().chain(self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(bytes: Range<u64>) -> (Option<u64>, Range<u64>, Option<u64>) {
        let BlockSpan { head, whole, tail } = BlockSpan::of(&bytes);
        (head, whole, tail)
    }

    #[test]
    fn each_touched_block_is_whole_or_partial() {
        assert_eq!(span(0..0), (None, 0..0, None));
        assert_eq!(span(9000..9000), (None, 2..2, None));
        assert_eq!(span(0..4096), (None, 0..1, None));
        assert_eq!(span(0..1), (None, 0..0, Some(0)));
        assert_eq!(span(1..4096), (Some(0), 1..1, None));
        assert_eq!(span(1..2), (Some(0), 1..1, None));
        assert_eq!(span(4095..4097), (Some(0), 1..1, Some(1)));
        assert_eq!(span(4096..12288), (None, 1..3, None));
        assert_eq!(span(4000..12290), (Some(0), 1..3, Some(3)));
        assert_eq!(span(5000..u64::MAX), (Some(1), 2..u64::MAX, None));
        assert_eq!(span(4096..u64::MAX), (None, 1..u64::MAX, None));
    }
}
