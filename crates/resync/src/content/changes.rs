//! The requests by which the secondary changes its copy of a file in a resync: bytes, holes and reserved space.
//!
//! The caller holds the locks of the bytes until the secondary has answered.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use lockstep_fs::StoreView;
use lockstep_repl::message::{ComparePurpose, Request};
use lockstep_types::Ino;
use lockstep_types::limits::BLOCK_BYTES;

use crate::api::{Peer, PendingAnswer, ResyncError};
use crate::bits;
use crate::limits::RANGES_MAX;
use crate::progress::JobProgress;

/// Most changes of one piece, or of the parts of one request, under way.
pub(super) const CHANGES_MAX: usize = 8;

/// Most bytes of one request.
const PART_BYTES: usize = 256 << 10;

/// Bytes of a file that begin with a block.
#[derive(Clone, Copy)]
pub(super) struct FileBytes<'d> {
    pub(super) offset: u64,
    pub(super) bytes: &'d [u8],
}

/// The bytes of one request.
#[derive(Default)]
struct RangesToWrite<'d> {
    parts: Vec<FileBytes<'d>>,
}

impl RangesToWrite<'_> {
    fn has_room(&self, part: FileBytes<'_>) -> bool {
        let bytes = self.parts.iter().map(|part| part.bytes.len());
        self.parts.len() < RANGES_MAX && bytes.sum::<usize>() + part.bytes.len() <= PART_BYTES
    }

    fn payload(&self) -> Cow<'_, [u8]> {
        match self.parts.as_slice() {
            [part] => part.bytes.into(),
            parts => {
                let parts: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
                parts.concat().into()
            }
        }
    }
}

/// See the head of this file.
#[derive(Clone, Copy)]
pub(super) struct ContentChanges<'a> {
    /// The content that the secondary gets.
    pub(super) view: &'a dyn StoreView,
    pub(super) peer: &'a dyn Peer,
    pub(super) progress: &'a JobProgress,
}

impl<'a> ContentChanges<'a> {
    /// Sends runs of blocks, each of which has zeros only or no block of zeros. Names of clients go over the same way, so a request is
    /// short. At most [`CHANGES_MAX`] requests are under way.
    pub(super) fn write_runs<'d>(
        self,
        ino: Ino,
        runs: impl IntoIterator<Item = FileBytes<'d>>,
    ) -> Result<VecDeque<PendingAnswer<'a>>, ResyncError> {
        let mut changes: VecDeque<PendingAnswer<'a>> = VecDeque::new();
        let mut request = RangesToWrite::default();
        for part in runs.into_iter().flat_map(parts) {
            if is_zero(part.bytes) {
                wait_for_room(&mut changes)?;
                changes.push_back(self.write_zeros(ino, part)?);
                continue;
            }
            if !request.has_room(part) {
                wait_for_room(&mut changes)?;
                changes.push_back(self.write(ino, &std::mem::take(&mut request)));
            }
            request.parts.push(part);
        }
        if !request.parts.is_empty() {
            wait_for_room(&mut changes)?;
            changes.push_back(self.write(ino, &request));
        }
        Ok(changes)
    }

    fn write_zeros(
        self,
        ino: Ino,
        FileBytes { offset, bytes }: FileBytes<'_>,
    ) -> Result<PendingAnswer<'a>, ResyncError> {
        let length = bytes.len() as u64;
        let data = self.view.next_data(ino, offset)?;
        // A later write over these blocks needs no new room on this node. The peer therefore reserves room, too.
        let is_written = data.is_some_and(|data| data < offset + length);
        Ok(if is_written {
            self.reserve(ino, vec![(offset, length)], true)
        } else {
            self.punch(ino, offset, length)
        })
    }

    fn write(self, ino: Ino, request: &RangesToWrite<'_>) -> PendingAnswer<'a> {
        let payload = request.payload();
        self.progress.bytes_sent.add(payload.len() as u64);
        let range = |part: &FileBytes<'_>| (part.offset, part.bytes.len());
        let ranges = request.parts.iter().map(range);
        let ranges = ranges.map(|(offset, length)| (offset, u32::try_from(length).unwrap_or(0)));
        let ranges = ranges.collect();
        self.peer
            .begin(Request::WriteBlocks { ino, ranges }, &payload)
    }

    /// Has space reserved. `zero`: the ranges have zeros, and other bytes there are overwritten.
    pub(super) fn reserve(
        self,
        ino: Ino,
        ranges: Vec<(u64, u64)>,
        zero: bool,
    ) -> PendingAnswer<'a> {
        self.peer.begin(Request::Reserve { ino, ranges, zero }, &[])
    }

    /// Has a hole made.
    pub(super) fn punch(self, ino: Ino, offset: u64, length: u64) -> PendingAnswer<'a> {
        let request = Request::CompareHole {
            ino,
            offset,
            length,
            purpose: ComparePurpose::Resync,
        };
        self.peer.begin(request, &[])
    }
}

/// The bytes of some runs of blocks of a piece that begins at `offset`, without the zeros that fill up the last block of the file.
pub(super) fn bytes_of_runs<'d>(
    (offset, data): (u64, &'d [u8]),
    length: u64,
    runs: &[Range<usize>],
) -> impl Iterator<Item = FileBytes<'d>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    runs.iter().filter_map(move |run| {
        let start = run.start * BLOCK_BYTES;
        let bytes = data.get(start..(run.end * BLOCK_BYTES).min(length))?;
        let offset = offset + start as u64;
        Some(FileBytes { offset, bytes })
    })
}

/// The runs of different blocks; each run has zero blocks only or no zero block.
pub(super) fn uniform_runs(differing: &[u8], data: &[u8]) -> Vec<Range<usize>> {
    let zeros: Vec<bool> = data
        .chunks(BLOCK_BYTES)
        .map(|block| block.iter().all(|&byte| byte == 0))
        .collect();
    let runs_of = |zero: bool| {
        let wanted = zeros.iter().enumerate();
        let wanted = wanted.map(|(number, is)| *is == zero && bits::get(differing, number));
        bits::runs(&bits::pack(wanted), zeros.len())
    };
    let mut runs = [runs_of(false), runs_of(true)].concat();
    runs.sort_unstable_by_key(|run| run.start);
    runs
}

/// The same of all blocks.
pub(super) fn all_uniform_runs(data: &[u8]) -> Vec<Range<usize>> {
    let every = bits::pack(std::iter::repeat_n(true, data.len().div_ceil(BLOCK_BYTES)));
    uniform_runs(&every, data)
}

/// The parts of a run, each of which fits into one request. Zeros go as their length: they are one part.
fn parts(FileBytes { offset, bytes }: FileBytes<'_>) -> impl Iterator<Item = FileBytes<'_>> {
    let part = if is_zero(bytes) {
        bytes.len()
    } else {
        PART_BYTES
    };
    let offsets = (offset..).step_by(part.max(1));
    let parts = bytes.chunks(part.max(1)).zip(offsets);
    parts.map(|(bytes, offset)| FileBytes { offset, bytes })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Waits until fewer than [`CHANGES_MAX`] changes are under way.
pub(super) fn wait_for_room(changes: &mut VecDeque<PendingAnswer<'_>>) -> Result<(), ResyncError> {
    if changes.len() >= CHANGES_MAX
        && let Some(oldest) = changes.pop_front()
    {
        oldest()?;
    }
    Ok(())
}
