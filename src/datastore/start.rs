//! Opening a datastore: what is checked, what is recovered, and in which state it starts.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::{Access, OpenOptions, Opened};
use lockstep_fs::{Store, StoreError};
use lockstep_intentlog::LogOptions;
use lockstep_paw_saw::{InFlightTable, TABLE_BYTES};
use lockstep_repl::core::{Core, CoreConfig, OnPeerLoss, Start};
use lockstep_repl::state::{Service, State};
use lockstep_resync::Progress;
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, Osn, limits};
use parking_lot::{Mutex, RwLock};
use thiserror::Error;

use super::Datastore;
use super::calls::Calls;
use super::references::References;
use super::role::{RoleFile, RoleState};
use super::status::Facts;
use super::workers::Workers;
use crate::config::{self, Choice, DatastoreConfig, Role};

/// Threads that wait for disk flushes and do long jobs.
const POOL_THREADS: usize = 8;
/// Slots for writes that the core counts as over and whose entries are just being removed.
const SLOTS_SPARE: usize = 128;
const PAW_FILE: &str = "tables/paw";
const SAW_FILE: &str = "tables/saw";

/// Why a datastore could not be opened. Nothing was changed.
#[derive(Debug, Error)]
pub enum DatastoreError {
    /// The store was refused.
    #[error("store {path}: {source}")]
    Store {
        /// Its directory.
        path: String,
        /// Why.
        source: StoreError,
    },
    /// A file of the store could not be used.
    #[error("store {path}: {source}")]
    Io {
        /// Its directory.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has the store open.
    #[error("store {path} is in use by another node process: stop that one first")]
    InUse {
        /// Its directory.
        path: String,
    },
    /// The configuration gives the node another role than it had.
    #[error(
        "store {path} is the {found}'s, the configuration says {configured}: the roles of an \
         existing datastore cannot be changed yet; put role = \"{found}\" back, or take the data \
         out with `lockstep export`"
    )]
    RoleChanged {
        /// Its directory.
        path: String,
        /// By the store.
        found: &'static str,
        /// By the configuration.
        configured: &'static str,
    },
}

/// Opens the datastore of `config`, making its store if there is none yet.
pub fn open(config: DatastoreConfig) -> Result<Arc<Datastore>, DatastoreError> {
    let path = config.store.display().to_string();
    let io = |source| DatastoreError::Io {
        path: path.clone(),
        source,
    };
    let store_error = |source| DatastoreError::Store {
        path: path.clone(),
        source,
    };
    let backing = open_backing(&config.store)?;
    if !Store::exists(backing.as_ref()).map_err(store_error)? {
        Store::create(&backing, config.uuid, &LogOptions::default()).map_err(store_error)?;
    }
    let boot = boot_id();
    let found = RoleFile::read(backing.as_ref(), config.role).map_err(io)?;
    if found.role != config.role {
        return Err(DatastoreError::RoleChanged {
            path: path.clone(),
            found: found.role.word(),
            configured: config.role.word(),
        });
    }
    let role = RoleFile::open(Arc::clone(&backing), found, boot).map_err(io)?;
    if found.in_sync && !role.state().in_sync {
        tracing::warn!(
            datastore = config.name,
            "this machine went down while the store was open: it will be resynced"
        );
    }
    let options = OpenOptions {
        datastore: Some(config.uuid),
        boot,
        access: Access::Write,
        log: LogOptions::default(),
    };
    let opened = Store::open(Arc::clone(&backing), &options).map_err(store_error)?;
    let table = |file| {
        let table = backing.open_table(file, TABLE_BYTES).map_err(io)?;
        Ok::<_, DatastoreError>(InFlightTable::open(table))
    };
    let (paw, mut old_paw) = table(PAW_FILE)?;
    let (saw, _) = table(SAW_FILE)?;
    let workers = Workers::start(&config.name, POOL_THREADS).map_err(io)?;
    if config.peer.is_none() && role.state().in_sync {
        // What happens from now on no peer will have.
        role.mark(false).map_err(io)?;
    }
    if first_state(&config, role.state()).service() == Service::Alone {
        settle_alone(&opened.store).map_err(store_error)?;
        paw.clear();
        old_paw.clear();
    }
    Ok(Arc::new(build(
        config,
        opened,
        role,
        (paw, old_paw, saw),
        workers,
    )))
}

