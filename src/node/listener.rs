//! Peers that connect: they are let in, authenticated, and led to their datastore.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lockstep_driver::{Datastore, refuse, threads};
use lockstep_link::{Fingerprint, Identity, LinkError, LinkOptions, ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message, MessageError};

use super::Shared;
use super::door::{Door, Visit};
use super::error::{NodeError, system};
use super::slot::Slot;
use crate::config::{Encryption, LinkConfig, NodeConfig};

/// Between two looks whether somebody connects, or the node stops.
const LOOK: Duration = Duration::from_millis(20);
/// Before the next look, when the system could not let somebody in.
const BREATH: Duration = Duration::from_millis(200);

/// The listener for peers and what it needs.
pub(super) struct Listening {
    pub identity: Arc<Identity>,
    listener: TcpListener,
    options: LinkOptions,
}

/// Why a connection was not let in, for the log.
#[derive(Debug, thiserror::Error)]
enum Rejected {
    #[error("cannot {operation}: {source}")]
    System {
        operation: &'static str,
        source: io::Error,
    },
    #[error("too many connections at once that have not proven who they are")]
    Crowd,
    #[error("the peer did not introduce itself")]
    NotIntroduced,
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Message(#[from] MessageError),
}

impl Rejected {
    fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { operation, source }
    }
}

impl Listening {
    /// Binds the address for peers, if this node has any.
    pub fn open(config: &NodeConfig) -> Result<Option<Self>, NodeError> {
        let Some(LinkConfig { identity, listen }) = &config.link else {
            return Ok(None);
        };
        let identity = Arc::new(Identity::load(identity)?);
        let listener = TcpListener::bind(listen).map_err(|source| NodeError::Listen {
            listen: listen.to_string(),
            source,
        })?;
        listener
            .set_nonblocking(true)
            .map_err(system("set up the listener"))?;
        let options = LinkOptions {
            encryption: encryption(config),
            ..LinkOptions::default()
        };
        Ok(Some(Self {
            identity,
            listener,
            options,
        }))
    }

    /// Takes connections until the node stops; each is answered on a thread of its own.
    pub fn run(self, shared: &Arc<Shared>) {
        let door = Arc::new(Door::default());
        while !shared.stopping.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((socket, from)) => {
                    if let Err(error) = self.let_in(shared, &door, socket, from) {
                        say_refused(shared, from, &error);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(LOOK);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot let anybody in for the moment");
                    std::thread::sleep(BREATH);
                }
            }
        }
    }

    /// Has a connection answered on a thread of its own, unless too many are.
    fn let_in(
        &self,
        shared: &Arc<Shared>,
        door: &Arc<Door>,
        socket: TcpStream,
        from: SocketAddr,
    ) -> Result<(), Rejected> {
        let visit = door
            .enter(&socket)
            .map_err(Rejected::system("watch the socket"))?
            .ok_or(Rejected::Crowd)?;
        let shared = Arc::clone(shared);
        let (identity, options) = (Arc::clone(&self.identity), self.options);
        let answer = move || {
            if let Err(error) = answer(&shared, visit, socket, &identity, &options) {
                if is_wrong_peer(&error) {
                    tell_of_stranger(&shared, &without_port(&error, from));
                }
                say_refused(&shared, from, &error);
            }
        };
        threads::spawn("peer", answer).map_err(Rejected::system("start a thread"))?;
        Ok(())
    }
}

/// The encryption setting that all datastores of a node share (their configuration was checked), for it
/// counts before anything is said of datastores.
fn encryption(config: &NodeConfig) -> Encryption {
    let mut peers = config
        .datastores
        .iter()
        .filter_map(|datastore| datastore.peer.as_ref());
    peers.next().map_or(Encryption::On, |peer| peer.encryption)
}

