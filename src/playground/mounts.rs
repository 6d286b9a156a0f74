//! What is mounted, and how to be rid of it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

/// Where the kernel lists the mounts this process sees.
const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// Field of a line of the mount table that holds the mount point.
const MOUNT_POINT_FIELD: usize = 4;

/// Whether something is mounted at exactly `path`, which must be free of symbolic links.
pub(super) fn is_mounted(path: &Path) -> io::Result<bool> {
    let table = std::fs::read(MOUNT_TABLE)?;
    let mounted = table
        .split(|&byte| byte == b'\n')
        .filter_map(mount_point)
        .any(|at| at == path);
    Ok(mounted)
}

/// Unmounts whatever is mounted at `path`, also when the process behind it is dead.
pub(super) fn unmount_all(path: &Path) -> io::Result<()> {
    while is_mounted(path)? {
        unmount(path, UnmountFlags::DETACH)?;
    }
    Ok(())
}

fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|&byte| byte == b' ').nth(MOUNT_POINT_FIELD)?;
    Some(PathBuf::from(OsString::from_vec(unescape(field))))
}

/// The kernel writes blanks, tabs, newlines and backslashes as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, escaped_byte(tail)) {
            (b'\\', Some((byte, after))) => {
                plain.push(byte);
                rest = after;
            }
            _ => plain.push(*first),
        }
    }
    plain
}

fn escaped_byte(digits: &[u8]) -> Option<(u8, &[u8])> {
    let (octal, rest) = digits.split_at_checked(3)?;
    let octal = std::str::from_utf8(octal).ok()?;
    Some((u8::from_str_radix(octal, 8).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_point_is_found_and_unescaped() {
        let line = br"36 35 98:0 / /mnt/a\040b\134c rw,noatime - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some(PathBuf::from(r"/mnt/a b\c")));
        assert_eq!(mount_point(b""), None);
    }

    #[test]
    fn what_is_mounted_is_seen() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/proc/self")).unwrap());
        unmount_all(Path::new("/proc/self")).unwrap();
    }
}
