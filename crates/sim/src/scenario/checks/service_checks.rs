//! The checks of a node that begins to serve: what a failed disk of the other machine has answered before, and the copy with which
//! the datastore goes on.

use lockstep_types::Generation;

use super::live_checks::LiveChecks;
use crate::check;
use crate::history::NodeEvent;
use crate::scenario::nodes::Nodes;
use crate::world::Side;

impl LiveChecks {
    /// Records that a node has begun to serve. First judges what a failed disk of the other machine has answered: from now on
    /// these answers do not count (`history/failed_disk.rs`).
    pub fn before_service(&self, nodes: &Nodes, side: Side) -> Result<(), String> {
        let node = nodes.of(side);
        let is_sound = !node.is_poisoned();
        let marks = node.marks().filter(|_| is_sound);
        let mut recorder = self.recorder.lock();
        let history = recorder.history();
        let other = side.other();
        let has_shown = history.counts_on_failed_disk(other);
        if has_shown {
            check::reads::check(history).map_err(|violation| violation.to_string())?;
        }
        let is_change = history.nodes().server() == Some(other);
        let has_failed = has_shown || nodes.of(other).is_poisoned();
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

    /// Records that the witness has made a machine the primary.
    pub fn after_takeover(&self, side: Side) {
        let mut recorder = self.recorder.lock();
        recorder.tally.takeovers += 1;
        recorder.node(side, NodeEvent::Promoted);
    }

    /// Records that the datastore goes on with the copy of a machine, which an operator keeps. First judges what was answered before.
    /// `behind_since`: the copy may lack what was acknowledged since this moment.
    pub fn go_on_with(
        &self,
        side: Side,
        behind_since: Option<u64>,
        generation: Generation,
    ) -> Result<(), String> {
        let mut recorder = self.recorder.lock();
        recorder.tally.forced += 1;
        let judged = check::one_primary::check(recorder.history().nodes())
            .and_then(|()| check::reads::check(recorder.history()));
        judged.map_err(|violation| violation.to_string())?;
        recorder.go_on_with(side, behind_since, generation);
        Ok(())
    }

    /// Records that the copy of a machine is equal to that of the primary.
    pub fn copy_is_equal(&self, nodes: &mut Nodes, side: Side) {
        nodes.of_mut(side).disk.has_old_copy = false;
        self.recorder.lock().node(side, NodeEvent::Equal);
    }
}
