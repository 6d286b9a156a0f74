//! The checks that run while a schedule runs: after each stop of a node, between faults, and at the
//! end. The file also owns everything that decides whether a check applies.
//!
//! Invariant: no check applies in a situation in which a correct node may violate it. The fields of
//! [`LiveChecks`] record these situations.

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_types::settings::Role;
use parking_lot::Mutex;

use super::bounds;
use super::final_checks::{self, FinalNode};
use super::resync_end;
use crate::history::{NodeEvent, Stop};
use crate::scenario::nodes::{IN_SYNC, Nodes};
use crate::scenario::on_disk::disk_checks;
use crate::scenario::on_disk::tables;
use crate::scenario::recording::history_recorder::HistoryRecorder;
use crate::world::{Network, Side};

/// An operation that was requested before the nodes were in sync for the first time has ended this
/// long after that moment.
const EARLY_OPERATIONS_END: Duration = Duration::from_millis(200);

/// The events that may keep the secondary from an operation that the primary accepted.
#[derive(Default)]
struct Events {
    /// A disk was made to fail.
    disk_failed: bool,
    /// The disks have little room.
    disks_are_small: bool,
    /// A fault has happened.
    had_fault: bool,
    /// The first time at which the nodes were in sync.
    first_in_sync: Option<Duration>,
}

/// The past of the node that is the primary.
#[derive(Default)]
struct PrimaryPast {
    /// The primary's process ended in sync: at the next start PAW and SAW must say where the nodes
    /// differ.
    tables_are_due: bool,
    /// The primary has been in sync since its start. Before, the primary may show a size that the
    /// secondary does not know: the size after a write that was in flight when the previous process
    /// ended.
    has_recovered: bool,
    /// The primary has stopped, and the secondary held every acknowledged operation.
    could_take_over: bool,
}

/// The checks of a running schedule.
pub struct LiveChecks {
    pub(super) recorder: Arc<Mutex<HistoryRecorder>>,
    /// The checks are off: a test exchanges disks, so that no history explains their content.
    is_off: bool,
    /// The past of the primary.
    primary: PrimaryPast,
    /// The last step has found the primary in a resync of content.
    sends_content: bool,
    /// The events that excuse the secondary.
    events: Events,
    /// Number of questions about the history that were too complex to decide.
    undecided: u64,
}

impl LiveChecks {
    /// Returns the checks of a schedule that has not begun.
    pub fn new(recorder: Arc<Mutex<HistoryRecorder>>) -> Self {
        Self {
            recorder,
            is_off: false,
            primary: PrimaryPast::default(),
            sends_content: false,
            events: Events::default(),
            undecided: 0,
        }
    }

    /// Turns the checks off.
    pub const fn turn_off(&mut self) {
        self.is_off = true;
    }

    /// Returns the number of events in the history so far.
    pub fn events_so_far(&self) -> u64 {
        self.recorder.lock().now()
    }

    /// Returns the number of undecided questions.
    pub const fn undecided(&self) -> u64 {
        self.undecided
    }

    /// Returns whether a disk was made to fail.
    pub const fn has_disk_failed(&self) -> bool {
        self.events.disk_failed
    }

    /// Returns whether the primary has stopped, and the secondary held every acknowledged operation.
    pub const fn could_take_over(&self) -> bool {
        self.primary.could_take_over
    }

    /// Allows the errors of a failing disk. Clients see these errors while the machine's node serves.
    pub fn expect_disk_errors(&mut self, side: Side) {
        self.events.disk_failed = true;
        self.recorder.lock().expect_disk_errors(side);
    }

    /// Allows the errors of disks with little room.
    pub fn expect_small_disks(&mut self) {
        self.events.disks_are_small = true;
        self.recorder.lock().expect_full_disks();
    }

    /// Records the error of a check.
    pub fn record(&self, result: Result<(), String>) {
        if let Err(what) = result {
            self.recorder.lock().wrong(what);
        }
    }

    fn record_decision(&mut self, result: Result<bool, String>) {
        self.undecided += u64::from(result == Ok(false));
        self.record(result.map(drop));
    }

    /// A node is about to start.
    pub fn before_start(&mut self, nodes: &Nodes, side: Side) {
        if nodes.role_of(side) == Role::Primary {
            if std::mem::take(&mut self.primary.tables_are_due) {
                self.record(self.check_tables(nodes));
            }
            // What a failed disk shows does not count once the secondary takes over.
            self.primary.has_recovered &= nodes.of(side).is_poisoned();
            self.primary.could_take_over = false;
        }
    }

