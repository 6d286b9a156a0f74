//! The role exchange: what follows from the record and the copy that the other node offers.
//!
//! Invariants:
//! - A record of a copy that does not belong to this copy makes nobody the primary, and proves no copy complete.
//! - A node that has served alone follows nobody before an operator has decided.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;

use super::{RoleEffects, RoleMachine};
use crate::change::{RoleChange, ServicePart};
use crate::conflict::RoleConflict;
use crate::event::{Offered, RoleEffect};
use crate::facts::{CopyRelation, LocalCopy, RoleFacts, RoleSettings};
use crate::offer::RoleOffer;
use crate::query::PeerWitness;
use crate::record::RoleRecord;
use crate::rules;

impl RoleMachine {
    /// Decides on the offer of the other node.
    pub(super) fn offered(&mut self, facts: &RoleFacts, offered: &Offered) -> RoleEffects {
        let Offered { theirs, copy, .. } = offered;
        if let Err(conflict) = self.note_peer(&facts.settings, theirs) {
            return vec![RoleEffect::Conflict(conflict)];
        }
        let mine = facts.record;
        self.peer.has_newer_copy = copy.is_outdated(mine, theirs);
        match decide(facts, copy, theirs) {
            Ok(change) => {
                self.note_incomplete_peer(facts, offered);
                if marks_incomplete(mine, theirs) {
                    return vec![RoleEffect::MarkIncomplete];
                }
                let renews = needs_new_verifier(change, offered);
                let renewal = renews.then_some(RoleEffect::SkipNumbersAndRenewVerifier);
                renewal
                    .into_iter()
                    .chain([RoleEffect::Change(change)])
                    .collect()
            }
            Err(conflict) => {
                let is_deposed = theirs.record.generation > mine.generation;
                let stops =
                    conflict == RoleConflict::BothServed && is_deposed || self.peer.has_newer_copy;
                let stop = RoleChange::keep(mine, ServicePart::Wait);
                let stop = stops.then_some(RoleEffect::Change(stop));
                stop.into_iter()
                    .chain([RoleEffect::Conflict(conflict)])
                    .collect()
            }
        }
    }

    /// A node whose disk has failed writes no record. A primary serves reads until the other node may serve.
    pub(super) fn offered_to_failed_disk(
        &mut self,
        facts: &RoleFacts,
        Offered { theirs, copy, .. }: &Offered,
    ) -> RoleEffects {
        if let Err(conflict) = self.note_peer(&facts.settings, theirs) {
            return vec![RoleEffect::Conflict(conflict)];
        }
        let serves = |change: RoleChange| change.serves();
        if theirs.record.generation > facts.record.generation {
            vec![RoleEffect::ServeNothing]
        } else if facts.record.is_primary() && decide(facts, copy, theirs).is_ok_and(serves) {
            vec![RoleEffect::ServeReads]
        } else {
            Vec::new()
        }
    }

    /// Notes the generation and the witness of the other node. A node without a witness connects with a node that has one: a
    /// witness is added on one node after the other.
    fn note_peer(&mut self, own: &RoleSettings, theirs: &RoleOffer) -> Result<(), RoleConflict> {
        let witness = match (theirs.failover_after_ms, own.failover_after_ms) {
            (Some(theirs), Some(own)) if theirs != own => return Err(RoleConflict::OtherTimes),
            (None, _) => PeerWitness::None,
            _ if theirs.witness == own.witness => PeerWitness::Same,
            _ => PeerWitness::Other,
        };
        self.peer.witness = witness;
        self.witness.protects &= witness == PeerWitness::Same;
        self.note_generation(theirs.record.generation);
        Ok(())
    }

    /// A secondary that lacks operations by its own record takes over from nobody, so its primary needs no witness to serve
    /// alone (rule R1). A record from before the last sync grants nothing: the record of this node may have come back to the one
    /// that the secondary has seen.
    fn note_incomplete_peer(&mut self, facts: &RoleFacts, offered: &Offered) {
        let (mine, theirs) = (facts.record, &offered.theirs);
        let peer = theirs.record;
        let is_secondary = !peer.is_primary() && peer.generation == mine.generation;
        let is_incomplete = is_secondary && !peer.complete && theirs.seen == Some(mine);
        if mine.is_primary() && is_incomplete && facts.session.waits_for_solo_grant() {
            self.solo.grant_by_record(mine.generation, offered.since);
        }
    }
}

/// Whether this secondary records that its copy is not complete, as its primary asks, which cannot keep up the sync (rule R1).
fn marks_incomplete(mine: RoleRecord, theirs: &RoleOffer) -> bool {
    let primary = theirs.record;
    let is_asked = theirs.asks_incomplete_mark
        && theirs.seen == Some(mine)
        && primary.is_primary()
        && primary.generation == mine.generation;
    is_asked && !mine.is_primary() && mine.complete
}

