//! The check of the kernel's caches: no node acknowledges a change while the kernel of the other machine may answer from caches
//! of before.
//!
//! The check is for the takeover by the answer of a witness. An operator who forces a node to lead vouches that no program uses the
//! other machine.

use super::live_checks::LiveChecks;
use crate::scenario::nodes::Nodes;

impl LiveChecks {
    /// Looks whether the node that serves has acknowledged a change since the last look that makes the caches of the other
    /// machine stale. `has_operator_acted`: an operator has forced a node to lead, or has exchanged a copy.
    pub fn check_caches(&self, nodes: &Nodes, has_operator_acted: bool) {
        let mut recorder = self.recorder.lock();
        let changed = recorder.take_changed();
        // A client may see an answer late, after the other node has begun to serve.
        let changed = changed.filter(|side| nodes.serving() == Some(*side));
        let Some(side) = changed.filter(|_| !has_operator_acted) else {
            return;
        };
        let other = nodes.of(side.other());
        if other.node.kernel_caches().are_kept() {
            recorder.wrong(format!(
                "caches: {side:?} acknowledges a change while the kernel of the other machine answers from its caches"
            ));
        }
    }
}
