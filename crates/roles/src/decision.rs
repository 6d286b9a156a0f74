//! Decides the role of this node by the records of both nodes (docs/protocol/roles.md). Does no input or output.
//!
//! The rules of the role machine (`crates/roles`) decide. This file adds what the machine does not know: whether both
//! copies belong together (rule P17), and whether a copy would lose what its node has served alone.
//!
//! Invariants:
//! - A record of a copy that does not belong to this copy makes nobody the primary, and proves no copy complete.
//! - A node that has served alone follows nobody before an operator has decided.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::{OnPowerLoss, Role};
use lockstep_types::{Lineage, StoreId, SyncStanding};
use thiserror::Error;

use crate::change::{RoleChange, RoleChangeKind};
use crate::event::{RoleEffect, RoleEvent, RoleSettings, Told};
use crate::machine::RoleMachine;
use crate::offer::RoleOffer;
use crate::record::{Member, RoleRecord};

/// This node in a role exchange: its record, and its copy.
#[derive(Clone, Copy, Debug)]
pub struct LocalCopy {
    /// The role record.
    pub record: RoleRecord,
    /// The name of the store (rule P17).
    pub store: Option<StoreId>,
    /// The sync of the copy.
    pub sync: SyncStanding,
    /// The copy is the source or the result of a resync.
    pub was_resynced: bool,
    /// The copy holds operations.
    pub has_data: bool,
    /// This node serves clients as the primary.
    pub is_serving: bool,
}

/// The role of this node that follows from an offer of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The change of the role. Without a change of the record: this node serves, or it serves not.
    pub change: RoleChange,
    /// This node serves as the primary.
    pub leads: bool,
}

impl Decision {
    /// This node goes on with the record that it has.
    const fn unchanged(record: RoleRecord, leads: bool) -> Self {
        let change = if leads {
            RoleChange::serve(record)
        } else {
            RoleChange::stop_serving(record)
        };
        Self { change, leads }
    }
}

/// Why two nodes that have met have no primary and secondary. Each text names the cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RoleConflict {
    /// Both nodes are the primary of one generation.
    #[error(
        "both nodes are the primary of this datastore in one generation: run `lockstep demote` on one of them; what \
         only that node holds is lost then"
    )]
    TwoPrimaries,
    /// Both nodes are the secondary of one generation.
    #[error(
        "both nodes are the secondary of this datastore, and wait for a primary: run `lockstep promote` on the node \
         whose copy is to be kept (with --force-data-loss if both stores are new)"
    )]
    TwoSecondaries,
    /// Both nodes have served without the other.
    #[error(
        "both nodes have served this datastore without the other, and each has changes that the other lacks: run \
         `lockstep demote` on the node whose changes are to be lost"
    )]
    BothServed,
    /// The copies do not belong together.
    #[error(
        "the stores of the two nodes are not copies of each other, or one is older than the other's last sync: \
         mount the disks that belong together; or run `lockstep promote` on the node whose copy is to be kept"
    )]
    OtherCopy,
    /// The primary has an older copy than the secondary.
    #[error(
        "the store of the primary is an older copy: the complete copy of the other node has operations that it lacks; put the \
         newer store back, or run `lockstep promote` on the node whose copy is to be kept"
    )]
    OlderCopy,
    /// The times of a takeover differ.
    #[error(
        "the failover_after_ms of the two nodes differ: write the same into the configuration of both, and start both again"
    )]
    OtherTimes,
}

/// How the peer's copy is related to this one (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyRelation {
    /// The marks of both nodes are of the same sync.
    Same,
    /// The peer's copy is new, or an earlier state of this lineage.
    Behind,
    /// This copy is new, or an earlier state of the peer's lineage.
    Ahead,
    /// The copies have nothing in common.
    Unrelated,
}

