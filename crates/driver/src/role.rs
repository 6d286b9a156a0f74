//! The role of this node and whether its copy is in sync, on stable storage.
//!
//! The file has two *slots* of one block each, with the same state at rest. A change overwrites the first slot, syncs the
//! file, overwrites the second slot and syncs again: so it needs no space on the disk (rule P20), and one whole slot is
//! there at every moment. Each slot bears a number that counts changes, and a checksum.
//!
//! Invariants:
//! - The file is changed, and synced, before anything acts on what it says.
//! - One damaged slot loses nothing: the other one has the same state, or the one before a change that nothing has acted
//!   on. No flipped bit makes another state.

use std::io;
use std::sync::Arc;

use lockstep_types::backing::{Backing, draft_of, replace};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{BootId, Generation, Hash128, StoreId, SyncId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use lockstep_types::settings::Role;

const FILE: &str = "role.json";

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleState {
    /// How often the primary has changed.
    pub generation: Generation,
    /// What this node is.
    pub role: Role,
    /// Primary: the secondary holds every acknowledged operation. Secondary: this copy does, as
    /// of the last disconnect.
    pub in_sync: bool,
    /// Primary: its namespace has been carried to the secondary, now or ever. What is empty here then
    /// lost something, and is not a disk that was put in place of another.
    pub carried_over: bool,
    /// Primary: this store. Secondary: the one that this is a copy of; `None` as long as it was greeted by
    /// nobody (rule P17). A store that was last in use with a version before this one has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreId>,
    /// The last resync that was begun: the sync that the mark is about, if it says in sync (rule P17).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncId>,
    /// The run of the machine in which the store is in use; `None` once it was closed in order.
    pub boot: Option<BootId>,
}

/// What a slot holds: the state after so many changes, and the checksum of both.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slot {
    change: u64,
    state: RoleState,
    checksum: String,
}

/// The whole file, as versions before the slots wrote it: what it says, and the checksum of that.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unslotted {
    state: RoleState,
    checksum: String,
}

/// In hex, over something as it is written in one line.
fn checksum(of: &impl Serialize) -> io::Result<String> {
    let sum = Hash128::of(&serde_json::to_vec(of)?);
    Ok(format!("{:032x}", u128::from_be_bytes(sum.0)))
}

impl Slot {
    /// The block that holds the state after so many changes: text, and blanks behind it.
    fn block(change: u64, state: RoleState) -> io::Result<Vec<u8>> {
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

    /// The slot in a block, if that is whole.
    fn read(block: &[u8]) -> Option<Self> {
        let slot: Self = serde_json::from_slice(block).ok()?;
        let expected = checksum(&(slot.change, slot.state)).ok()?;
        (block.len() == BLOCK_BYTES && slot.checksum == expected).then_some(slot)
    }
}

/// What a role file says, for those who look at a store from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleMarks {
    /// The copy counts as in sync.
    pub in_sync: bool,
    /// The store was closed in order.
    pub is_closed: bool,
}

impl RoleMarks {
    /// What the bytes of a role file say; `None` for a damaged file.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let (state, _) = parse(bytes).ok()?;
        Some(Self {
            in_sync: state.in_sync,
            is_closed: state.boot.is_none(),
        })
    }
}

impl RoleState {
    /// Whether the machine went down while the store was in use, if it now runs for the time
    /// `boot`: then what was not on stable storage may be missing.
    pub fn went_down(&self, boot: BootId) -> bool {
        self.boot.is_some_and(|last| last != boot)
    }
}

/// The file, and what it says.
pub(super) struct RoleFile {
    backing: Arc<dyn Backing>,
    state: Mutex<RoleState>,
    /// How often the file was changed; `None` before there is one with slots. Held while the file is changed.
    changes: Mutex<Option<u64>>,
    /// The process before this one was killed: what it had not synced, nobody knows.
    was_killed: bool,
}

impl RoleFile {
    /// What the file of a store says; for a new one `role`, not in sync. Changes nothing.
    pub fn read(backing: &dyn Backing, role: Role) -> io::Result<RoleState> {
        let found = read(backing)?.map(|(state, _)| state);
        Ok(found.unwrap_or(RoleState {
            generation: Generation::FIRST,
            role,
            in_sync: false,
            carried_over: false,
            store: None,
            sync: None,
            boot: None,
        }))
    }

