//! The keys of each section of a configuration file, and the conversion of a file to a [`NodeConfig`].

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_driver::config::settings::{self, NumberSetting};
use lockstep_driver::config::{
    DatastoreConfig, DiskStallLimit, FlapWait, PeerConfig, Policies, ResyncLimits, TrashPolicy,
    peer_timeout_default,
};
use lockstep_fs::InoRanges;
use lockstep_types::DatastoreUuid;
use lockstep_types::settings::{CheckReads, Choice, Encryption, Role};
use lockstep_witness::WitnessConfig;
use toml::de::{DeTable, DeValue};

use super::check;
use super::hooks_section;
use super::located::{LocatedDatastore, NodeSection};
use super::node_config::NodeConfig;
use super::problem::{LISTED_MAX, Listed, Problems, Rejection};
use super::section::{KeyLines, Section};
use super::snapshots_section;
use super::value;
use super::witness_section;

/// Sections of a file.
pub(super) const DOCUMENT_KEYS: &[&str] = &["node", "datastore"];
/// Keys of `[node]`.
pub(super) const NODE_KEYS: &[&str] = &["name", "identity", "listen", "control"];
/// Reads and checks the whole file of a node.
pub(super) fn read(text: &str) -> Result<NodeConfig, Listed> {
    read_with(text, read_document)
}

/// Parses a whole file, and converts its document with `read`.
pub(super) fn read_with<T>(
    text: &str,
    read: impl FnOnce(&mut Problems<'_>, &Section<'_>) -> Option<T>,
) -> Result<T, Listed> {
    let mut problems = Problems::new(text);
    let (document, syntax_errors) = DeTable::parse_recoverable(text);
    for error in syntax_errors.iter().take(LISTED_MAX) {
        report_syntax(&mut problems, error);
    }
    problems.add_unlisted(syntax_errors.len().saturating_sub(LISTED_MAX));
    // After a syntax error the parser may have lost keys, so a missing key may be no mistake.
    if !problems.is_empty() {
        return Err(problems.into_listed());
    }
    let config = read(&mut problems, &Section::document(document.get_ref()));
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(problems.into_listed()),
    }
}

fn report_syntax(problems: &mut Problems<'_>, error: &toml::de::Error) {
    let offset = error.span().map_or(0, |span| span.start);
    let rejection = Rejection::new(
        error.message(),
        "correct the TOML of this line: key = value, with strings in double quotes",
    );
    problems.report(problems.line_at(offset), "", "syntax", rejection);
}

fn read_document(problems: &mut Problems<'_>, document: &Section<'_>) -> Option<NodeConfig> {
    if document.has("witness") && !document.has("datastore") {
        let rejection = Rejection::new(
            "this is the configuration of a witness",
            "name the node.toml of the node with --config, or run `lockstep witness`",
        );
        document.refuse_foreign(problems, "witness", rejection);
        return None;
    }
    document.refuse_unknown(problems, DOCUMENT_KEYS);
    let node = read_node(problems, document);
    let datastores = read_datastores(problems, document);
    let node = node?;
    check::datastores(problems, &node, &datastores);
    let mirrored = datastores.iter().any(|located| located.has_peer);
    let link = node.link(problems, mirrored);
    Some(NodeConfig {
        name: node.name?,
        control: node.control?,
        link,
        witnesses: datastores
            .iter()
            .filter_map(|located| Some((located.datastore.uuid, located.witness.clone()?)))
            .collect(),
        datastores: datastores
            .into_iter()
            .map(|located| located.datastore)
            .collect(),
    })
}

fn read_node<'d>(problems: &mut Problems<'_>, document: &Section<'d>) -> Option<NodeSection<'d>> {
    if !document.has("node") {
        document.report_missing(
            problems,
            "node",
            "the section [node], with name and control",
        );
    }
    let section = document.table(problems, "node", "[node]")?;
    section.refuse_unknown(problems, NODE_KEYS);
    Some(NodeSection {
        lines: section.key_lines(problems),
        name: section.required(
            problems,
            "name",
            "name = \"a\", a name for this node",
            value::name,
        ),
        control: section.required(
            problems,
            "control",
            "control = \"/run/lockstep/node.sock\", the socket for the commands",
            value::socket_path,
        ),
        identity: section.read(problems, "identity", value::path).value(),
        listen: section
            .read(problems, "listen", value::listen_address)
            .value(),
        section,
    })
}

fn read_datastores(problems: &mut Problems<'_>, document: &Section<'_>) -> Vec<LocatedDatastore> {
    let sections = document.tables(problems, "datastore");
    if sections.is_empty() && !document.has("datastore") {
        let example = "a section [[datastore]] for each directory to keep";
        document.report_missing(problems, "datastore", example);
    }
    let read = |section| read_datastore(problems, section);
    sections.into_iter().filter_map(read).collect()
}

