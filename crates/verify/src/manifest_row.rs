//! A line of a manifest, and the order of lines.

use std::cmp::Ordering;

/// The columns, as in the first line of a manifest.
pub(crate) const COLUMNS: [&str; 14] = [
    "path", "inode", "type", "mode", "uid", "gid", "size", "atime", "mtime", "ctime", "rdev",
    "nlink", "content", "xattrs",
];
const INODE: usize = 1;
const TYPE: usize = 2;
const SIZE: usize = 6;

/// A line of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestRow {
    line: String,
    ino: u64,
    size: u64,
}

impl ManifestRow {
    /// The row of a line without its end; `None` if the line fits no manifest.
    pub fn of(line: String) -> Option<Self> {
        let number = |column: usize| line.split('\t').nth(column)?.parse().ok();
        let (ino, size) = (number(INODE)?, number(SIZE)?);
        let row = Self { line, ino, size };
        let is_whole = row.columns().count() == COLUMNS.len();
        let has_names = row.names().all(|name| unescaped(name).is_some());
        (is_whole && has_names).then_some(row)
    }

    /// The values of [`COLUMNS`].
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.line.split('\t')
    }

    /// The path, escaped.
    pub fn path(&self) -> &str {
        self.columns().next().unwrap_or_default()
    }

    pub const fn ino(&self) -> u64 {
        self.ino
    }

    pub const fn size(&self) -> u64 {
        self.size
    }

    pub fn is_file(&self) -> bool {
        self.columns().nth(TYPE) == Some("f")
    }

    /// The names of the path; none for the root.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.path().split('/').filter(|name| *name != ".")
    }

    /// The order of paths: name by name, as bytes.
    pub fn order(&self, other: &Self) -> Ordering {
        if self.path() == other.path() {
            return Ordering::Equal;
        }
        self.names()
            .map(unescaped)
            .cmp(other.names().map(unescaped))
    }
}

/// The bytes of an escaped name; `None` if no name is escaped like this.
fn unescaped(name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'\\' {
            let (digits, after) = after.strip_prefix(b"x")?.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use lockstep_fs::export::HEADER;

    use super::*;

    fn row(path: &str) -> ManifestRow {
        let line = format!("{path}\t7\tf\t0644\t0\t0\t5\t1.0\t1.0\t1.0\t0:0\t1\tab\t-");
        ManifestRow::of(line).unwrap()
    }

    #[test]
    fn the_columns_are_those_of_the_header() {
        let header = HEADER.strip_prefix("# ").unwrap();
        assert!(header.split('\t').eq(COLUMNS));
    }

    #[test]
    fn paths_are_in_the_order_of_the_bytes_of_their_names() {
        let sorted = [
            ".", "a", "a/b", "a/b/c", "a b", "a-b", "a\\x5c", "b", "\\xff",
        ];
        for (at, one) in sorted.iter().enumerate() {
            for (other_at, other) in sorted.iter().enumerate() {
                assert_eq!(
                    row(one).order(&row(other)),
                    at.cmp(&other_at),
                    "{one} {other}"
                );
            }
        }
    }

    #[test]
    fn lines_that_fit_no_manifest_are_refused() {
        let whole = row("a").line;
        let short = whole.rsplit_once('\t').unwrap().0;
        for line in [
            "",
            short,
            &format!("{whole}\tmore"),
            &whole.replace("\t7\t", "\tseven\t"),
            &whole.replacen('a', "\\xg0", 1),
            &whole.replacen('a', "\\", 1),
        ] {
            assert_eq!(ManifestRow::of(line.to_owned()), None, "{line}");
        }
    }
}
