//! The client of a witness, as a node uses it: blocking calls with a limit, to any kind of witness.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockstep_link::{Fingerprint, Identity};
use lockstep_roles::{Claim, Member, Witness, WitnessError, WitnessRecord};
use lockstep_types::DatastoreUuid;

use crate::answer::{CallFailure, WitnessAnswer};
use crate::call_thread::CallThread;
use crate::config::WitnessConfig;
use crate::dialer::{self, WitnessDialer};
use crate::etcd::{self, EtcdWitness};
use crate::last_answer::LastAnswer;
use crate::own::OwnWitness;
use crate::pair::{NodePair, WitnessedDatastore};

/// Why a client cannot be made. No witness was asked.
#[derive(Debug, thiserror::Error)]
pub enum WitnessSetupError {
    /// The system refused the thread of the client.
    #[error(
        "cannot start a thread for the witness: {0}\n  cure: check the limits of the process and the free memory"
    )]
    Thread(#[from] io::Error),
    /// The datastore has one node only.
    #[error(
        "the peer of datastore {0} is this node itself\n  \
         cure: write the fingerprint of the other node into [datastore.peer]"
    )]
    OneNode(DatastoreUuid),
}

/// A node's connection with a witness. It serves all datastores of the node that have this witness. Cheap to clone.
///
/// The connection is made at the first call, and made again by itself.
#[derive(Clone, Debug)]
pub struct WitnessClient(Arc<ClientParts>);

#[derive(Debug)]
struct ClientParts {
    node: Fingerprint,
    /// The address of the witness, for errors.
    address: String,
    kind: Arc<WitnessKind>,
    calls: CallThread,
}

#[derive(Debug)]
enum WitnessKind {
    Own(OwnWitness),
    Etcd(EtcdWitness),
}

impl WitnessClient {
    /// The client of the witness that `config` names, for the node with this identity. Makes no connection yet.
    ///
    /// # Errors
    /// [`WitnessSetupError::Thread`].
    pub fn new(config: &WitnessConfig, identity: &Identity) -> Result<Self, WitnessSetupError> {
        let kind = match config {
            WitnessConfig::Own {
                address,
                fingerprint,
            } => {
                let dialer = WitnessDialer::new(address.clone(), identity.clone(), *fingerprint);
                WitnessKind::Own(OwnWitness::new(dialer))
            }
            WitnessConfig::Etcd { endpoints } => WitnessKind::Etcd(EtcdWitness::new(endpoints)),
        };
        Ok(Self(Arc::new(ClientParts {
            node: identity.fingerprint(),
            address: config.address(),
            kind: Arc::new(kind),
            calls: CallThread::start()?,
        })))
    }

    /// The witness of one datastore. `peer` is the fingerprint of the other node. Take it once for each datastore: it
    /// remembers the last answer, to notice a witness that has lost records.
    ///
    /// # Errors
    /// [`WitnessSetupError::OneNode`] if the peer is this node.
    pub fn datastore(
        &self,
        uuid: DatastoreUuid,
        peer: Fingerprint,
    ) -> Result<Box<dyn Witness>, WitnessSetupError> {
        let pair = self.pair(uuid, peer)?;
        Ok(Box::new(DatastoreWitness {
            client: self.clone(),
            datastore: WitnessedDatastore { uuid, pair },
            last: LastAnswer::default(),
        }))
    }

    /// The name of this node in the records of one datastore. `peer` is the fingerprint of the other node.
    ///
    /// # Errors
    /// As [`Self::datastore`].
    pub fn member(
        &self,
        uuid: DatastoreUuid,
        peer: Fingerprint,
    ) -> Result<Member, WitnessSetupError> {
        let member = self.pair(uuid, peer)?.member(self.0.node);
        member.ok_or(WitnessSetupError::OneNode(uuid))
    }

    fn pair(&self, uuid: DatastoreUuid, peer: Fingerprint) -> Result<NodePair, WitnessSetupError> {
        NodePair::new(self.0.node, peer).ok_or(WitnessSetupError::OneNode(uuid))
    }
}

impl WitnessKind {
    async fn ask(
        &self,
        datastore: &WitnessedDatastore,
        claim: Option<Claim>,
        limit: Duration,
    ) -> Result<WitnessAnswer, CallFailure> {
        match self {
            Self::Own(witness) => witness.ask(datastore, claim).await,
            Self::Etcd(witness) => witness.ask(datastore, claim, limit).await,
        }
    }

    fn reset(&self) {
        match self {
            Self::Own(witness) => witness.reset(),
            Self::Etcd(witness) => witness.reset(),
        }
    }

    /// The cure of a witness that gives no answer.
    const fn cure(&self) -> &'static str {
        match self {
            Self::Own(_) => dialer::CURE,
            Self::Etcd(_) => etcd::CURE,
        }
    }
}

/// The witness of one datastore.
struct DatastoreWitness {
    client: WitnessClient,
    datastore: WitnessedDatastore,
    last: LastAnswer,
}

impl DatastoreWitness {
    fn ask(
        &self,
        claim: Option<Claim>,
        limit: Duration,
    ) -> Result<Option<WitnessRecord>, WitnessError> {
        let parts = &self.client.0;
        let before = self.last.before_call();
        let (kind, datastore) = (Arc::clone(&parts.kind), self.datastore);
        let call = async move { kind.ask(&datastore, claim, limit).await };
        let outcome = parts.calls.call(limit, call).unwrap_or_else(|| {
            // The connection may be dead without a sign: the next call gets a new one.
            parts.kind.reset();
            Err(CallFailure::timed_out(limit, parts.kind.cure()))
        });
        outcome
            .and_then(|answer| {
                self.last.take(before, answer)?;
                Ok(answer.record)
            })
            .map_err(|failure| failure.at(&parts.address))
    }
}

impl Witness for DatastoreWitness {
    fn read(&self, limit: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
        self.ask(None, limit)
    }

    fn claim(&self, claim: &Claim, limit: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
        self.ask(Some(*claim), limit)
    }
}
