//! Bounds of one request, which the primary keeps, and beyond which the secondary refuses a request; and the bound of the locked bytes.

use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};

/// Bytes of records that are compared by one hash, without the last record: those of about 256 files.
pub const RECORD_RUN_BYTES: usize = 64 << 10;

/// Most files in one [`Request::SetFiles`](lockstep_repl::message::Request::SetFiles).
pub const FILES_MAX: usize = 64;

/// Most ranges in one [`Request::Reserve`](lockstep_repl::message::Request::Reserve).
pub const RANGES_MAX: usize = 256;

/// Most blocks in one [`Request::CompareBlocks`](lockstep_repl::message::Request::CompareBlocks).
pub const BLOCKS_MAX: usize = WRITE_BYTES_MAX / BLOCK_BYTES;

/// Longest file that is hashed as a whole.
pub const HASHED_FILE_BYTES_MAX: u64 = WRITE_BYTES_MAX as u64;

/// Most bytes of content that a resync has locked against writes at a time. One larger job alone may lock more.
pub const BYTES_LOCKED_MAX: u64 = 4 << 20;