impl LocalCopy {
    /// Judges the record that the peer has told.
    pub fn decide(&self, theirs: &RoleOffer) -> Result<Decision, RoleConflict> {
        let mine = self.record;
        let peer = theirs.record;
        let relation = self.relation(theirs);
        if peer.generation > mine.generation {
            self.check_later(peer, relation)?;
        } else if peer.generation == mine.generation {
            match (mine.role, peer.role) {
                (Role::Primary, Role::Primary) => return Err(RoleConflict::TwoPrimaries),
                // One node stands for the generation that the other one has granted.
                (Role::Secondary, Role::Secondary)
                    if mine.is_candidate != peer.is_candidate && relation == CopyRelation::Same => {
                }
                (Role::Secondary, Role::Secondary) => return Err(RoleConflict::TwoSecondaries),
                (Role::Primary, Role::Secondary) if self.is_outdated(theirs) => {
                    return Err(RoleConflict::OlderCopy);
                }
                (Role::Primary, Role::Secondary) if self.is_serving => {
                    // The greeting compares the copies, and brings the peer's up to date.
                    return Ok(Decision::unchanged(mine, self.is_serving));
                }
                (Role::Primary, Role::Secondary)
                    if matches!(relation, CopyRelation::Ahead | CopyRelation::Unrelated) =>
                {
                    return Err(RoleConflict::OtherCopy);
                }
                _ => {}
            }
        } else if mine.is_primary() && peer.is_primary() && self.lacks_changes_of(peer) {
            return Err(RoleConflict::BothServed);
        }
        Ok(self.by_the_rules(theirs, relation))
    }

    /// An earlier primary has operations that this node lacks, if its secondary was not complete.
    const fn lacks_changes_of(&self, earlier: RoleRecord) -> bool {
        !earlier.peer_complete && self.has_data
    }

    /// Whether this node has served alone, so that it follows no node before an operator has decided. A copy without operations
    /// that was the source or the result of a resync has lost its data, and an operator may still find them. A new copy has
    /// nothing to lose.
    pub fn has_served_alone(&self) -> bool {
        let is_alone = self.record.is_primary() && !self.record.peer_complete;
        is_alone && (self.has_data || self.was_resynced) && !is_active(Mutant::FollowAfterAlone)
    }

    /// Whether the copy of the peer was in sync by the record of this node, and a new store has taken its place. The peer may
    /// have served before, and no node has its operations.
    pub fn has_lost_peer(&self, theirs: &RoleOffer) -> bool {
        self.record.peer_complete && self.store.is_some() && theirs.store.is_none()
    }

    /// Whether this node is the primary, and the complete copy of the secondary has operations that this copy lacks. An older
    /// copy was put back, perhaps with the memory of its node.
    pub fn is_outdated(&self, theirs: &RoleOffer) -> bool {
        self.record.is_primary()
            && !theirs.record.is_primary()
            && theirs.record.complete
            && self.relation(theirs) == CopyRelation::Ahead
    }

    /// Whether this node may act on a record of a later generation.
    fn check_later(&self, peer: RoleRecord, relation: CopyRelation) -> Result<(), RoleConflict> {
        let is_new = !self.has_data && !self.was_resynced;
        if !peer.is_primary() {
            return if relation == CopyRelation::Same {
                Ok(())
            } else {
                Err(RoleConflict::OtherCopy)
            };
        }
        if self.has_served_alone() {
            return Err(RoleConflict::BothServed);
        }
        if is_new {
            return Ok(());
        }
        match relation {
            CopyRelation::Same | CopyRelation::Ahead => Ok(()),
            CopyRelation::Behind | CopyRelation::Unrelated => Err(RoleConflict::OtherCopy),
        }
    }

    fn relation(&self, theirs: &RoleOffer) -> CopyRelation {
        match (self.store, theirs.store) {
            (Some(own), Some(theirs)) if own != theirs => return CopyRelation::Unrelated,
            (Some(_), None) => return CopyRelation::Behind,
            (None, Some(_)) => return CopyRelation::Ahead,
            _ => {}
        }
        match self.sync.lineage(&theirs.sync) {
            Lineage::Same => CopyRelation::Same,
            Lineage::Older => CopyRelation::Behind,
            Lineage::Newer => CopyRelation::Ahead,
        }
    }

