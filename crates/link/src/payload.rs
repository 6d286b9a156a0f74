//! The payload of a frame, and its place in the blocks of its file.

use lockstep_sums::{BlockOffset, SummedBytes};

/// The payload of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Payload<'a> {
    /// The bytes, with their sums if these are known.
    pub bytes: SummedBytes<'a>,
    /// The place of the first byte in its block, if the bytes are those of a file.
    pub start: BlockOffset,
}

impl<'a> Payload<'a> {
    /// No payload.
    pub const NONE: Self = Self::of(&[]);

    /// Bytes that are not those of a file, or begin with a block.
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes: SummedBytes::without(bytes),
            start: BlockOffset::START,
        }
    }

    /// Bytes of a file, from `offset` on.
    pub fn at(offset: u64, bytes: impl Into<SummedBytes<'a>>) -> Self {
        Self {
            bytes: bytes.into(),
            start: BlockOffset::of(offset),
        }
    }
}
