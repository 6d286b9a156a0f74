//! What is slow, and who waits for it: whoever changes something, and nobody else (rule P19).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread::{self, JoinHandle};

use crate::nodes::{Ground, PATIENT, Pair, Settings, Which, await_that};
use crate::server::{self, Server};

/// A peer may be silent for as long as any of these tests takes.
const SILENT: Settings = Settings {
    peer_timeout_ms: 60_000,
    answer_limit_ms: 600_000,
    ..PATIENT
};
/// A write as large as any.
const WRITE_BYTES: usize = 1 << 20;
/// More than one connection, its queue and all threads of a mount hold, and what tests put between.
const WRITERS: usize = 64;
/// More than there are threads of a mount.
const SYNCERS: usize = 12;
/// How often one looks for something that has not been looked for before.
const LOOKS: usize = 100;
/// Somebody else's file.
const OTHER: &str = "other";

fn start(settings: Settings, grounds: [Ground; 2]) -> Pair {
    let mut pair = Pair::prepare(settings, grounds);
    pair.start();
    fs::write(pair.mount().join(OTHER), [7; 4096]).unwrap();
    pair
}

/// Looks up what is not there, reads, and lists: none of it is being changed.
fn look_around(mount: &Path) {
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

/// Nor has the connection been given up for it.
fn nobody_else_waits(pair: &Pair) {
    let mount = pair.mount();
    let looker = thread::spawn(move || look_around(&mount));
    await_that("lookups, reads and listings", || looker.is_finished());
    looker.join().unwrap();
    let state = pair.primary.status().unwrap().state;
    assert_eq!(state, "synced and connected");
}

fn open(pair: &Pair, name: &str, flags: i32) -> File {
    let mut options = OpenOptions::new();
    let options = options.create(true).write(true).custom_flags(flags);
    options.open(pair.mount().join(name)).unwrap()
}

type Changes = Vec<JoinHandle<io::Result<()>>>;

/// Writes a file each, by so many at once.
fn write_each(pair: &Pair, writers: usize, bytes: usize) -> impl FnOnce() -> Changes {
    let open = |number| open(pair, &format!("written {number}"), 0);
    let files: Vec<File> = (0..writers).map(open).collect();
    move || {
        let write = |file: File| thread::spawn(move || file.write_all_at(&vec![1; bytes], 0));
        files.into_iter().map(write).collect()
    }
}

fn all_end_well(changes: Changes) {
    await_that("the changes to end", || {
        changes.iter().all(JoinHandle::is_finished)
    });
    for change in changes {
        change.join().unwrap().unwrap();
    }
}

fn await_writes_in_flight(pair: &mut Pair) {
    pair.await_status("writes that wait for the secondary", |status| {
        status.writes_in_flight >= 8
    });
}

pub fn network_that_passes_nothing() {
    for encryption in ["on", "off"] {
        let settings = Settings {
            encryption,
            ..SILENT
        };
        let mut pair = start(settings, [Ground::default(), Ground::default()]);
        let writers = write_each(&pair, WRITERS, WRITE_BYTES);
        pair.network.suffer(crate::network::Fault::Stall);
        let changes = writers();
        await_writes_in_flight(&mut pair);
        nobody_else_waits(&pair);
        pair.network.heal();
        all_end_well(changes);
        pair.stop();
    }
}

pub fn secondary_that_is_stopped() {
    let mut pair = start(SILENT, [Ground::default(), Ground::default()]);
    let writers = write_each(&pair, WRITERS, WRITE_BYTES);
    pair.node(Which::Secondary).freeze();
    let changes = writers();
    await_writes_in_flight(&mut pair);
    nobody_else_waits(&pair);
    pair.node(Which::Secondary).thaw();
    all_end_well(changes);
    pair.stop();
}

pub fn disk_that_flushes_nothing() {
    server::isolate();
    let disk = Server::new();
    let mut pair = start(SILENT, [disk.ground(), Ground::default()]);
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
    nobody_else_waits(&pair);
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
        let mut pair = start(settings, [Ground::default(), Ground::default()]);
        let before = pair
            .primary
            .logged()
            .matches("acknowledgements paused")
            .count();
        all_end_well(write_each(&pair, 3, BYTES)());
        let after = pair
            .primary
            .logged()
            .matches("acknowledgements paused")
            .count();
        assert_eq!(after, before, "the connection was there all the time");
        pair.await_in_sync();
        pair.stop();
    }
}

/// Many write the same bytes at once: each but one waits for the one before, and its bytes are kept.
pub fn memory_of_many_writers() {
    const WRITERS: usize = 300;
    let mut pair = start(SILENT, [Ground::default(), Ground::default()]);
    let before = pair.primary.resident_bytes();
    let file = open(&pair, "contended", 0);
    let changes: Changes = (0..WRITERS)
        .map(|_| file.try_clone().unwrap())
        .map(|file| thread::spawn(move || file.write_all_at(&vec![3; WRITE_BYTES], 0)))
        .collect();
    all_end_well(changes);
    await_that("memory to be given back", || {
        pair.primary.resident_bytes() < before + (64 << 20)
    });
    pair.stop();
}
