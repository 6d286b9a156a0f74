//! Opening a datastore: what is checked, what is recovered, and in which state it starts.
//!
//! Invariant: nothing in the store's directory is changed before all of the store was found good.
//! The first thing written then is `role.json`: a copy that lost something with the machine counts
//! as out of sync, durably, before anything acts on it (rule P12).

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use lockstep_fs::boot::boot_id;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::poison::{Failure, Guarded, Marks, Poison, Stamp};
use lockstep_fs::reserve::{Reserve, Reserved};
use lockstep_fs::store::{Access, Checked, OpenOptions, Opened};
use lockstep_fs::{Store, StoreError};
use lockstep_intentlog::LogOptions;
use lockstep_repl::core::{Core, CoreConfig, Start};
use lockstep_repl::state::{Service, State};
use lockstep_resync::Progress;
use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::{Choice, Role};
use lockstep_types::{BootId, Osn, StoreId, limits};
use parking_lot::{Mutex, RwLock};
use thiserror::Error;

use super::berths::Berths;
use super::calls::Calls;
use super::copy::Lost;
use super::host::{Host, Machine, Turnstile};
use super::kept::Keeper;
use super::owed::Owed;
use super::references::References;
use super::role::{RoleFile, RoleState};
use super::stamp::RuntimeStamp;
use super::status::Facts;
use super::tables::{TableError, Tables};
use super::{Datastore, kept, lockset};
use crate::config::DatastoreConfig;

/// Slots for writes that the core counts as over and whose entries are just being removed.
const SLOTS_SPARE: usize = 128;

/// Why a datastore could not be opened.
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
    /// A table of writes in flight was refused.
    #[error("store {path}: {source}")]
    Table {
        /// Directory of the store.
        path: String,
        /// Why.
        source: TableError,
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
    /// There is no store where the configuration says.
    #[error(
        "there is no store in {path}{what}\n  cure: {}if the datastore is new{}, make its store with \
         `lockstep create-store {name}`", mount_first(*.is_unfinished), or_replaced(*.role)
    )]
    NoStore {
        /// Where it was expected.
        path: String,
        /// Name of the datastore.
        name: String,
        /// What this node is for it.
        role: Role,
        /// What was found instead, in words that go on from the path.
        what: &'static str,
        /// That is what an interrupted creation has left.
        is_unfinished: bool,
    },
    /// The store bears the mark of a disk that failed, and cannot even be read.
    #[error("store {path}: its disk failed {failure}; and now it cannot be read either: {source}")]
    Poisoned {
        /// Its directory.
        path: String,
        /// What the mark says.
        failure: Failure,
        /// Why it cannot be read.
        source: Box<Self>,
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

/// What to do first about a store that is not there.
const fn mount_first(is_unfinished: bool) -> &'static str {
    if is_unfinished {
        ""
    } else {
        "most likely the disk that holds it is not mounted: mount it; or correct `store`; "
    }
}

/// When else a new store may be made: a secondary's is filled from the primary.
const fn or_replaced(role: Role) -> &'static str {
    match role {
        Role::Primary => "",
        Role::Secondary => ", or the disk of this secondary was replaced",
    }
}

/// A datastore that can be opened: its store was looked at and found good.
/// Nothing in the store's directory was changed; it is kept from other processes.
pub struct Prepared {
    config: DatastoreConfig,
    place: Place,
    found: Found,
}

/// Where a datastore is opened.
pub struct Place {
    /// The directory of its store, kept from other processes.
    pub backing: Arc<dyn Backing>,
    /// The run of the machine: another value after each loss of power.
    pub boot: BootId,
    /// The process.
    pub host: Arc<dyn Host>,
    /// Where a failure of the disk is noted besides, if there is such a place.
    pub stamp: Option<Arc<dyn Stamp>>,
}

impl Place {
    /// On this machine, in the directory that the configuration names, which must exist.
    pub fn on_this_machine(config: &DatastoreConfig) -> Result<Self, DatastoreError> {
        if !config.store.exists() {
            let what = ": the directory does not exist";
            return Err(no_store(config, what, false));
        }
        let backing = open_existing(&config.store)?;
        let host = Machine::start(&config.name).map_err(failed(config))?;
        Ok(Self {
            backing,
            boot: boot_id(),
            host: Arc::new(host),
            stamp: Some(Arc::new(RuntimeStamp::of(&config.store))),
        })
    }