    /// The record by the rules of the role machine. A machine that starts with the durable record decides as one that
    /// has run since: the driver changes the record wherever the machine would.
    fn by_the_rules(&self, theirs: &RoleOffer, relation: CopyRelation) -> Decision {
        let mine = self.record;
        let settings = RoleSettings {
            me: Member::First,
            has_witness: false,
            on_power_loss: OnPowerLoss::Wait,
        };
        let (mut machine, _) = RoleMachine::start(settings, mine, false);
        let is_same = relation == CopyRelation::Same;
        let record = RoleRecord {
            complete: theirs.record.complete && is_same,
            peer_complete: theirs.record.peer_complete && is_same,
            ..theirs.record
        };
        let told = Told {
            record,
            seen: theirs.seen,
        };
        let effects = machine.handle(RoleEvent::PeerTold(told));
        let changed = effects.iter().find_map(|effect| match effect {
            RoleEffect::Record(change) => Some(*change),
            _ => None,
        });
        let marked = RoleChange::new(RoleChangeKind::Mark, mine, mine);
        let change = self.with_own_completeness(changed.unwrap_or(marked), theirs, relation);
        let record = change.to;
        let is_met = theirs.seen == Some(mine);
        // The witness may let an older copy take over, until that copy's own record says that it is not complete.
        let may_take_over = theirs.record.complete && !theirs.record.is_primary() && !is_same;
        let leads = record.is_primary()
            && record.complete
            && !may_take_over
            && (self.is_serving || changed.is_some() || is_met)
            && !(theirs.record.is_primary() && theirs.record.generation >= record.generation);
        if change.changes_record() {
            Decision { change, leads }
        } else {
            Decision::unchanged(mine, leads)
        }
    }