    /// Takes the store into use in the run `boot` of the machine, as in sync or not. Both are
    /// written in one step, so that no stop in between can forget that the machine went down, and
    /// before anything else in the store is changed.
    pub fn open(
        backing: Arc<dyn Backing>,
        found: RoleState,
        boot: BootId,
        in_sync: bool,
    ) -> io::Result<Self> {
        let state = RoleState {
            in_sync,
            boot: Some(boot),
            ..found
        };
        let changes = read(backing.as_ref())?.and_then(|(_, changes)| changes);
        let file = Self {
            backing,
            state: Mutex::new(state),
            changes: Mutex::new(changes),
            was_killed: found.boot.is_some(),
        };
        file.change(|_| state)?;
        Ok(file)
    }

    /// The file of a store that is only looked at. Changes nothing.
    pub fn looked_at(backing: Arc<dyn Backing>, found: RoleState) -> Self {
        Self {
            backing,
            state: Mutex::new(found),
            changes: Mutex::default(),
            was_killed: found.boot.is_some(),
        }
    }

    /// Whether more may be unsynced than this process knows of.
    pub const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// The store was closed in order: all it holds is on stable storage (rule P12).
    pub fn closed(&self) -> io::Result<()> {
        self.change(|state| RoleState {
            boot: None,
            ..state
        })
    }

    /// What the file says.
    pub fn state(&self) -> RoleState {
        *self.state.lock()
    }

    /// Makes it durable that this is to be a copy of `store`. Nothing that was said of another counts then.
    pub fn follow(&self, store: StoreId) -> io::Result<()> {
        if self.state().store == Some(store) {
            return Ok(());
        }
        self.change(|state| RoleState {
            in_sync: false,
            store: Some(store),
            sync: None,
            ..state
        })
    }

    /// Makes "in sync" or "out of sync" durable.
    pub fn mark(&self, in_sync: bool) -> io::Result<()> {
        self.change(|state| RoleState { in_sync, ..state })
    }

    /// Makes it durable, on the primary, that the namespace is about to be carried to the secondary, and draws
    /// the name of that resync.
    pub fn carry_over(&self, drawn: [u8; 16]) -> io::Result<SyncId> {
        let sync = SyncId::next(self.state().sync, drawn);
        self.change(|state| RoleState {
            carried_over: true,
            sync: Some(sync),
            ..state
        })?;
        Ok(sync)
    }

    /// Makes it durable, on the secondary, that its copy is about to be changed in a resync.
    pub fn take_over(&self, sync: SyncId) -> io::Result<()> {
        self.change(|state| RoleState {
            in_sync: false,
            sync: Some(sync),
            ..state
        })
    }

    fn change(&self, change: impl FnOnce(RoleState) -> RoleState) -> io::Result<()> {
        let mut changes = self.changes.lock();
        let state = change(self.state());
        let number = changes.map_or(0, |number| number.saturating_add(1));
        let block = Slot::block(number, state)?;
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
        Ok(())
    }

    /// Puts a file with both slots in the place of what there is.
    fn make(&self, block: &[u8]) -> io::Result<()> {
        replace(self.backing.as_ref(), FILE, &[block, block].concat())
    }

    /// Overwrites both slots, one after the other. After a failure the next change does so with a higher number.
    fn overwrite(&self, block: &[u8]) -> io::Result<()> {
        let file = self.backing.open(FILE)?;
        for at in [0, BLOCK_BYTES as u64] {
            file.write_at(at, block)?;
            file.sync()?;
        }
        Ok(())
    }
}

/// What the file says, and how often it was changed, if it has slots; `None` without a file.
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

/// The state in the slot that was written last. A slot that is not whole was being written when the power was lost, or
/// has rotted: the other slot counts.
fn parse(bytes: &[u8]) -> io::Result<(RoleState, Option<u64>)> {
    let slots = bytes.chunks(BLOCK_BYTES).filter_map(Slot::read);
    // Of two with the same number the first; they say the same.
    let last = slots.reduce(|first, second| {
        if second.change > first.change {
            second
        } else {
            first
        }
    });
    if let Some(slot) = last {
        return Ok((slot.state, Some(slot.change)));
    }
    let whole: Unslotted =
        serde_json::from_slice(bytes).map_err(|error| damaged(&error.to_string()))?;
    if whole.checksum != checksum(&whole.state)? {
        return Err(damaged("its checksum is wrong"));
    }
    Ok((whole.state, None))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "{FILE} is damaged: {what}. Check the disk, then see \"A store is damaged\" in \
             docs/operations.md"
        ),
    )
}

#[cfg(test)]
mod tests {
    use lockstep_fs::os_backing::OsBacking;

    use super::*;

    const BOOT: BootId = BootId::from_bytes([3; 16]);

