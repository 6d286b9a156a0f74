//! The own witness as a server: a thread of its own runs the tokio runtime.
//!
//! A stop ends all connections. A claim that is being written is finished first.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use lockstep_link::{Fingerprint, Identity};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use crate::handler::WitnessHandler;
use crate::listener::{self, CallerAdmission};
use crate::proto::own::witness_server;
use crate::store::WitnessStore;

/// Most calls of one connection at a time.
const CALLS_MAX: usize = 64;

/// Longest request, in bytes: a claim has some 300.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Longest time for a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Idle time after which a connection is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// Most authenticated connections that wait for tonic.
const QUEUED_MAX: usize = 16;

/// How long a stop waits for calls of the store.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct WitnessServerOptions {
    /// The identity that the nodes pin.
    pub identity: Identity,
    /// Address for the nodes. Port 0 stands for a free port.
    pub listen: SocketAddr,
    /// The nodes that may use the witness.
    pub nodes: BTreeSet<Fingerprint>,
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum WitnessServerError {
    /// The address cannot be used.
    #[error(
        "cannot listen on {address}: {source}\n  \
         cure: set `listen` to an address of this server and a port that no other program uses"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refused the thread or the runtime.
    #[error(
        "cannot start a thread for the calls of nodes: {0}\n  cure: check the limits of the process and the free memory"
    )]
    Thread(#[from] io::Error),
}

/// Answers nodes until it is dropped.
#[derive(Debug)]
pub struct WitnessServer {
    address: SocketAddr,
    failure: Arc<OnceLock<String>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WitnessServer {
    /// Listens, and answers from the store.
    ///
    /// # Errors
    /// A [`WitnessServerError`].
    pub fn start(
        options: WitnessServerOptions,
        store: WitnessStore,
    ) -> Result<Self, WitnessServerError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let failed = |source| WitnessServerError::Listen {
            address: options.listen,
            source,
        };
        let bound = runtime.block_on(TcpListener::bind(options.listen));
        let bound = bound.map_err(failed)?;
        let address = bound.local_addr().map_err(failed)?;
        let failure = Arc::new(OnceLock::new());
        let own = options.identity.fingerprint();
        let handler = WitnessHandler {
            store: Arc::new(store),
            own,
            nodes: Arc::new(options.nodes.clone()),
            failure: Arc::clone(&failure),
            proof: Arc::default(),
            refusals: Arc::default(),
        };
        let mut callers = options.nodes;
        callers.insert(own);
        let admission = CallerAdmission {
            identity: options.identity,
            callers,
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("witness".to_owned())
            .spawn(move || serve(runtime, bound, admission, handler, stopped))?;
        Ok(Self {
            address,
            failure,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Why the server answers no node any more, if it has failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

impl Drop for WitnessServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn serve(
    runtime: Runtime,
    bound: TcpListener,
    admission: CallerAdmission,
    handler: WitnessHandler,
    stopped: oneshot::Receiver<()>,
) {
    let failure = Arc::clone(&handler.failure);
    let proving = handler.clone();
    let service =
        witness_server::WitnessServer::new(handler).max_decoding_message_size(REQUEST_BYTES_MAX);
    let (authenticated, incoming) = mpsc::channel(QUEUED_MAX);
    runtime.block_on(async {
        let proving = tokio::spawn(proving.prove_all());
        let accepting = tokio::spawn(listener::accept_all(bound, admission, authenticated));
        let server = Server::builder()
            .timeout(CALL_TIMEOUT)
            .concurrency_limit_per_connection(CALLS_MAX)
            .http2_keepalive_interval(Some(PROBE_INTERVAL))
            .serve_with_incoming(service, ReceiverStream::new(incoming));
        tokio::select! {
            outcome = server => {
                let cause = outcome.err().map_or_else(|| "it ended".to_owned(), |error| error.to_string());
                let _ = failure.set(format!("the server for the calls of nodes has failed: {cause}"));
            }
            _ = stopped => {}
        }
        accepting.abort();
        proving.abort();
    });
    runtime.shutdown_timeout(STOP_LIMIT);
}
