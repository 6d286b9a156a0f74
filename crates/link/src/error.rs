//! What can go wrong between two nodes, each with its cause and its cure.
//!
//! Messages are for the operator who reads the log of one node: they name the peer's address, what
//! was met, what was expected, and what to do. They never hold key material.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_types::Encryption;

use crate::frame::FrameError;
use crate::identity::Fingerprint;

fn run_as_root(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        return "; run as root, or as the user who made the identity";
    }
    ""
}

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A file of the identity could not be read or written.
    #[error("cannot {operation} {}: {source}{}", path.display(), run_as_root(source))]
    IdentityFile {
        /// What was being done.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The node has no identity yet.
    #[error(
        "{} does not exist: restore it from a backup; or give this node a new identity: move the old \
         node.toml, node.key and node.crt away, run `lockstep init` with the options of before and the \
         --uuid of the datastore (its store is kept), and pin the fingerprint that it prints on the peer",
        path.display()
    )]
    IdentityMissing {
        /// The missing file.
        path: PathBuf,
    },
    /// A new identity would replace one that peers have pinned.
    #[error(
        "{} exists already: peers may have pinned this identity, so it is not replaced; \
         remove node.key and node.crt first if it is really to be given up",
        path.display()
    )]
    IdentityExists {
        /// The file in the way.
        path: PathBuf,
    },
    /// Others than the owner can read the private key.
    #[error(
        "{} is open to others than its owner (mode {mode:04o}): whoever reads it can pose as this \
         node; run `chmod 600 {}`, and make a new identity if it may have been read",
        path.display(), path.display()
    )]
    IdentityExposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file of the identity does not hold what it should.
    #[error(
        "{} is not usable: {reason}; restore it from a backup or make a new identity with \
         `lockstep init` and pin its fingerprint on the peers",
        path.display()
    )]
    IdentityInvalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No key pair or certificate could be made.
    #[error("cannot make a key pair and certificate for {name:?}: {source}")]
    IdentityMake {
        /// The node's name.
        name: String,
        /// Why not.
        source: rcgen::Error,
    },
    /// A text is not a fingerprint.
    #[error(
        "{text:?} is not a fingerprint: it is written SHA256: and 64 hexadecimal digits, as \
         `lockstep init` shows it"
    )]
    FingerprintSyntax {
        /// The text.
        text: String,
    },
    /// TLS could not be set up with this identity.
    #[error("cannot set up TLS with this node's identity: {source}")]
    TlsSetup {
        /// Why not.
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
        /// Why not.
        source: io::Error,
    },
    /// A call on the socket failed.
    #[error("connection with {peer} lost: cannot {operation}: {source}")]
    Socket {
        /// The peer.
        peer: SocketAddr,
        /// What was being done.
        operation: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The peer is not the one that is pinned.
    #[error(
        "{peer} refused: it presents {presented}, pinned is {expected}; if that node was given a \
         new identity, pin the new fingerprint in this node's configuration, else find out who it is"
    )]
    WrongFingerprint {
        /// The peer.
        peer: SocketAddr,
        /// What it presented.
        presented: Fingerprint,
        /// What is pinned here; several are separated by commas.
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
        "{peer} and this node agree on no protocol: here encryption is {ours}, {theirs}; set \
         `encryption` alike on both nodes and run the same version of lockstep on both"
    )]
    ProtocolMismatch {
        /// The peer.
        peer: SocketAddr,
        /// The setting here.
        ours: Encryption,
        /// What is known of the peer's.
        theirs: String,
    },
    /// What is at the other end does not speak as a node does.
    #[error(
        "{peer} refused before it was authenticated: {source} (presented no certificate; expected \
         {expected}); it is not a lockstep node, or something between alters the traffic"
    )]
    Stranger {
        /// The peer.
        peer: SocketAddr,
        /// What is pinned here.
        expected: String,
        /// What TLS made of it.
        source: rustls::Error,
    },
    /// The handshake did not end in time.
    #[error(
        "{peer} did not complete the handshake within {limit:?} (expected {expected}); it is \
         overloaded, not a lockstep node, or the network loses packets"
    )]
    HandshakeTimedOut {
        /// The peer.
        peer: SocketAddr,
        /// What is pinned here.
        expected: String,
        /// The limit.
        limit: Duration,
    },
    /// The peer went away during the handshake.
    #[error(
        "{peer} closed the connection during the handshake: {source} (here {ours}, expected \
         {expected}); the log of the node there says why"
    )]
    HandshakeClosed {
        /// The peer.
        peer: SocketAddr,
        /// This node's fingerprint.
        ours: Fingerprint,
        /// What is pinned here.
        expected: String,
        /// How it was noticed.
        source: io::Error,
    },
    /// A frame is wrong; as a peer sends only right ones, the network or a machine altered it.
    #[error("connection with {peer} given up: {source}")]
    BadFrame {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong.
        source: FrameError,
    },
    /// The caller's frame is outside the bounds; nothing was sent, the connection stands.
    #[error("frame for {peer} not sent: {source}")]
    Unsendable {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong.
        source: FrameError,
    },
    /// TLS found the stream altered or out of order.
    #[error("connection with {peer} given up: TLS: {source}")]
    BadStream {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong.
        source: rustls::Error,
    },
    /// No whole frame arrived within the time-out of the receiver; nothing is lost, receive again.
    #[error("nothing whole from {peer} within {limit:?}")]
    TimedOut {
        /// Whether bytes of one did.
        heard: bool,
        /// The peer.
        peer: SocketAddr,
        /// The limit.
        limit: Duration,
    },
    /// The peer takes nothing, and what waits for it has reached its bound.
    #[error("{waiting_bytes} bytes wait for {peer}, which takes none")]
    QueueFull {
        /// The peer.
        peer: SocketAddr,
        /// Bytes that wait.
        waiting_bytes: usize,
    },
    /// The connection is closed.
    #[error("connection with {peer} closed: {reason}")]
    Closed {
        /// The peer.
        peer: SocketAddr,
        /// By whom or what.
        reason: String,
    },
}

impl LinkError {
    /// Whether a frame has been arriving for longer than the time-out: the peer is alive.
    pub const fn is_slow(&self) -> bool {
        matches!(self, Self::TimedOut { heard: true, .. })
    }

    /// Whether the receiver merely saw nothing in time: the connection stands.
    pub const fn is_timed_out(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}
