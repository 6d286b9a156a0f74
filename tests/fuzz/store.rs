//! Stores and datastores in this process: made, copied, opened, compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_driver::report::VerifyMode;
use lockstep_driver::{
    Alarm, Datastore, DatastoreError, Dial, Gate, GateAlarm, Host, Job, OsHost, Place, Prepared,
    prepare,
};
use lockstep_fs::Store;
use lockstep_fs::export::ExportError;
use lockstep_fs::os_backing::OsBacking;
use lockstep_intentlog::LogOptions;
use lockstep_link::Fingerprint;
use lockstep_repl::state::State;
use lockstep_roles::conflict::RoleConflict;
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, Timestamp};
use lockstepfs::config::{DatastoreConfig, Encryption, OnPowerLoss, PeerConfig, Policies, Role};

use tempfile::TempDir;

pub const UUID: DatastoreUuid = DatastoreUuid::from_bytes([
    0x6f, 0x0e, 0x2f, 0x5e, 0x58, 0xb6, 0x4c, 0x3b, 0x8a, 0x55, 0x6c, 0x4a, 0x36, 0xc3, 0xa0, 0x01,
]);

/// Longest wait for an expected event.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Small, so that a store is made and copied quickly, and its log is cut now and then.
const SEGMENT_BYTES: u64 = 256 << 10;

/// Makes an empty store with a small log in `dir`.
pub fn make(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(dir).unwrap());
    let log = LogOptions {
        segment_bytes: SEGMENT_BYTES,
        ..LogOptions::default()
    };
    Store::create(&backing, UUID, &log).unwrap();
}

/// The configuration of a datastore whose store lies in `dir`.
pub fn config(
    dir: &Path,
    role: Role,
    peer: Fingerprint,
    encryption: Encryption,
) -> DatastoreConfig {
    let places = [dir, Path::new("/nonexistent/mount")].map(Path::to_owned);
    DatastoreConfig {
        policies: Policies {
            on_power_loss: OnPowerLoss::Serve,
            ..Policies::default()
        },
        pause_limit: Duration::from_millis(50),
        fuse_threads: 1,
        peer: Some(PeerConfig {
            address: "127.0.0.1:1".parse().unwrap(),
            fingerprint: peer,
            encryption,
            ino_ranges: lockstep_fs::InoRanges::default(),
            witness: None,
        }),
        ..DatastoreConfig::new("data", UUID, places, role)
    }
}

/// Opens the datastore of a configuration.
pub fn open(config: &DatastoreConfig) -> Result<Arc<Datastore>, DatastoreError> {
    open_in(|| Place::on_this_machine(config), config)
}

/// Opens the datastore in a process whose clock runs [`SPEEDUP`] times as fast.
pub fn open_with_fast_clock(config: &DatastoreConfig) -> Result<Arc<Datastore>, DatastoreError> {
    let place = || {
        let place = Place::on_this_machine(config)?;
        place.host.stop();
        let host = Arc::new(FastHost(OsHost::start(&config.name).unwrap()));
        Ok(Place { host, ..place })
    };
    open_in(place, config)
}

/// How much faster the time passes, so that waits between two attempts are short.
const SPEEDUP: u32 = 20;

fn open_in(
    place: impl Fn() -> Result<Place, DatastoreError>,
    config: &DatastoreConfig,
) -> Result<Arc<Datastore>, DatastoreError> {
    while_in_use(
        || prepare(config.clone(), place()?).and_then(Prepared::open),
        |error| matches!(error, DatastoreError::InUse { .. }),
    )
}

/// Tries again while a closed store is still in use. Between fork and exec, a process that another test starts holds
/// all files of this process, and their locks.
fn while_in_use<T, E>(
    attempt: impl Fn() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = Instant::now() + IN_USE_MAX;
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            came => return came,
        }
    }
}

/// Longer than any process stays between fork and exec.
const IN_USE_MAX: Duration = Duration::from_secs(30);

/// This machine, with a faster clock.
struct FastHost(OsHost);

impl Host for FastHost {
    fn now(&self) -> Duration {
        self.0.now() * SPEEDUP
    }

