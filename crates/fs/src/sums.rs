//! The sums of the content of a store: one for each block of 4 KiB, and one for each file (rule P32).
//!
//! [`SumKeeper`] is told of each change of bytes by `content/before_change.rs`, and changes the sums in the same step, after
//! the bytes. Its parts, from the bottom up: [`era`] (the secret, and the number of the time during which sums count), [`slot`] (the
//! form of the sums of one inode), [`sum_files`] (their files), [`changing`] (the blocks that change at this moment), [`file_sums`] (the
//! sums of one file, and how they change), [`stripe`] (those in memory), [`repair`] (the sums that a kill has left), [`keeper`] (all
//! sums, from the opening to the close), [`kept_change`] (a change of bytes), [`right_bytes`] (questions).
//!
//! Invariants:
//! - A sum is that of the bytes that this node has put in place, or it is void. A void sum says nothing.
//! - Before the bytes of a block change, the table of the changing blocks names the block. It names the block until the sum
//!   is in place.
//! - No change of content fails because a sum finds no room: the sums of the file are void then.
//!
//! Locks: `era` before a stripe. A stripe is held for the calls of the disk on the files of sums, never on content but for the
//! `stat` of the first change of a file. The keeper calls no other part of the store.

mod change;
mod changing;
mod era;
mod file_sums;
mod keeper;
mod kept_change;
mod repair;
mod right_bytes;
mod slot;
mod stripe;
mod sum_files;
#[cfg(test)]
mod tests;

pub use self::change::NewBytes;
pub use self::keeper::{SumKeeper, SumTotals};
pub use self::right_bytes::KeptSum;
