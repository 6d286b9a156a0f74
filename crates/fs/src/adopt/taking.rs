//! Taking the content of one file: by a further name, by shared blocks, or by a copy.
//!
//! A move gives each file a name in the store. Once these names are on stable storage, a second walk removes the names in the
//! directory. A rename would do both at once, and a loss of power could take both names: the disk keeps any subset of unsynced
//! changes.

use lockstep_types::backing::FileIdentity;
use lockstep_types::{Ino, InodeFlags, NodeKind};
use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

use super::draft::DraftEntry;
use super::error::{AdoptError, Reason};
use super::filling::AdoptionWalk;
use super::source::{self, SourceInode};
use crate::namespace::record::{Body, Inode};
use crate::paths::content_path;
use crate::store::AdoptWay;

/// How often a file that programs change is copied.
const ATTEMPTS: usize = 3;

impl AdoptionWalk<'_, '_> {
    /// Gives a file a name in the store. The inner error says why the name is left out.
    pub(super) fn link_file(
        &mut self,
        entry: &DraftEntry,
    ) -> Result<Result<(), Reason>, AdoptError> {
        let (ino, name) = (entry.entry.ino, entry.entry.name.as_bytes());
        let path = content_path(ino);
        let stat = match (self.stat(name)?, self.content_identity(&path)?) {
            (None, None) => return Ok(Err(Reason::Gone)),
            (Some(stat), Some(here)) if source::identity_of(&stat) != here => {
                return Ok(Err(Reason::Replaced));
            }
            // Linked by another name, or by an earlier process.
            (_, Some(_)) => return Ok(Ok(())),
            (Some(stat), None) => stat,
        };
        let listed = match self.prepare_link(ino, name, &stat)? {
            Ok(listed) => listed,
            Err(why) => return Ok(Err(why)),
        };
        let locks = listed.bits.flags.intersection(InodeFlags::RESTRICTING);
        self.set_locks(name, locks, InodeFlags::NONE)?;
        self.show()?;
        if let Some(files) = self.target.files() {
            let linked = files.link_in(self.descent.fd(), name, &path);
            linked.map_err(AdoptError::disk("link a file to", &path))?;
        }
        self.show()?;
        self.set_locks(name, locks, locks)?;
        Ok(Ok(()))
    }

    /// Sets the flags of a file that has `locks`, to `wanted`.
    fn set_locks(
        &self,
        name: &[u8],
        locks: InodeFlags,
        wanted: InodeFlags,
    ) -> Result<(), AdoptError> {
        if locks == InodeFlags::NONE {
            return Ok(());
        }
        let opened = source::open(self.descent.fd(), name, OFlags::empty());
        let set = opened.and_then(|fd| source::set_restricting(fd.as_fd(), wanted));
        set.map_err(|errno| self.failed(("set the flags of", errno), name))
    }

