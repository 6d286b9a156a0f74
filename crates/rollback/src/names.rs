//! The names of a rollback: those that have come since the snapshot go, and those that have gone come back.
//!
//! First each name that has come goes: one of a new inode is removed, and one of an inode that the snapshot has moves into the
//! [staging directory](crate::staging). So each old name is free, and a directory that was moved waits with its content. Then the old names
//! come back, directories before their content: from the staging directory, as a further name of an inode that lives, or made anew from the
//! snapshot.
//!
//! No path of the present is followed: programs may change it. The directory of a name is looked up in the snapshot that has the name,
//! and opened by its inode number.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, OFlags, Stat};
use rustix::io::Errno;

use crate::difference::FileDifference;
use crate::error::RollbackError;
use crate::inodes::{InodeTable, PLACE};
use crate::past_paths::{PastPaths, split};
use crate::remake::Remade;
use crate::restrictions::{Restrictions, is};
use crate::staging::Staging;

/// The moments of a rollback.
#[derive(Clone, Copy)]
pub(crate) struct RollbackMoments<'a> {
    pub present: &'a InodeTable,
    pub past: &'a InodeTable,
    /// The paths of the snapshot.
    pub old_paths: &'a PastPaths<'a>,
    /// The paths of the snapshot of the begin.
    pub new_paths: &'a PastPaths<'a>,
}

/// See the head of this file.
pub(crate) struct RollbackNames<'a> {
    moments: RollbackMoments<'a>,
    restrictions: &'a Restrictions<'a>,
    /// Whether a path is one of the rollback.
    is_inside: &'a dyn Fn(&[u8]) -> bool,
    staging: Staging,
    /// The directories in the staging directory, by inode.
    moved: HashMap<u64, String>,
    /// Inodes that were made anew.
    pub remade: Remade,
    /// The directories of the present in which names have changed.
    pub directories: BTreeSet<u64>,
    /// The same outside of the rollback, with their attributes from before.
    pub outside: BTreeMap<u64, Stat>,
}

/// The directory of a name in the present.
struct Above {
    directory: OwnedFd,
    ino: u64,
}

impl<'a> RollbackNames<'a> {
    /// Makes the staging directory.
    pub fn new(
        moments: RollbackMoments<'a>,
        restrictions: &'a Restrictions<'a>,
        is_inside: &'a dyn Fn(&[u8]) -> bool,
    ) -> Result<Self, RollbackError> {
        let pasts = [moments.old_paths, moments.new_paths];
        let staging = Staging::make(moments.present, pasts, restrictions);
        Ok(Self {
            moments,
            restrictions,
            is_inside,
            staging: staging.map_err(RollbackError::call("make", "a staging directory"))?,
            moved: HashMap::new(),
            remade: Remade::default(),
            directories: BTreeSet::new(),
            outside: BTreeMap::new(),
        })
    }

