//! The role of this node and whether its copy is in sync, on stable storage.
//!
//! Invariant: the file is replaced whole, and synced, before anything acts on what it says.

use std::io;
use std::sync::Arc;

use lockstep_types::Generation;
use lockstep_types::backing::Backing;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::Role;

const FILE: &str = "role.json";
const DRAFT: &str = "role.json.new";

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
    /// The run of the machine in which the store is in use; `None` once it was closed in order.
    pub boot: Option<[u8; 16]>,
}

/// The file, and what it says.
pub(super) struct RoleFile {
    backing: Arc<dyn Backing>,
    state: Mutex<RoleState>,
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
            boot: None,
        }))
    }

    /// Takes the store into use in the run `boot` of the machine. A copy that was in use when the
    /// machine last went down is not in sync: what was not on stable storage may be missing. That
    /// is written in one step with the new run, so that nothing can forget it in between.
    pub fn open(backing: Arc<dyn Backing>, found: RoleState, boot: [u8; 16]) -> io::Result<Self> {
        let went_down = found.boot.is_some_and(|last| last != boot);
        let state = RoleState {
            in_sync: found.in_sync && !went_down,
            boot: Some(boot),
            ..found
        };
        let file = Self {
            backing,
            state: Mutex::new(state),
            was_killed: found.boot.is_some(),
        };
        file.write(state)?;
        Ok(file)
    }

    /// Whether more may be unsynced than this process knows of.
    pub const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// The store was closed in order: all it holds is on stable storage.
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

    /// Makes "in sync" or "out of sync" durable.
    pub fn mark(&self, in_sync: bool) -> io::Result<()> {
        let state = RoleState {
            in_sync,
            ..self.state()
        };
        self.write(state)?;
        *self.state.lock() = state;
        Ok(())
    }

    fn write(&self, state: RoleState) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&state)?;
        let draft = self.backing.open_or_create(DRAFT)?;
        draft.set_len(0)?;
        draft.write_at(0, &text)?;
        draft.sync()?;
        self.backing.rename(DRAFT, FILE)?;
        self.backing.sync_dir(".")
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
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{FILE} is damaged ({error}): restore this store from the other node"),
        )
    })
}
