//! The options of `lockstep init` for a witness that exists, and the steps that concern a witness.

use std::fmt::Write as _;
use std::str::FromStr;

use clap::Args;
use lockstep_link::{Fingerprint, FingerprintError};
use lockstep_witness::{AddressError, EtcdEndpoint, WitnessAddress, WitnessConfig};

/// The witness of a new node.
#[derive(Debug, Args)]
pub(in crate::cli) struct AskedWitnessArgs {
    /// A witness that runs on a third server, by its address and fingerprint: with it a failover needs no operator
    #[arg(
        long = "ask-witness",
        value_name = "HOST:PORT=SHA256:…",
        conflicts_with_all = ["etcd", "unmirrored", "witness"]
    )]
    own: Option<OwnWitnessAddress>,

    /// An endpoint of an etcd that is the witness, such as `http://10.0.0.3:2379`; once for each member
    #[arg(
        long = "ask-etcd",
        value_name = "URL",
        conflicts_with_all = ["unmirrored", "witness"]
    )]
    etcd: Vec<EtcdEndpoint>,
}

impl AskedWitnessArgs {
    /// The witness of the new node, if there is one.
    pub(in crate::cli) fn witness(self) -> Option<WitnessConfig> {
        match self.own {
            Some(OwnWitnessAddress {
                address,
                fingerprint,
            }) => Some(WitnessConfig::Own {
                address,
                fingerprint,
            }),
            None if self.etcd.is_empty() => None,
            None => Some(WitnessConfig::Etcd {
                endpoints: self.etcd,
            }),
        }
    }
}

/// A witness as the command line names it.
#[derive(Clone, Debug)]
struct OwnWitnessAddress {
    address: WitnessAddress,
    fingerprint: Fingerprint,
}

/// A text that names no witness.
#[derive(Debug, thiserror::Error)]
enum OwnWitnessAddressError {
    #[error("{0:?} is not HOST:PORT=FINGERPRINT, such as 10.0.0.3:7400=SHA256:…")]
    NoFingerprint(String),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
}

impl FromStr for OwnWitnessAddress {
    type Err = OwnWitnessAddressError;

    fn from_str(text: &str) -> Result<Self, OwnWitnessAddressError> {
        let (address, fingerprint) = text
            .split_once('=')
            .ok_or_else(|| OwnWitnessAddressError::NoFingerprint(text.to_owned()))?;
        Ok(Self {
            address: address.parse()?,
            fingerprint: fingerprint.parse()?,
        })
    }
}

/// Returns the options that give a witness to the other node, with a space before each.
pub(in crate::cli) fn options(witness: &WitnessConfig) -> String {
    match witness {
        WitnessConfig::Own {
            address,
            fingerprint,
        } => format!(" --ask-witness {address}={fingerprint}"),
        WitnessConfig::Etcd { endpoints } => {
            let mut options = String::new();
            for endpoint in endpoints {
                // Writing to a String cannot fail.
                let _ = write!(options, " --ask-etcd {endpoint}");
            }
            options
        }
    }
}

/// Returns the step that lets a new node use its witness; `None` for etcd, which knows no nodes.
pub(in crate::cli) fn allow_step(
    witness: &WitnessConfig,
    node: &str,
    fingerprint: Fingerprint,
) -> Option<String> {
    let WitnessConfig::Own { address, .. } = witness else {
        return None;
    };
    Some(format!(
        "On the witness at {address}, put this section into its witness.toml, and start the witness again:\n\n       \
         [[node]]\n       name = \"{node}\"\n       fingerprint = \"{fingerprint}\"\n\n   \
         The other node needs a section, too: `lockstep init` prints it there."
    ))
}

/// Returns the step for two nodes without a witness. `nodes` are both names and fingerprints.
pub(in crate::cli) fn offer_step(nodes: [(&str, Fingerprint); 2]) -> String {
    let [one, other] = nodes.map(|(name, fingerprint)| format!("--allow {name}={fingerprint}"));
    format!(
        "If a failover is not to need you: make a witness on a third server, as root there:\n\n       \
         lockstep init --witness --name w --listen ADDRESS-OF-THAT-SERVER:7400 \\\n         \
         {one} \\\n         {other}\n\n   \
         That prints the lines for node.toml of both nodes. You can do so at any time later."
    )
}
