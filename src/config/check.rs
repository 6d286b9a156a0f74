//! Mistakes that show only when sections are compared with each other.

use std::path::Path;

use super::problem::{Problems, Refusal};
use super::section::Place;
use super::sections::{NodeSection, PlacedDatastore};
use super::{Choice, DatastoreConfig, Role};

/// Compares the datastores with each other and with the node.
pub(super) fn datastores(
    problems: &mut Problems<'_>,
    node: &NodeSection<'_>,
    all: &[PlacedDatastore],
) {
    refuse_duplicates(problems, all, "name", |datastore| datastore.name.clone());
    refuse_duplicates(problems, all, "uuid", |datastore| {
        datastore.uuid.to_string()
    });
    refuse_overlaps(problems, node, all);
    refuse_mixed_encryption(problems, all);
    for placed in all {
        check_peer(problems, node, placed);
    }
}

fn refuse_duplicates(
    problems: &mut Problems<'_>,
    all: &[PlacedDatastore],
    key: &str,
    value: impl Fn(&DatastoreConfig) -> String,
) {
    for (
        index,
        PlacedDatastore {
            datastore, place, ..
        },
    ) in all.iter().enumerate()
    {
        let same = |earlier: &&PlacedDatastore| value(&earlier.datastore) == value(datastore);
        if let Some(PlacedDatastore { place: first, .. }) = all.iter().take(index).find(same) {
            let refusal = Refusal::new(
                format!(
                    "{:?} is taken by the datastore at line {}",
                    value(datastore),
                    first.line(key)
                ),
                format!("give each datastore its own {key}"),
            );
            problems.report(place.line(key), &place.title, key, refusal);
        }
    }
}

/// A directory or file that the configuration speaks of.
struct Claim<'a> {
    path: &'a Path,
    key: &'static str,
    place: &'a Place,
    /// Whether nothing else may lie inside.
    exclusive: bool,
}

fn claims<'a>(node: &'a NodeSection<'_>, all: &'a [PlacedDatastore]) -> Vec<Claim<'a>> {
    let of_node = [("identity", &node.identity), ("control", &node.control)];
    let of_node = of_node.into_iter().filter_map(|(key, path)| {
        let path = path.as_deref()?;
        Some(Claim {
            path,
            key,
            place: &node.place,
            exclusive: false,
        })
    });
    let of_datastores = all.iter().flat_map(
        |PlacedDatastore {
             datastore, place, ..
         }| {
            [("store", &datastore.store), ("mount", &datastore.mount)].map(|(key, path)| Claim {
                path,
                key,
                place,
                exclusive: true,
            })
        },
    );
    of_node.chain(of_datastores).collect()
}

fn refuse_overlaps(problems: &mut Problems<'_>, node: &NodeSection<'_>, all: &[PlacedDatastore]) {
    let claims = claims(node, all);
    for (index, claim) in claims.iter().enumerate() {
        for earlier in claims.iter().take(index) {
            if overlap(claim, earlier) {
                report_overlap(problems, claim, earlier);
            }
        }
    }
}

fn overlap(one: &Claim<'_>, other: &Claim<'_>) -> bool {
    let inside = |inner: &Claim<'_>, outer: &Claim<'_>| {
        outer.exclusive && inner.path.starts_with(outer.path)
    };
    inside(one, other) || inside(other, one)
}

fn report_overlap(problems: &mut Problems<'_>, claim: &Claim<'_>, earlier: &Claim<'_>) {
    let relation = if claim.path == earlier.path {
        "is the same as"
    } else if claim.path.starts_with(earlier.path) {
        "lies inside"
    } else {
        "contains"
    };
    let refusal = Refusal::new(
        format!(
            "{} {relation} the {} of {} at line {}",
            claim.path.display(),
            earlier.key,
            earlier.place.title,
            earlier.place.line(earlier.key)
        ),
        "give every store and every mount a directory of its own, none inside another",
    );
    problems.report(
        claim.place.line(claim.key),
        &claim.place.title,
        claim.key,
        refusal,
    );
}

/// A node has one setting of encryption, for it counts before a connection says which datastore it
/// is for.
fn refuse_mixed_encryption(problems: &mut Problems<'_>, all: &[PlacedDatastore]) {
    let mut settings = all.iter().filter_map(|placed| {
        let peer = placed.datastore.peer.as_ref()?;
        Some((peer.encryption, placed.peer_place.as_ref()?))
    });
    let Some((first, first_place)) = settings.next() else {
        return;
    };
    for (other, place) in settings.filter(|(other, _)| *other != first) {
        let refusal = Refusal::new(
            format!(
                "it is {:?} here, but {:?} in the {} at line {}",
                other.word(),
                first.word(),
                first_place.title,
                first_place.line("encryption")
            ),
            "give all datastores of this node the same, or run a second node process for the others",
        );
        problems.report(
            place.line("encryption"),
            &place.title,
            "encryption",
            refusal,
        );
    }
}

fn check_peer(problems: &mut Problems<'_>, node: &NodeSection<'_>, placed: &PlacedDatastore) {
    let PlacedDatastore {
        datastore,
        place,
        has_peer,
        peer_place,
    } = placed;
    if datastore.role == Role::Secondary && !has_peer {
        let refusal = Refusal::new(
            "a secondary without a peer would never receive anything",
            "add [datastore.peer], or make this node the primary",
        );
        problems.report(place.line("role"), &place.title, "role", refusal);
    }
    let (Some(peer), Some(place)) = (&datastore.peer, peer_place) else {
        return;
    };
    let own = node.listen.map(|listen| listen.to_string());
    if own.is_some_and(|own| own == peer.address.to_string()) {
        let refusal = Refusal::new(
            format!("{} is this node itself (its `listen`)", peer.address),
            "write the `listen` of the other node",
        );
        problems.report(place.line("address"), &place.title, "address", refusal);
    }
}
