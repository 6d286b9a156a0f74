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
mod past_paths;
mod remake;
mod restrictions;
mod staging;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use serde::Serialize;

use attributes::{copy_attributes, copy_range, copy_times, is_directory};
use inodes::{InodeTable, PLACE, ROOT};
use names::{RollbackMoments, RollbackNames};
use past_paths::PastPaths;
use restrictions::Restrictions;
use staging::Staging;

pub use difference::{FileChange, FileDifference};
pub use error::RollbackError;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

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

/// Checks the places before anything is done.
///
/// # Errors
/// The places are not those of a mount and one of its snapshots, or the directory is not the same in both.
pub fn check(places: RollbackPlaces<'_>) -> Result<(), RollbackError> {
    let (present, past) = (open(places.mount)?, open(places.snapshot)?);
    check_directory(
        places.directory,
        (&PastPaths::new(&past), &PastPaths::new(&present)),
        &present,
    )
}

/// Brings the files back, by all differences between the snapshot and the snapshot `before` of the present, the root of which is in the mount.
///
/// # Errors
/// A program has changed the same files meanwhile, or a call fails. The files that were brought back until then stay.
pub fn roll_back(
    places: RollbackPlaces<'_>,
    before: &Path,
    differences: &[FileDifference],
) -> Result<RollbackSummary, RollbackError> {
    let (present, past, before) = (open(places.mount)?, open(places.snapshot)?, open(before)?);
    let (old_paths, new_paths) = (PastPaths::new(&past), PastPaths::new(&before));
    check_directory(places.directory, (&old_paths, &new_paths), &present)?;
    let wanted = within(places.directory, differences)?;
    let root = stat(present.root()).map_err(RollbackError::call("look at", "."))?;
    let restrictions = Restrictions::new(&present, &past);
    let moments = RollbackMoments {
        present: &present,
        past: &past,
        old_paths: &old_paths,
        new_paths: &new_paths,
    };
    let is_inside = |path: &[u8]| is_below(path, places.directory);
    let names = RollbackNames::new(moments, &restrictions, &is_inside)?;
    let mut rollback = Rollback {
        present: &present,
        past: &past,
        names,
        restrictions: &restrictions,
        summary: RollbackSummary::default(),
    };
    let done = rollback.run(&wanted, &root);
    // Also after an error: the flags protect the files again.
    let protected = restrictions.finish();
    done?;
    protected.map_err(RollbackError::call("set the flags of", "inodes"))?;
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

fn stat(fd: &OwnedFd) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(fd)?)
}

/// Refuses a directory that the snapshot has not, or that has another path now.
fn check_directory(
    directory: &[u8],
    (old, new): (&PastPaths<'_>, &PastPaths<'_>),
    present: &InodeTable,
) -> Result<(), RollbackError> {
    let failed = || RollbackError::call("look at", directory);
    let path = || String::from_utf8_lossy(directory).into_owned();
    let then = old.directory(directory).map_err(failed())?;
    let then = then.ok_or_else(|| RollbackError::NoDirectory { path: path() })?;
    let now = new.directory(directory).map_err(failed())?;
    let lives = || present.open(then, PLACE).map_err(failed());
    let was_moved = match now {
        Some(now) => now != then,
        None => lives()?.is_some(),
    };
    if was_moved {
        return Err(RollbackError::Moved { path: path() });
    }
    Ok(())
}

/// The differences that a directory has.
fn within<'d>(
    directory: &[u8],
    differences: &'d [FileDifference],
) -> Result<Vec<&'d FileDifference>, RollbackError> {
    // A rollback that was killed has left names there.
    let is_inside = |path: &[u8]| is_below(path, directory) || Staging::has(path);
    let mut wanted = Vec::new();
    for difference in differences {
        let [gone, back] = [difference.gone(), difference.back()].map(|it| it.map(is_inside));
        match (gone, back) {
            (Some(gone), Some(back)) if gone != back && !is_staged(difference) => {
                let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
                return Err(RollbackError::Crossing {
                    path: text(&difference.path),
                    old_path: text(difference.old_path.as_deref().unwrap_or_default()),
                });
            }
            // A staged file that belongs elsewhere waits for the rollback of its own directory.
            (Some(true), Some(false)) => {}
            (Some(true), _) | (_, Some(true)) => wanted.push(difference),
            (None, None) if is_inside(&difference.path) => wanted.push(difference),
            _ => {}
        }
    }
    Ok(wanted)
}

