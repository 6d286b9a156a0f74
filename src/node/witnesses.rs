//! The witnesses of a node: one client for each, which all datastores with this witness share.

use lockstep_link::Identity;
use lockstep_witness::{WitnessClient, WitnessConfig};

use super::error::NodeError;
use crate::config::NodeConfig;

/// A witness that some datastores of the node have.
#[derive(Clone, Debug)]
pub(super) struct NodeWitness {
    /// Address for people.
    pub address: String,
    pub client: WitnessClient,
}

/// The clients of a node, one for each distinct witness.
#[derive(Debug)]
pub(super) struct NodeWitnesses(Vec<(WitnessConfig, NodeWitness)>);

impl NodeWitnesses {
    /// Makes the clients of all witnesses in the configuration. Makes no connection yet.
    ///
    /// # Errors
    /// [`NodeError::OwnWitness`] if a witness has the identity of this node, [`NodeError::Witness`] if the system refuses
    /// a thread.
    pub fn new(config: &NodeConfig, identity: Option<&Identity>) -> Result<Self, NodeError> {
        let mut all: Vec<(WitnessConfig, NodeWitness)> = Vec::new();
        let Some(identity) = identity else {
            return Ok(Self(all));
        };
        for (_, witness) in &config.witnesses {
            let address = witness.address();
            if matches!(witness, WitnessConfig::Own { fingerprint, .. } if *fingerprint == identity.fingerprint())
            {
                return Err(NodeError::OwnWitness { address });
            }
            if all.iter().all(|(known, _)| known != witness) {
                let client = WitnessClient::new(witness, identity)?;
                all.push((witness.clone(), NodeWitness { address, client }));
            }
        }
        Ok(Self(all))
    }

    /// Returns the client of a witness.
    pub fn find(&self, witness: &WitnessConfig) -> Option<&NodeWitness> {
        let mut all = self.0.iter();
        all.find(|(known, _)| known == witness)
            .map(|(_, client)| client)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn node(first: &str, second: &str) -> NodeConfig {
        let datastore = |number: u8, witness: &str| {
            format!(
                "[[datastore]]\nname = \"d{number}\"\nuuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a00{number}\"\n\
                 store = \"/s{number}\"\nmount = \"/m{number}\"\nrole = \"primary\"\n\
                 [datastore.peer]\naddress = \"10.0.0.2:7400\"\nfingerprint = \"{}\"\n\
                 [datastore.witness]\n{witness}\n",
                fingerprint(b"peer")
            )
        };
        let text = format!(
            "[node]\nname = \"a\"\nidentity = \"/i\"\nlisten = \"10.0.0.1:7400\"\ncontrol = \"/c\"\n{}{}",
            datastore(1, first),
            datastore(2, second)
        );
        config::parse(&text, Path::new("node.toml")).unwrap()
    }

    fn fingerprint(der: &[u8]) -> String {
        lockstep_link::Fingerprint::of_certificate(der).to_string()
    }

    fn own(fingerprint: &str) -> String {
        format!("address = \"10.0.0.3:7400\"\nfingerprint = \"{fingerprint}\"")
    }

    #[test]
    fn datastores_with_one_witness_share_its_client() {
        let identity = Identity::ephemeral("a").unwrap();
        let witness = own(&fingerprint(b"witness"));
        let etcd = "etcd = [\"http://10.0.0.4:2379\"]";
        for (second, clients) in [(&*witness, 1), (etcd, 2)] {
            let config = node(&witness, second);
            let witnesses = NodeWitnesses::new(&config, Some(&identity)).unwrap();
            assert_eq!(witnesses.0.len(), clients);
            for (_, witness) in &config.witnesses {
                let found = witnesses.find(witness).unwrap();
                assert_eq!(found.address, witness.address());
            }
        }
    }

    #[test]
    fn a_node_is_not_its_own_witness() {
        let identity = Identity::ephemeral("a").unwrap();
        let config = node(
            &own(&fingerprint(b"witness")),
            &own(&identity.fingerprint().to_string()),
        );
        let error = NodeWitnesses::new(&config, Some(&identity)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("is this node itself") && text.contains("cure: "),
            "{text}"
        );
    }
}
