//! The step of the demo in which the server of the secondary loses its power: the node gets what was written since the last
//! barrier, and not everything.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::options::ServerName;
use crate::program::StatusAnswer;

use super::files::LastFile;
use super::show::size;
use super::{Demo, ids};

/// The line of a primary's log at the end of a resync of the changes.
const OF_CHANGES: &str = "resync of what has changed: content is equal";
/// Longest time of a node between the restart and its mark "in sync" that is worth a wait.
const BARRIER_TIME: Duration = Duration::from_secs(2);

impl Demo<'_> {
    /// The server of the secondary loses its power, and comes back. A program has written without a sync before. `None` if the
    /// servers have no disks of their own.
    pub(super) fn lose_the_power_of_the_secondary(&mut self) -> Result<Option<LastFile>> {
        self.show
            .step("Cut the power of the server of the secondary");
        let secondary = self.cluster.primary.other();
        if !self.cluster.playground.has_disks() {
            self.show.note(
                "left out: it needs mkfs.ext4 and a loop device, for a disk that forgets what nobody has synced",
            );
            return Ok(None);
        }
        // A barrier follows each begin of the sync.
        std::thread::sleep(BARRIER_TIME);
        let last = LastFile::write(&self.cluster.mount()?)?;
        self.show.note(&format!(
            "{} are written, acknowledged by both nodes, and synced by nobody",
            size(LastFile::BYTES as u64)
        ));
        self.cut_power(secondary)?;
        self.restart(secondary)?;
        let compared = self.compared_after_changes()?;
        self.show.good(&format!(
            "the disk had forgotten an unknown part; {} were compared, and nothing else",
            size(compared)
        ));
        last.check(&self.cluster.mount()?)?;
        Ok(Some(last))
    }

    fn cut_power(&mut self, name: ServerName) -> Result<()> {
        let node = self.cluster.playground.node(name)?;
        self.show.command(&format!("kill -9 {}", ids(&node.pids())));
        self.cluster.playground.lose_power(name)?;
        self.show.good(&format!(
            "node {} is dead, and its disk has lost what was not on stable storage",
            name.word()
        ));
        let alone = |status: &StatusAnswer| !status.in_sync;
        self.cluster
            .await_status(self.cluster.primary, "the primary goes on alone", alone)
            .map(drop)
    }

    /// Bytes that the last resync has compared; an error if that one was of everything.
    fn compared_after_changes(&self) -> Result<u64> {
        let log = &self.cluster.playground.plan(self.cluster.primary)?.log;
        let text = fs::read_to_string(log).context("cannot read the log of the primary")?;
        let mut lines = text.lines().rev();
        let last = lines.find(|line| line.contains("content is equal"));
        let last = last.context("the log of the primary has no resync")?;
        ensure!(last.contains(OF_CHANGES), "everything was compared: {last}");
        let bytes = last.split_once(" bytes=").and_then(|(_, rest)| {
            let number = rest.split_whitespace().next()?;
            number.parse().ok()
        });
        bytes.with_context(|| format!("no number of bytes in {last}"))
    }
}
