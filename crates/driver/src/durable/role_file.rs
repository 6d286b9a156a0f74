//! The role record of this node and the names of its copy, on stable storage.
//!
//! The file has two *slots* of one block each, with the same state at rest. A change overwrites the first slot, syncs
//! the file, overwrites the second slot and syncs again. So a change needs no space on the disk (rule P20), and at
//! every moment one slot is whole. Each slot has a number that counts changes, and a checksum.
//!
//! Invariants:
//! - The file is changed and synced before anything acts on the new state.
//! - A change that belongs to a generation is refused once the generation has changed: the replication that wants it is over.
//! - One damaged slot loses nothing: the other slot has the same state, or the state before a change on which nothing
//!   has acted. A flipped bit never makes another state.

mod fields;
pub mod marks;
mod power;
mod sync_names;
mod telling;
mod words;

use std::io;
use std::sync::Arc;

use lockstep_roles::RoleRecord;
use lockstep_types::backing::{Backing, draft_of, replace};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{BootId, Generation, Hash128, StoreId, SyncNames, WriteVerifier};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use lockstep_types::settings::Role;

pub(crate) use fields::PowerMarks;
use fields::{RoleWord, SyncField, UnsyncedFields};
pub(crate) use words::Greeted;
use words::Words;

/// The file in the directory of the store.
pub(crate) const FILE: &str = "role.json";

/// The state in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleState {
    /// Generation, role and completeness of the copies.
    pub record: RoleRecord,
    /// This copy is the source or the result of a resync. An empty store with this mark has lost data; a new disk in
    /// place of another has no such mark.
    pub carried_over: bool,
    /// The name of the primary's store at the time of the first resync, the same on both nodes; `None` on a secondary
    /// until the first greeting (rule P17). A store that was last used by a version without names has none.
    pub store: Option<StoreId>,
    /// The sync that the marks of the record belong to (rule P17).
    pub sync: SyncNames,
    /// The last generation in which this node was the primary, if its copy may hold changes from then that no other copy
    /// has: it was deposed, and has not been in sync since.
    pub deposed: Option<Generation>,
    /// The same generation, if this copy differs from the then secondary's only in the writes of the PAW table, and in
    /// operations in doubt: the copies were in sync, and no resync has begun since.
    pub deposed_in_sync: Option<Generation>,
    /// This node has served alone, and an operator has made it the secondary since: what only its copy has is given up. Until
    /// its copy is in sync again.
    pub gave_up: bool,
    /// The run of the machine in which the store is in use; `None` after a clean shutdown.
    pub boot: Option<BootId>,
    /// The write verifier of this copy (rule P22).
    pub verifier: WriteVerifier,
    /// The effect of a loss of power on this copy (rule P12).
    pub power: PowerMarks,
}

/// The fields of the state, in this and in earlier versions.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateFields {
    generation: Generation,
    role: RoleWord,
    /// In versions whose roles do not change, in place of the next two fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_sync: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer_complete: Option<bool>,
    carried_over: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<StoreId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sync: Option<SyncField>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deposed: Option<Generation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deposed_in_sync: Option<Generation>,
    boot: Option<BootId>,
    /// Missing in earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unsynced: Option<UnsyncedFields>,
}

impl From<RoleState> for StateFields {
    fn from(state: RoleState) -> Self {
        let record = state.record;
        Self {
            generation: record.generation,
            role: RoleWord::of(record),
            in_sync: None,
            complete: Some(record.complete),
            peer_complete: Some(record.peer_complete),
            carried_over: state.carried_over,
            store: state.store,
            sync: SyncField::of(state.sync),
            deposed: state.deposed,
            deposed_in_sync: state.deposed_in_sync,
            boot: state.boot,
            unsynced: Some(UnsyncedFields {
                verifier: state.verifier,
                gave_up: state.gave_up,
                power: state.power,
            }),
        }
    }
}

