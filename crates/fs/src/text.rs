//! Bytes as text on one line.

use blake3::Hash;

/// A hash as hexadecimal digits.
pub(crate) fn hex(hash: Hash) -> String {
    hash.to_hex().to_string()
}

/// A path or target on one line.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\x5c"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let [high, low] = [byte >> 4, byte & 15];
                let digits = [high, low].map(|d| char::from_digit(d.into(), 16).unwrap_or('?'));
                text.push_str("\\x");
                text.extend(digits);
            }
        }
    }
    text
}
