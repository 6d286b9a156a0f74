//! Making a connection: TCP, handshake, and the first frame each way.
//!
//! ```text
//! client                                    server
//!   |--------- TLS 1.3 handshake, both authenticated ---------|
//!   |<---------------- one byte, inside TLS ------------------|  "your certificate is accepted"
//!   |   (encryption off: both leave TLS here, with keys from  |
//!   |    its exporter)                                        |
//!   |------------------- hello frame ------------------------>|
//!   |<------------------ hello frame -------------------------|
//! ```
//!
//! In TLS 1.3 a client finishes before the server has judged its certificate: the one byte is the
//! judgement, so that `dial` reports a refusal. It also makes leaving TLS safe against reading too
//! far: the server sends nothing in clear before the client's hello, the client nothing at all
//! before the byte, so neither can have clear bytes in its TLS buffers.
//!
//! The whole handshake has one deadline, and until it ends a peer can make this node hold no more
//! than rustls's handshake buffer.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_types::Encryption;
use rustls::{AlertDescription, CertificateError, Connection as Tls, Error as TlsError};

use crate::error::LinkError;
use crate::frame::{Opener, Sealer};
use crate::identity::{Fingerprint, Identity};
use crate::receiver::Receiver;
use crate::sender::{Outgoing, Sender};
use crate::socket::{self, DeadlineSocket};
use crate::tls::{self, ClearKeys, Pins, Presenter};
use crate::wire::Wire;

/// The byte by which the server says that it accepts the client.
const ACCEPTED: u8 = b'K';

/// Header of the first frame in both directions.
const HELLO: &[u8] = b"lockstep hello";

/// How long a refused peer gets to read why.
const REFUSAL_GRACE: Duration = Duration::from_millis(500);

/// How a connection is made and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Must be alike on both ends.
    pub encryption: Encryption,
    /// Limit for TCP to connect.
    pub connect_timeout: Duration,
    /// Limit for everything after that until the connection can be used.
    pub handshake_timeout: Duration,
    /// Idle time after which the kernel probes the peer; dead after half of that again, about.
    /// Whole seconds. `None`: never.
    pub keepalive: Option<Duration>,
    /// How long sent bytes may stay unacknowledged before the kernel gives the connection up
    /// (`TCP_USER_TIMEOUT`). `None`: the system's, many minutes.
    pub user_timeout: Option<Duration>,
    /// Size of the kernel's send buffer; `None`: the kernel tunes it.
    pub send_buffer_bytes: Option<usize>,
    /// Size of the kernel's receive buffer; `None`: the kernel tunes it.
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            encryption: Encryption::On,
            connect_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            keepalive: Some(Duration::from_secs(10)),
            user_timeout: Some(Duration::from_secs(15)),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }
}

/// An authenticated connection with a peer. Closed when dropped.
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    peer: SocketAddr,
    peer_fingerprint: Fingerprint,
    encryption: Encryption,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({}, {})", self.peer, self.peer_fingerprint)
    }
}

impl Connection {
    /// The two halves, for different threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Who the peer is: one of the pinned fingerprints, proven.
    pub fn peer_fingerprint(&self) -> Fingerprint {
        self.peer_fingerprint
    }

    /// Whether frames travel encrypted.
    pub fn encryption(&self) -> Encryption {
        self.encryption
    }
}

/// Connects to the node at `peer`, which must prove to be `pinned`.
pub fn dial(
    peer: SocketAddr,
    identity: &Identity,
    pinned: Fingerprint,
    options: &LinkOptions,
) -> Result<Connection, LinkError> {
    let socket = TcpStream::connect_timeout(&peer, options.connect_timeout)
        .map_err(|source| LinkError::Connect { peer, source })?;
    let pins = Pins::new(BTreeSet::from([pinned]));
    let tls = tls::client(identity, &pins, options.encryption)
        .map_err(|source| LinkError::TlsSetup { source })?;
    let handshake = Handshake {
        peer,
        ours: identity.fingerprint(),
        pins,
        presenter: None,
        options,
        deadline: Instant::now() + options.handshake_timeout,
    };
    handshake.run(socket, tls.into())
}

