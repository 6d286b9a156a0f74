//! One node: its datastores, the listener for peers, the mounts, and the control socket.
//!
//! Invariants: a datastore that cannot be started does not stop the others. After a clean shutdown nothing is mounted,
//! and all data is on stable storage.

mod at_once;
mod cluster_address;
mod error;
mod export;
mod late;
mod listener;
mod nfs_probe;
mod notify;
mod registry;
mod shared;
mod slot;
mod witnesses;

use std::sync::Arc;
use std::thread::JoinHandle;

use lockstep_driver::{DatastoreError, threads};
use lockstep_link::WarningLimiter;

use crate::config::NodeConfig;
use crate::control::{ControlServer, ControlService};
use crate::service_manager::one_line;
use crate::signals::{ShutdownRequests, Waker};
use crate::stop_signal::StopSignal;
use at_once::at_once;
use error::system;
use listener::PeerListener;
use notify::Notifier;
use shared::NodeShared;
use slot::DatastoreSlot;

pub use error::NodeError;
pub use registry::{DatastoreRegistry, RegistryError};

/// The condition under which a node stops without a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Never: if another program unmounts a datastore, that is an error.
    Stopped,
    /// When a datastore is unmounted: the unmount is a request to stop.
    Unmounted,
}

/// Runs a node until SIGTERM, SIGINT or SIGHUP. If the process ignores SIGHUP (`nohup`), it goes on doing so.
///
/// # Errors
/// A [`NodeError`] if the node could not start, had to stop, or could not shut down cleanly.
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
    let mut requests = ShutdownRequests::new().map_err(system("handle signals"))?;
    let waker = requests.waker();
    let Some(node) = late::start(&mut requests, || RunningNode::start(config, &waker))? else {
        tracing::info!("stopped before the start");
        return Ok(());
    };
    let waited = match node.wait(requests, notifier) {
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

/// Raises the limit of open files to the hard limit: the node keeps content files open while they are written.
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

/// A running node. [`Self::stop`] ends it.
pub struct RunningNode {
    shared: Arc<NodeShared>,
    control: ControlServer,
    /// The listener, the thread that retries failed starts of datastores, and the one that looks at cluster addresses.
    threads: Vec<JoinHandle<()>>,
}

impl RunningNode {
    /// Starts every datastore that can be started. The control socket answers before that, so that `lockstep
    /// status` can show a long start.
    /// The end of a mount calls `waker`.
    ///
    /// # Errors
    /// If no datastore could be started, or the node itself.
    pub fn start(config: &NodeConfig, waker: &Waker) -> Result<Self, NodeError> {
        let link = PeerListener::open(config)?;
        let ends = link
            .as_ref()
            .map(|link| (&link.identity, link.encryption()));
        let registry = DatastoreRegistry::new(config, ends, waker)?;
        ControlServer::check(&config.control)?;
        let shared = Arc::new(NodeShared {
            name: config.name.clone(),
            registry,
            stop: StopSignal::new().map_err(system("make a signal of the stop"))?,
            refusals: WarningLimiter::default(),
        });
        let service: Arc<dyn ControlService> = Arc::<NodeShared>::clone(&shared);
        let mut node = Self {
            control: ControlServer::start(&config.control, service)?,
            shared,
            threads: Vec::new(),
        };
        if let Err(error) = node.start_all(link) {
            // The caller gets the first error; an error of this shutdown is in the log.
            let _ = node.stop();
            return Err(error);
        }
        tracing::info!(node = config.name, "running");
        Ok(node)
    }

    /// Starts all datastores, the listener, the thread that looks at cluster addresses, and the one that retries failed starts.
    ///
    /// # Errors
    /// If no datastore could be started.
    fn start_all(&mut self, link: Option<PeerListener>) -> Result<(), NodeError> {
        let registry = &self.shared.registry;
        let all = registry.all();
        let mut failures = Vec::new();
        for slot in &all {
            if let Err(error) = slot.start(registry.identity()) {
                failures.push((slot.name(), error));
            }
        }
        if failures.len() == all.len() {
            // The caller tells the error, or starts this node again every moment for a while.
            return Err(none_started(failures));
        }
        for slot in &all {
            slot.log_failure(None);
        }
        let all_run = failures.is_empty();
        if let Some(link) = link {
            let shared = Arc::clone(&self.shared);
            self.start_thread("listener", move || link.run(&shared))?;
        }
        let shared = Arc::clone(&self.shared);
        self.start_thread("address-watch", move || shared.watch_addresses())?;
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

    /// Waits for a signal. Returns an error if a mount ends before.
    fn wait(
        &self,
        mut requests: ShutdownRequests,
        notifier: &mut Notifier,
    ) -> Result<(), NodeError> {
        notifier.ready(&self.shared);
        loop {
            self.check_mounts()?;
            notifier.tick(&self.shared);
            if let Some(signal) = requests.wait(notifier.interval()) {
                tracing::info!(signal, "stopping");
                return Ok(());
            }
        }
    }

    /// The datastores of the node, which can be added, taken off and changed.
    pub fn registry(&self) -> &DatastoreRegistry {
        &self.shared.registry
    }

    fn check_mounts(&self) -> Result<(), NodeError> {
        let all = self.shared.registry.all();
        let mut events = all.iter().filter_map(|slot| slot.take_mount_event());
        events.next().map_or(Ok(()), Err)
    }

    /// Unmounts and closes all datastores, and ends all threads.
    ///
    /// # Errors
    /// [`NodeError::UncleanShutdown`].
    pub fn stop(self) -> Result<(), NodeError> {
        // First: from now on no datastore is added or started.
        self.shared.stop.set();
        let slots = self.shared.registry.close();
        let (starters, others): (Vec<_>, Vec<_>) = self
            .threads
            .into_iter()
            .partition(|thread| thread.thread().name() == Some("starter"));
        join(starters);
        let mut is_clean = all(&slots, DatastoreSlot::unmount);
        for slot in &slots {
            slot.stop();
        }
        join(others);
        is_clean &= all(&slots, DatastoreSlot::close);
        drop(self.control);
        if !is_clean {
            return Err(NodeError::UncleanShutdown);
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Makes the error of a node without a running datastore: the only error itself, or a line for each datastore.
fn none_started(mut failures: Vec<(&str, NodeError)>) -> NodeError {
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
        is_one_in_use: failures.iter().any(|(_, error)| is_in_use(error)),
    }
}

/// Whether another process uses the store.
const fn is_in_use(error: &NodeError) -> bool {
    matches!(error, NodeError::Datastore(DatastoreError::InUse { .. }))
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A thread that panics ends the process, so there is no panic to handle.
        let _ended = thread.join();
    }
}

/// Calls `step` for every datastore, for all of them at once: one whose unmount waits for another program holds no other one up.
/// Returns whether all calls succeeded.
fn all(slots: &[Arc<DatastoreSlot>], step: fn(&DatastoreSlot) -> bool) -> bool {
    at_once(slots, |slot| step(slot))
        .into_iter()
        .all(|succeeded| succeeded)
}