    /// The other node has begun to serve.
    pub fn after_role_change(&mut self) {
        self.primary = PrimaryPast::default();
    }

    /// A node has stopped. Its process is still known to `nodes`.
    pub fn after_stop(&mut self, nodes: &Nodes, side: Side, stop: Stop) {
        let checked = self.check_disk_after_stop(nodes, side, stop);
        self.record_decision(checked);
        // The store stays closed if the process was only about to open it (P12).
        let event = if nodes.of(side).is_closed() {
            NodeEvent::Closed
        } else {
            NodeEvent::Crashed(stop)
        };
        self.recorder.lock().node(side, event);
        let is_secondary_complete = nodes.secondary_holds_all();
        let is_primary = nodes.role_of(side) == Role::Primary;
        self.primary.tables_are_due = is_primary && stop == Stop::Process && is_secondary_complete;
        if is_primary {
            let holds_all = is_secondary_complete || nodes.secondary_outlives_disk();
            self.primary.could_take_over = self.primary.has_recovered && holds_all;
        }
    }

    /// An operator has cleared the poison of a node's store: the next resync compares everything.
    pub fn after_repair(&mut self, side: Side) {
        self.primary.tables_are_due = false;
        let event = NodeEvent::Crashed(Stop::Power);
        self.recorder.lock().node(side, event);
    }

    /// A fault is about to happen.
    pub fn before_fault(&mut self, nodes: &Nodes, network: &Network, now: Duration) {
        self.events.had_fault |= self.room_was_unknown(network, now);
        if !std::mem::replace(&mut self.events.had_fault, true) {
            self.record(self.check_secondary_follows(nodes, network));
        }
    }

    /// A step of the world is done.
    pub fn after_step(
        &mut self,
        nodes: &Nodes,
        states: [Option<State>; 2],
        network: &Network,
        now: Duration,
    ) {
        let are_in_sync = states == IN_SYNC;
        self.look_for_end_of_resync(nodes, states);
        if are_in_sync && self.events.first_in_sync.is_none() {
            self.events.first_in_sync = Some(now);
        }
        self.events.had_fault |= self.room_was_unknown(network, now);
        self.primary.has_recovered |= are_in_sync;
    }

    /// Compares the copies if a resync has just ended, and the secondary still takes part in it: a secondary that has lost power since
    /// the last answer has a resync before it.
    fn look_for_end_of_resync(&mut self, nodes: &Nodes, states: [Option<State>; 2]) {
        let [primary, secondary] = states;
        let sends_content = primary == Some(State::ResyncContent);
        let was_sending = std::mem::replace(&mut self.sends_content, sends_content);
        let has_ended = matches!(primary, Some(State::EnteringSync | State::Synced));
        let takes_part = matches!(
            secondary,
            Some(State::SecondaryResyncing | State::SecondarySynced)
        );
        let has_left = was_sending && !sends_content;
        let is_rotten = || nodes.both().iter().any(|node| node.disk.is_rotten());
        if !has_left || self.is_off || self.events.disk_failed || is_rotten() {
            return;
        }
        self.record(check_left_nothing(nodes));
        if has_ended && takes_part {
            let checked = resync_end::check(nodes.both(), self.recorder.lock().history());
            self.record(checked);
        }
    }

    /// Checks the data that a stopped node leaves, while both nodes are treated as in sync. Returns
    /// `false` if a question had to be left undecided.
    fn check_disk_after_stop(&self, nodes: &Nodes, side: Side, stop: Stop) -> Result<bool, String> {
        if self.is_off {
            return Ok(true);
        }
        let [_, secondary] = nodes.both();
        if nodes.are_resyncing() {
            // The resync has changed records of the secondary, so the mark must have come before.
            disk_checks::check_marked_out_of_sync(secondary.disk.disk())?;
        }
        let is_primary = nodes.role_of(side) == Role::Primary;
        let recorder = self.recorder.lock();
        let history = recorder.history();
        if is_primary && self.primary.has_recovered && nodes.secondary_outlives_disk() {
            let taken_over = history.taken_over_by(secondary.side());
            return disk_checks::check_could_take_over(&secondary.dump()?, &taken_over);
        }
        if !nodes.secondary_holds_all() {
            return Ok(true);
        }
        match (nodes.role_of(side), stop) {
            (Role::Secondary, Stop::Process) => Ok(true),
            (Role::Secondary, Stop::Power) => {
                disk_checks::check_durable(&secondary.dump()?, history).map(|()| true)
            }
            (Role::Primary, _) if !self.primary.has_recovered => Ok(true),
            (Role::Primary, _) => disk_checks::check_could_take_over(&secondary.dump()?, history),
        }
    }

