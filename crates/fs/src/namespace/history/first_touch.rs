//! First touches: the entries of history that go with a batch of changes, so that the newest snapshot N still sees the values of its moment.
//!
//! The first change of a record since N keeps the old value, labelled N. Nothing is kept of a record that N does not see by its
//! birth ([`births`]), and no older snapshot either, before the change and after it. A kept "absent" goes again with the record: nothing that no snapshot saw is
//! left behind.
//!
//! [`Memory`] spares look-ups. It knows only what the tables say, of one snapshot; its owner empties it when the newest snapshot
//! changes and when kept values are removed. Everything in it holds for as long as the snapshot is the newest one.

use std::collections::BTreeMap;

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Ino, SnapshotId};

use super::births;
use super::kept::{self, KeptValue};
use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::namespace::keys;
use crate::namespace::record::RecordChange;
use crate::namespace::snapshot_list::SnapshotList;

/// Most records in a [`Memory`], which take some 6 MB. One beyond empties it.
const RECORDS_MAX: usize = 65_536;
/// Most directories in a [`Memory`].
const DIRECTORIES_MAX: usize = 4_096;

/// The one kept value of a record since N, as far as a later change asks for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Since {
    /// "Absent", with this label: the entry goes with the record.
    Absent(SnapshotId),
    /// Any other, or several.
    Other,
}

impl Since {
    fn of(found: &[KeptValue]) -> Option<Self> {
        match found {
            [] => None,
            [KeptValue { id, value: None }] => Some(Self::Absent(*id)),
            _ => Some(Self::Other),
        }
    }
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Memory {
    newest: Option<SnapshotId>,
    /// Records that are kept since the newest snapshot.
    records: BTreeMap<Vec<u8>, Since>,
    /// The highest `inos_below` of all snapshots.
    inos_below: u64,
    /// The highest next cookies of directories as of all snapshots.
    directories: BTreeMap<Ino, u64>,
}

impl Memory {
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The entries of history that go with one batch.
#[derive(Default)]
pub(super) struct Keep {
    /// Entries to put and to remove.
    pub changes: Vec<RecordChange>,
    /// Whether entries are removed.
    pub removes: bool,
    /// The knowledge of [`Memory`] once the batch is applied.
    known: Vec<(Vec<u8>, Option<Since>)>,
}

impl Keep {
    /// The batch was applied.
    pub fn note(self, memory: &mut Memory) {
        for (key, since) in self.known {
            if memory.records.len() >= RECORDS_MAX {
                memory.records.clear();
            }
            match since {
                Some(since) => drop(memory.records.insert(key, since)),
                None => drop(memory.records.remove(&key)),
            }
        }
    }
}

/// The newest snapshot, and the knowledge of its moment.
pub(super) struct FirstTouch<'a> {
    records: &'a Memtable<RedbKv>,
    newest: SnapshotId,
    memory: &'a mut Memory,
}

impl<'a> FirstTouch<'a> {
    /// Keeps for the newest of these snapshots; `None` if none is alive.
    pub fn new(
        records: &'a Memtable<RedbKv>,
        snapshots: &SnapshotList,
        memory: &'a mut Memory,
    ) -> Option<Self> {
        let (newest, _) = snapshots.newest()?;
        if memory.newest != Some(newest) {
            memory.clear();
            memory.newest = Some(newest);
            memory.inos_below = snapshots.inos_below(newest);
        }
        Some(Self {
            records,
            newest,
            memory,
        })
    }

    /// The entries that go with a batch. Changes nothing.
    pub fn keep(&mut self, batch: &[RecordChange]) -> Result<Keep, StoreError> {
        // Of several changes of one key the last one holds.
        let changes: BTreeMap<&[u8], Option<&[u8]>> = batch
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
            .collect();
        let mut keep = Keep::default();
        for (key, new) in changes {
            if keys::is_replicated(key) && !births::is_new_number(key, self.memory.inos_below) {
                self.keep_one(key, new, &mut keep)?;
            }
        }
        Ok(keep)
    }

    fn keep_one(
        &mut self,
        key: &[u8],
        new: Option<&[u8]>,
        keep: &mut Keep,
    ) -> Result<(), StoreError> {
        match (self.memory.records.get(key), new) {
            (Some(Since::Absent(id)), None) => {
                take_back(key, *id, keep);
                return Ok(());
            }
            (Some(_), _) => return Ok(()),
            (None, _) => {}
        }
        let is_new_born = match new {
            Some(new) => self.is_born(key, new)?,
            None => true,
        };
        let old = self.records.get(key)?;
        if old.as_deref() == new || (old.is_none() && is_new_born) {
            // Nothing changes, or a new record comes that no snapshot sees.
            return Ok(());
        }
        let found = kept::find(self.records, key, self.newest, 2)?;
        match (Since::of(&found), new) {
            (Some(Since::Absent(id)), None) => take_back(key, id, keep),
            (Some(since), _) => keep.known.push((key.to_vec(), Some(since))),
            (None, _) => self.keep_first(key, old.as_deref(), is_new_born, keep)?,
        }
        Ok(())
    }

    /// The first change since the newest snapshot.
    fn keep_first(
        &mut self,
        key: &[u8],
        old: Option<&[u8]>,
        is_new_born: bool,
        keep: &mut Keep,
    ) -> Result<(), StoreError> {
        let seen = match old {
            Some(old) if !self.is_born(key, old)? => Some(old),
            _ => None,
        };
        if seen.is_none() && is_new_born {
            return Ok(());
        }
        let since = match seen {
            Some(_) => Since::Other,
            None => Since::Absent(self.newest),
        };
        keep.changes.extend(kept::put(key, self.newest, seen));
        keep.known.push((key.to_vec(), Some(since)));
        Ok(())
    }

    fn is_born(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        let (records, newest) = (self.records, self.newest);
        let inos_below = self.memory.inos_below;
        let directories = &mut self.memory.directories;
        births::is_born(key, value, inos_below, |directory| {
            if let Some(known) = directories.get(&directory) {
                return Ok(*known);
            }
            let next = births::next_cookie_until(records, directory, newest)?;
            if directories.len() >= DIRECTORIES_MAX {
                directories.clear();
            }
            directories.insert(directory, next);
            Ok(next)
        })
    }
}

/// A record goes that the newest snapshot does not see, and nothing else tells of it: so does its kept "absent". Older snapshots
/// that saw the entry find no record then, either.
fn take_back(key: &[u8], id: SnapshotId, keep: &mut Keep) {
    if is_active(Mutant::AbsentLeavesHistory) {
        return;
    }
    keep.changes.extend(kept::remove(key, id));
    keep.removes = true;
    keep.known.push((key.to_vec(), None));
}
