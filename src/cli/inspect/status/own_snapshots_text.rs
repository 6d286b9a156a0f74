//! The rows about the seed from which a copy was made, and about the snapshots that a node has made of its own copy.

use lockstep_driver::report::{CopyStatus, OwnSnapshotStatus, SeedStatus};

/// One row for the seed, one for each snapshot, and one for a copy that has no fallback although a resync is changing the copy.
pub(super) fn rows(copy: &CopyStatus) -> Vec<(&'static str, String)> {
    let snapshots = copy.own_snapshots.iter();
    let is_lost = |snapshot: &&OwnSnapshotStatus| snapshot.name != FALLBACK;
    let fallback = snapshots.clone().find(|snapshot| !is_lost(snapshot));
    let mut rows = Vec::new();
    rows.extend(copy.seed.as_ref().map(|seed| ("seed", seed_text(seed))));
    match fallback {
        Some(fallback) => rows.push((FALLBACK, fallback_text(fallback))),
        None if copy.mixed => rows.push((FALLBACK, NONE.to_owned())),
        None => {}
    }
    rows.extend(
        snapshots
            .filter(is_lost)
            .map(|lost| ("lost copy", lost_text(lost))),
    );
    rows
}

const FALLBACK: &str = "fallback";
const NONE: &str = "none: the disk had no room for one, and this copy shows no moment of the datastore until the resync has ended";

fn seed_text(seed: &SeedStatus) -> String {
    format!(
        "this copy was made of a seed of {}, with the operations up to {}, and lacks each later change until a resync has ended",
        seed.time, seed.osn
    )
}

fn fallback_text(fallback: &OwnSnapshotStatus) -> String {
    let exact = if fallback.exact {
        ""
    } else {
        ", as its disk had it after a loss of power"
    };
    format!(
        "the whole copy from before the resync that began at {}, with the operations up to {}{exact}",
        fallback.time, fallback.osn
    )
}

fn lost_text(lost: &OwnSnapshotStatus) -> String {
    let generation = lost.lost_generation.unwrap_or_default();
    format!(
        "snapshot {}: this node may have had something alone when it lost its role in generation {generation}",
        lost.name
    )
}
