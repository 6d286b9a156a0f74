//! The differences between the snapshots of a store, for a driver.

use lockstep_types::{Ino, SnapshotId};

use super::facade::Store;
use super::snapshot_access::SnapshotAccess;
use crate::error::OpError;
use crate::snapshots::diff::{
    DiffCursor, DiffPage, DiffPlace, DiffWish, SnapshotDiff, SnapshotMark,
};
use crate::view::StoreView;

/// A difference, to be read page by page.
pub struct DiffReader<'a> {
    store: &'a Store,
    diff: SnapshotDiff<'a>,
}

impl<'a> DiffReader<'a> {
    /// The difference from a snapshot to a newer one, or to the present. `None` if one of the two is not alive, or if the second one is not the
    /// newer one.
    pub fn open(store: &'a Store, from: SnapshotId, to: Option<SnapshotId>) -> Option<Self> {
        if to.is_some_and(|to| to < from) {
            return None;
        }
        let snapshots = SnapshotAccess::of(store);
        let newer: Box<dyn StoreView + 'a> = match to {
            Some(id) => Box::new(snapshots.view(id)?),
            None => Box::new(store.tree()),
        };
        let older = snapshots.view(from)?;
        let diff = SnapshotDiff::new(older, newer, to, &store.kept);
        Some(Self { store, diff })
    }

    /// The difference in which a cursor is a place. `None` if one of its snapshots is not alive.
    pub fn at(store: &'a Store, cursor: &DiffCursor) -> Option<Self> {
        let is_alive = |mark: &SnapshotMark| {
            let record = SnapshotAccess::of(store).get(mark.id);
            record.is_some_and(|record| record.time == mark.time)
        };
        let are_alive = is_alive(&cursor.from) && cursor.to.as_ref().is_none_or(is_alive);
        if !are_alive {
            return None;
        }
        Self::open(store, cursor.from.id, cursor.to.map(|to| to.id))
    }

    /// The page from a place on. The page of two snapshots is the same whenever it is read; a page with the
    /// present is as of now.
    ///
    /// # Errors
    /// [`Errno::Stale`](lockstep_types::Errno::Stale) once one of the snapshots is deleted. Otherwise if the store cannot be read.
    pub fn page(&mut self, place: &DiffPlace, wish: DiffWish) -> Result<DiffPage, OpError> {
        let unflushed = if self.diff.is_to_present() {
            let files = self.store.content.unflushed_files();
            files.iter().map(|file| file.ino()).collect()
        } else {
            Vec::<Ino>::new()
        };
        self.diff.page(place, &unflushed, wish)
    }
}