impl RoleState {
    /// The state of a file of this or an earlier version.
    fn of(fields: StateFields) -> io::Result<Self> {
        let is_primary = fields.role == RoleWord::Primary;
        let unsynced = fields.unsynced;
        let (complete, peer_complete) = match fields {
            StateFields {
                in_sync: None,
                complete: Some(complete),
                peer_complete: Some(peer_complete),
                ..
            } => (complete, peer_complete),
            StateFields {
                in_sync: Some(in_sync),
                complete: None,
                peer_complete: None,
                ..
            } => (is_primary || in_sync, is_primary && in_sync),
            _ => return Err(damaged("the marks of the copies are not whole")),
        };
        Ok(Self {
            record: RoleRecord {
                generation: fields.generation,
                role: fields.role.role(),
                is_candidate: fields.role == RoleWord::Candidate,
                complete,
                peer_complete,
            },
            carried_over: fields.carried_over,
            store: fields.store,
            sync: fields.sync.map(SyncField::names).unwrap_or_default(),
            deposed: fields.deposed,
            deposed_in_sync: fields.deposed_in_sync,
            gave_up: unsynced.is_some_and(|it| it.gave_up),
            boot: fields.boot,
            verifier: unsynced.map_or(WriteVerifier::NONE, |it| it.verifier),
            power: unsynced.map_or(PowerMarks::default(), |it| it.power),
        })
    }
}

/// The content of a slot: the number of the change, the state, and the checksum of both.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleSlot {
    change: u64,
    state: StateFields,
    checksum: String,
}

/// The file of a version without slots: the state and its checksum.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unslotted {
    state: StateFields,
    checksum: String,
}

/// The checksum in hex, over the value as JSON in one line.
fn checksum(of: &impl Serialize) -> io::Result<String> {
    let sum = Hash128::of(&serde_json::to_vec(of)?);
    Ok(format!("{:032x}", u128::from_be_bytes(sum.0)))
}

impl RoleSlot {
    /// The block of a change: text, padded with blanks.
    fn block(change: u64, state: RoleState) -> io::Result<Vec<u8>> {
        let state = StateFields::from(state);
        let checksum = checksum(&(change, state))?;
        let slot = Self {
            change,
            state,
            checksum,
        };
        let mut text = serde_json::to_vec_pretty(&slot)?;
        if text.len() >= BLOCK_BYTES {
            return Err(io::Error::other(
                "the role of the node takes more than a block",
            ));
        }
        text.resize(BLOCK_BYTES - 1, b' ');
        text.push(b'\n');
        Ok(text)
    }

    /// The slot in a block, if the block is whole.
    fn read(block: &[u8]) -> Option<Self> {
        let slot: Self = serde_json::from_slice(block).ok()?;
        let expected = checksum(&(slot.change, slot.state)).ok()?;
        (block.len() == BLOCK_BYTES && slot.checksum == expected).then_some(slot)
    }
}

impl RoleState {
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
        let store = self.store.or_else(|| is_primary.then(draw));
        Self { store, ..self }
    }

    /// The state with the mark "in sync" set or removed.
    fn marked(self, in_sync: bool) -> Self {
        let mut record = self.record;
        if record.is_primary() {
            record.peer_complete = in_sync;
        } else {
            record.complete = in_sync;
        }
        Self {
            record,
            deposed: self.deposed.filter(|_| !in_sync),
            deposed_in_sync: self.deposed_in_sync.filter(|_| !in_sync),
            gave_up: self.gave_up && !in_sync,
            ..self
        }
        .made_equal(None)
    }

    /// The state of a copy that may lack operations which were not synced (rule P22). The verifier is another one even if the
    /// random bytes came before: the machine may be a copy of another one.
    pub fn renewed(self, drawn: [u8; 16]) -> Self {
        let last = self.verifier.get().to_le_bytes();
        let mixed = Hash128::of(&[drawn.as_slice(), &last].concat());
        Self {
            verifier: WriteVerifier::from_bytes(mixed.0),
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
        if keeps && self.verifier != WriteVerifier::NONE {
            self
        } else {
            self.renewed(draw())
        }
    }

    /// The state of a copy that may differ from the other one in anything.
    pub fn without_base(self) -> Self {
        Self {
            deposed_in_sync: None,
            ..self
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
            record if record.complete && !self.power.has_lost_power => Some(record.generation),
            _ => self.deposed_in_sync,
        }
    }

    /// The state with another record. A primary that becomes a secondary without a complete copy was deposed. A primary
    /// that gives its role away in order keeps a complete copy.
    fn with_record(self, new: RoleRecord) -> Self {
        let old = self.record;
        let had_base = old.complete && old.peer_complete && !self.power.has_lost_power;
        let were_in_sync = had_base || is_active(Mutant::RejoinFromAnyCopy);
        let (deposed, deposed_in_sync) = match (old.is_primary(), new.is_primary()) {
            (_, true) => (None, None),
            (true, false) => {
                let deposed = Some(old.generation).filter(|_| !new.complete);
                (deposed, deposed.filter(|_| were_in_sync))
            }
            (false, false) => (self.deposed, self.deposed_in_sync),
        };
        let served_alone = old.is_primary() && !old.peer_complete && !new.complete;
        Self {
            record: new,
            deposed,
            deposed_in_sync,
            gave_up: !new.is_primary() && (self.gave_up || served_alone),
            ..self
        }
    }

    /// Whether the machine went down while the store was in use, if the machine now runs as `boot`. Then data that
    /// was not on stable storage may be missing.
    pub fn went_down(&self, boot: BootId) -> bool {
        self.boot.is_some_and(|last| last != boot)
    }
}