    /// Removes the name of a file that has its name in the store, on stable storage.
    pub(super) fn remove_linked(&mut self, entry: &DraftEntry) -> Result<(), AdoptError> {
        let (ino, name) = (entry.entry.ino, entry.entry.name.as_bytes());
        let path = content_path(ino);
        let Some(here) = self.content_identity(&path)? else {
            return Ok(());
        };
        let flags = self.draft.inode(ino)?.bits.flags;
        let is_locked = flags.intersects(InodeFlags::RESTRICTING);
        if let Some(files) = self.target.files() {
            let kept = files.keep_private(&path, is_locked);
            kept.map_err(AdoptError::disk("keep private", &path))?;
        }
        self.show()?;
        match self.stat(name)? {
            Some(stat) if source::identity_of(&stat) == here => self.unlink(name),
            Some(_) => {
                self.report(name, Reason::Changed);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Device and inode number of content, if it is there.
    fn content_identity(&self, path: &str) -> Result<Option<(u64, u64)>, AdoptError> {
        let identity = self.target.backing().identity(path);
        let identity = identity.map_err(AdoptError::disk("stat", path))?;
        Ok(match identity {
            Some(FileIdentity::File(device, number)) => Some((device, number)),
            Some(FileIdentity::Missing) | None => None,
        })
    }

    /// Takes over the attributes of a file that were changed since the listing. Returns its record, or
    /// why the file is left out.
    fn prepare_link(
        &mut self,
        ino: Ino,
        name: &[u8],
        stat: &Statx,
    ) -> Result<Result<Inode, Reason>, AdoptError> {
        if source::kind_of(stat) != Some(NodeKind::File) {
            return Ok(Err(Reason::Replaced));
        }
        let listed = self.draft.inode(ino)?;
        if stat.stx_nlink > listed.nlink {
            return Ok(Err(Reason::NamesOutside));
        }
        if !is_changed(stat, &listed) {
            return Ok(Ok(listed));
        }
        self.take_changes(ino, name, *stat, &listed)
    }

    /// Copies a file. The inner error says why the name is left out.
    pub(super) fn copy_file(
        &mut self,
        entry: &DraftEntry,
    ) -> Result<Result<(), Reason>, AdoptError> {
        let (ino, name) = (entry.entry.ino, entry.entry.name.as_bytes());
        for _ in 0..ATTEMPTS {
            let Some(stat) = self.stat(name)? else {
                return Ok(Err(Reason::Gone));
            };
            if source::kind_of(&stat) != Some(NodeKind::File) {
                return Ok(Err(Reason::Replaced));
            }
            let mut listed = self.draft.inode(ino)?;
            if is_changed(&stat, &listed) {
                listed = match self.take_changes(ino, name, stat, &listed)? {
                    Ok(changed) => changed,
                    Err(why) => return Ok(Err(why)),
                };
            }
            let fd = match source::open(self.descent.fd(), name, OFlags::empty()) {
                Err(Errno::NOENT) => return Ok(Err(Reason::Gone)),
                Err(Errno::LOOP) => return Ok(Err(Reason::Replaced)),
                opened => opened.map_err(|errno| self.failed(("open", errno), name))?,
            };
            self.copy_content(ino, &mut listed, fd.as_fd(), name)?;
            self.show()?;
            let after = source::stat(fd.as_fd(), b"");
            let after = after.map_err(|errno| self.failed(("stat", errno), name))?;
            let is_same = source::identity_of(&after) == source::identity_of(&stat);
            if is_same && !is_changed(&after, &listed) {
                return Ok(Ok(()));
            }
        }
        self.report(name, Reason::Changing);
        Ok(Ok(()))
    }

    /// Gives the content the bytes of the open file, and the record the length of the content.
    fn copy_content(
        &mut self,
        ino: Ino,
        listed: &mut Inode,
        fd: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(), AdoptError> {
        let path = content_path(ino);
        let size = match listed.body {
            Body::File { size } => size,
            _ => 0,
        };
        if size > 0 && self.way() == AdoptWay::Reflink && self.target.share(fd, &path)? {
            let shared = self.target.backing().stat(&path);
            let length = shared.map_err(AdoptError::disk("stat", &path))?.length;
            if length != size {
                listed.body = Body::File { size: length };
                self.draft.put_inode(ino, listed)?;
            }
            return Ok(());
        }
        let copied = self.target.copy(fd, size, &path)?;
        copied.map_err(|failure| self.failed(failure, name))
    }

    /// Takes the attributes of a file that was changed since the listing. Returns its record, or why a store cannot hold it.
    fn take_changes(
        &mut self,
        ino: Ino,
        name: &[u8],
        stat: Statx,
        listed: &Inode,
    ) -> Result<Result<Inode, Reason>, AdoptError> {
        let found = SourceInode::read(self.descent.fd(), name, stat);
        let found = match found {
            Err((_, Errno::NOENT)) => return Ok(Err(Reason::Gone)),
            found => found.map_err(|failure| self.failed(failure, name))?,
        };
        if let Some(why) = found.problem() {
            return Ok(Err(why));
        }
        let mut record = found.record(Ino::ROOT);
        record.nlink = listed.nlink;
        record.named_at = listed.named_at;
        // An earlier process may have cleared the flags, to link the file.
        if self.way() == AdoptWay::Move {
            record.bits.flags = record.bits.flags.union(listed.bits.flags);
        }
        self.draft
            .replace_inode(ino, &record, found.kept_xattrs())?;
        Ok(Ok(record))
    }
}

/// Whether a file has other attributes or other bytes than its record says.
fn is_changed(stat: &Statx, listed: &Inode) -> bool {
    let times = (source::time(&stat.stx_mtime), source::time(&stat.stx_ctime));
    let size = Body::File {
        size: stat.stx_size,
    };
    times != (listed.mtime, listed.ctime) || size != listed.body
}
