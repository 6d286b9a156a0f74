//! The operator's calls to a running own witness. The owner of the witness's identity asks over the port of the nodes.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lockstep_link::Identity;
use lockstep_roles::WitnessError;
use lockstep_types::DatastoreUuid;

use crate::address::WitnessAddress;
use crate::answer::CallFailure;
use crate::call_thread::CallThread;
use crate::client::WitnessSetupError;
use crate::dialer::{CURE, WitnessDialer};
use crate::entry::WitnessEntry;
use crate::own::{OwnWitness, not_understood};
use crate::proto::own as proto;
use crate::store::WitnessStoreId;
use crate::wire::{self, WireError};

/// The records of a witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessListing {
    /// Identity of the witness's store.
    pub store: WitnessStoreId,
    /// The datastores, in the order of their UUIDs.
    pub datastores: Vec<(DatastoreUuid, WitnessEntry)>,
    /// Why the witness could not record a claim now: it answers no node then.
    pub trouble: Option<String>,
}

/// Why an operator got no answer.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The call could not be made.
    #[error(transparent)]
    Setup(#[from] WitnessSetupError),
    /// The witness gave no answer.
    #[error(transparent)]
    Witness(#[from] WitnessError),
}

/// The operator's connection with a running witness.
#[derive(Debug)]
pub struct WitnessOperator {
    address: String,
    witness: Arc<OwnWitness>,
    calls: CallThread,
    limit: Duration,
}

impl WitnessOperator {
    /// The operator of the witness that listens on this address of this machine, with the witness's own identity. Each
    /// call has this limit.
    ///
    /// # Errors
    /// [`OperatorError::Setup`].
    pub fn new(
        listen: SocketAddr,
        identity: &Identity,
        limit: Duration,
    ) -> Result<Self, OperatorError> {
        let address = WitnessAddress::from(reachable(listen));
        let own = identity.fingerprint();
        let dialer = WitnessDialer::new(address.clone(), identity.clone(), own);
        Ok(Self {
            address: address.to_string(),
            witness: Arc::new(OwnWitness::new(dialer)),
            calls: CallThread::start().map_err(WitnessSetupError::from)?,
            limit,
        })
    }

    /// Returns all records.
    ///
    /// # Errors
    /// [`OperatorError::Witness`].
    pub fn list(&self) -> Result<WitnessListing, OperatorError> {
        let witness = Arc::clone(&self.witness);
        let reply = self.call(async move { witness.list().await })?;
        let listing = listing(&reply).map_err(|error| not_understood(&error));
        Ok(listing.map_err(|failure| failure.at(&self.address))?)
    }

    /// Removes the record of a datastore. Returns whether there was one.
    ///
    /// # Errors
    /// [`OperatorError::Witness`].
    pub fn forget(&self, datastore: DatastoreUuid) -> Result<bool, OperatorError> {
        let witness = Arc::clone(&self.witness);
        self.call(async move { witness.forget(datastore).await })
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, CallFailure>> + Send + 'static,
    ) -> Result<T, OperatorError> {
        let outcome = self.calls.call(self.limit, call);
        let outcome = outcome.unwrap_or_else(|| Err(CallFailure::timed_out(self.limit, CURE)));
        Ok(outcome.map_err(|failure| failure.at(&self.address))?)
    }
}

fn listing(reply: &proto::ListReply) -> Result<WitnessListing, WireError> {
    let datastores = reply.datastores.iter().map(wire::listed);
    Ok(WitnessListing {
        store: WitnessStoreId::from_bytes(wire::store_tag(&reply.store)?),
        datastores: datastores.collect::<Result<_, _>>()?,
        trouble: reply.trouble.clone(),
    })
}

/// The address by which this machine reaches a server of its own.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
