//! Slow parts of the system hold up only clients that change something, and no other client (rule P19).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::iter;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_testbed::server::{self, Hang, Server};
use lockstep_testbed::{DATASTORE, NodeEnvironment, PATIENT, Pair, Settings, Which, await_that};
use rustix::fs::{XattrFlags, setxattr};

/// A peer may be silent for the whole test.
pub const SILENT: Settings = Settings {
    peer_timeout_ms: 60_000,
    answer_limit_ms: 600_000,
    ..PATIENT
};
/// How long a peer may be silent in [`CHATTY`], in milliseconds.
const SILENCE_MAX_MS: u64 = 2000;
const LONGER_THAN_SILENCE_MAX: Duration = Duration::from_millis(SILENCE_MAX_MS / 4 * 5);
/// A peer must answer pings, and may take any time for its other answers.
const CHATTY: Settings = Settings {
    peer_timeout_ms: SILENCE_MAX_MS,
    ..SILENT
};
/// A file that only checkpoints write and sync.
const NAMESPACE_FILE: &str = "namespace.redb";
/// More files than a node writes without a checkpoint (`times::SLOTS`).
const WRITTEN_FILES: u64 = (16 << 10) + 64;
const FILE_WRITERS: u64 = 8;
/// More attribute values, each in a record of its own, than the intent log holds before a checkpoint: 96 MiB.
const VALUES: u64 = 2000;
const VALUE_BYTES: usize = 64 << 10;
/// Clients without progress for so long are waiting.
const STALL: Duration = Duration::from_millis(500);
/// The largest write.
pub const WRITE_BYTES: usize = 1 << 20;
/// More than one connection, its queue, all threads of a mount and the test network hold.
const WRITERS: usize = 64;
/// More than a mount has threads.
const SYNCERS: usize = 12;
/// Number of lookups of new names.
const LOOKS: usize = 100;
/// A file that no test changes.
const OTHER: &str = "other";

pub fn start(settings: Settings, environments: [NodeEnvironment; 2]) -> Pair {
    let mut pair = Pair::prepare(settings, environments);
    pair.start();
    fs::write(pair.mount().join(OTHER), [7; 4096]).unwrap();
    pair
}

/// Looks up missing names, reads, and lists: nothing here is being changed.
fn read_everything(mount: &Path) {
    for number in 0..LOOKS {
        let absent = fs::metadata(mount.join(format!("absent {number}")));
        assert_eq!(absent.unwrap_err().kind(), ErrorKind::NotFound);
        let mut content = [0; 4096];
        let mut other = File::open(mount.join(OTHER)).unwrap();
        other.read_exact(&mut content).unwrap();
        assert_eq!(content, [7; 4096]);
        assert!(fs::read_dir(mount).unwrap().count() > 0);
    }
}

/// Checks that lookups, reads and listings are answered, and that the connection is still up.
pub fn assert_reads_continue(pair: &Pair) {
    let mount = pair.mount();
    let looker = thread::spawn(move || read_everything(&mount));
    await_that("lookups, reads and listings", || looker.is_finished());
    looker.join().unwrap();
    let state = pair.primary.status().unwrap().sync.state;
    assert_eq!(state, "synced and connected");
}

pub fn open(pair: &Pair, name: &str, flags: i32) -> File {
    let mut options = OpenOptions::new();
    let options = options.create(true).write(true).custom_flags(flags);
    options.open(pair.mount().join(name)).unwrap()
}

pub type Changes = Vec<JoinHandle<io::Result<()>>>;

/// Returns a function that starts `writers` writes at once, each to a file of its own.
fn write_each(pair: &Pair, writers: usize, bytes: usize) -> impl FnOnce() -> Changes {
    let open = |number| open(pair, &format!("written {number}"), 0);
    let files: Vec<File> = (0..writers).map(open).collect();
    move || {
        let write = |file: File| thread::spawn(move || file.write_all_at(&vec![1; bytes], 0));
        files.into_iter().map(write).collect()
    }
}

