//! The state in the role file: the role record, the lineage of the copy, and the notes for clients.

use lockstep_roles::{RoleChange, RoleRecord, UnrecordedPromotion};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;
use lockstep_types::{
    BootId, Generation, Hash128, Osn, StoreId, SyncId, SyncNames, Timestamp, WriteVerifier,
};
use serde::{Deserialize, Serialize};

/// The state in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoleState {
    /// Generation, role and completeness of the copies.
    pub record: RoleRecord,
    /// The promotion by force of which the witness of this node does not know yet.
    pub unrecorded: Option<UnrecordedPromotion>,
    /// Where the copy comes from.
    pub lineage: CopyLineage,
    /// The notes for clients.
    pub clients: ClientNotes,
    /// The run of the machine in which the store is in use; `None` after a clean shutdown.
    pub boot: Option<BootId>,
}

/// Where a copy comes from, and the changes of the other copy that it may lack (rules P12, P17, P21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopyLineage {
    /// The name of the primary's store at the time of the first resync, the same on both nodes; `None` on a secondary until
    /// the first greeting (rule P17).
    pub store: Option<StoreId>,
    /// The sync that the marks of the record belong to (rule P17).
    pub sync: SyncNames,
    /// This copy is the source or the result of a resync. An empty store with this mark has lost data; a new disk in place of
    /// another has no such mark.
    pub was_resynced: bool,
    /// The last generation in which this node was the primary, if its copy may hold changes from then that no other copy has:
    /// it was deposed, and has not been in sync since.
    pub deposed: Option<Generation>,
    /// The same generation, if this copy differs from the then secondary's only in the writes of the PAW table, and in
    /// operations in doubt: the copies were in sync, and no resync has begun since.
    pub deposed_base: Option<Generation>,
    /// The generation in which the copy of a secondary out of sync was equal to its primary's, but for the writes of its tables and
    /// the delta of the primary. So its resync goes on where it was (rule P24).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync_base: Option<Generation>,
    /// The seed from which this copy was made, until the copy is in sync or leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeededCopy>,
    /// The effect of a loss of power (rule P12).
    pub power: PowerMarks,
}

/// The seed from which a copy was made (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeededCopy {
    /// The newest sync of the copy from which the seed was made. A primary that does not know this sync is older than the seed.
    pub sync: Option<SyncId>,
    /// The operation that made the snapshot of the seed.
    pub osn: Osn,
    /// When the snapshot was made, by the clock of the node that made it.
    pub time: Timestamp,
}

/// The marks of a copy for a loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PowerMarks {
    /// Each operation that this copy has acknowledged since the last clean shutdown, or since it became complete, was on
    /// stable storage before.
    pub all_synced: bool,
    /// The machine has lost power while the copy was complete, and the copy has not been made equal since.
    pub has_lost_power: bool,
}

/// The notes for clients about operations that were not synced (rule P22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientNotes {
    /// The write verifier of this copy.
    pub verifier: WriteVerifier,
    /// This node has served alone, and an operator has made it the secondary since: the changes that only its copy has are discarded. Until
    /// its copy is in sync again.
    pub discarded_own_changes: bool,
}

impl RoleState {
    /// The state of a new store.
    pub const fn begin(role: Role) -> Self {
        Self {
            record: RoleRecord::begin(role),
            unrecorded: None,
            lineage: CopyLineage {
                store: None,
                sync: SyncNames::settled(None),
                was_resynced: false,
                deposed: None,
                deposed_base: None,
                resync_base: None,
                seed: None,
                power: PowerMarks {
                    all_synced: false,
                    has_lost_power: false,
                },
            },
            clients: ClientNotes {
                verifier: WriteVerifier::NONE,
                discarded_own_changes: false,
            },
            boot: None,
        }
    }

    /// The state with another lineage.
    pub(super) const fn of_lineage(self, lineage: CopyLineage) -> Self {
        Self { lineage, ..self }
    }

    /// The mark "in sync". On a primary: the peer's copy is complete. On a secondary: this copy is complete.
    pub const fn is_in_sync(&self) -> bool {
        if self.record.is_primary() {
            self.record.peer_complete
        } else {
            self.record.complete
        }
    }

    /// Gives a primary's store its name when the store is first used (rule P17).
    pub fn named(self, draw: impl FnOnce() -> StoreId) -> Self {
        let is_primary = self.record.is_primary();
        let store = self.lineage.store.or_else(|| is_primary.then(draw));
        self.of_lineage(CopyLineage {
            store,
            ..self.lineage
        })
    }

