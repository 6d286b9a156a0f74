//! The payload of a frame, and its place in the blocks of its file.

use lockstep_sums::BlockOffset;

/// The payload of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Payload<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The place of the first byte in its block, if the bytes are those of a file.
    pub start: BlockOffset,
}

impl<'a> Payload<'a> {
    /// No payload.
    pub const NONE: Self = Self::of(&[]);

    /// Bytes that are not those of a file, or begin with a block.
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            start: BlockOffset::START,
        }
    }

    /// Bytes of a file, from `offset` on.
    pub fn at(offset: u64, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            start: BlockOffset::of(offset),
        }
    }
}
