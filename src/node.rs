//! One node: its datastores, the listener for peers, the mounts, and the control socket.

mod door;
mod error;
mod listener;
mod notify;
mod repeats;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_driver::report::{VerifyFailure, VerifyProgress, VerifyReport};
use lockstep_driver::threads;
use lockstep_link::Identity;
use signal_hook::iterator::Signals;

use crate::config::NodeConfig;
use crate::control::{ControlServer, ControlService, NodeStatus};
use crate::signals::stop_signals;
use error::{one_line, system};
use listener::Listening;
use notify::Notifier;
use repeats::Repeats;
use slot::Slot;

pub use error::NodeError;

/// Between two looks for a signal, or the end of a mount.
const LOOK: Duration = Duration::from_millis(50);

/// Before the second attempt to start a datastore.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest time between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(20);

/// When a node ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Never: a mount that somebody takes away is an error.
    Stopped,
    /// When a mount is taken away: that is how the node is asked to stop.
    Unmounted,
}

/// Runs a node until SIGTERM, SIGINT or SIGHUP. Where SIGHUP was ignored before (`nohup`), it stays so.
///
/// # Errors
/// A [`NodeError`] when it could not start; when it had to stop; or when it could not stop in order.
pub fn run(config: &NodeConfig, until: Until) -> Result<(), NodeError> {
    raise_open_files_limit();
    let mut notifier = Notifier::from_environment();
    let outcome = run_until_stopped(config, until, &mut notifier);
    if let Err(error) = &outcome {
        notifier.failed(&error.to_string());
    }
    outcome
}

fn run_until_stopped(
    config: &NodeConfig,
    until: Until,
    notifier: &mut Notifier,
) -> Result<(), NodeError> {
    let signals = Signals::new(stop_signals()).map_err(system("handle signals"))?;
    let node = Node::start(config)?;
    let waited = match node.wait(signals, notifier) {
        Err(NodeError::Unmounted { mount_point }) if until == Until::Unmounted => {
            tracing::info!(mount = %mount_point.display(), "unmounted: stopping");
            Ok(())
        }
        waited => waited,
    };
    if let Err(error) = &waited {
        tracing::error!(%error, "stopping");
    }
    notifier.stopping();
    let stopped = node.stop();
    waited.and(stopped)
}

