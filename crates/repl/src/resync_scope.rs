//! The places that a resync looks at, as `BeginResync` tells them.
//!
//! Invariant: the order of the variants is the wire format, as in [`message`](crate::message).

use lockstep_delta::BarrierName;
use serde::{Deserialize, Serialize};

/// The places that a resync looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResyncScope {
    /// Everything.
    Everything,
    /// The changes since the secondary's base (`Welcome::base`).
    Changes,
    /// The changes since a barrier that the secondary knows (`Welcome::barriers`). The secondary's copy has a base once the
    /// namespace has arrived, as after a resync of everything.
    SinceBarrier(BarrierName),
}

impl ResyncScope {
    /// Whether everything is compared.
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Everything)
    }
}
