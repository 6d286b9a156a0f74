//! Notifications of the node to the service manager: ready, status, stopping, and watchdog keep-alives.
//!
//! The protocol is `sd_notify(3)` of systemd: datagrams to the Unix socket that `NOTIFY_SOCKET` names.
//! `lockstep node --background` reads the same messages. Without that variable the node sends nothing.
//!
//! Invariant: the node sends a keep-alive only while the maintenance of every running datastore makes progress.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use super::error::one_line;
use super::shared::NodeShared;

/// Interval between two status texts.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Sends notifications to the service manager of this process.
pub(super) struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Watchdog>,
    status: String,
    status_checked: Instant,
}

/// The watchdog of the service manager, which ends this process unless it gets keep-alives.
struct Watchdog {
    /// Longest time between two keep-alives.
    limit: Duration,
    fed: Instant,
    is_withheld: bool,
}

impl Notifier {
    /// Reads the environment of this process.
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
            status_checked: Instant::now(),
        }
    }

    /// Reports that the node serves all datastores that it could start.
    pub fn ready(&mut self, shared: &NodeShared) {
        self.status = shared.summary();
        self.send(&format!("READY=1\nSTATUS={}", self.status));
    }

    /// Reports that the node begins to stop.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Reports that the node could not start, or ends with an error.
    pub fn failed(&self, error: &str) {
        self.send(&format!("STATUS={}", one_line(error)));
    }

    /// Feeds the watchdog and reports a new status. Call it every fraction of a second while the node runs.
    pub fn tick(&mut self, shared: &NodeShared) {
        if self.to.is_none() {
            return;
        }
        self.feed(shared);
        if self.status_checked.elapsed() >= STATUS_INTERVAL {
            self.status_checked = Instant::now();
            let status = shared.summary();
            if status != self.status {
                self.send(&format!("STATUS={status}"));
                self.status = status;
            }
        }
    }

    fn feed(&mut self, shared: &NodeShared) {
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
                "its maintenance makes no progress: the watchdog gets no keep-alive"
            );
        }
        watchdog.is_withheld = stuck.is_some();
        if stuck.is_none() {
            self.send("WATCHDOG=1");
        }
    }

    /// Sends a message. An error is ignored: the service manager may have gone, which does not affect the node.
    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.to {
            let _sent = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// Opens the notification socket. A name that begins with `@` is in the abstract namespace.
fn open(path: &[u8]) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::str::from_utf8(path).ok()?),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}

/// Returns the limit of the watchdog, if the watchdog is for this process.
fn watchdog_limit() -> Option<Duration> {
    if let Ok(pid) = env::var("WATCHDOG_PID")
        && pid != std::process::id().to_string()
    {
        return None;
    }
    let limit = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (limit > 0).then(|| Duration::from_micros(limit))
}
