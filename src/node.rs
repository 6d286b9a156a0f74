//! One node: its datastores, the listener for peers, the mounts, and the control socket.

mod door;
mod error;
mod listener;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lockstep_link::Fingerprint;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{DatastoreConfig, NodeConfig, Role};
use crate::control::{
    ControlServer, ControlService, NodeStatus, VerifyFailure, VerifyProgress, VerifyReport,
};
use crate::datastore::{self, Datastore, DatastoreError, Dialer, Place, Service};
use crate::fuse::{self, MountError, MountOptions, Mounted};
use crate::threads;
use error::system;
use listener::Listening;

pub use error::NodeError;

/// Between two looks for a signal, or the end of a mount.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// A [`NodeError`] when it could not start; when it had to stop; or when it could not stop in order.
pub fn run(config: &NodeConfig) -> Result<(), NodeError> {
    raise_open_files_limit();
    let signals = Signals::new([SIGTERM, SIGINT]).map_err(system("handle signals"))?;
    let node = Node::start(config)?;
    let waited = node.wait(signals);
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
    threads: Vec<JoinHandle<()>>,
    mounts: Vec<Mounted>,
}

/// What the threads of a node share.
struct Shared {
    name: String,
    fingerprint: Option<Fingerprint>,
    datastores: Vec<Arc<Datastore>>,
    stopping: AtomicBool,
}

