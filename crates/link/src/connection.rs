//! Connecting: TCP connect, then the greeting.
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
//! In TLS 1.3, a client completes the handshake before the server has checked the client's certificate. The one byte
//! tells the client the server's decision, so that `dial` reports a refusal. The byte also makes leaving TLS safe: the
//! server sends no clear byte before the client's hello, and the client sends no byte at all before the server's byte.
//! So neither end can have clear bytes in its TLS buffers.
//!
//! The whole greeting has one deadline. Until the greeting ends, a peer can occupy no more memory of this node than
//! rustls's handshake buffer.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_types::Encryption;
use rustls::{AlertDescription, CertificateError, Connection as Tls, Error as TlsError};

use crate::error::LinkError;
use crate::fingerprint::Fingerprint;
use crate::frame::{Opener, Sealer};
use crate::identity::Identity;
use crate::options::LinkOptions;
use crate::outgoing::Outgoing;
use crate::payload::Payload;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::socket::{self, DeadlineSocket};
use crate::tls::{self, ACCEPTED, Pins, Presenter, SumMethods};
use crate::transport::{ReceiveFrames, SendFrames};
use crate::wire::Wire;

/// Header of the first frame in both directions.
const HELLO: &[u8] = b"lockstep hello";

/// Time for a refused peer to read the reason.
const REFUSAL_GRACE: Duration = Duration::from_millis(500);

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

    /// The peer's authenticated fingerprint, one of the pinned fingerprints.
    pub fn peer_fingerprint(&self) -> Fingerprint {
        self.peer_fingerprint
    }

    /// Whether frames travel encrypted.
    pub fn encryption(&self) -> Encryption {
        self.encryption
    }
}

/// Connects to the node at `peer`, whose fingerprint must be `pinned`.
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
    let greeting = Greeting {
        peer,
        ours: identity.fingerprint(),
        pins,
        presenter: None,
        options,
        deadline: Instant::now() + options.greeting_timeout,
    };
    greeting.run(socket, tls.into())
}

/// Greets a client that has connected. The client's fingerprint must be one of `pinned`. May take the whole
/// `greeting_timeout`: do not call this function on the thread that accepts connections.
///
/// # Errors
/// [`LinkError`]; the connection is closed, and the client has received the reason if possible.
pub fn accept(
    socket: TcpStream,
    identity: &Identity,
    pinned: &BTreeSet<Fingerprint>,
    options: &LinkOptions,
) -> Result<Connection, LinkError> {
    let deadline = Instant::now() + options.greeting_timeout;
    let peer = socket.peer_addr().map_err(|source| LinkError::Socket {
        peer: SocketAddr::from(([0, 0, 0, 0], 0)),
        operation: "get the address of a client",
        source,
    })?;
    let pins = Pins::new(pinned.clone());
    let presenter = Presenter::new(identity);
    let tls = tls::server(&presenter, &pins, options.encryption)
        .map_err(|source| LinkError::TlsSetup { source })?;
    let greeting = Greeting {
        peer,
        ours: identity.fingerprint(),
        pins,
        presenter: Some(presenter),
        options,
        deadline,
    };
    greeting.run(socket, tls.into())
}

/// A greeting in progress, at either end.
struct Greeting<'a> {
    peer: SocketAddr,
    ours: Fingerprint,
    pins: Arc<Pins>,
    /// Set at the server's end; `None` at the client's end.
    presenter: Option<Arc<Presenter>>,
    options: &'a LinkOptions,
    deadline: Instant,
}

impl Greeting<'_> {
    fn run(&self, socket: TcpStream, mut tls: Tls) -> Result<Connection, LinkError> {
        socket::tune(&socket, self.options).map_err(|e| self.socket_error("set options", e))?;
        let mut timed = DeadlineSocket::new(&socket, self.deadline);
        if let Err(error) = self.authenticate(&mut tls, &mut timed) {
            // TLS may still have to send the alert that tells the peer the reason.
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
        self.exchange_hellos(&mut connection)?;
        Ok(connection)
    }

    /// The TLS handshake and the server's byte.
    fn authenticate(&self, tls: &mut Tls, socket: &mut DeadlineSocket<'_>) -> io::Result<()> {
        tls.set_buffer_limit(None); // the sender bounds the bytes that it encrypts at once
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
        let methods = SumMethods::derive(&tls, self.options.encryption)
            .map_err(|source| LinkError::TlsSetup { source })?;
        let (ours, theirs) = if self.is_client() {
            (methods.from_client, methods.from_server)
        } else {
            (methods.from_server, methods.from_client)
        };
        let tls = (self.options.encryption == Encryption::On).then_some(tls);
        let wire = Arc::new(Wire::new(socket, self.peer, tls));
        let outgoing = Arc::new(Outgoing::new(Arc::clone(&wire), Sealer::new(ours)));
        let receiver = Receiver::new(wire, Arc::clone(&outgoing), Opener::new(theirs));
        Ok((Sender::new(outgoing), receiver))
    }

    /// Exchanges the first frames, which prove that both ends have completed the handshake with equal keys.
    fn exchange_hellos(&self, connection: &mut Connection) -> Result<(), LinkError> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let remaining = remaining.max(Duration::from_millis(1));
        connection.receiver.set_timeout(Some(remaining))?;
        if self.is_client() {
            connection.sender.send(HELLO, Payload::NONE)?;
        }
        self.await_hello(&mut connection.receiver)?;
        if !self.is_client() {
            connection.sender.send(HELLO, Payload::NONE)?;
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
        Err(self.mismatch(format!("the peer's first frame says {found:?}")))
    }

    fn is_client(&self) -> bool {
        self.presenter.is_none()
    }

    /// Explains a failed greeting to the operator.
    fn explain(&self, error: io::Error) -> LinkError {
        if error.kind() == io::ErrorKind::TimedOut {
            return self.timed_out();
        }
        match error.downcast::<TlsError>() {
            Ok(source) => self.explain_tls(source),
            Err(source) => LinkError::GreetingClosed {
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
            (source, _) => LinkError::Unauthenticated {
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
        LinkError::GreetingTimedOut {
            peer: self.peer,
            expected: self.pins.expected(),
            limit: self.options.greeting_timeout,
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

/// Waits at the client's end for the server's byte.
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
