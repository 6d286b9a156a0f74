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
}

/// The file, and what it says.
pub(super) struct RoleFile {
    backing: Arc<dyn Backing>,
    state: Mutex<RoleState>,
}

impl RoleFile {
    /// Reads the file; a new store gets one that says `role`, not in sync.
    pub fn open(backing: Arc<dyn Backing>, role: Role) -> io::Result<Self> {
        let state = match read(backing.as_ref())? {
            Some(state) => state,
            None => RoleState {
                generation: Generation::FIRST,
                role,
                in_sync: false,
            },
        };
        let file = Self {
            backing,
            state: Mutex::new(state),
        };
        file.write(state)?;
        Ok(file)
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
