//! One piece of a scan as of a snapshot: the next present records and the next kept values, and their merge.
//!
//! As in a scan of the memtable, a part that was not read to its end bounds the piece, and the records behind that horizon are read
//! again with the next piece.

use std::iter::Peekable;
use std::ops::{ControlFlow, Range};

use lockstep_types::SnapshotId;

use super::kept;
use crate::error::{OpError, StoreError};
use crate::kv::Direction;
use crate::namespace::keys;

/// Most bytes of one part; at least one entry is taken, of any size.
const BYTES_MAX: usize = 256 << 10;

/// Keys and values of one part, in the direction of the scan.
#[derive(Default)]
pub(super) struct ScanPart {
    bytes: Vec<u8>,
    /// Key and value of each; a record that was absent has no value.
    entries: Vec<(Range<usize>, Option<Range<usize>>)>,
    /// Entries looked at.
    looked_at: usize,
    /// The key behind which the part may go on.
    cut_at: Option<Vec<u8>>,
}

impl ScanPart {
    /// The key behind which the part may go on; `None` if the part is whole.
    pub fn cut_at(&self) -> Option<&[u8]> {
        self.cut_at.as_deref()
    }

    /// Takes a present record. Breaks with the last one.
    pub fn take_present(&mut self, key: &[u8], value: &[u8], max: usize) -> ControlFlow<()> {
        self.push(key, Some(value));
        if self.entries.len() < max && self.bytes.len() < BYTES_MAX {
            return ControlFlow::Continue(());
        }
        self.cut_at = Some(key.to_vec());
        ControlFlow::Break(())
    }

    fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let key = self.append(key);
        let value = value.map(|value| self.append(value));
        self.entries.push((key, value));
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.entries.iter().map(|(key, value)| {
            let value = value.as_ref().map(|value| self.slice(value));
            (self.slice(key), value)
        })
    }
}

/// The part with kept values as it is read: of each record the value that one snapshot sees.
pub(super) struct KeptPart {
    part: ScanPart,
    id: SnapshotId,
    direction: Direction,
    max: usize,
    /// The record of the kept value that was read last.
    last: Vec<u8>,
    /// Whether the last entry of the part is of that record.
    has_last: bool,
    failed: Option<StoreError>,
}

impl KeptPart {
    /// An empty part of the kept values that snapshot `id` sees. It looks at about `max` kept values.
    pub fn new(id: SnapshotId, direction: Direction, max: usize) -> Self {
        Self {
            part: ScanPart::default(),
            id,
            direction,
            max,
            last: Vec::new(),
            has_last: false,
            failed: None,
        }
    }

    /// Looks at the next kept value, under its key in table `h`. Breaks at the end of the part.
    pub fn take(&mut self, key: &[u8], bytes: &[u8]) -> ControlFlow<()> {
        let parsed = keys::record_of_history(key).zip(keys::snapshot_of(key));
        let (Some((record, label)), Ok(value)) = (parsed, kept::decode(key, bytes)) else {
            self.failed = Some(StoreError::unreadable(key));
            return ControlFlow::Break(());
        };
        if record != self.last {
            let is_full = self.part.looked_at >= self.max || self.part.bytes.len() >= BYTES_MAX;
            if is_full && self.part.looked_at > 0 {
                self.part.cut_at = Some(std::mem::take(&mut self.last));
                return ControlFlow::Break(());
            }
            self.last = record.to_vec();
            self.has_last = false;
        }
        self.part.looked_at += 1;
        if label < self.id {
            return ControlFlow::Continue(());
        }
        // The oldest of the labels decides: the first one on the way up, the last one on the way down.
        if self.has_last && self.direction == Direction::Up {
            return ControlFlow::Continue(());
        }
        if self.has_last {
            self.part.entries.pop();
        }
        self.part.push(record, value);
        self.has_last = true;
        ControlFlow::Continue(())
    }

    /// The part.
    pub fn finish(self) -> Result<ScanPart, StoreError> {
        self.failed.map_or(Ok(self.part), Err)
    }
}

/// The next records as of a snapshot, without regard to their births.
pub(super) struct PastPiece {
    direction: Direction,
    present: ScanPart,
    kept: ScanPart,
}

/// Called with each key and value.
pub(super) type EachPast<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, OpError> + 'a;

impl PastPiece {
    pub const fn new(direction: Direction, present: ScanPart, kept: ScanPart) -> Self {
        Self {
            direction,
            present,
            kept,
        }
    }

    /// The last key of this piece, if the scan may go on behind it.
    pub fn horizon(&self) -> Option<&[u8]> {
        let cuts = [&self.present, &self.kept].into_iter();
        let cuts = cuts.filter_map(ScanPart::cut_at);
        cuts.min_by(|one, other| self.direction.compare(one, other))
    }

    /// Calls `each` with the records up to the horizon.
    pub fn for_each(&self, each: &mut EachPast<'_>) -> Result<ControlFlow<()>, OpError> {
        let horizon = self.horizon();
        let is_behind = |key: &[u8]| {
            horizon.is_some_and(|horizon| self.direction.compare(key, horizon).is_gt())
        };
        let mut present = self.present.iter().peekable();
        let mut kept = self.kept.iter().peekable();
        while let Some((key, value)) = self.next(&mut present, &mut kept) {
            if is_behind(key) {
                break;
            }
            if let Some(value) = value
                && each(key, value)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The next record of both parts. The kept value of a record hides the present one.
    fn next<'a>(
        &self,
        present: &mut Peekable<impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>>,
        kept: &mut Peekable<impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>>,
    ) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        match (present.peek(), kept.peek()) {
            (Some((key, _)), Some((kept_key, _))) => match self.direction.compare(key, kept_key) {
                std::cmp::Ordering::Less => present.next(),
                std::cmp::Ordering::Equal => {
                    present.next();
                    kept.next()
                }
                std::cmp::Ordering::Greater => kept.next(),
            },
            (Some(_), None) => present.next(),
            (None, _) => kept.next(),
        }
    }
}
