//! What the node tells whoever started it: ready, how it is, stopping, and that it still works.
//!
//! The protocol is `sd_notify(3)` of systemd: datagrams to the Unix socket that `NOTIFY_SOCKET` names.
//! `lockstep node --background` listens to the same messages. Without that variable nothing is sent.
//!
//! Invariant: a sign of life for the watchdog is sent only while the maintenance of every datastore that
//! runs goes on.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use super::Shared;
use super::error::one_line;

/// How often the status text is worked out.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Tells whoever started this process how it is.
pub(super) struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Watchdog>,
    status: String,
    looked: Instant,
}

/// Somebody ends this process unless it shows signs of life.
struct Watchdog {
    /// The longest time between two signs of life.
    limit: Duration,
    fed: Instant,
    is_withheld: bool,
}

impl Notifier {
    /// As the environment of this process says.
    pub fn from_environment() -> Self {
        let to = env::var_os("NOTIFY_SOCKET").and_then(|path| open(path.as_encoded_bytes()));
        let watchdog = to.as_ref().and_then(|_| watchdog_limit());
        Self {
            to,
            watchdog: watchdog.map(|limit| Watchdog {
                limit,
                fed: Instant::now(),
                is_withheld: false,
            }),
            status: String::new(),
            looked: Instant::now(),
        }
    }

    /// The node serves all datastores that it could start.
    pub fn ready(&mut self, shared: &Shared) {
        self.status = shared.summary();
        self.send(&format!("READY=1\nSTATUS={}", self.status));
    }

    /// The node begins to stop.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// The node could not start, or ends with an error.
    pub fn failed(&self, error: &str) {
        self.send(&format!("STATUS={}", one_line(error)));
    }

    /// To be called every fraction of a second while the node runs.
    pub fn tick(&mut self, shared: &Shared) {
        if self.to.is_none() {
            return;
        }
        self.feed(shared);
        if self.looked.elapsed() >= STATUS_EVERY {
            self.looked = Instant::now();
            let status = shared.summary();
            if status != self.status {
                self.send(&format!("STATUS={status}"));
                self.status = status;
            }
        }
    }

    fn feed(&mut self, shared: &Shared) {
        let Some(watchdog) = &mut self.watchdog else {
            return;
        };
        if watchdog.fed.elapsed() < watchdog.limit / 4 {
            return;
        }
        watchdog.fed = Instant::now();
        let stuck = shared.stuck_for(watchdog.limit / 2);
        if let Some(datastore) = &stuck
            && !watchdog.is_withheld
        {
            tracing::error!(
                datastore,
                "its maintenance does not go on: the watchdog gets no sign of life"
            );
        }
        watchdog.is_withheld = stuck.is_some();
        if stuck.is_none() {
            self.send("WATCHDOG=1");
        }
    }

    /// Whoever listens may have gone, which is no business of the node.
    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.to {
            let _sent = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// A name that begins with `@` is one of the abstract name space.
fn open(path: &[u8]) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::str::from_utf8(path).ok()?),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}

/// The limit of the watchdog, if it watches this process.
fn watchdog_limit() -> Option<Duration> {
    if let Ok(pid) = env::var("WATCHDOG_PID")
        && pid != std::process::id().to_string()
    {
        return None;
    }
    let limit = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (limit > 0).then(|| Duration::from_micros(limit))
}
