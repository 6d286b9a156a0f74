//! A node that begins to serve, and the answers of a failed disk before.

use crate::check;
use crate::history::NodeEvent;
use crate::scenario::cluster::Cluster;
use crate::scenario::on_disk::disk_checks;
use crate::world::Side;

impl Cluster {
    /// Records that a node has begun to serve. First judges what a failed disk of the other machine has answered: from now on
    /// these answers do not count (`history/failed_disk.rs`).
    pub(in crate::scenario) fn note_service(&mut self, side: Side) -> Result<(), String> {
        let node = self.nodes.of(side);
        let is_sound = !node.is_poisoned();
        let marks = disk_checks::marks(node.disk.disk()).filter(|_| is_sound);
        let mut recorder = self.recorder.lock();
        let history = recorder.history();
        let other = side.other();
        let has_shown = history.counts_on_failed_disk(other);
        if has_shown {
            check::reads::check(history).map_err(|violation| violation.to_string())?;
        }
        let is_change = history.server() == Some(other);
        let has_failed = has_shown || self.nodes.of(other).is_poisoned();
        let is_from_failed_disk = is_change && has_failed;
        recorder.tally.from_failed_disks += u64::from(is_from_failed_disk);
        let event = if is_sound {
            NodeEvent::Serves
        } else {
            NodeEvent::ServesReads
        };
        recorder.node(side, event);
        if let Some(marks) = marks {
            recorder.serves_with(side, marks.verifier);
        }
        Ok(())
    }
}
