//! The server with the cluster address at each moment, and whether the client's pings are answered.

use std::fs::{self, File};
use std::io;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::network::{ADDRESS, Host, Lan};
use lockstep_testbed::await_that;

/// Pause between two looks at the addresses.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);

/// The servers that have the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    One(Host),
    Both,
}

/// The findings of the observer: each change, with its time since the start.
#[derive(Default)]
struct Seen {
    changes: Mutex<Vec<(Duration, Holder)>>,
    stop: AtomicBool,
}

/// Looks at the addresses of both servers all the time.
pub struct Observer {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    pub fn start(lan: &Lan) -> Self {
        let seen = Arc::new(Seen::default());
        let servers = [Host::A, Host::B].map(|host| (host, lan.of(host).handle()));
        let shared = Arc::clone(&seen);
        let thread = thread::spawn(move || {
            let start = Instant::now();
            let has = |host: Host| {
                let (_, namespace) = servers.iter().find(|(its, _)| *its == host).unwrap();
                namespace.enter();
                has_address()
            };
            while !shared.stop.load(Ordering::SeqCst) {
                // A is asked before and after B. So "both" means: at one and the same moment.
                let holder = match (has(Host::A), has(Host::B)) {
                    (true, true) if has(Host::A) => Holder::Both,
                    (_, true) => Holder::One(Host::B),
                    (true, false) => Holder::One(Host::A),
                    (false, false) => Holder::Nobody,
                };
                let mut changes = shared.changes.lock().unwrap();
                if changes.last().map(|(_, last)| *last) != Some(holder) {
                    changes.push((start.elapsed(), holder));
                }
                drop(changes);
                thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self {
            seen,
            thread: Some(thread),
        }
    }

    /// The changes so far.
    pub fn changes(&self) -> Vec<(Duration, Holder)> {
        self.seen.changes.lock().unwrap().clone()
    }

    /// Waits until the address is where it belongs.
    pub fn await_holder(&self, wanted: Holder) {
        await_that(&format!("the address to be with {wanted:?}"), || {
            let changes = self.changes();
            assert_never_on_both(&changes);
            changes.last().is_some_and(|(_, holder)| *holder == wanted)
        });
    }

    /// Ends the observation. Checks that the address was never on both, and returns the holders in their order.
    pub fn finish(mut self) -> Vec<Holder> {
        self.stop();
        self.holders()
    }

    /// Checks that the address was never on both, and returns the holders so far in their order.
    pub fn holders(&self) -> Vec<Holder> {
        let changes = self.changes();
        println!("the address: {changes:?}");
        assert_never_on_both(&changes);
        changes.into_iter().map(|(_, holder)| holder).collect()
    }

    fn stop(&mut self) {
        self.seen.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn assert_never_on_both(changes: &[(Duration, Holder)]) {
    let both = changes.iter().any(|(_, holder)| *holder == Holder::Both);
    assert!(!both, "both servers had the address: {changes:?}");
}

/// Whether a server has the address now.
pub fn has_now(lan: &Lan, host: Host) -> bool {
    let namespace = lan.of(host).handle();
    let look = move || {
        namespace.enter();
        has_address()
    };
    thread::spawn(look).join().unwrap()
}

/// Whether the namespace of this thread has the address: a socket can be bound only to an address of its own.
fn has_address() -> bool {
    match UdpSocket::bind((ADDRESS, 0)) {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => false,
        Err(error) => panic!("cannot bind: {error}"),
    }
}

/// A `ping` of the client to the cluster address, ten times a second.
pub struct Ping {
    process: Child,
    output: PathBuf,
}

impl Ping {
    pub fn start(lan: &Lan, directory: &Path) -> Self {
        let output = directory.join("ping");
        let process = lan
            .of(Host::Client)
            .command()
            .args(["ping", "-n", "-i", "0.1", &ADDRESS.to_string()])
            .stdout(File::create(&output).unwrap())
            .stderr(Stdio::null())
            .spawn();
        Self {
            process: process.unwrap(),
            output,
        }
    }

    fn answers(&self) -> usize {
        let text = fs::read_to_string(&self.output).unwrap();
        text.matches("bytes from").count()
    }

    /// Waits until some more pings are answered.
    pub fn await_answers(&self) {
        let wanted = self.answers() + 3;
        await_that("answers to pings", || self.answers() >= wanted);
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
