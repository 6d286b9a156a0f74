//! The errors of the link between two nodes, each with its cause and its cure.
//!
//! The messages are for the operator who reads the log of one node. They name the peer's address, the found and the
//! expected value, and the cure. They never hold key material.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_types::Encryption;

use crate::fingerprint::Fingerprint;
use crate::frame::FrameError;

fn run_as_root(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        return "; run as root, or as the user who created the identity";
    }
    ""
}

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A call on a file of the identity failed.
    #[error("cannot {operation} {}: {source}{}", path.display(), run_as_root(source))]
    IdentityFile {
        /// The failed call.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The node has no identity yet.
    #[error(
        "{} does not exist: restore it from a backup; or give this node a new identity: move the old \
         node.toml, node.key and node.crt away, run `lockstep init` with the same options as before and \
         the --uuid of the datastore (the store is kept), and pin the printed fingerprint on the peer",
        path.display()
    )]
    IdentityMissing {
        /// The missing file.
        path: PathBuf,
    },
    /// A new identity would replace an identity that peers have pinned.
    #[error(
        "{} exists already: peers may have pinned this identity, so it is not replaced; \
         to give the identity up, remove node.key and node.crt first",
        path.display()
    )]
    IdentityExists {
        /// The existing file.
        path: PathBuf,
    },
    /// Other users than the owner can read the private key.
    #[error(
        "other users than the owner can access {} (mode {mode:04o}): every reader of the key can \
         impersonate this node; run `chmod 600 {}`, and create a new identity if another user may \
         have read the key",
        path.display(), path.display()
    )]
    IdentityExposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file of the identity has invalid content.
    #[error(
        "{} is not usable: {reason}; restore it from a backup or create a new identity with \
         `lockstep init` and pin its fingerprint on the peers",
        path.display()
    )]
    IdentityInvalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The creation of a key pair or certificate failed.
    #[error("cannot create a key pair and certificate for {name:?}: {source}")]
    IdentityCreation {
        /// The node's name.
        name: String,
        /// The cause.
        source: rcgen::Error,
    },
    /// TLS cannot use this identity.
    #[error("cannot set up TLS with this node's identity: {source}")]
    TlsSetup {
        /// The cause.
        source: rustls::Error,
    },
    /// The peer's address does not answer.
    #[error(
        "cannot connect to the peer at {peer}: {source}; check that its node runs, listens there, \
         and that no firewall is between"
    )]
    Connect {
        /// The address.
        peer: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// A call on the socket failed.
    #[error("connection with {peer} lost: cannot {operation}: {source}")]
    Socket {
        /// The peer.
        peer: SocketAddr,
        /// The failed call.
        operation: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The peer's certificate is not pinned.
    #[error(
        "{peer} refused: it presents {presented}, pinned is {expected}; if that node has a new \
         identity, pin the new fingerprint in this node's configuration; else find out which program \
         answers at this address"
    )]
    WrongFingerprint {
        /// The peer.
        peer: SocketAddr,
        /// The presented fingerprint.
        presented: Fingerprint,
        /// The fingerprints that this node has pinned, separated by commas.
        expected: String,
    },
    /// The peer does not accept this node's certificate.
    #[error(
        "{peer} refused this node, which presents {ours}; pin that fingerprint in the \
         configuration of the node at {peer}"
    )]
    RefusedByPeer {
        /// The peer.
        peer: SocketAddr,
        /// This node's fingerprint.
        ours: Fingerprint,
    },
    /// The two ends do not agree on encryption, or run versions without a common protocol.
    #[error(
        "{peer} and this node agree on no protocol: encryption is {ours} on this node; {theirs}; set \
         `encryption` alike on both nodes and run the same version of lockstep on both"
    )]
    ProtocolMismatch {
        /// The peer.
        peer: SocketAddr,
        /// This node's setting.
        ours: Encryption,
        /// The known facts about the peer's setting.
        theirs: String,
    },
    /// The program at the other end does not speak as a node does.
    #[error(
        "{peer} refused before it was authenticated: {source} (presented no certificate; expected \
         {expected}); it is not a lockstep node, or a device on the way alters the traffic"
    )]
    Unauthenticated {
        /// The peer.
        peer: SocketAddr,
        /// The fingerprints that this node has pinned.
        expected: String,
        /// The fault that TLS reports.
        source: rustls::Error,
    },
    /// The greeting did not end in time.
    #[error(
        "{peer} did not complete the greeting within {limit:?} (expected {expected}); it is \
         overloaded, not a lockstep node, or the network loses packets"
    )]
    GreetingTimedOut {
        /// The peer.
        peer: SocketAddr,
        /// The fingerprints that this node has pinned.
        expected: String,
        /// The limit.
        limit: Duration,
    },
    /// The peer closed the connection during the greeting.
    #[error(
        "{peer} closed the connection during the greeting: {source} (this node presents {ours} and \
         expects {expected}); the log of the node at {peer} gives the reason"
    )]
    GreetingClosed {
        /// The peer.
        peer: SocketAddr,
        /// This node's fingerprint.
        ours: Fingerprint,
        /// The fingerprints that this node has pinned.
        expected: String,
        /// The error of the socket.
        source: io::Error,
    },
    /// A frame is invalid. A peer sends only valid frames, so the network or a machine has altered it.
    #[error("connection with {peer} given up: {source}")]
    BadFrame {
        /// The peer.
        peer: SocketAddr,
        /// The fault.
        source: FrameError,
    },
    /// The caller's frame is outside the bounds. Nothing was sent; the connection stays open.
    #[error("frame for {peer} not sent: {source}")]
    Unsendable {
        /// The peer.
        peer: SocketAddr,
        /// The fault.
        source: FrameError,
    },
    /// TLS found the stream altered or out of order.
    #[error("connection with {peer} given up: TLS: {source}")]
    BadStream {
        /// The peer.
        peer: SocketAddr,
        /// The fault.
        source: rustls::Error,
    },
    /// No whole frame arrived within the receiver's time-out. Nothing is lost; the caller may receive again.
    #[error("no whole frame from {peer} within {limit:?}")]
    TimedOut {
        /// Whether bytes of a frame arrived.
        heard: bool,
        /// The peer.
        peer: SocketAddr,
        /// The limit.
        limit: Duration,
    },
    /// The peer takes no bytes, and the waiting bytes have reached their bound.
    #[error("{waiting_bytes} bytes wait for {peer}, which takes none")]
    QueueFull {
        /// The peer.
        peer: SocketAddr,
        /// The number of waiting bytes.
        waiting_bytes: usize,
    },
    /// The connection is closed.
    #[error("connection with {peer} closed: {reason}")]
    Closed {
        /// The peer.
        peer: SocketAddr,
        /// The reason for closing.
        reason: String,
    },
}

impl LinkError {
    /// Whether a frame has been arriving for longer than the time-out: the peer is alive.
    pub const fn is_slow(&self) -> bool {
        matches!(self, Self::TimedOut { heard: true, .. })
    }

    /// Whether the receiver's time-out has passed: the connection stays open.
    pub const fn is_timed_out(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}
