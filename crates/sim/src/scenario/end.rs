//! What must hold when everything is over.

use lockstep_fs::files::{CONTENT_DIR, content_owner};
use lockstep_types::backing::Backing;
use lockstepfs::datastore::Datastore;

use super::dump::dump;
use crate::check::bounded::{self, Bound, Counter, Sample};
use crate::check::{self, Dump, Violation, identical};
use crate::history::History;
use crate::world::Side;

/// What may be left when nothing is under way.
const BOUNDS: [Bound; 6] = [
    nothing_left(Counter::PawEntries),
    nothing_left(Counter::SawEntries),
    nothing_left(Counter::PendingIntents),
    nothing_left(Counter::HeldOperations),
    nothing_left(Counter::Orphans),
    nothing_left(Counter::TemporaryFiles),
];

const fn nothing_left(counter: Counter) -> Bound {
    Bound {
        counter,
        limit: u64::MAX,
        floor: 0,
    }
}

/// Both nodes are in sync and at rest, and no client asks any more: judges everything.
pub fn judge(history: &History, nodes: [&Datastore; 2]) -> Result<(), String> {
    let [primary, secondary] = nodes.map(|node| dump(node.store()));
    let (primary, secondary) = (primary?, secondary?);
    let violation = |violation: Violation| violation.to_string();
    identical::check(&primary, &secondary)
        .map_err(|violation| format!("in sync but different: {violation}"))?;
    check::history(history, &primary).map_err(violation)?;
    let mut samples = Vec::new();
    for (side, node) in Side::BOTH.into_iter().zip(nodes) {
        sample(side, node, &primary, &mut samples)?;
    }
    bounded::check(&samples, &BOUNDS).map_err(violation)
}

fn sample(
    side: Side,
    node: &Datastore,
    dump: &Dump,
    samples: &mut Vec<Sample>,
) -> Result<(), String> {
    let status = node.status();
    let orphans = node.store().orphans();
    let orphans = orphans.map_err(|error| format!("{error:?}"))?;
    let counted = [
        (Counter::PawEntries, status.paw),
        (Counter::SawEntries, status.saw),
        (Counter::PendingIntents, status.metadata_in_flight),
        (Counter::HeldOperations, status.writes_in_flight),
        (Counter::Orphans, orphans.len() as u64),
        (
            Counter::TemporaryFiles,
            garbage(&**node.store().backing(), dump)?,
        ),
    ];
    samples.extend(counted.into_iter().map(|(counter, value)| Sample {
        at: 0,
        node: side,
        counter,
        value,
        is_idle: true,
    }));
    Ok(())
}

/// Content files that belong to no inode.
fn garbage(backing: &dyn Backing, dump: &Dump) -> Result<u64, String> {
    let said = |error: std::io::Error| format!("a disk cannot be listed: {error}");
    let mut garbage = 0;
    for directory in backing.list(CONTENT_DIR).map_err(said)? {
        let directory = format!("{CONTENT_DIR}/{directory}");
        for file in backing.list(&directory).map_err(said)? {
            let ino = content_owner(&format!("{directory}/{file}"));
            let is_known = ino.is_some_and(|ino| dump.inodes.contains_key(&ino));
            garbage += u64::from(!is_known);
        }
    }
    Ok(garbage)
}
