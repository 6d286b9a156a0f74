//! The word of a node about the content of its disk by its own sums, as a part of the messages of a deep comparison.
//!
//! Invariant: as in [`message`](crate::message), the order of fields is the wire format.

use lockstep_types::Hash128;
use serde::{Deserialize, Serialize};

/// The word of the sums of one node about the content that it has read for an answer. Empty if content was read from memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumsWord {
    /// The inodes of which a block does not fit its sum, in order.
    pub misfits: Vec<u64>,
    /// The inodes of which a block has a sum that says nothing, in order.
    pub void: Vec<u64>,
    /// The number of blocks whose sum says nothing.
    pub void_blocks: u64,
}

/// A block on the disk of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockWord {
    /// The hash of the bytes. Zeros fill the last block of a file.
    pub bytes: Hash128,
    /// The sum; `None` if it says nothing.
    pub sum: Option<u64>,
    /// Whether the bytes fit the sum.
    pub fits: bool,
}
