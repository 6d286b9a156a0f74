//! The primary's side of distributed recovery: sending what was in flight (rule P8; paper, section 4.2).
//!
//! When it runs the core is catching up: metadata operations are settled, so both nodes have the
//! same files, and nothing new is admitted, so nothing changes published bytes, sizes or times. Two
//! kinds of write may still be open:
//!
//! - Writes that clients still wait for. They are not published here: size and times do not show
//!   them, though their bytes may be in place, or be put in place just now, and the secondary may
//!   have executed them or not. The core sends each again afterwards, whole and with its own OSN. So
//!   it is right that the facts sent here are behind them, that the secondary takes back what they
//!   added beyond the published size, and that a torn one is sent torn.
//! - Writes that nobody waits for, because a node stopped in between. After a restart of the primary
//!   their bytes in place are published; with them its word is final for the secondary too.
//!
//! With the facts goes the OSN of the last published write, so that a write that is sent again and
//! has a lower number does not change the times on one node only.
//!
//! The waiting entries are not dropped here: the core has that told (`RecoveryDone`) when the writes
//! sent again are done too.

use lockstep_fs::Store;
use lockstep_fs::store::Facts;
use lockstep_paw_saw::{InFlightEntry, RecoveryRange, recovery_ranges};
use lockstep_repl::message::Request;

use crate::line::Line;
use crate::primary::to_wire;
use crate::{Peer, ResyncError};

/// Sends the published bytes of all blocks that any of the waiting writes touches, with size and
/// times of their files. Files that are gone are skipped.
pub fn recover_ranges(
    store: &Store,
    peer: &dyn Peer,
    paw: &[InFlightEntry],
    saw: &[InFlightEntry],
) -> Result<(), ResyncError> {
    let mut buffer = Vec::new();
    let mut line = Line::new(peer);
    for range in recovery_ranges(paw, saw) {
        let Some(facts) = store.facts(range.ino)? else {
            continue;
        };
        buffer.resize(published_bytes(&range, &facts), 0);
        store.read_raw(range.ino, range.offset, &mut buffer)?;
        let request = Request::RecoverRange {
            ino: range.ino,
            offset: range.offset,
            facts: to_wire(&facts),
        };
        line.send("recover a range", request, &buffer)?;
    }
    line.finish()
}

/// How many bytes of a range lie before the end of the file; a range is never longer than a write.
fn published_bytes(range: &RecoveryRange, facts: &Facts) -> usize {
    let left = facts.size.saturating_sub(range.offset).min(range.length);
    usize::try_from(left).unwrap_or(0)
}
