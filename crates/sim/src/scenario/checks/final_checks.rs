//! The checks at the end of a schedule.

use lockstep_driver::Datastore;
use lockstep_fs::StoreView;

use super::bounds;
use crate::check::leaks::{self, RestingNode};
use crate::check::{self, Dump, Violation, identical, sums, verifier};
use crate::disk::Disk;
use crate::history::History;
use crate::scenario::on_disk::dump::dump;
use crate::world::Side;

/// A node at the end of a schedule.
#[derive(Clone, Copy)]
pub struct FinalNode<'a> {
    /// The machine.
    pub side: Side,
    /// The open datastore.
    pub datastore: &'a Datastore,
    /// The disk.
    pub disk: &'a Disk,
}

/// Checks everything, when both nodes are in sync and idle and no client makes requests any more. The
/// first node is the primary.
/// Returns `false` if a question had to be left undecided.
pub fn check(history: &History, clients: u32, nodes: [FinalNode<'_>; 2]) -> Result<bool, String> {
    let [primary, secondary] = nodes.map(|node| dump(node.datastore.store()));
    let (primary, secondary) = (primary?, secondary?);
    identical::check(&primary, &secondary)
        .map_err(|violation| format!("in sync but different: {violation}"))?;
    let text = |violation: Violation| violation.to_string();
    let [one, other] = nodes.map(|node| node.datastore.store());
    sums::check_both((one, &primary), (other, &secondary)).map_err(text)?;
    verifier::check(history.nodes()).map_err(text)?;
    let is_decided = check::history(history, &primary).map_err(text)?;
    for node in nodes {
        bounds::check(node.side, node.datastore, clients, history, true).map_err(text)?;
        check_leaks(node, &primary)?;
    }
    Ok(is_decided)
}

fn check_leaks(node: FinalNode<'_>, inodes: &Dump) -> Result<(), String> {
    let orphans = node.datastore.store().tree().orphans();
    let orphans = orphans.map_err(|error| format!("{error:?}"))?;
    let resting = RestingNode {
        node: node.side,
        files: &node.disk.files(),
        directories: &node.disk.directories(),
        inodes,
        orphans: orphans.len(),
        locks: node.datastore.usage().locks.taken,
        locks_max: 0,
    };
    leaks::check(&resting).map_err(|violation| violation.to_string())
}