    /// Checks that PAW and SAW say where the nodes differ at this moment. The primary must be
    /// treated as in sync, or have stopped in sync.
    fn check_tables(&self, nodes: &Nodes) -> Result<(), String> {
        let [primary, secondary] = nodes.both();
        if self.is_off || !secondary.has_kept_sync() || primary.has_lost_power() {
            return Ok(());
        }
        let (ours, theirs) = (primary.inodes(), secondary.inodes());
        let exists = |ino| Ok(ours(ino)? && theirs(ino)?);
        let disks = [primary.disk.disk(), secondary.disk.disk()];
        tables::check(disks, exists, self.recorder.lock().history())
    }

    /// Checks between two faults: the bounds of each node and, in sync, the tables.
    pub fn check_between_faults(&self, nodes: &Nodes, clients: u32) -> Result<(), String> {
        self.check_bounds(nodes, clients)?;
        if nodes.secondary_holds_all() && !nodes.is_any_poisoned() {
            self.record(self.check_tables(nodes));
        }
        Ok(())
    }

    fn check_bounds(&self, nodes: &Nodes, clients: u32) -> Result<(), String> {
        let recorder = self.recorder.lock();
        for node in nodes.both() {
            let Some(datastore) = node.datastore() else {
                continue;
            };
            let checked =
                bounds::check(node.side(), &datastore, clients, recorder.history(), false);
            checked.map_err(|violation| violation.to_string())?;
        }
        Ok(())
    }

    /// Returns whether the secondary had no room for an operation that was requested before the
    /// nodes were in sync for the first time. The primary cannot know the room of the secondary
    /// then (P20).
    fn room_was_unknown(&self, network: &Network, now: Duration) -> bool {
        let is_early = self
            .events
            .first_in_sync
            .is_none_or(|since| now.saturating_sub(since) < EARLY_OPERATIONS_END);
        self.events.disks_are_small && is_early && network.refused_by_secondary().is_some()
    }

    /// Checks that the secondary could do every operation that the primary accepted.
    fn check_secondary_follows(&self, nodes: &Nodes, network: &Network) -> Result<(), String> {
        let [_, secondary] = nodes.both();
        let is_rotten = secondary.disk.is_rotten();
        let must_follow = !self.events.disk_failed && !is_rotten;
        match network.refused_by_secondary().filter(|_| must_follow) {
            None => Ok(()),
            Some(answer) => Err(format!(
                "the secondary could not follow, though its disk works: {answer}"
            )),
        }
    }

    /// Checks everything at the end of a schedule, when both nodes are in sync and idle.
    pub fn check_at_end(
        &mut self,
        nodes: &Nodes,
        network: &Network,
        clients: u32,
    ) -> Result<(), String> {
        let is_decided = self.decide_at_end(nodes, network, clients)?;
        self.undecided += u64::from(!is_decided);
        Ok(())
    }

    fn decide_at_end(
        &self,
        nodes: &Nodes,
        network: &Network,
        clients: u32,
    ) -> Result<bool, String> {
        let recorder = self.recorder.lock();
        recorder.verdict()?;
        // After a fault the primary may not know the room of the secondary (P20).
        if !(self.events.disks_are_small && self.events.had_fault) {
            self.check_secondary_follows(nodes, network)?;
        }
        if network.has_blocked() {
            return Err("a thread that must not has waited for the other node to read".to_owned());
        }
        let [Some(primary), Some(secondary)] = nodes.datastores() else {
            return Err("a node is not running at the end".to_owned());
        };
        let [ours, theirs] = nodes.both();
        let nodes = [(&primary, ours), (&secondary, theirs)].map(|(datastore, node)| FinalNode {
            side: node.side(),
            datastore,
            disk: node.disk.disk(),
        });
        final_checks::check(recorder.history(), clients, nodes)
    }
}

/// Checks that no node has found a difference where a resync had been. Such a difference is healed, and still is a bug.
fn check_left_nothing(nodes: &Nodes) -> Result<(), String> {
    for node in nodes.both() {
        let verified = node
            .datastore()
            .and_then(|datastore| datastore.status().verified);
        let of_resync = verified.filter(|verified| verified.only_touched);
        if let Some(verified) = of_resync
            && (!verified.identical || verified.sent_again > 0)
        {
            let first = verified.differences.first();
            return Err(format!(
                "proved: a resync has left a difference: {}",
                first.map_or("", String::as_str)
            ));
        }
    }
    Ok(())
}
