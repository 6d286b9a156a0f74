//! Faults that decide when a node takes over: threads that stand still, a witness that answers late, and a node that is cut off,
//! whose connections end at once.

use std::time::Duration;

use lockstep_types::settings::Role;

use crate::scenario::cluster::Cluster;
use crate::scenario::faults::held_thread::HeldThread;
use crate::world::Side;

/// The end of a connection arrives within this time, and no node connects again.
const END_ARRIVES_WITHIN: Duration = Duration::from_millis(30);

impl Cluster {
    /// Lets a thread stand still.
    pub fn hold_thread(&mut self, held: HeldThread) {
        let side = self.nodes.machine(held.role);
        if let Some(process) = self.nodes.of(side).process() {
            self.world.hold_thread(&process, held.thread, held.time);
        }
    }

    /// Returns the number of frames of a node that are on their way.
    pub fn frames_in_flight(&self, from: Side) -> u64 {
        self.world.network.frames_in_flight(from)
    }

    /// Lets all frames in flight arrive, although their connection ends.
    pub fn lose_no_frames(&self) {
        self.world.network.set_frames_kept(Some(u64::MAX));
    }

    /// Cuts a node off from the other node, whose connections end at once, and from the witness.
    pub(in crate::scenario) fn isolate(&mut self, role: Role) -> Result<(), String> {
        let side = self.nodes.machine(role);
        self.world.witness.cut_off(side, true);
        self.world.network.cut(&self.world.shared);
        self.run_for(END_ARRIVES_WITHIN)?;
        self.world.network.set_silent(side, true);
        Ok(())
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