/// Content files are kept open while they are written: allow as many as the system lets us.
fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// A running node.
struct Node {
    shared: Arc<Shared>,
    control: ControlServer,
    /// The listener, and the thread that starts what could not be started at first.
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a node share.
struct Shared {
    name: String,
    identity: Option<Arc<Identity>>,
    /// In the order of the configuration.
    slots: Vec<Slot>,
    stopping: AtomicBool,
    /// Refused connections that were logged.
    refusals: Repeats,
}

impl Node {
    /// Starts every datastore that can be started. The control socket answers from before that, so that
    /// a start that takes long can be watched.
    fn start(config: &NodeConfig) -> Result<Self, NodeError> {
        let link = Listening::open(config)?;
        ControlServer::check(&config.control)?;
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            identity: link.as_ref().map(|link| Arc::clone(&link.identity)),
            slots: config.datastores.iter().cloned().map(Slot::new).collect(),
            stopping: AtomicBool::new(false),
            refusals: Repeats::default(),
        });
        let service: Arc<dyn ControlService> = Arc::<Shared>::clone(&shared);
        let mut node = Self {
            control: ControlServer::start(&config.control, service)?,
            shared,
            threads: Vec::new(),
        };
        if let Err(error) = node.start_all(link) {
            // What is wrong with stopping is in the log; what was wrong before counts.
            let _ = node.stop();
            return Err(error);
        }
        tracing::info!(node = config.name, "running");
        Ok(node)
    }

    /// Starts all datastores, the listener, and what tries those again that could not be started. An error
    /// if none could be.
    fn start_all(&mut self, link: Option<Listening>) -> Result<(), NodeError> {
        let identity = self.shared.identity.as_ref();
        let mut failures = Vec::new();
        for slot in &self.shared.slots {
            if let Err(error) = slot.start(identity) {
                failures.push((&slot.config().name, error));
            }
        }
        if failures.len() == self.shared.slots.len() {
            return Err(none_started(failures));
        }
        let all_run = failures.is_empty();
        if let Some(link) = link {
            let shared = Arc::clone(&self.shared);
            self.start_thread("listener", move || link.run(&shared))?;
        }
        if !all_run {
            let shared = Arc::clone(&self.shared);
            self.start_thread("starter", move || shared.start_the_rest())?;
        }
        Ok(())
    }

    fn start_thread(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), NodeError> {
        let thread = threads::spawn(name, body).map_err(system("start a thread"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Waits for a signal; an error when a mount ended before.
    fn wait(&self, mut signals: Signals, notifier: &mut Notifier) -> Result<(), NodeError> {
        notifier.ready(&self.shared);
        loop {
            if let Some(signal) = signals.pending().next() {
                let signal = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                tracing::info!(signal, "stopping");
                return Ok(());
            }
            self.look_at_mounts()?;
            notifier.tick(&self.shared);
            std::thread::sleep(LOOK);
        }
    }

    fn look_at_mounts(&self) -> Result<(), NodeError> {
        let mut news = self.shared.slots.iter().filter_map(Slot::mount_news);
        news.next().map_or(Ok(()), Err)
    }

    /// Puts everything away.
    fn stop(self) -> Result<(), NodeError> {
        let slots = &self.shared.slots;
        // Before anything else: what is not started by now will not be.
        self.shared.stopping.store(true, Ordering::Release);
        let (starters, others): (Vec<_>, Vec<_>) = self
            .threads
            .into_iter()
            .partition(|thread| thread.thread().name() == Some("starter"));
        join(starters);
        let mut in_order = all(slots, Slot::unmount);
        slots.iter().for_each(Slot::stop);
        join(others);
        in_order &= all(slots, Slot::close);
        drop(self.control);
        if !in_order {
            return Err(NodeError::NotInOrder);
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Why a node serves nothing: the one error, or a line for each.
fn none_started(mut failures: Vec<(&String, NodeError)>) -> NodeError {
    if failures.len() == 1
        && let Some((_, error)) = failures.pop()
    {
        return error;
    }
    let lines = failures
        .iter()
        .map(|(name, error)| format!("\n  {name}: {}", one_line(&error.to_string())));
    NodeError::NoneStarted {
        failures: lines.collect(),
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // One that had panicked would have ended the process.
        let _ended = thread.join();
    }
}

/// Does something to every datastore; whether all of it could be done.
fn all(slots: &[Slot], done: fn(&Slot) -> bool) -> bool {
    slots.iter().map(done).fold(true, |all, one| all & one)
}

impl Shared {
    /// The names of all datastores, for people.
    fn names(&self) -> String {
        let names = self.slots.iter().map(|slot| slot.config().name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Tries the datastores that could not be started again, ever more rarely, until all run.
    fn start_the_rest(&self) {
        let mut wait = RETRY_FIRST;
        loop {
            let until = Instant::now() + wait;
            while Instant::now() < until {
                if self.stopping.load(Ordering::Acquire) {
                    return;
                }
                std::thread::sleep(LOOK);
            }
            let down = self.slots.iter().filter(|slot| slot.running().is_none());
            let attempts: Vec<_> = down
                .map(|slot| slot.start(self.identity.as_ref()))
                .collect();
            if attempts.iter().all(Result::is_ok) {
                return;
            }
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// How all datastores are, in one line.
    fn summary(&self) -> String {
        let one = |slot: &Slot| {
            let name = &slot.config().name;
            match slot.running() {
                Some(datastore) => format!("{name}: {}", datastore.state().describe()),
                None => format!("{name}: NOT STARTED: {}", slot.reason().unwrap_or_default()),
            }
        };
        self.slots.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// A datastore whose maintenance has not gone on for so long, if there is one.
    fn stuck_for(&self, limit: Duration) -> Option<String> {
        let mut running = self.slots.iter().filter_map(Slot::running);
        let stuck = running.find(|datastore| datastore.since_tick() > limit)?;
        Some(stuck.name().to_owned())
    }
}

impl ControlService for Shared {
    fn status(&self) -> NodeStatus {
        let fingerprint = self
            .identity
            .as_ref()
            .map(|identity| identity.fingerprint());
        NodeStatus {
            node: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            fingerprint: fingerprint.map(|fingerprint| fingerprint.to_string()),
            datastores: self.slots.iter().map(Slot::status).collect(),
        }
    }

    fn verify(
        &self,
        name: &str,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, VerifyFailure> {
        let Some(slot) = self.slots.iter().find(|slot| slot.config().name == name) else {
            return Err(VerifyFailure {
                cause: format!("node {} has no datastore named {name}", self.name),
                cure: format!("name one of: {}", self.names()),
            });
        };
        match slot.running() {
            Some(datastore) => datastore.verify(progress),
            None => Err(VerifyFailure {
                cause: format!("node {} has not started {name}", self.name),
                cure: "see the reason in `lockstep status`".to_owned(),
            }),
        }
    }
}