    /// The store's disk with its reserve, guarded, and what its marks say.
    fn guard(&self) -> (Disk, Arc<Poison>) {
        let withheld = self.host.room_limits().withheld;
        let (reserved, reserve) = Reserved::over(Arc::clone(&self.backing), withheld);
        let reserved: Arc<dyn Backing> = Arc::new(reserved);
        let marks = Marks::new(Arc::clone(&reserved), self.stamp.clone());
        let found = marks.read();
        let host = Arc::clone(&self.host);
        let clock = Box::new(move || host.time_of_day());
        let poison = Arc::new(Poison::new(marks, self.boot, clock, found));
        let backing = Arc::new(Guarded::new(reserved, Arc::clone(&poison)));
        (Disk { backing, reserve }, poison)
    }
}

/// The disk of a store.
struct Disk {
    backing: Arc<dyn Backing>,
    /// Space of it that is kept back.
    reserve: Arc<Reserve>,
}

/// What was found in the directory of a store.
enum Found {
    /// A store, and what is to be known of it.
    Store(Box<FoundStore>),
    /// A store whose disk has failed: open to be looked at, and nothing else (P16).
    Poisoned(Box<Opened>, RoleState, Arc<Poison>, Arc<Reserve>),
}

/// A store that can be used.
struct FoundStore {
    checked: Checked,
    disk: Disk,
    poison: Arc<Poison>,
    /// What the role file says.
    role: RoleState,
    /// Whether it still counts as in sync.
    in_sync: bool,
}

/// Looks at all that the datastore of `config` has on the disk. What is refused is refused here,
/// and stays as it was found.
pub fn prepare(config: DatastoreConfig, place: Place) -> Result<Prepared, DatastoreError> {
    check_there_is_one(&config, &place.backing)?;
    let found = find(&config, &place)?;
    Ok(Prepared {
        config,
        place,
        found,
    })
}

/// An error if the directory holds no store, which says what it holds.
fn check_there_is_one(
    config: &DatastoreConfig,
    backing: &Arc<dyn Backing>,
) -> Result<(), DatastoreError> {
    if Store::exists(backing.as_ref()).map_err(refused(config))? {
        return Ok(());
    }
    Store::check_vacant(backing).map_err(refused(config))?;
    let names = backing.list(".").map_err(failed(config))?;
    Err(if names.is_empty() {
        no_store(config, ": the directory is empty", false)
    } else {
        let what = ": the creation of one was interrupted";
        no_store(config, what, true)
    })
}

fn no_store(config: &DatastoreConfig, what: &'static str, is_unfinished: bool) -> DatastoreError {
    DatastoreError::NoStore {
        path: config.store.display().to_string(),
        name: config.name.clone(),
        role: config.role,
        what,
        is_unfinished,
    }
}

fn find(config: &DatastoreConfig, place: &Place) -> Result<Found, DatastoreError> {
    let (disk, poison) = place.guard();
    if let Some(failure) = poison.failure() {
        let path = config.store.display().to_string();
        tracing::error!(datastore = config.name, %failure, "poisoned: the store is only read");
        let looked = look_only(config, &disk, place.boot, &poison);
        return looked.map_err(|source| DatastoreError::Poisoned {
            path,
            failure,
            source: Box::new(source),
        });
    }
    let found = look(config, disk, poison, place.boot)?;
    Ok(Found::Store(Box::new(found)))
}

fn look(
    config: &DatastoreConfig,
    disk: Disk,
    poison: Arc<Poison>,
    boot: BootId,
) -> Result<FoundStore, DatastoreError> {
    let (options, backing) = (open_options(config, boot), &disk.backing);
    let checked = Store::check(Arc::clone(backing), &options).map_err(refused(config))?;
    let role = read_role(config, backing.as_ref())?;
    let in_sync = counts_as_in_sync(config, backing.as_ref(), role, boot)?;
    Ok(FoundStore {
        checked,
        disk,
        poison,
        role,
        in_sync,
    })
}

/// Opens a store whose disk has failed in memory: nothing in its directory changes.
fn look_only(
    config: &DatastoreConfig,
    disk: &Disk,
    boot: BootId,
    poison: &Arc<Poison>,
) -> Result<Found, DatastoreError> {
    let Disk { backing, reserve } = disk;
    let options = OpenOptions {
        access: Access::Read,
        ..open_options(config, boot)
    };
    let opened = Store::open(Arc::clone(backing), &options).map_err(refused(config))?;
    let role = read_role(config, backing.as_ref())?;
    let (poison, reserve) = (Arc::clone(poison), Arc::clone(reserve));
    Ok(Found::Poisoned(Box::new(opened), role, poison, reserve))
}

/// What the role file says, if it fits the configuration.
pub(super) fn read_role(
    config: &DatastoreConfig,
    backing: &dyn Backing,
) -> Result<RoleState, DatastoreError> {
    let role = RoleFile::read(backing, config.role).map_err(failed(config))?;
    if role.role != config.role {
        return Err(DatastoreError::RoleChanged {
            path: config.store.display().to_string(),
            found: role.role.word(),
            configured: config.role.word(),
        });
    }
    Ok(role)
}