impl Node {
    /// Opens everything, in the order in which a failure leaves the least to undo: no store is
    /// changed before every mount point and every store was found good.
    fn start(config: &NodeConfig) -> Result<Self, NodeError> {
        let link = Listening::open(config)?;
        ControlServer::check(&config.control)?;
        check_mount_points(config)?;
        let datastores = open_datastores(config)?;
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            fingerprint: link.as_ref().map(|link| link.identity.fingerprint()),
            datastores,
            stopping: AtomicBool::new(false),
        });
        let service: Arc<dyn ControlService> = Arc::<Shared>::clone(&shared);
        let control = match ControlServer::start(&config.control, service) {
            Ok(control) => control,
            Err(error) => {
                stop_and_close(&shared.datastores);
                return Err(error.into());
            }
        };
        let mut node = Self {
            shared,
            control,
            threads: Vec::new(),
            mounts: Vec::new(),
        };
        if let Err(error) = node.mount_all().and_then(|()| node.start_threads(link)) {
            // What is wrong with stopping is in the log; what was wrong before counts.
            let _ = node.stop();
            return Err(error);
        }
        tracing::info!(node = config.name, "running");
        Ok(node)
    }

    fn start_threads(&mut self, link: Option<Listening>) -> Result<(), NodeError> {
        let shared = Arc::clone(&self.shared);
        for datastore in &shared.datastores {
            let maintained = Arc::clone(datastore);
            self.start_thread("maintenance", move || maintained.run_maintenance())?;
        }
        let Some(link) = link else { return Ok(()) };
        for datastore in &shared.datastores {
            let leading = Arc::clone(datastore);
            let dialer = Dialer::new(datastore.config(), Arc::clone(&link.identity));
            if let Some(dialer) = dialer.filter(|_| datastore.config().role == Role::Primary) {
                self.start_thread("primary", move || leading.run_primary(&dialer))?;
            }
        }
        self.start_thread("listener", move || link.run(&shared))
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

    fn mount_all(&mut self) -> Result<(), NodeError> {
        for datastore in &self.shared.datastores {
            if datastore.config().role == Role::Primary {
                self.mounts.push(mount(datastore)?);
                datastore.reap_orphans();
            }
        }
        Ok(())
    }

    /// Waits for a signal; an error when a mount ended before.
    fn wait(&self, mut signals: Signals) -> Result<(), NodeError> {
        loop {
            if signals.pending().next().is_some() {
                tracing::info!("stopping");
                return Ok(());
            }
            self.look_at_mounts()?;
            std::thread::sleep(LOOK);
        }
    }

    fn look_at_mounts(&self) -> Result<(), NodeError> {
        for mount in &self.mounts {
            let error = match mount.news() {
                None => continue,
                Some(Err(error)) => NodeError::Mount(error),
                Some(Ok(())) => NodeError::Unmounted {
                    mount_point: mount.mount_point().to_owned(),
                },
            };
            tracing::error!(%error, "stopping");
            return Err(error);
        }
        Ok(())
    }

    /// Puts everything away.
    fn stop(mut self) -> Result<(), NodeError> {
        let mut in_order = true;
        for mount in self.mounts.drain(..) {
            if let Err(error) = mount.unmount() {
                in_order = false;
                tracing::error!(%error, "still mounted");
            }
        }
        self.shared.stopping.store(true, Ordering::Release);
        for datastore in &self.shared.datastores {
            datastore.stop();
        }
        for thread in self.threads.drain(..) {
            // One that had panicked would have ended the process.
            let _ended = thread.join();
        }
        in_order &= close_all(&self.shared.datastores);
        drop(self.control);
        if !in_order {
            return Err(NodeError::NotInOrder);
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Closes every datastore; whether all could be, in order. What failed is in the log.
fn close_all(datastores: &[Arc<Datastore>]) -> bool {
    let closed = datastores.iter().map(|datastore| datastore.close());
    closed.fold(true, |all, in_order| all & in_order)
}

fn check_mount_points(config: &NodeConfig) -> Result<(), MountError> {
    let served = |datastore: &&DatastoreConfig| datastore.role == Role::Primary;
    for datastore in config.datastores.iter().filter(served) {
        fuse::check(&mount_options(datastore))?;
    }
    Ok(())
}

/// Opens all datastores, or none.
fn open_datastores(config: &NodeConfig) -> Result<Vec<Arc<Datastore>>, DatastoreError> {
    let prepared = config.datastores.iter().map(|datastore| {
        let place = Place::on_this_machine(datastore)?;
        datastore::prepare(datastore.clone(), place)
    });
    let prepared: Vec<_> = prepared.collect::<Result<_, _>>()?;
    let mut datastores: Vec<Arc<Datastore>> = Vec::new();
    for datastore in prepared {
        match datastore.open() {
            Ok(opened) => datastores.push(opened),
            Err(error) => {
                stop_and_close(&datastores);
                return Err(error);
            }
        }
    }
    Ok(datastores)
}

/// Takes back the opening of datastores that nobody has used yet.
fn stop_and_close(datastores: &[Arc<Datastore>]) {
    for datastore in datastores {
        datastore.stop();
    }
    close_all(datastores);
}

fn mount(datastore: &Arc<Datastore>) -> Result<Mounted, MountError> {
    let service = Arc::new(Service(Arc::clone(datastore)));
    fuse::mount(service, &mount_options(datastore.config()))
}

fn mount_options(config: &DatastoreConfig) -> MountOptions {
    MountOptions {
        threads: config.fuse_threads,
        ..MountOptions::new(&config.mount, &config.name)
    }
}

impl Shared {
    /// The names of all datastores, for people.
    fn names(&self) -> String {
        let names: Vec<_> = self
            .datastores
            .iter()
            .map(|datastore| datastore.name())
            .collect();
        names.join(", ")
    }
}

impl ControlService for Shared {
    fn status(&self) -> NodeStatus {
        NodeStatus {
            node: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            fingerprint: self.fingerprint.map(|fingerprint| fingerprint.to_string()),
            datastores: self.datastores.iter().map(|d| d.status()).collect(),
        }
    }

    fn verify(
        &self,
        name: &str,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, VerifyFailure> {
        match self
            .datastores
            .iter()
            .find(|datastore| datastore.name() == name)
        {
            Some(datastore) => datastore.verify(progress),
            None => Err(VerifyFailure {
                cause: format!("node {} has no datastore named {name}", self.name),
                cure: format!("name one of: {}", self.names()),
            }),
        }
    }
}
