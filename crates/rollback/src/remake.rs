//! Inodes that are gone since the snapshot, made anew from it. They have other numbers. Each is made in the staging directory, where no other user
//! reaches it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::attributes::{copy_attributes, copy_into_empty, copy_times, is_directory};
use crate::inodes::{InodeTable, PLACE};
use crate::restrictions::bring_flags_back;

const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// The inodes that were made anew: their numbers, by those in the snapshot.
#[derive(Default)]
pub(crate) struct Remade {
    numbers: HashMap<u64, u64>,
    /// Those that get something at the end: directories their times, and others their flags.
    unfinished: Vec<u64>,
}

impl Remade {
    /// The number of an inode that was made anew.
    pub fn get(&self, ino: u64) -> Option<u64> {
        self.numbers.get(&ino).copied()
    }

    /// Makes an inode anew in the staging directory. Returns the number of bytes that were copied.
    pub fn make(
        &mut self,
        past: &InodeTable,
        ino: u64,
        place: (&OwnedFd, &str),
    ) -> io::Result<u64> {
        let made = MadeInode::make(past, ino, place)?;
        self.numbers.insert(ino, made.number);
        if made.is_unfinished {
            self.unfinished.push(ino);
        }
        Ok(made.copied)
    }

    /// Gives directories their times, and all inodes the flags that forbid changes.
    pub fn finish(&self, present: &InodeTable, past: &InodeTable) -> io::Result<()> {
        for ino in &self.unfinished {
            if let Some(number) = self.get(*ino) {
                finish(present, number, past, *ino)?;
            }
        }
        Ok(())
    }
}

/// An inode that was made anew.
struct MadeInode {
    number: u64,
    copied: u64,
    is_unfinished: bool,
}

impl MadeInode {
    fn make(past: &InodeTable, ino: u64, (staging, name): (&OwnedFd, &str)) -> io::Result<Self> {
        let (source, stat) = source(past, ino)?;
        let (mut copied, mut is_unfinished) = (0, is_directory(&stat));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => rustix::fs::mkdirat(staging, name, Mode::RWXU)?,
            FileType::RegularFile => {
                let from = past.open(ino, OFlags::RDONLY)?;
                let from = File::from(from.ok_or(io::ErrorKind::NotFound)?);
                is_unfinished = !rustix::fs::ioctl_getflags(&from)?.is_empty();
                copied = make_file(&from, (staging, name), &stat)?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&source, c"", Vec::new())?;
                rustix::fs::symlinkat(&*target, staging, name)?;
            }
            kind => rustix::fs::mknodat(staging, name, kind, PRIVATE, stat.st_rdev)?,
        }
        let made = rustix::fs::openat(staging, name, PLACE, Mode::empty())?;
        copy_attributes(&source, &made, &stat, true)?;
        if !is_directory(&stat) {
            copy_times(&made, &stat)?;
        }
        Ok(Self {
            number: rustix::fs::fstat(&made)?.st_ino,
            copied,
            is_unfinished,
        })
    }
}

/// The inode of a snapshot, for its attributes.
fn source(past: &InodeTable, ino: u64) -> io::Result<(OwnedFd, Stat)> {
    let source = past.open(ino, PLACE)?.ok_or(io::ErrorKind::NotFound)?;
    let stat = rustix::fs::fstat(&source)?;
    Ok((source, stat))
}

#[allow(clippy::cast_sign_loss)] // no file has a negative size
fn make_file(from: &File, (staging, name): (&OwnedFd, &str), stat: &Stat) -> io::Result<u64> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // Mostly the final permissions, which spares a call.
    let permissions = Mode::from_raw_mode(stat.st_mode & 0o777);
    let made = File::from(rustix::fs::openat(staging, name, flags, permissions)?);
    let size = stat.st_size as u64;
    let copied = copy_into_empty(from, &made, size)?;
    if made.metadata()?.len() < size {
        made.set_len(size)?;
    }
    Ok(copied)
}

fn finish(present: &InodeTable, number: u64, past: &InodeTable, ino: u64) -> io::Result<()> {
    let (_, stat) = source(past, ino)?;
    if is_directory(&stat) {
        let made = present.open(number, PLACE)?;
        copy_times(&made.ok_or(io::ErrorKind::NotFound)?, &stat)?;
    }
    bring_flags_back((present, number), (past, ino))
}
