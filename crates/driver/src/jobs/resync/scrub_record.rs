//! The place of a scrub, and the result of its last pass, as they outlive the process.

use std::time::Duration;

use lockstep_fs::StoreError;
use lockstep_types::Timestamp;
use lockstep_types::backing::{Backing, replace};
use lockstep_verify::Report;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::host::single_job::SingleJob;
use crate::report::ScrubStatus;

/// The file of the record in the store.
const RECORD_FILE: &str = "scrub.json";
/// A pass: its beginning, and its result so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ScrubPass {
    /// In seconds since 1970, by the clock of this machine.
    pub began: i64,
    /// Both nodes had done every operation before this one when the pass began.
    pub through: String,
    pub inodes: u64,
    pub bytes: u64,
    pub differences: u64,
    pub healed: u64,
    pub unproved_blocks: u64,
}

/// The place of the scrub, as it outlives the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ScrubRecord {
    /// Since when there has been no pass, in seconds since 1970; zero if that was never noted.
    pub waits_since: i64,
    /// The pass of the moment, and the number of the next inode.
    pub pass: Option<(ScrubPass, u64)>,
    /// The last pass that came to its end, and that moment.
    pub last: Option<(ScrubPass, i64)>,
}

impl ScrubRecord {
    /// A record that cannot be read begins anew: it proves nothing, and costs a pass.
    pub fn load(backing: &dyn Backing) -> Self {
        let mut bytes = Vec::new();
        let read = backing.open(RECORD_FILE).and_then(|file| {
            let length = file.stat()?.length.min(64 << 10);
            bytes.resize(usize::try_from(length).unwrap_or(0), 0);
            file.read_at(0, &mut bytes)
        });
        read.ok()
            .and_then(|_| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default()
    }

    pub fn store(&self, backing: &dyn Backing) -> Result<(), StoreError> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        replace(backing, RECORD_FILE, &text).map_err(StoreError::disk("write", RECORD_FILE))
    }

    /// Whether a pass goes on, or begins, at this moment.
    pub const fn is_due(&self, every: i64, now: i64) -> bool {
        self.pass.is_some() || now >= self.waits_since.saturating_add(every)
    }

    pub fn status(&self) -> ScrubStatus {
        let utc = |secs| Timestamp { secs, nanos: 0 }.utc();
        let shown = self.pass.as_ref().map(|(pass, _)| pass);
        let last = self.last.as_ref();
        ScrubStatus {
            began: shown.map(|pass| utc(pass.began)),
            inodes_done: shown.map(|pass| pass.inodes),
            last_ended: last.map(|(_, ended)| utc(*ended)),
            differences_total: last.map_or(0, |(pass, _)| pass.differences),
            healed_total: last.map_or(0, |(pass, _)| pass.healed),
            unproved_blocks: last.map_or(0, |(pass, _)| pass.unproved_blocks),
        }
    }
}

/// The scrub of one session.
#[derive(Default)]
pub(super) struct Scrub {
    pub job: SingleJob,
    /// The record, once it was read; `None` before.
    pub record: Mutex<Option<ScrubRecord>>,
    /// No look before this moment of the host's clock.
    pub rests_until: Mutex<Duration>,
}

impl Scrub {
    pub fn rest(&self, until: Duration) {
        *self.rests_until.lock() = until;
    }
}

impl ScrubPass {
    /// Whether both copies are the same by its word.
    pub const fn is_good(&self) -> bool {
        self.differences == self.healed
    }

    pub fn add(&mut self, report: &Report) {
        self.inodes += report.inodes;
        self.bytes = self.bytes.saturating_add(report.bytes);
        self.differences += report.total;
        self.healed += report.healed;
        self.unproved_blocks = self.unproved_blocks.saturating_add(report.void_blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_was_begun_goes_on_and_the_next_one_waits() {
        let mut record = ScrubRecord {
            waits_since: 1000,
            ..ScrubRecord::default()
        };
        assert!(!record.is_due(100, 1099));
        assert!(record.is_due(100, 1100));
        record.pass = Some((ScrubPass::default(), 7));
        assert!(record.is_due(100, 1000));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = ScrubRecord {
            waits_since: 5,
            pass: Some((ScrubPass::default(), 9)),
            last: None,
        };
        let text = serde_json::to_vec(&record).unwrap();
        assert_eq!(
            serde_json::from_slice::<ScrubRecord>(&text).unwrap(),
            record
        );
        let empty: ScrubRecord = serde_json::from_slice(b"{}").unwrap();
        assert_eq!(empty, ScrubRecord::default());
    }
}
