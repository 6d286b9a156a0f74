//! Mistakes that only a comparison of sections shows.

use std::path::Path;

use lockstep_driver::config::DatastoreConfig;
use lockstep_types::settings::{Choice, Role};
use lockstep_witness::WitnessConfig;

use super::located::{LocatedDatastore, NodeSection};
use super::problem::{Problems, Rejection};
use super::section::KeyLines;

/// The longest `peer_timeout_ms` with a witness, in multiples of `failover_after_ms`.
const PEER_TIMEOUT_FACTOR_MAX: u32 = 10;

/// Compares the datastores with each other and with the node.
pub(super) fn datastores(
    problems: &mut Problems<'_>,
    node: &NodeSection<'_>,
    all: &[LocatedDatastore],
) {
    refuse_duplicates(problems, all, "name", |datastore| datastore.name.clone());
    refuse_duplicates(problems, all, "uuid", |datastore| {
        datastore.uuid.to_string()
    });
    refuse_overlaps(problems, node, all);
    refuse_mixed_encryption(problems, all);
    for located in all {
        check_peer(problems, node, located);
        check_witness(problems, node, located);
        check_peer_timeout(problems, located);
    }
}

fn refuse_duplicates(
    problems: &mut Problems<'_>,
    all: &[LocatedDatastore],
    key: &str,
    value: impl Fn(&DatastoreConfig) -> String,
) {
    for (index, located) in all.iter().enumerate() {
        let LocatedDatastore {
            datastore, lines, ..
        } = located;
        let same = |earlier: &&LocatedDatastore| value(&earlier.datastore) == value(datastore);
        if let Some(LocatedDatastore { lines: first, .. }) = all.iter().take(index).find(same) {
            let rejection = Rejection::new(
                format!(
                    "{:?} is taken by the datastore at line {}",
                    value(datastore),
                    first.line(key)
                ),
                format!("give each datastore its own {key}"),
            );
            problems.report(lines.line(key), &lines.title, key, rejection);
        }
    }
}

/// The path of a directory or file in the configuration.
struct ClaimedPath<'a> {
    path: &'a Path,
    key: &'static str,
    lines: &'a KeyLines,
    /// Whether no other path may lie inside.
    exclusive: bool,
}

fn claimed_paths<'a>(
    node: &'a NodeSection<'_>,
    all: &'a [LocatedDatastore],
) -> Vec<ClaimedPath<'a>> {
    let of_node = [("identity", &node.identity), ("control", &node.control)];
    let of_node = of_node.into_iter().filter_map(|(key, path)| {
        let path = path.as_deref()?;
        Some(ClaimedPath {
            path,
            key,
            lines: &node.lines,
            exclusive: false,
        })
    });
    let of_datastores = all.iter().flat_map(
        |LocatedDatastore {
             datastore, lines, ..
         }| {
            [("store", &datastore.store), ("mount", &datastore.mount)].map(|(key, path)| {
                ClaimedPath {
                    path,
                    key,
                    lines,
                    exclusive: true,
                }
            })
        },
    );
    of_node.chain(of_datastores).collect()
}

fn refuse_overlaps(problems: &mut Problems<'_>, node: &NodeSection<'_>, all: &[LocatedDatastore]) {
    let claims = claimed_paths(node, all);
    for (index, claim) in claims.iter().enumerate() {
        for earlier in claims.iter().take(index) {
            if overlap(claim, earlier) {
                report_overlap(problems, claim, earlier);
            }
        }
    }
}

fn overlap(one: &ClaimedPath<'_>, other: &ClaimedPath<'_>) -> bool {
    let inside = |inner: &ClaimedPath<'_>, outer: &ClaimedPath<'_>| {
        outer.exclusive && inner.path.starts_with(outer.path)
    };
    inside(one, other) || inside(other, one)
}

fn report_overlap(problems: &mut Problems<'_>, claim: &ClaimedPath<'_>, earlier: &ClaimedPath<'_>) {
    let relation = if claim.path == earlier.path {
        "is the same as"
    } else if claim.path.starts_with(earlier.path) {
        "lies inside"
    } else {
        "contains"
    };
    let rejection = Rejection::new(
        format!(
            "{} {relation} the {} of {} at line {}",
            claim.path.display(),
            earlier.key,
            earlier.lines.title,
            earlier.lines.line(earlier.key)
        ),
        "give every store and every mount a directory of its own, none inside another",
    );
    problems.report(
        claim.lines.line(claim.key),
        &claim.lines.title,
        claim.key,
        rejection,
    );
}

