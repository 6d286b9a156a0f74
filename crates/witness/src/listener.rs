//! The listener of the own witness: it accepts connections, authenticates the callers, and hands the connections to
//! tonic.
//!
//! Bounds: at most [`CONNECTIONS_MAX`] connections are open. Beyond that, connections wait in the queue of the kernel. A
//! [`PreAuthLimiter`] bounds those that are not authenticated yet, and a [`WarningLimiter`] the lines about them in the
//! log. A greeting has a limit.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use lockstep_link::rpc::{ACCEPTED, Distrust, RpcTls};
use lockstep_link::{
    AdmissionGuard, ConnectionSource, Fingerprint, Identity, PreAuthLimiter, WarningLimiter,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::dialer::PROTOCOL;

/// Most open connections.
const CONNECTIONS_MAX: usize = 1024;

/// Limit for the TLS handshake and the server's byte.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed `accept`: the process may have no free file descriptor.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The authenticated fingerprint of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerId(pub(crate) Fingerprint);

/// An authenticated connection.
pub(crate) struct CallerStream {
    stream: TlsStream<TcpStream>,
    caller: CallerId,
    _permit: OwnedSemaphorePermit,
}

/// The certificates of both ends: that of the witness, and those that it accepts.
#[derive(Clone, Debug)]
pub(crate) struct CallerAdmission {
    pub(crate) identity: Identity,
    pub(crate) callers: BTreeSet<Fingerprint>,
}

/// Why a connection was refused, for the log.
#[derive(Debug, thiserror::Error)]
enum CallerRefused {
    #[error("too many connections at once that are not authenticated")]
    TooManyPending,
    #[error("cannot {operation}: {source}")]
    System {
        operation: &'static str,
        source: io::Error,
    },
    #[error("cannot use TLS: {0}")]
    Tls(#[from] lockstep_link::LinkError),
    #[error("it presents {0}; a node needs a section [[node]] with that fingerprint")]
    NotPinned(Fingerprint),
    #[error("it presents no certificate of a node: {0}")]
    NoNode(io::Error),
    #[error("it was not authenticated within {GREETING_TIMEOUT:?}")]
    TooSlow,
}

/// The port for callers: its admission, and its log.
struct CallerPort {
    admission: CallerAdmission,
    limiter: Arc<PreAuthLimiter>,
    refusals: WarningLimiter,
}

/// Accepts connections until `authenticated` has no receiver any more.
pub(crate) async fn accept_all(
    listener: TcpListener,
    admission: CallerAdmission,
    authenticated: mpsc::Sender<io::Result<CallerStream>>,
) {
    let port = Arc::new(CallerPort {
        admission,
        limiter: Arc::default(),
        refusals: WarningLimiter::default(),
    });
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(connection) = Arc::clone(&connections).acquire_owned().await else {
            return;
        };
        let (socket, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            },
            () = authenticated.closed() => return,
        };
        let Some(guard) = port.admit(&socket, peer) else {
            continue;
        };
        let (port, authenticated) = (Arc::clone(&port), authenticated.clone());
        tokio::spawn(async move {
            if let Some(stream) = port.answer(socket, guard, connection).await {
                // The receiver is gone when the server stops.
                let _ = authenticated.send(Ok(stream)).await;
            }
        });
    }
}

impl CallerPort {
    /// Admits a connection to the authentication.
    fn admit(&self, socket: &TcpStream, peer: SocketAddr) -> Option<AdmissionGuard> {
        let refused = match self.limiter.enter(socket, peer.ip()) {
            Ok(Some(guard)) => return Some(guard),
            Ok(None) => CallerRefused::TooManyPending,
            Err(source) => CallerRefused::System {
                operation: "watch the socket",
                source,
            },
        };
        self.log_refused(peer.ip().into(), &refused);
        None
    }

    /// Authenticates a caller.
    async fn answer(
        &self,
        socket: TcpStream,
        guard: AdmissionGuard,
        permit: OwnedSemaphorePermit,
    ) -> Option<CallerStream> {
        match self.greet(socket).await {
            Ok((stream, caller)) => {
                guard.authenticated();
                Some(CallerStream {
                    stream,
                    caller,
                    _permit: permit,
                })
            }
            Err(refused) => {
                self.log_refused(guard.source(), &refused);
                None
            }
        }
    }

    async fn greet(
        &self,
        socket: TcpStream,
    ) -> Result<(TlsStream<TcpStream>, CallerId), CallerRefused> {
        let CallerAdmission { identity, callers } = &self.admission;
        let tls = RpcTls::server(identity, callers, PROTOCOL)?;
        match tokio::time::timeout(GREETING_TIMEOUT, authenticate(&tls, socket)).await {
            Ok(outcome) => outcome.map_err(|error| match tls.distrust(&error) {
                Some(Distrust::NotPinned(presented)) => CallerRefused::NotPinned(presented),
                _ => CallerRefused::NoNode(error),
            }),
            Err(_) => Err(CallerRefused::TooSlow),
        }
    }

    /// Logs a refusal, unless another one of this kind and source was logged a short time ago. A stranger can make any
    /// number of certificates, so the text does not tell the kinds apart.
    fn log_refused(&self, source: ConnectionSource, refused: &CallerRefused) {
        let kind = std::mem::discriminant(refused);
        let warning = format!("{source} {kind:?}");
        if let Some(due) = self.refusals.is_due(&warning, Instant::now()) {
            let (repeated, others) = (due.repeated, due.others);
            tracing::warn!(%source, error = %refused, repeated, others, "connection refused");
        }
    }
}

async fn authenticate(
    tls: &RpcTls<tokio_rustls::rustls::ServerConfig>,
    socket: TcpStream,
) -> io::Result<(TlsStream<TcpStream>, CallerId)> {
    socket.set_nodelay(true)?;
    let mut stream = TlsAcceptor::from(tls.config()).accept(socket).await?;
    let fingerprint = tls.presented().ok_or(io::ErrorKind::PermissionDenied)?;
    stream.write_all(&[ACCEPTED]).await?;
    stream.flush().await?;
    Ok((stream, CallerId(fingerprint)))
}

impl Connected for CallerStream {
    type ConnectInfo = CallerId;

    fn connect_info(&self) -> CallerId {
        self.caller
    }
}

impl AsyncRead for CallerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CallerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
