//! A plan in the making: reads fall through to the store, writes stay in the draft.

use std::collections::BTreeMap;

use lockstep_types::{Errno, FileName, Ino, MetaOp, MetaRequest, Osn, Timestamp};

use super::outcome::{ContentEffect, Plan};
use super::view::View;
use crate::error::{OpError, StoreError};
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::record::{self, Body, EntryPlace, EntryRecord, Inode, NamedEntry, TrashMark};

/// A plan in the making. Dropping it changes nothing.
pub struct PlanDraft<'a> {
    view: &'a dyn View,
    osn: Osn,
    time: Timestamp,
    inodes: BTreeMap<Ino, DraftInode>,
    others: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    content: Option<ContentEffect>,
    new_file: Option<Ino>,
    answer: Option<Ino>,
    orphaned: Option<Ino>,
    /// An inode that loses its last name goes into the trash.
    keeps_trash: bool,
    trash_moved: Option<Ino>,
}

/// An inode that was read, with its changes.
struct DraftInode {
    inode: Option<Inode>,
    changed: bool,
}

impl<'a> PlanDraft<'a> {
    /// An empty change by `op`.
    pub(super) fn new(view: &'a dyn View, op: &MetaOp) -> Self {
        Self {
            view,
            osn: op.osn,
            time: op.time,
            inodes: BTreeMap::new(),
            others: BTreeMap::new(),
            content: None,
            new_file: None,
            answer: None,
            orphaned: None,
            keeps_trash: matches!(op.request, MetaRequest::IntoTrash { .. }),
            trash_moved: None,
        }
    }

    /// The number of the operation.
    pub(super) const fn osn(&self) -> Osn {
        self.osn
    }

    /// The time of the operation.
    pub(super) const fn time(&self) -> Timestamp {
        self.time
    }

    /// The complete plan.
    pub(super) fn finish(self) -> Plan {
        let attr = self.answer.and_then(|ino| {
            let draft = self.inodes.get(&ino)?;
            Some(draft.inode.as_ref()?.attr(ino))
        });
        let mut batch: Vec<_> = self.others.into_iter().collect();
        let mut inodes = Vec::new();
        for (ino, draft) in self.inodes {
            if draft.changed {
                batch.push((keys::inode(ino), draft.inode.as_ref().map(record::encode)));
                inodes.push((ino, draft.inode));
            }
        }
        Plan {
            batch,
            content: self.content,
            inodes,
            new_file: self.new_file,
            attr,
            orphaned: self.orphaned,
            trash_moved: self.trash_moved,
            snapshot: None,
        }
    }

    fn load(&mut self, ino: Ino) -> Result<&mut DraftInode, OpError> {
        if !self.inodes.contains_key(&ino) {
            let inode = self.view.inode(ino)?;
            let changed = false;
            self.inodes.insert(ino, DraftInode { inode, changed });
        }
        self.inodes.get_mut(&ino).ok_or(Errno::Stale.into())
    }

    /// An inode as it stands in this change; [`Errno::Stale`] if there is none.
    pub(super) fn inode(&mut self, ino: Ino) -> Result<&Inode, OpError> {
        let draft = self.load(ino)?;
        draft.inode.as_ref().ok_or(Errno::Stale.into())
    }

    /// An inode, to be changed by this operation.
    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode, OpError> {
        let osn = self.osn;
        let draft = self.load(ino)?;
        draft.changed = true;
        let inode = draft.inode.as_mut().ok_or(Errno::Stale)?;
        inode.osn = osn;
        Ok(inode)
    }

    /// Sets the time of last change of an inode to now.
    pub(super) fn touch(&mut self, ino: Ino) -> Result<&mut Inode, OpError> {
        let time = self.time;
        let inode = self.inode_mut(ino)?;
        inode.ctime = time;
        Ok(inode)
    }

    /// Adds a new inode; its number must never have been used.
    pub(super) fn add_inode(&mut self, ino: Ino, inode: Inode) -> Result<(), OpError> {
        let draft = self.load(ino)?;
        if draft.inode.is_some() {
            return Err(StoreError::Damaged {
                what: format!("inode number {ino} was given out twice"),
            }
            .into());
        }
        let is_file = matches!(inode.body, Body::File { .. });
        draft.inode = Some(inode);
        draft.changed = true;
        self.new_file = is_file.then_some(ino);
        Ok(())
    }

    /// Removes an inode.
    pub(super) fn drop_inode(&mut self, ino: Ino) -> Result<(), OpError> {
        let draft = self.load(ino)?;
        draft.inode = None;
        draft.changed = true;
        Ok(())
    }

