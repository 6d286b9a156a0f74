//! Opening a datastore: the checks, the recovery, and the state at the start.
//!
//! Invariant: nothing in the store's directory changes before the whole store is found good. The first change is in
//! `role.json`: a copy that lost data with the machine is marked out of sync, durably, before anything else acts on
//! the copy (rule P12).

pub(crate) mod adopt;
pub(crate) mod clear_poison;
pub(crate) mod import;

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use lockstep_fs::Store;
use lockstep_fs::boot::boot_id;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::poison::{FencedBacking, MarkerStore, Poison, PoisonMarkers};
use lockstep_fs::reserve::{Reserve, Reserved};
use lockstep_fs::store::{Access, Checked, MarkTableSizes, OpenOptions, Opened};
use lockstep_intentlog::LogOptions;
use lockstep_paw_saw::SyncCounter;
use lockstep_roles::{RoleRecord, ServicePart};
use lockstep_types::backing::{Backing, BackingTable};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::{Durability, OnPowerLoss};
use lockstep_types::{BootId, StoreId, SyncStanding};

use crate::config::{ConfigHandle, DatastoreConfig};
use crate::datastore::Datastore;
use crate::durable::copy_status::CopyLoss;
use crate::durable::poison_marker::RunDirMarker;
use crate::durable::role_file::{self, RoleFile, RoleState, SlotChoice};
use crate::durable::{DatastoreError, failed, machine_count, refused, table_refused, tables};
use crate::engine::contact::Contact;
use crate::engine::disk_watch::DiskWatch;
use crate::engine::failure_log::FailureLog;
use crate::engine::shared_machine::SharedMachine;
use crate::engine::status_notes::StatusNotes;
use crate::engine::wakes::Wakes;
use crate::engine::{Engine, EngineDisk};
use crate::host::{Host, OsHost};
use crate::ops::spill;
use crate::service_gate::ServiceGate;
use crate::session::build;

/// A datastore that can be opened: its store was checked and found good. Nothing in the store's directory was
/// changed. The directory is locked against other processes.
pub struct Prepared {
    config: DatastoreConfig,
    place: Place,
    found: Found,
}

/// The place in which a datastore is opened.
pub struct Place {
    /// The directory of the store, locked against other processes.
    pub backing: Arc<dyn Backing>,
    /// The run of the machine. A power loss changes the value.
    pub boot: BootId,
    /// The services of the process.
    pub host: Arc<dyn Host>,
    /// A second place for the mark of a failed disk, if there is one.
    pub stamp: Option<Arc<dyn MarkerStore>>,
    /// A second place for the count of the sync, in memory of the machine, if there is one.
    pub machine_count: Option<Arc<dyn BackingTable>>,
}

impl Place {
    /// The directory of the configuration on this machine. The directory must exist.
    pub fn on_this_machine(config: &DatastoreConfig) -> Result<Self, DatastoreError> {
        if !config.store.exists() {
            let what = ": the directory does not exist";
            return Err(no_store(config, what, false));
        }
        let backing = open_existing(&config.store)?;
        let host = OsHost::start(&config.name).map_err(failed(config))?;
        Ok(Self {
            backing,
            boot: boot_id(),
            host: Arc::new(host),
            stamp: Some(Arc::new(RunDirMarker::of(&config.store))),
            machine_count: machine_count::of(config, boot_id()),
        })
    }

    /// The store's disk with its reserve and its poison fence, and the marks of a failed disk.
    fn guard(&self) -> (Disk, Arc<Poison>) {
        let withheld = self.host.room_limits().withheld;
        let (reserved, reserve) = Reserved::over(Arc::clone(&self.backing), withheld);
        let reserved: Arc<dyn Backing> = Arc::new(reserved);
        let marks = PoisonMarkers::new(Arc::clone(&reserved), self.stamp.clone());
        let found = marks.read();
        let host = Arc::clone(&self.host);
        let clock = Box::new(move || host.time_of_day());
        let poison = Arc::new(Poison::new(marks, self.boot, clock, found));
        let backing = Arc::new(FencedBacking::new(reserved, Arc::clone(&poison)));
        (Disk { backing, reserve }, poison)
    }
}

/// The disk of a store.
struct Disk {
    backing: Arc<dyn Backing>,
    /// Space of the disk that clients do not get.
    reserve: Arc<Reserve>,
}

/// The content of a store's directory.
enum Found {
    /// A store that can be used.
    Store(Box<FoundStore>),
    /// A store whose disk has failed. It is open for reading only (rule P16).
    Poisoned(Box<(Opened, RoleState)>, Arc<Poison>, Arc<Reserve>),
}