    /// Opens the directory of a path, which is one of `paths`, in the present.
    fn above<'p>(
        &self,
        paths: &PastPaths<'_>,
        path: &'p [u8],
    ) -> Result<(Above, &'p [u8]), RollbackError> {
        let failed = || RollbackError::call("open the directory of", path);
        let (above, name) = split(path);
        let ino = paths.directory(above).map_err(failed())?;
        let ino = ino.ok_or_else(|| changed(path))?;
        let ino = self.remade.get(ino).unwrap_or(ino);
        let opened = self.moments.present.open(ino, PLACE | OFlags::DIRECTORY);
        let directory = opened.map_err(failed())?.ok_or_else(|| changed(path))?;
        Ok((Above { directory, ino }, name))
    }

    /// Notes that names in a directory change.
    fn note_directory(&mut self, above: &Above, path: &[u8]) -> Result<(), RollbackError> {
        let (directory, _) = split(path);
        if (self.is_inside)(directory) {
            self.directories.insert(above.ino);
        } else if let Entry::Vacant(entry) = self.outside.entry(above.ino) {
            let stat = rustix::fs::fstat(&above.directory);
            let stat = stat.map_err(RollbackError::call("look at the directory of", path))?;
            entry.insert(stat);
        }
        Ok(())
    }

    /// Looks at a name. That of a file of another file system, which is mounted there, is never one of the rollback.
    fn look(&self, above: &Above, name: &[u8], path: &[u8]) -> Result<Option<Stat>, RollbackError> {
        match rustix::fs::statat(&above.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Ok(stat) if stat.st_dev != self.moments.present.device() => Err(changed(path)),
            looked => looked
                .map(Some)
                .map_err(RollbackError::call("look at", path)),
        }
    }

    /// Takes a name away that has come since the snapshot. The names in a directory come before the directory.
    pub fn take_away(
        &mut self,
        difference: &FileDifference,
        path: &[u8],
    ) -> Result<(), RollbackError> {
        let (above, name) = self.above(self.moments.new_paths, path)?;
        match self.look(&above, name, path)? {
            None => return Ok(()),
            Some(stat) if stat.st_ino == difference.ino => {}
            Some(_) => return Err(changed(path)),
        }
        self.note_directory(&above, path)?;
        if difference.was_there() {
            return self.set_aside(difference, &above, name, path);
        }
        let flags = if difference.is_directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        let remove = || Ok(rustix::fs::unlinkat(&above.directory, name, flags)?);
        let inodes = [above.ino, difference.ino];
        match self.restrictions.lifted(&inodes, remove) {
            Err(error) if is(&error, Errno::NOTEMPTY) => Err(changed(path)),
            removed => removed.map_err(RollbackError::call("remove", path)),
        }
    }

    fn set_aside(
        &mut self,
        difference: &FileDifference,
        above: &Above,
        name: &[u8],
        path: &[u8],
    ) -> Result<(), RollbackError> {
        let staged = self.staging.next_name();
        let (from, to) = (&above.directory, self.staging.directory());
        let set_aside = || Ok(rustix::fs::renameat(from, name, to, &staged)?);
        let inodes = [above.ino, difference.ino];
        let moved = self.restrictions.lifted(&inodes, set_aside);
        moved.map_err(RollbackError::call("move", path))?;
        if difference.is_directory {
            self.moved.insert(difference.ino, staged);
        }
        Ok(())
    }

    /// Brings a name back that the snapshot has. A directory comes before the names in it. Returns the number of bytes that were copied.
    pub fn bring_back(
        &mut self,
        difference: &FileDifference,
        path: &[u8],
    ) -> Result<u64, RollbackError> {
        let (above, name) = self.above(self.moments.old_paths, path)?;
        match self.look(&above, name, path)? {
            None => {}
            // Another name of the same difference.
            Some(stat) if stat.st_ino == difference.ino => return Ok(0),
            Some(_) => return Err(changed(path)),
        }
        self.note_directory(&above, path)?;
        if let Some(staged) = self.moved.remove(&difference.ino) {
            return self.place(&staged, difference.ino, &above, name, path);
        }
        if !difference.is_directory && self.link(difference.ino, &above, name, path)? {
            return Ok(0);
        }
        let staged = self.staging.next_name();
        let place = (self.staging.directory(), &*staged);
        let made = self.remade.make(self.moments.past, difference.ino, place);
        let copied = made.map_err(RollbackError::call("bring back", path))?;
        self.place(&staged, difference.ino, &above, name, path)?;
        Ok(copied)
    }

    /// Moves a staged file to its place. Returns that no bytes were copied.
    fn place(
        &self,
        staged: &str,
        ino: u64,
        above: &Above,
        name: &[u8],
        path: &[u8],
    ) -> Result<u64, RollbackError> {
        let place = || self.staging.place(staged, (&above.directory, name));
        match self.restrictions.lifted(&[above.ino, ino], place) {
            Err(error) if is(&error, Errno::EXIST) => Err(changed(path)),
            placed => placed
                .map(|()| 0)
                .map_err(RollbackError::call("move back", path)),
        }
    }

    /// Gives an inode that lives a further name. Returns whether the inode lives, or was made anew before.
    fn link(
        &self,
        ino: u64,
        above: &Above,
        name: &[u8],
        path: &[u8],
    ) -> Result<bool, RollbackError> {
        let number = self.remade.get(ino).unwrap_or(ino);
        let alive = self.moments.present.open(number, PLACE);
        let Some(alive) = alive.map_err(RollbackError::call("link", path))? else {
            return Ok(false);
        };
        let link = || {
            let flags = AtFlags::EMPTY_PATH;
            Ok(rustix::fs::linkat(
                &alive,
                c"",
                &above.directory,
                name,
                flags,
            )?)
        };
        match self.restrictions.lifted(&[above.ino, number], link) {
            // A program has the inode open, and it has no name: it cannot get one.
            Err(error) if is(&error, Errno::NOENT) => Ok(false),
            Err(error) if is(&error, Errno::EXIST) => Err(changed(path)),
            linked => linked
                .map(|()| true)
                .map_err(RollbackError::call("link", path)),
        }
    }

    /// Removes the staging directory with the names that are not needed any more.
    pub fn clear_staging(&self) -> Result<(), RollbackError> {
        let removed = self.staging.remove(self.moments.present);
        removed.map_err(RollbackError::call("remove", "the staging directory"))
    }
}

fn changed(path: &[u8]) -> RollbackError {
    RollbackError::Changed {
        path: String::from_utf8_lossy(path).into_owned(),
    }
}
