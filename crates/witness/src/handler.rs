//! The calls of nodes, checked and answered from the store.
//!
//! A node may ask only about a datastore of which it is one of the two nodes; the operator may ask for the list. Each
//! call of the store runs on a thread that may wait for the disk.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use lockstep_link::{Fingerprint, WarningLimiter};
use lockstep_roles::{Claim, WitnessRecord};
use tonic::{Code, Request, Response, Status};

use crate::answer::{CURE_MARK, cause_and_cure};
use crate::listener::CallerId;
use crate::pair::WitnessedDatastore;
use crate::proof::{self, RecordingProof};
use crate::proto::own as proto;
use crate::store::{WitnessStore, WitnessStoreError};
use crate::wire;

/// Answers calls.
#[derive(Clone)]
pub(crate) struct WitnessHandler {
    pub(crate) store: Arc<WitnessStore>,
    /// The witness itself: its operator may ask with its identity.
    pub(crate) own: Fingerprint,
    /// The nodes that may use the witness.
    pub(crate) nodes: Arc<BTreeSet<Fingerprint>>,
    /// The first failure of the store, which no later call can repair.
    pub(crate) failure: Arc<OnceLock<String>>,
    /// Whether the store can record a claim now.
    pub(crate) proof: Arc<RecordingProof>,
    /// Limits the log lines about refused calls.
    pub(crate) refusals: Arc<WarningLimiter>,
}

#[tonic::async_trait]
impl proto::witness_server::Witness for WitnessHandler {
    async fn read(
        &self,
        request: Request<proto::ReadRequest>,
    ) -> Result<Response<proto::Answer>, Status> {
        let caller = caller(&request)?;
        let datastore = self.allowed(caller, request.get_ref().datastore.as_ref())?;
        if self.failure.get().is_none()
            && let Some(trouble) = self.proof.trouble()
        {
            return Err(self.refuse(Code::ResourceExhausted, &trouble));
        }
        self.answer(move |store| store.read(datastore.uuid, datastore.pair))
            .await
    }

    async fn claim(
        &self,
        request: Request<proto::ClaimRequest>,
    ) -> Result<Response<proto::Answer>, Status> {
        let caller = caller(&request)?;
        let message = request.get_ref();
        let datastore = self.allowed(caller, message.datastore.as_ref())?;
        let expected = message.expected.as_ref().map(wire::record).transpose();
        let new = message.new.as_ref().ok_or(wire::WireError::Field("new"));
        let claim = Claim {
            expected: expected.map_err(|error| invalid(&error))?,
            new: new
                .and_then(wire::record)
                .map_err(|error| invalid(&error))?,
        };
        self.answer(move |store| store.claim(datastore.uuid, datastore.pair, &claim))
            .await
    }

    async fn list(
        &self,
        request: Request<proto::ListRequest>,
    ) -> Result<Response<proto::ListReply>, Status> {
        self.by_operator(&request)?;
        let listed = self.on_store(WitnessStore::list).await?;
        let datastores = listed.iter();
        Ok(Response::new(proto::ListReply {
            datastores: datastores
                .map(|(datastore, entry)| wire::listed_message(*datastore, entry))
                .collect(),
            store: self.store.id().as_bytes().to_vec(),
            trouble: self.proof.trouble(),
        }))
    }

    async fn forget(
        &self,
        request: Request<proto::ForgetRequest>,
    ) -> Result<Response<proto::ForgetReply>, Status> {
        self.by_operator(&request)?;
        let uuid = wire::uuid(&request.get_ref().uuid).map_err(|error| invalid(&error))?;
        let existed = self.on_store(move |store| store.forget(uuid)).await?;
        tracing::info!(datastore = %uuid, existed, "forgot a record, as the operator asked");
        Ok(Response::new(proto::ForgetReply { existed }))
    }
}

