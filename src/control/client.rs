//! The client of the control socket, with blocking calls.

mod changes;
mod events;
mod export;
mod failures;
mod snapshot_diff;
mod snapshots;
mod trash;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_driver::report::{RoleReport, VerifyMode, VerifyProgress, VerifyReport};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};

use self::events::ControlEvents;
use self::failures::{converted, cut_short, no_answer, refused, unanswered, unknown, unreachable};
use super::error::ControlError;
use super::proto::change_role_reply::Outcome;
use super::proto::control_client::ControlClient as Stub;
use super::proto::verify_event::Event;
use super::report::NodeStatus;
use super::service::RoleCommand;
use super::socket::socket_error;
use super::{proto, wire};

/// Longest wait for a status. The node answers from memory.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the control socket of a running node.
#[derive(Debug)]
pub struct ControlClient {
    path: PathBuf,
    runtime: Runtime,
    stub: Stub<Channel>,
    /// Longest wait for a status.
    limit: Duration,
}

impl ControlClient {
    /// Connects to the node that answers at `path`.
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        Self::connect_within(path, STATUS_TIMEOUT)
    }

    /// Connects to the node that answers at `path`. Neither this call nor a status takes longer than `limit`.
    pub fn connect_within(path: &Path, limit: Duration) -> Result<Self, ControlError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| socket_error("start a runtime", path, source))?;
        let uri = format!("unix://{}", path.display());
        let channel = Endpoint::from_shared(uri)
            .map(|endpoint| endpoint.connect_timeout(limit))
            .map_err(|error| unreachable(path, &error))?;
        let connected = runtime.block_on(async {
            // The greeting of the protocol may take longer than the connect.
            tokio::time::timeout(limit, channel.connect()).await
        });
        let channel = connected
            .map_err(|_| no_answer(path, limit))?
            .map_err(|error| unreachable(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            runtime,
            stub: Stub::new(channel),
            limit,
        })
    }

    /// Requests the current status of the node.
    pub fn status(&mut self) -> Result<NodeStatus, ControlError> {
        let request = async {
            let answer = self.stub.status(proto::StatusRequest {});
            tokio::time::timeout(self.limit, answer).await
        };
        match self.runtime.block_on(request) {
            Ok(Ok(reply)) => {
                wire::node_status(reply.into_inner()).map_err(|error| unknown(&self.path, error))
            }
            Ok(Err(status)) => Err(unanswered(&self.path, &status)),
            Err(_) => Err(no_answer(&self.path, self.limit)),
        }
    }

    /// Tells the node that the caller moves the cluster address `address` by the answers about the datastore `name`, and
    /// whether an NFS server is behind it. An older node does not know this call.
    pub fn follow_address(
        &mut self,
        name: &str,
        address: IpAddr,
        has_nfs: bool,
    ) -> Result<(), ControlError> {
        let request = proto::FollowAddressRequest {
            datastore: name.to_owned(),
            address: address.to_string(),
            has_nfs,
        };
        let request = async {
            let answer = self.stub.follow_address(request);
            tokio::time::timeout(self.limit, answer).await
        };
        match self.runtime.block_on(request) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(refused(&self.path, &status)),
            Err(_) => Err(no_answer(&self.path, self.limit)),
        }
    }

    /// Compares both nodes of the datastore `name`, without a time limit, and calls `progress` meanwhile.
    pub fn verify(
        &mut self,
        name: &str,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, ControlError> {
        let (path, stub) = (&self.path, &mut self.stub);
        let request = proto::VerifyRequest {
            datastore: name.to_owned(),
            reads_disk: matches!(mode, VerifyMode::Disk | VerifyMode::Repair),
            by_sums: mode == VerifyMode::Sums,
            repairs: mode == VerifyMode::Repair,
        };
        self.runtime.block_on(async {
            let mut events = ControlEvents::of(path, stub.verify(request).await)?;
            loop {
                match events.next().await?.event {
                    Some(Event::Progress(step)) => progress(converted(path, step)?),
                    Some(Event::Report(report)) => return converted(path, report),
                    Some(Event::Failure(failure)) => {
                        return Err(ControlError::Verify(converted(path, failure)?));
                    }
                    None => return Err(cut_short(path)),
                }
            }
        })
    }

    /// Changes the role of the node in the datastore `name`, without a time limit: a command that stops waiting does
    /// not know the outcome.
    pub fn change_role(
        &mut self,
        name: &str,
        change: RoleCommand,
    ) -> Result<RoleReport, ControlError> {
        let path = &self.path;
        let answer = self.stub.change_role(wire::change_request(name, change));
        let reply = self
            .runtime
            .block_on(answer)
            .map_err(|status| refused(path, &status))?;
        match reply.into_inner().outcome {
            Some(Outcome::Report(report)) => converted(path, report),
            Some(Outcome::Failure(failure)) => {
                Err(ControlError::ChangeRole(converted(path, failure)?))
            }
            None => Err(cut_short(path)),
        }
    }
}
