//! The role record of a node: generation, role and completeness of the copies, on stable storage.

use lockstep_types::Generation;
use lockstep_types::settings::Role;
use serde::{Deserialize, Serialize};

/// One of the two nodes of a datastore. The order of the fingerprints of their certificates tells the two apart, so both
/// nodes and the witness use the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// The node with the lower fingerprint.
    First,
    /// The node with the higher fingerprint.
    Second,
}

/// The role record of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoleRecord {
    /// The highest generation that this node knows.
    pub generation: Generation,
    /// The role of this node in that generation.
    pub role: Role,
    /// Secondary: this node asks the witness for this generation, or has asked. It follows no primary of an earlier one.
    pub is_candidate: bool,
    /// This copy holds every operation that was acknowledged up to the last contact with the peer; on a primary that
    /// serves alone, also every later operation.
    pub complete: bool,
    /// Primary: the copy of the secondary holds every acknowledged operation, so the secondary may take over.
    pub peer_complete: bool,
}

impl RoleRecord {
    /// The record of a node that begins with this role. Neither copy is known to be complete on a secondary; a primary
    /// begins with the only copy.
    pub const fn begin(role: Role) -> Self {
        Self {
            generation: Generation::FIRST,
            role,
            is_candidate: false,
            complete: matches!(role, Role::Primary),
            peer_complete: false,
        }
    }

    /// The record after the machine has lost power, which may have taken operations that were not synced. A primary
    /// whose peer lacks operations keeps the best copy there is.
    #[must_use]
    pub const fn after_power_loss(self) -> Self {
        let has_best_copy = self.is_primary() && !self.peer_complete;
        Self {
            complete: self.complete && has_best_copy,
            ..self
        }
    }

    /// The record of the secondary in another node's generation. This copy stays complete only if the primary says so.
    #[must_use]
    pub const fn follow(self, generation: Generation, is_complete: bool) -> Self {
        Self {
            generation,
            role: Role::Secondary,
            is_candidate: false,
            complete: self.complete && is_complete,
            peer_complete: false,
        }
    }

    /// The record of a secondary that is about to ask the witness for the next generation.
    #[must_use]
    pub const fn become_candidate(self) -> Self {
        Self {
            generation: self.generation.next(),
            is_candidate: true,
            ..self
        }
    }

    /// Whether this secondary lets the peer lead, which it has met (rule R4). A candidate lets an earlier primary lead, and
    /// an earlier secondary whose copy is complete, too. An earlier secondary whose copy is not complete gives way: the copy
    /// of the candidate was complete after that.
    pub fn gives_way_to(&self, theirs: &Self) -> bool {
        let is_later_candidate = self.is_candidate && self.generation > theirs.generation;
        let meets_later_candidate = theirs.is_candidate && theirs.generation > self.generation;
        match (self.role, theirs.role) {
            (Role::Primary, _) => false,
            (Role::Secondary, Role::Primary) => is_later_candidate,
            (Role::Secondary, Role::Secondary) => match (self.complete, theirs.complete) {
                (true, true) => is_later_candidate,
                (true, false) => false,
                (false, true) => is_later_candidate || meets_later_candidate,
                (false, false) => meets_later_candidate,
            },
        }
    }

    /// The record of a primary that gives its role away: this node is the secondary of the next generation. The record
    /// is the peer's right to be the primary of that generation.
    #[must_use]
    pub const fn grant(self) -> Self {
        Self {
            generation: self.generation.next(),
            role: Role::Secondary,
            peer_complete: false,
            ..self
        }
    }

    /// The record of a node that an operator makes the secondary, or lets begin a promotion by force.
    #[must_use]
    pub const fn demoted(self, generation: Generation, complete: bool) -> Self {
        Self {
            generation,
            role: Role::Secondary,
            complete,
            peer_complete: false,
            ..self
        }
    }

    /// The record of the primary of a generation.
    #[must_use]
    pub const fn lead(self, generation: Generation, peer_complete: bool) -> Self {
        Self {
            generation,
            role: Role::Primary,
            is_candidate: false,
            complete: self.complete,
            peer_complete,
        }
    }

    /// The record of a primary whose secondary lacks operations from now on.
    #[must_use]
    pub const fn without_peer(self) -> Self {
        Self {
            complete: true,
            peer_complete: false,
            ..self
        }
    }

    /// Whether `next`, which follows this record, lets a node lead with a copy that was not complete.
    pub const fn becomes_complete(&self, next: &Self) -> bool {
        next.is_primary() && next.complete && !self.complete
    }

    /// Whether this is the record of a primary.
    pub const fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary)
    }
}