/// The file and its state.
pub(crate) struct RoleFile {
    backing: Arc<dyn Backing>,
    state: Mutex<RoleState>,
    /// Number of changes; `None` before there is a file with slots. The lock is held while the file is changed.
    changes: Mutex<Option<u64>>,
    /// The words of this node that its copy is not complete.
    words: Words,
    /// The previous process was killed: it may have left unsynced data.
    was_killed: bool,
}

impl RoleFile {
    /// The state in the file of a store; for a new store the begin with `role`. Changes nothing.
    pub fn read(backing: &dyn Backing, role: Role) -> io::Result<RoleState> {
        let found = read(backing)?.map(|(state, _)| state);
        Ok(found.unwrap_or(RoleState {
            record: RoleRecord::begin(role),
            carried_over: false,
            store: None,
            sync: SyncNames::default(),
            deposed: None,
            deposed_in_sync: None,
            gave_up: false,
            boot: None,
            verifier: WriteVerifier::NONE,
            power: PowerMarks::default(),
        }))
    }

    /// Takes the store into use in the run `boot` of the machine, with `record`. One step writes both, before
    /// anything else in the store changes, so no stop in between can forget that the machine went down.
    pub fn open(
        backing: Arc<dyn Backing>,
        found: RoleState,
        boot: BootId,
        record: RoleRecord,
    ) -> io::Result<Self> {
        let state = RoleState {
            record,
            boot: Some(boot),
            ..found
        };
        let changes = read(backing.as_ref())?.and_then(|(_, changes)| changes);
        let file = Self {
            changes: Mutex::new(changes),
            was_killed: found.boot.is_some(),
            ..Self::looked_at(backing, state)
        };
        file.change(|_| state)?;
        Ok(file)
    }

    /// The file of a store that is open for reading only. Changes nothing.
    pub fn looked_at(backing: Arc<dyn Backing>, found: RoleState) -> Self {
        Self {
            backing,
            state: Mutex::new(found),
            changes: Mutex::default(),
            words: Words::default(),
            was_killed: found.boot.is_some(),
        }
    }

    /// Whether a previous process may have left unsynced data.
    pub const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Notes a clean shutdown: the whole store is on stable storage (rule P12).
    pub fn closed(&self) -> io::Result<()> {
        self.change(|state| RoleState {
            boot: None,
            ..state
        })
    }

    /// The state in the file.
    pub fn state(&self) -> RoleState {
        *self.state.lock()
    }

    /// Makes the record `new` durable, in place of `old`. Returns `false`, and changes nothing, if the record is another by
    /// now. A primary's copy counts as one that others are made from, and gets a name from the random bytes if it has none. A
    /// copy that counts as complete from now on, although it may lack operations, gets another write verifier from them.
    pub fn replace(&self, old: RoleRecord, new: RoleRecord, drawn: [u8; 16]) -> io::Result<bool> {
        if is_active(Mutant::RecordUnwritten) {
            self.state.lock().record = new;
            return Ok(true);
        }
        self.change_if(|state| {
            let next = RoleState {
                carried_over: state.carried_over || (new.is_primary() && state.sync.last.is_some()),
                ..state.with_record(new)
            };
            let next = if old.becomes_complete(&new) {
                next.renewed(drawn)
            } else {
                next
            };
            (state.record == old).then(|| next.named(|| StoreId::from_bytes(drawn)))
        })
    }

    /// Makes durable that this copy is a copy of `store`. The marks about another store are dropped.
    pub fn follow(&self, generation: Generation, store: StoreId) -> io::Result<()> {
        if self.state().store == Some(store) {
            return Ok(());
        }
        self.change_in(generation, |state| RoleState {
            store: Some(store),
            sync: SyncNames::default(),
            ..state.marked(false).without_base()
        })
    }

