//! One node: its datastores, the listener for peers, the mounts, and the control socket.

mod door;

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use lockstep_link::{Encryption as LinkEncryption, Fingerprint, Identity, LinkOptions, SendFrames};
use lockstep_repl::message::{Envelope, Message};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{DatastoreConfig, Encryption, LinkConfig, NodeConfig, Role};
use crate::control::{
    ControlServer, ControlService, NodeStatus, VerifyFailure, VerifyProgress, VerifyReport,
};
use crate::datastore::{self, Datastore, Dialer, Place, Service};
use crate::fuse::{self, MountOptions, Mounted};
use crate::threads;
use door::{Door, Visit};

/// Runs a node until SIGTERM or SIGINT.
pub fn run(config: &NodeConfig) -> anyhow::Result<()> {
    raise_open_files_limit();
    let signals = Signals::new([SIGTERM, SIGINT]).context("cannot handle signals")?;
    let node = Node::start(config)?;
    node.wait(signals);
    node.stop();
    Ok(())
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
    datastores: Vec<Arc<Datastore>>,
    stopping: AtomicBool,
}

impl Node {
    /// Opens everything, in the order in which a failure leaves the least to undo: no store is
    /// changed before every mount point and every store was found good.
    fn start(config: &NodeConfig) -> anyhow::Result<Self> {
        let link = open_link(config)?;
        check_mount_points(config)?;
        let datastores = open_datastores(config)?;
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            datastores,
            stopping: AtomicBool::new(false),
        });
        let control = ControlServer::start(
            &config.control,
            Arc::clone(&shared) as Arc<dyn ControlService>,
        )?;
        let mut node = Self {
            shared,
            control,
            threads: Vec::new(),
            mounts: Vec::new(),
        };
        if let Err(error) = node.mount_all().and_then(|()| node.start_threads(link)) {
            node.stop();
            return Err(error);
        }
        tracing::info!(node = config.name, "running");
        Ok(node)
    }

    fn start_threads(&mut self, link: Option<Listening>) -> anyhow::Result<()> {
        for datastore in &self.shared.datastores {
            let maintained = Arc::clone(datastore);
            self.threads
                .push(spawn("maintenance", move || maintained.run_maintenance())?);
        }
        let Some(link) = link else { return Ok(()) };
        let identity = Arc::new(link.identity);
        for datastore in &self.shared.datastores {
            let leading = Arc::clone(datastore);
            let dialer = Dialer::new(datastore.config(), Arc::clone(&identity));
            if let Some(dialer) = dialer.filter(|_| datastore.config().role == Role::Primary) {
                self.threads
                    .push(spawn("primary", move || leading.run_primary(&dialer))?);
            }
        }
        let shared = Arc::clone(&self.shared);
        let options = link.options;
        let listener = link.listener;
        self.threads.push(spawn("listener", move || {
            listen(&shared, &listener, &identity, &options);
        })?);
        Ok(())
    }

    fn mount_all(&mut self) -> anyhow::Result<()> {
        for datastore in &self.shared.datastores {
            if datastore.config().role == Role::Primary {
                self.mounts.push(mount(datastore)?);
                datastore.reap_orphans();
            }
        }
        Ok(())
    }

    /// Waits for a signal, or for a mount to end by itself.
    fn wait(&self, mut signals: Signals) {
        loop {
            if signals.pending().next().is_some() {
                tracing::info!("stopping");
                return;
            }
            if let Some(ended) = self.mounts.iter().find(|mount| mount.has_ended()) {
                tracing::warn!(mount = %ended.mount_point().display(), "the mount has ended; stopping");
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn stop(mut self) {
        for mount in self.mounts.drain(..) {
            if let Err(error) = mount.unmount() {
                tracing::error!(%error, "unmount");
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
        for datastore in &self.shared.datastores {
            datastore.close();
        }
        drop(self.control);
        tracing::info!("stopped");
    }
}

fn check_mount_points(config: &NodeConfig) -> anyhow::Result<()> {
    let served = |datastore: &&DatastoreConfig| datastore.role == Role::Primary;
    for datastore in config.datastores.iter().filter(served) {
        fuse::check(&mount_options(datastore))?;
    }
    Ok(())
}

/// Opens all datastores, or none.
fn open_datastores(config: &NodeConfig) -> anyhow::Result<Vec<Arc<Datastore>>> {
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
                for opened in datastores {
                    opened.stop();
                    opened.close();
                }
                return Err(error.into());
            }
        }
    }
    Ok(datastores)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    threads::spawn(name, body).with_context(|| format!("cannot start thread {name}"))
}

fn mount(datastore: &Arc<Datastore>) -> anyhow::Result<Mounted> {
    let service = Arc::new(Service(Arc::clone(datastore)));
    Ok(fuse::mount(service, &mount_options(datastore.config()))?)
}

fn mount_options(config: &DatastoreConfig) -> MountOptions {
    let mut options = MountOptions::new(&config.mount, &config.name);
    if let Some(threads) = NonZeroUsize::new(config.fuse_threads) {
        options.threads = threads;
    }
    options
}

/// The listener for peers and what it needs.
struct Listening {
    identity: Identity,
    listener: TcpListener,
    options: LinkOptions,
}

fn open_link(config: &NodeConfig) -> anyhow::Result<Option<Listening>> {
    let Some(LinkConfig { identity, listen }) = &config.link else {
        return Ok(None);
    };
    let identity = Identity::load(identity)?;
    let listener = TcpListener::bind(listen)
        .with_context(|| format!("cannot listen on {listen}: is another node using it?"))?;
    listener
        .set_nonblocking(true)
        .context("cannot set up the listener")?;
    let options = LinkOptions {
        encryption: encryption(config)?,
        ..LinkOptions::default()
    };
    Ok(Some(Listening {
        identity,
        listener,
        options,
    }))
}

/// The encryption setting that all datastores of a node share, for it counts before anything is
/// said of datastores.
fn encryption(config: &NodeConfig) -> anyhow::Result<LinkEncryption> {
    let mut settings: Vec<Encryption> = config
        .datastores
        .iter()
        .filter_map(|datastore| Some(datastore.peer.as_ref()?.encryption))
        .collect();
    settings.dedup();
    match settings.as_slice() {
        [] | [Encryption::On] => Ok(LinkEncryption::On),
        [Encryption::Off] => Ok(LinkEncryption::Off),
        _ => bail!(
            "datastores of one node have different settings of encryption: give all the same, or \
             run a second node process"
        ),
    }
}

/// Takes connections until the node stops; each is answered on a thread of its own.
fn listen(
    shared: &Arc<Shared>,
    listener: &TcpListener,
    identity: &Arc<Identity>,
    options: &LinkOptions,
) {
    let door = Arc::new(Door::default());
    while !shared.stopping.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((socket, _)) => {
                if let Err(error) = let_in(shared, &door, socket, identity, options) {
                    tracing::warn!(error = format!("{error:#}"), "connection refused");
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(error) => {
                tracing::warn!(%error, "accept");
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        }
    }
}

/// Has a connection answered on a thread of its own, unless too many are.
fn let_in(
    shared: &Arc<Shared>,
    door: &Arc<Door>,
    socket: TcpStream,
    identity: &Arc<Identity>,
    options: &LinkOptions,
) -> anyhow::Result<()> {
    let Some(visit) = door.enter(&socket).context("cannot watch the socket")? else {
        bail!("too many connections at once that have not proven who they are");
    };
    let (shared, identity, options) = (Arc::clone(shared), Arc::clone(identity), *options);
    spawn("peer", move || {
        answer(&shared, visit, socket, &identity, &options);
    })?;
    Ok(())
}

/// Answers one connection: authenticates it, finds out which datastore it is for, and serves it.
fn answer(
    shared: &Shared,
    visit: Visit,
    socket: TcpStream,
    identity: &Identity,
    options: &LinkOptions,
) {
    if let Err(error) = answer_checked(shared, visit, socket, identity, options) {
        tracing::warn!(error = format!("{error:#}"), "connection refused");
    }
}

fn answer_checked(
    shared: &Shared,
    visit: Visit,
    socket: TcpStream,
    identity: &Identity,
    options: &LinkOptions,
) -> anyhow::Result<()> {
    socket
        .set_nonblocking(false)
        .context("cannot set up the socket")?;
    let pinned: BTreeSet<Fingerprint> = shared
        .datastores
        .iter()
        .filter_map(|datastore| Some(datastore.config().peer.as_ref()?.fingerprint))
        .collect();
    let connection = lockstep_link::accept(socket, identity, &pinned, options)?;
    // From here on it is one of few.
    drop(visit);
    let fingerprint = connection.peer_fingerprint();
    let (sender, mut receiver) = connection.split();
    let sender: Arc<dyn SendFrames> = Arc::new(sender);
    receiver.set_timeout(Some(options.handshake_timeout))?;
    let envelope = Envelope::decode(receiver.recv()?.header)?;
    let datastore = shared.datastores.iter().find(|datastore| {
        let peer = datastore.config().peer.as_ref();
        datastore.uuid() == envelope.datastore
            && peer.is_some_and(|peer| peer.fingerprint == fingerprint)
    });
    match (datastore, &envelope.message) {
        (Some(datastore), Message::Hello(hello)) => {
            datastore.follow(&sender, Box::new(receiver), hello, &envelope);
        }
        (Some(datastore), Message::Poisoned { reason }) => datastore.told_of_poison(reason),
        (Some(_), _) => bail!("the peer did not introduce itself"),
        (None, _) => datastore::refuse(
            &*sender,
            &envelope,
            &format!(
                "node {} has no datastore {} for this peer: compare uuid and fingerprint in both \
                 configurations",
                shared.name, envelope.datastore
            ),
        ),
    }
    Ok(())
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