/// Whether a rollback that was killed has set the file aside.
fn is_staged(difference: &FileDifference) -> bool {
    Staging::has(&difference.path)
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

/// The changes of an inode that both moments have.
#[derive(Default)]
struct ChangedInode<'d> {
    path: &'d [u8],
    xattrs: bool,
    ranges: Vec<Range<u64>>,
}

/// A rollback under way.
struct Rollback<'a> {
    present: &'a InodeTable,
    past: &'a InodeTable,
    names: RollbackNames<'a>,
    restrictions: &'a Restrictions<'a>,
    summary: RollbackSummary,
}

impl Rollback<'_> {
    fn run(&mut self, wanted: &[&FileDifference], root: &Stat) -> Result<(), RollbackError> {
        self.bring_names_back(wanted)?;
        self.bring_inodes_back(wanted)?;
        self.finish(root)
    }

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
        let created = wanted.iter().filter(|it| it.change == FileChange::Created);
        let created: HashSet<u64> = created.map(|it| it.ino).collect();
        let mut inodes: BTreeMap<u64, ChangedInode<'_>> = BTreeMap::new();
        // The bytes of a new file may be told apart from its name.
        let is_wanted = |it: &&&FileDifference| it.was_there() && !created.contains(&it.ino);
        for difference in wanted.iter().filter(is_wanted) {
            let inode = inodes.entry(difference.ino).or_default();
            inode.path = &difference.path;
            inode.xattrs |= difference.xattrs;
            inode.ranges.extend(difference.ranges.iter().cloned());
            if difference.flags {
                self.restrictions.note(difference.ino);
            }
        }
        for (ino, inode) in inodes {
            // All of an inode that was made anew is that of the snapshot.
            if self.names.remade.get(ino).is_none() {
                let done = self.bring_inode_back(ino, &inode);
                done.map_err(RollbackError::call("bring back", inode.path))?;
            }
        }
        Ok(())
    }

    fn bring_inode_back(&mut self, ino: u64, inode: &ChangedInode<'_>) -> io::Result<()> {
        let source = self.past.open(ino, PLACE)?;
        let target = self.present.open(ino, PLACE)?;
        let (Some(source), Some(target)) = (source, target) else {
            // Removed since by a program.
            return Err(io::ErrorKind::NotFound.into());
        };
        let (old, now) = (stat(&source)?, stat(&target)?);
        let kind = FileType::from_raw_mode(old.st_mode);
        if kind == FileType::RegularFile {
            self.bring_bytes_back(ino, &inode.ranges, (&old, &now))?;
        }
        let lifted = self.restrictions.lifted(&[ino], || {
            copy_attributes(&source, &target, &old, inode.xattrs)?;
            if kind == FileType::Directory {
                return Ok(());
            }
            copy_times(&target, &old)
        });
        lifted?;
        if kind == FileType::Directory {
            self.names.directories.insert(ino);
        }
        self.summary.changed += 1;
        Ok(())
    }

    #[allow(clippy::cast_sign_loss)] // no file has a negative size
    fn bring_bytes_back(
        &mut self,
        ino: u64,
        ranges: &[Range<u64>],
        (old, now): (&Stat, &Stat),
    ) -> io::Result<()> {
        let (size, now) = (old.st_size as u64, now.st_size as u64);
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
        let open_it = || open(self.present, OFlags::RDWR);
        let to = self.restrictions.lifted(&[ino], open_it)?;
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
            let bring_back = || self.bring_times_back(*ino);
            let done = self.restrictions.lifted(&[*ino], bring_back);
            done.map_err(RollbackError::call(
                "set the times of",
                format!("inode {ino}"),
            ))?;
        }
        let mut outside = std::mem::take(&mut self.names.outside);
        if !directories.contains(&ROOT) {
            outside.insert(ROOT, *root_before);
        }
        for (ino, before) in outside {
            let set = || self.set_times(ino, &before);
            let done = self.restrictions.lifted(&[ino], set);
            done.map_err(RollbackError::call(
                "set the times of",
                format!("inode {ino}"),
            ))?;
        }
        let finished = self.names.remade.finish(self.present, self.past);
        finished.map_err(RollbackError::call("set the flags of", "inodes"))
    }

    fn set_times(&self, ino: u64, stat: &Stat) -> io::Result<()> {
        match self.present.open(ino, PLACE)? {
            Some(directory) => copy_times(&directory, stat),
            None => Ok(()),
        }
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
            flags: false,
            xattrs: false,
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
