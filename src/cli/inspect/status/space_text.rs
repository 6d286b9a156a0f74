//! The room on the disk of a node, in the text of `lockstep status`: a disk that is full, or soon will be.

use lockstep_driver::report::{DatastoreStatus, SpaceStatus};

use crate::cli::terminal::bytes;

/// With less room than this, changes fail: a full disk. The room is what clients get, without the reserve of the node.
const FULL_BELOW_BYTES: u64 = 16 << 20;
/// A disk is almost full with less room than this, and less than one part in [`SCARCE_PART`] of the disk.
const SCARCE_BELOW_BYTES: u64 = 10 << 30;
/// See [`SCARCE_BELOW_BYTES`].
const SCARCE_PART: u64 = 20;

/// How much room a disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filling {
    Ample,
    Scarce,
    Full,
}

impl Filling {
    const fn of(space: &SpaceStatus) -> Self {
        let available = space.available_bytes;
        if available < FULL_BELOW_BYTES {
            Self::Full
        } else if available < SCARCE_BELOW_BYTES && available < space.total_bytes / SCARCE_PART {
            Self::Scarce
        } else {
            Self::Ample
        }
    }
}

/// Whether the disk of this node has no room for changes.
pub(super) fn is_full(store: &DatastoreStatus) -> bool {
    let space = store.space.as_ref();
    space.is_some_and(|space| Filling::of(space) == Filling::Full)
}

/// The row `space`.
pub(super) fn row(space: &SpaceStatus) -> String {
    let (free, total) = (bytes(space.available_bytes), bytes(space.total_bytes));
    let filling = match Filling::of(space) {
        Filling::Ample => "",
        Filling::Scarce => ": ALMOST FULL",
        Filling::Full => ": FULL",
    };
    format!("{free} free of {total}{filling}")
}

/// The next step for a disk with little room.
pub(super) fn step(store: &DatastoreStatus) -> Option<&'static str> {
    match Filling::of(store.space.as_ref()?) {
        Filling::Ample => None,
        Filling::Scarce => Some(
            "make room on the disk of this node, or enlarge it: once it is full, changes fail with \"No space left on device\"",
        ),
        Filling::Full => Some(
            "changes fail with \"No space left on device\", or the nodes leave sync: remove files in the mount, or enlarge the disk \
             of this node",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn space(available_bytes: u64, total_bytes: u64) -> SpaceStatus {
        SpaceStatus {
            total_bytes,
            available_bytes,
        }
    }

    #[test]
    fn a_disk_is_full_without_room_and_almost_full_below_a_twentieth() {
        let of = |available, total| Filling::of(&space(available, total));
        assert_eq!(of(0, 1 << 40), Filling::Full);
        assert_eq!(of(FULL_BELOW_BYTES - 1, 64 << 20), Filling::Full);
        assert_eq!(of(FULL_BELOW_BYTES, 64 << 20), Filling::Ample);
        assert_eq!(of(1 << 30, 100 << 30), Filling::Scarce);
        // A twentieth of a large disk is much room.
        assert_eq!(of(11 << 30, 1 << 40), Filling::Ample);
        assert!(row(&space(0, 1 << 30)).ends_with(": FULL"));
    }
}