    fn fresh(dir: &std::path::Path) -> RoleFile {
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(dir).unwrap());
        let found = RoleFile::read(backing.as_ref(), Role::Secondary).unwrap();
        RoleFile::open(backing, found, BOOT, true).unwrap()
    }

    fn again(dir: &std::path::Path) -> io::Result<RoleState> {
        RoleFile::read(&OsBacking::open(dir).unwrap(), Role::Primary)
    }

    #[test]
    fn says_what_was_written_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = fresh(dir.path());
        assert!(!file.was_killed());
        let found = again(dir.path()).unwrap();
        assert_eq!(found, file.state());
        assert!(found.in_sync && found.role == Role::Secondary);
        assert!(!found.went_down(BOOT) && found.went_down(BootId::from_bytes([4; 16])));
        assert!(!found.carried_over);
        let store = StoreId::from_bytes([9; 16]);
        file.follow(store).unwrap();
        let sync = file.carry_over([8; 16]).unwrap();
        file.mark(true).unwrap();
        file.mark(false).unwrap();
        let found = again(dir.path()).unwrap();
        assert!(found.carried_over && found.store == Some(store) && found.sync == Some(sync));
        file.follow(StoreId::from_bytes([1; 16])).unwrap();
        assert!(again(dir.path()).unwrap().sync.is_none());
        file.closed().unwrap();
        let found = again(dir.path()).unwrap();
        assert!(
            !found.in_sync && found.boot.is_none() && !found.went_down(BootId::from_bytes([4; 16]))
        );
    }

    /// It had no names of store and sync (rule P17).
    #[test]
    fn reads_what_the_version_before_has_written() {
        let dir = tempfile::tempdir().unwrap();
        let state = "{\"generation\":1,\"role\":\"secondary\",\"in_sync\":true,\
                     \"carried_over\":false,\"boot\":null}";
        let checksum = u128::from_be_bytes(Hash128::of(state.as_bytes()).0);
        let text = format!("{{\"state\":{state},\"checksum\":\"{checksum:032x}\"}}");
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let found = again(dir.path()).unwrap();
        assert!(found.in_sync && found.store.is_none() && found.sync.is_none());
    }

    /// Written by a version without slots, the file is replaced by one with slots.
    #[test]
    fn a_file_without_slots_gets_them() {
        let dir = tempfile::tempdir().unwrap();
        let state = "{\"generation\":1,\"role\":\"secondary\",\"in_sync\":true,\
                     \"carried_over\":false,\"boot\":null}";
        let checksum = u128::from_be_bytes(Hash128::of(state.as_bytes()).0);
        let text = format!("{{\"state\":{state},\"checksum\":\"{checksum:032x}\"}}");
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let file = fresh(dir.path());
        assert!(again(dir.path()).unwrap().in_sync);
        file.mark(false).unwrap();
        assert!(!again(dir.path()).unwrap().in_sync);
        let length = std::fs::metadata(dir.path().join(FILE)).unwrap().len();
        assert_eq!(length, 2 * BLOCK_BYTES as u64);
    }

    /// Flipped bits and cuts anywhere in one slot change nothing of what the file says.
    #[test]
    fn damage_to_one_slot_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = fresh(dir.path());
        file.take_over(SyncId::next(None, [8; 16])).unwrap();
        let state = file.state();
        let whole = std::fs::read(dir.path().join(FILE)).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(parse(&flipped).unwrap().0, state, "byte {at} bit {bit}");
            }
        }
        for length in BLOCK_BYTES..whole.len() {
            assert_eq!(parse(&whole[..length]).unwrap().0, state, "{length} bytes");
        }
    }

    #[test]
    fn damage_to_both_slots_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fresh(dir.path());
        let path = dir.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..BLOCK_BYTES {
            refused(&path, &whole[..length]);
        }
        for at in (0..BLOCK_BYTES).step_by(7) {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            flipped[BLOCK_BYTES + at] ^= 4;
            // Blanks are as good as other blanks, and this flip makes none.
            refused(&path, &flipped);
        }
    }

    /// Power may be lost between any two bytes that reach the disk: the state is the one before or after the change.
    #[test]
    fn a_change_that_stops_half_way_has_happened_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = fresh(dir.path());
        let before = file.state();
        let old = std::fs::read(dir.path().join(FILE)).unwrap();
        file.mark(false).unwrap();
        let after = file.state();
        let new = std::fs::read(dir.path().join(FILE)).unwrap();
        for reached in 0..=new.len() {
            let torn = [&new[..reached], &old[reached..]].concat();
            let (state, _) = parse(&torn).unwrap();
            assert!([before, after].contains(&state), "{reached} bytes");
            // All that the first sync covers has reached the disk: the change may be acted on soon.
            assert!(reached < BLOCK_BYTES || state == after, "{reached} bytes");
        }
    }

    fn refused(path: &std::path::Path, text: &[u8]) {
        std::fs::write(path, text).unwrap();
        let error = again(path.parent().unwrap()).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
    }
}