/// Alone, there is nobody to ask what became of the operations in doubt. No client had an answer to
/// them, so they did not happen; the other node is resynced before it counts again. Left pending
/// they would keep that resync waiting, and the log from being cut.
fn settle_alone(store: &Store) -> Result<(), StoreError> {
    for osn in store.in_doubt() {
        store.roll_back(osn)?;
    }
    Ok(())
}

fn build(
    config: DatastoreConfig,
    opened: Opened,
    role: RoleFile,
    (paw, old_paw, saw): (InFlightTable, Vec<lockstep_paw_saw::Entry>, InFlightTable),
    workers: Workers,
) -> Datastore {
    let store = opened.store;
    let first_osn = Osn {
        generation: role.state().generation,
        sequence: store.first_sequence(),
    };
    let start = Start {
        state: first_state(&config, role.state()),
        first_osn,
        in_doubt: store.in_doubt(),
    };
    Datastore {
        core: Mutex::new(Core::new(core_config(&config), start, 0)),
        config,
        store,
        started: Instant::now(),
        works: Mutex::new(HashMap::new()),
        next_op: AtomicU64::new(1),
        sequencer: Mutex::new(()),
        committed: Mutex::default(),
        link: RwLock::new(None),
        paw,
        old_paw,
        saw,
        first_osn,
        references: References::default(),
        calls: Calls::default(),
        role,
        facts: Mutex::new(Facts::default()),
        workers,
        resync: Progress::default(),
        reign: AtomicU64::new(0),
        serving: Mutex::new(()),
        stopping: AtomicBool::new(false),
    }
}

const fn first_state(config: &DatastoreConfig, role: RoleState) -> State {
    match (config.role, &config.peer, role.in_sync) {
        (Role::Primary, None, _) => State::Unmirrored,
        (Role::Primary, Some(_), true) => State::Paused,
        (Role::Primary, Some(_), false) => State::OutOfSync,
        (Role::Secondary, _, true) => State::SecondaryDisconnected,
        (Role::Secondary, _, false) => State::SecondaryOutOfSync,
    }
}

fn core_config(config: &DatastoreConfig) -> CoreConfig {
    CoreConfig {
        pause_limit_ms: u64::try_from(config.pause_limit.as_millis()).unwrap_or(u64::MAX),
        on_peer_loss: match config.on_peer_loss {
            config::OnPeerLoss::Continue => OnPeerLoss::Continue,
            config::OnPeerLoss::Freeze => OnPeerLoss::Freeze,
        },
        writes_max: limits::WRITES_IN_FLIGHT_MAX - SLOTS_SPARE,
    }
}

/// Opens the store's directory for this process alone, making it when missing.
fn open_backing(directory: &Path) -> Result<Arc<dyn Backing>, DatastoreError> {
    let path = || directory.display().to_string();
    let io = |source| DatastoreError::Io {
        path: path(),
        source,
    };
    std::fs::create_dir_all(directory).map_err(io)?;
    let backing = OsBacking::open(directory).map_err(io)?;
    match backing.lock() {
        Ok(()) => Ok(Arc::new(backing)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(DatastoreError::InUse { path: path() })
        }
        Err(error) => Err(io(error)),
    }
}

/// A value that the kernel makes anew at each start of the machine. Where it cannot be read, one
/// that never was before: then every start counts as one after a power loss.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let parsed: Result<DatastoreUuid, _> = text.trim().parse();
    *parsed
        .unwrap_or_else(|_| DatastoreUuid::random())
        .as_bytes()
}