/// Answers a client that has connected; it must prove to be one of `pinned`. May take the whole
/// `handshake_timeout`: do not call it on the thread that accepts for others.
///
/// # Errors
/// [`LinkError`]; the client is gone then, and was told as far as it could be.
pub fn accept(
    socket: TcpStream,
    identity: &Identity,
    pinned: &BTreeSet<Fingerprint>,
    options: &LinkOptions,
) -> Result<Connection, LinkError> {
    let deadline = Instant::now() + options.handshake_timeout;
    let peer = socket.peer_addr().map_err(|source| LinkError::Socket {
        peer: SocketAddr::from(([0, 0, 0, 0], 0)),
        operation: "tell the address of a client",
        source,
    })?;
    let pins = Pins::new(pinned.clone());
    let presenter = Presenter::new(identity);
    let tls = tls::server(&presenter, &pins, options.encryption)
        .map_err(|source| LinkError::TlsSetup { source })?;
    let handshake = Handshake {
        peer,
        ours: identity.fingerprint(),
        pins,
        presenter: Some(presenter),
        options,
        deadline,
    };
    handshake.run(socket, tls.into())
}

/// One handshake under way, at either end.
struct Handshake<'a> {
    peer: SocketAddr,
    ours: Fingerprint,
    pins: Arc<Pins>,
    /// The server's; `None` at the client's end.
    presenter: Option<Arc<Presenter>>,
    options: &'a LinkOptions,
    deadline: Instant,
}

