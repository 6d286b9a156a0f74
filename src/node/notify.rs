//! Notifications of the node to the service manager: ready, status, stopping, and watchdog keep-alives.
//!
//! Invariant: the node sends a keep-alive only while the maintenance of every running datastore makes progress.

use std::env;
use std::time::{Duration, Instant};

use super::shared::NodeShared;
use crate::service_manager::ServiceManager;

/// Interval between two status texts.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Sends notifications to the service manager of this process.
pub(super) struct Notifier {
    manager: ServiceManager,
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
        let manager = ServiceManager::from_environment();
        let watchdog = watchdog_limit().filter(|_| manager.exists());
        Self {
            manager,
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
        self.manager.ready(&self.status);
    }

    /// Reports that the node begins to stop.
    pub fn stopping(&self) {
        self.manager.stopping();
    }

    /// Reports that the node could not start, or ends with an error.
    pub fn failed(&self, error: &str) {
        self.manager.status(error);
    }

    /// The longest time between two calls of [`Self::tick`]; `None` without a service manager.
    pub fn interval(&self) -> Option<Duration> {
        let feeding = self.watchdog.as_ref().map(|watchdog| watchdog.limit / 8);
        let interval = feeding.map_or(STATUS_INTERVAL, |feeding| feeding.min(STATUS_INTERVAL));
        self.manager.exists().then_some(interval)
    }

    /// Feeds the watchdog and reports a new status. Call it in each [`Self::interval`] while the node runs.
    pub fn tick(&mut self, shared: &NodeShared) {
        if !self.manager.exists() {
            return;
        }
        self.feed(shared);
        if self.status_checked.elapsed() >= STATUS_INTERVAL {
            self.status_checked = Instant::now();
            let status = shared.summary();
            if status != self.status {
                self.manager.status(&status);
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
            self.manager.keep_alive();
        }
    }
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
