//! Decides the role of this node by the records of both nodes (docs/protocol/roles.md). Does no input or output.
//!
//! The rules of the role machine (`crates/roles`) decide. This file adds what the machine does not know: whether both
//! copies belong together (rule P17), and whether a copy would lose what its node has served alone.
//!
//! Invariants:
//! - A record of a copy that does not belong to this copy makes nobody the primary, and proves no copy complete.
//! - A node that has served alone follows nobody before an operator has decided.

use lockstep_repl::message::Meet;
use lockstep_roles::{Member, RoleEffect, RoleEvent, RoleMachine, RoleRecord, RoleSettings, Told};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::{OnPowerLoss, Role};
use lockstep_types::{Lineage, SyncStanding};
use thiserror::Error;

use crate::durable::role_file::RoleState;

/// This node in a meeting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attendee {
    /// The state of the role file.
    pub state: RoleState,
    /// The sync of the copy.
    pub sync: SyncStanding,
    /// The copy holds operations.
    pub has_data: bool,
    /// This node serves clients as the primary.
    pub is_serving: bool,
}

/// The outcome of a message in a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgment {
    /// The record of this node from now on.
    pub record: RoleRecord,
    /// This node serves as the primary.
    pub leads: bool,
}

/// Why two nodes that have met have no primary and secondary. Each text names the cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Discord {
    #[error(
        "both nodes are the primary of this datastore in one generation: run `lockstep demote` on one of them; what \
         only that node holds is lost then"
    )]
    TwoPrimaries,
    #[error(
        "both nodes are the secondary of this datastore, and wait for a primary: run `lockstep promote` on the node \
         whose copy is to be kept (with --force-data-loss if both stores are new)"
    )]
    TwoSecondaries,
    #[error(
        "both nodes have served this datastore without the other, and each has changes that the other lacks: run \
         `lockstep demote` on the node whose changes are to be lost"
    )]
    BothServed,
    #[error(
        "the stores of the two nodes are not copies of each other, or one is older than the other's last sync: \
         mount the disks that belong together; or run `lockstep promote` on the node whose copy is to be kept"
    )]
    OtherCopy,
    #[error(
        "the store of the primary is an older copy: the complete copy of the other node has operations that it lacks; put the \
         newer store back, or run `lockstep promote` on the node whose copy is to be kept"
    )]
    OlderCopy,
    #[error(
        "the failover_after_ms of the two nodes differ: write the same into the configuration of both, and start both again"
    )]
    OtherTimes,
}

/// How the peer's copy is related to this one (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinship {
    /// The marks of both nodes are of the same sync.
    Same,
    /// The peer's copy is new, or an earlier state of this lineage.
    Older,
    /// This copy is new, or an earlier state of the peer's lineage.
    Newer,
    /// The copies have nothing in common.
    Strange,
}

impl Attendee {
    /// Judges the record that the peer has told.
    pub fn judge(&self, theirs: &Meet) -> Result<Judgment, Discord> {
        let mine = self.state.record;
        let peer = theirs.record;
        let kinship = self.kinship(theirs);
        if peer.generation > mine.generation {
            self.check_later(peer, kinship)?;
        } else if peer.generation == mine.generation {
            match (mine.role, peer.role) {
                (Role::Primary, Role::Primary) => return Err(Discord::TwoPrimaries),
                // One node stands for the generation that the other one has granted.
                (Role::Secondary, Role::Secondary)
                    if mine.is_candidate != peer.is_candidate && kinship == Kinship::Same => {}
                (Role::Secondary, Role::Secondary) => return Err(Discord::TwoSecondaries),
                (Role::Primary, Role::Secondary) if self.is_outdated(theirs) => {
                    return Err(Discord::OlderCopy);
                }
                (Role::Primary, Role::Secondary) if self.is_serving => {
                    // The greeting compares the copies, and brings the peer's up to date.
                    return Ok(self.unchanged());
                }
                (Role::Primary, Role::Secondary)
                    if matches!(kinship, Kinship::Newer | Kinship::Strange) =>
                {
                    return Err(Discord::OtherCopy);
                }
                _ => {}
            }
        } else if mine.is_primary() && peer.is_primary() && self.has_served_alone(peer) {
            return Err(Discord::BothServed);
        }
        Ok(self.by_the_rules(theirs, kinship))
    }

