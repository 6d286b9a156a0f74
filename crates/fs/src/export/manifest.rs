//! The manifest of an export: one line per name, so that two nodes can be compared by `diff`.
//!
//! Invariant: equal stores give equal bytes. The manifest contains nothing that may differ between nodes (allocated
//! space, layout of holes).

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use blake3::Hasher;
use lockstep_types::{Attr, NodeKind};

use super::error::ExportError;
use super::lost::Lost;
use crate::text::{escaped, hex};

/// First line: the columns. Lines follow in the order of paths, compared name by name as bytes.
///
/// `path` is relative to the root, which is `.`; bytes that are not printable ASCII, and
/// backslashes, are written `\xNN`. `type` is the letter `find -printf %y` shows; `mode` is octal;
/// times are seconds and nanoseconds to add to them; `rdev` is major:minor; `content` is the BLAKE3
/// hash of a file's bytes or the target of a symbolic link, escaped like a path; `xattrs` is the
/// BLAKE3 hash over names and values (each with its length as u64, little endian, before it, in
/// order of the names). `-` stands for nothing.
///
/// A line that begins with `\lost` (no path does) reports a loss: the path of an inode, the part that the destination
/// could not take (the whole file, if its name is missing), and the cause. The other lines describe the datastore all
/// the same.
pub const HEADER: &str = "# path\tinode\ttype\tmode\tuid\tgid\tsize\tatime\tmtime\tctime\trdev\t\
                          nlink\tcontent\txattrs";

/// The list, written beside the copy.
pub(super) struct Manifest {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Manifest {
    pub(super) fn create(path: &Path) -> Result<Self, ExportError> {
        let name = escaped(path.as_os_str().as_encoded_bytes());
        let file = File::create_new(path).map_err(ExportError::write("make", name))?;
        let mut manifest = Self {
            path: path.into(),
            file: BufWriter::new(file),
        };
        let written = writeln!(manifest.file, "{HEADER}");
        manifest.check(written)?;
        Ok(manifest)
    }

    fn check<T>(&self, done: std::io::Result<T>) -> Result<T, ExportError> {
        let name = escaped(self.path.as_os_str().as_encoded_bytes());
        done.map_err(ExportError::write("write", name))
    }

    pub(super) fn line(&mut self, line: &ManifestLine<'_>) -> Result<(), ExportError> {
        let written = writeln!(self.file, "{line}");
        self.check(written)
    }

    pub(super) fn loss(&mut self, lost: &Lost) -> Result<(), ExportError> {
        let written = write_loss(&mut self.file, lost);
        self.check(written)
    }

    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        let flushed = self.file.flush();
        self.check(flushed)?;
        let synced = self.file.get_ref().sync_all();
        self.check(synced)
    }
}

/// The line of one name.
pub(super) struct ManifestLine<'a> {
    pub path: &'a [u8],
    pub attr: &'a Attr,
    pub content: String,
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// The column `content` of an inode without content.
pub(super) fn no_content() -> String {
    "-".to_owned()
}

impl fmt::Display for ManifestLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attr = self.attr;
        write!(
            f,
            "{}\t{}\t{}\t{:04o}\t{}\t{}\t{}\t{}\t{}\t{}\t{}:{}\t{}\t{}\t{}",
            escaped(self.path),
            attr.ino,
            letter(attr.kind),
            attr.mode,
            attr.uid,
            attr.gid,
            attr.size,
            attr.atime,
            attr.mtime,
            attr.ctime,
            rustix::fs::major(attr.rdev.into()),
            rustix::fs::minor(attr.rdev.into()),
            attr.nlink,
            self.content,
            xattrs(self.xattrs),
        )
    }
}

/// Writes the line of a loss.
fn write_loss(to: &mut dyn Write, loss: &Lost) -> io::Result<()> {
    writeln!(to, "\\lost\t{}\t{}\t{}", loss.name, loss.what, loss.cause)
}

const fn letter(kind: NodeKind) -> char {
    match kind {
        NodeKind::File => 'f',
        NodeKind::Directory => 'd',
        NodeKind::Symlink => 'l',
        NodeKind::Fifo => 'p',
        NodeKind::Socket => 's',
        NodeKind::CharDevice => 'c',
        NodeKind::BlockDevice => 'b',
    }
}

fn xattrs(xattrs: &[(Vec<u8>, Vec<u8>)]) -> String {
    if xattrs.is_empty() {
        return "-".to_owned();
    }
    let mut hasher = Hasher::new();
    for bytes in xattrs.iter().flat_map(|(name, value)| [name, value]) {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    hex(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_stay_on_one_line_and_differ() {
        assert_eq!(escaped(b"a b/c"), "a b/c");
        assert_eq!(escaped(b"a\n\t\\\xff"), "a\\x0a\\x09\\x5c\\xff");
        assert_ne!(escaped(b"\\x0a"), escaped(b"\n"));
    }

    #[test]
    fn attributes_do_not_run_into_each_other() {
        let one = [(b"user.a".to_vec(), b"bc".to_vec())];
        let other = [(b"user.ab".to_vec(), b"c".to_vec())];
        assert_ne!(xattrs(&one), xattrs(&other));
        assert_eq!(xattrs(&[]), "-");
    }
}