/// Answers one connection: authenticates it, finds out which datastore it is for, and serves it.
fn answer(
    shared: &Shared,
    visit: Visit,
    socket: TcpStream,
    identity: &Identity,
    options: &LinkOptions,
) -> Result<(), Rejected> {
    let from = socket
        .peer_addr()
        .map_err(Rejected::system("ask who connects"))?;
    socket
        .set_nonblocking(false)
        .map_err(Rejected::system("set up the socket"))?;
    let pinned: BTreeSet<Fingerprint> = shared
        .slots
        .iter()
        .filter_map(|slot| Some(slot.config().peer.as_ref()?.fingerprint))
        .collect();
    let connection = lockstep_link::accept(socket, identity, &pinned, options)?;
    // From here on it is one of few.
    drop(visit);
    let fingerprint = connection.peer_fingerprint();
    let (sender, mut receiver) = connection.split();
    let sender: Arc<dyn SendFrames> = Arc::new(sender);
    receiver.set_timeout(Some(options.greeting_timeout))?;
    let envelope = Envelope::decode(receiver.recv()?.header)?;
    let slot = shared.slots.iter().find(|slot| {
        let peer = slot.config().peer.as_ref();
        slot.config().uuid == envelope.datastore
            && peer.is_some_and(|peer| peer.fingerprint == fingerprint)
    });
    let Some(slot) = slot else {
        let cause = format!(
            "node {} has no datastore {} for this peer: compare uuid and fingerprint in both \
             configurations",
            shared.name, envelope.datastore
        );
        refuse(&*sender, &envelope, &cause);
        for datastore in led_by(shared, fingerprint) {
            datastore.told_why_not_led(&cause);
        }
        say_refused(shared, from, &cause);
        return Ok(());
    };
    let Some(datastore) = slot.running() else {
        refuse(&*sender, &envelope, &not_started(shared, slot));
        return Ok(());
    };
    match &envelope.message {
        Message::Hello(hello) => datastore.follow(&sender, Box::new(receiver), hello, &envelope),
        Message::Poisoned { reason } => datastore.told_of_poison(reason),
        Message::Waiting => datastore.told_of_waiting(&*sender, &envelope),
        _ => return Err(Rejected::NotIntroduced),
    }
    Ok(())
}

/// Whether the other end is a node, or might be, that one of the configurations does not fit.
fn is_wrong_peer(error: &Rejected) -> bool {
    use LinkError::{ProtocolMismatch, RefusedByPeer, WrongFingerprint};
    matches!(
        error,
        Rejected::Link(WrongFingerprint { .. } | RefusedByPeer { .. } | ProtocolMismatch { .. })
    )
}

/// The address without the port, which is another at each attempt.
fn without_port(error: &impl ToString, from: SocketAddr) -> String {
    let text = error.to_string();
    text.replace(&from.to_string(), &from.ip().to_string())
}

/// Logs a refused connection, unless the same one was logged a short time ago.
fn say_refused(shared: &Shared, from: SocketAddr, error: &impl ToString) {
    let error = without_port(error, from);
    if let Some(repeated) = shared.refusals.is_due(&error, Instant::now()) {
        tracing::warn!(error, repeated, "connection refused");
    }
}

/// Every datastore that waits for its primary shows that somebody was refused who may be that: which of them it
/// was for is not known before it is authenticated.
fn tell_of_stranger(shared: &Shared, reason: &str) {
    for datastore in shared.slots.iter().filter_map(Slot::running) {
        datastore.told_of_stranger(reason);
    }
}

/// The datastores that this node shares with that peer.
fn led_by(shared: &Shared, fingerprint: Fingerprint) -> impl Iterator<Item = Arc<Datastore>> {
    let is_of = move |slot: &&Slot| {
        let peer = slot.config().peer.as_ref();
        peer.is_some_and(|peer| peer.fingerprint == fingerprint)
    };
    shared.slots.iter().filter(is_of).filter_map(Slot::running)
}

/// Why a datastore of this node follows nobody yet.
fn not_started(shared: &Shared, slot: &Slot) -> String {
    let reason = slot
        .reason()
        .unwrap_or_else(|| "it is being opened".to_owned());
    format!(
        "node {} has not started this datastore: {reason}",
        shared.name
    )
}
