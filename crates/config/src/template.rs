//! The configuration file that `lockstep init` and the playground write: commented and ready to edit.
//!
//! In place of an unknown value stands a string that the check of the configuration refuses, so that a node never
//! runs unmirrored because an operator has forgotten a line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_driver::config::{FAILOVER_AFTER_DEFAULT, PAUSE_LIMIT_DEFAULT, PeerAddress, Policies};
use lockstep_link::Fingerprint;
use lockstep_types::DatastoreUuid;
use lockstep_types::settings::{Choice, Encryption, Role};
use lockstep_witness::WitnessConfig;

use super::problem::ConfigError;

/// The values of a new configuration file: one node with one datastore.
#[derive(Clone, Debug)]
pub struct ConfigDraft {
    /// The node.
    pub node: NodeDraft,
    /// Name of the datastore.
    pub datastore: String,
    /// UUID of the datastore.
    pub uuid: DatastoreUuid,
    /// Directory of the store.
    pub store: PathBuf,
    /// Mount point.
    pub mount: PathBuf,
    /// Role with which a new store begins.
    pub role: Role,
    /// The settings that are one word of a list.
    pub policies: Policies,
    /// How long acknowledgements wait for a lost peer. Without effect if there is a witness.
    pub pause_limit: Duration,
    /// The witness of the datastore, if it is known and there is a peer.
    pub witness: Option<WitnessConfig>,
    /// The other node; `None` for a datastore that is not mirrored.
    pub peer: Option<DraftPeer>,
}

/// The values of the node in a new configuration file.
#[derive(Clone, Debug)]
pub struct NodeDraft {
    /// Name of the node.
    pub name: String,
    /// Directory with the node's key and certificate.
    pub identity: PathBuf,
    /// Address for replication.
    pub listen: SocketAddr,
    /// Socket for the commands.
    pub control: PathBuf,
}

/// The known values of the other node.
///
/// `None` for an address or a fingerprint becomes a string that the check refuses.
#[derive(Clone, Debug, Default)]
pub struct DraftPeer {
    /// Address of the other node.
    pub address: Option<PeerAddress>,
    /// Fingerprint of the other node's certificate.
    pub fingerprint: Option<Fingerprint>,
    /// Whether the bytes between the nodes are encrypted.
    pub encryption: Encryption,
}

impl ConfigDraft {
    /// A draft with the defaults of the reference, for a datastore with an unknown peer.
    pub fn new(node: &str, identity: &Path, control: &Path, listen: SocketAddr) -> Self {
        Self {
            node: NodeDraft {
                name: node.to_owned(),
                identity: identity.to_owned(),
                listen,
                control: control.to_owned(),
            },
            datastore: "data".to_owned(),
            uuid: DatastoreUuid::random(),
            store: PathBuf::from("/var/lib/lockstep/data"),
            mount: PathBuf::from("/srv/data"),
            role: Role::Primary,
            policies: Policies::default(),
            pause_limit: PAUSE_LIMIT_DEFAULT,
            witness: None,
            peer: Some(DraftPeer::default()),
        }
    }
}

/// Returns the text of the configuration file for `draft`.
pub fn draft_text(draft: &ConfigDraft) -> Result<String, ConfigError> {
    let node = node_text(&draft.node)?;
    let datastore = datastore_text(draft)?;
    let Some(peer) = &draft.peer else {
        return Ok(format!("{node}\n{datastore}\n{UNMIRRORED_TEXT}"));
    };
    let peer = peer_text(peer);
    let witness = witness_text(draft.witness.as_ref());
    Ok(format!("{node}\n{datastore}\n{peer}\n{witness}"))
}

const UNMIRRORED_TEXT: &str = "\
# There is no [datastore.peer] here: this datastore has one copy only.
";

fn node_text(node: &NodeDraft) -> Result<String, ConfigError> {
    Ok(format!(
        "\
# Configuration of a Lockstep node. Every key is described in docs/reference-config.md.
# Start the node with:  lockstep node --config FILE

[node]
name = {name}
# Directory with node.key and node.crt. Keep the key secret: the peer trusts its owner.
identity = {identity}
# Address that the peer connects to for replication.
listen = {listen}
# Unix socket for `lockstep status` and the other commands.
control = {control}
",
        name = toml_text(&node.name),
        identity = toml_path(&node.identity)?,
        listen = toml_text(&node.listen.to_string()),
        control = toml_path(&node.control)?,
    ))
}

