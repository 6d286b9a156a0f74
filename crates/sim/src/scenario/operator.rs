//! The operator of a schedule. The operator asks the nodes for other roles, as the commands of the
//! program do.
//!
//! Invariant: the operator promotes a node only while the other node is down, and only if the copy of
//! the other node can hold no acknowledged operation that the promoted copy lacks. No node can know
//! these two facts alone.

mod force;
mod put_back;

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::settings::Role;
use parking_lot::Mutex;

use super::cluster::{Cluster, POLL_INTERVAL};
use super::snapshots::SnapshotAct;
use crate::history::{NodeEvent, Stop};
use crate::world::Side;

/// A node that can become the primary does so within this time. It may first have to notice that its
/// primary is gone.
const PROMOTED_WITHIN: Duration = Duration::from_secs(3);
/// After so long, an operator who has accepted a loss or exchanged a disk promotes one of two nodes of which none leads.
const OPERATOR_AFTER: Duration = Duration::from_secs(20);

/// See the head of this file.
pub struct Operator {
    /// The nodes that the operator operates.
    pub cluster: Cluster,
    /// A primary was demoted, and no node leads yet.
    lacks_leader: bool,
}

impl Operator {
    /// Returns the operator of a cluster, without acts so far.
    pub const fn of(cluster: Cluster) -> Self {
        Self {
            cluster,
            lacks_leader: false,
        }
    }

    /// Asks the primary to give its role to the secondary. The primary refuses, unless the nodes are
    /// in sync. No operation of a client may fail by the change.
    pub(super) fn hand_over(&self) {
        let side = self.cluster.nodes.machine(Role::Primary);
        let primary = self.cluster.nodes.of(side);
        if let (Some(process), Some(datastore)) = (primary.process(), primary.datastore()) {
            let recorder = Arc::clone(&self.cluster.recorder);
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

    /// Carries out an act on snapshots at the primary.
    pub(super) fn change_snapshots(&self, act: SnapshotAct) {
        let side = self.cluster.nodes.machine(Role::Primary);
        let primary = self.cluster.nodes.of(side);
        if let (Some(process), Some(datastore)) = (primary.process(), primary.datastore()) {
            let judge = self.cluster.snapshots.clone();
            let recorder = Arc::clone(&self.cluster.recorder);
            process.start(move || {
                let is_done = judge.act(&datastore, act);
                recorder.lock().tally.snapshots += u64::from(is_done);
            });
        }
    }

    /// Stops the primary, unless it is down. Promotes the secondary, and starts the stopped node.
    pub(super) fn take_over(&mut self, stop: Stop) -> Result<(), String> {
        let [primary, secondary] = self.cluster.nodes.machines();
        if self.cluster.nodes.of(primary).is_running() {
            self.cluster.stop(primary, stop);
        }
        if self.cluster.checks.could_take_over() && self.cluster.nodes.of(secondary).is_running() {
            self.promote(secondary, false)?;
        }
        self.cluster.start(primary);
        Ok(())
    }

    /// Promotes a node that serves nothing, if the other node is down.
    pub(super) fn end_stand_still(&mut self) -> Result<(), String> {
        let is_running = |side| self.cluster.nodes.of(side).is_running();
        let [primary, secondary] = self.cluster.nodes.machines();
        let (side, is_safe) = match [primary, secondary].map(is_running) {
            // The secondary may have become the primary just before it stopped.
            [true, false] => (primary, self.cluster.roles.unanswered != Some(secondary)),
            [false, true] => (secondary, self.cluster.checks.could_take_over()),
            _ => return Ok(()),
        };
        if is_safe && !self.cluster.nodes.of(side).serves() {
            self.promote(side, false)?;
        }
        Ok(())
    }

    /// Asks a node to become the primary, until it agrees or the operator gives up. Returns whether it has agreed.
    pub(super) fn promote(&mut self, side: Side, accepts_loss: bool) -> Result<bool, String> {
        let until = self.cluster.now() + PROMOTED_WITHIN;
        let mut asked = None;
        while self.cluster.now() < until {
            let node = self.cluster.nodes.of(side);
            let (Some(process), Some(datastore)) = (node.process(), node.datastore()) else {
                self.cluster.run_for(POLL_INTERVAL)?;
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
                let mut recorder = self.cluster.recorder.lock();
                recorder.operator_acts();
                recorder.node(side, NodeEvent::Promoted);
            }
            process
                .start(move || *slot.lock() = Some(datastore.role().promote(accepts_loss).is_ok()));
            self.cluster.roles.unanswered = Some(side);
            while self.cluster.now() < until
                && !process.is_dead()
                && self.cluster.roles.unanswered.is_some()
            {
                self.cluster.run_for(POLL_INTERVAL)?;
                if let Some(is_primary) = answer.lock().take() {
                    self.cluster.roles.unanswered = None;
                    if is_primary {
                        self.cluster.recorder.lock().tally.promotions += u64::from(!accepts_loss);
                        return Ok(true);
                    }
                }
            }
        }
        if self.cluster.roles.unanswered.is_some() {
            // The request must not be carried out after the other node has started.
            self.cluster.stop(side, Stop::Process);
            self.cluster.start(side);
        }
        Ok(false)
    }

    /// Clears the poison of the store of a node whose disk was made to fail. The node is stopped then.
    pub fn repair(&mut self, side: Side) -> Result<(), String> {
        self.cluster.stop(side, Stop::Process);
        let node = self.cluster.nodes.of(side);
        if node.repair()? {
            self.cluster.checks.after_repair(side);
        }
        node.disk.disk().kill();
        Ok(())
    }

    /// Runs the world until both nodes report that they are in sync. Meanwhile, ends what earlier acts have left open.
    pub fn until_in_sync(&mut self, limit: Duration) -> Result<(), String> {
        let start = self.cluster.now();
        loop {
            self.cluster.run_for(POLL_INTERVAL)?;
            if self.cluster.is_at_rest_in_sync() {
                return Ok(());
            }
            self.finish()?;
            let waited = self.cluster.now().saturating_sub(start);
            if waited > OPERATOR_AFTER
                && self.cluster.roles.has_operator_acted
                && let Some(side) = self.cluster.nodes.to_promote()
            {
                self.promote(side, true)?;
            }
            self.cluster.check_wait(start, limit)?;
        }
    }
}
