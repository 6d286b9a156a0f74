//! The kernel's table of mounts, `/proc/self/mountinfo`. Reading the table sends no request to any mount, so a
//! mount whose process is gone does not disturb it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::MountError;

const TABLE: &str = "/proc/self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the mount, unique while it exists.
    pub id: u64,
    /// Minor number of the device of its file system.
    pub device_minor: u32,
    /// Mount point.
    pub path: PathBuf,
    /// Type of the file system, with the subtype after a dot.
    pub kind: String,
    /// The mounted source, such as `lockstep:data`.
    pub source: String,
}

impl MountEntry {
    /// Describes the mount in a message.
    pub fn describe(&self) -> String {
        format!("{} (type {})", self.source, self.kind)
    }
}

/// Returns all mounts on `path`, which must be free of symbolic links. The visible mount is the last.
pub fn mounts_on(path: &Path) -> Result<Vec<MountEntry>, MountError> {
    let mut entries = read()?;
    entries.retain(|entry| entry.path == path);
    Ok(entries)
}

/// Returns the mount with a number.
pub fn mount_numbered(id: u64) -> Result<Option<MountEntry>, MountError> {
    Ok(read()?.into_iter().find(|entry| entry.id == id))
}

fn read() -> Result<Vec<MountEntry>, MountError> {
    let table = std::fs::read(TABLE).map_err(|source| MountError::Table { source })?;
    let entries = table.split(|&byte| byte == b'\n').filter_map(parse);
    Ok(entries.collect())
}

/// Parses a line such as `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda rw`. Before the
/// dash stands any number of optional fields.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let (_major, minor) = std::str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
    let device_minor = minor.parse().ok()?;
    let path = unescape(fields.nth(1)?);
    let mut rest = fields.skip_while(|field| field != b"-").skip(1);
    let kind = text(rest.next()?);
    let source = text(rest.next()?);
    Some(MountEntry {
        id,
        device_minor,
        path: PathBuf::from(OsString::from_vec(path)),
        kind,
        source,
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// The kernel writes blanks, newlines and backslashes as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let escaped = (first == b'\\').then(|| octal(after)).flatten();
        plain.push(escaped.unwrap_or(first));
        rest = after
            .get(if escaped.is_some() { 3 } else { 0 }..)
            .unwrap_or_default();
    }
    plain
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits.get(..3)?).ok()?;
    u8::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_of_the_table() {
        let line =
            br"41 29 0:36 / /mnt/a\040b\134c rw shared:5 master:1 - fuse.lockstep lockstep:x rw";
        let entry = parse(line).unwrap();
        assert_eq!((entry.id, entry.device_minor), (41, 36));
        assert_eq!(entry.path, Path::new(r"/mnt/a b\c"));
        assert_eq!(entry.kind, "fuse.lockstep");
        assert_eq!(entry.source, "lockstep:x");
    }

    #[test]
    fn skips_incomplete_lines() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"41 29 0:36 / /mnt rw"), None);
    }

    #[test]
    fn finds_the_root() {
        assert!(!mounts_on(Path::new("/")).unwrap().is_empty());
        assert!(mounts_on(Path::new("/no/such")).unwrap().is_empty());
    }
}