    /// The state with the mark "in sync" set or removed.
    pub(super) fn marked(self, in_sync: bool) -> Self {
        let mut record = self.record;
        if record.is_primary() {
            record.peer_complete = in_sync;
        } else {
            record.complete = in_sync;
        }
        Self {
            record,
            lineage: CopyLineage {
                sync: if in_sync && record.is_primary() {
                    SyncNames::settled(self.lineage.sync.newest())
                } else {
                    self.lineage.sync
                },
                deposed: self.lineage.deposed.filter(|_| !in_sync),
                deposed_base: self.lineage.deposed_base.filter(|_| !in_sync),
                resync_base: self.lineage.resync_base.filter(|_| !in_sync),
                seed: self.lineage.seed.filter(|_| !in_sync),
                ..self.lineage
            },
            clients: ClientNotes {
                discarded_own_changes: self.clients.discarded_own_changes && !in_sync,
                ..self.clients
            },
            ..self
        }
        .made_equal(None)
    }

    /// The state of a copy that may lack operations which were not synced (rule P22). The verifier is another one even if the
    /// random bytes came before: the machine may be a copy of another one.
    pub fn renewed(self, drawn: [u8; 16]) -> Self {
        let last = self.clients.verifier.get().to_le_bytes();
        let mixed = Hash128::of(&[drawn.as_slice(), &last].concat());
        self.with_verifier(WriteVerifier::from_bytes(mixed.0))
    }

    /// The state with a write verifier.
    pub(super) const fn with_verifier(self, verifier: WriteVerifier) -> Self {
        Self {
            clients: ClientNotes {
                verifier,
                ..self.clients
            },
            ..self
        }
    }

    /// Renews the write verifier if the memory of the copy is lost, as this start finds it in the run `boot` of the machine
    /// (rule P22). `record`: the record that follows.
    pub fn verified(
        self,
        boot: BootId,
        record: RoleRecord,
        draw: impl FnOnce() -> [u8; 16],
    ) -> Self {
        let has_lost = self.went_down(boot)
            || self.record.complete && !record.complete
            || self.record.becomes_complete(&record);
        let keeps = !has_lost || is_active(Mutant::KeepVerifierOfLostMemory);
        if keeps && self.clients.verifier != WriteVerifier::NONE {
            self
        } else {
            self.renewed(draw())
        }
    }

    /// The state of a copy that may differ from the other one in anything.
    pub const fn without_base(self) -> Self {
        self.since(None)
    }

    /// The state of a copy out of sync that was equal to its primary's in the generation `base`, but for the writes of its tables
    /// and the delta of the primary.
    pub(super) const fn since(self, base: Option<Generation>) -> Self {
        self.of_lineage(CopyLineage {
            deposed_base: None,
            resync_base: base,
            ..self.lineage
        })
    }

    /// The generation in which a copy that is not complete was last equal to the other one.
    pub const fn left_base(&self) -> Option<Generation> {
        match self.lineage.deposed_base {
            Some(base) => Some(base),
            None => self.lineage.resync_base,
        }
    }

    /// Whether the tables say how this copy differs from the other one.
    pub fn has_tables(&self) -> bool {
        self.has_kept_sync() && self.record.complete || self.base().is_some()
    }

    /// The generation in which a secondary's copy was last equal to the other one, but for the operations in flight.
    pub const fn base(&self) -> Option<Generation> {
        match self.record {
            record if record.is_primary() => None,
            record if record.complete && !self.lineage.power.has_lost_power => {
                Some(record.generation)
            }
            _ => self.left_base(),
        }
    }

    /// The state after a change of the role. A primary that steps down without a complete copy was deposed. A primary that gives
    /// its role away in order keeps a complete copy.
    pub(super) fn after(self, change: RoleChange) -> Self {
        let RoleChange { from, to, .. } = change;
        let had_base = from.complete && from.peer_complete && !self.lineage.power.has_lost_power;
        let were_in_sync = had_base || is_active(Mutant::RejoinFromAnyCopy);
        let stays = !to.is_primary() && !change.steps_down();
        let (deposed, deposed_base) = if to.is_primary() {
            (None, None)
        } else if change.steps_down() {
            let deposed = Some(from.generation).filter(|_| !to.complete);
            (deposed, deposed.filter(|_| were_in_sync))
        } else {
            (self.lineage.deposed, self.lineage.deposed_base)
        };
        let served_alone = change.steps_down() && !from.peer_complete && !to.complete;
        let was_discarded = self.clients.discarded_own_changes || served_alone;
        Self {
            record: to,
            unrecorded: self
                .unrecorded
                .filter(|promotion| promotion.belongs_to(&to)),
            lineage: CopyLineage {
                deposed,
                deposed_base,
                resync_base: self.lineage.resync_base.filter(|_| stays),
                seed: self.lineage.seed.filter(|_| !to.is_primary()),
                ..self.lineage
            },
            clients: ClientNotes {
                discarded_own_changes: !to.is_primary() && was_discarded,
                ..self.clients
            },
            ..self
        }
    }

    /// Whether the machine went down while the store was in use, if the machine now runs as `boot`. Then data that
    /// was not on stable storage may be missing.
    pub fn went_down(&self, boot: BootId) -> bool {
        self.boot.is_some_and(|last| last != boot)
    }
}