/// All peers of a node need the same setting of encryption: it applies before a connection names its datastore.
fn refuse_mixed_encryption(problems: &mut Problems<'_>, all: &[LocatedDatastore]) {
    let mut settings = all.iter().filter_map(|located| {
        let peer = located.datastore.peer.as_ref()?;
        Some((peer.encryption, located.peer_lines.as_ref()?))
    });
    let Some((first, first_lines)) = settings.next() else {
        return;
    };
    for (other, lines) in settings.filter(|(other, _)| *other != first) {
        let rejection = Rejection::new(
            format!(
                "it is {:?} here, but {:?} in the {} at line {}",
                other.word(),
                first.word(),
                first_lines.title,
                first_lines.line("encryption")
            ),
            "give all datastores of this node the same, or run a second node process for the others",
        );
        problems.report(
            lines.line("encryption"),
            &lines.title,
            "encryption",
            rejection,
        );
    }
}

fn check_peer(problems: &mut Problems<'_>, node: &NodeSection<'_>, located: &LocatedDatastore) {
    let LocatedDatastore {
        datastore,
        lines,
        has_peer,
        peer_lines,
        ..
    } = located;
    if datastore.role == Role::Secondary && !has_peer {
        let rejection = Rejection::new(
            "a secondary without a peer never receives data",
            "add [datastore.peer], or make this node the primary",
        );
        problems.report(lines.line("role"), &lines.title, "role", rejection);
    }
    let (Some(peer), Some(lines)) = (&datastore.peer, peer_lines) else {
        return;
    };
    let own = node.listen.map(|listen| listen.to_string());
    if own.is_some_and(|own| own == peer.address.to_string()) {
        let rejection = Rejection::new(
            format!("{} is this node itself (its `listen`)", peer.address),
            "write the `listen` of the other node",
        );
        problems.report(lines.line("address"), &lines.title, "address", rejection);
    }
}

/// A witness is a third server: neither this node nor its peer.
fn check_witness(problems: &mut Problems<'_>, node: &NodeSection<'_>, located: &LocatedDatastore) {
    let Some(lines) = &located.witness_lines else {
        return;
    };
    if !located.has_peer {
        let of_datastore = &located.lines;
        let rejection = Rejection::new(
            "a witness decides between two nodes, and this datastore has no peer",
            "add [datastore.peer], or remove [datastore.witness]",
        );
        let line = of_datastore.line("witness");
        problems.report(line, &of_datastore.title, "witness", rejection);
    }
    let Some(WitnessConfig::Own {
        address,
        fingerprint,
    }) = &located.witness
    else {
        return;
    };
    let address = address.to_string();
    let peer = located.datastore.peer.as_ref();
    let mut refuse = |key: &str, cause: String| {
        let cure =
            "a witness is a third server: write what `lockstep init --witness` has printed there";
        problems.report(
            lines.line(key),
            &lines.title,
            key,
            Rejection::new(cause, cure),
        );
    };
    if peer.is_some_and(|peer| peer.fingerprint == *fingerprint) {
        refuse(
            "fingerprint",
            "this is the fingerprint of the other node".to_owned(),
        );
    }
    if node.listen.is_some_and(|own| own.to_string() == address) {
        refuse(
            "address",
            format!("{address} is this node itself (its `listen`)"),
        );
    }
    if peer.is_some_and(|peer| peer.address.to_string() == address) {
        refuse(
            "address",
            format!("{address} is the address of the other node"),
        );
    }
}

/// A node that dies without a word is missed after `peer_timeout_ms`. A failover that takes many times as long as
/// `failover_after_ms` says is a mistake.
fn check_peer_timeout(problems: &mut Problems<'_>, located: &LocatedDatastore) {
    let (datastore, lines) = (&located.datastore, &located.lines);
    let Some(after) = datastore.failover_after else {
        return;
    };
    if datastore.peer_timeout > after * PEER_TIMEOUT_FACTOR_MAX {
        let (timeout, after) = (datastore.peer_timeout.as_millis(), after.as_millis());
        let rejection = Rejection::new(
            format!(
                "a server that fails without a word is missed after {timeout} ms only, and failover_after_ms = {after} \
                 counts from then on"
            ),
            format!(
                "remove this key (twice failover_after_ms is its default), or write at most {} ms",
                after * u128::from(PEER_TIMEOUT_FACTOR_MAX)
            ),
        );
        let key = "peer_timeout_ms";
        problems.report(lines.line(key), &lines.title, key, rejection);
    }
}