/// Waits until all changes have ended. On a slow machine, one after the other ends.
pub fn all_end(changes: &Changes) {
    let is_finished = |change: &&JoinHandle<_>| change.is_finished();
    let ended = || changes.iter().filter(is_finished).count();
    loop {
        let before = ended();
        if before == changes.len() {
            return;
        }
        await_that("another change to end", || ended() > before);
    }
}

pub fn all_end_well(changes: Changes) {
    all_end(&changes);
    for change in changes {
        change.join().unwrap().unwrap();
    }
}

pub fn await_writes_in_flight(pair: &mut Pair) {
    pair.await_status("writes that wait for the secondary", |status| {
        status.work.writes_in_flight >= 8
    });
}

pub fn network_that_passes_nothing() {
    for encryption in ["on", "off"] {
        let settings = Settings {
            encryption,
            ..SILENT
        };
        let mut pair = start(
            settings,
            [NodeEnvironment::default(), NodeEnvironment::default()],
        );
        let writers = write_each(&pair, WRITERS, WRITE_BYTES);
        pair.network
            .apply_fault(lockstep_testbed::network::Fault::Stall);
        let changes = writers();
        await_writes_in_flight(&mut pair);
        assert_reads_continue(&pair);
        pair.network.heal();
        all_end_well(changes);
        pair.stop();
    }
}

pub fn secondary_that_is_stopped() {
    let mut pair = start(
        SILENT,
        [NodeEnvironment::default(), NodeEnvironment::default()],
    );
    let writers = write_each(&pair, WRITERS, WRITE_BYTES);
    pair.node(Which::Secondary).freeze();
    let changes = writers();
    await_writes_in_flight(&mut pair);
    assert_reads_continue(&pair);
    pair.node(Which::Secondary).thaw();
    all_end_well(changes);
    pair.stop();
}

pub fn disk_that_flushes_nothing() {
    server::isolate();
    let disk = Server::start();
    let mut pair = start(SILENT, [disk.environment(), NodeEnvironment::default()]);
    let files: Vec<File> = (0..SYNCERS)
        .map(|number| open(&pair, &format!("synced {number}"), 0))
        .collect();
    for file in &files {
        file.write_all_at(&[1; 4096], 0).unwrap();
    }
    let durable: Vec<File> = (0..SYNCERS)
        .map(|number| open(&pair, &format!("durable {number}"), libc::O_DSYNC))
        .collect();
    let hang = disk.hang();
    let sync = |file: File| thread::spawn(move || file.sync_data());
    let mut changes: Changes = files.into_iter().map(sync).collect();
    await_that("flushes to hang", || hang.waiting() > 0);
    let write = |file: File| thread::spawn(move || file.write_all_at(&[2; 4096], 0));
    changes.extend(durable.into_iter().map(write));
    assert_reads_continue(&pair);
    drop(hang);
    all_end_well(changes);
    pair.stop();
}

/// A write that takes longer to arrive than a peer may be silent.
pub fn network_that_is_slow() {
    const BYTES: usize = 384 << 10;
    let settings = Settings {
        bytes_per_sec: Some(300_000),
        ..PATIENT
    };
    for encryption in ["on", "off"] {
        let settings = Settings {
            encryption,
            ..settings
        };
        let mut pair = start(
            settings,
            [NodeEnvironment::default(), NodeEnvironment::default()],
        );
        let before = pauses(&pair);
        all_end_well(write_each(&pair, 3, BYTES)());
        let after = pauses(&pair);
        assert_eq!(after, before, "the connection was there all the time");
        pair.await_in_sync();
        pair.stop();
    }
}

/// How often the primary has lost the connection while in sync.
fn pauses(pair: &Pair) -> usize {
    pair.primary.times_logged("acknowledgements paused")
}

/// Clients that change something, and the number of their changes.
struct Clients {
    changes: Changes,
    done: Arc<AtomicU64>,
}