    /// The change, with the completeness of this copy by the knowledge of the peer's copy. A secondary whose copy is older than
    /// that of its primary says so itself.
    fn with_own_completeness(
        &self,
        change: RoleChange,
        theirs: &RoleOffer,
        relation: CopyRelation,
    ) -> RoleChange {
        let mut to = change.to;
        to.complete |= self.record.is_primary() && is_active(Mutant::KeepLoserComplete);
        let is_older = relation == CopyRelation::Ahead && !is_active(Mutant::TrustOldCopy);
        if is_older && theirs.record.is_primary() && !to.is_primary() {
            to.complete = false;
        }
        RoleChange { to, ..change }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{Generation, StoreId, SyncCount, SyncId, SyncNames};

    use super::*;

    fn sync(number: usize) -> SyncStanding {
        let next = |last: Option<SyncId>, _| Some(SyncId::next(last, [3; 16]));
        SyncStanding {
            names: SyncNames::settled((0..number).fold(None, next)),
            count: SyncCount::default(),
        }
    }

    /// The same, with a count of operations.
    fn counted(number: usize, operations: u64) -> SyncStanding {
        let names = sync(number).names;
        let count = SyncCount {
            of: names.last,
            acknowledged: operations,
            reached: operations,
        };
        SyncStanding { names, count }
    }

    fn generation(number: u64) -> Generation {
        Generation::new(number).unwrap()
    }

    const fn record(
        role: Role,
        generation: Generation,
        complete: bool,
        peer_complete: bool,
    ) -> RoleRecord {
        RoleRecord {
            generation,
            role,
            is_candidate: false,
            complete,
            peer_complete,
        }
    }

    /// A node with data that has taken part in two resyncs, and does not serve.
    fn node(record: RoleRecord) -> LocalCopy {
        LocalCopy {
            record,
            store: Some(StoreId::from_bytes([1; 16])),
            was_resynced: true,
            sync: sync(2),
            has_data: true,
            is_serving: false,
        }
    }

    /// The record of the other node of the same copies, which has seen the record of `by`.
    fn told(by: &LocalCopy, record: RoleRecord) -> RoleOffer {
        RoleOffer {
            version: 1,
            record,
            seen: Some(by.record),
            store: by.store,
            sync: by.sync,
            asks_incomplete_mark: false,
            discarded_own_changes: false,
            failover_after_ms: None,
            witness: None,
        }
    }

    const G1: Generation = Generation::FIRST;
    const PRIMARY: RoleRecord = record(Role::Primary, G1, true, true);
    const ALONE: RoleRecord = record(Role::Primary, G1, true, false);
    const COMPLETE: RoleRecord = record(Role::Secondary, G1, true, false);
    const INCOMPLETE: RoleRecord = record(Role::Secondary, G1, false, false);

    #[test]
    fn a_primary_that_starts_leads_once_it_has_met_its_secondary() {
        let node = node(PRIMARY);
        let unseen = RoleOffer {
            seen: None,
            ..told(&node, COMPLETE)
        };
        assert!(!node.decide(&unseen).unwrap().leads, "not met yet");
        let met = node.decide(&told(&node, COMPLETE)).unwrap();
        assert_eq!((met.leads, met.change.to), (true, PRIMARY));
        let met = node.decide(&told(&node, INCOMPLETE)).unwrap();
        assert_eq!((met.leads, met.change.to), (true, ALONE));
    }

    #[test]
    fn a_peer_in_sync_with_a_new_store_is_lost() {
        let new = |by: &LocalCopy| RoleOffer {
            store: None,
            sync: SyncStanding::default(),
            ..told(by, INCOMPLETE)
        };
        let in_sync = node(PRIMARY);
        assert!(in_sync.decide(&new(&in_sync)).unwrap().leads);
        assert!(in_sync.has_lost_peer(&new(&in_sync)));
        assert!(!in_sync.has_lost_peer(&told(&in_sync, INCOMPLETE)));
        let alone = node(ALONE);
        assert!(!alone.has_lost_peer(&new(&alone)), "it was given up before");
    }

    #[test]
    fn a_primary_that_lost_power_gives_its_role_to_a_complete_secondary_of_the_same_sync_only() {
        let node = node(PRIMARY.after_power_loss());
        let met = node.decide(&told(&node, COMPLETE)).unwrap();
        let granted = record(Role::Secondary, G1.next(), false, false);
        assert_eq!((met.leads, met.change.to), (false, granted));
        let older = RoleOffer {
            sync: sync(1),
            ..told(&node, COMPLETE)
        };
        let met = node.decide(&older).unwrap();
        let expected = (false, ALONE);
        assert_eq!(
            (met.leads, met.change.to),
            expected,
            "the witness trusts it"
        );
        let gives_in = RoleOffer {
            record: INCOMPLETE,
            ..older
        };
        let met = node.decide(&gives_in).unwrap();
        assert_eq!((met.leads, met.change.to), (true, ALONE), "the copy is old");
        let newer = RoleOffer {
            sync: sync(3),
            ..told(&node, COMPLETE)
        };
        assert_eq!(node.decide(&newer), Err(RoleConflict::OlderCopy));
    }

    /// The witness does not know the operations of a sync, and would let the older copy take over.
    #[test]
    fn a_copy_that_is_older_than_that_of_the_primary_says_so_itself() {
        let node = node(COMPLETE);
        for (theirs, expected) in [(sync(3), INCOMPLETE), (sync(2), COMPLETE)] {
            let primary = RoleOffer {
                sync: theirs,
                ..told(&node, PRIMARY)
            };
            let met = node.decide(&primary).unwrap();
            assert_eq!((met.leads, met.change.to), (false, expected));
        }
    }

    /// The copy was put back, and has the name of the present sync.
    #[test]
    fn a_copy_that_lacks_operations_of_the_sync_proves_nothing_and_says_so_itself() {
        let mut primary = node(PRIMARY.after_power_loss());
        primary.sync = counted(2, 7);
        let older = RoleOffer {
            sync: counted(2, 6),
            ..told(&primary, COMPLETE)
        };
        let met = primary.decide(&older).unwrap();
        assert_eq!((met.leads, met.change.to), (false, ALONE), "no grant");
        let mut secondary = node(COMPLETE);
        for (operations, expected) in [(6, INCOMPLETE), (7, COMPLETE)] {
            secondary.sync = counted(2, operations);
            let met = RoleOffer {
                sync: counted(2, 7),
                ..told(&secondary, PRIMARY)
            };
            assert_eq!(secondary.decide(&met).unwrap().change.to, expected);
        }
        let mut put_back = node(PRIMARY);
        put_back.sync = counted(2, 6);
        let newer = RoleOffer {
            sync: counted(2, 7),
            ..told(&put_back, COMPLETE)
        };
        for is_serving in [false, true] {
            put_back.is_serving = is_serving;
            assert!(put_back.is_outdated(&newer));
            assert_eq!(put_back.decide(&newer), Err(RoleConflict::OlderCopy));
        }
    }

    #[test]
    fn a_grant_makes_the_same_copy_the_primary_and_no_other() {
        let node = node(COMPLETE);
        let grant = record(Role::Secondary, G1.next(), true, false);
        let met = node.decide(&told(&node, grant)).unwrap();
        let lead = record(Role::Primary, G1.next(), true, true);
        assert_eq!((met.leads, met.change.to), (true, lead));
        for other in [sync(1), sync(3)] {
            let strange = RoleOffer {
                sync: other,
                ..told(&node, grant)
            };
            assert_eq!(node.decide(&strange), Err(RoleConflict::OtherCopy));
        }
    }

    #[test]
    fn a_primary_that_served_alone_follows_nobody_and_one_that_did_not_follows() {
        let promoted = record(Role::Primary, G1.next(), true, false);
        let alone = node(ALONE);
        assert_eq!(
            alone.decide(&told(&alone, promoted)),
            Err(RoleConflict::BothServed)
        );
        let waiting = node(PRIMARY);
        let met = waiting.decide(&told(&waiting, promoted)).unwrap();
        let follows = record(Role::Secondary, G1.next(), false, false);
        assert_eq!((met.leads, met.change.to), (false, follows));
        let mut empty = node(ALONE);
        (empty.has_data, empty.was_resynced) = (false, false);
        (empty.sync, empty.store) = (SyncStanding::default(), Some(StoreId::from_bytes([7; 16])));
        let newer = RoleOffer {
            store: Some(StoreId::from_bytes([1; 16])),
            sync: sync(2),
            ..told(&empty, promoted)
        };
        assert!(!empty.decide(&newer).unwrap().change.to.is_primary());
        empty.was_resynced = true;
        assert!(empty.has_served_alone());
        assert_eq!(
            empty.decide(&newer),
            Err(RoleConflict::BothServed),
            "it has lost data"
        );
    }

    #[test]
    fn two_nodes_of_one_role_do_not_fit() {
        let first = node(PRIMARY);
        assert_eq!(
            first.decide(&told(&first, ALONE)),
            Err(RoleConflict::TwoPrimaries)
        );
        let second = node(COMPLETE);
        assert_eq!(
            second.decide(&told(&second, INCOMPLETE)),
            Err(RoleConflict::TwoSecondaries)
        );
    }

    #[test]
    fn a_primary_that_serves_takes_nothing_from_its_secondary() {
        let mut serving = node(PRIMARY);
        serving.is_serving = true;
        let met = serving.decide(&told(&serving, INCOMPLETE)).unwrap();
        assert_eq!((met.leads, met.change.to), (true, PRIMARY));
        let later = record(Role::Primary, generation(3), true, false);
        let met = serving.decide(&told(&serving, later)).unwrap();
        assert_eq!(met.change.to.generation, generation(3));
        assert!(!met.leads && !met.change.to.is_primary());
    }
}
