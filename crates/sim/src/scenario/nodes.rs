//! Both nodes of a schedule, and the statements about the two together.

use std::sync::Arc;

use lockstep_driver::Datastore;
use lockstep_repl::state::State;

use super::settings::Settings;
use super::sim_node::SimNode;
use crate::world::Side;

/// Both nodes.
pub struct Nodes([SimNode; 2]);

impl Nodes {
    /// Returns two nodes that have never run.
    pub fn new(settings: &Settings) -> Self {
        Self(Side::BOTH.map(|side| SimNode::new(side, settings)))
    }

    /// Returns both nodes, the primary first.
    pub const fn both(&self) -> &[SimNode; 2] {
        &self.0
    }

    /// Returns the node of a side.
    pub const fn of(&self, side: Side) -> &SimNode {
        side.of(&self.0)
    }

    /// Returns the node of a side.
    pub const fn of_mut(&mut self, side: Side) -> &mut SimNode {
        side.of_mut(&mut self.0)
    }

    /// Returns the states of both nodes, of each node whose process has opened its datastore.
    pub fn states(&self) -> [Option<State>; 2] {
        self.0.each_ref().map(SimNode::state)
    }

    /// Returns the open datastores.
    pub fn datastores(&self) -> [Option<Arc<Datastore>>; 2] {
        self.0.each_ref().map(SimNode::datastore)
    }

    /// Returns whether both nodes report that they are in sync.
    pub fn are_in_sync(&self) -> bool {
        self.states() == [Some(State::Synced), Some(State::SecondarySynced)]
    }

    /// Returns whether the secondary must hold all acknowledged operations, according to the states
    /// of both nodes.
    pub fn secondary_holds_all(&self) -> bool {
        let [primary, secondary] = &self.0;
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

    /// Returns whether an open store is poisoned.
    pub fn is_any_poisoned(&self) -> bool {
        let mut datastores = self.datastores().into_iter().flatten();
        datastores.any(|datastore| datastore.store().is_poisoned())
    }
}
