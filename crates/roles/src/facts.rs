//! The facts of a node that its role machine decides by: the driver brings them with each event.
//!
//! The role file owns the durable record, and the session owns the state of the replication. So the machine keeps no copy of
//! either, which could differ from them.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::{OnPeerLoss, OnPowerLoss};
use lockstep_types::{Lineage, StoreId, SyncStanding, WitnessId};

use crate::conflict::CommandRefusal;
use crate::offer::RoleOffer;
use crate::promotion::UnrecordedPromotion;
use crate::record::{Member, RoleRecord};

/// The settings that decide about the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleSettings {
    /// This node for the witness; any node without a witness.
    pub me: Member,
    /// A witness is configured.
    pub has_witness: bool,
    /// The name of the witness, by its certificate.
    pub witness: Option<WitnessId>,
    /// The time of a takeover, in milliseconds; `None` without a witness.
    pub failover_after_ms: Option<u64>,
    /// See [`OnPowerLoss`].
    pub on_power_loss: OnPowerLoss,
    /// See [`OnPeerLoss`].
    pub on_peer_loss: OnPeerLoss,
}

/// The state of the replication, as far as a decision about the role depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// A secondary.
    Secondary,
    /// A primary by its record, which serves no client yet.
    Undecided,
    /// A primary that has lost a complete secondary: changes wait for the secondary, the pause limit or the witness.
    Paused,
    /// The same, for as long as the secondary is away: the configuration wants that.
    Frozen,
    /// A primary that cannot keep up the sync, and is about to record that its secondary is not complete.
    LeavingSync,
    /// A primary in sync. `is_recorded`: the secondary is connected, and has recorded that its copy is complete (rule R8).
    Synced {
        /// The secondary is connected.
        is_connected: bool,
        /// The secondary has recorded that its copy is complete.
        is_recorded: bool,
    },
    /// A primary in any other state.
    Primary,
}

impl SessionState {
    /// Whether this is the state of a node with a session that serves clients.
    pub const fn is_primary(self) -> bool {
        !matches!(self, Self::Secondary | Self::Undecided)
    }

    /// Whether changes wait until this primary may serve alone.
    pub const fn waits_for_solo_grant(self) -> bool {
        matches!(self, Self::Paused | Self::Frozen | Self::LeavingSync)
    }

    /// Whether this is a primary in sync with a connected secondary.
    const fn is_connected_in_sync(self) -> bool {
        matches!(
            self,
            Self::Synced {
                is_connected: true,
                ..
            }
        )
    }

    /// Whether both nodes are known to hold every acknowledged operation, and both records say so.
    pub const fn is_recorded_in_sync(self) -> bool {
        matches!(
            self,
            Self::Synced {
                is_connected: true,
                is_recorded: true
            }
        )
    }
}

/// The facts of a node at the moment of an event.
#[derive(Clone, Copy, Debug)]
pub struct RoleFacts {
    /// The settings.
    pub settings: RoleSettings,
    /// The durable role record.
    pub record: RoleRecord,
    /// The promotion by force of which the witness does not know yet.
    pub unrecorded: Option<UnrecordedPromotion>,
    /// The state of the replication.
    pub session: SessionState,
    /// The other node is connected.
    pub is_connected: bool,
    /// This node serves clients as the primary.
    pub is_serving: bool,
}

impl RoleFacts {
    /// Whether the session is one of the role in the record. While the role changes, a thread that does not change the role may
    /// see the next record beside the last session.
    pub const fn is_consistent(&self) -> bool {
        matches!(self.session, SessionState::Secondary) != self.record.is_primary()
    }

    /// Checks that this primary could give its role away: the copy of the secondary is complete, also by the secondary's own
    /// record. Without that record, a power loss of both nodes would leave two copies that are not complete, and the worse one
    /// would lead.
    ///
    /// # Errors
    /// If this node is not the primary, or the nodes are not in sync.
    pub fn may_hand_over(&self) -> Result<(), CommandRefusal> {
        let session = self.session;
        if !session.is_primary() {
            Err(CommandRefusal::NotPrimary)
        } else if session.is_recorded_in_sync() || is_active(Mutant::HandOverUnsynced) {
            Ok(())
        } else if session.is_connected_in_sync() {
            Err(CommandRefusal::NotRecorded)
        } else {
            Err(CommandRefusal::NotInSync)
        }
    }
}

/// The copy of this node (rule P17).
#[derive(Clone, Copy, Debug)]
pub struct LocalCopy {
    /// The name of the store.
    pub store: Option<StoreId>,
    /// The sync of the copy.
    pub sync: SyncStanding,
    /// The copy is the source or the result of a resync.
    pub was_resynced: bool,
    /// The copy holds operations.
    pub has_data: bool,
}

