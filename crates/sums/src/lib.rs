//! Sums of blocks and of files (docs/adr/0017). Equal content has equal sums on both nodes.
//!
//! A file is a sequence of blocks of [`BLOCK_BYTES`](lockstep_types::limits::BLOCK_BYTES). The sum of a block is XXH3-64
//! with the secret of the datastore, made so that a block of zeros has the sum zero. The sum of a file adds up the sums of
//! its blocks, each times a weight that its number has, modulo 2^128. So zeros, holes and blocks that the file does not have
//! count nothing: a file sum needs no length, a hole of any size costs nothing, and an empty file has the sum zero.
//!
//! This crate is pure: no file, no clock, no thread. It never says that a sum is right: the keeper of a sum must change it
//! in the step that changes the bytes.
//!
//! Invariants:
//! - A sum is a function of the secret and of the content. The order of the changes that led to the content, and their
//!   cuts, leave no trace in the sum.
//! - A file whose content differs in one block from another file has another sum, if that block has another sum.

mod block;
mod file;
mod key;
mod span;
mod summed;

pub use block::{BlockOffset, BlockSum, pieces};
pub use file::FileSum;
pub use key::{SumKey, SumSecret};
pub use span::BlockSpan;
pub use summed::{PieceHasher, PieceSums, SumBytes, SummedBytes};
