//! Brings the files of a mounted datastore back to a snapshot, by ordinary calls on the mount.
//!
//! The [differences](FileDifference) between the snapshot and a later moment say what is to be done, so a rollback costs as much as has changed.
//! The calls are those of any program: each is on both nodes before it returns, other programs see the files change, and open files stay
//! open. An inode that lives keeps its number, and only its differing bytes are written. One that is gone is made anew.
//!
//! A rollback that was killed leaves a mixture, and the next one goes on from there: it begins with the differences of then.

mod attributes;
mod difference;
mod error;
mod inodes;
mod names;
mod remake;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, IFlags, Mode, OFlags, Stat};
use serde::Serialize;

use attributes::{
    copy_attributes, copy_range, copy_times, flags_of, is_directory, set_flags, unrestricted,
};
use inodes::InodeTable;
use names::{RollbackNames, STAGING};

pub use difference::{FileChange, FileDifference};
pub use error::RollbackError;

const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// The number of the root.
const ROOT: u64 = 1;

/// The directories of a rollback.
#[derive(Clone, Copy, Debug)]
pub struct RollbackPlaces<'a> {
    /// The mount of the datastore.
    pub mount: &'a Path,
    /// The root of the snapshot in the mount.
    pub snapshot: &'a Path,
    /// The directory of the datastore that is brought back, as a path from the root; empty for everything.
    pub directory: &'a [u8],
}

/// The work of a rollback, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RollbackSummary {
    /// Names that are gone now.
    pub removed: u64,
    /// Names that have come back.
    pub restored: u64,
    /// Inodes that have other bytes or attributes now.
    pub changed: u64,
    /// Bytes that were written.
    pub bytes: u64,
}

/// Brings the files back, by all differences between the snapshot and now. They are on stable storage when this returns.
///
/// # Errors
/// A program has changed the same files meanwhile, or a call fails. The files that were brought back until then stay.
pub fn roll_back(
    places: RollbackPlaces<'_>,
    differences: &[FileDifference],
) -> Result<RollbackSummary, RollbackError> {
    let (present, past) = (open(places.mount)?, open(places.snapshot)?);
    let _alone = lock(present.root())?;
    let wanted = within(places.directory, differences)?;
    let before = stat(present.root()).map_err(RollbackError::call("look at", "."))?;
    let flags = lift_restrictions(&present, &wanted)?;
    let names = RollbackNames::new(&present, &past)?;
    let mut rollback = Rollback {
        present: &present,
        past: &past,
        names,
        flags,
        summary: RollbackSummary::default(),
    };
    rollback.bring_names_back(&wanted)?;
    rollback.bring_inodes_back(&wanted)?;
    rollback.finish(&before)?;
    let synced = rustix::fs::syncfs(present.root());
    synced.map_err(RollbackError::call("sync", "."))?;
    Ok(rollback.summary)
}

fn open(directory: &Path) -> Result<InodeTable, RollbackError> {
    let opened = rustix::fs::open(directory, DIRECTORY, Mode::empty());
    let table = opened.map_err(io::Error::from).and_then(InodeTable::of);
    table.map_err(|source| RollbackError::Place {
        path: directory.display().to_string(),
        source,
    })
}

/// Keeps other rollbacks out, as long as the result is open.
fn lock(root: &OwnedFd) -> Result<OwnedFd, RollbackError> {
    let failed = || RollbackError::call("lock", ".");
    let lock = rustix::fs::openat(root, c".", DIRECTORY, Mode::empty()).map_err(failed())?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RollbackError::Running),
        locked => locked.map(|()| lock).map_err(failed()),
    }
}

fn stat(fd: &OwnedFd) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(fd)?)
}

/// The differences that a directory has.
fn within<'d>(
    directory: &[u8],
    differences: &'d [FileDifference],
) -> Result<Vec<&'d FileDifference>, RollbackError> {
    // A rollback that was killed has left names there.
    let is_inside = |path: &[u8]| is_below(path, directory) || path.starts_with(STAGING.as_bytes());
    let mut wanted = Vec::new();
    for difference in differences {
        let [gone, back] = [difference.gone(), difference.back()].map(|it| it.map(is_inside));
        match (gone, back) {
            (Some(gone), Some(back)) if gone != back => {
                let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
                return Err(RollbackError::Crossing {
                    path: text(&difference.path),
                    old_path: text(difference.old_path.as_deref().unwrap_or_default()),
                });
            }
            (Some(true), _) | (_, Some(true)) => wanted.push(difference),
            (None, None) if is_inside(&difference.path) => wanted.push(difference),
            _ => {}
        }
    }
    Ok(wanted)
}

