//! The difference between two snapshots, or between a snapshot and the present.
//!
//! The index of kept values names the records and chunks that have changed since the older moment ([`touched`]); the numbers of inodes and cookies
//! tell those that have come since. Each of them is compared at both moments, so a value that was changed and changed back is no difference. The time is that
//! of the changes between the two moments, and not of all files: the record of an inode has the place of its name.
//!
//! The difference is told in pages, by inode number. A page of two snapshots is the same whenever it is read. A page that ends with the present is
//! as of the moment at which it is read.
//!
//! Names: see [`entries`]. A reader takes the entries of all pages together: the entry of a directory may come behind those of files in it.

mod bytes;
mod entries;
mod entry;
mod fates;
mod place;
mod sides;
mod touched;
mod walk;

use lockstep_types::{Errno, Ino, SnapshotId};

use self::entries::BothPaths;
use self::sides::Sides;
use self::walk::DiffWalk;
use crate::error::OpError;
use crate::snapshots::content_at::KeptSource;
use crate::snapshots::view::SnapshotView;
use crate::view::StoreView;

pub use self::entry::{DiffAttribute, DiffChange, DiffEntry, DiffRange};
pub use self::place::{DiffCursor, DiffPlace, DiffStage, NotACursor, SnapshotMark};
pub use self::walk::DiffWish;

/// A page of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffPage {
    /// The entries, perhaps none.
    pub entries: Vec<DiffEntry>,
    /// The place where the next page begins; `None` at the end.
    pub next: Option<DiffPlace>,
}

/// See the head of this file.
pub struct SnapshotDiff<'a> {
    sides: Sides<'a>,
    paths: BothPaths,
}

impl<'a> SnapshotDiff<'a> {
    /// The difference between the older moment and a newer one: that of the snapshot `to_id`, or the present.
    pub(crate) fn new(
        from: SnapshotView<'a>,
        to: Box<dyn StoreView + 'a>,
        to_id: Option<SnapshotId>,
        source: &'a KeptSource,
    ) -> Self {
        let sides = Sides {
            from,
            to,
            to_id,
            source,
        };
        Self {
            sides,
            paths: BothPaths::default(),
        }
    }

    /// The page from a place on. `unflushed`: files of the present whose records are behind, by number.
    ///
    /// # Errors
    /// [`Errno::Stale`] once one of the snapshots is deleted. Otherwise if the store cannot be read.
    pub(crate) fn page(
        &mut self,
        place: &DiffPlace,
        unflushed: &[Ino],
        wish: DiffWish,
    ) -> Result<DiffPage, OpError> {
        let page = self.read(place, unflushed, wish);
        if self.sides.are_alive() {
            page
        } else {
            Err(Errno::Stale.into())
        }
    }

    fn read(
        &mut self,
        place: &DiffPlace,
        unflushed: &[Ino],
        wish: DiffWish,
    ) -> Result<DiffPage, OpError> {
        let (found, next) = DiffWalk::page(&self.sides, place, unflushed, wish)?;
        let entries = entries::entries(&self.sides, found, &mut self.paths)?;
        Ok(DiffPage { entries, next })
    }

    /// Whether the newer moment is the present.
    pub(crate) const fn is_to_present(&self) -> bool {
        self.sides.to_id.is_none()
    }
}
