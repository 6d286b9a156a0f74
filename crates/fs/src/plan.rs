//! What a metadata operation does to a store, worked out before anything is changed.
//!
//! [`plan`] is a pure function of the operation and of what the store holds: it either refuses, or
//! says exactly which records to write and what to do to content. Equal stores therefore get equal
//! changes from equal operations, which is what replication stands on (paper, section 5). Nothing
//! here writes, reads a clock, or checks permissions (the kernel did).

mod attributes;
mod directories;
mod draft;
mod extended;

use lockstep_types::{AllocateMode, Attr, Errno, Ino, MetaOp, MetaRequest, XattrNamespace, limits};

use crate::error::OpError;
use crate::keys::KeyRange;
use crate::record::{Body, Inode};

pub use draft::Draft;

/// What planning reads of a store.
pub trait View {
    /// Value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError>;

    /// Keys of a range, in order.
    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError>;

    /// An inode as it is now: sizes and times of unflushed writes included.
    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError>;
}

/// A change to the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentEffect {
    /// Cut or grow it to so many bytes.
    Resize(Ino, u64),
    /// Do what `fallocate` asks, offset and length in bytes.
    Allocate(Ino, AllocateMode, u64, u64),
}

impl ContentEffect {
    /// The file it changes.
    pub const fn ino(self) -> Ino {
        match self {
            Self::Resize(ino, _) | Self::Allocate(ino, ..) => ino,
        }
    }
}

/// All that one metadata operation does.
#[derive(Debug, Default)]
pub struct Plan {
    /// Records to write (`Some`) or delete (`None`), all at once.
    pub batch: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// What to do to content, if anything.
    pub content: Option<ContentEffect>,
    /// Inodes whose record is written, with the record: the file table must forget what it knew.
    pub inodes: Vec<(Ino, Option<Inode>)>,
    /// Attributes of the one inode made, linked or changed.
    pub attr: Option<Attr>,
    /// An inode that lost its last name, or was freed.
    pub orphaned: Option<Ino>,
}

/// Works out what `op` does to the store behind `view`.
///
/// # Errors
/// [`OpError::Refused`] when the rules of file systems forbid it: nothing is to be changed.
pub fn plan(view: &dyn View, op: &MetaOp) -> Result<Plan, OpError> {
    let mut draft = Draft::new(view, op);
    match &op.request {
        MetaRequest::Create { .. } => draft.create(&op.request)?,
        MetaRequest::Link { ino, parent, name } => draft.link(*ino, *parent, name)?,
        MetaRequest::Unlink { parent, name } => draft.unlink(*parent, name)?,
        MetaRequest::Rmdir { parent, name } => draft.rmdir(*parent, name)?,
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        } => draft.rename((*parent, name), (*new_parent, new_name), *mode)?,
        MetaRequest::SetAttr {
            ino,
            mode,
            uid,
            gid,
            atime,
            mtime,
        } => draft.set_attr(*ino, *mode, (*uid, *gid), (*atime, *mtime))?,
        MetaRequest::Truncate {
            ino,
            size,
            drop_set_id,
        } => draft.truncate(*ino, *size, *drop_set_id)?,
        MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        } => draft.allocate(*ino, *offset, *length, *mode)?,
        MetaRequest::DropPrivileges { ino } => draft.drop_privileges(*ino)?,
        MetaRequest::SetXattr {
            ino,
            name,
            value,
            mode,
        } => draft.set_xattr(*ino, name, value, *mode)?,
        MetaRequest::RemoveXattr { ino, name } => draft.remove_xattr(*ino, name)?,
        MetaRequest::Reap { ino } => draft.reap(*ino)?,
    }
    Ok(draft.finish())
}

/// Refuses what no new operation may ask for. An operation that a log holds already is not asked: it has
/// happened, and a store that refused to repeat it would not open.
///
/// # Errors
/// The reason, as the rules of file systems have it.
pub fn check_new(request: &MetaRequest) -> Result<(), Errno> {
    match request {
        MetaRequest::SetXattr { name, .. } | MetaRequest::RemoveXattr { name, .. } => {
            XattrNamespace::of(name).map(drop)
        }
        _ => Ok(()),
    }
}

impl Draft<'_> {
    /// Sets the size of a file.
    fn truncate(&mut self, ino: Ino, size: u64, drop_set_id: bool) -> Result<(), OpError> {
        if size > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        self.file(ino)?;
        if drop_set_id {
            self.drop_set_id(ino)?;
        }
        self.drop_capabilities(ino)?;
        self.content_changed(ino, size)?;
        self.content(ContentEffect::Resize(ino, size));
        self.answer(ino)
    }

    /// Does what `fallocate` asks.
    fn allocate(
        &mut self,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), OpError> {
        let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
        if length == 0 {
            return Err(Errno::Invalid.into());
        }
        if end > limits::FILE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        let size = self.file(ino)?;
        let grown = match mode {
            AllocateMode::Allocate | AllocateMode::ZeroRange => size.max(end),
            AllocateMode::AllocateKeepSize
            | AllocateMode::PunchHole
            | AllocateMode::ZeroRangeKeepSize => size,
        };
        self.drop_capabilities(ino)?;
        self.content_changed(ino, grown)?;
        self.content(ContentEffect::Allocate(ino, mode, offset, length));
        self.answer(ino)
    }

    /// The size of a file; refuses what has none.
    fn file(&mut self, ino: Ino) -> Result<u64, OpError> {
        match &self.inode(ino)?.body {
            Body::File { size } => Ok(*size),
            Body::Directory { .. } => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// Records a new size and that content changed now.
    fn content_changed(&mut self, ino: Ino, new_size: u64) -> Result<(), OpError> {
        let time = self.time();
        let inode = self.inode_mut(ino)?;
        if let Body::File { size } = &mut inode.body {
            *size = new_size;
        }
        inode.mtime = time;
        inode.ctime = time;
        Ok(())
    }
}
