//! The file tree of now: the records of the namespace, with unflushed sizes and times over them, and the content.
//!
//! [`Tree`] borrows the namespace and the content of a store. It is the [`StoreView`] of the present, and the [`View`] on
//! which metadata operations are planned. It writes no log: [`Tree::install`] is for the metadata log, which has logged the
//! operation before.

use std::ops::Range;
use std::sync::Arc;

use lockstep_types::backing::{BackingFile, BackingStat};
use lockstep_types::{AllocateMode, Errno, Ino, InodeFlags, MetaOp, MetaRequest};

use crate::content::ContentStore;
use crate::content::before_change::{ByteChange, ByteEdit};
use crate::error::{OpError, StoreError};
use crate::kv::Each;
use crate::namespace::Namespace;
use crate::namespace::keys::KeyRange;
use crate::namespace::plan::{self, ContentEffect, Plan, SnapshotChange, View};
use crate::namespace::record::{Body, Inode};
use crate::store_disk::StoreDisk;
use crate::view::{FileTimes, StoreView};

/// Namespace and content of one store, together.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) content: &'a ContentStore,
}

/// The parts of metadata operations and of resync that need no log.
impl<'a> Tree<'a> {
    /// The disk below.
    pub(crate) fn disk(self) -> &'a StoreDisk {
        self.content.disk()
    }

    /// Whether `op` would be refused now. Reserves the space that the operation needs, so that a full disk shows
    /// before the peer has agreed.
    pub(crate) fn validate(self, op: &MetaOp) -> Result<(), OpError> {
        self.disk().check_not_poisoned()?;
        plan::check_new(&op.request)?;
        let plan = plan::plan(&self, op)?;
        if let Some(ContentEffect::Allocate(ino, mode, offset, length)) = plan.content
            && mode != AllocateMode::PunchHole
        {
            self.content.change(&ByteChange {
                ino,
                edit: ByteEdit::Reserve {
                    offset,
                    length,
                    keep_size: true,
                },
            })?;
        }
        Ok(())
    }

    /// Refuses a write of a client for every reason that no waiting would change: the disk has failed, there is no such
    /// file, the file would get too long, or its flags forbid the write. `is_last` says that the write was done before as
    /// an append, if the file ends with it.
    pub fn check_write(self, ino: Ino, bytes: Range<u64>, is_last: bool) -> Result<(), OpError> {
        let length = bytes.end.saturating_sub(bytes.start);
        let file = self
            .content
            .file_to_write(self.namespace, ino, bytes.start, length)?;
        let flags = file.flags();
        if !flags.intersects(InodeFlags::RESTRICTING) {
            return Ok(());
        }
        let (size, _) = file.size_and_last_write();
        let is_append = bytes.start >= size || is_last && bytes.end == size;
        if flags.intersects(InodeFlags::IMMUTABLE) || !is_append {
            return Err(Errno::NotPermitted.into());
        }
        Ok(())
    }

    /// Makes the records of a plan visible, and tells the files in use of them.
    ///
    /// # Errors A value that a snapshot sees could not be read: no record has changed. The log says by now that the operation is
    /// committed, and its content may have changed. No later operation may be planned on the records without it, and no answer may be given:
    /// so the disk is poisoned. The next opening applies the operation from the log.
    pub(crate) fn install(self, plan: Plan, request: &MetaRequest) -> Result<(), StoreError> {
        let freed = matches!(
            request,
            MetaRequest::Reap { .. } | MetaRequest::ReapAll { .. }
        );
        if let Some(ino) = request.made() {
            self.namespace.numbers().skip(ino);
        }
        self.disk()
            .poison_on_error(self.namespace.apply(plan.batch))?;
        match plan.snapshot {
            Some(SnapshotChange::Create(id, snapshot)) => {
                self.namespace.create_snapshot(id, snapshot);
            }
            Some(SnapshotChange::Rename(id, name)) => {
                self.namespace
                    .change_snapshot(id, |record| record.make_user_own(name));
            }
            Some(SnapshotChange::Hold(id, holds)) => {
                self.namespace
                    .change_snapshot(id, |record| record.holds = holds);
            }
            Some(SnapshotChange::Delete(id)) => {
                self.namespace
                    .change_snapshot(id, |record| record.is_deleted = true);
            }
            None => {}
        }
        for (ino, inode) in plan.inodes {
            match inode.map(|inode| (inode.body, inode.bits.flags)) {
                Some((Body::File { size }, flags)) => {
                    self.content.record_written(ino, size, flags);
                }
                None if freed => self.content.forget_file(ino),
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes all content without an inode for removal.
    pub(crate) fn find_lost_content(self) -> Result<(), StoreError> {
        let removal = self.content.removal();
        removal.find_lost(self.disk(), self.namespace)
    }

    /// Takes back the bytes that a failed change of content left beyond the end of its file.
    pub(crate) fn restore_length(self, ino: Ino) {
        let restored = match self.inode(ino) {
            Ok(Some(Inode {
                body: Body::File { size },
                ..
            })) => self.content.take_back(ino, size),
            _ => Ok(()),
        };
        if let Err(error) = restored {
            tracing::warn!(%error, %ino, "could not take back a failed change of content");
        }
    }
}

impl View for Tree<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        Ok(self.namespace.get(key)?)
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError> {
        Ok(self.namespace.keys(range)?)
    }

    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        // Unflushed size and times first. If the record were read first, a checkpoint in between could move them
        // from the entry of the file into the record, and both readings would miss them.
        let file = self.content.file_in_use(ino);
        let unflushed = file.map(|file| file.size_and_last_write());
        let Some(mut inode) = self.namespace.inode(ino)? else {
            return Ok(None);
        };
        if let Some((unflushed_size, last_write)) = unflushed
            && let Body::File { size } = &mut inode.body
        {
            *size = unflushed_size;
            if let Some((_, time)) = last_write {
                inode.mtime = time;
                inode.ctime = time;
            }
        }
        Ok(Some(inode))
    }
}

impl StoreView for Tree<'_> {
    fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        Ok(self.namespace.scan(range, each)?)
    }

    fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        Ok(self.namespace.scan_down(range, each)?)
    }

    fn file_times(&self, ino: Ino) -> Result<Option<FileTimes>, OpError> {
        let file = self.content.file_in_use(ino);
        let last_write = file.and_then(|file| file.last_write());
        Ok(self.inode(ino)?.and_then(|inode| match inode.body {
            Body::File { size } => Some(FileTimes {
                size,
                mtime: inode.mtime,
                ctime: inode.ctime,
                last_write: last_write.map(|(osn, _)| osn),
            }),
            _ => None,
        }))
    }

    /// Opened for this one use, unless the file is in use: a reader of every file must not keep them all open.
    fn content(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        self.content.open_content_once(ino)
    }

    fn content_stat(&self, ino: Ino) -> Result<BackingStat, StoreError> {
        self.content.stat(ino)
    }

    fn check_content(&self, ino: Ino) -> Result<(), OpError> {
        self.content.check(self.namespace, ino)
    }
}