    /// Writes (`Some`) or deletes (`None`) a record that is no inode.
    pub(super) fn put(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.others.insert(key, value);
    }

    /// Reads a record that is no inode.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        match self.others.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.view.get(key),
        }
    }

    /// Keys of a range as the store has them, without this change.
    pub(super) fn stored_keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError> {
        self.view.keys(range)
    }

    /// The entry of that name, if there is one.
    pub(super) fn entry(
        &self,
        directory: Ino,
        name: &FileName,
    ) -> Result<Option<EntryRecord>, OpError> {
        let Some(bytes) = self.get(&keys::entry(directory, name.as_bytes()))? else {
            return Ok(None);
        };
        let entry = record::decode(&bytes).ok_or_else(|| StoreError::Damaged {
            what: format!("entry {name:?} of directory {directory} cannot be read"),
        })?;
        Ok(Some(entry))
    }

    /// Writes an entry under both its keys.
    pub(super) fn put_entry(&mut self, directory: Ino, name: &FileName, entry: EntryRecord) {
        let named = NamedEntry {
            ino: entry.ino,
            kind: entry.kind,
            name: name.clone(),
        };
        self.put(
            keys::entry(directory, name.as_bytes()),
            Some(record::encode(&entry)),
        );
        self.put(
            keys::cookie(directory, entry.cookie),
            Some(record::encode(&named)),
        );
    }

    /// Deletes an entry under both its keys.
    pub(super) fn delete_entry(&mut self, directory: Ino, name: &FileName, entry: EntryRecord) {
        self.put(keys::entry(directory, name.as_bytes()), None);
        self.put(keys::cookie(directory, entry.cookie), None);
    }

    /// A directory, to be changed: its entries changed now.
    pub(super) fn directory_mut(&mut self, ino: Ino) -> Result<DirectoryParts<'_>, OpError> {
        let time = self.time;
        if !self.inode(ino)?.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        let inode = self.inode_mut(ino)?;
        inode.mtime = time;
        inode.ctime = time;
        match &mut inode.body {
            Body::Directory {
                next_cookie,
                entries,
                ..
            } => Ok(DirectoryParts {
                nlink: &mut inode.nlink,
                next_cookie,
                entries,
            }),
            _ => Err(Errno::NotDirectory.into()),
        }
    }

    /// Sets the change of content.
    pub(super) fn content(&mut self, effect: ContentEffect) {
        self.content = Some(effect);
    }

    /// Sets the inode whose attributes answer the operation.
    #[allow(clippy::unnecessary_wraps)] // reads as the last step of every operation
    pub(super) fn answer(&mut self, ino: Ino) -> Result<(), OpError> {
        self.answer = Some(ino);
        Ok(())
    }

    /// Notes that an inode has lost its last name, which was in this directory.
    pub(super) fn lost_last_name(
        &mut self,
        ino: Ino,
        (parent, name): (Ino, &FileName),
    ) -> Result<(), OpError> {
        if !self.keeps_trash {
            self.orphaned = Some(ino);
            self.put(keys::orphan(ino), Some(Vec::new()));
            return Ok(());
        }
        let mark = TrashMark {
            parent,
            name: name.clone(),
            time: self.time,
            osn: self.osn,
        };
        self.put(keys::orphan(ino), Some(record::encode(&mark)));
        self.inode_mut(ino)?.named_at = Some(EntryPlace::in_trash(parent));
        self.trash_moved = Some(ino);
        Ok(())
    }

    /// Notes that an inode of the trash has got a name.
    pub(super) fn left_trash(&mut self, ino: Ino) {
        self.put(keys::orphan(ino), None);
        self.trash_moved = Some(ino);
    }
}

/// The parts of a directory that a change of its entries touches.
pub(super) struct DirectoryParts<'a> {
    /// Two, and one per subdirectory.
    pub nlink: &'a mut u32,
    /// Cookie for the next entry.
    pub next_cookie: &'a mut u64,
    /// Number of entries.
    pub entries: &'a mut u64,
}

impl DirectoryParts<'_> {
    /// Counts a new entry and returns its cookie.
    pub fn add(&mut self, subdirectory: bool) -> u64 {
        let cookie = *self.next_cookie;
        *self.next_cookie += 1;
        *self.entries += 1;
        if subdirectory {
            *self.nlink += 1;
        }
        cookie
    }

    /// Uncounts an entry.
    pub fn remove(&mut self, subdirectory: bool) {
        *self.entries = self.entries.saturating_sub(1);
        if subdirectory {
            *self.nlink = self.nlink.saturating_sub(1);
        }
    }
}
