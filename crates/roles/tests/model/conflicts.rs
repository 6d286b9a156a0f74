//! The ends that only an operator can bring about, after an operator has demoted a node or has forced one to lead.
//!
//! These are the ends in which the nodes say so:
//! - Both nodes have served alone ([`RoleConflict::BothServed`]).
//! - Both are the secondary of one generation, and the witness lets none of them lead ([`RoleConflict::TwoSecondaries`]).
//! - The witness has made the other node the primary, of which a forced node did not know when it was forced, and the operator
//!   keeps that other node off.

use lockstep_roles::{Offered, RoleConflict, RoleEffect, RoleEvent, RoleOffer, SoloEnds};
use lockstep_types::SyncStanding;

use crate::link::local_copy;
use crate::world::World;

/// The conflicts that a demotion, or a promotion by force, may lead to.
const CONFLICTS: [RoleConflict; 2] = [RoleConflict::BothServed, RoleConflict::TwoSecondaries];

impl World {
    /// Whether the nodes wait for the operator that has brought them into this state, and say so.
    pub fn waits_for_operator(&self) -> bool {
        let is_kept_off = |at: usize| {
            let peer = &self.nodes[1 - at];
            self.nodes[at].machine.is_none() && peer.unrecorded.is_some()
        };
        let conflict = [0, 1].into_iter().find_map(|at| self.conflict(at));
        let is_conflict = conflict.is_some_and(|conflict| CONFLICTS.contains(&conflict));
        self.was_forced && (is_conflict || [0, 1].into_iter().any(is_kept_off))
    }

    /// The conflict that a node would find if it heard the record of the other one.
    fn conflict(&self, at: usize) -> Option<RoleConflict> {
        let mut machine = self.nodes[at].machine.clone()?;
        self.nodes[1 - at].machine.as_ref()?;
        let settings = self.settings(at);
        let theirs = RoleOffer {
            version: 1,
            record: self.nodes[1 - at].durable,
            seen: Some(self.nodes[at].durable),
            store: local_copy().store,
            sync: SyncStanding::default(),
            asks_incomplete_mark: false,
            discarded_own_changes: false,
            failover_after_ms: settings.failover_after_ms,
            witness: settings.witness,
        };
        let offered = Offered {
            theirs,
            copy: local_copy(),
            since: SoloEnds::default(),
            excludes_other: false,
        };
        let effects = machine.handle(&self.facts(at), RoleEvent::Offered(offered));
        effects.into_iter().find_map(|effect| match effect {
            RoleEffect::Conflict(conflict) => Some(conflict),
            _ => None,
        })
    }
}
