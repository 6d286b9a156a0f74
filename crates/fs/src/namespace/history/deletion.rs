//! Deleting a snapshot: which kept values go with it, step by step.
//!
//! A snapshot S is flagged as deleted before. Let P be the next older snapshot that is alive, and Q the next newer one. The kept
//! values with labels from S up to Q are seen by P, or by no snapshot. A kept value goes if there is no P, if an older one of its
//! record hides it from P, or if P and older snapshots do not see its record, with the value and without it. It stays otherwise. If they do not see
//! the value by its birth but would see the value behind it, the kept value becomes "absent".
//!
//! No label changes, but for those of a local snapshot: a kept value of it that stays gets the label P. So no label of a local snapshot outlives
//! the snapshot.
//!
//! Invariant: each judgement leaves what P sees as it is, given those before. So the steps may stop anywhere, and begin anew.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use lockstep_types::SnapshotId;
use lockstep_types::mutants::{Mutant, is_active};

use super::births;
use super::kept::{self, KeptValue};
use crate::error::StoreError;
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::namespace::keys;
use crate::namespace::record::RecordChange;

/// How far the deletion of a snapshot has come. A restart of the process begins anew.
#[derive(Debug)]
pub struct Deletion {
    /// The snapshot.
    pub(super) id: SnapshotId,
    /// The entry of the index that was judged last.
    after: Option<Vec<u8>>,
    /// Every entry was judged.
    pub(super) is_over: bool,
}

impl Deletion {
    /// The deletion of this snapshot, which is flagged as deleted.
    pub const fn new(id: SnapshotId) -> Self {
        Self {
            id,
            after: None,
            is_over: false,
        }
    }

    /// The snapshot.
    pub const fn id(&self) -> SnapshotId {
        self.id
    }

    /// Whether every kept value was judged.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Judges kept blocks: called with the key of each in table `v`, with P, and with the changes of the batch so far. Returns the changes of records that go
/// into the batch of the step, those of the tables `v` and `e` among them; none if the blocks stay. It reads the store as it was before the step.
pub type BlockJudge<'a> = dyn FnMut(&[u8], Option<SnapshotId>, &[RecordChange]) -> Result<Vec<RecordChange>, StoreError>
    + 'a;

/// One batch of a deletion.
pub(super) struct Judge<'a> {
    records: &'a Memtable<RedbKv>,
    /// P, with the highest `inos_below` of P and older snapshots.
    older: Option<(SnapshotId, u64)>,
    /// Q.
    newer: Option<SnapshotId>,
    changes: Vec<RecordChange>,
    /// Keys of kept values that this batch removes.
    gone: BTreeSet<Vec<u8>>,
    /// Records of which P sees a kept value that this batch has judged.
    settled: BTreeSet<Vec<u8>>,
}

impl<'a> Judge<'a> {
    pub fn new(
        records: &'a Memtable<RedbKv>,
        older: Option<(SnapshotId, u64)>,
        newer: Option<SnapshotId>,
    ) -> Self {
        Self {
            records,
            older,
            newer,
            changes: Vec::new(),
            gone: BTreeSet::new(),
            settled: BTreeSet::new(),
        }
    }

    /// Judges the next entries of the index, at most `max`. Returns the changes.
    pub fn judge(
        mut self,
        deletion: &mut Deletion,
        max: usize,
        blocks: &mut BlockJudge<'_>,
    ) -> Result<Vec<RecordChange>, StoreError> {
        let entries = self.next_entries(deletion, max)?;
        let is_over = entries.len() < max;
        for entry in &entries {
            let key = keys::kept_of_index(entry);
            match key.first() {
                Some(&keys::HISTORY) => self.judge_record(key)?,
                Some(&(keys::KEPT_BLOCKS | keys::BODIES)) => {
                    let older = self.older.map(|(id, _)| id);
                    let changes = blocks(key, older, &self.changes)?;
                    self.changes.extend(changes);
                }
                _ => return Err(StoreError::unreadable(entry)),
            }
        }
        if let Some(last) = entries.into_iter().next_back() {
            deletion.after = Some(last);
        }
        deletion.is_over = is_over;
        Ok(self.changes)
    }

    fn next_entries(&self, deletion: &Deletion, max: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut range = keys::kept_index_range(deletion.id, self.newer);
        if let Some(after) = &deletion.after {
            range = range.after(after);
        }
        let mut entries = Vec::new();
        if max == 0 || range.is_empty() {
            return Ok(entries);
        }
        self.records.scan(range.from(), range.to(), &mut |key, _| {
            entries.push(key.to_vec());
            if entries.len() >= max {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    fn judge_record(&mut self, kept_key: &[u8]) -> Result<(), StoreError> {
        let unreadable = || StoreError::unreadable(kept_key);
        let key = keys::record_of_history(kept_key).ok_or_else(unreadable)?;
        let id = keys::snapshot_of(kept_key).ok_or_else(unreadable)?;
        let Some(older) = self
            .older
            .filter(|_| !is_active(Mutant::DeleteTakesNeighbours))
        else {
            self.remove(key, id);
            return Ok(());
        };
        let mut found = self.left(key, older.0)?.into_iter();
        match found.next().filter(|_| !self.settled.contains(key)) {
            Some(first) if first.id == id => {
                let behind = match found.next() {
                    Some(next) => next.value,
                    None => self.records.get(key)?,
                };
                self.judge_seen(key, &first, behind.as_deref(), older)
            }
            // An older one hides it; or its entry of the index is all that there is.
            _ => {
                self.remove(key, id);
                Ok(())
            }
        }
    }

    /// The first two kept values with labels from `first` on that this batch has not removed.
    fn left(&self, key: &[u8], first: SnapshotId) -> Result<Vec<KeptValue>, StoreError> {
        let is_gone = |kept: &KeptValue| self.gone.contains(&keys::history(key, kept.id));
        let mut found = kept::find(self.records, key, first, 2)?;
        if found.iter().any(is_gone) {
            found = kept::find(self.records, key, first, usize::MAX)?;
            found.retain(|kept| !is_gone(kept));
        }
        Ok(found)
    }

    /// Judges the kept value that P sees. `behind` is the value that P would see without it.
    fn judge_seen(
        &mut self,
        key: &[u8],
        kept: &KeptValue,
        behind: Option<&[u8]>,
        (older, inos_below): (SnapshotId, u64),
    ) -> Result<(), StoreError> {
        let records = self.records;
        let is_seen = |value: &[u8]| {
            let next_cookie = |directory| births::next_cookie_until(records, directory, older);
            births::is_born(key, value, inos_below, next_cookie).map(|born| !born)
        };
        let is_seen = |value: Option<&[u8]>| value.map_or(Ok(false), is_seen);
        let value = kept.value.as_deref();
        let stays = if is_seen(value)? {
            value
        } else if is_seen(behind)? {
            None
        } else {
            self.remove(key, kept.id);
            return Ok(());
        };
        self.settled.insert(key.to_vec());
        let moves = kept.id.is_local() || is_active(Mutant::DeleteRelabels);
        if moves {
            self.remove(key, kept.id);
        }
        if moves || stays != value {
            let label = if moves { older } else { kept.id };
            self.changes.extend(kept::put(key, label, stays));
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8], id: SnapshotId) {
        self.gone.insert(keys::history(key, id));
        self.changes.extend(kept::remove(key, id));
    }
}
