//! The drop of everything that the kernel caches of a mount: names, attributes, listings, access lists and pages.
//!
//! The order of a drop: first each name expires, then the attributes of each known inode go, and last the pages. Only
//! the last step waits: the kernel writes dirty pages back before it drops them. The last step drops the attributes again,
//! of an inode that the kernel was just learning of at the first time, too.
//!
//! A resumed mount: the numbers of the inodes that the kernel has learned of from the earlier process are not known. So a
//! drop asks the kernel for each number below the one at which this process has begun, the newest first. That takes about
//! a microsecond for each number, and ends after [`SWEEP_MAX`] numbers.
//!
//! A drop has a thread of its own. A thread that answers requests, or that the datastore waits for without bound, must
//! never drop: the write-backs come as requests to the mount.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use lockstep_driver::threads;
use lockstep_types::Ino;
use rustix::io::Errno;

use super::device::Device;
use super::invalidator::Invalidator;
use super::known_inodes::KnownInodes;
use super::page_cache::PageCache;

/// Most numbers of inodes that a drop asks the kernel for, because an earlier process has served the mount.
const SWEEP_MAX: u64 = 1 << 26;

/// Numbers in one step of the sweep.
const SWEEP_STEP: u64 = 4096;

/// Two known inodes whose numbers differ by less go into one range, with the numbers between them.
const GAP_MAX: u64 = 16;

/// Drops the kernel's caches of one mount.
#[derive(Debug)]
pub(super) struct CacheDropper {
    pub device: Device,
    /// This program, for a child process that makes the calls which wait (see `invalidator`).
    pub program: Option<PathBuf>,
    pub known: Arc<KnownInodes>,
    /// Knows below which number the kernel may know any inode, from an earlier process.
    pub page_cache: Arc<PageCache>,
}

impl CacheDropper {
    /// Begins a drop. The receiver gets its message when the drop is done.
    pub fn begin(self: &Arc<Self>) -> io::Result<Receiver<()>> {
        let (done, is_done) = channel();
        let shared = Arc::clone(self);
        threads::spawn("fuse-drop-caches", move || {
            match shared.drop_all() {
                Ok(()) => tracing::debug!("the kernel has dropped its caches"),
                Err(error) => tracing::debug!(%error, "the mount has ended"),
            }
            // The receiver may have given up.
            let _sent = done.send(());
        })?;
        Ok(is_done)
    }

    fn drop_all(&self) -> io::Result<()> {
        // A kernel without epochs keeps names for a second only.
        let expired = self.device.expire_names();
        let invalidator = Invalidator::start(self.device.again()?, self.program.as_deref())?;
        let known = ranges(&self.known.list());
        invalidator.drop_inodes(&known, false)?;
        let swept = self.sweep(&invalidator)?;
        invalidator.drop_inodes(&known, true)?;
        invalidator.drop_inodes(&swept, true)?;
        tracing::debug!(?expired, ranges = known.len(), "dropped");
        Ok(())
    }

    /// Drops the attributes of the inodes that the kernel knows from an earlier process. Returns ranges that hold all of
    /// them.
    fn sweep(&self, invalidator: &Invalidator) -> Result<Vec<Range<u64>>, Errno> {
        let below = match self.page_cache.changes().inherited_below() {
            None => return Ok(Vec::new()),
            // This process does not know the number.
            Some(Ino::LAST) => SWEEP_MAX,
            Some(below) => below.get(),
        };
        let last = below.saturating_sub(SWEEP_MAX);
        if last > Ino::ROOT.get() {
            tracing::warn!(last, "the kernel may show old attributes of older inodes");
        }
        let mut found = Vec::new();
        let mut end = below;
        while end > last {
            let step = end.saturating_sub(SWEEP_STEP).max(last)..end;
            end = step.start;
            let step = [step];
            if invalidator.drop_inodes(&step, false)? {
                found.extend(step);
            }
        }
        Ok(found)
    }
}

/// The ranges of sorted numbers.
fn ranges(sorted: &[Ino]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for ino in sorted {
        let (first, end) = (ino.get(), ino.get().saturating_add(1));
        match ranges.last_mut() {
            Some(last) if first.saturating_sub(last.end) < GAP_MAX => last.end = end,
            _ => ranges.push(first..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_numbers_share_a_range() {
        let numbers = [1, 2, 3, 10, 40, 100, 101];
        let inodes: Vec<Ino> = numbers.iter().filter_map(|n| Ino::new(*n)).collect();
        assert_eq!(ranges(&inodes), [1..11, 40..41, 100..102]);
        assert_eq!(ranges(&[]), []);
    }
}
