//! Looking: everything that changes nothing.

use std::ops::ControlFlow;

use lockstep_types::backing::BackingStat;
use lockstep_types::{Attr, Errno, FileName, Ino, NodeKind};

use super::Store;
use crate::error::{OpError, StoreError};
use crate::files::content_path;
use crate::keys;
use crate::plan::View;
use crate::record::{self, Body, Entry, Inode, NamedEntry};

/// Where `lseek` looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// For data.
    Data,
    /// For a hole.
    Hole,
}

impl Store {
    /// Attributes of the inode that `name` in `parent` leads to.
    pub fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, OpError> {
        let key = keys::entry(parent, name.as_bytes());
        let bytes = self.names.get(&key)?.ok_or(Errno::NoEntry)?;
        let entry: Entry = record::decode(&bytes).ok_or_else(|| unreadable(&key))?;
        // An entry whose inode is gone was removed between the two readings.
        self.getattr(entry.ino).map_err(|error| match error {
            OpError::Refused(Errno::Stale) => OpError::Refused(Errno::NoEntry),
            other => other,
        })
    }

    /// The inode above a directory.
    pub fn parent(&self, directory: Ino) -> Result<Ino, OpError> {
        match self.existing(directory)?.body {
            Body::Directory { parent, .. } => Ok(parent),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    /// Attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, OpError> {
        let inode = self.existing(ino)?;
        let mut attr = inode.attr(ino);
        if attr.kind == NodeKind::File {
            attr.blocks = self.content_stat(ino)?.blocks;
        }
        Ok(attr)
    }

    fn existing(&self, ino: Ino) -> Result<Inode, OpError> {
        Ok(self.inode(ino)?.ok_or(Errno::Stale)?)
    }

    /// The record of an inode without what is unflushed.
    pub(super) fn stored_inode(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        let key = keys::inode(ino);
        let Some(bytes) = self.names.get(&key)? else {
            return Ok(None);
        };
        Ok(Some(
            record::decode(&bytes).ok_or_else(|| unreadable(&key))?,
        ))
    }

    /// Length and space of the content on disk; nothing for a file without content.
    pub(super) fn content_stat(&self, ino: Ino) -> Result<BackingStat, StoreError> {
        let path = content_path(ino);
        match self.backing.stat(&path) {
            Ok(stat) => Ok(stat),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(BackingStat::default())
            }
            Err(error) => Err(StoreError::disk("stat", path)(error)),
        }
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, OpError> {
        match self.existing(ino)?.body {
            Body::Symlink { target } => Ok(target),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        let value = self.names.get(&keys::xattr(ino, name))?;
        Ok(value.ok_or(Errno::NoData)?)
    }

    /// Names of all extended attributes, in order.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError> {
        let keys = self.keys(&keys::of_ino(keys::XATTRS, ino))?;
        Ok(keys.iter().map(|key| keys::rest_of(key).to_vec()).collect())
    }

    /// Calls `each` with cookie and entry, the newest entry first: for all entries, or for those older
    /// than cookie `after` if that is not zero. What is made meanwhile has a higher cookie and is not met.
    pub fn readdir(
        &self,
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
        self.names
            .scan_down(range.from(), range.to(), &mut |key, value| {
                let cookie = keys::rest_of(key).try_into().map(u64::from_be_bytes);
                if let (Ok(cookie), Some(entry)) = (cookie, record::decode(value)) {
                    each(cookie, entry)
                } else {
                    damaged = Some(unreadable(key));
                    ControlFlow::Break(())
                }
            })?;
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Inodes that have no name, to be freed when nobody has them open.
    pub fn orphans(&self) -> Result<Vec<Ino>, OpError> {
        let keys = self.keys(&keys::table(keys::ORPHANS))?;
        Ok(keys.iter().filter_map(|key| keys::ino_of(key)).collect())
    }

    /// Next data or hole of a file at or after `offset`.
    pub fn seek(&self, ino: Ino, offset: u64, what: SeekFor) -> Result<u64, OpError> {
        let file = self.file_for(ino)?;
        let size = file.size();
        if offset >= size {
            return Err(Errno::NoDevice.into());
        }
        let found = match (file.content(self.backing().as_ref())?, what) {
            (None, SeekFor::Data) => None,
            (None, SeekFor::Hole) => Some(offset),
            (Some(content), SeekFor::Data) => content
                .seek_data(offset)
                .map_err(StoreError::content("seek", ino))?,
            (Some(content), SeekFor::Hole) => content
                .seek_hole(offset)
                .map_err(StoreError::content("seek", ino))?,
        };
        match (found, what) {
            (Some(found), SeekFor::Data) if found < size => Ok(found),
            (_, SeekFor::Data) => Err(Errno::NoDevice.into()),
            (found, SeekFor::Hole) => Ok(found.unwrap_or(size).min(size)),
        }
    }
}

fn unreadable(key: &[u8]) -> StoreError {
    StoreError::Damaged {
        what: format!("the record under {} cannot be read", key.escape_ascii()),
    }
}
