//! The commands of an operator, and the facts for which an operator vouches (docs/operations/roles.md).
//!
//! An operator who promotes a node vouches that the other node does not serve: that node is down, or it is a secondary whose copy
//! is not complete. While the witness does not know of a promotion by force, the operator does not start the other node.
//! Without a witness an operator forces no node while the other one would serve as soon as it starts.

use lockstep_roles::RoleEvent;

use crate::link::Link;
use crate::session::Session;
use crate::world::World;

impl World {
    /// Whether the operator lets a node start.
    pub fn may_start(&self, at: usize) -> bool {
        let peer = &self.nodes[1 - at];
        !peer.is_commanded() && peer.unrecorded.is_none()
    }

    /// Operations of clients have ended before a planned failover.
    pub fn may_hand_over(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let is_drained = node.memory == peer.memory;
        self.left.swaps > 0
            && node.is_working()
            && self.follows(at)
            && is_drained
            && self.facts(at).may_hand_over().is_ok()
    }

    /// An operator promotes a node whose peer is down and was in sync, or a primary that waits.
    pub fn may_promote(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let vouched = !self.left.has_witness && peer.machine.is_none() && !peer.is_known_lost;
        let may_lead = node.session == Session::Standby && peer.durable.peer_complete;
        let is_primary = node.session == Session::Undecided && !peer.durable.is_primary();
        let works = node.is_working() && node.durable.complete;
        works && vouched && (may_lead || is_primary)
    }

    /// An operator demotes a primary that is not in sync.
    pub fn may_demote(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let is_synced = matches!(node.session, Session::Synced { .. });
        self.left.operator.demotes
            && node.is_working()
            && !node.is_commanded()
            && node.durable.is_primary()
            && !is_synced
    }

    /// An operator forces a node to lead, and vouches for the other one.
    pub fn may_force(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let has_witness = self.left.has_witness;
        let waits = matches!(node.session, Session::Paused | Session::LeavingSync) && has_witness;
        let is_idle = matches!(node.session, Session::Standby | Session::Undecided);
        let would_serve = peer.durable.is_primary() && !peer.durable.peer_complete;
        let is_off = peer.machine.is_none() && (has_witness || !would_serve);
        let is_harmless = peer.session == Session::Standby && !peer.durable.complete;
        let vouched = is_off || peer.machine.is_some() && is_harmless;
        self.left.operator.forces
            && node.is_working()
            && !node.is_commanded()
            && self.link != Link::Up
            && (waits || is_idle)
            && vouched
    }

    /// An operator makes a node the primary. The command comes in place of a question that is under way: the answer to that is
    /// lost.
    pub fn promote(&mut self, at: usize, accepts_loss: bool) {
        self.was_forced |= accepts_loss;
        if accepts_loss && !self.nodes[at].line.is_idle() {
            self.lose_call(at, true);
        }
        self.nodes[at].is_forced = accepts_loss;
        self.event(at, &RoleEvent::Promote { accepts_loss });
    }

    /// The operator gives up what only this node has.
    pub fn demote(&mut self, at: usize) {
        self.was_forced = true;
        self.gone |= self.acknowledged & !self.nodes[1 - at].memory;
        self.event(at, &RoleEvent::Demote);
    }

    /// The node that an operator has forced serves: the operations that its copy lacks are given up.
    pub fn accept_loss(&mut self, at: usize) {
        let memory = self.nodes[at].memory;
        self.gone |= self.acknowledged & !memory;
        self.nodes[at].holds |= self.acknowledged & memory;
    }

    /// A command of an operator is over, or its process has ended.
    pub fn end_command(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.is_forced &= node.durable.is_candidate;
    }
}
