//! The check of the kernel's caches: no node acknowledges a change while the kernel of the other machine may answer from caches
//! of before.
//!
//! The check is for the takeover by the word of a witness. An operator who forces a node to lead vouches that no program uses the
//! other machine.

use lockstep_driver::DatastoreHandle;
use lockstep_driver::client::{FileService as _, Standing};

use crate::scenario::cluster::Cluster;
use crate::world::Side;

impl Cluster {
    /// Empties the caches of a machine whose node follows: its process drops them itself.
    pub(in crate::scenario) fn drop_caches(&self) {
        for side in Side::BOTH {
            let node = self.nodes.of(side);
            let standing = |datastore| DatastoreHandle::new(datastore).standing();
            if node.datastore().map(standing) == Some(Standing::Following) {
                node.node.kernel_caches().clear();
            }
        }
    }

    /// Looks whether the node that serves has acknowledged a change since the last look that makes the caches of the other
    /// machine stale.
    pub(in crate::scenario) fn check_caches(&self) {
        let mut recorder = self.recorder.lock();
        let changed = recorder.take_changed();
        // A client may see an answer late, after the other node has begun to serve.
        let changed = changed.filter(|side| self.nodes.serving() == Some(*side));
        let Some(side) = changed.filter(|_| !self.force.have_begun()) else {
            return;
        };
        let other = self.nodes.of(side.other());
        if other.node.kernel_caches().are_kept() {
            recorder.wrong(format!(
                "caches: {side:?} acknowledges a change while the kernel of the other machine answers from its caches"
            ));
        }
    }
}
