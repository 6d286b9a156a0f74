//! Attributes and contents of single inodes: from the snapshot to the present.
//!
//! The order of the attributes matters: the owner before the mode (a change of the owner drops
//! set-id bits), access control lists before the mode (a list changes the mode), bytes before both, and times last.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, SeekFrom, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// The path by which a call reaches an inode that is open for nothing but its place.
fn path_of(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Whether an inode is a directory.
pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Gives an inode owner, permissions and, if wanted, extended attributes of another one.
pub(crate) fn copy_attributes(
    from: &OwnedFd,
    to: &OwnedFd,
    stat: &Stat,
    wants_xattrs: bool,
) -> io::Result<()> {
    let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let now = rustix::fs::fstat(to)?;
    if (now.st_uid, now.st_gid) != (stat.st_uid, stat.st_gid) {
        let flags = AtFlags::EMPTY_PATH;
        rustix::fs::chownat(to, c"", Some(owner.0), Some(owner.1), flags)?;
    }
    if wants_xattrs {
        copy_xattrs(from, to)?;
    }
    // Linux never checks the permissions of a symbolic link.
    let has_mode = rustix::fs::fstat(to)?.st_mode == stat.st_mode;
    if !has_mode && FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        let mode = Mode::from_raw_mode(stat.st_mode & PERMISSIONS);
        rustix::fs::chmod(path_of(to), mode)?;
    }
    Ok(())
}

/// Gives an inode the times of another one.
pub(crate) fn copy_times(to: &OwnedFd, stat: &Stat) -> io::Result<()> {
    #[allow(clippy::cast_possible_wrap)] // below a thousand million
    let time = |tv_sec, nanos: u64| Timespec {
        tv_sec,
        tv_nsec: nanos as i64,
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    Ok(rustix::fs::utimensat(to, c"", &times, AtFlags::EMPTY_PATH)?)
}

fn copy_xattrs(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let (from, to) = (path_of(from), path_of(to));
    let old = names_of(&from)?;
    for name in names_of(&to)? {
        if !old.contains(&name) {
            rustix::fs::removexattr(&to, &*name)?;
        }
    }
    for name in old {
        let value = value_of(&from, &name)?.unwrap_or_default();
        if value_of(&to, &name)?.as_ref() != Some(&value) {
            rustix::fs::setxattr(&to, &*name, &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn names_of(path: &str) -> io::Result<Vec<Vec<u8>>> {
    let list = read_whole(|buffer| rustix::fs::listxattr(path, buffer))?;
    let names = list.split(|byte| *byte == 0).filter(|it| !it.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn value_of(path: &str, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    match read_whole(|buffer| rustix::fs::getxattr(path, name, buffer)) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODATA) => Ok(None),
        value => value.map(Some),
    }
}

/// Reads a value of any length.
fn read_whole(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    loop {
        match read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) => buffer.resize(buffer.len() * 4, 0),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Copies the data of a file into an empty one.
pub(crate) fn copy_into_empty(from: &File, to: &File, size: u64) -> io::Result<u64> {
    let (mut at, mut copied) = (0, 0);
    while let Some(data) = next_data(from, at..size)? {
        at = data.end;
        copied += copy_data(from, to, data)?;
    }
    Ok(copied)
}

/// Copies bytes of a file, and its holes as holes. Returns the number of copied bytes.
pub(crate) fn copy_range(from: &File, to: &File, range: &Range<u64>) -> io::Result<u64> {
    let (mut at, mut copied) = (range.start, 0);
    loop {
        let data = next_data(from, at..range.end)?;
        let hole_end = data.as_ref().map_or(range.end, |data| data.start);
        if hole_end > at {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(to, flags, at, hole_end - at)?;
        }
        let Some(data) = data else {
            return Ok(copied);
        };
        at = data.end;
        copied += copy_data(from, to, data)?;
    }
}

/// The first data of a file within a range, up to the next hole; `None` if the rest of the range is a hole.
fn next_data(file: &File, within: Range<u64>) -> io::Result<Option<Range<u64>>> {
    if within.is_empty() {
        return Ok(None);
    }
    let data = sought(file, SeekFrom::Data(within.start))?;
    let Some(data) = data.filter(|data| *data < within.end) else {
        return Ok(None);
    };
    let hole = sought(file, SeekFrom::Hole(data))?.unwrap_or(within.end);
    Ok(Some(data..hole.min(within.end)))
}

/// The place that a seek finds; `None` behind the last data.
fn sought(file: &File, what: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, what) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn copy_data(from: &File, to: &File, range: Range<u64>) -> io::Result<u64> {
    let whole = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut buffer = vec![0; whole.min(PIECE_BYTES)];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let piece = buffer.get_mut(..length).unwrap_or_default();
        let read = from.read_at(piece, at)?;
        if read == 0 {
            break;
        }
        to.write_all_at(piece.get(..read).unwrap_or_default(), at)?;
        at += read as u64;
    }
    Ok(at - range.start)
}