impl WitnessHandler {
    /// Checks that the operator of the witness asks.
    fn by_operator<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if caller(request)? == self.own {
            return Ok(());
        }
        let error = "only the owner of the witness's identity may ask this\n  \
                     cure: run the command on the server of the witness";
        Err(refusal(Code::PermissionDenied, &error))
    }

    /// Checks that the caller may ask about this datastore.
    fn allowed(
        &self,
        caller: Fingerprint,
        datastore: Option<&proto::Datastore>,
    ) -> Result<WitnessedDatastore, Status> {
        let datastore = wire::datastore(datastore).map_err(|error| invalid(&error))?;
        if datastore.pair.member(caller).is_none() {
            let error = format!(
                "{caller} is not a node of datastore {}, whose nodes are {}{CURE_MARK}check the configuration of the node",
                datastore.uuid, datastore.pair
            );
            return Err(self.refuse(Code::PermissionDenied, &error));
        }
        let mut nodes = datastore.pair.both().into_iter();
        if let Some(unknown) = nodes.find(|node| !self.nodes.contains(node)) {
            let error = format!(
                "the witness does not know {unknown}, a node of datastore {}{CURE_MARK}add a section [[node]] with that \
                 fingerprint to the configuration of the witness, and start it again",
                datastore.uuid
            );
            return Err(self.refuse(Code::PermissionDenied, &error));
        }
        Ok(datastore)
    }

    async fn answer(
        &self,
        call: impl Fn(&WitnessStore) -> Result<Option<WitnessRecord>, WitnessStoreError>
        + Send
        + 'static,
    ) -> Result<Response<proto::Answer>, Status> {
        let (record, id) = self
            .on_store(move |store| {
                // A removal between the two would give the record the identity of a store without it.
                loop {
                    let id = store.id();
                    let record = call(store)?;
                    if store.id() == id {
                        return Ok((record, id));
                    }
                }
            })
            .await?;
        Ok(Response::new(proto::Answer {
            record: record.as_ref().map(wire::record_message),
            store: id.as_bytes().to_vec(),
        }))
    }

    /// Runs a call of the store. A store that has failed answers no further call.
    async fn on_store<T: Send + 'static>(
        &self,
        call: impl FnOnce(&WitnessStore) -> Result<T, WitnessStoreError> + Send + 'static,
    ) -> Result<T, Status> {
        if let Some(failure) = self.failure.get() {
            return Err(refusal(Code::Internal, failure));
        }
        let store = Arc::clone(&self.store);
        let outcome = tokio::task::spawn_blocking(move || call(&store)).await;
        let outcome = outcome.map_err(|error| refusal(Code::Internal, &error))?;
        outcome.map_err(|error| {
            if error.is_failure() || matches!(error, WitnessStoreError::Disk { .. }) {
                self.note_proof(Err(&error));
            }
            self.refuse(code(&error), &error)
        })
    }

    /// Proves again and again that the store can record a claim, until the store has failed.
    pub(crate) async fn prove_all(self) {
        while self.failure.get().is_none() {
            let store = Arc::clone(&self.store);
            let outcome = tokio::task::spawn_blocking(move || store.prove()).await;
            // A panic of the proof leaves the last one to grow old.
            if let Ok(outcome) = outcome {
                self.note_proof(outcome.as_ref().copied());
            }
            tokio::time::sleep(proof::INTERVAL).await;
        }
    }

    /// Notes whether the store has made a durable change. A store that has failed makes none any more.
    pub(crate) fn note_proof(&self, outcome: Result<(), &WitnessStoreError>) {
        if self.proof.note(outcome) {
            match outcome {
                Ok(()) => tracing::info!("the witness can record claims again"),
                Err(error) => tracing::error!(%error, "the witness cannot record claims"),
            }
        }
        if let Some(failure) = outcome.err().filter(|error| error.is_failure()) {
            self.failure.get_or_init(|| failure.to_string());
        }
    }

    /// Logs a refused call, unless the same refusal was logged a short time ago.
    fn refuse(&self, code: Code, error: &dyn Display) -> Status {
        let text = error.to_string();
        if let Some(due) = self.refusals.is_due(&text, Instant::now()) {
            tracing::warn!(error = text, repeated = due.repeated, "refused a call");
        }
        refusal(code, error)
    }
}

/// The code of an error of one call. A client takes [`Code::Internal`] for a witness that does not answer, and the
/// other codes for a refusal.
fn code(error: &WitnessStoreError) -> Code {
    match error {
        WitnessStoreError::Full => Code::ResourceExhausted,
        WitnessStoreError::Fault(_) => Code::InvalidArgument,
        WitnessStoreError::OtherPair { .. } | WitnessStoreError::Entry { .. } => {
            Code::FailedPrecondition
        }
        error if error.is_full_disk() => Code::ResourceExhausted,
        _ => Code::Internal,
    }
}

/// The authenticated caller of a request.
fn caller<T>(request: &Request<T>) -> Result<Fingerprint, Status> {
    let caller = request.extensions().get::<CallerId>();
    let caller = caller.ok_or_else(|| Status::unauthenticated("the connection has no caller"))?;
    Ok(caller.0)
}

