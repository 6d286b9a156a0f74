//! Connections of a client to the own witness: TCP, TLS with pinned certificates, and the server's byte.
//!
//! The channel of tonic dials through a [`WitnessDialer`] whenever it has no connection. The channel hides the cause
//! of a failed dial, so the dialer keeps it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, io};

use hyper_util::rt::TokioIo;
use lockstep_link::rpc::{ACCEPTED, Distrust, RpcTls};
use lockstep_link::{Fingerprint, Identity};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::transport::Uri;

use crate::address::WitnessAddress;
use crate::answer::CallFailure;

/// The protocol name of the connections.
pub(crate) const PROTOCOL: &[u8] = b"lockstep-witness/1";

/// Cure of an unreachable witness.
pub(crate) const CURE: &str =
    "start the witness with `lockstep witness`, and check its address and the firewalls";

/// Dials one witness. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WitnessDialer(Arc<DialerParts>);

struct DialerParts {
    address: WitnessAddress,
    identity: Identity,
    server: Fingerprint,
    failure: Mutex<Option<CallFailure>>,
}

/// Tells the channel that a dial has failed; [`WitnessDialer::take_failure`] has the cause.
#[derive(Debug, thiserror::Error)]
#[error("no connection with the witness")]
pub(crate) struct DialFailed;

impl fmt::Debug for WitnessDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WitnessDialer({}, {})", self.0.address, self.0.server)
    }
}

impl WitnessDialer {
    pub(crate) fn new(address: WitnessAddress, identity: Identity, server: Fingerprint) -> Self {
        Self(Arc::new(DialerParts {
            address,
            identity,
            server,
            failure: Mutex::new(None),
        }))
    }

    /// The cause of the last dial, if that has failed since the last call of this function.
    pub(crate) fn take_failure(&self) -> Option<CallFailure> {
        self.0.failure.lock().take()
    }
}

impl Service<Uri> for WitnessDialer {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = DialFailed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, DialFailed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialFailed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let parts = Arc::clone(&self.0);
        Box::pin(async move {
            let dialed = parts.dial().await;
            let (outcome, failure) = match dialed {
                Ok(stream) => (Ok(TokioIo::new(stream)), None),
                Err(failure) => (Err(DialFailed), Some(failure)),
            };
            *parts.failure.lock() = failure;
            outcome
        })
    }
}

impl DialerParts {
    async fn dial(&self) -> Result<TlsStream<TcpStream>, CallFailure> {
        let socket = TcpStream::connect(self.address.to_string()).await;
        let socket = socket.map_err(|error| CallFailure::unreachable(error.to_string(), CURE))?;
        socket.set_nodelay(true).map_err(|error| lost(&error))?;
        let setup = |error: lockstep_link::LinkError| {
            CallFailure::refused(
                error.to_string(),
                "make a new identity with `lockstep init`",
            )
        };
        let tls = RpcTls::client(&self.identity, self.server, PROTOCOL).map_err(setup)?;
        let name = RpcTls::server_name().map_err(setup)?;
        let explain = |error: io::Error| self.explain(&tls, &error);
        let connector = TlsConnector::from(tls.config());
        let mut stream = connector.connect(name, socket).await.map_err(explain)?;
        if stream.get_ref().1.alpn_protocol() != Some(PROTOCOL) {
            return Err(other_protocol());
        }
        match stream.read_u8().await.map_err(explain)? {
            ACCEPTED => Ok(stream),
            _ => Err(other_protocol()),
        }
    }

    fn explain<C>(&self, tls: &RpcTls<C>, error: &io::Error) -> CallFailure {
        match tls.distrust(error) {
            Some(Distrust::NotPinned(presented)) => CallFailure::refused(
                format!("it presents {presented}, and pinned is {}", self.server),
                "if the witness has a new identity, pin its new fingerprint in the configuration of this node; else find \
                 out which program answers at that address",
            ),
            Some(Distrust::RefusedByPeer) => CallFailure::refused(
                format!(
                    "it does not know this node, which presents {}",
                    self.identity.fingerprint()
                ),
                "add a section [[node]] with that fingerprint to the configuration of the witness, and start it again",
            ),
            Some(Distrust::OtherProtocol) => other_protocol(),
            None => lost(error),
        }
    }
}

fn other_protocol() -> CallFailure {
    CallFailure::refused(
        "the program at that address is no witness of this version",
        "check the address, and use the same version of lockstep for nodes and witness",
    )
}

fn lost(error: &io::Error) -> CallFailure {
    CallFailure::unreachable(
        format!("the connection was lost at its begin: {error}"),
        CURE,
    )
}