    const fn unchanged(&self) -> Judgment {
        Judgment {
            record: self.state.record,
            leads: self.is_serving,
        }
    }

    /// An earlier primary has operations that this node lacks, if its secondary was not complete.
    const fn has_served_alone(&self, earlier: RoleRecord) -> bool {
        !earlier.peer_complete && self.has_data
    }

    /// Whether the copy of the peer was in sync by the record of this node, and a new store has taken its place. The peer may
    /// have served before, and nobody has its operations.
    pub fn has_lost_peer(&self, theirs: &Meet) -> bool {
        self.state.record.peer_complete
            && self.state.lineage.store.is_some()
            && theirs.store.is_none()
    }

    /// Whether this node is the primary, and the complete copy of the secondary has operations that this copy lacks. An older
    /// copy was put back, perhaps with the memory of its node.
    pub fn is_outdated(&self, theirs: &Meet) -> bool {
        self.state.record.is_primary()
            && !theirs.record.is_primary()
            && theirs.record.complete
            && self.kinship(theirs) == Kinship::Newer
    }

    /// Whether this node may act on a record of a later generation.
    fn check_later(&self, peer: RoleRecord, kinship: Kinship) -> Result<(), Discord> {
        let is_new = !self.has_data && !self.state.lineage.was_resynced;
        if !peer.is_primary() {
            return if kinship == Kinship::Same {
                Ok(())
            } else {
                Err(Discord::OtherCopy)
            };
        }
        if has_served_alone(&self.state, self.has_data) {
            return Err(Discord::BothServed);
        }
        if is_new {
            return Ok(());
        }
        match kinship {
            Kinship::Same | Kinship::Newer => Ok(()),
            Kinship::Older | Kinship::Strange => Err(Discord::OtherCopy),
        }
    }

    fn kinship(&self, theirs: &Meet) -> Kinship {
        match (self.state.lineage.store, theirs.store) {
            (Some(own), Some(theirs)) if own != theirs => return Kinship::Strange,
            (Some(_), None) => return Kinship::Older,
            (None, Some(_)) => return Kinship::Newer,
            _ => {}
        }
        match self.sync.lineage(&theirs.sync) {
            Lineage::Same => Kinship::Same,
            Lineage::Older => Kinship::Older,
            Lineage::Newer => Kinship::Newer,
        }
    }

    /// The record by the rules of the role machine. A machine that starts with the durable record decides as one that
    /// has run since: the driver changes the record wherever the machine would.
    fn by_the_rules(&self, theirs: &Meet, kinship: Kinship) -> Judgment {
        let mine = self.state.record;
        let settings = RoleSettings {
            me: Member::First,
            has_witness: false,
            on_power_loss: OnPowerLoss::Wait,
        };
        let (mut machine, _) = RoleMachine::start(settings, mine, false);
        let is_same = kinship == Kinship::Same;
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
            RoleEffect::Record(record) => Some(*record),
            _ => None,
        });
        let mut record = changed.unwrap_or(mine);
        record.complete |= mine.is_primary() && is_active(Mutant::KeepLoserComplete);
        let is_older = kinship == Kinship::Newer && !is_active(Mutant::TrustOldCopy);
        if is_older && theirs.record.is_primary() && !record.is_primary() {
            record.complete = false;
        }
        let is_met = theirs.seen == Some(mine);
        // The witness may let an older copy take over, until that copy's own record says that it is not complete.
        let may_take_over = theirs.record.complete && !theirs.record.is_primary() && !is_same;
        Judgment {
            record,
            leads: record.is_primary()
                && record.complete
                && !may_take_over
                && (self.is_serving || changed.is_some() || is_met)
                && !(theirs.record.is_primary() && theirs.record.generation >= record.generation),
        }
    }
}

