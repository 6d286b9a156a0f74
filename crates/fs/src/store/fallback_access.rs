//! The fallback of a copy that a resync changes: the snapshot of the copy from before the resync, so that a whole state of the datastore
//! is on this disk at every moment.
//!
//! A copy is *mixed* from the first change of a resync until both copies are equal: it shows no moment of the datastore. A record says so, and
//! names the fallback. The checkpoint that makes the fallback has this record, and both go together.
//!
//! Invariants (rule P36):
//! - A mixed copy keeps its first fallback: a resync that is begun again makes no other one, which would show the mixture.
//! - A fallback never fails a resync. On a full disk the copy is mixed without one.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use super::facade::Store;
use super::put_back::{CopyAccess, PutBack};
use super::snapshot_access::SnapshotAccess;
use crate::error::{OpError, StoreError};
use crate::metadata_log::MetadataLog;
use crate::namespace::keys;
use crate::namespace::record::{self, RecordChange};
use crate::namespace::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use crate::tree::Tree;

/// The name of every fallback.
const NAME: &str = "fallback";
/// The begin of the name of each lost copy.
const LOST: &str = "lost-";

/// A copy before a resync changes it.
#[derive(Clone, Copy, Debug)]
pub struct CopyBefore {
    /// Whether the copy is the one of a node that has run on since the copy was whole. After a loss of power the copy is only what
    /// the disk had.
    pub is_exact: bool,
    /// The generation in which this node was deposed as the primary, if it may have something alone.
    pub own_of: Option<Generation>,
    /// The present time.
    pub time: Timestamp,
}

/// The record of a mixed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mixture {
    /// The snapshot from before the mixture, unless there was no room for one.
    fallback: Option<SnapshotId>,
}

/// How the fallback of a copy that is equal to the other one has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FallbackEnd {
    /// Nobody needs the fallback any more, if there was one.
    Gone,
    /// The fallback stays as the snapshot of this name: this node may have had something alone.
    Lost(String),
}

/// See the head of this file.
#[derive(Clone, Copy)]
pub struct FallbackAccess<'a> {
    tree: Tree<'a>,
    log: &'a MetadataLog,
    snapshots: SnapshotAccess<'a>,
    copy: CopyAccess<'a>,
}

/// Begin and end.
impl<'a> FallbackAccess<'a> {
    /// The fallback of a store.
    pub fn of(store: &'a Store) -> Self {
        Self {
            tree: store.tree(),
            log: &store.metadata_log,
            snapshots: SnapshotAccess::of(store),
            copy: CopyAccess::of(store),
        }
    }

