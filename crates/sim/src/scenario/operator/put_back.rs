//! An operator who puts an older copy of the secondary's store back.
//!
//! The copy is made at any moment, as the snapshot of a disk is. It is put back while the process is stopped.

use lockstep_types::settings::Role;

use super::Operator;
use crate::history::Stop;

impl Operator {
    /// Copies the disk of the secondary, or puts the last copy back, if the disk is sound.
    pub fn put_secondary_back(&mut self) {
        let side = self.cluster.nodes.machine(Role::Secondary);
        let secondary = self.cluster.nodes.of_mut(side);
        if !secondary.disk.can_be_unmounted() || secondary.needs_operator {
            return;
        }
        if !secondary.disk.is_copied() {
            secondary.disk.copy();
            return;
        }
        self.cluster.stop(side, Stop::Process);
        self.cluster.recorder.lock().operator_acts();
        // The primary may be giving its role to this node. Then it asks an operator whose copy is right.
        self.cluster.roles.has_operator_acted |= self.cluster.nodes.have_witness();
        let secondary = self.cluster.nodes.of_mut(side);
        secondary.disk.put_back();
        let stays_down = secondary.stays_down;
        // A copy that is complete on the disk has not become complete now.
        self.cluster.nodes.forget_state(side);
        if !stays_down {
            self.cluster.start(side);
        }
    }
}
