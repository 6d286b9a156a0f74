//! A service at the cluster address, and its client: the client sends numbers, and the service answers each with the number
//! once its record is in the datastore and synced.
//!
//! The service runs on both servers, and its files are only in the mount. A client that gets no answer in time connects
//! again and repeats its number, as clients of a cluster address must. So a record may be written twice, at the same place.
//!
//! Invariant: the client counts a number only after the answer. The count is in the memory of the test.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::network::{ADDRESS, Host, Lan};
use lockstep_testbed::{WAIT_LIMIT, await_that};

const PORT: u16 = 7000;
const FILE: &str = "records";
const RECORD_BYTES: usize = 100;
/// The longest wait of the client for a connection, and for an answer.
const CLIENT_LIMIT: Duration = Duration::from_millis(500);
/// Pause of the client after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Numbers that the client must get acknowledged to have gone on.
const PROGRESS: u64 = 10;

/// The record of a number.
fn record(number: u64) -> Vec<u8> {
    format!("{number:>width$}\n", width = RECORD_BYTES - 1).into_bytes()
}

/// Makes the file of the service in the mount of the node that serves.
pub fn prepare(mount: &Path) {
    let path = mount.join(FILE);
    let made = within_limit(move || std::fs::File::create_new(path));
    made.unwrap();
}

/// Lets the service run on a server until the test ends: a thread of it may wait in a mount in standby, where nothing but
/// the end of the node can end it.
pub fn serve(lan: &Lan, host: Host, mount: PathBuf) {
    let namespace = lan.of(host).handle();
    let (bound, is_bound) = channel();
    thread::spawn(move || {
        namespace.enter();
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        bound.send(()).unwrap();
        for client in listener.incoming().flatten() {
            let file = mount.join(FILE);
            // An error ends the connection: the client does not get its answer.
            thread::spawn(move || answer(&client, &file));
        }
    });
    is_bound.recv_timeout(WAIT_LIMIT).unwrap();
}

fn answer(mut client: &TcpStream, file: &Path) -> io::Result<()> {
    // Not made here: while no node runs, the mount directory is a plain one.
    let file = OpenOptions::new().write(true).open(file)?;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let number: u64 = line.parse().map_err(io::Error::other)?;
        file.write_all_at(&record(number), number * RECORD_BYTES as u64)?;
        file.sync_all()?;
        writeln!(client, "{number}")?;
    }
    Ok(())
}

#[derive(Default)]
struct Shared {
    acknowledged: AtomicU64,
    stop: AtomicBool,
}

/// The client.
pub struct Client {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    pub fn start(lan: &Lan) -> Self {
        let namespace = lan.of(Host::Client).handle();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            namespace.enter();
            while !own.stop.load(Ordering::SeqCst) {
                // Any failure leads to the next attempt.
                let _ = send_numbers(&own);
                thread::sleep(RETRY_PAUSE);
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until some more numbers are acknowledged.
    pub fn await_progress(&self) {
        let wanted = self.acknowledged() + PROGRESS;
        await_that("acknowledged numbers", || self.acknowledged() >= wanted);
    }

    /// Ends the client, and returns how many numbers were acknowledged.
    pub fn finish(mut self) -> u64 {
        self.stop();
        self.acknowledged()
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends numbers over one connection until it fails, or the client is to end.
fn send_numbers(shared: &Shared) -> io::Result<()> {
    let server = TcpStream::connect_timeout(&SocketAddr::from((ADDRESS, PORT)), CLIENT_LIMIT)?;
    server.set_read_timeout(Some(CLIENT_LIMIT))?;
    server.set_nodelay(true)?;
    let mut answers = BufReader::new(&server);
    while !shared.stop.load(Ordering::SeqCst) {
        let number = shared.acknowledged.load(Ordering::SeqCst);
        writeln!(&server, "{number}")?;
        let mut line = String::new();
        answers.read_line(&mut line)?;
        if line.trim_end() != number.to_string() {
            return Err(io::Error::other(format!("{line:?} instead of {number}")));
        }
        shared.acknowledged.store(number + 1, Ordering::SeqCst);
    }
    Ok(())
}

/// Checks that each acknowledged number has its record in the mount of the node that serves.
pub fn assert_records(mount: &Path, acknowledged: u64) {
    let path = mount.join(FILE);
    let found = within_limit(move || std::fs::read(path)).unwrap();
    assert!(acknowledged > 0, "numbers were acknowledged");
    for number in 0..acknowledged {
        let start = usize::try_from(number).unwrap() * RECORD_BYTES;
        let record = record(number);
        let at_place = found.get(start..start + RECORD_BYTES);
        assert_eq!(
            at_place,
            Some(&record[..]),
            "record {number} of {acknowledged}"
        );
    }
}

/// The outcome of some work on a mount, which never answers if its node does not serve.
fn within_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = channel();
    thread::spawn(move || done.send(work()));
    outcome.recv_timeout(WAIT_LIMIT).expect("the mount serves")
}
