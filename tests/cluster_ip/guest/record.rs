//! The records that a guest writes to its disk and to its mounts: for the guest, and for the check from outside.
//!
//! A record has the number of its writer, its own number, and a checksum. All its bytes follow from the two numbers.

/// Bytes of a record.
pub const RECORD_BYTES: usize = 4096;
/// Number of writers.
pub const WRITERS: u64 = 4;
/// Places for the records of one writer. A later record overwrites an earlier one.
pub const PLACES: u64 = 128;

/// Names of saved records that a program of a mount keeps. It removes older ones.
pub const NAMES_KEPT: u64 = 16;

/// The place of a record on the disk, in bytes.
pub const fn offset(writer: u64, number: u64) -> u64 {
    // The places are taken in an order that is not the order of the disk.
    (writer * PLACES + number * 37 % PLACES) * RECORD_BYTES as u64
}

/// The bytes of a record.
pub fn fill(record: &mut [u8; RECORD_BYTES], writer: u64, number: u64) {
    let mut state = (writer << 56 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let (words, sum) = record.split_at_mut(RECORD_BYTES - 8);
    for word in words.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    words[..8].copy_from_slice(&writer.to_le_bytes());
    words[8..16].copy_from_slice(&number.to_le_bytes());
    sum.copy_from_slice(&checksum(words).to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The mistake in the bytes found in the place of a record, for people.
pub fn describe(found: &[u8; RECORD_BYTES], writer: u64, number: u64) -> String {
    let word = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().unwrap());
    let sum = word(RECORD_BYTES - 8);
    let whole = if sum == checksum(&found[..RECORD_BYTES - 8]) {
        "whole"
    } else {
        "torn"
    };
    let (found_writer, found_number) = (word(0), word(8));
    format!(
        "record {number} of writer {writer}: found record {found_number} of writer {found_writer}, {whole}"
    )
}
