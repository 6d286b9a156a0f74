//! The operator of a schedule who accepts a loss: forced promotions, demotions, and exchanged disks.
//!
//! By contract, a forced promotion loses what the promoted copy lacks, and a demotion of a primary that served alone loses
//! what only that primary has. The history then goes on with the copy that is kept (`history/lineage.rs`). So the checks
//! excuse exactly that loss.
//!
//! Invariants:
//! - The operator vouches for the other node: that node is down, its disk is exchanged, or no program uses it before its
//!   copy is equal. A node that is *kept away* may believe that it serves, until it meets the other node.
//! - The operator keeps no copy that a resync has changed in part: such a copy is no state of any moment.

use std::sync::Arc;

use lockstep_driver::Datastore;
use lockstep_types::settings::Role;
use parking_lot::Mutex;

use super::{Operator, PROMOTED_WITHIN};
use crate::history::{NodeEvent, Stop};
use crate::scenario::cluster::POLL_INTERVAL;
use crate::scenario::cluster::role_follower::Deposed;
use crate::world::Side;

/// Distance of generations from which on the other node has been forced to lead since both have met, and may have been demoted
/// since. The operator forces no second node then (gap 23 in docs/protocol/gaps.md).
const UNKNOWN_GENERATIONS: u64 = 3;

impl Operator {
    /// Stops the primary, unless it is down, and promotes the secondary by force. `is_lost`: the disk of the old primary is
    /// lost, too. Otherwise the old primary starts, and the operator demotes it.
    pub fn promote_by_force(&mut self, stop: Stop, is_lost: bool) -> Result<(), String> {
        let [primary, secondary] = self.cluster.nodes.machines();
        if !self.may_keep(secondary) || self.cluster.nodes.is_any_kept_away() {
            return Ok(());
        }
        if self.cluster.nodes.of(primary).is_running() {
            self.cluster.stop(primary, stop);
        }
        let is_behind = self.cluster.roles.copies.behind_since(secondary).is_some();
        self.cluster.roles.has_operator_acted = true;
        let leads = (is_behind || self.cluster.checks.could_take_over()) && self.keep(secondary)?;
        if leads && is_lost {
            self.exchange_disk(primary);
        } else if leads
            && is_behind
            && self.cluster.nodes.of(primary).recorded_role() == Some(Role::Primary)
        {
            // The old primary has served alone, and may believe that it still does.
            self.cluster.nodes.keep_away(Some(primary));
            let must_be_asked = !self.cluster.nodes.have_witness();
            self.cluster.roles.to_demote = Some(Deposed {
                side: primary,
                must_be_asked,
            });
        }
        self.cluster.start(primary);
        self.finish()
    }

    /// Makes the primary, which serves alone or is undecided, the secondary. Then promotes the secondary by force, or the
    /// old primary again.
    pub fn demote_primary(&mut self) -> Result<(), String> {
        let [primary, secondary] = self.cluster.nodes.machines();
        if self.cluster.nodes.is_any_kept_away()
            || self.cluster.nodes.of(primary).needs_operator
            || !self.cluster.roles.copies.is_of_one_moment(secondary)
            || self.cluster.nodes.of(primary).recorded_role() != Some(Role::Primary)
        {
            return Ok(());
        }
        // The secondary leads by itself if it reads the record of the demotion as a grant.
        self.cluster.roles.kept = Some(secondary);
        // Also without an answer the node may be demoted.
        self.cluster.roles.has_operator_acted = true;
        if !self.demote(primary)? {
            self.cluster.roles.kept = None;
            return Ok(());
        }
        self.lacks_leader = true;
        let leads = self.cluster.nodes.of(secondary).recorded_role() == Some(Role::Primary);
        let is_behind = self.cluster.roles.copies.behind_since(secondary).is_some();
        if is_behind && !leads && self.may_keep(secondary) {
            self.keep(secondary)?;
        }
        self.finish()
    }

    /// Ends what earlier acts have left open: demotes the node whose changes are lost, and promotes a node if none leads.
    pub fn finish(&mut self) -> Result<(), String> {
        if let Some(Deposed {
            side,
            must_be_asked,
        }) = self.cluster.roles.to_demote
        {
            if self.cluster.nodes.of(side).recorded_role() == Some(Role::Secondary) {
                if must_be_asked {
                    return Err("consent: a node that served alone follows unasked".to_owned());
                }
                self.cluster.roles.to_demote = None;
            } else if self.demote(side)? {
                self.cluster.roles.to_demote = None;
            }
        }
        if self.lacks_leader {
            self.lacks_leader = !self.promote_any()?;
        }
        Ok(())
    }