/// How the peer's copy is related to this one (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRelation {
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
    /// How the copy of a peer is related to this one.
    pub fn relation(&self, theirs: &RoleOffer) -> CopyRelation {
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

    /// Whether the copy has neither operations nor a history that an operator may still look for.
    pub const fn is_new(&self) -> bool {
        !self.has_data && !self.was_resynced
    }

    /// Whether the node of this copy has served alone by its `record`, so that the node follows no other one before an operator
    /// has decided. A copy without operations that was the source or the result of a resync has lost its data, and an operator
    /// may still find them. A new copy has nothing to lose.
    pub fn has_served_alone(&self, record: RoleRecord) -> bool {
        let is_alone = record.is_primary() && !record.peer_complete;
        is_alone && !self.is_new() && !is_active(Mutant::FollowAfterAlone)
    }

    /// Whether the copy of the peer was in sync by the `record` of this node, and a new store has taken its place, which is empty or was
    /// made of a seed: such a store is of no sync. The peer may have served before, and no node has its operations.
    pub const fn has_lost_peer(&self, record: RoleRecord, theirs: &RoleOffer) -> bool {
        let is_new = theirs.store.is_none() || theirs.sync.names.newest().is_none();
        record.peer_complete && self.store.is_some() && is_new
    }

    /// Whether this node is the primary by its `record`, and the complete copy of the secondary has operations that this copy
    /// lacks. An older copy was put back, perhaps with the memory of its node.
    pub fn is_outdated(&self, record: RoleRecord, theirs: &RoleOffer) -> bool {
        record.is_primary()
            && !theirs.record.is_primary()
            && theirs.record.complete
            && self.relation(theirs) == CopyRelation::Ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{
        ALONE, COMPLETE, INCOMPLETE, PRIMARY, copy, counted, facts, offer, standing, store,
    };

    #[test]
    fn copies_are_related_by_the_name_of_the_store_first() {
        let theirs = |store, sync| RoleOffer {
            store,
            sync,
            ..offer(&facts(PRIMARY), COMPLETE)
        };
        let new = LocalCopy {
            store: None,
            ..copy()
        };
        for (own, their_store, sync, expected) in [
            (copy(), Some(store(1)), standing(2), CopyRelation::Same),
            (copy(), Some(store(1)), standing(1), CopyRelation::Behind),
            (copy(), Some(store(1)), standing(3), CopyRelation::Ahead),
            (copy(), Some(store(2)), standing(2), CopyRelation::Unrelated),
            (copy(), None, standing(3), CopyRelation::Behind),
            (new, Some(store(1)), standing(1), CopyRelation::Ahead),
            (new, None, standing(2), CopyRelation::Same),
        ] {
            assert_eq!(own.relation(&theirs(their_store, sync)), expected);
        }
        let lacks = LocalCopy {
            sync: counted(2, 6),
            ..copy()
        };
        let more = theirs(Some(store(1)), counted(2, 7));
        assert_eq!(lacks.relation(&more), CopyRelation::Ahead);
    }

    #[test]
    fn a_primary_without_a_complete_peer_has_served_alone_unless_its_copy_is_new() {
        let empty = LocalCopy {
            has_data: false,
            ..copy()
        };
        let new = LocalCopy {
            was_resynced: false,
            ..empty
        };
        for (copy, record, expected) in [
            (copy(), ALONE, true),
            (copy(), PRIMARY, false),
            (copy(), INCOMPLETE, false),
            (empty, ALONE, true),
            (new, ALONE, false),
        ] {
            assert_eq!(copy.has_served_alone(record), expected, "{copy:?}");
        }
    }

    #[test]
    fn a_store_of_no_sync_in_the_place_of_a_complete_copy_is_a_lost_peer() {
        let own = copy();
        let offered = |store, sync| RoleOffer {
            store,
            sync,
            ..offer(&facts(PRIMARY), INCOMPLETE)
        };
        let empty = offered(None, SyncStanding::default());
        // The name of the store comes with the seed, and no sync does.
        let seeded = offered(Some(store(1)), SyncStanding::default());
        let older = offered(Some(store(1)), standing(1));
        for (record, theirs, expected) in [
            (PRIMARY, &empty, true),
            (PRIMARY, &seeded, true),
            (PRIMARY, &older, false),
            (ALONE, &seeded, false),
        ] {
            assert_eq!(own.has_lost_peer(record, theirs), expected, "{theirs:?}");
        }
    }

    #[test]
    fn a_session_of_the_other_role_is_that_of_another_moment() {
        for (record, session, expected) in [
            (COMPLETE, SessionState::Secondary, true),
            (COMPLETE, SessionState::Undecided, false),
            (COMPLETE, SessionState::Paused, false),
            (PRIMARY, SessionState::Secondary, false),
            (PRIMARY, SessionState::Undecided, true),
            (PRIMARY, SessionState::Primary, true),
        ] {
            let facts = RoleFacts {
                session,
                ..facts(record)
            };
            assert_eq!(facts.is_consistent(), expected, "{facts:?}");
        }
    }
}
