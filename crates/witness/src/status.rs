//! The records of a running own witness, for its operator: the owner of the witness's identity asks over the port of the
//! nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
}

/// Why the records could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The call could not be made.
    #[error(transparent)]
    Setup(#[from] WitnessSetupError),
    /// The witness gave no answer.
    #[error(transparent)]
    Witness(#[from] WitnessError),
}

/// Asks the witness that listens on this address of this machine, with the witness's own identity.
///
/// # Errors
/// A [`ListError`].
pub fn list_records(
    listen: SocketAddr,
    identity: &Identity,
    limit: Duration,
) -> Result<WitnessListing, ListError> {
    let address = WitnessAddress::from(reachable(listen));
    let name = address.to_string();
    let witness = OwnWitness::new(WitnessDialer::new(
        address,
        identity.clone(),
        identity.fingerprint(),
    ));
    let calls = CallThread::start().map_err(WitnessSetupError::from)?;
    let reply = calls.call(limit, async move { witness.list().await });
    let reply = reply.unwrap_or_else(|| {
        let cause = format!("no answer within {} ms", limit.as_millis());
        Err(CallFailure::unreachable(cause, CURE))
    });
    let listing = reply.and_then(|reply| listing(&reply).map_err(|error| not_understood(&error)));
    Ok(listing.map_err(|failure| failure.at(name))?)
}

fn listing(reply: &proto::ListReply) -> Result<WitnessListing, WireError> {
    let datastores = reply.datastores.iter().map(wire::listed);
    Ok(WitnessListing {
        store: WitnessStoreId::from_bytes(wire::store_tag(&reply.store)?),
        datastores: datastores.collect::<Result<_, _>>()?,
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
