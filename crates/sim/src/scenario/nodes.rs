//! Both nodes of a schedule, their roles, and the statements about the two together.
//!
//! The primary is the node that serves clients, or that served last. The roles are those that a
//! client can see: they change when the other node begins to serve.

pub mod copies;
pub mod sim_node;

use std::sync::Arc;

use lockstep_driver::client::{FileService as _, Standing};
use lockstep_driver::{Datastore, DatastoreHandle};
use lockstep_repl::state::State;
use lockstep_types::settings::Role;

use super::settings::Settings;
use crate::world::Side;
use sim_node::SimNode;

/// The states of both nodes in sync, the primary first.
pub const IN_SYNC: [Option<State>; 2] = [Some(State::Synced), Some(State::SecondarySynced)];

/// Both nodes.
pub struct Nodes {
    of_machines: [SimNode; 2],
    primary: Side,
    /// The present process of the primary has served.
    has_served: bool,
    /// Both nodes reported at the last look that they are in sync.
    were_in_sync: bool,
    /// The states of the nodes of both machines at the last look.
    last_states: [Option<State>; 2],
    role_changes: u64,
    /// The node that no program uses, because an operator has given its copy up. It may believe that it serves.
    kept_away: Option<Side>,
}

impl Nodes {
    /// Returns two nodes that have never run.
    pub fn new(settings: &Settings) -> Self {
        Self {
            of_machines: Side::BOTH.map(|side| SimNode::new(side, settings)),
            primary: Side::A,
            has_served: false,
            were_in_sync: false,
            last_states: [None; 2],
            role_changes: 0,
            kept_away: None,
        }
    }

    /// Returns the node of a machine.
    pub const fn of(&self, side: Side) -> &SimNode {
        side.of(&self.of_machines)
    }

    /// Returns the node of a machine.
    pub const fn of_mut(&mut self, side: Side) -> &mut SimNode {
        side.of_mut(&mut self.of_machines)
    }

    /// Returns the machine whose node has a role.
    pub const fn machine(&self, role: Role) -> Side {
        match role {
            Role::Primary => self.primary,
            Role::Secondary => self.primary.other(),
        }
    }

    /// Returns the role of a machine's node.
    pub fn role_of(&self, side: Side) -> Role {
        if side == self.primary {
            Role::Primary
        } else {
            Role::Secondary
        }
    }

    /// Returns both machines, that of the primary first.
    pub const fn machines(&self) -> [Side; 2] {
        [self.primary, self.primary.other()]
    }

    /// Returns both nodes, the primary first.
    pub fn both(&self) -> [&SimNode; 2] {
        self.machines().map(|side| self.of(side))
    }

    /// Returns the machine whose node serves clients.
    pub fn serving(&self) -> Option<Side> {
        self.has_served.then_some(self.primary)
    }

    /// Returns the number of times that the other node began to serve.
    pub const fn role_changes(&self) -> u64 {
        self.role_changes
    }

    /// Keeps all programs away from a node, or from none.
    pub const fn keep_away(&mut self, side: Option<Side>) {
        self.kept_away = side;
    }

    /// Returns whether all programs are kept away from a node.
    pub const fn is_any_kept_away(&self) -> bool {
        self.kept_away.is_some()
    }

    /// Looks which node serves. Returns its machine, if its process has begun to serve since the last
    /// look.
    pub fn look_for_server(&mut self) -> Result<Option<Side>, String> {
        let side =
            match Side::BOTH.map(|side| self.kept_away != Some(side) && self.of(side).serves()) {
                [true, true] => return Err("one_primary: both nodes serve clients".to_owned()),
                [true, false] => Side::A,
                [false, true] => Side::B,
                [false, false] => return Ok(None),
            };
        let is_known = self.has_served && side == self.primary;
        self.role_changes += u64::from(side != self.primary);
        (self.primary, self.has_served) = (side, true);
        Ok((!is_known).then_some(side))
    }

    /// Empties the caches of each machine whose node follows: its process drops them itself.
    pub fn drop_caches(&self) {
        for node in &self.of_machines {
            let standing = |datastore| DatastoreHandle::new(datastore).standing();
            if node.datastore().map(standing) == Some(Standing::Following) {
                node.node.kernel_caches().clear();
            }
        }
    }

    /// Records that the process of a node has ended.
    pub fn process_ended(&mut self, side: Side) {
        self.of(side).node.clear_running();
        self.has_served &= side != self.primary;
    }

