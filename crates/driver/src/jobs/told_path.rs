//! The paths of an answer, which may have any bytes.

/// A path as text, and in hexadecimal digits if it is no UTF-8.
pub(super) fn told_path(path: &[u8]) -> (String, Option<String>) {
    let text = String::from_utf8_lossy(path).into_owned();
    let digits = (text.as_bytes() != path).then(|| hexadecimal(path));
    (text, digits)
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |number: u8| char::from_digit(number.into(), 16).unwrap_or('?');
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(digit).collect()
}
