//! The rest of the source of a resync: its copy at a barrier, and the rest of a source that has lost its power (rule P30).
//!
//! Invariant: the rest of a copy counts for no copy of the other node by its generation. This node may have lost mirrored changes, which the
//! other node has marked, so such a copy needs a base by a barrier.

use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};

use super::kept::KeptDelta;
use super::rest_copy::{CopiedRest, RestCopy};
use super::resync_part::ChangedRecords;
use super::{Alone, Delta, DeltaTracker};
use crate::namespace::keys;

/// The copy of this moment.
impl DeltaTracker {
    /// A copy of the rest; `None` without a rest.
    pub(crate) fn copy_rest(&self) -> CopiedRest {
        let state = self.state();
        let Delta::Alone(alone) = &state.delta else {
            return CopiedRest(None);
        };
        let kept = &state.kept;
        let mut bytes = Vec::new();
        if !is_active(Mutant::RestLacksContent) {
            kept.kept
                .marks
                .each(|ino, run| bytes.push((ino.get(), run.start, run.end)));
        }
        let mut records = alone.resync.with_sent(&alone.records);
        // A file that is not done may differ in its size and times.
        records
            .keys
            .extend(alone.resync.open_files().map(keys::inode));
        records.all |= alone.resync.has_all_times();
        records.limit();
        CopiedRest(Some(RestCopy {
            lead: alone.lead,
            files_from: kept.files_from(),
            all_records: records.all,
            bytes,
            keys: records.keys.into_iter().collect(),
        }))
    }
}

/// After a loss of power.
impl DeltaTracker {
    /// Whether the rest of this process has begun with a copy. The writes under way then are in it, or the other node has their marks.
    pub(crate) const fn begins_with_copy(&self) -> bool {
        self.begins_with_copy
    }
}

impl RestCopy {
    /// The rest of a node that has lost its power.
    pub fn into_rest(self, kept: &mut KeptDelta) -> Alone {
        kept.begin();
        let mut alone = Alone::of(self.lead);
        for (ino, start, end) in self.bytes {
            if let Some(ino) = Ino::new(ino) {
                kept.kept.note_bytes(ino, &(start..end));
            }
        }
        if let Some(number) = self.files_from {
            kept.kept.note_files_from(number);
        }
        alone.note_keys(kept, self.keys.iter());
        if self.all_records {
            kept.kept.note_all_records();
            alone.records = ChangedRecords::any();
        }
        alone.resync.begin_without_namespace();
        kept.begun_without_namespace(self.lead);
        alone
    }
}
