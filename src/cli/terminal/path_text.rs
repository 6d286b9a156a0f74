//! Paths of a datastore, which may have any bytes, on a terminal and for programs.

/// The path as a terminal may show it.
pub(in crate::cli) fn printable(path: &str) -> String {
    let shown = path.chars().flat_map(|c| {
        let escaped = c.is_control().then(|| c.escape_default());
        let plain = (!c.is_control()).then_some(c);
        escaped.into_iter().flatten().chain(plain)
    });
    shown.collect()
}

/// The bytes of a path that a node has told as text, and in hexadecimal digits if it is no UTF-8.
pub(in crate::cli) fn path_bytes(path: &str, digits: Option<&str>) -> Vec<u8> {
    let Some(digits) = digits else {
        return path.as_bytes().to_vec();
    };
    let pairs = digits.as_bytes().as_chunks::<2>().0.iter();
    let byte = |pair: &[u8; 2]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    pairs.filter_map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_printed_with_all_its_bytes_and_without_harm_to_a_terminal() {
        let path = "a\u{fffd}\n";
        assert_eq!(path_bytes(path, Some("61ff0a")), [0x61, 0xff, 0x0a]);
        assert_eq!(printable(path), "a\u{fffd}\\n");
        assert_eq!(path_bytes("é/b", None), "é/b".as_bytes());
        assert_eq!(path_bytes("a", None), b"a");
        assert_eq!(path_bytes("a\u{fffd}", Some("61ff")), [0x61, 0xff]);
    }
}
