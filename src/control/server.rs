//! The server of the control socket.
//!
//! A thread of its own runs the tokio runtime. The service's methods run on the runtime's blocking threads, so that
//! a long comparison never delays a status. A stop does not wait for clients: their connections end.

mod changes;
mod export;
mod snapshot_diff;

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

use super::error::ControlError;
use super::service::ControlService;
use super::socket::{self, SocketFile, socket_error};
use super::{proto, wire};
use lockstep_driver::report::{ChangesQuestion, VerifyMode};

/// Most events of one comparison that wait for a slow client.
const QUEUED_EVENTS_MAX: usize = 16;

/// Answers commands until it is dropped. The drop also removes the socket.
#[derive(Debug)]
pub struct ControlServer {
    socket: Option<SocketFile>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Checks, before there is a service, whether [`Self::start`] could make the socket at `path`.
    ///
    /// # Errors
    /// The [`ControlError`] that [`Self::start`] would return.
    pub fn check(path: &Path) -> Result<(), ControlError> {
        let (listener, file) = socket::listen(path)?;
        // The file goes first: as long as this process listens, no other node takes over the path.
        drop(file);
        drop(listener);
        Ok(())
    }

    /// Makes the socket at `path` and answers requests with `service`. Fails if another node answers there.
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
            .spawn(move || serve(runtime, listener, ControlHandler { service }, stopped))
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
        // The file goes first: as long as this process listens, no other node takes over the path.
        drop(self.socket.take());
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn serve(
    runtime: Runtime,
    listener: UnixListener,
    handler: ControlHandler,
    stopped: oneshot::Receiver<()>,
) {
    let service = proto::control_server::ControlServer::new(handler);
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
    // Running comparisons end by themselves.
    runtime.shutdown_background();
}

struct ControlHandler {
    service: Arc<dyn ControlService>,
}

type Events = Pin<Box<ReceiverStream<Result<proto::VerifyEvent, Status>>>>;

#[tonic::async_trait]
impl proto::control_server::Control for ControlHandler {
    async fn status(
        &self,
        _request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusReply>, Status> {
        let service = Arc::clone(&self.service);
        let status = tokio::task::spawn_blocking(move || service.status());
        let status = status.await.map_err(wire::internal)?;
        Ok(Response::new(
            wire::convert(status).map_err(wire::internal)?,
        ))
    }

    type VerifyStream = Events;

    async fn verify(
        &self,
        request: Request<proto::VerifyRequest>,
    ) -> Result<Response<Events>, Status> {
        let service = Arc::clone(&self.service);
        let proto::VerifyRequest {
            datastore: name,
            reads_disk,
            repairs,
            by_sums,
        } = request.into_inner();
        let mode = match (reads_disk, repairs) {
            (_, true) => VerifyMode::Repair,
            (true, false) => VerifyMode::Disk,
            (false, false) if by_sums => VerifyMode::Sums,
            (false, false) => VerifyMode::Memory,
        };
        let (events, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
        tokio::task::spawn_blocking(move || verify(&*service, (&name, mode), &events));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type ChangesStream = Pin<Box<ReceiverStream<Result<proto::ChangesEvent, Status>>>>;

    async fn changes(
        &self,
        request: Request<proto::ChangesRequest>,
    ) -> Result<Response<Self::ChangesStream>, Status> {
        let service = Arc::clone(&self.service);
        let proto::ChangesRequest {
            datastore,
            reader,
            since,
            ranges,
        } = request.into_inner();
        let question = ChangesQuestion {
            reader,
            since,
            ranges,
        };
        let (events, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
        tokio::task::spawn_blocking(move || {
            changes::tell(&*service, &datastore, &question, &events);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn change_readers(
        &self,
        request: Request<proto::ChangeReadersRequest>,
    ) -> Result<Response<proto::ChangeReadersReply>, Status> {
        let request = request.into_inner();
        let command = wire::reader_command(request.command).ok_or_else(|| {
            Status::unimplemented("this node does not know that command about change readers")
        })?;
        let service = Arc::clone(&self.service);
        let outcome = tokio::task::spawn_blocking(move || {
            service.change_readers(&request.datastore, &command)
        });
        let outcome = outcome.await.map_err(wire::internal)?;
        Ok(Response::new(
            wire::readers_reply(outcome).map_err(wire::internal)?,
        ))
    }

    async fn snapshots(
        &self,
        request: Request<proto::SnapshotsRequest>,
    ) -> Result<Response<proto::SnapshotsReply>, Status> {
        let request = request.into_inner();
        let command = wire::snapshots::command(request.command).ok_or_else(|| {
            Status::unimplemented("this node does not know that command about snapshots")
        })?;
        let service = Arc::clone(&self.service);
        let outcome = tokio::task::spawn_blocking(move || {
            // The command is carried out also if the client has left.
            service.snapshots(&request.datastore, &command)
        });
        let outcome = outcome.await.map_err(wire::internal)?;
        Ok(Response::new(
            wire::snapshots::reply(outcome).map_err(wire::internal)?,
        ))
    }

    async fn trash(
        &self,
        request: Request<proto::TrashRequest>,
    ) -> Result<Response<proto::TrashReply>, Status> {
        let request = request.into_inner();
        let command = wire::trash::command(request.command).ok_or_else(|| {
            Status::unimplemented("this node does not know that command about the trash")
        })?;
        let service = Arc::clone(&self.service);
        let outcome = tokio::task::spawn_blocking(move || {
            // The command is carried out also if the client has left.
            service.trash(&request.datastore, &command)
        });
        let outcome = outcome.await.map_err(wire::internal)?;
        Ok(Response::new(
            wire::trash::reply(outcome).map_err(wire::internal)?,
        ))
    }

    type ExportStream = Pin<Box<ReceiverStream<Result<proto::ExportEvent, Status>>>>;

    async fn export(
        &self,
        request: Request<proto::ExportRequest>,
    ) -> Result<Response<Self::ExportStream>, Status> {
        let service = Arc::clone(&self.service);
        let (name, question) = export::question(request.into_inner())
            .ok_or_else(|| Status::invalid_argument("the request names no place for the copy"))?;
        let (events, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
        tokio::task::spawn_blocking(move || {
            export::write_out(&*service, &name, &question, &events);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type ExportSeedStream = Pin<Box<ReceiverStream<Result<proto::ExportSeedEvent, Status>>>>;

    async fn export_seed(
        &self,
        request: Request<proto::ExportSeedRequest>,
    ) -> Result<Response<Self::ExportSeedStream>, Status> {
        let service = Arc::clone(&self.service);
        let (name, question) = export::seed_question(request.into_inner())
            .ok_or_else(|| Status::invalid_argument("the request names no place for the seed"))?;
        let (events, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
        tokio::task::spawn_blocking(move || {
            export::write_seed(&*service, &name, &question, &events);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type SnapshotDiffStream = Pin<Box<ReceiverStream<Result<proto::SnapshotDiffEvent, Status>>>>;

    async fn snapshot_diff(
        &self,
        request: Request<proto::SnapshotDiffRequest>,
    ) -> Result<Response<Self::SnapshotDiffStream>, Status> {
        let question = wire::snapshot_diff::question(request.into_inner());
        let (datastore, question) = question.ok_or_else(|| {
            Status::unimplemented("this node does not know that begin of a difference")
        })?;
        let service = Arc::clone(&self.service);
        let (events, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
        tokio::task::spawn_blocking(move || {
            snapshot_diff::tell(&*service, &datastore, &question, &events);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn follow_address(
        &self,
        request: Request<proto::FollowAddressRequest>,
    ) -> Result<Response<proto::FollowAddressReply>, Status> {
        let request = request.into_inner();
        let address = request.address.parse();
        let address = address.map_err(|_| Status::invalid_argument("this is no IP address"))?;
        let has_nfs = request.has_nfs;
        self.service
            .follow_address(&request.datastore, address, has_nfs);
        Ok(Response::new(proto::FollowAddressReply {}))
    }

    async fn change_role(
        &self,
        request: Request<proto::ChangeRoleRequest>,
    ) -> Result<Response<proto::ChangeRoleReply>, Status> {
        let request = request.into_inner();
        let change = wire::role_change(request.change)
            .ok_or_else(|| Status::unimplemented("this node does not know that change of roles"))?;
        let service = Arc::clone(&self.service);
        let outcome = tokio::task::spawn_blocking(move || {
            // The change is carried out also if the client has left.
            service.change_role(&request.datastore, change)
        });
        let outcome = outcome.await.map_err(wire::internal)?;
        Ok(Response::new(
            wire::change_reply(outcome).map_err(wire::internal)?,
        ))
    }
}

type EventSender = mpsc::Sender<Result<proto::VerifyEvent, Status>>;

fn verify(service: &dyn ControlService, (name, mode): (&str, VerifyMode), events: &EventSender) {
    let mut progress = |progress| {
        // A slow client misses a step. If the client has left, the event is not needed.
        let _ = events.try_send(wire::progress_event(progress).map_err(wire::internal));
    };
    let outcome = service.verify(name, mode, &mut progress);
    // If the client has left, the outcome is not needed.
    let _ = events.blocking_send(wire::outcome_event(outcome).map_err(wire::internal));
}
