//! The rules by which two nodes that have met compare their records (rules R3, R4 and R9). Both come to the same result.

use lockstep_types::settings::Role;

use crate::change::{RoleChange, RoleChangeKind};
use crate::record::RoleRecord;

/// The change of a node with the record `mine` that follows from the peer's record `theirs`; `None` if nothing follows.
/// `is_met`: the peer has seen `mine` (rule R6). A later generation needs no such proof: it is always the newer one.
pub(crate) fn compare(mine: RoleRecord, theirs: RoleRecord, is_met: bool) -> Option<RoleChange> {
    let change = if is_met && mine.gives_way_to(&theirs) {
        give_way(mine, theirs)
    } else if theirs.generation > mine.generation {
        meet_later(mine, theirs)?
    } else if is_met && theirs.generation == mine.generation {
        meet_equal(mine, theirs)?
    } else {
        return None;
    };
    change.changes_record().then_some(change)
}

fn give_way(mine: RoleRecord, theirs: RoleRecord) -> RoleChange {
    // The witness may still grant this node's generation: the one after it is beyond that.
    let generation = mine.generation.max(theirs.generation).next();
    // No node has served since two complete copies were secondaries: both stay complete.
    let is_complete = theirs.peer_complete || !theirs.is_primary();
    let record = mine.follow(generation, is_complete);
    RoleChange::waiting(RoleChangeKind::GiveWay, mine, record)
}

/// The peer is of a later generation.
fn meet_later(mine: RoleRecord, theirs: RoleRecord) -> Option<RoleChange> {
    let generation = theirs.generation;
    if theirs.is_primary() {
        let record = mine.follow(generation, theirs.peer_complete);
        let kind = if mine.is_primary() {
            RoleChangeKind::Deposed
        } else {
            RoleChangeKind::Follow
        };
        return Some(RoleChange::waiting(kind, mine, record));
    }
    if theirs.is_candidate {
        return None;
    }
    // The peer has granted that generation to this node.
    let was_protected = !mine.is_primary() || mine.peer_complete;
    let peer_complete = theirs.complete && was_protected;
    Some(lead_by_grant(mine, mine.lead(generation, peer_complete)))
}

fn meet_equal(mine: RoleRecord, theirs: RoleRecord) -> Option<RoleChange> {
    match (mine.role, theirs.role) {
        (Role::Primary, Role::Secondary) => meet_secondary(mine, theirs),
        (Role::Secondary, Role::Primary) => meet_primary(mine, theirs),
        // The peer has granted the generation for which this node stands.
        (Role::Secondary, Role::Secondary) if mine.is_candidate && !theirs.is_candidate => {
            let record = mine.lead(theirs.generation, theirs.complete);
            Some(lead_by_grant(mine, record))
        }
        (Role::Primary, Role::Primary) | (Role::Secondary, Role::Secondary) => None,
    }
}

fn meet_secondary(mine: RoleRecord, theirs: RoleRecord) -> Option<RoleChange> {
    match (mine.complete, theirs.complete) {
        (false, true) => Some(RoleChange::grant(mine)),
        // Neither copy is better, or the peer's copy is worse: its own record keeps it from taking over.
        (false | true, false) => Some(RoleChange::go_alone(mine)),
        (true, true) => None,
    }
}

fn meet_primary(mine: RoleRecord, theirs: RoleRecord) -> Option<RoleChange> {
    if !theirs.complete {
        // The primary has lost power. It grants the role, or finds its own copy the best.
        return None;
    }
    // A node that follows stands for nothing any more: an operator may have forced both nodes into this generation.
    let record = RoleRecord {
        is_candidate: false,
        complete: mine.complete && theirs.peer_complete,
        ..mine
    };
    Some(RoleChange::waiting(RoleChangeKind::Keep, mine, record))
}

const fn lead_by_grant(mine: RoleRecord, record: RoleRecord) -> RoleChange {
    RoleChange::serving(RoleChangeKind::LeadByGrant, mine, record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{ALONE, COMPLETE, INCOMPLETE, PRIMARY, generation};

    #[test]
    fn a_record_that_the_peer_has_not_seen_counts_only_against_a_later_generation() {
        let granted = RoleRecord {
            generation: generation(2),
            ..COMPLETE
        };
        for is_met in [false, true] {
            let change = compare(COMPLETE, granted, is_met).unwrap();
            assert_eq!(change.kind, RoleChangeKind::LeadByGrant);
        }
        assert_eq!(compare(PRIMARY, INCOMPLETE, false), None);
        assert_eq!(compare(PRIMARY, INCOMPLETE, true).unwrap().to, ALONE);
        let candidate = COMPLETE.become_candidate();
        assert_eq!(compare(candidate, PRIMARY, false), None);
        let gives_way = compare(candidate, PRIMARY, true).unwrap();
        assert_eq!(gives_way.kind, RoleChangeKind::GiveWay);
        assert_eq!(gives_way.to.generation, generation(3));
    }

    #[test]
    fn a_primary_that_met_nobody_complete_is_not_protected_by_a_later_grant() {
        let granted = RoleRecord {
            generation: generation(2),
            ..COMPLETE
        };
        for (mine, expected) in [(PRIMARY, true), (ALONE, false), (COMPLETE, true)] {
            let change = compare(mine, granted, true).unwrap();
            assert_eq!(change.to.peer_complete, expected, "{mine:?}");
        }
    }

    #[test]
    fn a_candidate_follows_no_primary_that_lost_its_power_and_stands_for_nothing_after_another() {
        let candidate = RoleRecord {
            is_candidate: true,
            ..COMPLETE
        };
        assert_eq!(compare(candidate, PRIMARY.after_power_loss(), true), None);
        let follows = compare(candidate, PRIMARY, true).unwrap();
        assert_eq!(follows.to, COMPLETE);
        let lacks = compare(candidate, ALONE, true).unwrap();
        assert_eq!(lacks.to, INCOMPLETE);
    }
}