/// Whether this node has served alone, so that it follows nobody before an operator has decided. A copy without operations
/// that was the source or the result of a resync has lost its data, and an operator may still find them. A new copy has
/// nothing to lose.
pub(crate) fn has_served_alone(state: &RoleState, has_data: bool) -> bool {
    let record = state.record;
    let is_alone = record.is_primary() && !record.peer_complete;
    is_alone && (has_data || state.lineage.was_resynced) && !is_active(Mutant::FollowAfterAlone)
}

#[cfg(test)]
mod tests {
    use lockstep_repl::message::PROTOCOL_VERSION;
    use lockstep_types::{Generation, StoreId, SyncCount, SyncId, SyncNames};

    use super::*;
    use crate::durable::role_file::CopyLineage;

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
    fn node(record: RoleRecord) -> Attendee {
        Attendee {
            state: RoleState {
                record,
                lineage: CopyLineage {
                    store: Some(StoreId::from_bytes([1; 16])),
                    sync: sync(2).names,
                    was_resynced: true,
                    ..CopyLineage::default()
                },
                ..RoleState::begin(record.role)
            },
            sync: sync(2),
            has_data: true,
            is_serving: false,
        }
    }

    /// The record of the other node of the same copies, which has seen the record of `by`.
    fn told(by: &Attendee, record: RoleRecord) -> Meet {
        Meet {
            version: PROTOCOL_VERSION,
            record,
            seen: Some(by.state.record),
            store: by.state.lineage.store,
            sync: by.sync,
            leaves_sync: false,
            gave_up: false,
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
        let unseen = Meet {
            seen: None,
            ..told(&node, COMPLETE)
        };
        assert!(!node.judge(&unseen).unwrap().leads, "not met yet");
        let met = node.judge(&told(&node, COMPLETE)).unwrap();
        assert_eq!((met.leads, met.record), (true, PRIMARY));
        let met = node.judge(&told(&node, INCOMPLETE)).unwrap();
        assert_eq!((met.leads, met.record), (true, ALONE));
    }

    #[test]
    fn a_peer_in_sync_with_a_new_store_is_lost() {
        let new = |by: &Attendee| Meet {
            store: None,
            sync: SyncStanding::default(),
            ..told(by, INCOMPLETE)
        };
        let in_sync = node(PRIMARY);
        assert!(in_sync.judge(&new(&in_sync)).unwrap().leads);
        assert!(in_sync.has_lost_peer(&new(&in_sync)));
        assert!(!in_sync.has_lost_peer(&told(&in_sync, INCOMPLETE)));
        let alone = node(ALONE);
        assert!(!alone.has_lost_peer(&new(&alone)), "it was given up before");
    }

    #[test]
    fn a_primary_that_lost_power_gives_its_role_to_a_complete_secondary_of_the_same_sync_only() {
        let node = node(PRIMARY.after_power_loss());
        let met = node.judge(&told(&node, COMPLETE)).unwrap();
        let granted = record(Role::Secondary, G1.next(), false, false);
        assert_eq!((met.leads, met.record), (false, granted));
        let older = Meet {
            sync: sync(1),
            ..told(&node, COMPLETE)
        };
        let met = node.judge(&older).unwrap();
        let expected = (false, ALONE);
        assert_eq!((met.leads, met.record), expected, "the witness trusts it");
        let gives_in = Meet {
            record: INCOMPLETE,
            ..older
        };
        let met = node.judge(&gives_in).unwrap();
        assert_eq!((met.leads, met.record), (true, ALONE), "the copy is old");
        let newer = Meet {
            sync: sync(3),
            ..told(&node, COMPLETE)
        };
        assert_eq!(node.judge(&newer), Err(Discord::OlderCopy));
    }

    /// The witness does not know the operations of a sync, and would let the older copy take over.
    #[test]
    fn a_copy_that_is_older_than_that_of_the_primary_says_so_itself() {
        let node = node(COMPLETE);
        for (theirs, expected) in [(sync(3), INCOMPLETE), (sync(2), COMPLETE)] {
            let primary = Meet {
                sync: theirs,
                ..told(&node, PRIMARY)
            };
            let met = node.judge(&primary).unwrap();
            assert_eq!((met.leads, met.record), (false, expected));
        }
    }

    /// The copy was put back, and has the name of the present sync.
    #[test]
    fn a_copy_that_lacks_operations_of_the_sync_proves_nothing_and_says_so_itself() {
        let mut primary = node(PRIMARY.after_power_loss());
        primary.sync = counted(2, 7);
        let older = Meet {
            sync: counted(2, 6),
            ..told(&primary, COMPLETE)
        };
        let met = primary.judge(&older).unwrap();
        assert_eq!((met.leads, met.record), (false, ALONE), "no grant");
        let mut secondary = node(COMPLETE);
        for (operations, expected) in [(6, INCOMPLETE), (7, COMPLETE)] {
            secondary.sync = counted(2, operations);
            let met = Meet {
                sync: counted(2, 7),
                ..told(&secondary, PRIMARY)
            };
            assert_eq!(secondary.judge(&met).unwrap().record, expected);
        }
        let mut put_back = node(PRIMARY);
        put_back.sync = counted(2, 6);
        let newer = Meet {
            sync: counted(2, 7),
            ..told(&put_back, COMPLETE)
        };
        for is_serving in [false, true] {
            put_back.is_serving = is_serving;
            assert!(put_back.is_outdated(&newer));
            assert_eq!(put_back.judge(&newer), Err(Discord::OlderCopy));
        }
    }

    #[test]
    fn a_grant_makes_the_same_copy_the_primary_and_no_other() {
        let node = node(COMPLETE);
        let grant = record(Role::Secondary, G1.next(), true, false);
        let met = node.judge(&told(&node, grant)).unwrap();
        let lead = record(Role::Primary, G1.next(), true, true);
        assert_eq!((met.leads, met.record), (true, lead));
        for other in [sync(1), sync(3)] {
            let strange = Meet {
                sync: other,
                ..told(&node, grant)
            };
            assert_eq!(node.judge(&strange), Err(Discord::OtherCopy));
        }
    }

    #[test]
    fn a_primary_that_served_alone_follows_nobody_and_one_that_did_not_follows() {
        let promoted = record(Role::Primary, G1.next(), true, false);
        let alone = node(ALONE);
        assert_eq!(
            alone.judge(&told(&alone, promoted)),
            Err(Discord::BothServed)
        );
        let waiting = node(PRIMARY);
        let met = waiting.judge(&told(&waiting, promoted)).unwrap();
        let follows = record(Role::Secondary, G1.next(), false, false);
        assert_eq!((met.leads, met.record), (false, follows));
        let mut empty = node(ALONE);
        (empty.has_data, empty.state.lineage.was_resynced) = (false, false);
        (empty.sync, empty.state.lineage.store) =
            (SyncStanding::default(), Some(StoreId::from_bytes([7; 16])));
        let newer = Meet {
            store: Some(StoreId::from_bytes([1; 16])),
            sync: sync(2),
            ..told(&empty, promoted)
        };
        assert!(!empty.judge(&newer).unwrap().record.is_primary());
        empty.state.lineage.was_resynced = true;
        assert!(has_served_alone(&empty.state, empty.has_data));
        assert_eq!(
            empty.judge(&newer),
            Err(Discord::BothServed),
            "it has lost data"
        );
    }

    #[test]
    fn two_nodes_of_one_role_do_not_fit() {
        let first = node(PRIMARY);
        assert_eq!(
            first.judge(&told(&first, ALONE)),
            Err(Discord::TwoPrimaries)
        );
        let second = node(COMPLETE);
        assert_eq!(
            second.judge(&told(&second, INCOMPLETE)),
            Err(Discord::TwoSecondaries)
        );
    }

    #[test]
    fn a_primary_that_serves_takes_nothing_from_its_secondary() {
        let mut serving = node(PRIMARY);
        serving.is_serving = true;
        let met = serving.judge(&told(&serving, INCOMPLETE)).unwrap();
        assert_eq!((met.leads, met.record), (true, PRIMARY));
        let later = record(Role::Primary, generation(3), true, false);
        let met = serving.judge(&told(&serving, later)).unwrap();
        assert_eq!(met.record.generation, generation(3));
        assert!(!met.leads && !met.record.is_primary());
    }
}