    /// Promotes the old primary again, unless a node leads. The other node is down meanwhile. Returns whether a node leads.
    fn promote_any(&mut self) -> Result<bool, String> {
        let leads = |side| self.cluster.nodes.of(side).recorded_role() == Some(Role::Primary);
        let [primary, secondary] = self.cluster.nodes.machines();
        if leads(primary) || leads(secondary) {
            return Ok(true);
        }
        // A node whose disk fails may not tell the witness that it was forced to lead. It is promoted once it is repaired.
        if !self.cluster.nodes.of(primary).is_running()
            || self.cluster.nodes.of(primary).needs_operator
        {
            return Ok(false);
        }
        let was_running = self.cluster.nodes.of(secondary).is_running();
        if was_running {
            self.cluster.stop(secondary, Stop::Process);
        }
        let is_led = self.cluster.nodes.of(secondary).recorded_role() == Some(Role::Primary)
            || self.keep(primary)?;
        if was_running {
            self.cluster.start(secondary);
        }
        Ok(is_led)
    }

    /// Replaces the disk of the secondary by a new one, if the primary serves: then its copy is the right one.
    pub fn exchange_secondary(&mut self) {
        let [primary, secondary] = self.cluster.nodes.machines();
        let can_be = self.cluster.nodes.of(secondary).disk.can_be_unmounted()
            && !self.cluster.nodes.of(secondary).needs_operator
            && !self.cluster.nodes.is_any_kept_away();
        if can_be && self.cluster.nodes.of(primary).serves() {
            self.cluster.stop(secondary, Stop::Process);
            self.exchange_disk(secondary);
            self.cluster.start(secondary);
        }
    }

    /// Puts a disk with a new store in the place of the disk of a stopped node.
    fn exchange_disk(&mut self, side: Side) {
        let node = self.cluster.nodes.of_mut(side);
        node.node.set_role(Role::Secondary);
        node.disk.replace_with_new().discard();
        self.cluster.roles.copies.replaced(side);
        self.cluster.roles.has_operator_acted = true;
        let lost = NodeEvent::Crashed(Stop::Power);
        let mut recorder = self.cluster.recorder.lock();
        recorder.operator_acts();
        recorder.node(side, lost);
    }

    /// Returns whether the operator can go on with the copy of a node. A copy whose disk does not have the mark of the last
    /// resync yet is older than that by what the other node knows (rule P17).
    fn may_keep(&self, side: Side) -> bool {
        let node = self.cluster.nodes.of(side);
        let generation = |side| {
            self.cluster
                .nodes
                .of(side)
                .role_record()
                .map_or(0, |record| record.generation.get())
        };
        let is_known = generation(side.other()) < generation(side) + UNKNOWN_GENERATIONS;
        let last_sync = |side| {
            self.cluster
                .nodes
                .of(side)
                .marks()
                .and_then(|marks| marks.sync)
        };
        self.cluster.roles.copies.is_of_one_moment(side)
            && last_sync(side) == last_sync(side.other())
            && node.is_running()
            && !node.needs_operator
            && is_known
    }

    /// Promotes a node by force. Returns whether its record says that it leads.
    fn keep(&mut self, side: Side) -> Result<bool, String> {
        let is_other = side != self.cluster.nodes.machine(Role::Primary);
        // The other node may still lead by a grant: then its copy is kept, as noted before.
        let unless_led = self.cluster.roles.kept;
        if is_other {
            self.cluster.roles.kept = Some(side);
            if !self.is_complete_by_record(side) {
                self.check_consent(side)?;
            }
        }
        let before = self.cluster.nodes.of(side).role_record();
        let is_answered = self.promote(side, true)?;
        let record = self.cluster.nodes.of(side).role_record();
        // A node that was the primary before, and is not forced to lead, does not count.
        let leads =
            record.is_some_and(|record| record.is_primary()) && (is_answered || record != before);
        if leads {
            self.wait_for_word(side)?;
        }
        match (leads, is_other) {
            // The old primary leads again: no other copy is kept.
            (true, false) => self.cluster.roles.kept = None,
            // After a demotion of the old primary, the node may still lead by itself.
            (false, true) => self.cluster.roles.kept = unless_led,
            _ => {}
        }
        Ok(leads)
    }

