//! The witnesses of a node: one client for each, which all datastores with this witness share.

use lockstep_link::Identity;
use lockstep_witness::{WitnessClient, WitnessConfig};
use parking_lot::Mutex;

use super::error::NodeError;

/// A witness that some datastores of the node have.
#[derive(Clone, Debug)]
pub(super) struct NodeWitness {
    pub config: WitnessConfig,
    pub client: WitnessClient,
}

/// The clients of a node, one for each distinct witness.
#[derive(Debug, Default)]
pub(super) struct NodeWitnesses(Mutex<Vec<NodeWitness>>);

impl NodeWitnesses {
    /// Returns the client of a witness, and makes it for the first datastore that has this witness. Makes no connection yet.
    ///
    /// # Errors
    /// [`NodeError::OwnWitness`] if the witness has the identity of this node, [`NodeError::Witness`] if the system refuses
    /// a thread.
    pub fn client(
        &self,
        witness: &WitnessConfig,
        identity: &Identity,
    ) -> Result<NodeWitness, NodeError> {
        if matches!(witness, WitnessConfig::Own { fingerprint, .. } if *fingerprint == identity.fingerprint())
        {
            let address = witness.address();
            return Err(NodeError::OwnWitness { address });
        }
        let mut all = self.0.lock();
        if let Some(known) = all.iter().find(|known| known.config == *witness) {
            return Ok(known.clone());
        }
        let made = NodeWitness {
            config: witness.clone(),
            client: WitnessClient::new(witness, identity)?,
        };
        all.push(made.clone());
        Ok(made)
    }

    /// Ends the clients of all witnesses but these.
    pub fn keep(&self, in_use: &[&WitnessConfig]) {
        let is_in_use = |known: &NodeWitness| in_use.contains(&&known.config);
        let (kept, unused) = self.0.lock().drain(..).partition(is_in_use);
        *self.0.lock() = kept;
        // Outside of the lock: the end of a client waits for its thread.
        let _unused: Vec<NodeWitness> = unused;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{self, NodeConfig};

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
            let witnesses = NodeWitnesses::default();
            for (_, witness) in &config.witnesses {
                let found = witnesses.client(witness, &identity).unwrap();
                assert_eq!(found.config, *witness);
            }
            assert_eq!(witnesses.0.lock().len(), clients);
            let (_, first) = &config.witnesses[0];
            witnesses.keep(&[first]);
            assert_eq!(witnesses.0.lock().len(), 1);
            witnesses.keep(&[]);
            assert_eq!(witnesses.0.lock().len(), 0);
        }
    }

    #[test]
    fn a_node_is_not_its_own_witness() {
        let identity = Identity::ephemeral("a").unwrap();
        let config = node(
            &own(&fingerprint(b"witness")),
            &own(&identity.fingerprint().to_string()),
        );
        let (_, own) = &config.witnesses[1];
        let error = NodeWitnesses::default().client(own, &identity).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("is this node itself") && text.contains("cure: "),
            "{text}"
        );
    }
}
