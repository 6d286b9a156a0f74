//! How long, and up to how many bytes, a datastore keeps deleted files.

use std::num::NonZeroU64;

use lockstep_types::settings::TrashAge;

/// The part of a disk that the trash may take by default.
const DEFAULT_SHARE: u64 = 8;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrashPolicy {
    /// How long. Default [`TrashAge::Off`].
    pub age: TrashAge,
    /// Most bytes. Default: an eighth of the disk of the primary.
    pub bytes: Option<NonZeroU64>,
}

impl TrashPolicy {
    /// Most bytes in the trash of a node whose disk has so many.
    pub fn bytes_max(self, disk_bytes: u64) -> u64 {
        self.bytes
            .map_or(disk_bytes / DEFAULT_SHARE, NonZeroU64::get)
    }
}
