//! The copy that a resync sends: a view of a store, the two places that know what changes beside the view, and the sums.
//!
//! Records and content are read through the view alone, so a resync does not know which moment the view shows.

use lockstep_fs::store::{DeltaAccess, ImageAccess, SumsAccess};
use lockstep_fs::{Store, StoreView};

/// See the head of this file.
#[derive(Clone, Copy)]
pub struct ResyncSource<'a> {
    /// The records and the content.
    pub(crate) view: &'a dyn StoreView,
    /// Follows the records that operations change while the view is sent.
    pub(crate) image: ImageAccess<'a>,
    /// The changes since both copies were equal.
    pub(crate) delta: DeltaAccess<'a>,
    /// The sums of the content that the view shows.
    pub(crate) sums: SumsAccess<'a>,
}

impl<'a> ResyncSource<'a> {
    /// The view.
    pub const fn view(&self) -> &'a dyn StoreView {
        self.view
    }

    /// A view of `store`, whose operations go on.
    pub fn new(view: &'a dyn StoreView, store: &'a Store) -> Self {
        Self {
            view,
            image: store.image(),
            delta: store.delta(),
            sums: store.sums(),
        }
    }
}
