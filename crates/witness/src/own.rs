//! The client of the own witness.
//!
//! One connection serves all datastores, and stays up between calls: both ends probe it while it is idle. A call over a
//! connection that was lost meanwhile is made once more over a new one. That is safe: a repeated claim changes nothing
//! if the first one was granted (`Claim::apply`).

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use lockstep_roles::Claim;
use lockstep_types::DatastoreUuid;
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::answer::{CallFailure, WitnessAnswer, root_cause};
use crate::dialer::{CURE, WitnessDialer};
use crate::pair::WitnessedDatastore;
use crate::proto::own as proto;
use crate::wire::{self, WireError};

type OwnStub = proto::witness_client::WitnessClient<Channel>;

/// Time after which the connection is probed during a call. Without a call, the regular question of the node is the probe.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Limit for the answer to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Cure of an answer that this program does not understand.
const SAME_VERSION: &str = "use the same version of lockstep for nodes and witness";

/// The connection with an own witness.
#[derive(Debug)]
pub(crate) struct OwnWitness {
    dialer: WitnessDialer,
    stub: Mutex<Option<OwnStub>>,
}

impl OwnWitness {
    /// Makes no connection yet.
    pub(crate) const fn new(dialer: WitnessDialer) -> Self {
        Self {
            dialer,
            stub: Mutex::new(None),
        }
    }

    /// Reads the record, or makes the claim.
    pub(crate) async fn ask(
        &self,
        datastore: &WitnessedDatastore,
        claim: Option<Claim>,
    ) -> Result<WitnessAnswer, CallFailure> {
        let datastore = Some(wire::datastore_message(datastore));
        let answer = if let Some(claim) = claim {
            let request = proto::ClaimRequest {
                datastore,
                expected: claim.expected.as_ref().map(wire::record_message),
                new: Some(wire::record_message(&claim.new)),
            };
            self.call(|mut stub: OwnStub| {
                let request = request.clone();
                async move { stub.claim(request).await }
            })
            .await?
        } else {
            let request = proto::ReadRequest { datastore };
            self.call(|mut stub: OwnStub| {
                let request = request.clone();
                async move { stub.read(request).await }
            })
            .await?
        };
        wire::answer(&answer).map_err(|error| not_understood(&error))
    }

    /// Returns all records.
    pub(crate) async fn list(&self) -> Result<proto::ListReply, CallFailure> {
        let call = |mut stub: OwnStub| async move { stub.list(proto::ListRequest {}).await };
        self.call(call).await
    }

    /// Removes the record of a datastore. Returns whether there was one.
    pub(crate) async fn forget(&self, datastore: DatastoreUuid) -> Result<bool, CallFailure> {
        let uuid = datastore.as_bytes().to_vec();
        let call = |mut stub: OwnStub| {
            let request = proto::ForgetRequest { uuid: uuid.clone() };
            async move { stub.forget(request).await }
        };
        Ok(self.call(call).await?.existed)
    }

    /// Gives the connection up: a call over it has reached its limit.
    pub(crate) fn reset(&self) {
        *self.stub.lock() = None;
    }

    async fn call<T, F>(&self, call: impl Fn(OwnStub) -> F) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let _ = self.dialer.take_failure();
        match self.attempt(&call).await {
            Err(Attempt::Lost(_)) => self.attempt(&call).await.map_err(Attempt::into_failure),
            outcome => outcome.map_err(Attempt::into_failure),
        }
    }

    async fn attempt<T, F>(&self, call: &impl Fn(OwnStub) -> F) -> Result<T, Attempt>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        match call(self.stub()).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => {
                // A status without a source comes from the witness. Any other tells of the transport.
                if status.source().is_none() {
                    return Err(Attempt::Failed(told(&status)));
                }
                self.reset();
                Err(match self.dialer.take_failure() {
                    Some(failure) => Attempt::Failed(failure),
                    None => Attempt::Lost(root_cause(&status)),
                })
            }
        }
    }

    fn stub(&self) -> OwnStub {
        let mut stub = self.stub.lock();
        stub.get_or_insert_with(|| {
            let endpoint = Endpoint::from_static("http://witness")
                .http2_keep_alive_interval(PROBE_INTERVAL)
                .keep_alive_timeout(PROBE_TIMEOUT);
            OwnStub::new(endpoint.connect_with_connector_lazy(self.dialer.clone()))
        })
        .clone()
    }
}

/// Why one attempt at a call has failed.
enum Attempt {
    /// The connection was lost; another attempt makes a new one.
    Lost(String),
    /// Another attempt would fail alike.
    Failed(CallFailure),
}

impl Attempt {
    fn into_failure(self) -> CallFailure {
        match self {
            Self::Lost(cause) => {
                CallFailure::unreachable(format!("the connection was lost: {cause}"), CURE)
            }
            Self::Failed(failure) => failure,
        }
    }
}

/// The failure that the witness has told.
fn told(status: &Status) -> CallFailure {
    let cause = status.message().to_owned();
    match status.code() {
        Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::ResourceExhausted
        | Code::Unimplemented => {
            let cure = String::from_utf8_lossy(status.details());
            let cure = if cure.is_empty() { SAME_VERSION } else { &cure };
            CallFailure::refused(cause, cure)
        }
        _ => CallFailure::unreachable(cause, "see the log of the witness"),
    }
}

pub(crate) fn not_understood(error: &WireError) -> CallFailure {
    CallFailure::refused(
        format!("its answer is not understood: {error}"),
        SAME_VERSION,
    )
}
