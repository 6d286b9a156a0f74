//! The primary's side of distributed recovery: sends the ranges of the writes in flight (rule P8; paper, section 4.2).
//!
//! The core is catching up meanwhile. All metadata operations are done, so both nodes have the
//! same files. No new operation is admitted, so published bytes, sizes and times do not change. Two
//! kinds of write may still be open:
//!
//! - Writes with a waiting client. They are not published on the primary: size and times do not show
//!   them. Their bytes may be in place or may come into place just now, and the secondary may
//!   have executed them or not. The core sends each of these writes again after the recovery of the ranges, whole and
//!   with its own OSN. It is therefore right that the sent size and times are older than the writes, that the secondary
//!   removes their bytes beyond the published size, and that a torn write is sent torn.
//! - Writes without a waiting client, because a node stopped in between. After a restart of the primary
//!   their bytes in place are published. The primary's bytes are then final for the secondary too.
//!
//! The OSN of the last published write goes with size and times, so that a resent write with
//! a lower OSN does not change the times on one node only.
//!
//! This module does not drop the waiting entries: the core sends `RecoveryDone` when the resent
//! writes are done too.

use std::collections::BTreeSet;

use lockstep_fs::StoreView;
use lockstep_fs::store::FileTimes;
use lockstep_paw_saw::{InFlightEntry, RecoveryRange, recovery_ranges};
use lockstep_repl::message::Request;
use lockstep_types::Ino;

use crate::api::{Peer, ResyncError};
use crate::file_times::to_wire;
use crate::pipeline::RequestPipeline;

/// Sends the published bytes of all blocks that a waiting write touches, with size and
/// times of their files. Skips files that are gone. Returns the recovered files.
pub fn recover_ranges(
    view: &dyn StoreView,
    peer: &dyn Peer,
    paw: &[InFlightEntry],
    saw: &[InFlightEntry],
) -> Result<BTreeSet<Ino>, ResyncError> {
    let mut recovered = BTreeSet::new();
    let mut buffer = Vec::new();
    let mut requests = RequestPipeline::new(peer);
    for range in recovery_ranges(paw, saw) {
        let Some(facts) = view.file_times(range.ino)? else {
            continue;
        };
        buffer.resize(published_bytes(&range, &facts), 0);
        view.read_raw(range.ino, range.offset, &mut buffer)?;
        let request = Request::RecoverRange {
            ino: range.ino,
            offset: range.offset,
            times: to_wire(&facts),
        };
        requests.send("recover a range", request, &buffer)?;
        recovered.insert(range.ino);
    }
    requests.finish()?;
    Ok(recovered)
}

/// Number of bytes of a range before the end of the file; a range is never longer than a write.
fn published_bytes(range: &RecoveryRange, facts: &FileTimes) -> usize {
    let left = facts.size.saturating_sub(range.offset).min(range.length);
    usize::try_from(left).unwrap_or(0)
}
