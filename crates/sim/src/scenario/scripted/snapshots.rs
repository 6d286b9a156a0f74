//! Snapshots, and the wall clock that their schedule goes by.

use std::sync::Arc;

use lockstep_driver::report::{SnapshotCommand, SnapshotStatus};
use parking_lot::Mutex;

use super::ScriptedCluster;
use crate::scenario::settings::IN_SYNC_WITHIN;
use crate::world::Side;

impl ScriptedCluster {
    /// Lets the wall clocks of both machines jump by some seconds.
    pub fn jump_wall_clocks(&self, secs: i64) {
        self.world.jump_wall_clocks(secs);
    }

    /// Gives a command about snapshots to a node. Returns the list of the node afterwards, or the refusal.
    pub fn snapshots(
        &mut self,
        side: Side,
        command: SnapshotCommand,
    ) -> Result<Result<Vec<SnapshotStatus>, String>, String> {
        let node = self.nodes.of(side);
        let (Some(datastore), Some(process)) = (node.datastore(), node.process()) else {
            return Err(format!("{side:?} does not run"));
        };
        let done = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&done);
        process.start(move || *slot.lock() = Some(datastore.snapshots(&command)));
        let is_done = Arc::clone(&done);
        self.until(IN_SYNC_WITHIN, move |_| is_done.lock().is_some())?;
        let outcome = done.lock().take().ok_or("nothing was done")?;
        Ok(outcome.map_err(|failure| failure.to_string()))
    }
}
