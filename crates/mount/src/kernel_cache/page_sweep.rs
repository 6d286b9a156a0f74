//! The drop of all pages of files, around the pages for which programs wait.
//!
//! The kernel holds a page locked while it reads the page, and a drop waits for the lock. A read that comes while this node
//! does not serve is parked. So a call that met such a page would return when this node serves again, and would leave the
//! pages behind it in the cache, where programs go on storing. A page that is being read holds no bytes yet, and later gets
//! fresh ones: a drop leaves the page out.
//!
//! A read may be parked after the calls were planned. A call that lasts is compared with the parked reads. If one of them
//! fills a page of the call, the call is left alone, and others are made for the pages around the read. A call that was
//! left alone ends when the read is answered. Then it drops pages once more, which programs do not notice.
//!
//! Invariants:
//! - At the end of a sweep each page has been dropped since the sweep began, or a parked read fills it.
//! - At most [`HANGING_MAX`] calls are left alone. After that a sweep waits for each call.

use std::io;
use std::ops::Range;
use std::time::Duration;

use super::file_pages::{FilePages, PageRead};
use super::invalidator::{CallState, Invalidator, PACKET_MAX};

/// A call that takes longer is compared with the parked reads, each time that this has passed.
const STALL: Duration = Duration::from_millis(3);

/// Most calls that a sweep leaves alone. Each of them has a thread.
const HANGING_MAX: usize = 64;

/// One drop of pages.
struct PageSweep<'a> {
    invalidator: &'a Invalidator,
    /// The reads that are parked at this moment.
    parked_reads: &'a dyn Fn() -> Vec<PageRead>,
    /// The pages that are left to drop, the next ones at the end.
    left: Vec<FilePages>,
    /// Calls that were left alone.
    hanging: usize,
}

/// Makes the kernel write back and drop the pages of inodes, given as ranges of numbers. No thread that takes requests of
/// the kernel may call this. `parked_reads` gives reads that were not admitted since the sweep began.
pub(crate) fn drop_pages(
    invalidator: &Invalidator,
    ranges: &[Range<u64>],
    parked_reads: &dyn Fn() -> Vec<PageRead>,
) -> io::Result<()> {
    let all = ranges.iter().rev().cloned().map(FilePages::all);
    let mut sweep = PageSweep {
        invalidator,
        parked_reads,
        left: all.collect(),
        hanging: 0,
    };
    sweep.run()
}

impl PageSweep<'_> {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let parts = self.take_parts();
            if parts.is_empty() {
                return Ok(());
            }
            self.call(parts)?;
        }
    }

    /// Takes pages for one call, none of which a parked read fills; none at the end of the sweep.
    fn take_parts(&mut self) -> Vec<FilePages> {
        let reads = (self.parked_reads)();
        let mut parts = Vec::new();
        while parts.len() < PACKET_MAX
            && let Some(next) = self.left.pop()
        {
            parts.extend(next.around(&reads));
        }
        let too_many = parts.drain(PACKET_MAX.min(parts.len())..);
        self.left.extend(too_many.rev());
        parts
    }

    /// Makes a call, until it ends or is left alone.
    fn call(&mut self, parts: Vec<FilePages>) -> io::Result<()> {
        let call = self.invalidator.begin(&parts)?;
        loop {
            match self.invalidator.await_end(call, STALL) {
                CallState::Ended(outcome) => return Ok(outcome.map(drop)?),
                CallState::Running if self.hanging == HANGING_MAX || !self.is_held_up(&parts) => {}
                CallState::Running => {
                    self.hanging += 1;
                    break;
                }
                CallState::Lost => break,
            }
        }
        self.left.extend(parts.into_iter().rev());
        Ok(())
    }

    /// Whether a parked read fills one of the pages.
    fn is_held_up(&self, parts: &[FilePages]) -> bool {
        let reads = (self.parked_reads)();
        let mut touched = parts.iter();
        touched.any(|part| reads.iter().any(|read| part.meets(read)))
    }
}
