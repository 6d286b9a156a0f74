//! The limits of a resync beside the operations of clients (rule P19).

use std::num::NonZeroU64;
use std::time::Duration;

/// See the head of this file. The same limits hold for a comparison of both nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResyncLimits {
    /// Most bytes of content that are read in a second ([`RESYNC_BYTES_PER_SECOND`]); `None` without a limit.
    ///
    /// [`RESYNC_BYTES_PER_SECOND`]: super::settings::RESYNC_BYTES_PER_SECOND
    pub bytes_per_second: Option<NonZeroU64>,
    /// The time of an operation of a client above which a resync pauses ([`RESYNC_PAUSE_ABOVE`]); `None`: it never pauses.
    ///
    /// [`RESYNC_PAUSE_ABOVE`]: super::settings::RESYNC_PAUSE_ABOVE
    pub pause_above: Option<Duration>,
}
