//! The configuration file that `lockstep init` and the playground write: commented, ready to edit,
//! and read back by the same reader as any other.
//!
//! What is not known yet is written as a string the reader refuses, so that a node never runs
//! unmirrored because somebody forgot a line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_link::Fingerprint;
use lockstep_types::DatastoreUuid;

use super::{
    Choice, ConfigError, Durability, Encryption, OnPeerLoss, PAUSE_LIMIT_DEFAULT, PeerAddress, Role,
};

/// What a new configuration file is to say: one node with one datastore.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Name of the node.
    pub node: String,
    /// Directory with the node's key and certificate.
    pub identity: PathBuf,
    /// Address for replication.
    pub listen: SocketAddr,
    /// Socket for the commands.
    pub control: PathBuf,
    /// Name of the datastore.
    pub datastore: String,
    /// Identity of the datastore.
    pub uuid: DatastoreUuid,
    /// Where this node keeps the data.
    pub store: PathBuf,
    /// Where programs find the directory.
    pub mount: PathBuf,
    /// What this node is for the datastore.
    pub role: Role,
    /// When an acknowledged write is on stable storage.
    pub durability: Durability,
    /// What happens when the peer stays away.
    pub on_peer_loss: OnPeerLoss,
    /// How long acknowledgements wait for a lost peer.
    pub pause_limit: Duration,
    /// The other node; `None` for a datastore that is not mirrored.
    pub peer: Option<DraftPeer>,
}

/// What is known of the other node so far.
#[derive(Clone, Debug, Default)]
pub struct DraftPeer {
    /// Where it listens.
    pub address: Option<PeerAddress>,
    /// The certificate it will show.
    pub fingerprint: Option<Fingerprint>,
    /// Whether the bytes between the nodes are encrypted.
    pub encryption: Encryption,
}

impl Draft {
    /// A draft with the defaults of the reference, for a datastore with a peer not known yet.
    pub fn new(node: &str, identity: &Path, control: &Path, listen: SocketAddr) -> Self {
        Self {
            node: node.to_owned(),
            identity: identity.to_owned(),
            listen,
            control: control.to_owned(),
            datastore: "data".to_owned(),
            uuid: DatastoreUuid::random(),
            store: PathBuf::from("/var/lib/lockstep/data"),
            mount: PathBuf::from("/srv/data"),
            role: Role::Primary,
            durability: Durability::default(),
            on_peer_loss: OnPeerLoss::default(),
            pause_limit: PAUSE_LIMIT_DEFAULT,
            peer: Some(DraftPeer::default()),
        }
    }
}

/// The text of the configuration file for `draft`.
pub fn draft_text(draft: &Draft) -> Result<String, ConfigError> {
    Ok(format!(
        "{}\n{}\n{}",
        node_text(draft)?,
        datastore_text(draft)?,
        draft
            .peer
            .as_ref()
            .map_or_else(|| UNMIRRORED_TEXT.to_owned(), peer_text)
    ))
}

const UNMIRRORED_TEXT: &str = "\
# There is no [datastore.peer] here: this datastore has one copy only.
";

fn node_text(draft: &Draft) -> Result<String, ConfigError> {
    Ok(format!(
        "\
# Configuration of a Lockstep node. Every key is described in docs/reference-config.md.
# Start the node with:  lockstep node --config FILE

[node]
name = {name}
# Directory with node.key and node.crt. Keep the key secret: it is what the peer trusts.
identity = {identity}
# Where the peer connects to for replication.
listen = {listen}
# Unix socket for `lockstep status` and the other commands.
control = {control}
",
        name = toml_text(&draft.node),
        identity = toml_path(&draft.identity)?,
        listen = toml_text(&draft.listen.to_string()),
        control = toml_path(&draft.control)?,
    ))
}

fn datastore_text(draft: &Draft) -> Result<String, ConfigError> {
    Ok(format!(
        "\
[[datastore]]
name = {name}
# The identity of the datastore: the same on both nodes, never changed.
uuid = {uuid}
# Where this node keeps the data. Programs must not touch it.
store = {store}
# Where programs find the directory while this node is the primary.
mount = {mount}
# One node says \"primary\", the other \"secondary\".
role = {role}
# \"posix\": on stable storage on both nodes when a program asks (fsync, O_SYNC). \"always\": every operation.
durability = {durability}
# When the peer stays away: \"continue\" with one copy (status says so) or \"freeze\" until it is back.
on_peer_loss = {on_peer_loss}
# How long writes wait for a lost peer before on_peer_loss decides.
pause_limit_ms = {pause_limit_ms}
",
        name = toml_text(&draft.datastore),
        uuid = toml_text(&draft.uuid.to_string()),
        store = toml_path(&draft.store)?,
        mount = toml_path(&draft.mount)?,
        role = toml_text(draft.role.word()),
        durability = toml_text(draft.durability.word()),
        on_peer_loss = toml_text(draft.on_peer_loss.word()),
        pause_limit_ms = draft.pause_limit.as_millis(),
    ))
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
# \"off\" leaves authentication on but sends the data in the clear: only for a dedicated link.
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

fn toml_text(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn toml_path(path: &Path) -> Result<String, ConfigError> {
    let text = path.to_str().ok_or_else(|| ConfigError::NotText {
        path: path.to_owned(),
    })?;
    Ok(toml_text(text))
}