fn invalid(error: &dyn Display) -> Status {
    Status::invalid_argument(error.to_string())
}

/// The status of an error: its cause is the message, its cure the details.
fn refusal(code: Code, error: &dyn Display) -> Status {
    let text = error.to_string();
    let (cause, cure) = cause_and_cure(&text);
    Status::with_details(code, cause, cure.as_bytes().to_vec().into())
}

#[cfg(test)]
mod tests {
    use crate::pair::NodePair;
    use crate::proto::own::witness_server::Witness;

    use super::*;

    fn node(name: u8) -> Fingerprint {
        Fingerprint::of_certificate(&[name])
    }

    /// A handler that knows the nodes 1 to 3, and its operator 0.
    fn handler(directory: &std::path::Path) -> WitnessHandler {
        WitnessHandler {
            store: Arc::new(WitnessStore::create(directory).unwrap()),
            own: node(0),
            nodes: Arc::new((1..=3).map(node).collect()),
            failure: Arc::default(),
            proof: Arc::default(),
            refusals: Arc::default(),
        }
    }

    fn read_request(caller: Option<u8>, nodes: [u8; 2]) -> Request<proto::ReadRequest> {
        let [one, other] = nodes.map(node);
        let datastore = WitnessedDatastore {
            uuid: lockstep_types::DatastoreUuid::random(),
            pair: NodePair::new(one, other).unwrap(),
        };
        let mut request = Request::new(proto::ReadRequest {
            datastore: Some(wire::datastore_message(&datastore)),
        });
        if let Some(caller) = caller {
            request.extensions_mut().insert(CallerId(node(caller)));
        }
        request
    }

    #[tokio::test]
    async fn a_caller_asks_only_about_its_own_datastores() {
        let directory = tempfile::tempdir().unwrap();
        let handler = handler(directory.path());
        for caller in [1, 2] {
            let request = read_request(Some(caller), [1, 2]);
            handler.read(request).await.unwrap();
        }
        for (caller, nodes) in [(Some(3), [1, 2]), (Some(0), [1, 2]), (Some(1), [1, 4])] {
            let refused = handler.read(read_request(caller, nodes)).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            assert!(!refused.details().is_empty());
        }
        let nobody = handler.read(read_request(None, [1, 2])).await.unwrap_err();
        assert_eq!(nobody.code(), Code::Unauthenticated);
    }

    #[tokio::test]
    async fn a_node_gets_no_list_and_removes_no_record() {
        let directory = tempfile::tempdir().unwrap();
        let handler = handler(directory.path());
        let request = |caller| {
            let mut request = Request::new(proto::ListRequest {});
            request.extensions_mut().insert(CallerId(node(caller)));
            request
        };
        let refused = handler.list(request(1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let forget = |caller| {
            let uuid = lockstep_types::DatastoreUuid::random().as_bytes().to_vec();
            let mut request = Request::new(proto::ForgetRequest { uuid });
            request.extensions_mut().insert(CallerId(node(caller)));
            request
        };
        let refused = handler.forget(forget(1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let forgotten = handler.forget(forget(0)).await.unwrap();
        assert!(!forgotten.get_ref().existed);
        let listed = handler.list(request(0)).await.unwrap();
        assert!(listed.get_ref().datastores.is_empty());
    }

    #[tokio::test]
    async fn a_message_without_sense_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let handler = handler(directory.path());
        let mut request = Request::new(proto::ClaimRequest::default());
        request.extensions_mut().insert(CallerId(node(1)));
        let refused = handler.claim(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        let (_, _, read) = read_request(Some(1), [1, 2]).into_parts();
        let mut request = Request::new(proto::ClaimRequest {
            datastore: read.datastore,
            ..proto::ClaimRequest::default()
        });
        request.extensions_mut().insert(CallerId(node(1)));
        let refused = handler.claim(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }

    #[tokio::test]
    async fn a_failed_store_answers_nothing_more() {
        let directory = tempfile::tempdir().unwrap();
        let handler = handler(directory.path());
        let failure = || WitnessStoreError::Missing {
            place: "here".to_owned(),
        };
        let failed = handler.on_store(move |_| Err::<(), _>(failure())).await;
        assert_eq!(failed.unwrap_err().code(), Code::Internal);
        let refused = handler.read(read_request(Some(1), [1, 2])).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Internal);
        assert!(refused.message().contains("here"), "{refused}");
    }
}
