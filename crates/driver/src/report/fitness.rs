//! Whether a copy is fit to serve alone, by the status of a node. Each text that names a promotion to an operator asks one of these
//! two questions.

use lockstep_types::settings::Role;

use super::DatastoreStatus;

impl DatastoreStatus {
    /// Whether this copy may serve alone without the loss of an operation that this node knows of: the copy is complete, and
    /// its disk works.
    pub const fn is_fit(&self) -> bool {
        self.sync.started
            && self.sync.copy.complete
            && self.poisoned.is_none()
            && self.sync.disk_stall.is_none()
    }

    /// Whether the other node's copy may serve alone without the loss of an operation, as far as this node, its primary, knows.
    pub const fn is_peer_fit(&self) -> bool {
        let Some(peer) = &self.peer else {
            return false;
        };
        matches!(self.settings.role, Role::Primary)
            && self.sync.copy.marked_in_sync
            && !peer.disk_failed
            && peer.disk_silent_ms.is_none()
    }
}
