//! What must hold when everything is over.

use lockstep_driver::Datastore;

use super::bounds;
use super::dump::dump;
use crate::check::leaks::{self, Kept};
use crate::check::{self, Dump, Violation, identical};
use crate::disk::Disk;
use crate::history::History;
use crate::world::Side;

/// A node at the end.
#[derive(Clone, Copy)]
pub struct Ended<'a> {
    /// What lives on it.
    pub datastore: &'a Datastore,
    /// Its disk.
    pub disk: &'a Disk,
}

/// Both nodes are in sync and at rest, and no client asks any more: judges everything.
/// `false` if a question had to be left undecided.
pub fn judge(history: &History, clients: u32, nodes: [Ended<'_>; 2]) -> Result<bool, String> {
    let [primary, secondary] = nodes.map(|node| dump(node.datastore.store()));
    let (primary, secondary) = (primary?, secondary?);
    identical::check(&primary, &secondary)
        .map_err(|violation| format!("in sync but different: {violation}"))?;
    let said = |violation: Violation| violation.to_string();
    let is_decided = check::history(history, &primary).map_err(said)?;
    for (side, node) in Side::BOTH.into_iter().zip(nodes) {
        bounds::check(side, node.datastore, clients, history, true).map_err(said)?;
        look_for_leaks(side, node, &primary)?;
    }
    Ok(is_decided)
}

fn look_for_leaks(side: Side, node: Ended<'_>, inodes: &Dump) -> Result<(), String> {
    let orphans = node.datastore.store().tree().orphans();
    let orphans = orphans.map_err(|error| format!("{error:?}"))?;
    let kept = Kept {
        node: side,
        files: &node.disk.files(),
        directories: &node.disk.directories(),
        inodes,
        orphans: orphans.len(),
        locks: node.datastore.load().locks.taken,
        locks_max: match side {
            Side::Primary => 0,
            Side::Secondary => usize::try_from(bounds::IN_VAIN).unwrap_or(0),
        },
    };
    leaks::check(&kept).map_err(|violation| violation.to_string())
}
