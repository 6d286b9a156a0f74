//! The listener of the own witness: it accepts connections, authenticates the callers, and hands the connections to
//! tonic.
//!
//! Bounds: at most [`CONNECTIONS_MAX`] connections are open, and at most [`GREETINGS_MAX`] of them are not
//! authenticated yet. Beyond that, connections wait in the queue of the kernel. A greeting has a limit.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lockstep_link::rpc::{ACCEPTED, Distrust, RpcTls};
use lockstep_link::{Fingerprint, Identity};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::dialer::PROTOCOL;

/// Most open connections.
const CONNECTIONS_MAX: usize = 1024;

/// Most connections whose caller is not authenticated yet.
const GREETINGS_MAX: usize = 64;

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

/// Accepts connections until `authenticated` has no receiver any more.
pub(crate) async fn accept_all(
    listener: TcpListener,
    admission: CallerAdmission,
    authenticated: mpsc::Sender<io::Result<CallerStream>>,
) {
    let admission = Arc::new(admission);
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let greetings = Arc::new(Semaphore::new(GREETINGS_MAX));
    loop {
        // Both semaphores are never closed.
        let (Ok(connection), Ok(greeting)) = (
            Arc::clone(&connections).acquire_owned().await,
            Arc::clone(&greetings).acquire_owned().await,
        ) else {
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
        let (admission, authenticated) = (Arc::clone(&admission), authenticated.clone());
        tokio::spawn(async move {
            if let Some(stream) = greet(&admission, socket, peer, connection).await {
                // The receiver is gone when the server stops.
                let _ = authenticated.send(Ok(stream)).await;
            }
            drop(greeting);
        });
    }
}

async fn greet(
    admission: &CallerAdmission,
    socket: TcpStream,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
) -> Option<CallerStream> {
    let tls = match RpcTls::server(&admission.identity, &admission.callers, PROTOCOL) {
        Ok(tls) => tls,
        Err(error) => {
            tracing::error!(%error, "cannot use TLS");
            return None;
        }
    };
    let greeting = authenticate(&tls, socket);
    match tokio::time::timeout(GREETING_TIMEOUT, greeting).await {
        Ok(Ok((stream, caller))) => Some(CallerStream {
            stream,
            caller,
            _permit: permit,
        }),
        Ok(Err(error)) => {
            let presented = match tls.distrust(&error) {
                Some(Distrust::NotPinned(fingerprint)) => fingerprint.to_string(),
                _ => "no accepted certificate".to_owned(),
            };
            tracing::warn!(%peer, %error, presented, "refused a connection; a node needs a section [[node]]");
            None
        }
        Err(_) => {
            tracing::warn!(%peer, "a connection was not authenticated in time");
            None
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