/// A store that can be used.
struct FoundStore {
    checked: Checked,
    disk: Disk,
    poison: Arc<Poison>,
    /// The state in the role file.
    role: RoleState,
    /// The role record as this start finds it.
    record: RoleRecord,
    /// The loss of this copy.
    lost: Option<CopyLoss>,
}

/// Checks everything on the disk of the datastore of `config`. A store that is refused is refused here, and stays as
/// it was found.
pub fn prepare(config: DatastoreConfig, place: Place) -> Result<Prepared, DatastoreError> {
    check_there_is_one(&config, &place.backing)?;
    let found = find(&config, &place)?;
    Ok(Prepared {
        config,
        place,
        found,
    })
}

/// Returns an error if the directory holds no store. The error says what the directory holds.
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
    let found = look(config, disk, poison, place)?;
    Ok(Found::Store(Box::new(found)))
}

fn look(
    config: &DatastoreConfig,
    disk: Disk,
    poison: Arc<Poison>,
    place: &Place,
) -> Result<FoundStore, DatastoreError> {
    let boot = place.boot;
    let options = OpenOptions {
        marks: place.host.mark_tables(),
        ..open_options(config, boot)
    };
    let backing = &disk.backing;
    let checked = Store::check(Arc::clone(backing), &options).map_err(refused(config))?;
    let role = read_role(config, backing.as_ref(), SlotChoice::Last)?;
    let lost = found_loss(config, backing.as_ref(), role, place)?;
    let record = found_record(config, role, lost);
    let role = with_base(config, backing.as_ref(), role, boot);
    let role = match lost {
        Some(CopyLoss::Power) => role.after_power_loss(),
        _ => role,
    };
    Ok(FoundStore {
        checked,
        disk,
        poison,
        role,
        record,
        lost,
    })
}

/// Opens a store whose disk has failed, in memory: nothing in the directory changes.
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
    let role = read_role(config, backing.as_ref(), SlotChoice::BeforeFailure)?;
    let (poison, reserve) = (Arc::clone(poison), Arc::clone(reserve));
    Ok(Found::Poisoned(Box::new((opened, role)), poison, reserve))
}

/// The state in the role file; for a new store the begin with the configured role.
pub(crate) fn read_role(
    config: &DatastoreConfig,
    backing: &dyn Backing,
    choice: SlotChoice,
) -> Result<RoleState, DatastoreError> {
    RoleFile::read(backing, config.role, choice).map_err(failed(config))
}

/// The loss of a copy that counts as in sync, as this start finds it (rule P12).
fn found_loss(
    config: &DatastoreConfig,
    backing: &dyn Backing,
    role: RoleState,
    place: &Place,
) -> Result<Option<CopyLoss>, DatastoreError> {
    let boot = place.boot;
    // An earlier start may have found the loss, and ended before it made new tables.
    let counts = config.peer.is_some() && role.is_in_sync() && role.record.complete;
    // A copy that has lost power, and is complete, has no tables that name anything.
    if !counts || role.lineage.power.has_lost_power && !role.went_down(boot) {
        return Ok(None);
    }
    let lost = CopyLoss::of(role, backing, boot).map_err(table_refused(config))?;
    // Only an operator knows whether the newer store of a primary comes back: the nodes tell when they meet (rule P17).
    let is_older = !role.record.is_primary() && is_older_copy(place, &role, backing);
    let lost = lost.or_else(|| is_older.then_some(CopyLoss::Older));
    if let Some(lost) = lost {
        let datastore = &config.name;
        if keeps_complete(role, lost) {
            tracing::warn!(
                datastore,
                "{lost}: every acknowledged operation was durable"
            );
        } else {
            tracing::warn!(datastore, "{lost}: the copy is not complete");
        }
    }
    Ok(lost)
}

/// Whether this machine has answered operations that the store lacks.
fn is_older_copy(place: &Place, role: &RoleState, backing: &dyn Backing) -> bool {
    let machine = place.machine_count.as_deref();
    machine.is_some_and(|machine| machine_count::shows_older(machine, role, backing))
}

fn keeps_complete(role: RoleState, lost: CopyLoss) -> bool {
    matches!(lost, CopyLoss::Power) && role.keeps_complete()
}

/// The record of a copy as this start finds it (rules P12, R9).
fn found_record(config: &DatastoreConfig, role: RoleState, lost: Option<CopyLoss>) -> RoleRecord {
    let record = role.record;
    // Without a peer, no other copy gets the changes from now on.
    if config.peer.is_none() {
        return unmirrored(record);
    }
    let record = match lost {
        Some(lost) if keeps_complete(role, lost) => record,
        Some(_) if record.is_primary() && is_active(Mutant::LeadAfterPowerLoss) => {
            record.without_peer()
        }
        Some(_) => record.after_power_loss(),
        None => record,
    };
    // With a witness, this node asks first: the secondary may have taken over.
    if record.is_primary()
        && !record.complete
        && config.failover_after.is_none()
        && config.policies.on_power_loss == OnPowerLoss::Serve
    {
        return record.without_peer();
    }
    record
}

