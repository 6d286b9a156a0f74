//! The names of a rollback: those that have come since the snapshot go, and those that have gone come back.
//!
//! First each name that has come goes: one of a new inode is removed, and one of an inode that the snapshot has moves into the *staging
//! directory*. So each old name is free, and a directory that was moved waits with its content. Then the old names come back,
//! directories before their content: from the staging directory, as a further name of an inode that lives, or made anew from the snapshot.
//!
//! A rollback that was killed leaves its staging directory. The next one finds there files that have "moved" since the snapshot.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::difference::FileDifference;
use crate::error::RollbackError;
use crate::inodes::InodeTable;
use crate::remake::Remade;

/// The name of a staging directory in the root begins with this.
pub(crate) const STAGING: &str = ".lockstep-rollback";

const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// See the head of this file.
pub(crate) struct RollbackNames<'a> {
    present: &'a InodeTable,
    past: &'a InodeTable,
    staging: (OwnedFd, String),
    /// Names in the staging directory: one for each name that has moved there.
    staged: u64,
    /// The directories in the staging directory, by inode.
    moved: HashMap<u64, String>,
    /// Inodes that were made anew, by their number in the snapshot.
    pub remade: Remade,
    /// The directories of the present in which names have changed.
    pub directories: BTreeSet<u64>,
    /// The directory that was opened last, by path.
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl<'a> RollbackNames<'a> {
    /// Makes the staging directory.
    pub fn new(present: &'a InodeTable, past: &'a InodeTable) -> Result<Self, RollbackError> {
        let mut number = 0;
        loop {
            let name = match number {
                0 => STAGING.to_owned(),
                number => format!("{STAGING}-{number}"),
            };
            match rustix::fs::mkdirat(present.root(), &name, Mode::RWXU) {
                Err(Errno::EXIST) => number += 1,
                made => {
                    made.map_err(RollbackError::call("make", &name))?;
                    let fd = open_below(present.root(), name.as_bytes())?;
                    return Ok(Self {
                        present,
                        past,
                        staging: (fd, name),
                        staged: 0,
                        moved: HashMap::new(),
                        remade: Remade::default(),
                        directories: BTreeSet::new(),
                        last: None,
                    });
                }
            }
        }
    }

    /// Opens the directory of a path of any length. Returns the last name, too.
    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(&OwnedFd, &'p [u8]), RollbackError> {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => {
                let (above, rest) = path.split_at(at);
                (above, rest.get(1..).unwrap_or_default())
            }
            None => (&[][..], path),
        };
        let is_last = self.last.as_ref().is_some_and(|(last, _)| last == above);
        if !is_last {
            let mut directory = open_below(self.present.root(), b".")?;
            for step in above
                .split(|byte| *byte == b'/')
                .filter(|it| !it.is_empty())
            {
                directory = match open_below(&directory, step) {
                    Err(RollbackError::Call { source, .. })
                        if source.kind() == std::io::ErrorKind::NotFound =>
                    {
                        return Err(changed(path));
                    }
                    opened => opened?,
                };
            }
            self.last = Some((above.to_vec(), directory));
        }
        match &self.last {
            Some((_, directory)) => Ok((directory, name)),
            None => Err(changed(path)),
        }
    }

    /// Notes that names in a directory change.
    fn note_directory(&mut self, directory: &OwnedFd, path: &[u8]) -> Result<(), RollbackError> {
        let stat = rustix::fs::fstat(directory);
        let stat = stat.map_err(RollbackError::call("look at the directory of", path))?;
        self.directories.insert(stat.st_ino);
        Ok(())
    }

    /// Takes a name away that has come since the snapshot. The names in a directory come before the directory.
    pub fn take_away(
        &mut self,
        difference: &FileDifference,
        path: &[u8],
    ) -> Result<(), RollbackError> {
        let (parent, name) = self.parent(path)?;
        let parent = duplicate(parent, path)?;
        match stat_of(&parent, name) {
            Err(Errno::NOENT) => return Ok(()),
            Ok(stat) if stat.st_ino == difference.ino => {}
            Ok(_) => return Err(changed(path)),
            Err(errno) => return Err(RollbackError::call("look at", path)(errno)),
        }
        self.note_directory(&parent, path)?;
        if difference.was_there() {
            return self.set_aside(difference, &parent, name, path);
        }
        let flags = if difference.is_directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        match rustix::fs::unlinkat(&parent, name, flags) {
            Err(Errno::NOTEMPTY) => Err(changed(path)),
            removed => removed.map_err(RollbackError::call("remove", path)),
        }
    }

    fn set_aside(
        &mut self,
        difference: &FileDifference,
        parent: &OwnedFd,
        name: &[u8],
        path: &[u8],
    ) -> Result<(), RollbackError> {
        let (staging, _) = &self.staging;
        let staged = format!("{}.{}", difference.ino, self.staged);
        let moved = rustix::fs::renameat(parent, name, staging, &staged);
        moved.map_err(RollbackError::call("move", path))?;
        self.staged += 1;
        if difference.is_directory {
            self.moved.insert(difference.ino, staged);
            // The open directory may be below this one.
            self.last = None;
        }
        Ok(())
    }

    /// Brings a name back that the snapshot has. A directory comes before the names in it. Returns the number of bytes that were copied.
    pub fn bring_back(
        &mut self,
        difference: &FileDifference,
        path: &[u8],
    ) -> Result<u64, RollbackError> {
        let (parent, name) = self.parent(path)?;
        let parent = duplicate(parent, path)?;
        match stat_of(&parent, name) {
            Err(Errno::NOENT) => {}
            // Another name of the same difference.
            Ok(stat) if stat.st_ino == difference.ino => return Ok(0),
            Ok(_) => return Err(changed(path)),
            Err(errno) => return Err(RollbackError::call("look at", path)(errno)),
        }
        self.note_directory(&parent, path)?;
        if let Some(staged) = self.moved.remove(&difference.ino) {
            let (staging, _) = &self.staging;
            let moved = rustix::fs::renameat(staging, &staged, &parent, name);
            moved.map_err(RollbackError::call("move back", path))?;
            return Ok(0);
        }
        let is_linked =
            !difference.is_directory && self.link(difference.ino, (&parent, name), path)?;
        if is_linked {
            return Ok(0);
        }
        self.remade
            .make(self.past, difference.ino, (&parent, name), path)
    }

    /// Gives an inode that lives a further name. Returns whether the inode lives, or was made anew before.
    fn link(
        &self,
        ino: u64,
        (parent, name): (&OwnedFd, &[u8]),
        path: &[u8],
    ) -> Result<bool, RollbackError> {
        let alive = match self.remade.get(ino) {
            Some(made) => Some(duplicate(made, path)?),
            None => self
                .present
                .open(ino, PLACE)
                .map_err(RollbackError::call("link", path))?,
        };
        let Some(alive) = alive else {
            return Ok(false);
        };
        match rustix::fs::linkat(&alive, c"", parent, name, AtFlags::EMPTY_PATH) {
            // A program has the inode open, and it has no name: it cannot get one.
            Err(Errno::NOENT) => Ok(false),
            linked => linked
                .map(|()| true)
                .map_err(RollbackError::call("link", path)),
        }
    }

    /// Removes the staging directory with the names that are not needed any more.
    pub fn clear_staging(&self) -> Result<(), RollbackError> {
        let (staging, name) = &self.staging;
        let failed = || RollbackError::call("empty", name);
        let listed = rustix::fs::openat(
            staging,
            c".",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let directory = rustix::fs::Dir::new(listed.map_err(failed())?).map_err(failed())?;
        for entry in directory {
            let entry = entry.map_err(failed())?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                let removed = rustix::fs::unlinkat(staging, entry.file_name(), AtFlags::empty());
                removed.map_err(failed())?;
            }
        }
        let removed = rustix::fs::unlinkat(self.present.root(), name, AtFlags::REMOVEDIR);
        removed.map_err(RollbackError::call("remove", name))
    }
}

fn changed(path: &[u8]) -> RollbackError {
    RollbackError::Changed {
        path: String::from_utf8_lossy(path).into_owned(),
    }
}

fn stat_of(parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<Stat> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn duplicate(fd: &OwnedFd, path: &[u8]) -> Result<OwnedFd, RollbackError> {
    fd.try_clone()
        .map_err(RollbackError::call("open the directory of", path))
}

/// Opens a directory in a directory.
fn open_below(above: &OwnedFd, name: &[u8]) -> Result<OwnedFd, RollbackError> {
    let flags = PLACE | OFlags::DIRECTORY;
    let opened = rustix::fs::openat(above, name, flags, Mode::empty());
    opened.map_err(RollbackError::call("open", name))
}