    /// Forgets the last state of a node whose disk is exchanged while its process is stopped. That state says nothing of the copy on
    /// the other disk.
    pub const fn forget_state(&mut self, side: Side) {
        *side.of_mut(&mut self.last_states) = None;
    }

    /// Looks in the present states whether both nodes are in sync. Returns whether they have come in sync since the last
    /// look.
    pub fn look_for_sync(&mut self, states: [Option<State>; 2]) -> bool {
        let are_in_sync = states == IN_SYNC;
        let were_in_sync = std::mem::replace(&mut self.were_in_sync, are_in_sync);
        are_in_sync && !were_in_sync
    }

    /// Looks in the present states, the primary first, which copies have become complete since the last look. The primary is in
    /// sync before, and may have died since, also before the secondary has its mark.
    pub fn look_for_complete_copies(&mut self, states: [Option<State>; 2]) -> Vec<Side> {
        let machines = self.machines().into_iter().zip(states);
        let become_complete = |&(side, state): &(Side, Option<State>)| {
            let last = std::mem::replace(side.of_mut(&mut self.last_states), state);
            match state {
                Some(State::SecondarySynced) => last != state,
                Some(State::SecondaryDisconnected) => matches!(
                    last,
                    Some(State::SecondaryResyncing | State::SecondaryOutOfSync)
                ),
                _ => false,
            }
        };
        let complete = machines.filter(become_complete);
        complete.map(|(side, _)| side).collect()
    }

    /// Returns the states of both nodes, the primary first, of each node whose process has opened its
    /// datastore.
    pub fn states(&self) -> [Option<State>; 2] {
        self.both().map(SimNode::state)
    }

    /// Returns the open datastores, that of the primary first.
    pub fn datastores(&self) -> [Option<Arc<Datastore>>; 2] {
        self.both().map(SimNode::datastore)
    }

    /// Returns whether both nodes report that they are in sync.
    pub fn are_in_sync(&self) -> bool {
        self.states() == IN_SYNC
    }

    /// Returns the machine that an operator promotes because no node leads: the one with the complete copy.
    pub fn to_promote(&self) -> Option<Side> {
        use State::{SecondaryDisconnected, SecondaryOutOfSync};
        match self.states() {
            [
                Some(SecondaryOutOfSync | SecondaryDisconnected),
                Some(SecondaryOutOfSync),
            ] => Some(self.primary),
            [Some(SecondaryOutOfSync), Some(SecondaryDisconnected)] => Some(self.primary.other()),
            _ => None,
        }
    }

    /// Returns whether there is a witness.
    pub fn have_witness(&self) -> bool {
        let asks = |node: &SimNode| node.node.config().failover_after.is_some();
        self.both().into_iter().all(asks)
    }

    /// Returns whether the secondary must hold all acknowledged operations, according to the states
    /// of both nodes.
    pub fn secondary_holds_all(&self) -> bool {
        let [primary, secondary] = self.both();
        if primary.has_lost_power() {
            return false;
        }
        let primary = primary.state().is_some_and(|state| {
            matches!(
                state,
                State::Synced | State::Paused | State::Frozen | State::CatchingUp
            )
        });
        primary && secondary.has_kept_sync()
    }

    /// Returns whether the primary copies its metadata to the secondary in a resync.
    pub fn are_resyncing(&self) -> bool {
        matches!(
            self.states(),
            [
                Some(State::ResyncContent | State::EnteringSync),
                Some(State::SecondaryResyncing),
            ]
        )
    }

    /// Returns whether the disk of the primary has failed, and the secondary must hold all acknowledged operations: the primary
    /// was in sync, so it acknowledges nothing alone (rule P16).
    pub fn secondary_outlives_disk(&self) -> bool {
        let [primary, secondary] = self.both();
        let was_in_sync = || {
            let marks = primary.marks();
            marks.is_some_and(|marks| marks.in_sync && !marks.has_lost_power)
        };
        primary.state() == Some(State::Poisoned) && was_in_sync() && secondary.has_kept_sync()
    }

    /// Returns whether an open store is poisoned.
    pub fn is_any_poisoned(&self) -> bool {
        let mut datastores = self.datastores().into_iter().flatten();
        datastores.any(|datastore| datastore.store().is_poisoned())
    }
}
