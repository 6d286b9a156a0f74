//! The promises of docs/protocol/roles.md, as checks of a state.

use lockstep_roles::{InSyncSet, WitnessRecord};

use crate::session::Session;
use crate::world::{MEMBERS, Node, World};

impl World {
    pub fn one_node_acknowledges(&self) -> bool {
        self.nodes[0].led & self.nodes[1].led == 0
    }

    /// A node that serves reads has every acknowledged operation that is still to be had.
    pub fn serves_what_was_acknowledged(&self) -> bool {
        let owed = self.acknowledged & !self.gone;
        [0, 1]
            .into_iter()
            .all(|at| !self.serves(at) || owed & !self.nodes[at].memory == 0)
    }

    pub fn one_serves_alone(&self) -> bool {
        let alone = |node: &&Node| node.session == Session::Alone;
        self.nodes.iter().filter(alone).count() < 2
    }

    /// Two nodes that stand for one generation could not give way to each other. An operator may force both into one.
    pub fn one_stands(&self) -> bool {
        let [first, second] = self.nodes.each_ref();
        let both = first.durable.is_candidate && second.durable.is_candidate;
        let is_forced = first.is_forced || second.is_forced;
        !both || is_forced || first.durable.generation != second.durable.generation
    }

    /// A node serves alone, and the old primary does not know yet.
    pub fn has_taken_over(&self) -> bool {
        [0, 1].into_iter().any(|at| {
            let (node, peer) = (&self.nodes[at], &self.nodes[1 - at].durable);
            let is_later = node.durable.generation > peer.generation;
            node.session == Session::Alone && peer.is_primary() && is_later
        })
    }

    /// Both copies are equal, by both records, and the witness knows.
    pub fn is_in_sync(&self) -> bool {
        [0, 1].into_iter().any(|at| {
            let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
            let knows = |known: WitnessRecord| {
                let is_primary = known.primary == MEMBERS[at];
                let is_present = known.generation == node.durable.generation;
                is_primary && is_present && known.in_sync == InSyncSet::Both
            };
            let equal = node.memory == peer.memory && peer.durable.complete;
            self.mirrors(at)
                && node.session == Session::Synced { is_recorded: true }
                && equal
                && self.witness.is_none_or(knows)
        })
    }
}