    /// Waits until the witness knows that a node was forced to lead: the other node must not serve before. If that takes
    /// long, repairs the connection with the witness, and forces the node once more: the witness may have made the other
    /// node the primary before.
    fn wait_for_word(&mut self, side: Side) -> Result<(), String> {
        self.wait_while_owing(side)?;
        if self.owes_word(side) {
            self.cluster.world.witness.cut_off(side, false);
            self.cluster.world.witness.lose_answers(side, false);
            self.wait_while_owing(side)?;
        }
        if self.owes_word(side) {
            self.promote(side, true)?;
            self.wait_while_owing(side)?;
        }
        if self.owes_word(side) {
            return Err("consent: the witness does not hear of a forced promotion".to_owned());
        }
        Ok(())
    }

    fn wait_while_owing(&mut self, side: Side) -> Result<(), String> {
        let until = self.cluster.now() + PROMOTED_WITHIN;
        while self.owes_word(side) && self.cluster.now() < until {
            self.cluster.run_for(POLL_INTERVAL)?;
        }
        Ok(())
    }

    /// Returns whether a node says that its witness does not know of its promotion. A node with a witness that is down, or is
    /// starting, says nothing yet.
    fn owes_word(&self, side: Side) -> bool {
        let Some(datastore) = self.cluster.nodes.of(side).datastore() else {
            return self.cluster.nodes.have_witness();
        };
        let status = datastore.status().witness;
        status.is_some_and(|witness| witness.unaware)
    }

    /// Checks that a node whose copy lacks operations refuses to be promoted without the consent to a loss.
    fn check_consent(&mut self, side: Side) -> Result<(), String> {
        let promoted = self.ask(side, |datastore| datastore.role().promote(false).is_ok())?;
        if promoted == Some(true) {
            return Err(
                "consent: a copy that lacks operations is promoted without consent".to_owned(),
            );
        }
        Ok(())
    }

    /// Demotes a node. Returns whether its record says that it is the secondary now.
    fn demote(&mut self, side: Side) -> Result<bool, String> {
        if self.cluster.nodes.of(side).recorded_role() != Some(Role::Primary) {
            return Ok(false);
        }
        let was_in_sync = self.cluster.nodes.are_in_sync();
        let is_demoted = self.ask(side, |datastore| datastore.role().demote().is_ok())?;
        if was_in_sync && self.cluster.nodes.are_in_sync() && is_demoted == Some(true) {
            return Err("consent: a primary in sync was demoted".to_owned());
        }
        let follows = self.cluster.nodes.of(side).recorded_role() == Some(Role::Secondary);
        self.cluster.recorder.lock().tally.demotions += u64::from(follows);
        Ok(follows)
    }

    /// Gives a node a command, and waits for the answer for some time. `None`: the node has not answered.
    fn ask(
        &mut self,
        side: Side,
        command: impl FnOnce(&Datastore) -> bool + Send + 'static,
    ) -> Result<Option<bool>, String> {
        let node = self.cluster.nodes.of(side);
        let (Some(process), Some(datastore)) = (node.process(), node.datastore()) else {
            return Ok(None);
        };
        self.cluster.recorder.lock().operator_acts();
        let answer = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&answer);
        process.start(move || *slot.lock() = Some(command(&datastore)));
        let until = self.cluster.now() + PROMOTED_WITHIN;
        while self.cluster.now() < until && !process.is_dead() && answer.lock().is_none() {
            self.cluster.run_for(POLL_INTERVAL)?;
        }
        let answer = answer.lock().take();
        if answer.is_none() && !process.is_dead() {
            // The command must not be carried out later.
            self.cluster.stop(side, Stop::Process);
            self.cluster.start(side);
        }
        Ok(answer)
    }

    /// Returns whether the record of a node says that its copy is complete. Without a witness, the record is wrong if the
    /// primary has gone on alone since.
    fn is_complete_by_record(&self, side: Side) -> bool {
        self.cluster
            .nodes
            .of(side)
            .role_record()
            .is_some_and(|record| record.complete)
    }
}