impl Clients {
    /// Starts so many clients. Together they call `change` for all numbers below `end`.
    fn start(
        clients: u64,
        end: u64,
        change: impl Fn(u64) -> io::Result<()> + Clone + Send + 'static,
    ) -> Self {
        let [begun, done] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (change, begun, done) = (change.clone(), Arc::clone(&begun), Arc::clone(&done));
            let mut next = move || Some(begun.fetch_add(1, Ordering::Relaxed));
            thread::spawn(move || {
                iter::from_fn(&mut next)
                    .take_while(|number| *number < end)
                    .try_for_each(|number| {
                        change(number)?;
                        done.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    })
            })
        };
        let changes = (0..clients).map(client).collect();
        Self { changes, done }
    }

    /// Waits until no client makes progress any more, because the disk hangs. No client may have finished.
    fn await_stall(&self, hang: &Hang) {
        let (mut seen, mut since) = (0, Instant::now());
        await_that("the clients to wait", || {
            let done = self.done.load(Ordering::Relaxed);
            if done != seen {
                (seen, since) = (done, Instant::now());
            }
            done > 0 && hang.waiting() > 0 && since.elapsed() > STALL
        });
        assert!(!self.changes.iter().any(JoinHandle::is_finished));
    }
}

fn write_more_files_than_have_slots(mount: &Path) -> Clients {
    let directory = |number: u64| format!("written {}", number % FILE_WRITERS);
    for number in 0..FILE_WRITERS {
        fs::create_dir(mount.join(directory(number))).unwrap();
    }
    let mount = mount.to_owned();
    Clients::start(FILE_WRITERS, WRITTEN_FILES, move |number| {
        let directory = mount.join(directory(number));
        fs::write(directory.join(number.to_string()), b"written")
    })
}

fn set_more_attributes_than_the_log_holds(mount: &Path) -> Clients {
    let path: PathBuf = mount.join("attributed");
    File::create(&path).unwrap();
    Clients::start(1, VALUES, move |number| {
        let value = vec![number.to_le_bytes()[0]; VALUE_BYTES];
        Ok(setxattr(&path, "user.value", &value, XattrFlags::empty())?)
    })
}

/// An operation that must wait for a checkpoint on the secondary waits; the connection does not. Metadata operations
/// wait when the log is filling. In the long form writes wait, too, when there is no slot left for the times of
/// files.
pub fn checkpoints_that_hang(is_long: bool) {
    server::isolate();
    let disk = Server::start();
    let mut pair = start(CHATTY, [NodeEnvironment::default(), disk.environment()]);
    let before = pauses(&pair);
    let hang = disk.hang_on(NAMESPACE_FILE);
    let kinds: [fn(&Path) -> Clients; 2] = [
        set_more_attributes_than_the_log_holds,
        write_more_files_than_have_slots,
    ];
    let mut waiting = Vec::new();
    for start in kinds.iter().take(if is_long { 2 } else { 1 }).rev() {
        let clients = start(&pair.mount());
        clients.await_stall(&hang);
        waiting.push(clients);
    }
    assert_reads_continue(&pair);
    thread::sleep(LONGER_THAN_SILENCE_MAX);
    assert_reads_continue(&pair);
    assert_eq!(pauses(&pair), before, "the peer was there all the time");
    for node in [&pair.primary, &pair.secondary] {
        assert!(!node.logged().contains("silent"));
    }
    drop(hang);
    for clients in waiting {
        all_end_well(clients.changes);
    }
    verify(&mut pair);
    pair.stop();
}

/// Checks that the nodes' own comparison finds no difference.
fn verify(pair: &mut Pair) {
    pair.await_in_sync();
    let mut command = Command::new(lockstep_testbed::program());
    let command = command.args(["verify", DATASTORE, "--config"]);
    let output = pair.primary.run(command.arg(pair.primary.config()));
    assert!(output.status.success(), "{output:?}");
}