    /// A resync is about to change the copy. Makes the fallback, and its bytes durable, unless the copy is mixed already. Returns whether there
    /// is a fallback.
    ///
    /// # Errors
    /// The disk has failed. Without room for a fallback, the copy is marked as mixed without one.
    pub fn begin(self, copy: CopyBefore) -> Result<bool, StoreError> {
        if self.is_mixed()? && !is_active(Mutant::FallbackOverwritten) {
            return Ok(self.get()?.is_some());
        }
        match self.make(copy) {
            Ok(()) => Ok(true),
            Err(error) if error.is_full_disk() => {
                tracing::error!(
                    %error,
                    "the disk is full: there will be no state to fall back to while the resync changes this copy",
                );
                self.mark(Some(Mixture { fallback: None }))?;
                self.log.checkpoint(self.tree)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn make(self, copy: CopyBefore) -> Result<(), StoreError> {
        // A loss of power during the resync leaves the bytes of the fallback, too.
        self.copy.sync()?;
        let kind = SnapshotKind::Fallback {
            is_exact: copy.is_exact,
            own_of: copy.own_of,
        };
        let beside = |id| {
            let fallback = Some(id);
            vec![put(Some(Mixture { fallback }))]
        };
        let made = self.snapshots.create_local_beside(
            NAME.to_owned(),
            (kind, SnapshotBytes::Settled),
            copy.time,
            beside,
        );
        if made.is_err() {
            // The records in memory may say that the copy is mixed.
            self.mark(None)?;
        }
        made.map(drop)
    }

    /// The copy is equal to the other one, durably: it is mixed no more. The fallback of a deposed node stays under another name if a
    /// change of the resync has kept something for it.
    pub fn end(self) -> Result<FallbackEnd, StoreError> {
        let Some(mixture) = self.mixture()? else {
            return Ok(FallbackEnd::Gone);
        };
        let lost = self.keep_lost()?;
        if lost.is_none() {
            self.drop_later(mixture);
        }
        self.mark(None)?;
        self.log.checkpoint(self.tree)?;
        Ok(lost.map_or(FallbackEnd::Gone, FallbackEnd::Lost))
    }

    /// Has the fallback stay under another name if this node may have had something alone. Returns the name, also if a stop came
    /// after that and before the end of the mixture.
    fn keep_lost(self) -> Result<Option<String>, StoreError> {
        let Some((id, record)) = self.get()? else {
            return Ok(None);
        };
        let (is_exact, generation) = match record.kind {
            SnapshotKind::Lost { .. } => return Ok(Some(record.name)),
            SnapshotKind::Fallback {
                is_exact,
                own_of: Some(generation),
            } if self.has_kept(id)? => (is_exact, generation),
            _ => return Ok(None),
        };
        let name = self.free_name(generation);
        let stays = |record: &mut SnapshotRecord| {
            name.clone_into(&mut record.name);
            record.kind = SnapshotKind::Lost {
                is_exact,
                generation,
            };
        };
        self.tree.namespace.change_snapshot(id, stays);
        Ok(Some(name))
    }

    /// Gives the fallback up, to make room on a full disk, and says so. Returns whether there was one. The copy stays mixed.
    pub fn give_up(self) -> Result<bool, StoreError> {
        let Some((id, record)) = self.get()? else {
            return Ok(false);
        };
        tracing::error!(
            snapshot = %record.name,
            "the disk is full: the state to fall back to is given up, and the resync gets its space",
        );
        self.snapshots.delete(id)
    }

    /// Puts the copy back to its fallback: afterwards the copy is whole, and has the last operation of the fallback. Returns whether there was a
    /// fallback. A stop in between leaves the copy mixed, with the same fallback.
    ///
    /// The caller lets no operation and no resync be under way.
    pub fn put_back(self) -> Result<bool, StoreError> {
        let Some((mixture, (id, record))) = self.mixture()?.zip(self.get()?) else {
            return Ok(false);
        };
        if let Some(fallback) = self.snapshots.view(id) {
            let copy = PutBack::new(self.copy, &fallback);
            let put = copy.run(id, record.inos_below);
            put.map_err(OpError::into_store)?;
        }
        self.drop_later(mixture);
        self.mark(None)?;
        self.log.checkpoint(self.tree)?;
        Ok(true)
    }

    /// Frees the space of a fallback that nobody needs, at the next deletion of snapshots.
    fn drop_later(self, mixture: Mixture) {
        if let Some(id) = mixture.fallback {
            let _later = self.tree.namespace.delete_snapshot(id);
        }
    }

    fn has_kept(self, id: SnapshotId) -> Result<bool, StoreError> {
        let range = keys::kept_index_range(id, None);
        let mut has_kept = false;
        self.tree.namespace.scan(&range, &mut |_, _| {
            has_kept = true;
            std::ops::ControlFlow::Break(())
        })?;
        Ok(has_kept)
    }

    /// A name for what a node had alone when it was deposed in a generation.
    fn free_name(self, generation: Generation) -> String {
        let names = self.snapshots.list();
        let is_free = |name: &String| names.iter().all(|(_, record)| record.name != *name);
        let first = format!("{LOST}{generation}");
        let further = (2_u32..).map(|number| format!("{LOST}{generation}-{number}"));
        let mut candidates = std::iter::once(first.clone()).chain(further);
        candidates.find(is_free).unwrap_or(first)
    }

    /// Changes the record of the mixture, in memory.
    fn mark(self, mixture: Option<Mixture>) -> Result<(), StoreError> {
        self.tree.namespace.apply([put(mixture)])
    }
}

/// Looking.
impl FallbackAccess<'_> {
    /// Whether a name is one for snapshots of a node's own copy.
    pub fn names(name: &str) -> bool {
        name == NAME || name.starts_with(LOST)
    }

    fn mixture(self) -> Result<Option<Mixture>, StoreError> {
        let record = self.tree.namespace.get(keys::MIXED)?;
        let decode = |bytes: Vec<u8>| {
            record::decode(&bytes).ok_or_else(|| StoreError::unreadable(keys::MIXED))
        };
        record.map(decode).transpose()
    }

    /// Whether a resync has begun to change this copy, and has not ended.
    pub fn is_mixed(self) -> Result<bool, StoreError> {
        Ok(self.mixture()?.is_some())
    }

    /// The fallback of the mixed copy, if there is one.
    pub fn get(self) -> Result<Option<(SnapshotId, SnapshotRecord)>, StoreError> {
        let id = self.mixture()?.and_then(|mixture| mixture.fallback);
        let record = id.and_then(|id| Some((id, self.snapshots.get(id)?)));
        Ok(record.map(|(id, record)| (id, SnapshotRecord::clone(&record))))
    }
}

fn put(mixture: Option<Mixture>) -> RecordChange {
    (keys::MIXED.to_vec(), mixture.map(|it| record::encode(&it)))
}

#[cfg(test)]
mod tests {
    use lockstep_intentlog::LogOptions;
    use lockstep_lossy::disk::Disk;
    use lockstep_types::{DatastoreUuid, FileName, MetaOp, MetaRequest, NodeKind, Osn};

    use super::*;
    use crate::store::OpenOptions;

    const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);

    fn open(disk: &Disk) -> Store {
        let options = OpenOptions::for_test(UUID);
        Store::open(disk.mount(), &options).unwrap().store
    }

    /// A checkpoint of another thread may come between the new name and the end of the mixture, and a kill right after that.
    #[test]
    fn a_lost_copy_outlives_a_stop_before_the_end_of_the_mixture() {
        let disk = Disk::default();
        Store::create(&disk.mount(), UUID, &LogOptions::default()).unwrap();
        let store = open(&disk);
        let generation = Generation::new(3).unwrap();
        let copy = CopyBefore {
            is_exact: true,
            own_of: Some(generation),
            time: Timestamp::default(),
        };
        let fallback = FallbackAccess::of(&store);
        assert!(fallback.begin(copy).unwrap());
        let name = FileName::new(b"f").unwrap();
        let ino = store.next_ino().unwrap();
        let osn = Osn {
            generation,
            sequence: 1,
        };
        let request = MetaRequest::creation(lockstep_types::Ino::ROOT, name, ino, NodeKind::File);
        let op = MetaOp {
            osn,
            time: Timestamp::default(),
            request: request.request(),
        };
        store.commit(&op).unwrap();
        let lost = fallback.keep_lost().unwrap();
        assert_eq!(lost.as_deref(), Some("lost-3"));
        store.checkpoint().unwrap();
        let store = open(&disk.fork());
        let end = FallbackAccess::of(&store).end().unwrap();
        assert_eq!(end, FallbackEnd::Lost("lost-3".to_owned()));
        let snapshots = SnapshotAccess::of(&store);
        snapshots.resume_deletions().unwrap();
        assert_eq!(snapshots.list().len(), 1);
    }
}
