//! The answering side of the control socket.
//!
//! One thread of its own runs the runtime; the service's methods run on the runtime's blocking
//! threads, so that a long comparison never delays a status. Stopping waits for nobody: whoever
//! is still asking sees the connection end.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::socket::{self, SocketFile, socket_error};
use super::{ControlError, ControlService, proto, wire};

/// Answers to one comparison that may wait for a slow reader.
const EVENTS_WAITING_MAX: usize = 16;

/// Answers commands until it is dropped, which also removes the socket.
#[derive(Debug)]
pub struct ControlServer {
    socket: Option<SocketFile>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Looks whether [`Self::start`] could answer at `path`, for who wants to know before there is a
    /// service.
    ///
    /// # Errors
    /// The [`ControlError`] that it would give.
    pub fn check(path: &Path) -> Result<(), ControlError> {
        let (listener, file) = socket::listen(path)?;
        // The file first: while we still listen, no other node takes the path for its own.
        drop(file);
        drop(listener);
        Ok(())
    }

    /// Answers on a socket at `path` for `service`. Fails if another node answers there.
    pub fn start(path: &Path, service: Arc<dyn ControlService>) -> Result<Self, ControlError> {
        let failed = |operation| move |source| socket_error(operation, path, source);
        let (listener, socket) = socket::listen(path)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("start a runtime"))?;
        let listener = {
            let _guard = runtime.enter();
            UnixListener::from_std(listener).map_err(failed("watch"))?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || serve(runtime, listener, Answers { service }, stopped))
            .map_err(failed("start a thread"))?;
        Ok(Self {
            socket: Some(socket),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The file first: while we still listen, no other node takes the path for its own.
        drop(self.socket.take());
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn serve(
    runtime: Runtime,
    listener: UnixListener,
    answers: Answers,
    stopped: oneshot::Receiver<()>,
) {
    let service = proto::control_server::ControlServer::new(answers);
    let incoming = UnixListenerStream::new(listener);
    runtime.block_on(async {
        tokio::select! {
            outcome = Server::builder().serve_with_incoming(service, incoming) => {
                if let Err(error) = outcome {
                    tracing::error!(%error, "the control socket has failed; commands get no answer");
                }
            }
            _ = stopped => {}
        }
    });
    // Comparisons that still run end by themselves.
    runtime.shutdown_background();
}

struct Answers {
    service: Arc<dyn ControlService>,
}

type Events = Pin<Box<ReceiverStream<Result<proto::VerifyEvent, Status>>>>;

#[tonic::async_trait]
impl proto::control_server::Control for Answers {
    async fn status(
        &self,
        _request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusReply>, Status> {
        let service = Arc::clone(&self.service);
        let status = tokio::task::spawn_blocking(move || service.status());
        let status = status
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(wire::status_reply(status)))
    }

    type VerifyStream = Events;

    async fn verify(
        &self,
        request: Request<proto::VerifyRequest>,
    ) -> Result<Response<Events>, Status> {
        let service = Arc::clone(&self.service);
        let name = request.into_inner().datastore;
        let (events, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
        tokio::task::spawn_blocking(move || verify(&*service, &name, &events));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

type EventSender = mpsc::Sender<Result<proto::VerifyEvent, Status>>;

fn verify(service: &dyn ControlService, name: &str, events: &EventSender) {
    let mut progress = |progress| {
        // A reader that lags misses a step; one that has left misses nothing.
        let _ = events.try_send(Ok(wire::progress_event(progress)));
    };
    let outcome = service.verify(name, &mut progress);
    // A reader that has left asked for nothing more.
    let _ = events.blocking_send(Ok(wire::outcome_event(outcome)));
}
