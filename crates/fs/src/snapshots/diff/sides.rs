//! The two moments of a difference, to be read.

use std::ops::ControlFlow;

use lockstep_types::{Ino, SnapshotId};

use super::place::{DiffPlace, DiffStage};
use super::touched::{TouchedKey, TouchedPart};
use crate::error::{OpError, StoreError};
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::plan::View;
use crate::namespace::record::{self, Body, EntryRecord, Inode, NamedEntry};
use crate::snapshots::content_at::KeptSource;
use crate::snapshots::view::SnapshotView;
use crate::view::StoreView;

/// An entry of a directory, with its cookie.
pub type FoundEntry = (u64, NamedEntry);

/// See the head of this file.
pub struct Sides<'a> {
    /// The older moment.
    pub from: SnapshotView<'a>,
    /// The newer moment.
    pub to: Box<dyn StoreView + 'a>,
    /// The snapshot of the newer moment; `None` for the present.
    pub to_id: Option<SnapshotId>,
    /// The places of kept values.
    pub source: &'a KeptSource,
}

impl Sides<'_> {
    /// Whether the snapshots are alive. Records that were read before count.
    pub fn are_alive(&self) -> bool {
        let is_alive = |id| self.source.snapshots.is_alive(id);
        is_alive(self.from.id()) && self.to_id.is_none_or(is_alive)
    }

    /// An inode at the older moment, if it has a name.
    pub fn inode_then(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        let inode = self.from.inode(ino)?;
        Ok(inode.filter(|inode| inode.nlink > 0))
    }

    /// The same at the newer moment.
    pub fn inode_now(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        let inode = self.to.inode(ino)?;
        Ok(inode.filter(|inode| inode.nlink > 0))
    }

    /// Whether two inodes of one number, at both moments, are two: a resync may bring another one with the number of one that was freed.
    pub fn is_replaced(&self, ino: Ino, old: &Inode, new: &Inode) -> Result<bool, OpError> {
        if old.kind() != new.kind() {
            return Ok(true);
        }
        let last = self.to_id.unwrap_or(SnapshotId::LAST);
        let range = KeyRange::between(keys::body(ino, self.from.id()), keys::body(ino, last));
        let namespace = &self.source.namespace;
        let bodies = namespace.without_removals(|| namespace.keys(&range))?;
        Ok(!bodies.is_empty())
    }

    /// Whether a number is that of the same inode at both moments.
    pub fn is_same(&self, ino: Ino) -> Result<bool, OpError> {
        match (self.inode_then(ino)?, self.inode_now(ino)?) {
            (Some(old), Some(new)) => Ok(!self.is_replaced(ino, &old, &new)?),
            _ => Ok(false),
        }
    }

    /// The entry of a name at the older moment.
    pub fn old_entry(&self, directory: Ino, name: &[u8]) -> Result<Option<EntryRecord>, OpError> {
        entry(&self.from, directory, name)
    }

    /// The same at the newer moment.
    pub fn new_entry(&self, directory: Ino, name: &[u8]) -> Result<Option<EntryRecord>, OpError> {
        entry(&*self.to, directory, name)
    }

    /// The cookie that a directory would have given out next at the older moment: entries from there on are new.
    pub fn first_new_cookie(&self, directory: Ino) -> Result<u64, OpError> {
        Ok(next_cookie(self.from.inode(directory)?.as_ref()).unwrap_or(0))
    }

    /// Entries of a directory at the newer moment from a cookie on, at most `max`.
    pub fn new_entries(
        &self,
        directory: Ino,
        from: u64,
        max: usize,
    ) -> Result<Vec<FoundEntry>, OpError> {
        let mut found = Vec::new();
        let is_empty = next_cookie(self.to.inode(directory)?.as_ref()).is_none_or(|it| it <= from);
        if is_empty || max == 0 {
            return Ok(found);
        }
        let mut failed = None;
        let range = keys::of_ino(keys::COOKIES, directory);
        let range = range.starting_at(&keys::cookie(directory, from));
        self.to.scan(&range, &mut |key, value| {
            let cookie = keys::rest_of(key).try_into().map(u64::from_be_bytes);
            match (cookie, record::decode(value)) {
                (Ok(cookie), Some(entry)) => found.push((cookie, entry)),
                _ => failed = Some(StoreError::unreadable(key)),
            }
            if found.len() < max && failed.is_none() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(found), |error| Err(error.into()))
    }

    /// The inodes of the newer moment that the older one cannot have, from a place on, at most `max`.
    pub fn new_inodes(&self, place: &DiffPlace, max: usize) -> Result<Vec<TouchedKey>, OpError> {
        let here = match place.stage {
            DiffStage::Inode => place.ino,
            _ => place.ino.saturating_add(1),
        };
        let first = here.max(self.from.snapshot().inos_below);
        let mut found = Vec::new();
        let Some(first) = Ino::new(first) else {
            return Ok(found);
        };
        let range = keys::table_from(keys::INODES, first);
        self.to.scan(&range, &mut |key, _| {
            found.extend(keys::ino_of(key).map(|ino| TouchedKey {
                ino: ino.get(),
                part: TouchedPart::Record,
            }));
            if found.len() < max {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(found)
    }

    /// Whether the extended attributes of an inode differ.
    pub fn xattrs_differ(&self, ino: Ino) -> Result<bool, OpError> {
        let names = self.from.listxattr(ino)?;
        if names != self.to.listxattr(ino)? {
            return Ok(true);
        }
        for name in names {
            let key = keys::xattr(ino, &name);
            if self.from.get(&key)? != self.to.get(&key)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn entry(
    view: &dyn StoreView,
    directory: Ino,
    name: &[u8],
) -> Result<Option<EntryRecord>, OpError> {
    let key = keys::entry(directory, name);
    let Some(bytes) = view.get(&key)? else {
        return Ok(None);
    };
    let entry = record::decode(&bytes).ok_or_else(|| StoreError::unreadable(&key))?;
    Ok(Some(entry))
}

fn next_cookie(inode: Option<&Inode>) -> Option<u64> {
    match inode?.body {
        Body::Directory { next_cookie, .. } => Some(next_cookie),
        _ => None,
    }
}
