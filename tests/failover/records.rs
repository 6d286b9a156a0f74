//! Programs that append numbered records with a checksum to a file and sync each, and programs that read the records.
//!
//! Each program is a thread of the test. A program bears no error but a refusal (`EROFS`), after which it asks again: its first
//! error ends it, and the test sees the error. A program may wait in a mount in standby until the node serves or ends: a
//! thread of the test cannot be killed alone. So no program is joined without a bound.
//!
//! Invariant: a record counts as acknowledged only after its `fsync` has returned. The count is in the memory of the
//! test, outside the tested system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_testbed::{WAIT_LIMIT, await_that};
use lockstep_types::Hash128;

/// Bytes of a record; no divisor of a block, so that records cross blocks.
const RECORD_BYTES: usize = 1000;
/// Bytes of the checksum at the end of a record.
const SUM_BYTES: usize = 16;

/// Time before a program asks again.
const PAUSE: Duration = Duration::from_millis(2);

/// The outcome of a call; `None` if the node refused it, because the other node may have served since it was asked.
fn unless_refused<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            thread::sleep(PAUSE);
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// The record `number` of the file `name`.
fn record(name: &str, number: u64) -> Vec<u8> {
    let mut bytes = format!("{name} {number} ")
        .repeat(RECORD_BYTES / 4)
        .into_bytes();
    bytes.truncate(RECORD_BYTES - SUM_BYTES);
    let sum = Hash128::of(&bytes).0;
    bytes.extend(sum);
    bytes
}

/// A thread that works until it is told to stop, or until its first error.
struct Program {
    name: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    rounds: AtomicU64,
}

impl Program {
    fn start(name: &str, body: impl FnOnce(&Shared) -> io::Result<()> + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        Self {
            name: name.to_owned(),
            shared,
            thread: Some(thread::spawn(move || body(&own))),
        }
    }

    fn rounds(&self) -> u64 {
        self.shared.rounds.load(Ordering::SeqCst)
    }

    /// Waits until the program has ended `more` further rounds.
    fn await_rounds(&mut self, more: u64) {
        let wanted = self.rounds() + more;
        await_that(&format!("{} to go on", self.name), || {
            self.assert_running();
            self.rounds() >= wanted
        });
    }

    fn assert_running(&mut self) {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            let outcome = self.outcome();
            panic!("{} has ended: {outcome:?}", self.name);
        }
    }

    /// Waits for the end of the program, and returns how it ended.
    fn outcome(&mut self) -> io::Result<()> {
        let thread = self.thread.take().expect("the program was not waited for");
        await_that(&format!("the end of {}", self.name), || {
            thread.is_finished()
        });
        thread
            .join()
            .expect("a program panics for no error of the mount")
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }
}

impl Drop for Program {
    /// Does not wait: the thread may wait for a node, which ends later.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Writes records to a file of its own, and keeps the file open.
pub struct Writer(Program);

impl Writer {
    /// Begins the new file `name` in the directory `root`.
    pub fn start(root: &Path, name: &'static str) -> Self {
        let path = root.join(name);
        Self(Program::start(
            &format!("the writer of {name}"),
            move |shared| {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true);
                let file = loop {
                    if let Some(file) = unless_refused(options.open(&path))? {
                        break file;
                    }
                };
                while !shared.stop.load(Ordering::SeqCst) {
                    let number = shared.rounds.load(Ordering::SeqCst);
                    let at = number * RECORD_BYTES as u64;
                    let written = file.write_all_at(&record(name, number), at);
                    let written = written.and_then(|()| file.sync_all());
                    if unless_refused(written)?.is_some() {
                        shared.rounds.store(number + 1, Ordering::SeqCst);
                    }
                }
                Ok(())
            },
        ))
    }

    /// The number of acknowledged records.
    pub fn acknowledged(&self) -> u64 {
        self.0.rounds()
    }

    /// Waits until some more records are acknowledged.
    pub fn await_progress(&mut self) {
        self.0.await_rounds(20);
    }

    /// Lets the writer end, without an error, and returns the number of acknowledged records.
    pub fn finish(mut self) -> u64 {
        self.0.stop();
        let ended = self.0.outcome();
        assert!(ended.is_ok(), "{}: {ended:?}", self.0.name);
        self.acknowledged()
    }

    /// Lets the writer end, with or without an error, and returns the number of acknowledged records.
    pub fn end(mut self) -> u64 {
        self.0.stop();
        let _ended = self.0.outcome();
        self.acknowledged()
    }

    /// Waits until the end of its node has ended the writer, and returns the number of acknowledged records.
    pub fn lose(mut self) -> u64 {
        let ended = self.0.outcome();
        assert!(ended.is_err(), "{} lost its node", self.0.name);
        self.acknowledged()
    }
}

/// Reads the records of a writer of the same mount again and again.
pub struct Reader(Program);

impl Reader {
    /// Reads the file `name` of `writer` in the directory `root`.
    pub fn start(root: &Path, name: &'static str, writer: &Writer) -> Self {
        let file = File::open(root.join(name)).unwrap();
        let written = Arc::clone(&writer.0.shared);
        Self(Program::start(
            &format!("the reader of {name}"),
            move |shared| {
                while !shared.stop.load(Ordering::SeqCst) {
                    check(&file, name, written.rounds.load(Ordering::SeqCst))?;
                    shared.rounds.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            },
        ))
    }

    /// Waits until the reader has read some more times.
    pub fn await_progress(&mut self) {
        self.0.await_rounds(3);
    }

    /// Lets the reader end, without an error.
    pub fn finish(mut self) {
        self.0.stop();
        let ended = self.0.outcome();
        assert!(ended.is_ok(), "{}: {ended:?}", self.0.name);
    }
}

/// Reads the first `count` records of the file `name`, and checks each.
fn check(file: &File, name: &str, count: u64) -> io::Result<()> {
    let mut found = vec![0; RECORD_BYTES];
    for number in 0..count {
        file.read_exact_at(&mut found, number * RECORD_BYTES as u64)?;
        if found != record(name, number) {
            return Err(io::Error::other(format!(
                "record {number} of {name} is wrong"
            )));
        }
    }
    Ok(())
}

/// Checks that the file `name` in the directory `root` begins with these acknowledged records. Fails, and does not wait
/// for ever, if the mount does not serve.
pub fn assert_records(root: &Path, name: &'static str, count: u64) {
    let path = root.join(name);
    let checked = bounded(move || check(&File::open(path)?, name, count));
    assert!(checked.is_ok(), "{} of {name}: {checked:?}", root.display());
    assert!(count > 0, "{name} has records");
}

/// Whether there is a file `name` in the directory `root`.
pub fn has_file(root: &Path, name: &str) -> bool {
    let path = root.join(name);
    bounded(move || path.try_exists()).unwrap()
}

/// The outcome of some work on a mount that may never answer.
fn bounded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = channel();
    thread::spawn(move || done.send(work()));
    let outcome = outcome.recv_timeout(WAIT_LIMIT);
    outcome.expect("the mount serves, and the work ends")
}
