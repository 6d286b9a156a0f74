//! Names beside many large writes, or beside a resync, over a slow link: few bytes go ahead of each (rule P19).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use lockstep_testbed::network::Fault;
use lockstep_testbed::{IMPATIENT, NodeEnvironment, PATIENT, Pair, Settings, await_that};

use crate::slow::{WRITE_BYTES, open, start};

/// Programs that write.
const WRITERS: usize = 32;
/// A link of 100 Mbit/s.
const BYTES_PER_SEC: u64 = 12_500_000;
/// Bytes that the writers write before names are looked at: more than were on their way at first.
const WARM_UP_BYTES: u64 = 32 << 20;
/// Number of names.
const NAMES: usize = 8;
/// Most bytes of the writers that end while a name is made. All writers together wait with four times as many.
const AHEAD_MAX: u64 = 8 << 20;

/// A link of 20 Mbit/s, for a resync.
const RESYNC_BYTES_PER_SEC: u64 = 2_500_000;
/// Bytes that the resync sends.
const RESYNC_BYTES: usize = 32 << 20;
/// Bytes that the resync sends before names are looked at: its pace is known then.
const RESYNC_WARM_UP_BYTES: u64 = 12 << 20;
/// Most bytes of the resync that are sent while a name is made. Without a pace 4 MiB are under way.
const RESYNC_AHEAD_MAX: u64 = 2 << 20;

/// Programs that write to files of their own until this is stopped.
struct Bulk {
    written: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Bulk {
    fn start(pair: &Pair) -> Self {
        let (written, is_over) = (Arc::default(), Arc::default());
        let open = |number| open(pair, &format!("bulk {number}"), 0);
        let files: Vec<File> = (0..WRITERS).map(open).collect();
        let writer = |file: File| {
            let (written, is_over) = (Arc::clone(&written), Arc::clone(&is_over));
            thread::spawn(move || write_until(&is_over, &file, &written))
        };
        Self {
            writers: files.into_iter().map(writer).collect(),
            written,
            is_over,
        }
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::SeqCst);
        for writer in self.writers {
            writer.join().unwrap();
        }
    }
}

fn write_until(is_over: &AtomicBool, file: &File, written: &AtomicU64) {
    let bytes = vec![5; WRITE_BYTES];
    while !is_over.load(Ordering::SeqCst) {
        file.write_all_at(&bytes, 0).unwrap();
        written.fetch_add(WRITE_BYTES as u64, Ordering::SeqCst);
    }
}

/// Makes a name, and looks another one up in the same directory meanwhile: the kernel lets the lookup wait for the
/// name.
fn make_and_look(directory: &Path, number: usize) {
    let absent = directory.join(format!("absent {number}"));
    let looker = thread::spawn(move || fs::symlink_metadata(absent).is_err());
    File::create(directory.join(format!("name {number}"))).unwrap();
    assert!(looker.join().unwrap());
}

/// See the head of this file.
pub fn names_overtake_bulk() {
    let settings = Settings {
        bytes_per_sec: Some(BYTES_PER_SEC),
        ..PATIENT
    };
    let mut pair = start(
        settings,
        [NodeEnvironment::default(), NodeEnvironment::default()],
    );
    let directory = pair.mount().join("directory");
    fs::create_dir(&directory).unwrap();
    let bulk = Bulk::start(&pair);
    await_that("the writers to fill the link", || {
        bulk.written() >= WARM_UP_BYTES
    });
    for number in 0..NAMES {
        let before = bulk.written();
        make_and_look(&directory, number);
        let ahead = bulk.written() - before;
        println!("name {number}: {} KiB went ahead", ahead >> 10);
        assert!(ahead <= AHEAD_MAX, "{ahead} bytes went ahead");
    }
    bulk.stop();
    pair.stop();
}

/// Bytes that the resync under way has sent; `None` after its end.
fn resynced(pair: &Pair) -> Option<u64> {
    Some(pair.primary.status()?.resync?.bytes_sent)
}

/// See the head of this file.
pub fn names_overtake_a_resync() {
    let settings = Settings {
        bytes_per_sec: Some(RESYNC_BYTES_PER_SEC),
        ..IMPATIENT
    };
    let mut pair = start(
        settings,
        [NodeEnvironment::default(), NodeEnvironment::default()],
    );
    let directory = pair.mount().join("directory");
    fs::create_dir(&directory).unwrap();
    pair.network.apply_fault(Fault::Cut);
    pair.await_state("out of sync");
    fs::write(pair.mount().join("changed"), vec![7; RESYNC_BYTES]).unwrap();
    pair.network.heal();
    pair.await_status("a resync that has found its pace", |status| {
        let resync = status.resync.as_ref();
        resync.is_some_and(|resync| resync.bytes_sent >= RESYNC_WARM_UP_BYTES)
    });
    let mut looked_at = 0;
    while looked_at < NAMES
        && let Some(before) = resynced(&pair)
    {
        make_and_look(&directory, looked_at);
        let Some(after) = resynced(&pair) else { break };
        let ahead = after - before;
        println!(
            "name {looked_at}: {} KiB of the resync went ahead",
            ahead >> 10
        );
        assert!(ahead <= RESYNC_AHEAD_MAX, "{ahead} bytes went ahead");
        looked_at += 1;
    }
    assert!(looked_at > 0, "the resync was over too soon");
    pair.await_in_sync();
    pair.stop();
}