/// Whether a copy that was in sync still is (rule P12).
fn counts_as_in_sync(
    config: &DatastoreConfig,
    backing: &dyn Backing,
    role: RoleState,
    boot: BootId,
) -> Result<bool, DatastoreError> {
    // Without a peer: what happens from now on no peer will have.
    if !role.in_sync || config.peer.is_none() {
        return Ok(false);
    }
    match Lost::of(role, backing, boot).map_err(table_refused(config))? {
        None => Ok(true),
        Some(lost) => {
            tracing::warn!(datastore = config.name, "{lost}: it will be resynced");
            Ok(false)
        }
    }
}

/// A primary's store gets its name when it is first taken into use (rule P17).
fn named(role: RoleState, config: &DatastoreConfig, host: &dyn Host) -> RoleState {
    let store = match config.role {
        Role::Primary => role
            .store
            .or_else(|| Some(StoreId::from_bytes(host.draw()))),
        Role::Secondary => role.store,
    };
    RoleState { store, ..role }
}

impl Prepared {
    /// Opens the datastore.
    pub fn open(self) -> Result<Arc<Datastore>, DatastoreError> {
        let Self {
            config,
            place,
            found,
        } = self;
        let found = match found {
            Found::Poisoned(opened, role, poison, reserve) => {
                let poisoned = (poison, reserve);
                return open_poisoned(config, *opened, role, poisoned, place.host);
            }
            Found::Store(found) => found,
        };
        let FoundStore {
            checked,
            disk,
            poison,
            role,
            in_sync,
        } = *found;
        let Disk { backing, reserve } = disk;
        let role = named(role, &config, &*place.host);
        let role = RoleFile::open(Arc::clone(&backing), role, place.boot, in_sync);
        let role = role.map_err(failed(&config))?;
        let opened = checked.open().map_err(refused(&config))?;
        kept::remove_left(backing.as_ref()).map_err(failed(&config))?;
        let tables = if in_sync {
            Tables::open(backing.as_ref())
        } else {
            Tables::make(backing.as_ref())
        };
        let tables = tables.map_err(table_refused(&config))?;
        // What the process before used of it. A disk without room is no reason not to start.
        if let Err(error) = reserve.fill() {
            tracing::warn!(datastore = config.name, %error, "the reserve is not filled");
        }
        let state = first_state(&config, role.state());
        if state.service() == Service::Alone {
            settle_alone(&opened.store).map_err(refused(&config))?;
        }
        let start = Parts {
            store: opened.store,
            role,
            tables,
            poison,
            reserve,
            state,
        };
        Ok(Arc::new(build(config, start, place.host)))
    }
}

/// A datastore whose disk has failed: what it has can be read.
fn open_poisoned(
    config: DatastoreConfig,
    opened: Opened,
    role: RoleState,
    (poison, reserve): (Arc<Poison>, Arc<Reserve>),
    host: Arc<dyn Host>,
) -> Result<Arc<Datastore>, DatastoreError> {
    // Of the store that was opened to be looked at: in memory.
    let backing = Arc::clone(opened.store.backing());
    let parts = Parts {
        store: opened.store,
        tables: Tables::make(backing.as_ref()).map_err(table_refused(&config))?,
        role: RoleFile::looked_at(backing, role),
        poison,
        reserve,
        state: match config.role {
            Role::Primary => State::Poisoned,
            Role::Secondary => State::SecondaryPoisoned,
        },
    };
    Ok(Arc::new(build(config, parts, host)))
}

/// Makes the store of a datastore, which is not in sync with anything, unless there is one; whether it
/// was made. What an interrupted creation has left is begun anew. A node never does this by itself: a store
/// that is missing is most often one whose disk is not mounted.
///
/// Nothing in a new store can be lost yet, so a failure leaves no mark; one that an earlier store in this
/// place has left counts no more.
pub fn make_store(
    config: &DatastoreConfig,
    backing: &Arc<dyn Backing>,
    stamp: Option<Arc<dyn Stamp>>,
) -> Result<bool, DatastoreError> {
    if Store::exists(backing.as_ref()).map_err(refused(config))? {
        return Ok(false);
    }
    let log = LogOptions::default();
    Store::create(backing, config.uuid, &log).map_err(refused(config))?;
    let marks = Marks::new(Arc::clone(backing), stamp);
    marks.remove_stamp().map_err(failed(config))?;
    Ok(true)
}

/// [`make_store`] on this machine, with the directory and those above it where they are missing.
pub fn make_store_on_this_machine(config: &DatastoreConfig) -> Result<bool, DatastoreError> {
    let backing = open_backing(&config.store)?;
    make_store(
        config,
        &backing,
        Some(Arc::new(RuntimeStamp::of(&config.store))),
    )
}

