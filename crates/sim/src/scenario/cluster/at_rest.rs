//! The end of a schedule: the clients end, the work in the background is done, and everything is checked.

use std::time::Duration;

use crate::scenario::cluster::Cluster;
use crate::scenario::settings::IN_SYNC_WITHIN;

/// Long enough for every watermark to arrive and for garbage to be removed.
const SETTLE_TIME: Duration = Duration::from_secs(4);

impl Cluster {
    /// Ends all faults and the clients: no acknowledged operation was lost, and both nodes become identical.
    pub fn end_in_sync(&mut self) -> Result<(), String> {
        self.heal()?;
        self.until_in_sync(IN_SYNC_WITHIN)?;
        self.stop_clients();
        self.settle()?;
        self.until_in_sync(IN_SYNC_WITHIN)?;
        self.final_check()
    }

    /// Runs the world until all work in the background is done. A planned crash may still come, and the work then begins anew.
    pub fn settle(&mut self) -> Result<(), String> {
        loop {
            let before = self.recorder.lock().starts();
            self.run_for(SETTLE_TIME)?;
            if self.recorder.lock().starts() == before {
                return Ok(());
            }
        }
    }

    /// Checks everything at the end of a schedule.
    pub fn final_check(&mut self) -> Result<(), String> {
        let clients = self.clients.count();
        self.checks
            .check_at_end(&self.nodes, &self.world.network, clients)
    }
}