fn read_datastore(
    problems: &mut Problems<'_>,
    mut section: Section<'_>,
) -> Option<LocatedDatastore> {
    let name = section.required(
        problems,
        "name",
        settings::example(settings::DATASTORE, "name"),
        value::name,
    );
    if let Some(name) = &name {
        section.set_title(format!("[[datastore]] {name:?}"));
    }
    section.refuse_unknown(problems, &settings::keys(settings::DATASTORE));
    let policies = read_policies(problems, &section);
    let failover_after = read_failover(problems, &section);
    let (pause_limit, peer_timeout, answer_limit) = read_limits(problems, &section, failover_after);
    let (witness, witness_lines) = witness_section::read(problems, &section).unzip();
    let fuse_threads = read_fuse_threads(problems, &section);
    let lines = section.key_lines(problems);
    let (peer, peer_lines) = read_peer(problems, &section).unzip();
    let required = read_required(problems, &section);
    let witness = witness.flatten();
    let with_witness = |peer: PeerConfig| PeerConfig {
        witness: witness.as_ref().map(WitnessConfig::id),
        ..peer
    };
    let (uuid, store, mount, role) = required;
    let datastore = DatastoreConfig {
        name: name?,
        uuid: uuid?,
        store: store?,
        mount: mount?,
        role: role?,
        policies,
        pause_limit,
        peer_timeout,
        answer_limit,
        fuse_threads,
        failover_after,
        peer: peer.flatten().map(with_witness),
    };
    Some(LocatedDatastore {
        datastore,
        lines,
        witness,
        witness_lines,
        has_peer: section.has("peer"),
        peer_lines,
    })
}

type Required = (
    Option<DatastoreUuid>,
    Option<PathBuf>,
    Option<PathBuf>,
    Option<Role>,
);

fn read_required(problems: &mut Problems<'_>, section: &Section<'_>) -> Required {
    let example = |key| settings::example(settings::DATASTORE, key);
    (
        section.required(problems, "uuid", example("uuid"), value::uuid),
        section.required(problems, "store", example("store"), value::path),
        section.required(problems, "mount", example("mount"), value::path),
        section.required(problems, "role", example("role"), value::choice),
    )
}

fn read_policies(problems: &mut Problems<'_>, section: &Section<'_>) -> Policies {
    Policies {
        durability: read_choice(problems, section, "durability"),
        on_peer_loss: read_choice(problems, section, "on_peer_loss"),
        on_power_loss: read_choice(problems, section, "on_power_loss"),
        standby: read_choice(problems, section, "standby"),
        disk_stall_limit: read_stall_limit(problems, section),
        flap_wait_max: read_flap_wait(problems, section),
        resync: read_resync_limits(problems, section),
        scrub_every: read_choice(problems, section, "scrub_every"),
        check_reads: read_check_reads(problems, section),
        trash: read_trash(problems, section),
        snapshots: snapshots_section::read(problems, section),
        snapshot_hooks: hooks_section::read(problems, section),
    }
}

fn read_trash(problems: &mut Problems<'_>, section: &Section<'_>) -> TrashPolicy {
    let bytes = |value: &DeValue<'_>| {
        let bytes = value::number(value, &settings::TRASH_BYTES)?;
        Ok(NonZeroU64::new(bytes))
    };
    TrashPolicy {
        age: read_choice(problems, section, "trash"),
        bytes: section.optional(problems, "trash_bytes", None, bytes),
    }
}

fn read_resync_limits(problems: &mut Problems<'_>, section: &Section<'_>) -> ResyncLimits {
    let bytes = |value: &DeValue<'_>| {
        let bytes = value::number(value, &settings::RESYNC_BYTES_PER_SECOND)?;
        Ok(NonZeroU64::new(bytes))
    };
    let time = |value: &DeValue<'_>| value::millis_or_off(value, &settings::RESYNC_PAUSE_ABOVE);
    ResyncLimits {
        bytes_per_second: section.optional(problems, "resync_bytes_per_second", None, bytes),
        pause_above: section.optional(problems, "resync_pause_above_ms", None, time),
    }
}

/// Reads `check_reads`: one of its words, or true or false.
fn read_check_reads(problems: &mut Problems<'_>, section: &Section<'_>) -> CheckReads {
    let read = |value: &DeValue<'_>| match value {
        DeValue::Boolean(true) => Ok(CheckReads::On),
        DeValue::Boolean(false) => Ok(CheckReads::Off),
        word => value::choice(word),
    };
    section.optional(problems, "check_reads", CheckReads::default(), read)
}