/// Whether a path is that of a directory, or below.
fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty()
        || path
            .strip_prefix(directory)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn depth(path: &[u8]) -> usize {
    path.split(|byte| *byte == b'/').count()
}

/// Flags that inodes get at the end, as some forbid any change.
type LastFlags = Vec<(u64, OwnedFd, IFlags)>;

/// Takes the flags off that forbid changes of the inodes and of names in them, and off the root, where the staging directory is made. Returns
/// the flags of the root if it gets these back.
fn lift_restrictions(
    present: &InodeTable,
    wanted: &[&FileDifference],
) -> Result<LastFlags, RollbackError> {
    let mut inodes: BTreeMap<u64, &[u8]> = wanted.iter().map(|it| (it.ino, &*it.path)).collect();
    let is_root_wanted = inodes.insert(ROOT, b".").is_some();
    let mut last = LastFlags::new();
    for (ino, path) in inodes {
        let lifted = lift_restriction(present, ino);
        let lifted = lifted.map_err(RollbackError::call("take the flags off", path))?;
        if ino == ROOT && !is_root_wanted {
            last.extend(lifted.map(|(file, flags)| (ino, file, flags)));
        }
    }
    Ok(last)
}

/// Returns the inode and the flags that it had, if some forbade changes.
fn lift_restriction(present: &InodeTable, ino: u64) -> io::Result<Option<(OwnedFd, IFlags)>> {
    let Some(place) = present.open(ino, PLACE)? else {
        return Ok(None);
    };
    let kind = FileType::from_raw_mode(stat(&place)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(None);
    }
    let Some(file) = present.open(ino, OFlags::RDONLY)? else {
        return Ok(None);
    };
    let now = flags_of(&file)?;
    set_flags(&file, now, unrestricted(now))?;
    Ok((unrestricted(now) != now).then_some((file, now)))
}

/// A rollback under way.
struct Rollback<'a> {
    present: &'a InodeTable,
    past: &'a InodeTable,
    names: RollbackNames<'a>,
    flags: LastFlags,
    summary: RollbackSummary,
}