pub(super) fn open_options(config: &DatastoreConfig, boot: BootId) -> OpenOptions {
    OpenOptions {
        datastore: Some(config.uuid),
        boot,
        access: Access::Write,
        log: LogOptions::default(),
    }
}

pub(super) fn refused(config: &DatastoreConfig) -> impl FnOnce(StoreError) -> DatastoreError {
    let path = config.store.display().to_string();
    |source| DatastoreError::Store { path, source }
}

fn table_refused(config: &DatastoreConfig) -> impl FnOnce(TableError) -> DatastoreError {
    let path = config.store.display().to_string();
    |source| DatastoreError::Table { path, source }
}

pub(super) fn failed(config: &DatastoreConfig) -> impl FnOnce(std::io::Error) -> DatastoreError {
    let path = config.store.display().to_string();
    |source| DatastoreError::Io { path, source }
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

/// What a datastore is made of.
struct Parts {
    store: Store,
    role: RoleFile,
    tables: Tables,
    poison: Arc<Poison>,
    reserve: Arc<Reserve>,
    /// Where it starts.
    state: State,
}

fn build(config: DatastoreConfig, parts: Parts, host: Arc<dyn Host>) -> Datastore {
    let Parts {
        store,
        role,
        tables,
        poison,
        reserve,
        state,
    } = parts;
    // Above those of writes too, which the store does not note (rule P13).
    let used = tables.old_paw.iter().map(|entry| entry.osn.sequence).max();
    let first_osn = Osn {
        generation: role.state().generation,
        sequence: store.first_sequence().max(used.map_or(0, |used| used + 1)),
    };
    let start = Start {
        state,
        under_way: if state == State::Paused {
            lockset::under_way(&tables.old_paw)
        } else {
            Vec::new()
        },
        first_osn,
        in_doubt: if is_active(Mutant::ForgetInDoubt) {
            Vec::new()
        } else {
            store.in_doubt()
        },
    };
    let now_ms = u64::try_from(host.now().as_millis()).unwrap_or(u64::MAX);
    let berths = Berths::of(config.fuse_threads);
    let backing = Arc::clone(store.backing());
    let keeper = Keeper::new(backing, Arc::clone(&host), host.kept_limits());
    Datastore {
        core: Mutex::new(Core::new(core_config(&config, &*host), start, now_ms)),
        config,
        store,
        works: Mutex::new(HashMap::new()),
        next_op: AtomicU64::new(1),
        sequencer: Mutex::new(()),
        committed: Mutex::default(),
        stuck: Mutex::default(),
        link: RwLock::new(None),
        paw: tables.paw,
        failed: Mutex::default(),
        saw: tables.saw,
        first_osn,
        references: References::default(),
        berths,
        calls: Calls::default(),
        tail: Mutex::default(),
        owed: Owed::default(),
        role,
        poison,
        facts: Mutex::new(Facts::new(host.now())),
        reserve,
        rooms: Arc::default(),
        host,
        resync: Progress::default(),
        state_version: AtomicU64::new(0),
        serving: Turnstile::default(),
        stopping: AtomicBool::new(false),
        keeper: Arc::new(keeper),
        keeping_up: AtomicBool::new(false),
        ticked_ms: AtomicU64::new(now_ms),
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

fn core_config(config: &DatastoreConfig, host: &dyn Host) -> CoreConfig {
    CoreConfig {
        pause_limit_ms: u64::try_from(config.pause_limit.as_millis()).unwrap_or(u64::MAX),
        answer_limit: config.answer_limit_beats(),
        on_peer_loss: config.on_peer_loss,
        writes_max: limits::WRITES_IN_FLIGHT_MAX - SLOTS_SPARE,
        bytes_max: host.bytes_in_flight_max(),
    }
}

/// Opens the store's directory for this process alone, making it when missing.
fn open_backing(directory: &Path) -> Result<Arc<dyn Backing>, DatastoreError> {
    let path = || directory.display().to_string();
    let io = |source| DatastoreError::Io {
        path: path(),
        source,
    };
    let mut private = std::fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(directory).map_err(io)?;
    open_existing(directory)
}

/// The same for one that exists.
pub(super) fn open_existing(directory: &Path) -> Result<Arc<dyn Backing>, DatastoreError> {
    let path = || directory.display().to_string();
    let io = |source| DatastoreError::Io {
        path: path(),
        source,
    };
    let backing = OsBacking::open(directory).map_err(io)?;
    match backing.lock() {
        Ok(()) => Ok(Arc::new(backing)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(DatastoreError::InUse { path: path() })
        }
        Err(error) => Err(io(error)),
    }
}

#[cfg(test)]
pub(super) mod tests;