impl Handshake<'_> {
    fn run(&self, socket: TcpStream, mut tls: Tls) -> Result<Connection, LinkError> {
        socket::tune(&socket, self.options).map_err(|e| self.socket_error("set options", e))?;
        let mut timed = DeadlineSocket::new(&socket, self.deadline);
        if let Err(error) = self.authenticate(&mut tls, &mut timed) {
            // What is left to be said is the alert that tells the peer why.
            while tls.wants_write() && tls.write_tls(&mut timed).is_ok() {}
            timed.linger(REFUSAL_GRACE);
            return Err(self.explain(error));
        }
        timed
            .finish()
            .map_err(|e| self.socket_error("set options", e))?;
        let Some(peer_fingerprint) = self.pins.presented() else {
            return Err(self.explain(tls_failure(TlsError::NoCertificatesPresented)));
        };
        let (sender, receiver) = self.halves(socket, tls)?;
        let mut connection = Connection {
            sender,
            receiver,
            peer: self.peer,
            peer_fingerprint,
            encryption: self.options.encryption,
        };
        self.greet(&mut connection)?;
        Ok(connection)
    }

    /// TLS up to and with the server's byte.
    fn authenticate(&self, tls: &mut Tls, socket: &mut DeadlineSocket<'_>) -> io::Result<()> {
        tls.set_buffer_limit(None); // what is encrypted at once is bounded by the sender
        while tls.is_handshaking() {
            tls.complete_io(socket)?;
        }
        if tls.alpn_protocol() != Some(tls::protocol(self.options.encryption)) {
            return Err(tls_failure(TlsError::NoApplicationProtocol));
        }
        if self.is_client() {
            return await_acceptance(tls, socket);
        }
        tls.writer().write_all(&[ACCEPTED])?;
        while tls.wants_write() {
            tls.write_tls(socket)?;
        }
        Ok(())
    }

    fn halves(&self, socket: TcpStream, tls: Tls) -> Result<(Sender, Receiver), LinkError> {
        let (outgoing_key, incoming_key, tls) = match self.options.encryption {
            Encryption::On => (None, None, Some(tls)),
            Encryption::Off => {
                let keys = ClearKeys::derive(&tls);
                let keys = keys.map_err(|source| LinkError::TlsSetup { source })?;
                let (ours, theirs) = if self.is_client() {
                    (keys.from_client, keys.from_server)
                } else {
                    (keys.from_server, keys.from_client)
                };
                (Some(ours), Some(theirs), None)
            }
        };
        let wire = Arc::new(Wire::new(socket, self.peer, tls));
        let outgoing = Arc::new(Outgoing::new(Arc::clone(&wire), Sealer::new(outgoing_key)));
        let receiver = Receiver::new(wire, Arc::clone(&outgoing), Opener::new(incoming_key));
        Ok((Sender::new(outgoing), receiver))
    }

    /// The first frame each way: proves that both ends are past the handshake with equal keys.
    fn greet(&self, connection: &mut Connection) -> Result<(), LinkError> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let remaining = remaining.max(Duration::from_millis(1));
        connection.receiver.set_timeout(Some(remaining))?;
        if self.is_client() {
            connection.sender.send(HELLO, &[])?;
        }
        self.await_hello(&mut connection.receiver)?;
        if !self.is_client() {
            connection.sender.send(HELLO, &[])?;
        }
        connection.receiver.set_timeout(None)
    }

    fn await_hello(&self, receiver: &mut Receiver) -> Result<(), LinkError> {
        let header = match receiver.recv() {
            Ok(frame) => frame.header,
            Err(error) if error.is_timed_out() => return Err(self.timed_out()),
            Err(error) => return Err(error),
        };
        if header == HELLO {
            return Ok(());
        }
        let found = String::from_utf8_lossy(header.get(..HELLO.len()).unwrap_or(header));
        Err(self.mismatch(format!("there the first frame says {found:?}")))
    }

    fn is_client(&self) -> bool {
        self.presenter.is_none()
    }

    /// What a failed handshake means to an operator.
    fn explain(&self, error: io::Error) -> LinkError {
        if error.kind() == io::ErrorKind::TimedOut {
            return self.timed_out();
        }
        match error.downcast::<TlsError>() {
            Ok(source) => self.explain_tls(source),
            Err(source) => LinkError::HandshakeClosed {
                peer: self.peer,
                ours: self.ours,
                expected: self.pins.expected(),
                source,
            },
        }
    }

    fn explain_tls(&self, error: TlsError) -> LinkError {
        match (error, self.pins.presented()) {
            (
                TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure),
                Some(presented),
            ) => LinkError::WrongFingerprint {
                peer: self.peer,
                presented,
                expected: self.pins.expected(),
            },
            (TlsError::AlertReceived(AlertDescription::AccessDenied), _) => {
                LinkError::RefusedByPeer {
                    peer: self.peer,
                    ours: self.ours,
                }
            }
            (
                TlsError::NoApplicationProtocol
                | TlsError::AlertReceived(AlertDescription::NoApplicationProtocol),
                _,
            ) => self.mismatch(self.presenter.as_ref().map_or_else(
                || "the peer has another setting or version".into(),
                |presenter| presenter.offered(),
            )),
            (source, _) => LinkError::Stranger {
                peer: self.peer,
                expected: self.pins.expected(),
                source,
            },
        }
    }

    fn mismatch(&self, theirs: String) -> LinkError {
        LinkError::ProtocolMismatch {
            peer: self.peer,
            ours: self.options.encryption,
            theirs,
        }
    }

    fn timed_out(&self) -> LinkError {
        LinkError::HandshakeTimedOut {
            peer: self.peer,
            expected: self.pins.expected(),
            limit: self.options.handshake_timeout,
        }
    }

    fn socket_error(&self, operation: &'static str, source: io::Error) -> LinkError {
        LinkError::Socket {
            peer: self.peer,
            operation,
            source,
        }
    }
}

/// The client's wait for the server's byte.
fn await_acceptance(tls: &mut Tls, socket: &mut DeadlineSocket<'_>) -> io::Result<()> {
    let mut byte = [0];
    loop {
        match tls.reader().read(&mut byte) {
            Ok(1) if byte == [ACCEPTED] => return Ok(()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => {}
        }
        if tls.read_tls(socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        tls.process_new_packets().map_err(tls_failure)?;
    }
}

fn tls_failure(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
