//! The check at the end of each resync: the copies differ in the operations under way, and in nothing else (P10, P21, P24).
//!
//! The check compares everything, also after a resync of the changes. It reads the disks of that moment, as a killed process would
//! leave them. The rule holds for every correct run:
//!
//! - *Content.* Every operation of a resync of content is mirrored, so the tables name the writes under way, as in sync.
//! - *Records.* If no operation waits for the secondary, and both nodes have got to the same one, no record changes. Sizes and
//!   times of files change by writes, too: the content has its own check.

use lockstep_types::Timestamp;

use crate::check::{Body, Dump, identical};
use crate::history::History;
use crate::scenario::nodes::sim_node::SimNode;
use crate::scenario::on_disk::tables;

/// Compares the copies of a primary and a secondary, of which the resync has just ended.
pub fn check([primary, secondary]: [&SimNode; 2], history: &History) -> Result<(), String> {
    let (ours, theirs) = (primary.left()?, secondary.left()?);
    let exists =
        |ino| Ok(ours.dump.inodes.contains_key(&ino) && theirs.dump.inodes.contains_key(&ino));
    let disks = [primary.disk.disk(), secondary.disk.disk()];
    tables::check(disks, exists, history)?;
    if ours.waits || ours.applied != theirs.applied {
        return Ok(());
    }
    let (ours, theirs) = (without_writes(ours.dump), without_writes(theirs.dump));
    identical::check(&ours, &theirs).map_err(|violation| violation.to_string())
}

/// Leaves out what a write may change.
fn without_writes(mut dump: Dump) -> Dump {
    for inode in dump.inodes.values_mut() {
        if let Body::File(bytes) = &mut inode.body {
            bytes.clear();
            inode.size = 0;
            inode.mtime = Timestamp::default();
            inode.ctime = Timestamp::default();
        }
    }
    dump
}
