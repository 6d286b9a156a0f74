//! The listing of the directory: the record of each inode, and everything that a store cannot hold.
//!
//! The listing only reads the directory, and writes the [draft](super::draft). Numbers are given out directory by
//! directory: first to all names in a directory, then in each of its subdirectories. [`super::filling`] passes the names
//! in the same order, so it takes content in the order of the numbers.
//!
//! Memory grows with the largest directories on one path, and with the inodes that have several names.

use std::collections::HashMap;

use lockstep_types::{FileName, Ino, NodeKind, limits};
use rustix::fs::Statx;
use rustix::io::Errno;

use super::descent::Descent;
use super::draft::{NamesDraft, entry_records};
use super::error::{AdoptError, NotAdopted, Reason};
use super::progress::{AdoptionProgress, CountedWatcher, Phase};
use super::source::{self, SourceInode};
use super::target::AdoptTarget;
use crate::backing::os_backing::MountPlace;
use crate::namespace::keys;
use crate::namespace::record::RecordChange;
use crate::namespace::record::{self, Body, EntryPlace, Inode};
use crate::store::adoption::AdoptionTotals;

/// Records that are collected before they go to the draft.
const BATCH_MAX: usize = 4096;

/// The rules of a listing.
pub(super) struct ListingRules {
    /// The files will be moved.
    pub is_move: bool,
    /// Other file systems below the directory are left out.
    pub one_file_system: bool,
}

/// The outcome of a listing.
pub(super) struct ListedSource {
    pub totals: AdoptionTotals,
    /// Number of names that a store cannot hold.
    pub problems: u64,
    /// Every number below was given out, or may have been.
    pub ino_limit: Ino,
    /// Space that copies of all files take.
    pub disk_bytes: u64,
    /// Whether the first file with content can share its blocks with the store; `None` without such a file.
    pub can_clone: Option<bool>,
}

/// An inode with several names.
struct Linked {
    ino: Ino,
    /// Names found so far, and names by its file system.
    names: (u32, u32),
    /// One of its names.
    name: String,
}

/// A directory that was found, and not listed yet.
struct FoundDirectory {
    name: Vec<u8>,
    ino: Ino,
    record: Inode,
}

/// A listing under way.
pub(super) struct SourceListing<'a, 'w> {
    rules: ListingRules,
    target: &'a AdoptTarget,
    draft: &'a NamesDraft,
    watch: &'a mut CountedWatcher<'w>,
    descent: Descent,
    top: MountPlace,
    next: Ino,
    links: HashMap<(u64, u64), Linked>,
    batch: Vec<RecordChange>,
    listed: ListedSource,
}

impl<'a, 'w> SourceListing<'a, 'w> {
    /// A listing of the directory at which `descent` is.
    pub fn new(
        rules: ListingRules,
        (target, draft): (&'a AdoptTarget, &'a NamesDraft),
        descent: Descent,
        watch: &'a mut CountedWatcher<'w>,
    ) -> Result<Self, AdoptError> {
        let stat = source::stat(descent.fd(), b"");
        let stat = stat.map_err(|errno| AdoptError::source(("stat", errno), ".".to_owned()))?;
        Ok(Self {
            rules,
            target,
            draft,
            watch,
            descent,
            top: source::place_of(&stat),
            next: Ino::ROOT.next(),
            links: HashMap::new(),
            batch: Vec::new(),
            listed: ListedSource {
                totals: AdoptionTotals::default(),
                problems: 0,
                ino_limit: Ino::ROOT.next(),
                disk_bytes: 0,
                can_clone: None,
            },
        })
    }

    /// Lists everything.
    pub fn run(mut self) -> Result<ListedSource, AdoptError> {
        let top = self.stat(b"")?.map(|stat| (stat, self.read(b"", stat)));
        let Some((_, Some(top))) = top else {
            return Ok(self.listed);
        };
        let record = top.record(Ino::ROOT);
        self.put_xattrs(Ino::ROOT, &top);
        drop(top);
        let mut levels = vec![self.directory(Ino::ROOT, record)?];
        while let Some(level) = levels.last_mut() {
            let Some(found) = level.pop() else {
                levels.pop();
                if !levels.is_empty() {
                    self.leave()?;
                }
                continue;
            };
            match self.descent.enter(&found.name) {
                Ok(()) => levels.push(self.directory(found.ino, found.record)?),
                Err(errno) => self.not_entered(&found, errno)?,
            }
        }
        self.put_batch()?;
        self.check_links();
        self.listed.ino_limit = self.next;
        Ok(self.listed)
    }