    /// Makes "in sync" or "out of sync" durable, for a session of `generation`.
    pub fn mark(&self, generation: Generation, in_sync: bool) -> io::Result<()> {
        self.change_in(generation, |state| state.marked(in_sync))
    }

    /// Makes durable, on a secondary in sync, that this copy has the memory of the primary's (rule P22).
    pub fn adopt_verifier(
        &self,
        generation: Generation,
        verifier: WriteVerifier,
    ) -> io::Result<()> {
        if self.state().verifier == verifier {
            return Ok(());
        }
        self.change_in(generation, |state| RoleState { verifier, ..state })
    }

    /// Makes durable that this copy acknowledges operations which are not durable from now on.
    pub fn note_unsynced(&self) -> io::Result<()> {
        if self.state().power.all_synced {
            self.change(RoleState::unsynced)?;
        }
        Ok(())
    }

    /// Makes durable that the datastore goes on with a copy that may lack operations (rule P22).
    pub fn renew_verifier(&self, drawn: [u8; 16]) -> io::Result<()> {
        self.change(|state| state.renewed(drawn))
    }

    /// Changes the file for a session of `generation`, unless another generation has begun.
    fn change_in(
        &self,
        generation: Generation,
        change: impl FnOnce(RoleState) -> RoleState,
    ) -> io::Result<()> {
        let is_current = |state: &RoleState| state.record.generation == generation;
        let changed = self.change_if(|state| is_current(&state).then(|| change(state)))?;
        if changed {
            Ok(())
        } else {
            Err(io::Error::other("the role of this node has changed"))
        }
    }

    fn change(&self, change: impl FnOnce(RoleState) -> RoleState) -> io::Result<()> {
        self.change_if(|state| Some(change(state))).map(drop)
    }

    /// Changes the file, if `change` has a new state. Returns whether it has one.
    fn change_if(&self, change: impl FnOnce(RoleState) -> Option<RoleState>) -> io::Result<bool> {
        let mut changes = self.changes.lock();
        let Some(state) = change(self.state()) else {
            return Ok(false);
        };
        let number = changes.map_or(0, |number| number.saturating_add(1));
        let block = RoleSlot::block(number, state)?;
        if changes.replace(number).is_some() {
            self.overwrite(&block)?;
        } else if let Err(error) = self.make(&block) {
            *changes = None;
            return Err(error);
        }
        *self.state.lock() = state;
        if is_active(Mutant::LeaveDraft) {
            self.backing.open_or_create(&draft_of(FILE))?;
        }
        Ok(true)
    }

    /// Replaces the file by one with both slots.
    fn make(&self, block: &[u8]) -> io::Result<()> {
        replace(self.backing.as_ref(), FILE, &[block, block].concat())
    }

    /// Overwrites both slots, one after the other. After a failure, the next change does so with a higher number.
    fn overwrite(&self, block: &[u8]) -> io::Result<()> {
        let file = self.backing.open(FILE)?;
        for at in [0, BLOCK_BYTES as u64] {
            file.write_at(at, block)?;
            file.sync()?;
        }
        Ok(())
    }
}

/// The state in the file, and the number of changes if the file has slots; `None` without a file.
fn read(backing: &dyn Backing) -> io::Result<Option<(RoleState, Option<u64>)>> {
    let file = match backing.open(FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = vec![0; 2 * BLOCK_BYTES];
    let length = file.read_at(0, &mut bytes)?;
    bytes.truncate(length);
    parse(&bytes).map(Some)
}

/// The state in the slot with the highest number. A damaged slot was being written when the power was lost, or the
/// disk has damaged it: then the other slot counts.
fn parse(bytes: &[u8]) -> io::Result<(RoleState, Option<u64>)> {
    let slots = bytes.chunks(BLOCK_BYTES).filter_map(RoleSlot::read);
    // Two slots with the same number have the same state.
    let last = slots.reduce(|first, second| {
        if second.change > first.change {
            second
        } else {
            first
        }
    });
    if let Some(slot) = last {
        return Ok((RoleState::of(slot.state)?, Some(slot.change)));
    }
    let whole: Unslotted =
        serde_json::from_slice(bytes).map_err(|error| damaged(&error.to_string()))?;
    if whole.checksum != checksum(&whole.state)? {
        return Err(damaged("its checksum is wrong"));
    }
    Ok((RoleState::of(whole.state)?, None))
}

fn damaged(what: &str) -> io::Error {
    let cure = "Check the disk, then see \"A store is damaged\" in docs/operations.md";
    let text = format!("{FILE} is damaged: {what}. {cure}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests;