/// The state of a copy out of sync, whose base counts only while the tables of its writes and its memory are whole (rule P12).
fn with_base(
    config: &DatastoreConfig,
    backing: &dyn Backing,
    role: RoleState,
    boot: BootId,
) -> RoleState {
    let is_whole = || matches!(CopyLoss::of(role, backing, boot), Ok(None));
    let counts = role.left_base().is_none()
        || config.peer.is_some() && is_whole()
        || is_active(Mutant::RejoinFromAnyCopy);
    if counts { role } else { role.without_base() }
}

const fn unmirrored(record: RoleRecord) -> RoleRecord {
    if record.is_primary() {
        record.without_peer()
    } else {
        RoleRecord {
            complete: false,
            ..record
        }
    }
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
            Found::Poisoned(opened, poison, reserve) => {
                let (opened, role) = *opened;
                let poisoned = (poison, reserve);
                return open_poisoned(config, opened, role, poisoned, place.host);
            }
            Found::Store(found) => found,
        };
        let FoundStore {
            checked,
            disk,
            poison,
            role,
            record,
            lost,
        } = *found;
        let Disk { backing, reserve } = disk;
        let is_older = is_older_copy(&place, &role, backing.as_ref());
        let draw = || place.host.random_id();
        let role = role.named(|| StoreId::from_bytes(draw()));
        let role = role.verified(place.boot, record, draw);
        let is_always = config.policies.durability == Durability::Always;
        let role = role.started(place.boot, is_always);
        // A count that cannot be opened refuses the store, which is not changed before.
        let has_tables = RoleState { record, ..role }.has_tables();
        // The count of a primary that was alone tells an older copy of its secondary, too: the delta outlives the process.
        let has_led = record.is_primary() && !role.went_down(place.boot);
        let count = tables::open_count(backing.as_ref(), has_tables || has_led);
        let count = count.map_err(table_refused(&config))?;
        let role_file = RoleFile::open(Arc::clone(&backing), role, place.boot, record);
        let role_file = role_file.map_err(failed(&config))?;
        // An older copy is marked by now.
        let count = match place.machine_count {
            Some(beside) => kept_beside(count, beside, &role),
            None => count,
        };
        let opened = checked.open().map_err(refused(&config))?;
        if is_older {
            // The marks lack the later changes. A secondary that has lost its power cannot tell that (rule P29).
            opened.store.delta().end();
        }
        spill::remove_left(backing.as_ref()).map_err(failed(&config))?;
        // The previous process may have used some of the reserve. A disk without room is no reason not to start.
        if let Err(error) = reserve.fill() {
            tracing::warn!(datastore = config.name, %error, "the reserve is not filled");
        }
        let parts = Parts {
            store: opened.store,
            role_file,
            count,
            poison,
            reserve,
        };
        begin(engine(config, parts, place.host), record, lost)
    }
}

/// Begins the first session of a datastore.
fn begin(
    engine: Arc<Engine>,
    record: RoleRecord,
    lost: Option<CopyLoss>,
) -> Result<Arc<Datastore>, DatastoreError> {
    if let Some(lost @ CopyLoss::Older) = lost {
        engine.notes.set_reason(&lost.to_string());
    }
    let part = engine.config.current().first_part(record);
    let session = build::session(&engine, part)?;
    Ok(Arc::new(Datastore::new(engine, session, part)))
}

/// The count of a store, which the machine keeps beside the store from now on (rule P17).
fn kept_beside(count: SyncCounter, beside: Arc<dyn BackingTable>, role: &RoleState) -> SyncCounter {
    machine_count::note_store(beside.as_ref(), role.lineage.store);
    let count = count.kept_beside(beside);
    let own = SyncStanding::of(role.lineage.sync, count.count());
    // The other node may have taken the name that the last process has proposed.
    if let Some(proposed) = own.names.proposed {
        count.note_proposed(proposed);
    }
    count
}

/// Opens a datastore whose disk has failed. Its data can be read.
fn open_poisoned(
    config: DatastoreConfig,
    opened: Opened,
    role: RoleState,
    (poison, reserve): (Arc<Poison>, Arc<Reserve>),
    host: Arc<dyn Host>,
) -> Result<Arc<Datastore>, DatastoreError> {
    // The disk of the store that was opened in memory.
    let backing = Arc::clone(opened.store.backing());
    let count = tables::open_count(backing.as_ref(), role.has_tables());
    let parts = Parts {
        store: opened.store,
        count: count.map_err(table_refused(&config))?,
        role_file: RoleFile::looked_at(backing, role),
        poison,
        reserve,
    };
    let engine = engine(config, parts, host);
    let session = build::poisoned(&engine)?;
    let failure = engine.poison.failure();
    // The file may show a role that this node never took: the other node may serve.
    let part = if failure.is_some_and(|failure| failure.names(role_file::FILE)) {
        ServicePart::Wait
    } else {
        engine.config.current().first_part(role.record)
    };
    Ok(Arc::new(Datastore::new(engine, session, part)))
}

