//! The operator of a schedule. The operator asks the nodes for other roles, as the commands of the
//! program do.
//!
//! Invariant: the operator promotes a node only while the other node is down, and only if the copy of
//! the other node can hold no acknowledged operation that the promoted copy lacks. No node can know
//! these two facts alone.

pub mod force;
pub mod forced_acts;

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::settings::Role;
use parking_lot::Mutex;

use super::cluster::{Cluster, POLL_INTERVAL};
use crate::history::{NodeEvent, Stop};
use crate::world::Side;

/// A node that can become the primary does so within this time. It may first have to notice that its
/// primary is gone.
pub const PROMOTED_WITHIN: Duration = Duration::from_secs(3);

impl Cluster {
    /// Asks the primary to give its role to the secondary. The primary refuses, unless the nodes are
    /// in sync. No operation of a client may fail by the change.
    pub(super) fn hand_over(&self) {
        let side = self.nodes.machine(Role::Primary);
        let primary = self.nodes.of(side);
        if let (Some(process), Some(datastore)) = (primary.process(), primary.datastore()) {
            let recorder = Arc::clone(&self.recorder);
            process.start(move || {
                let before = recorder.lock().doubts(side);
                let is_done = datastore.role().hand_over().is_ok();
                let mut recorder = recorder.lock();
                recorder.tally.planned += u64::from(is_done);
                if is_done && recorder.doubts(side) > before {
                    recorder.wrong("handed_over: a planned failover ended an operation".to_owned());
                }
            });
        }
    }

    /// Stops the primary, unless it is down. Promotes the secondary, and starts the stopped node.
    pub(super) fn take_over(&mut self, stop: Stop) -> Result<(), String> {
        let [primary, secondary] = self.nodes.machines();
        if self.nodes.of(primary).is_running() {
            self.stop(primary, stop);
        }
        if self.checks.could_take_over() && self.nodes.of(secondary).is_running() {
            self.promote(secondary, false)?;
        }
        self.start(primary);
        Ok(())
    }

    /// Promotes a node that serves nothing, if the other node is down.
    pub(super) fn end_stand_still(&mut self) -> Result<(), String> {
        let is_running = |side| self.nodes.of(side).is_running();
        let [primary, secondary] = self.nodes.machines();
        let (side, is_safe) = match [primary, secondary].map(is_running) {
            // The secondary may have become the primary just before it stopped.
            [true, false] => (primary, self.unanswered != Some(secondary)),
            [false, true] => (secondary, self.checks.could_take_over()),
            _ => return Ok(()),
        };
        if is_safe && !self.nodes.of(side).serves() {
            self.promote(side, false)?;
        }
        Ok(())
    }

    /// Asks a node to become the primary, until it agrees or the operator gives up. Returns whether it has agreed.
    pub(super) fn promote(&mut self, side: Side, accepts_loss: bool) -> Result<bool, String> {
        let until = self.now() + PROMOTED_WITHIN;
        let mut asked = None;
        while self.now() < until {
            let node = self.nodes.of(side);
            let (Some(process), Some(datastore)) = (node.process(), node.datastore()) else {
                self.run_for(POLL_INTERVAL)?;
                continue;
            };
            let answer = Arc::new(Mutex::new(None));
            let slot = Arc::clone(&answer);
            // A copy that has lost more than the operator knows of is not forced on anybody.
            let boot = *asked.get_or_insert(node.boot());
            if accepts_loss && boot != node.boot() {
                break;
            }
            {
                let mut recorder = self.recorder.lock();
                recorder.operator_acts();
                recorder.node(side, NodeEvent::Promoted);
            }
            process
                .start(move || *slot.lock() = Some(datastore.role().promote(accepts_loss).is_ok()));
            self.unanswered = Some(side);
            while self.now() < until && !process.is_dead() && self.unanswered.is_some() {
                self.run_for(POLL_INTERVAL)?;
                if let Some(is_primary) = answer.lock().take() {
                    self.unanswered = None;
                    if is_primary {
                        self.recorder.lock().tally.promotions += u64::from(!accepts_loss);
                        return Ok(true);
                    }
                }
            }
        }
        if self.unanswered.is_some() {
            // The request must not be carried out after the other node has started.
            self.stop(side, Stop::Process);
            self.start(side);
        }
        Ok(false)
    }
}