    fn time_of_day(&self) -> Timestamp {
        self.0.time_of_day()
    }

    fn random_id(&self) -> [u8; 16] {
        self.0.random_id()
    }

    fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(FastGate(self.0.gate()))
    }

    fn alarm(&self) -> Arc<dyn Alarm> {
        Arc::new(GateAlarm::default())
    }

    fn spawn(&self, job: Job) {
        self.0.spawn(job);
    }

    fn spawn_ordered(&self, job: Job) {
        self.0.spawn_ordered(job);
    }

    fn stop(&self) {
        self.0.stop();
    }
}

/// A gate of [`FastHost`]: a limit is over sooner.
struct FastGate(Arc<dyn Gate>);

impl Gate for FastGate {
    fn open(&self) {
        self.0.open();
    }

    fn wait_for(&self, limit: Option<Duration>) -> bool {
        self.0.wait_for(limit.map(|limit| limit / SPEEDUP))
    }
}

/// A datastore with the threads that a node gives it.
pub struct Running {
    pub datastore: Arc<Datastore>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Runs an opened datastore. The datastore of a primary dials.
    pub fn start(datastore: Arc<Datastore>, dialer: Option<Box<dyn Dial>>) -> Self {
        let maintained = Arc::clone(&datastore);
        let mut threads = vec![thread::spawn(move || maintained.run_maintenance())];
        if let Some(dialer) = dialer {
            let leading = Arc::clone(&datastore);
            threads.push(thread::spawn(move || leading.role().run_dialer(&*dialer)));
        }
        Self { datastore, threads }
    }

    /// Waits until the nodes are in sync. Returns false if this node is refused instead, as an older copy than the other one.
    pub fn await_sync(&self) -> bool {
        let deadline = Instant::now() + WAIT_LIMIT;
        while self.datastore.state() != State::Synced {
            let status = self.datastore.status();
            if status.sync.reason.as_deref() == Some(&RoleConflict::OlderCopy.to_string()) {
                return false;
            }
            assert!(Instant::now() < deadline, "waited in vain: {status:#?}");
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Checks that verify finds both nodes identical.
    pub fn assert_identical(&self) {
        let report = self
            .datastore
            .verify(VerifyMode::Memory, &mut |_| {})
            .unwrap();
        assert!(report.identical, "{report:#?}");
    }

    /// Shuts the datastore down cleanly.
    pub fn stop(self) {
        self.datastore.stop();
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.datastore.close();
    }
}

/// Copies a store without its zeros.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copied = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &copied);
        } else {
            copy_file(&path, &copied);
        }
    }
}

fn copy_file(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    let file = fs::File::create_new(to).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, piece) in bytes.chunks(4096).enumerate() {
        if piece.iter().any(|&byte| byte != 0) {
            file.write_all_at(piece, (number * 4096) as u64).unwrap();
        }
    }
}

/// Every file below `dir` with its bytes; `None` for a directory.
pub fn all(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let bytes = path.is_file().then(|| fs::read(&path).unwrap());
            if bytes.is_none() {
                todo.push(path.clone());
            }
            found.insert(path.strip_prefix(dir).unwrap().to_owned(), bytes);
        }
    }
    found
}

/// A directory in memory, where a sync costs nothing, if there is one: these tests lose no power.
pub fn quick_place() -> TempDir {
    let memory = Path::new("/dev/shm");
    let there = tempfile::Builder::new().prefix("lsz.").tempdir_in(memory);
    there.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Whether this process can export stores with the owners of their files, which only root can.
pub fn can_export() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// The content of a store, as the manifest of an export lists it, or the reason why the export fails.
pub fn manifest(store: &Path) -> Result<String, String> {
    let place = quick_place();
    let (tree, list) = (place.path().join("tree"), place.path().join("manifest"));
    let exported = while_in_use(
        || lockstep_fs::export::export(store, &tree, Some(&list), &mut |_| {}),
        |error| matches!(error, ExportError::InUse { .. }),
    );
    exported.map_err(|error| error.to_string())?;
    Ok(fs::read_to_string(list).unwrap())
}
