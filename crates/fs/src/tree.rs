//! The file tree as clients see it: the records of the namespace, with unflushed sizes and times over them.
//!
//! [`Tree`] borrows the namespace and the content of a store. It answers lookups, and it is the [`View`] on which
//! metadata operations are planned. It writes no log: [`Tree::install`] is for the metadata log, which has logged the
//! operation before.

use std::ops::{ControlFlow, Range};

use lockstep_types::backing::parts;
use lockstep_types::{
    AllocateMode, Attr, Errno, FileName, Ino, InodeFlags, MetaOp, MetaRequest, NodeKind, Osn,
    Timestamp,
};

use crate::content::ContentStore;
use crate::content::before_change::{ByteChange, ByteEdit, ChangeOrigin};
use crate::error::{OpError, StoreError};
use crate::namespace::Namespace;
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::plan::{self, ContentEffect, Plan, View};
use crate::namespace::record::{self, Body, EntryRecord, Inode, NamedEntry};
use crate::store_disk::StoreDisk;

/// Namespace and content of one store, together.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) content: &'a ContentStore,
}

/// Size and times of a regular file, unflushed writes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTimes {
    /// Length in bytes, as clients see it.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// The write that the times belong to, while the record of the inode lacks it: a write with a lower number that
    /// completes later changes no times.
    pub last_write: Option<Osn>,
}

/// Lookups of clients. They change nothing.
impl Tree<'_> {
    /// Attributes of the inode that `name` in `parent` leads to.
    pub fn lookup(self, parent: Ino, name: &FileName) -> Result<Attr, OpError> {
        let key = keys::entry(parent, name.as_bytes());
        let bytes = self.namespace.get(&key)?.ok_or(Errno::NoEntry)?;
        let entry: EntryRecord =
            record::decode(&bytes).ok_or_else(|| StoreError::unreadable(&key))?;
        // If the inode is gone, the entry was removed between the two readings.
        self.getattr(entry.ino).map_err(|error| match error {
            OpError::Refused(Errno::Stale) => OpError::Refused(Errno::NoEntry),
            other => other,
        })
    }

    /// The inode above a directory.
    pub fn parent(self, directory: Ino) -> Result<Ino, OpError> {
        match self.existing(directory)?.body {
            Body::Directory { parent, .. } => Ok(parent),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    /// Attributes of an inode.
    pub fn getattr(self, ino: Ino) -> Result<Attr, OpError> {
        let inode = self.existing(ino)?;
        let mut attr = inode.attr(ino);
        if attr.kind == NodeKind::File {
            attr.blocks = self.content.stat(ino)?.blocks;
        }
        Ok(attr)
    }

    fn existing(self, ino: Ino) -> Result<Inode, OpError> {
        Ok(self.inode(ino)?.ok_or(Errno::Stale)?)
    }

    /// Target of a symbolic link.
    pub fn readlink(self, ino: Ino) -> Result<Vec<u8>, OpError> {
        match self.existing(ino)?.body {
            Body::Symlink { target } => Ok(target),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// Value of an extended attribute.
    pub fn getxattr(self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        let value = self.namespace.get(&keys::xattr(ino, name))?;
        Ok(value.ok_or(Errno::NoData)?)
    }

    /// Names of all extended attributes, in order.
    pub fn listxattr(self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError> {
        let keys = self.namespace.keys(&keys::of_ino(keys::XATTRS, ino))?;
        Ok(keys.iter().map(|key| keys::rest_of(key).to_vec()).collect())
    }

    /// Calls `each` with cookie and entry, the newest entry first: for all entries, or for those older than cookie
    /// `after` if that is not zero. An entry made during the call has a higher cookie and is not visited.
    pub fn readdir(
        self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(u64, NamedEntry) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        if !self.existing(directory)?.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        let mut range = keys::of_ino(keys::COOKIES, directory);
        if after > 0 {
            range = range.before(&keys::cookie(directory, after));
        }
        let mut damaged = None;
        self.namespace.scan_down(&range, &mut |key, value| {
            let cookie = keys::rest_of(key).try_into().map(u64::from_be_bytes);
            if let (Ok(cookie), Some(entry)) = (cookie, record::decode(value)) {
                each(cookie, entry)
            } else {
                damaged = Some(StoreError::unreadable(key));
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The parts of a range of a file, each with a bounded number of extents.
    pub fn parts(self, ino: Ino, range: Range<u64>) -> Result<Vec<Range<u64>>, OpError> {
        let looked = match self.content.open_content(ino)? {
            Some(content) => parts(&*content, range),
            None => Ok(vec![range]),
        };
        let looked = looked.map_err(StoreError::content("look for extents of", ino));
        Ok(looked?)
    }

    /// Inodes that have no name, to be freed when no client has them open.
    pub fn orphans(self) -> Result<Vec<Ino>, OpError> {
        let keys = self.namespace.keys(&keys::table(keys::ORPHANS))?;
        Ok(keys.iter().filter_map(|key| keys::ino_of(key)).collect())
    }
}

/// The parts of metadata operations and of resync that need no log.
impl<'a> Tree<'a> {
    /// Size and times of a regular file; `None` if there is no such file.
    pub(crate) fn file_times(self, ino: Ino) -> Result<Option<FileTimes>, OpError> {
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

    /// The disk below.
    pub(crate) const fn disk(self) -> &'a StoreDisk {
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
                origin: ChangeOrigin::Operation,
                edit: ByteEdit::Reserve {
                    offset,
                    length,
                    keep_size: true,
                },
            })?;
        }
        Ok(())
    }

    /// Refuses a write of a client that the flags of the file forbid. `is_last` says that the write was done before as an append, if
    /// the file ends with it.
    pub fn check_write(self, ino: Ino, bytes: Range<u64>, is_last: bool) -> Result<(), OpError> {
        let file = self.content.file(self.namespace, ino)?;
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
    pub(crate) fn install(self, plan: Plan, request: &MetaRequest) {
        let freed = matches!(
            request,
            MetaRequest::Reap { .. } | MetaRequest::ReapAll { .. }
        );
        if let Some(ino) = request.made() {
            self.namespace.numbers().skip(ino);
        }
        self.namespace.apply(plan.batch);
        for (ino, inode) in plan.inodes {
            match inode.map(|inode| (inode.body, inode.bits.flags)) {
                Some((Body::File { size }, flags)) => {
                    self.content.record_written(ino, size, flags);
                }
                None if freed => {
                    self.mark_freed(ino);
                    self.content.forget_file(ino);
                }
                _ => {}
            }
        }
    }

    /// Marks the content of a freed inode if an observer needs that content.
    fn mark_freed(self, ino: Ino) {
        let observers = self.content.observers();
        if let Some(mark) = observers.freed(ino, ChangeOrigin::Operation) {
            self.namespace.apply([(keys::garbage(ino), Some(mark))]);
        }
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
