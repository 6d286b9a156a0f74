//! The configuration file that `lockstep init` and the playground write: commented and ready to edit.
//!
//! In place of an unknown value stands a string that the check of the configuration refuses, so that a node never
//! runs unmirrored because an operator has forgotten a line.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_driver::config::settings::{self, Setting, Values};
use lockstep_driver::config::{
    DatastoreConfig, PeerAddress, SnapshotHooks, SnapshotSchedule, peer_timeout_default,
};
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
    /// The datastore. Its peer, which is not checked yet, stands beside it.
    pub datastore: DatastoreConfig,
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
            datastore: DatastoreConfig::new(
                "data",
                DatastoreUuid::random(),
                ["/var/lib/lockstep/data", "/srv/data"].map(PathBuf::from),
                Role::Primary,
            ),
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

/// The keys that every file has. A file has any other key if the value is not the default.
const SHOWN: &[&str] = &[
    "name",
    "uuid",
    "store",
    "mount",
    "role",
    "durability",
    "on_peer_loss",
    "on_power_loss",
    "standby",
];

fn datastore_text(draft: &ConfigDraft) -> Result<String, ConfigError> {
    let mut text = "[[datastore]]\n".to_owned();
    for setting in settings::DATASTORE {
        if let Some(line) = setting_line(draft, setting)? {
            text.push_str(&lines(setting, &line));
        }
    }
    Ok(text)
}

/// The line of a setting; `None` for a section, and for a default that needs no line.
fn setting_line(draft: &ConfigDraft, setting: &Setting) -> Result<Option<String>, ConfigError> {
    let (datastore, key) = (&draft.datastore, setting.key);
    let has_witness = draft.witness.is_some() && draft.peer.is_some();
    let Some(value) = value_text(datastore, key)? else {
        return Ok(None);
    };
    let is_default = default_text(datastore, setting).is_some_and(|default| default == value);
    let is_written = match key {
        "pause_limit_ms" => !has_witness,
        "failover_after_ms" => has_witness,
        _ => SHOWN.contains(&key) || !is_default,
    };
    // A default is a comment, so that a witness can be added without a change of this line.
    let mark = if key == "pause_limit_ms" && is_default {
        "# "
    } else {
        ""
    };
    Ok(is_written.then(|| format!("{mark}{key} = {value}")))
}

/// The value of a key, as TOML; `None` for a section.
fn value_text(datastore: &DatastoreConfig, key: &str) -> Result<Option<String>, ConfigError> {
    let policies = &datastore.policies;
    let ms = |time: Duration| time.as_millis().to_string();
    Ok(Some(match key {
        "name" => toml_text(&datastore.name),
        "uuid" => toml_text(&datastore.uuid.to_string()),
        "store" => toml_path(&datastore.store)?,
        "mount" => toml_path(&datastore.mount)?,
        "role" => toml_text(datastore.role.word()),
        "durability" => toml_text(policies.durability.word()),
        "on_peer_loss" => toml_text(policies.on_peer_loss.word()),
        "on_power_loss" => toml_text(policies.on_power_loss.word()),
        "standby" => toml_text(policies.standby.word()),
        "pause_limit_ms" => ms(datastore.pause_limit),
        "flap_wait_max_ms" => ms(policies.flap_wait_max.get()),
        "peer_timeout_ms" => ms(datastore.peer_timeout),
        "failover_after_ms" => {
            let default = settings::FAILOVER_AFTER.default_time();
            ms(datastore.failover_after.unwrap_or(default))
        }
        "answer_limit_ms" => ms(datastore.answer_limit),
        "disk_stall_limit_ms" => ms(policies.disk_stall_limit.get().unwrap_or_default()),
        "resync_bytes_per_second" => {
            let limit = policies.resync.bytes_per_second;
            limit.map_or(0, NonZeroU64::get).to_string()
        }
        "resync_pause_above_ms" => ms(policies.resync.pause_above.unwrap_or_default()),
        "check_reads" => toml_text(policies.check_reads.word()),
        "scrub_every" => toml_text(policies.scrub_every.word()),
        "trash" => toml_text(policies.trash.age.word()),
        "trash_bytes" => policies.trash.bytes.map_or(0, NonZeroU64::get).to_string(),
        "snapshots" if !policies.snapshots.is_off() => schedule_text(policies.snapshots),
        "snapshot_hooks" if !policies.snapshot_hooks.is_off() => {
            hooks_text(&policies.snapshot_hooks)
        }
        "fuse_threads" => datastore.fuse_threads.to_string(),
        _ => return Ok(None),
    }))
}

fn schedule_text(schedule: SnapshotSchedule) -> String {
    let counts = schedule
        .counts()
        .into_iter()
        .filter(|(_, count)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(key, count)| format!("{key} = {count}"))
        .collect();
    format!("{{ {} }}", counts.join(", "))
}

fn hooks_text(hooks: &SnapshotHooks) -> String {
    let words = |words: &[String]| {
        let words: Vec<String> = words.iter().map(|word| toml_text(word)).collect();
        format!("[{}]", words.join(", "))
    };
    let commands = [("before", &hooks.before), ("after", &hooks.after)];
    let commands = commands.into_iter().filter(|(_, all)| !all.is_empty());
    let commands = commands.map(|(key, all)| format!("{key} = {}", words(all)));
    let limit = format!("limit_ms = {}", hooks.limit.as_millis());
    let all: Vec<String> = commands.chain([limit]).collect();
    format!("{{ {} }}", all.join(", "))
}

/// The value that a missing key has, as TOML; `None` if the key must be there.
fn default_text(datastore: &DatastoreConfig, setting: &Setting) -> Option<String> {
    match setting.values {
        Values::Number(_) if setting.key == "peer_timeout_ms" => {
            let default = peer_timeout_default(datastore.failover_after);
            Some(default.as_millis().to_string())
        }
        Values::Number(number) => Some(number.default.to_string()),
        Values::Word { default, .. } => Some(toml_text(default())),
        Values::Required { .. } | Values::Optional | Values::Section => None,
    }
}

/// A line of the file below the comment of its key.
fn lines(setting: &Setting, line: &str) -> String {
    let comment = setting.about.replace('\n', "\n# ");
    format!("# {comment}\n{line}\n")
}

const NO_WITNESS_TEXT: &str = "\
# Without a section [datastore.witness] an operator decides which node serves. See \"The witness\" in docs/operations/witness.md.
";

fn witness_text(witness: Option<&WitnessConfig>) -> String {
    let Some(witness) = witness else {
        return NO_WITNESS_TEXT.to_owned();
    };
    let lines = witness_section_text(witness);
    let about = settings::find(settings::DATASTORE, "witness").map_or("", |it| it.about);
    format!("# {about}\n{lines}")
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
    let value = |key: &str| match key {
        "address" => match &peer.address {
            Some(address) => address.to_string(),
            None => "FILL IN: address:port of the other node".to_owned(),
        },
        "fingerprint" => match &peer.fingerprint {
            Some(fingerprint) => fingerprint.to_string(),
            None => "FILL IN: fingerprint of the other node".to_owned(),
        },
        _ => peer.encryption.word().to_owned(),
    };
    let line = |setting: &Setting| {
        let value = toml_text(&value(setting.key));
        lines(setting, &format!("{} = {value}", setting.key))
    };
    let lines: String = settings::PEER.iter().map(line).collect();
    format!("[datastore.peer]\n{lines}")
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
