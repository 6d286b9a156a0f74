//! The walk over all names of the draft that takes the files, and the changes of the directory since the listing.
//!
//! Every file that the walk takes was listed before, so an adoption that goes on takes the rest. A name that has gone, or that leads
//! to another file by now, is left out of the datastore, and reported. So is a name that has come.
//!
//! Invariants:
//! - The names in the directory go only once the content has its names in the store, on stable storage.
//! - A file is taken only once the draft has its record, on stable storage.
//! - `taken_below` in the note: no file with a lower number is still to be taken. It goes up only after the content
//!   below is on stable storage.

use std::collections::HashSet;

use lockstep_types::{Ino, NodeKind};
use rustix::fs::Statx;
use rustix::io::Errno;

use super::descent::Descent;
use super::draft::{DraftEntry, NamesDraft};
use super::error::{AdoptError, FailedSourceCall, NotAdopted, Reason};
use super::progress::{AdoptionProgress, CountedWatcher, Phase};
use super::source::{self, SourceInode};
use super::taken::TakenFiles;
use super::target::AdoptTarget;
use crate::backing::os_backing::MountPlace;
use crate::namespace::record::{Body, Inode};
use crate::paths::content_path;
use crate::store::AdoptWay;
use crate::store::adoption::AdoptionNote;

/// Copied bytes, and copied files, after which they go to stable storage, so that an adoption that goes on need not copy them
/// again.
#[derive(Clone, Copy, Debug)]
pub struct SyncAfter {
    /// Bytes.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

impl Default for SyncAfter {
    fn default() -> Self {
        Self {
            bytes: 4 << 30,
            files: 50_000,
        }
    }
}

/// A walk over the names of the draft.
pub(super) struct AdoptionWalk<'a, 'w> {
    pub(super) target: &'a AdoptTarget,
    pub(super) draft: &'a NamesDraft,
    pub(super) descent: Descent,
    watch: &'a mut CountedWatcher<'w>,
    note: &'a mut AdoptionNote,
    sync_after: SyncAfter,
    top: MountPlace,
    /// The names of the directories on the path, from the first one on that has gone.
    missing: Vec<Vec<u8>>,
    taken: TakenFiles,
    since_sync: (u64, u64),
    done: (u64, u64),
}

/// A directory of the draft.
struct DraftDirectory {
    ino: Ino,
    name: Vec<u8>,
}

impl<'a, 'w> AdoptionWalk<'a, 'w> {
    /// A walk that begins at the top of the directory.
    pub fn new(
        (target, draft): (&'a AdoptTarget, &'a NamesDraft),
        descent: Descent,
        (note, sync_after): (&'a mut AdoptionNote, SyncAfter),
        watch: &'a mut CountedWatcher<'w>,
    ) -> Result<Self, AdoptError> {
        let stat = source::stat(descent.fd(), b"");
        let stat = stat.map_err(|errno| AdoptError::source(("stat", errno), ".".to_owned()))?;
        Ok(Self {
            target,
            draft,
            descent,
            watch,
            taken: TakenFiles::below(note.taken_below),
            note,
            sync_after,
            top: source::place_of(&stat),
            missing: Vec::new(),
            since_sync: (0, 0),
            done: (0, 0),
        })
    }

    /// How the files are taken.
    pub(super) const fn way(&self) -> AdoptWay {
        self.note.way
    }

    /// Takes everything.
    pub fn run(&mut self) -> Result<(), AdoptError> {
        let mut levels = vec![self.directory(Ino::ROOT)?];
        while let Some(level) = levels.last_mut() {
            let Some(below) = level.pop() else {
                levels.pop();
                if !levels.is_empty() {
                    self.leave()?;
                }
                continue;
            };
            if self.enter(&below)? {
                levels.push(self.directory(below.ino)?);
            }
        }
        Ok(())
    }

    /// Goes into a directory. Returns false for one of another file system.
    fn enter(&mut self, below: &DraftDirectory) -> Result<bool, AdoptError> {
        if self.missing.is_empty() {
            let name = &below.name;
            let found = self.stat(name)?;
            if found.is_some_and(|stat| source::place_of(&stat) != self.top) {
                return Ok(false);
            }
            let entered = match found {
                Some(_) => self.descent.enter(name),
                None => Err(Errno::NOENT),
            };
            match entered {
                Ok(()) => return Ok(true),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    // An operator may remove the directories of which the files are moved.
                    if !self.note.emptying {
                        self.report(name, Reason::DirectoryGone);
                    }
                }
                Err(errno) => return Err(self.failed(("open", errno), name)),
            }
        }
        self.missing.push(below.name.clone());
        Ok(true)
    }

