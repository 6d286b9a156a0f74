//! One bit for each compared thing, lowest bit of the first byte first.
//!
//! A bit beyond the end of the bytes is not set, so that a short answer causes no panic.

use std::ops::Range;

/// Packs bits into bytes.
pub fn pack(bits: impl IntoIterator<Item = bool>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, bit) in bits.into_iter().enumerate() {
        if number % 8 == 0 {
            bytes.push(0);
        }
        if let Some(last) = bytes.last_mut() {
            *last |= u8::from(bit) << (number % 8);
        }
    }
    bytes
}

/// Bit `number`.
pub fn get(bytes: &[u8], number: usize) -> bool {
    bytes
        .get(number / 8)
        .is_some_and(|byte| byte >> (number % 8) & 1 == 1)
}

/// The runs of set bits among the first `count`, in order.
pub fn runs(bytes: &[u8], count: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in (0..count).filter(|&number| get(bytes, number)) {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_bits_are_found_in_runs() {
        let bits = (0..20).map(|number| matches!(number, 0 | 1 | 7 | 8 | 19));
        let bytes = pack(bits);
        assert_eq!(bytes.len(), 3);
        assert_eq!(runs(&bytes, 20), [0..2, 7..9, 19..20]);
        assert_eq!(runs(&bytes, 19), [0..2, 7..9]);
        assert_eq!(runs(&[], 20), []);
        assert!(!get(&bytes, 1000));
    }
}
