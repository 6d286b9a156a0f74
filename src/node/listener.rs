//! The listener for peers: it accepts connections, authenticates the peers, and hands each connection to its
//! datastore.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_driver::{Datastore, refuse, threads};
use lockstep_link::{
    AdmissionGuard, Fingerprint, Identity, LinkError, LinkOptions, PreAuthLimiter, ReceiveFrames,
    SendFrames,
};
use lockstep_repl::message::{Envelope, MessageError};

use super::error::{NodeError, system};
use super::shared::NodeShared;
use super::slot::DatastoreSlot;
use crate::config::{Encryption, LinkConfig, NodeConfig};

/// Pause after the system could not accept a connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// The listener for peers, with the identity and the options of its connections.
pub(super) struct PeerListener {
    pub identity: Arc<Identity>,
    listener: TcpListener,
    options: LinkOptions,
}

/// Why a connection was refused, for the log.
#[derive(Debug, thiserror::Error)]
enum ConnectionRefused {
    #[error("cannot {operation}: {source}")]
    System {
        operation: &'static str,
        source: io::Error,
    },
    #[error("too many connections at once that are not authenticated")]
    TooManyPending,
    #[error("the first message of the peer is none with which a node begins")]
    WrongFirstMessage,
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Message(#[from] MessageError),
}

impl ConnectionRefused {
    fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { operation, source }
    }
}

impl PeerListener {
    /// Binds the address for peers, if this node has peers.
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

    /// The setting of all connections.
    pub fn encryption(&self) -> Encryption {
        self.options.encryption
    }

    /// Accepts connections until the node stops. A thread of its own answers each connection.
    pub fn run(self, shared: &Arc<NodeShared>) {
        let limiter = Arc::new(PreAuthLimiter::default());
        while !shared.stop.is_set() {
            match self.listener.accept() {
                Ok((socket, from)) => {
                    if let Err(error) = self.accept(shared, &limiter, socket, from) {
                        log_refused(shared, from, &error);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    shared.stop.wait_until_readable(self.listener.as_fd());
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection at the moment");
                    shared.stop.wait(ACCEPT_BACKOFF);
                }
            }
        }
    }

    /// Starts a thread that answers a connection, unless too many connections are pending.
    fn accept(
        &self,
        shared: &Arc<NodeShared>,
        limiter: &Arc<PreAuthLimiter>,
        socket: TcpStream,
        from: SocketAddr,
    ) -> Result<(), ConnectionRefused> {
        let guard = limiter
            .enter(&socket, from.ip())
            .map_err(ConnectionRefused::system("watch the socket"))?
            .ok_or(ConnectionRefused::TooManyPending)?;
        let shared = Arc::clone(shared);
        let (identity, options) = (Arc::clone(&self.identity), self.options);
        let answer = move || {
            if let Err(error) = answer(&shared, guard, socket, &identity, &options) {
                if is_wrong_peer(&error) {
                    note_unauthenticated_peer(&shared, &without_port(&error, from));
                }
                log_refused(&shared, from, &error);
            }
        };
        threads::spawn("peer", answer).map_err(ConnectionRefused::system("start a thread"))?;
        Ok(())
    }
}

/// Returns the encryption setting. All datastores of a node share it, as the check of the configuration ensures: it
/// applies before the first message names a datastore.
fn encryption(config: &NodeConfig) -> Encryption {
    let mut peers = config
        .datastores
        .iter()
        .filter_map(|datastore| datastore.peer.as_ref());
    peers.next().map_or(Encryption::On, |peer| peer.encryption)
}

/// Answers one connection: authenticates the peer, finds the datastore of the first message, and serves the peer.
fn answer(
    shared: &NodeShared,
    guard: AdmissionGuard,
    socket: TcpStream,
    identity: &Identity,
    options: &LinkOptions,
) -> Result<(), ConnectionRefused> {
    let from = socket
        .peer_addr()
        .map_err(ConnectionRefused::system("read the address of the peer"))?;
    socket
        .set_nonblocking(false)
        .map_err(ConnectionRefused::system("set up the socket"))?;
    let pinned: BTreeSet<Fingerprint> = shared
        .registry
        .all()
        .iter()
        .filter_map(|slot| slot.peer())
        .collect();
    let connection = lockstep_link::accept(socket, identity, &pinned, options)?;
    guard.authenticated();
    let fingerprint = connection.peer_fingerprint();
    let (sender, mut receiver) = connection.split();
    let sender: Arc<dyn SendFrames> = Arc::new(sender);
    receiver.set_timeout(Some(options.greeting_timeout))?;
    let envelope = Envelope::decode(receiver.recv()?.header)?;
    let Some(slot) = shared.registry.of_peer(envelope.datastore, fingerprint) else {
        let cause = format!(
            "node {} has no datastore {} for this peer: compare uuid and fingerprint in both \
             configurations",
            shared.name, envelope.datastore
        );
        refuse(&*sender, &envelope, &cause);
        for datastore in datastores_of_peer(shared, fingerprint) {
            datastore.role().note_refused_peer(&cause);
        }
        log_refused(shared, from, &cause);
        return Ok(());
    };
    let Some(datastore) = slot.running() else {
        refuse(&*sender, &envelope, &not_started(shared, &slot));
        return Ok(());
    };
    if datastore
        .role()
        .serve_peer(&sender, Box::new(receiver), &envelope)
    {
        Ok(())
    } else {
        Err(ConnectionRefused::WrongFirstMessage)
    }
}

/// Whether the other end is, or may be, a node whose configuration does not match this node's.
fn is_wrong_peer(error: &ConnectionRefused) -> bool {
    use LinkError::{ProtocolMismatch, RefusedByPeer, WrongFingerprint};
    matches!(
        error,
        ConnectionRefused::Link(
            WrongFingerprint { .. } | RefusedByPeer { .. } | ProtocolMismatch { .. }
        )
    )
}

/// Removes the port of the peer, which differs at each attempt.
fn without_port(error: &impl ToString, from: SocketAddr) -> String {
    let text = error.to_string();
    text.replace(&from.to_string(), &from.ip().to_string())
}

/// Logs a refused connection, unless the same warning was logged a short time ago.
fn log_refused(shared: &NodeShared, from: SocketAddr, error: &impl ToString) {
    let error = without_port(error, from);
    if let Some(due) = shared.refusals.is_due(&error, Instant::now()) {
        let (repeated, others) = (due.repeated, due.others);
        tracing::warn!(error, repeated, others, "connection refused");
    }
}

/// Shows in every datastore that waits for its primary that this node has refused a peer, which may be that
/// primary. The datastore that the peer wanted is unknown before authentication.
fn note_unauthenticated_peer(shared: &NodeShared, reason: &str) {
    for datastore in shared
        .registry
        .all()
        .iter()
        .filter_map(|slot| slot.running())
    {
        datastore.role().note_unauthenticated(reason);
    }
}

/// Returns the datastores that this node shares with the peer.
fn datastores_of_peer(shared: &NodeShared, fingerprint: Fingerprint) -> Vec<Arc<Datastore>> {
    let all = shared.registry.all().into_iter();
    all.filter(|slot| slot.has_peer(fingerprint))
        .filter_map(|slot| slot.running())
        .collect()
}

/// Why a datastore of this node serves no primary yet.
fn not_started(shared: &NodeShared, slot: &DatastoreSlot) -> String {
    let reason = slot
        .reason()
        .unwrap_or_else(|| "it is being opened".to_owned());
    format!(
        "node {} has not started this datastore: {reason}",
        shared.name
    )
}
