//! Numbers of a session.

use std::time::Duration;

use lockstep_types::Ino;

use crate::ops::spill::SpillLoad;

/// Numbers of a session, for `status` and for checks from outside.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionUsage {
    /// Entries of the table of writes in flight: PAW on the primary, SAW on the secondary.
    pub in_flight: usize,
    /// Operations in flight of clients, and of the node itself.
    pub pending: usize,
    /// Bytes of waiting writes.
    pub kept: SpillLoad,
    /// The metadata operation that was submitted first, with its inode and the time since.
    pub oldest_metadata: Option<(&'static str, Option<Ino>, Duration)>,
}
