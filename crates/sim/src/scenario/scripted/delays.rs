//! Delays that decide when a node takes over: frames in flight, and a witness that answers late.

use std::time::Duration;

use lockstep_types::settings::Role;

use super::ScriptedCluster;
use crate::world::Side;

impl ScriptedCluster {
    /// Returns the number of frames of a node that are on their way.
    pub fn frames_in_flight(&self, from: Side) -> u64 {
        self.world.network.frames_in_flight(from)
    }

    /// Lets all frames in flight arrive, although their connection ends.
    pub fn lose_no_frames(&self) {
        self.world.network.set_frames_kept(Some(u64::MAX));
    }

    /// Lets no frame in flight arrive when its connection ends.
    pub fn lose_frames(&self) {
        self.world.network.set_frames_kept(Some(0));
    }

    /// Lets each later call of the witness by a node take this time longer, as long as its limit allows.
    pub fn slow_witness(&self, role: Role, time: Duration) {
        let side = self.nodes.machine(role);
        self.world.witness.slow_down(side, time);
    }

    /// Returns whether a node waits for an answer of the witness.
    pub fn asks_witness(&self, role: Role) -> bool {
        let side = self.nodes.machine(role);
        self.world.witness.is_asked(side)
    }
}