fn read_stall_limit(problems: &mut Problems<'_>, section: &Section<'_>) -> DiskStallLimit {
    let limit = |value: &DeValue<'_>| {
        let limit = value::millis_or_off(value, &settings::DISK_STALL_LIMIT)?;
        Ok(DiskStallLimit::new(limit))
    };
    let default = DiskStallLimit::default();
    section.optional(problems, "disk_stall_limit_ms", default, limit)
}

fn read_flap_wait(problems: &mut Problems<'_>, section: &Section<'_>) -> FlapWait {
    let longest = |value: &DeValue<'_>| {
        let longest = value::millis_or_off(value, &settings::FLAP_WAIT_MAX)?;
        Ok(FlapWait::new(longest))
    };
    section.optional(problems, "flap_wait_max_ms", FlapWait::default(), longest)
}

fn read_choice<T: Choice + Default>(
    problems: &mut Problems<'_>,
    section: &Section<'_>,
    key: &'static str,
) -> T {
    section.optional(problems, key, T::default(), value::choice)
}

/// Reads `failover_after_ms`; `None` without a witness.
fn read_failover(problems: &mut Problems<'_>, section: &Section<'_>) -> Option<Duration> {
    const KEY: &str = "failover_after_ms";
    if witness_section::is_named(section) {
        return Some(read_time(problems, section, KEY, &settings::FAILOVER_AFTER));
    }
    let no_witness = |_: &DeValue<'_>| {
        Err::<Duration, _>(Rejection::new(
            "without a witness no node takes over by itself",
            "add the section [datastore.witness], or remove this key",
        ))
    };
    section.read(problems, KEY, no_witness).value()
}

/// Reads `pause_limit_ms`, `peer_timeout_ms` and `answer_limit_ms`. With a witness, the first follows from
/// `failover_after_ms`, and so does the default of the second.
fn read_limits(
    problems: &mut Problems<'_>,
    section: &Section<'_>,
    failover_after: Option<Duration>,
) -> (Duration, Duration, Duration) {
    if failover_after.is_some() {
        let follows = |_: &DeValue<'_>| {
            Err::<(), _>(Rejection::new(
                "with a witness the pause follows from failover_after_ms",
                "remove this key",
            ))
        };
        let _none = section.read(problems, "pause_limit_ms", follows).value();
    }
    let peer_timeout = |value: &DeValue<'_>| value::millis(value, &settings::PEER_TIMEOUT);
    let timeout_default = peer_timeout_default(failover_after);
    (
        read_time(problems, section, "pause_limit_ms", &settings::PAUSE_LIMIT),
        section.optional(problems, "peer_timeout_ms", timeout_default, peer_timeout),
        read_time(
            problems,
            section,
            "answer_limit_ms",
            &settings::ANSWER_LIMIT,
        ),
    )
}

fn read_time(
    problems: &mut Problems<'_>,
    section: &Section<'_>,
    key: &str,
    setting: &NumberSetting,
) -> Duration {
    let millis = |value: &DeValue<'_>| value::millis(value, setting);
    section.optional(problems, key, setting.default_time(), millis)
}

fn read_fuse_threads(problems: &mut Problems<'_>, section: &Section<'_>) -> usize {
    let setting = &settings::FUSE_THREADS;
    section.optional(problems, "fuse_threads", setting.default_count(), |value| {
        value::count(value, setting)
    })
}

/// Reads the peer. The result has no peer if it is refused, but always the lines of its keys.
fn read_peer(
    problems: &mut Problems<'_>,
    datastore: &Section<'_>,
) -> Option<(Option<PeerConfig>, KeyLines)> {
    let section = datastore.table(problems, "peer", "[datastore.peer]")?;
    let lines = section.key_lines(problems);
    Some((read_peer_keys(problems, &section), lines))
}

fn read_peer_keys(problems: &mut Problems<'_>, section: &Section<'_>) -> Option<PeerConfig> {
    let above = ("[[datastore]]", &*settings::keys(settings::DATASTORE));
    section.refuse_unknown_below(problems, &settings::keys(settings::PEER), above);
    let example = |key| settings::example(settings::PEER, key);
    let address = section.required(problems, "address", example("address"), value::peer_address);
    let fingerprint = example("fingerprint");
    let fingerprint = section.required(problems, "fingerprint", fingerprint, value::fingerprint);
    let encryption = section.optional(problems, "encryption", Encryption::default(), value::choice);
    Some(PeerConfig {
        address: address?,
        fingerprint: fingerprint?,
        encryption,
        ino_ranges: InoRanges::default(),
        witness: None,
    })
}