    fn leave(&mut self) -> Result<(), AdoptError> {
        if self.missing.pop().is_some() {
            return Ok(());
        }
        let name = self.descent.name(b"");
        let left = self.descent.leave();
        left.map_err(|failure| AdoptError::source(failure, name))
    }

    /// Takes the files of one directory. Returns the directories in it, the first one last.
    fn directory(&mut self, ino: Ino) -> Result<Vec<DraftDirectory>, AdoptError> {
        let entries = self.draft.entries(ino)?;
        let flags = self.draft.inode(ino)?.bits.flags;
        let locked = self.note.emptying && self.missing.is_empty();
        let locked = locked && flags.intersects(lockstep_types::InodeFlags::RESTRICTING);
        if locked {
            self.restrict(lockstep_types::InodeFlags::NONE)?;
        }
        let mut directories = Vec::new();
        for entry in &entries {
            self.show()?;
            match entry.entry.kind {
                NodeKind::Directory => directories.push(DraftDirectory {
                    ino: entry.entry.ino,
                    name: entry.entry.name.as_bytes().to_vec(),
                }),
                NodeKind::File if self.note.emptying => {
                    self.remove_linked(entry)?;
                    self.done.0 += 1;
                }
                NodeKind::File => self.file(ino, entry)?,
                _ if self.note.emptying => self.remove_special(ino, entry)?,
                _ => {}
            }
        }
        if !self.note.emptying {
            self.report_new_names(&entries)?;
        }
        if locked {
            self.restrict(flags)?;
        }
        directories.reverse();
        Ok(directories)
    }

    /// Sets the flags of the directory which keep its names as they are.
    fn restrict(&self, flags: lockstep_types::InodeFlags) -> Result<(), AdoptError> {
        let set = source::set_restricting(self.descent.fd(), flags);
        set.map_err(|errno| self.failed(("set the flags of", errno), b""))
    }

    fn file(&mut self, directory: Ino, entry: &DraftEntry) -> Result<(), AdoptError> {
        let ino = entry.entry.ino;
        let inode = self.draft.inode(ino)?;
        let taken = if self.way() == AdoptWay::Move {
            self.link_file(entry)?
        } else if self.taken.has(ino) {
            Ok(())
        } else {
            self.copy_file(entry)?
        };
        match taken {
            Ok(()) => self.taken.note(ino, inode.nlink),
            Err(why) => self.leave_out(directory, entry, why)?,
        }
        self.count(ino, &inode)
    }