/// Makes the store of a datastore, not in sync with any other, unless there is a store; returns whether one was made.
/// An interrupted creation is begun again. A node never makes a store by itself: the usual reason for a missing store
/// is a disk that is not mounted.
///
/// A new store holds nothing that could be lost. So a failure leaves no mark, and the poison marker of an earlier
/// store in this place is removed.
pub fn make_store(
    config: &DatastoreConfig,
    backing: &Arc<dyn Backing>,
    stamp: Option<Arc<dyn MarkerStore>>,
) -> Result<bool, DatastoreError> {
    if Store::exists(backing.as_ref()).map_err(refused(config))? {
        return Ok(false);
    }
    let log = LogOptions::default();
    Store::create(backing, config.uuid, &log).map_err(refused(config))?;
    let marks = PoisonMarkers::new(Arc::clone(backing), stamp);
    marks.remove_copy().map_err(failed(config))?;
    Ok(true)
}

/// [`make_store`] on this machine. Missing directories are made.
pub fn make_store_on_this_machine(config: &DatastoreConfig) -> Result<bool, DatastoreError> {
    let backing = open_backing(&config.store)?;
    make_store(
        config,
        &backing,
        Some(Arc::new(RunDirMarker::of(&config.store))),
    )
}

pub(crate) fn open_options(config: &DatastoreConfig, boot: BootId) -> OpenOptions {
    OpenOptions {
        datastore: Some(config.uuid),
        boot,
        access: Access::Write,
        log: LogOptions::default(),
        marks: MarkTableSizes::default(),
    }
}

/// An engine over the open store of a datastore.
fn engine(config: DatastoreConfig, parts: Parts, host: Arc<dyn Host>) -> Arc<Engine> {
    let Parts {
        store,
        mut role_file,
        count,
        poison,
        reserve,
    } = parts;
    let config = Arc::new(ConfigHandle::new(config));
    let role_identity = crate::jobs::store_place::identity_of(store.backing().as_ref());
    let wakes = Wakes::default();
    role_file.raise_on_change(Arc::clone(&wakes.changes));
    wakes.observe(&poison);
    Arc::new(Engine {
        notes: StatusNotes::new(
            config.name().to_owned(),
            host.now(),
            Contact::of(store.backing()),
        ),
        role: SharedMachine::new(
            config.current().has_witness(),
            host.now(),
            Arc::clone(&wakes.changes),
        ),
        gate: Arc::new(ServiceGate::new(&host, Arc::clone(&wakes.changes))),
        store,
        host,
        role_file,
        poison,
        disk: EngineDisk {
            reserve,
            watch: DiskWatch::new(&config),
            failures: FailureLog::default(),
            role_file: role_identity,
            is_moved: AtomicBool::new(false),
            count,
        },
        references: Arc::default(),
        config,
        state_version: AtomicU64::new(0),
        wakes,
    })
}

/// The parts of an engine that come from the store.
struct Parts {
    store: Store,
    role_file: RoleFile,
    count: SyncCounter,
    poison: Arc<Poison>,
    reserve: Arc<Reserve>,
}

/// Opens the store's directory for this process alone. A missing directory is made.
fn open_backing(directory: &Path) -> Result<Arc<dyn Backing>, DatastoreError> {
    Ok(open_directory(directory)?)
}

/// [`open_backing`], as the directory that it is.
fn open_directory(directory: &Path) -> Result<Arc<OsBacking>, DatastoreError> {
    let mut private = std::fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(directory).map_err(unusable(directory))?;
    open_locked(directory)
}

/// Opens an existing store's directory for this process alone.
pub(crate) fn open_existing(directory: &Path) -> Result<Arc<dyn Backing>, DatastoreError> {
    Ok(open_locked(directory)?)
}

fn open_locked(directory: &Path) -> Result<Arc<OsBacking>, DatastoreError> {
    let backing = OsBacking::open(directory).map_err(unusable(directory))?;
    match backing.lock() {
        Ok(()) => Ok(Arc::new(backing)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            let path = directory.display().to_string();
            Err(DatastoreError::InUse { path })
        }
        Err(error) => Err(unusable(directory)(error)),
    }
}

fn unusable(directory: &Path) -> impl FnOnce(std::io::Error) -> DatastoreError {
    let path = directory.display().to_string();
    |source| DatastoreError::Io { path, source }
}

#[cfg(test)]
pub(crate) mod tests;
