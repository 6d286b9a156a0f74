//! The arrival of snapshots on the node that lacks them, for a driver (rule P37).

use lockstep_types::{Errno, SnapshotId};

use super::facade::Store;
use super::snapshot_access::SnapshotAccess;
use crate::error::OpError;
use crate::namespace::Deletion;
use crate::namespace::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use crate::snapshots::arrival::sink::ArrivalSink;
use crate::snapshots::arrival::source::ArrivalSource;
use crate::snapshots::arrival::{ArrivalItem, ArrivalPage, ArrivalPlace, ArrivalWindow};
use crate::snapshots::deletion::SnapshotDeletion;

/// See the head of this file.
#[derive(Clone, Copy)]
pub struct ArrivalAccess<'a>(&'a Store);

impl<'a> ArrivalAccess<'a> {
    /// The snapshots of a store.
    pub const fn of(store: &'a Store) -> Self {
        Self(store)
    }

    /// The snapshots of the datastore of which this node has bytes, the oldest first, with their kinds. Torn ones are among them.
    pub fn held(self) -> Vec<(SnapshotId, SnapshotKind)> {
        let all = self.0.kept.snapshots.all();
        let held = all
            .iter()
            .filter(|(id, record)| record.is_taken(**id) && record.is_alive());
        held.map(|(id, record)| (*id, record.kind)).collect()
    }

    /// The snapshots that were made for arrivals.
    pub fn made(self) -> Vec<SnapshotId> {
        let all = self.0.kept.snapshots.all();
        let made = all
            .iter()
            .filter(|(id, record)| record.is_taken(**id) && record.kind == SnapshotKind::Arrival);
        made.map(|(id, _)| *id).collect()
    }

    /// A page of values for the other node, which lacks the snapshot of the window. The page has `bytes_max` bytes, and one value more at most.
    ///
    /// # Errors
    /// [`Errno::Stale`] if a snapshot of the window is not whole here. Otherwise if the store cannot be read.
    pub fn page(
        self,
        window: ArrivalWindow,
        place: &ArrivalPlace,
        bytes_max: usize,
    ) -> Result<ArrivalPage, OpError> {
        let view = SnapshotAccess::of(self.0).view(window.of);
        let view = view.ok_or(Errno::Stale)?;
        ArrivalSource::new(&self.0.kept, view, window, bytes_max).page(place)
    }
}

/// On the node that lacks a snapshot.
impl ArrivalAccess<'_> {
    /// Gets ready for the values of a snapshot that this node lacks: removes those of an interrupted arrival that no other snapshot sees. Until
    /// [`Self::end`] no reader sees the snapshot.
    ///
    /// # Errors
    /// [`Errno::Busy`] while there is a newer snapshot of this node's own copy, whose values the snapshot would see, and while the space of an own one is being freed: its
    /// values move. [`Errno::NoEntry`] if this node does not lack the snapshot. Otherwise the disk fails.
    pub fn begin(self, id: SnapshotId) -> Result<(), OpError> {
        let all = self.0.kept.snapshots.all();
        let is_in_the_way =
            |own: SnapshotId, record: &SnapshotRecord| own > id || record.is_deleted;
        let mut own = all.iter().filter(|(id, _)| id.is_local());
        if own.any(|(own, record)| is_in_the_way(*own, record)) {
            return Err(Errno::Busy.into());
        }
        if !all.get(&id).is_some_and(|it| is_missing(id, it)) {
            return Err(Errno::NoEntry.into());
        }
        let tree = self.0.tree();
        let log = &self.0.metadata_log;
        let mut left = SnapshotDeletion::new(Deletion::new(id), &self.0.kept, tree.disk());
        while !left.step()? {
            if log.needs_checkpoint(tree) {
                log.checkpoint(tree)?;
            }
        }
        log.checkpoint(tree)?;
        Ok(left.remove_files()?)
    }

    /// Puts values of a snapshot that this node lacks.
    ///
    /// # Errors
    /// [`Errno::NoEntry`] if this node has the snapshot whole, or there is no such snapshot. Otherwise the disk fails or is full: some
    /// values may be there.
    pub fn put(self, id: SnapshotId, items: Vec<ArrivalItem>) -> Result<(), OpError> {
        let all = self.0.kept.snapshots.all();
        if !all.get(&id).is_some_and(|it| is_missing(id, it)) {
            return Err(Errno::NoEntry.into());
        }
        let snapshots = SnapshotAccess::of(self.0);
        let older = self.0.kept.snapshots.older(id);
        let older = older.and_then(|(id, _)| snapshots.view(id));
        let tree = self.0.tree();
        ArrivalSink::new(&self.0.kept, tree.content, id, older).put(items)?;
        let log = &self.0.metadata_log;
        if log.needs_checkpoint(tree) {
            log.checkpoint(tree)?;
        }
        Ok(())
    }

    /// All values of a window are there: from now on the snapshot is whole here. Returns `false`, and changes nothing, if the snapshot is deleted, or if the end of
    /// the window is not whole any more: values that only that one had kept may be gone.
    pub fn end(self, window: ArrivalWindow) -> bool {
        self.0.tree().namespace.change_snapshot_if(
            window.of,
            |list| {
                let all = list.all();
                let ends = all.get(&window.until).is_some_and(|it| it.is_whole());
                let lacks = all
                    .get(&window.of)
                    .is_some_and(|it| is_missing(window.of, it));
                lacks && ends
            },
            |record| record.bytes = SnapshotBytes::Unsettled,
        )
    }
}

/// Whether a node lacks a snapshot of the datastore that is not deleted.
fn is_missing(id: SnapshotId, record: &SnapshotRecord) -> bool {
    record.is_taken(id) && record.bytes == SnapshotBytes::Missing
}
