//! Inodes that are gone since the snapshot, made anew from it. They have other numbers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::attributes::{
    copy_attributes, copy_into_empty, copy_times, flags_of, is_directory, set_flags,
};
use crate::error::RollbackError;
use crate::inodes::InodeTable;

const PRIVATE: Mode = Mode::from_raw_mode(0o600);
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);

/// The inodes that were made anew, by their number in the snapshot. Each is open for its place.
#[derive(Default)]
pub(crate) struct Remade(HashMap<u64, (OwnedFd, Vec<u8>)>);

impl Remade {
    /// An inode that was made anew.
    pub fn get(&self, ino: u64) -> Option<&OwnedFd> {
        self.0.get(&ino).map(|(made, _)| made)
    }

    /// Makes an inode anew. Returns the number of bytes that were copied.
    pub fn make(
        &mut self,
        past: &InodeTable,
        ino: u64,
        place: (&OwnedFd, &[u8]),
        path: &[u8],
    ) -> Result<u64, RollbackError> {
        let made = make(past, ino, place);
        let (made, copied) = made.map_err(RollbackError::call("bring back", path))?;
        self.0.insert(ino, (made, path.to_vec()));
        Ok(copied)
    }

    /// Gives the inodes what only now stays: directories their times, and all inodes the flags that forbid changes.
    pub fn finish(&self, past: &InodeTable) -> Result<(), RollbackError> {
        for (ino, (made, path)) in &self.0 {
            let finished = finish(past, *ino, made);
            finished.map_err(RollbackError::call("finish", path))?;
        }
        Ok(())
    }
}

/// The inode of a snapshot, for its attributes.
fn source(past: &InodeTable, ino: u64) -> io::Result<(OwnedFd, Stat)> {
    let source = past.open(ino, PLACE)?.ok_or(io::ErrorKind::NotFound)?;
    let stat = rustix::fs::fstat(&source)?;
    Ok((source, stat))
}

fn make(
    past: &InodeTable,
    ino: u64,
    (parent, name): (&OwnedFd, &[u8]),
) -> io::Result<(OwnedFd, u64)> {
    let (source, stat) = source(past, ino)?;
    let mut copied = 0;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => rustix::fs::mkdirat(parent, name, Mode::RWXU)?,
        FileType::RegularFile => copied = make_file(past, ino, (parent, name), &stat)?,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&source, c"", Vec::new())?;
            rustix::fs::symlinkat(&*target, parent, name)?;
        }
        kind => rustix::fs::mknodat(parent, name, kind, PRIVATE, stat.st_rdev)?,
    }
    let made = rustix::fs::openat(parent, name, PLACE | OFlags::CLOEXEC, Mode::empty())?;
    copy_attributes(&source, &made, &stat)?;
    if !is_directory(&stat) {
        copy_times(&made, &stat)?;
    }
    Ok((made, copied))
}

#[allow(clippy::cast_sign_loss)] // no file has a negative size
fn make_file(
    past: &InodeTable,
    ino: u64,
    (parent, name): (&OwnedFd, &[u8]),
    stat: &Stat,
) -> io::Result<u64> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // Mostly the final permissions, which spares a call.
    let permissions = Mode::from_raw_mode(stat.st_mode & 0o777);
    let made = File::from(rustix::fs::openat(parent, name, flags, permissions)?);
    let from = past.open(ino, OFlags::RDONLY)?;
    let from = File::from(from.ok_or(io::ErrorKind::NotFound)?);
    let size = stat.st_size as u64;
    let copied = copy_into_empty(&from, &made, size)?;
    if made.metadata()?.len() < size {
        made.set_len(size)?;
    }
    Ok(copied)
}

fn finish(past: &InodeTable, ino: u64, made: &OwnedFd) -> io::Result<()> {
    let (_, stat) = source(past, ino)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Directory {
        copy_times(made, &stat)?;
    }
    if !matches!(kind, FileType::Directory | FileType::RegularFile) {
        return Ok(());
    }
    let from = past.open(ino, OFlags::RDONLY)?;
    let wanted = flags_of(&from.ok_or(io::ErrorKind::NotFound)?)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", made.as_raw_fd());
    let file = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty())?;
    set_flags(&file, flags_of(&file)?, wanted)?;
    Ok(())
}