fn datastore_text(draft: &ConfigDraft) -> Result<String, ConfigError> {
    Ok(format!(
        "\
[[datastore]]
name = {name}
# Identity of the datastore: the same on both nodes, never changed.
uuid = {uuid}
# Directory where this node keeps the data. Programs must not touch it.
store = {store}
# Directory where programs find the data. Both nodes mount it; the primary serves it.
mount = {mount}
# How a new store begins: \"primary\" on one node, \"secondary\" on the other. Later the store knows its role:
# `lockstep failover`, `promote` and `demote` change it, and `lockstep status` shows it.
role = {role}
# \"posix\": on stable storage on both nodes when a program asks (fsync, O_SYNC). \"always\": every operation.
durability = {durability}
# When the peer stays away: \"continue\" with one copy (status shows that), or \"freeze\" until the peer is back.
on_peer_loss = {on_peer_loss}
# When this node starts as the primary of a complete secondary: \"wait\" serves nothing until it has met that node, or
# until `lockstep promote`. \"serve\" serves at once: a power loss may lose changes that were never synced, and if the
# other node was promoted meanwhile, both serve until they meet.
on_power_loss = {on_power_loss}
# What programs get here while the other node serves: the error \"erofs\". With \"wait\" only changes get the error, and all else
# waits until this node serves. For an NFS server set \"eagain\".
standby = {standby}
{times}",
        name = toml_text(&draft.datastore),
        uuid = toml_text(&draft.uuid.to_string()),
        store = toml_path(&draft.store)?,
        mount = toml_path(&draft.mount)?,
        role = toml_text(draft.role.word()),
        durability = toml_text(draft.policies.durability.word()),
        on_peer_loss = toml_text(draft.policies.on_peer_loss.word()),
        on_power_loss = toml_text(draft.policies.on_power_loss.word()),
        standby = toml_text(draft.policies.standby.word()),
        times = times_text(draft),
    ))
}

fn times_text(draft: &ConfigDraft) -> String {
    if draft.witness.is_some() && draft.peer.is_some() {
        return format!(
            "\
# The secondary takes over this long after it has lost the primary. The same on both nodes.
failover_after_ms = {}
",
            FAILOVER_AFTER_DEFAULT.as_millis()
        );
    }
    // A default is a comment, so that a witness can be added without a change of this line.
    let mark = if draft.pause_limit == PAUSE_LIMIT_DEFAULT {
        "# "
    } else {
        ""
    };
    format!(
        "\
# Without a witness: how long writes wait for a lost peer before on_peer_loss decides.
{mark}pause_limit_ms = {}
",
        draft.pause_limit.as_millis()
    )
}

const NO_WITNESS_TEXT: &str = "\
# Without a section [datastore.witness] an operator decides which node serves. See \"The witness\" in docs/operations/witness.md.
";

fn witness_text(witness: Option<&WitnessConfig>) -> String {
    let Some(witness) = witness else {
        return NO_WITNESS_TEXT.to_owned();
    };
    let lines = witness_section_text(witness);
    format!(
        "# The third party, which decides when the nodes lose each other. The same on both nodes.\n{lines}"
    )
}

/// Returns the section `[datastore.witness]` for a witness, without comments.
pub fn witness_section_text(witness: &WitnessConfig) -> String {
    let values = match witness {
        WitnessConfig::Own {
            address,
            fingerprint,
        } => format!(
            "address = {}\nfingerprint = {}",
            toml_text(&address.to_string()),
            toml_text(&fingerprint.to_string())
        ),
        WitnessConfig::Etcd { endpoints } => {
            let all: Vec<_> = endpoints
                .iter()
                .map(|endpoint| toml_text(&endpoint.to_string()))
                .collect();
            format!("etcd = [{}]", all.join(", "))
        }
    };
    format!("[datastore.witness]\n{values}\n")
}

fn peer_text(peer: &DraftPeer) -> String {
    let address = peer.address.as_ref().map(ToString::to_string);
    let fingerprint = peer.fingerprint.as_ref().map(ToString::to_string);
    format!(
        "\
[datastore.peer]
# The `listen` of the other node, as seen from here.
address = {address}
# Printed by `lockstep init` on the other node.
fingerprint = {fingerprint}
# \"off\" sends the data in the clear, for a dedicated link. Authentication is never off.
encryption = {encryption}
",
        address = toml_text(
            address
                .as_deref()
                .unwrap_or("FILL IN: address:port of the other node")
        ),
        fingerprint = toml_text(
            fingerprint
                .as_deref()
                .unwrap_or("FILL IN: fingerprint of the other node")
        ),
        encryption = toml_text(peer.encryption.word()),
    )
}

pub(super) fn toml_text(text: &str) -> String {
    toml::Value::from(text).to_string()
}

pub(super) fn toml_path(path: &Path) -> Result<String, ConfigError> {
    let text = path.to_str().ok_or_else(|| ConfigError::NotText {
        path: path.to_owned(),
    })?;
    Ok(toml_text(text))
}
