//! The role of this node and whether its copy is in sync, on stable storage.
//!
//! Invariants: the file is replaced whole, and synced, before anything acts on what it says. It
//! bears a checksum of that, so that no flipped bit makes another generation of it or a copy in sync.

use std::io;
use std::sync::Arc;

use lockstep_types::backing::{Backing, draft_of, replace};
use lockstep_types::deliberate::{Bug, is_on};
use lockstep_types::{Generation, Hash128, StoreId, SyncId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::Role;

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
    pub boot: Option<[u8; 16]>,
}

/// The file: what it says, and the checksum of that.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    state: RoleState,
    checksum: String,
}

impl RoleState {
    /// In hex, over the state as it is written in one line.
    fn checksum(&self) -> io::Result<String> {
        let sum = Hash128::of(&serde_json::to_vec(self)?);
        Ok(format!("{:032x}", u128::from_be_bytes(sum.0)))
    }

    /// Whether the machine went down while the store was in use, if it now runs for the time
    /// `boot`: then what was not on stable storage may be missing.
    pub fn went_down(&self, boot: [u8; 16]) -> bool {
        self.boot.is_some_and(|last| last != boot)
    }
}

/// The file, and what it says.
pub(super) struct RoleFile {
    backing: Arc<dyn Backing>,
    state: Mutex<RoleState>,
    /// Held while the file is replaced.
    changing: Mutex<()>,
    /// The process before this one was killed: what it had not synced, nobody knows.
    was_killed: bool,
}

impl RoleFile {
    /// What the file of a store says; for a new one `role`, not in sync. Changes nothing.
    pub fn read(backing: &dyn Backing, role: Role) -> io::Result<RoleState> {
        Ok(read(backing)?.unwrap_or(RoleState {
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
        boot: [u8; 16],
        in_sync: bool,
    ) -> io::Result<Self> {
        let state = RoleState {
            in_sync,
            boot: Some(boot),
            ..found
        };
        let file = Self {
            backing,
            state: Mutex::new(state),
            changing: Mutex::default(),
            was_killed: found.boot.is_some(),
        };
        file.write(state)?;
        Ok(file)
    }

    /// The file of a store that is only looked at. Changes nothing.
    pub fn looked_at(backing: Arc<dyn Backing>, found: RoleState) -> Self {
        Self {
            backing,
            state: Mutex::new(found),
            changing: Mutex::default(),
            was_killed: found.boot.is_some(),
        }
    }

    /// Whether more may be unsynced than this process knows of.
    pub const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// The store was closed in order: all it holds is on stable storage (rule P12).
    pub fn closed(&self) -> io::Result<()> {
        self.write(RoleState {
            boot: None,
            ..self.state()
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
        let _alone = self.changing.lock();
        let state = change(self.state());
        self.write(state)?;
        *self.state.lock() = state;
        Ok(())
    }

    fn write(&self, state: RoleState) -> io::Result<()> {
        let checksum = state.checksum()?;
        let text = serde_json::to_vec_pretty(&Written { state, checksum })?;
        replace(self.backing.as_ref(), FILE, &text)?;
        if is_on(Bug::LeaveDraft) {
            self.backing.open_or_create(&draft_of(FILE))?;
        }
        Ok(())
    }
}

fn read(backing: &dyn Backing) -> io::Result<Option<RoleState>> {
    let file = match backing.open(FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = vec![0; 4096];
    let length = file.read_at(0, &mut text)?;
    text.truncate(length);
    let written: Written =
        serde_json::from_slice(&text).map_err(|error| damaged(&error.to_string()))?;
    if written.checksum != written.state.checksum()? {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(Some(written.state))
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

    const BOOT: [u8; 16] = [3; 16];

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
        assert!(!found.went_down(BOOT) && found.went_down([4; 16]));
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
        assert!(!found.in_sync && found.boot.is_none() && !found.went_down([4; 16]));
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

    /// No bit of the file can be flipped and no byte be cut without being noticed.
    #[test]
    fn every_damage_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = fresh(dir.path());
        file.follow(StoreId::from_bytes([9; 16])).unwrap();
        file.take_over(SyncId::next(None, [8; 16])).unwrap();
        let state = file.state();
        let path = dir.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut cut = whole.clone();
            cut.truncate(at);
            refused(&path, &cut);
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                std::fs::write(&path, &flipped).unwrap();
                match again(dir.path()) {
                    Err(error) => assert!(error.to_string().contains("is damaged"), "{error}"),
                    // White space is as good as other white space.
                    Ok(found) => assert_eq!(found, state, "byte {at} bit {bit}"),
                }
            }
        }
    }

    fn refused(path: &std::path::Path, text: &[u8]) {
        std::fs::write(path, text).unwrap();
        let error = again(path.parent().unwrap()).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
    }
}