    /// Leaves a name out of the datastore.
    pub(super) fn leave_out(
        &mut self,
        directory: Ino,
        entry: &DraftEntry,
        why: Reason,
    ) -> Result<(), AdoptError> {
        self.report(entry.entry.name.as_bytes(), why);
        let ino = entry.entry.ino;
        let is_last = self.draft.drop_name(directory, entry)?;
        self.taken.note_gone(ino, is_last);
        if !is_last {
            return Ok(());
        }
        // An earlier process may have begun a copy, or linked the file that had the name then.
        let path = content_path(ino);
        match self.target.backing().remove(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(AdoptError::disk("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the name of an inode that is no file and no directory: its record is all of it.
    fn remove_special(&mut self, directory: Ino, entry: &DraftEntry) -> Result<(), AdoptError> {
        let name = entry.entry.name.as_bytes();
        let Some(stat) = self.stat(name)? else {
            return Ok(());
        };
        let found = SourceInode::read(self.descent.fd(), name, stat);
        let found = found.map_err(|failure| self.failed(failure, name))?;
        let listed = self.draft.inode(entry.entry.ino)?;
        if found.record(directory).body == listed.body {
            return self.unlink(name);
        }
        self.report(name, Reason::Changed);
        Ok(())
    }

    /// Removes a name of which the store has the inode.
    pub(super) fn unlink(&self, name: &[u8]) -> Result<(), AdoptError> {
        let at = self.descent.fd();
        match rustix::fs::unlinkat(at, name, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed(("remove", errno), name)),
        }
    }

    /// Reports the names in the directory that the draft lacks.
    fn report_new_names(&mut self, entries: &[DraftEntry]) -> Result<(), AdoptError> {
        if !self.missing.is_empty() {
            return Ok(());
        }
        let known: HashSet<&[u8]> = entries
            .iter()
            .map(|entry| entry.entry.name.as_bytes())
            .collect();
        let names = self.descent.names();
        let names = names.map_err(|failure| self.failed(failure, b""))?;
        for name in names.iter().filter(|name| !known.contains(&name[..])) {
            let Some(stat) = self.stat(name)? else {
                continue;
            };
            let is_store = self.target.is_store(source::identity_of(&stat));
            let is_left_out = self.note.one_file_system && source::place_of(&stat) != self.top;
            if !is_store && !is_left_out {
                self.report(name, Reason::Came);
            }
        }
        Ok(())
    }

    /// The attributes of a name; `None` if the name has gone.
    pub(super) fn stat(&self, name: &[u8]) -> Result<Option<Statx>, AdoptError> {
        if !self.missing.is_empty() {
            return Ok(None);
        }
        match source::stat(self.descent.fd(), name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(("stat", errno), name)),
        }
    }

    pub(super) fn report(&mut self, name: &[u8], why: Reason) {
        let path: Vec<&[u8]> = self
            .missing
            .iter()
            .map(|it| &it[..])
            .chain([name])
            .collect();
        let name = self.descent.name(&path.join(&b'/'));
        self.watch.report(&NotAdopted { name, why });
    }

    /// The error of a call on a name of the directory.
    pub(super) fn failed(&self, failure: FailedSourceCall, name: &[u8]) -> AdoptError {
        AdoptError::source(failure, self.descent.name(name))
    }

    /// Is called between two steps that change the directory or the store.
    pub(super) fn show(&mut self) -> Result<(), AdoptError> {
        self.watch.progress(&AdoptionProgress {
            phase: if self.note.emptying {
                Phase::Emptying
            } else {
                Phase::Taking
            },
            files: self.done.0,
            bytes: self.done.1,
            files_total: self.note.totals.files,
            bytes_total: self.note.totals.bytes,
        })
    }

    /// Counts a file, once. Puts the copies so far on stable storage from time to time.
    fn count(&mut self, ino: Ino, inode: &Inode) -> Result<(), AdoptError> {
        let (is_first, was_taken) = self.taken.pass(ino);
        if !is_first {
            return Ok(());
        }
        let size = match inode.body {
            Body::File { size } => size,
            _ => 0,
        };
        let left = self.note.totals.bytes.saturating_sub(self.done.1);
        self.done = (self.done.0 + 1, self.done.1 + size.min(left));
        if was_taken {
            return Ok(());
        }
        self.since_sync = (self.since_sync.0 + size, self.since_sync.1 + 1);
        let is_due = self.since_sync.0 >= self.sync_after.bytes
            || self.since_sync.1 >= self.sync_after.files;
        if is_due && self.way() != AdoptWay::Move {
            self.sync_copies()?;
        }
        Ok(())
    }

    fn sync_copies(&mut self) -> Result<(), AdoptError> {
        self.draft.flush()?;
        let backing = self.target.backing();
        let synced = backing.sync_all();
        synced.map_err(AdoptError::disk("sync", "."))?;
        self.note.taken_below = self.taken.all_below();
        self.note.write(backing.as_ref())?;
        self.since_sync = (0, 0);
        Ok(())
    }

    /// Programs that had a moved file open may have gone on to change it: its size is that of its content.
    pub fn take_lengths(self) -> Result<(), AdoptError> {
        let backing = self.target.backing();
        let mut other = Vec::new();
        let mut failed = Ok(());
        self.draft.each_inode(|ino, inode| {
            let Body::File { size } = inode.body else {
                return;
            };
            let path = content_path(ino);
            match backing.stat(&path) {
                Ok(found) if found.length == size => {}
                Ok(found) => other.push((ino, found.length)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && size == 0 => {}
                Err(error) => failed = Err(AdoptError::disk("stat", &path)(error)),
            }
        })?;
        failed?;
        for (ino, size) in other {
            let mut inode = self.draft.inode(ino)?;
            inode.body = Body::File { size };
            self.draft.put_inode(ino, &inode)?;
            let name = format!("inode {ino}");
            let why = Reason::Changing;
            self.watch.report(&NotAdopted { name, why });
        }
        Ok(())
    }
}
