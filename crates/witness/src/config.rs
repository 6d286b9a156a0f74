//! The choice of a witness for a datastore, as plain values.

use lockstep_link::Fingerprint;
use lockstep_types::WitnessId;

use crate::address::{EtcdEndpoint, WitnessAddress};

/// The witness that a node asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WitnessConfig {
    /// A server that `lockstep witness` runs.
    Own {
        /// The `listen` of the witness, as seen from the node.
        address: WitnessAddress,
        /// Fingerprint of the witness's certificate.
        fingerprint: Fingerprint,
    },
    /// A cluster of etcd.
    Etcd {
        /// The members, in any order. Without a member no call succeeds.
        endpoints: Vec<EtcdEndpoint>,
    },
}

impl WitnessConfig {
    /// The identity that both nodes of a datastore must have in common.
    pub const fn id(&self) -> WitnessId {
        match self {
            Self::Own { fingerprint, .. } => WitnessId::of_certificate(fingerprint.digest()),
            Self::Etcd { .. } => WitnessId::ETCD,
        }
    }

    /// The address for people: of the witness, or of all members of etcd.
    pub fn address(&self) -> String {
        match self {
            Self::Own { address, .. } => address.to_string(),
            Self::Etcd { endpoints } => {
                let all: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
                all.join(", ")
            }
        }
    }
}