/// Whether acknowledged operations may be lost with a change of this node, so that clients have to hear of that (rule P22).
fn needs_new_verifier(change: RoleChange, offered: &Offered) -> bool {
    let Offered { theirs, copy, .. } = offered;
    let mine = change.from;
    // A candidate may have the generation of its lead already.
    let is_new = !mine.is_primary() || change.to.generation > mine.generation;
    let begins = change.serves() && is_new;
    let acknowledged_may_be_lost = theirs.discarded_own_changes && begins
        || change.serves() && copy.has_lost_peer(mine, theirs);
    // The other node cannot have answered by the answer of the witness while this node serves.
    let peer_could_have_served = !offered.excludes_other;
    acknowledged_may_be_lost && peer_could_have_served && !is_active(Mutant::KeepVerifierOfDemoted)
}

/// The change of this node that follows from the offer of the other one.
fn decide(
    facts: &RoleFacts,
    copy: &LocalCopy,
    theirs: &RoleOffer,
) -> Result<RoleChange, RoleConflict> {
    let mine = facts.record;
    let peer = theirs.record;
    let relation = copy.relation(theirs);
    if peer.generation > mine.generation {
        check_later(mine, copy, peer, relation)?;
    } else if peer.generation == mine.generation {
        match (mine.role, peer.role) {
            (Role::Primary, Role::Primary) => return Err(RoleConflict::TwoPrimaries),
            // One node stands for the generation that the other one has granted.
            (Role::Secondary, Role::Secondary)
                if mine.is_candidate != peer.is_candidate && relation == CopyRelation::Same => {}
            (Role::Secondary, Role::Secondary) => return Err(RoleConflict::TwoSecondaries),
            (Role::Primary, Role::Secondary) if copy.is_outdated(mine, theirs) => {
                return Err(RoleConflict::OlderCopy);
            }
            (Role::Primary, Role::Secondary) if facts.is_serving => {
                // The greeting compares the copies, and brings the peer's up to date.
                return Ok(RoleChange::keep(mine, ServicePart::Serve));
            }
            (Role::Primary, Role::Secondary)
                if matches!(relation, CopyRelation::Ahead | CopyRelation::Unrelated) =>
            {
                return Err(RoleConflict::OtherCopy);
            }
            _ => {}
        }
    } else if mine.is_primary() && peer.is_primary() && !peer.peer_complete && copy.has_data {
        // The earlier primary has operations that this node lacks.
        return Err(RoleConflict::BothServed);
    }
    Ok(change_by_the_rules(facts, theirs, relation))
}

/// Whether this node may act on a record of a later generation.
fn check_later(
    mine: RoleRecord,
    copy: &LocalCopy,
    peer: RoleRecord,
    relation: CopyRelation,
) -> Result<(), RoleConflict> {
    if !peer.is_primary() {
        return if relation == CopyRelation::Same {
            Ok(())
        } else {
            Err(RoleConflict::OtherCopy)
        };
    }
    if copy.has_served_alone(mine) {
        return Err(RoleConflict::BothServed);
    }
    match relation {
        _ if copy.is_new() => Ok(()),
        CopyRelation::Same | CopyRelation::Ahead => Ok(()),
        CopyRelation::Behind | CopyRelation::Unrelated => Err(RoleConflict::OtherCopy),
    }
}

/// The change by the rules for two records, with the part of this node after the change.
fn change_by_the_rules(
    facts: &RoleFacts,
    theirs: &RoleOffer,
    relation: CopyRelation,
) -> RoleChange {
    let mine = facts.record;
    let is_same = relation == CopyRelation::Same;
    let peer = RoleRecord {
        complete: theirs.record.complete && is_same,
        peer_complete: theirs.record.peer_complete && is_same,
        ..theirs.record
    };
    let is_met = theirs.seen == Some(mine);
    let by_records = rules::compare(mine, peer, is_met);
    let kept = RoleChange::keep(mine, ServicePart::Wait);
    let to = with_own_completeness(mine, by_records.unwrap_or(kept).to, theirs, relation);
    // The witness may let an older copy take over, until that copy's own record says that it is not complete.
    let may_be_replaced = theirs.record.complete && !theirs.record.is_primary() && !is_same;
    let serves = to.is_primary()
        && to.complete
        && !may_be_replaced
        && (facts.is_serving || by_records.is_some() || is_met)
        && !(theirs.record.is_primary() && theirs.record.generation >= to.generation);
    RoleChange {
        to,
        part: if serves {
            ServicePart::Serve
        } else {
            ServicePart::Wait
        },
        ..by_records.unwrap_or(kept)
    }
}

/// The record `to`, with the completeness of this copy by the knowledge of the peer's copy. A secondary whose copy is older than
/// that of its primary says so itself.
fn with_own_completeness(
    mine: RoleRecord,
    to: RoleRecord,
    theirs: &RoleOffer,
    relation: CopyRelation,
) -> RoleRecord {
    let keeps = mine.is_primary() && is_active(Mutant::KeepLoserComplete);
    let is_older = relation == CopyRelation::Ahead && !is_active(Mutant::TrustOldCopy);
    let says_so = is_older && theirs.record.is_primary() && !to.is_primary();
    RoleRecord {
        complete: (to.complete || keeps) && !says_so,
        ..to
    }
}

#[cfg(test)]
mod tests;