    fn leave(&mut self) -> Result<(), AdoptError> {
        let name = self.descent.name(b"");
        let left = self.descent.leave();
        left.map_err(|failure| AdoptError::source(failure, name))
    }

    /// A directory that has gone meanwhile is an empty one: the rest of the adoption finds that the directory is gone.
    fn not_entered(&mut self, found: &FoundDirectory, errno: Errno) -> Result<(), AdoptError> {
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            self.problem(&found.name, Reason::Unreadable("open", errno));
        }
        self.listed.totals.directories += 1;
        self.draft.put_inode(found.ino, &found.record)
    }

    /// Lists one directory. Returns the directories in it, the first one last.
    fn directory(
        &mut self,
        ino: Ino,
        mut record: Inode,
    ) -> Result<Vec<FoundDirectory>, AdoptError> {
        self.listed.totals.directories += 1;
        let mut directories = Vec::new();
        let names = match self.descent.names() {
            Ok(names) => names,
            Err((operation, errno)) => {
                self.problem(b"", Reason::Unreadable(operation, errno));
                Vec::new()
            }
        };
        for name in names {
            if let Some(found) = self.name(ino, &mut record, name)? {
                directories.push(found);
            }
            if self.batch.len() > BATCH_MAX {
                self.put_batch()?;
            }
        }
        if record.nlink > limits::LINKS_MAX {
            self.problem(b"", Reason::TooManyLinks);
        }
        let key = keys::inode(ino);
        self.batch.push((key, Some(record::encode(&record))));
        directories.reverse();
        Ok(directories)
    }

    /// Lists one name, in the directory of this record. Returns a directory that is to be listed.
    fn name(
        &mut self,
        directory: Ino,
        above: &mut Inode,
        name: Vec<u8>,
    ) -> Result<Option<FoundDirectory>, AdoptError> {
        let Some(stat) = self.stat(&name)? else {
            return Ok(None);
        };
        if self.target.is_store(source::identity_of(&stat)) {
            return Ok(None);
        }
        let Ok(file_name) = FileName::new(&name) else {
            self.problem(&name, Reason::Name);
            return Ok(None);
        };
        let is_below = source::place_of(&stat) == self.top;
        if !is_below && !self.may_leave_out(&name, &stat) {
            return Ok(None);
        }
        let Some(found) = self.read(&name, stat) else {
            return Ok(None);
        };
        let kind = found.kind().unwrap_or(NodeKind::File);
        let (ino, is_new) = self.number(&name, &stat, kind)?;
        let is_directory = kind == NodeKind::Directory;
        let cookie = add_entry(above, is_directory);
        let records = entry_records(directory, &file_name, (ino, kind), cookie);
        self.batch.extend(records);
        self.listed.totals.names += 1;
        self.count(&stat, kind, is_new);
        self.show()?;
        if !is_new {
            return Ok(None);
        }
        self.put_xattrs(ino, &found);
        let mut record = found.record(directory);
        record.named_at = Some(EntryPlace { directory, cookie });
        if is_directory && is_below {
            return Ok(Some(FoundDirectory { name, ino, record }));
        }
        let key = keys::inode(ino);
        self.batch.push((key, Some(record::encode(&record))));
        Ok(None)
    }

    /// Whether the name, where another file system begins, becomes an empty directory.
    fn may_leave_out(&mut self, name: &[u8], stat: &Statx) -> bool {
        if !self.rules.one_file_system {
            self.problem(name, Reason::OtherFileSystem);
            return false;
        }
        self.listed.totals.left_out += 1;
        source::kind_of(stat) == Some(NodeKind::Directory)
    }

    /// The number of the inode of a name, and whether this is its first name.
    fn number(
        &mut self,
        name: &[u8],
        stat: &Statx,
        kind: NodeKind,
    ) -> Result<(Ino, bool), AdoptError> {
        let names = stat.stx_nlink;
        if kind == NodeKind::Directory || names < 2 {
            return Ok((self.next_ino(), true));
        }
        let identity = source::identity_of(stat);
        if let Some(linked) = self.links.get_mut(&identity) {
            linked.names.0 += 1;
            let ino = linked.ino;
            self.put_batch()?;
            let mut inode = self.draft.inode(ino)?;
            inode.nlink += 1;
            if inode.nlink == limits::LINKS_MAX + 1 {
                self.problem(name, Reason::TooManyLinks);
            }
            self.draft.put_inode(ino, &inode)?;
            return Ok((ino, false));
        }
        let linked = Linked {
            ino: self.next_ino(),
            names: (1, names),
            name: self.descent.name(name),
        };
        let ino = linked.ino;
        self.links.insert(identity, linked);
        Ok((ino, true))
    }

    fn next_ino(&mut self) -> Ino {
        let ino = self.next;
        self.next = ino.next();
        ino
    }

    /// Files that are moved must not have names elsewhere.
    fn check_links(&mut self) {
        if !self.rules.is_move {
            return;
        }
        let links = std::mem::take(&mut self.links);
        for linked in links.into_values().filter(|it| it.names.0 < it.names.1) {
            self.report(linked.name, Reason::NamesOutside);
        }
    }

    fn count(&mut self, stat: &Statx, kind: NodeKind, is_new: bool) {
        if kind != NodeKind::File || !is_new {
            return;
        }
        let bytes = source::data_bytes(stat);
        self.listed.totals.files += 1;
        self.listed.totals.bytes += bytes;
        self.listed.disk_bytes += bytes.next_multiple_of(limits::BLOCK_BYTES as u64);
    }

    /// The attributes of a name; `None` if the name has gone, or cannot be read.
    fn stat(&mut self, name: &[u8]) -> Result<Option<Statx>, AdoptError> {
        match source::stat(self.descent.fd(), name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => {
                self.problem(name, Reason::Unreadable("stat", errno));
                self.show().map(|()| None)
            }
        }
    }

    /// The inode of a name; `None` if the name has gone, or cannot be adopted.
    fn read(&mut self, name: &[u8], stat: Statx) -> Option<SourceInode> {
        let found = match SourceInode::read(self.descent.fd(), name, stat) {
            Ok(found) => found,
            Err((_, Errno::NOENT)) => return None,
            Err((operation, errno)) => {
                self.problem(name, Reason::Unreadable(operation, errno));
                return None;
            }
        };
        let is_file = found.kind() == Some(NodeKind::File);
        let problem = found.problem();
        let sealed = self.rules.is_move && is_file && found.is_sealed();
        if let Some(why) = problem.or_else(|| sealed.then_some(Reason::Sealed)) {
            self.problem(name, why);
            return None;
        }
        if is_file && stat.stx_size > 0 && self.listed.can_clone.is_none() {
            self.listed.can_clone = found.fd.as_ref().map(|fd| self.target.can_clone(fd));
        }
        Some(found)
    }

    fn put_xattrs(&mut self, ino: Ino, found: &SourceInode) {
        let kept = found.kept_xattrs();
        let records = kept.map(|(name, value)| (keys::xattr(ino, name), Some(value)));
        self.batch.extend(records);
    }

    fn put_batch(&mut self) -> Result<(), AdoptError> {
        self.draft.put(std::mem::take(&mut self.batch))
    }

    fn problem(&mut self, name: &[u8], why: Reason) {
        self.report(self.descent.name(name), why);
    }

    fn report(&mut self, name: String, why: Reason) {
        self.listed.problems += 1;
        self.watch.report(&NotAdopted { name, why });
    }

    fn show(&mut self) -> Result<(), AdoptError> {
        let totals = &self.listed.totals;
        self.watch.progress(&AdoptionProgress {
            phase: Phase::Listing,
            files: totals.files,
            bytes: totals.bytes,
            files_total: totals.files,
            bytes_total: totals.bytes,
        })
    }
}

/// Counts a new entry of a directory, and returns its cookie.
fn add_entry(above: &mut Inode, is_directory: bool) -> u64 {
    above.nlink += u32::from(is_directory);
    match &mut above.body {
        Body::Directory {
            next_cookie,
            entries,
            ..
        } => {
            let cookie = *next_cookie;
            *next_cookie += 1;
            *entries += 1;
            cookie
        }
        _ => 0,
    }
}