impl Rollback<'_> {
    fn bring_names_back(&mut self, wanted: &[&FileDifference]) -> Result<(), RollbackError> {
        let mut gone: Vec<_> = wanted
            .iter()
            .filter_map(|it| Some((it.gone()?, *it)))
            .collect();
        gone.sort_by_key(|(path, _)| Reverse(depth(path)));
        for (path, difference) in gone {
            self.names.take_away(difference, path)?;
            self.summary.removed += 1;
        }
        let mut back: Vec<_> = wanted
            .iter()
            .filter_map(|it| Some((it.back()?, *it)))
            .collect();
        back.sort_by_key(|(path, _)| depth(path));
        for (path, difference) in back {
            self.summary.bytes += self.names.bring_back(difference, path)?;
            self.summary.restored += 1;
        }
        Ok(())
    }

    /// Brings bytes and attributes of the inodes back that both moments have.
    fn bring_inodes_back(&mut self, wanted: &[&FileDifference]) -> Result<(), RollbackError> {
        let mut inodes: BTreeMap<u64, (&[u8], Vec<Range<u64>>)> = BTreeMap::new();
        for difference in wanted.iter().filter(|it| it.was_there()) {
            let entry = inodes.entry(difference.ino);
            let (_, ranges) = entry.or_insert((&difference.path, Vec::new()));
            ranges.extend(difference.ranges.iter().cloned());
        }
        for (ino, (path, ranges)) in inodes {
            // All of an inode that was made anew is that of the snapshot.
            if self.names.remade.get(ino).is_none() {
                let done = self.bring_inode_back(ino, &ranges);
                done.map_err(RollbackError::call("bring back", path))?;
            }
        }
        Ok(())
    }

    fn bring_inode_back(&mut self, ino: u64, ranges: &[Range<u64>]) -> io::Result<()> {
        let source = self.past.open(ino, PLACE)?;
        let target = self.present.open(ino, PLACE)?;
        let (Some(source), Some(target)) = (source, target) else {
            // Removed since by a program.
            return Err(io::ErrorKind::NotFound.into());
        };
        let old = stat(&source)?;
        let kind = FileType::from_raw_mode(old.st_mode);
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            self.note_flags(ino)?;
        }
        if kind == FileType::RegularFile {
            self.bring_bytes_back(ino, ranges, &old)?;
        }
        copy_attributes(&source, &target, &old)?;
        if kind == FileType::Directory {
            self.names.directories.insert(ino);
        } else {
            copy_times(&target, &old)?;
        }
        self.summary.changed += 1;
        Ok(())
    }

    /// Notes the flags that an inode gets at the end.
    fn note_flags(&mut self, ino: u64) -> io::Result<()> {
        let open = |table: &InodeTable| {
            let file = table.open(ino, OFlags::RDONLY)?;
            file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let (old, file) = (flags_of(&open(self.past)?)?, open(self.present)?);
        if flags_of(&file)? != old {
            self.flags.push((ino, file, old));
        }
        Ok(())
    }

    #[allow(clippy::cast_sign_loss)] // no file has a negative size
    fn bring_bytes_back(&mut self, ino: u64, ranges: &[Range<u64>], old: &Stat) -> io::Result<()> {
        let to = self
            .present
            .open(ino, PLACE)?
            .ok_or(io::ErrorKind::NotFound)?;
        let (size, now) = (old.st_size as u64, stat(&to)?.st_size as u64);
        let mut ranges: Vec<_> = ranges.to_vec();
        if now < size {
            ranges.push(now..size);
        }
        if ranges.is_empty() && now == size {
            return Ok(());
        }
        let open = |table: &InodeTable, flags| {
            let file = table.open(ino, flags)?;
            file.map(File::from)
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let from = open(self.past, OFlags::RDONLY)?;
        let to = open(self.present, OFlags::RDWR)?;
        if now != size {
            to.set_len(size)?;
        }
        for range in ranges {
            let range = range.start.min(size)..range.end.min(size);
            self.summary.bytes += copy_range(&from, &to, &range)?;
        }
        Ok(())
    }

    /// Removes the staging directory, and gives directories their times and inodes their flags.
    fn finish(&mut self, root_before: &Stat) -> Result<(), RollbackError> {
        self.names.clear_staging()?;
        let directories: BTreeSet<u64> = std::mem::take(&mut self.names.directories);
        for ino in &directories {
            let done = self.bring_times_back(*ino);
            done.map_err(RollbackError::call(
                "set the times of",
                format!("inode {ino}"),
            ))?;
        }
        if !directories.contains(&ROOT) {
            let done = copy_times(self.present.root(), root_before);
            done.map_err(RollbackError::call("set the times of", "."))?;
        }
        self.names.remade.finish(self.past)?;
        for (ino, file, flags) in &self.flags {
            let set = flags_of(file).and_then(|now| set_flags(file, now, *flags));
            set.map_err(RollbackError::call(
                "set the flags of",
                format!("inode {ino}"),
            ))?;
        }
        Ok(())
    }

    /// Gives a directory the times of the snapshot, if that has it.
    fn bring_times_back(&self, ino: u64) -> io::Result<()> {
        let old = self.past.open(ino, PLACE)?;
        let now = self.present.open(ino, PLACE)?;
        match (old, now) {
            (Some(old), Some(now)) => {
                let old = stat(&old)?;
                if is_directory(&old) {
                    copy_times(&now, &old)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(path: &str, old_path: &str) -> FileDifference {
        FileDifference {
            change: FileChange::Renamed,
            path: path.as_bytes().to_vec(),
            old_path: Some(old_path.as_bytes().to_vec()),
            ino: 7,
            is_directory: false,
            ranges: Vec::new(),
        }
    }

    #[test]
    fn a_directory_has_what_is_below_it() {
        let all = [
            renamed("a/x", "a/y"),
            renamed("ab/x", "ab/y"),
            renamed("a", "a"),
        ];
        let found = |directory: &[u8]| within(directory, &all).unwrap().len();
        assert_eq!((found(b""), found(b"a"), found(b"ab")), (3, 2, 1));
    }

    #[test]
    fn a_file_that_was_moved_out_of_the_directory_is_refused() {
        let all = [renamed("b/x", "a/x")];
        let refused = within(b"a", &all).unwrap_err();
        assert!(matches!(refused, RollbackError::Crossing { .. }));
        assert_eq!(within(b"c", &all).unwrap().len(), 0);
        assert_eq!(within(b"", &all).unwrap().len(), 1);
        let waits = [renamed(".lockstep-rollback/7.0", "a/x")];
        assert_eq!(within(b"a", &waits).unwrap().len(), 1);
    }
}
