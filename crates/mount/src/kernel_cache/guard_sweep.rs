//! The drop of the kernel's caches by the guard of a mount, while the node may answer nothing.
//!
//! A call that drops pages waits for the write-back of a dirty page, and for a read that fills a page. If the node is suspended
//! or gone, neither ends. So each call has a thread of its own. A call that lasts is left alone, and further calls are made for
//! its parts: all but the page that holds it up goes.
//!
//! Invariants:
//! - At most [`CALLS_MAX`] calls are under way. Beyond that a sweep waits until one of them ends.
//! - At the end of a sweep each page has been dropped, or a call that waits for the page is under way.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, Builder};
use std::time::Duration;

use lockstep_types::limits::BLOCK_BYTES;

use super::file_pages::FilePages;
use super::invalidation::Invalidation;
use crate::device::fuse_device::Device;

/// A call that takes longer is left alone.
const STALL: Duration = Duration::from_millis(4);

/// Most calls under way.
const CALLS_MAX: usize = 256;

/// Parts of a call that is left alone.
const PARTS: u64 = 16;

/// Most inodes of a first call: it takes less than [`STALL`] if no page holds it up.
const INODES_MAX: u64 = 512;

/// Bytes of the stack of a thread that makes one call.
const STACK_BYTES: usize = 128 << 10;

const PAGE: u64 = BLOCK_BYTES as u64;

/// The drops of one mount.
pub(crate) struct GuardSweep {
    device: Arc<Device>,
    /// Calls under way.
    calls: Arc<AtomicUsize>,
}

/// A call under way, until this is dropped.
struct CallUnderWay(Arc<AtomicUsize>);

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl GuardSweep {
    pub fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            calls: Arc::default(),
        }
    }

    /// Drops everything that the kernel caches of inodes, given as ranges of numbers.
    ///
    /// # Errors
    /// If the mount is gone.
    pub fn run(&self, inodes: &[Range<u64>]) -> io::Result<()> {
        // A kernel without epochs keeps names for a second only.
        let _expired = self.device.expire_names();
        for form in [Invalidation::attributes_of, Invalidation::pages] {
            let all = inodes.iter().rev().cloned().map(FilePages::all);
            let mut left: Vec<_> = all.flat_map(|files| in_calls(&files)).collect();
            while let Some(part) = left.pop() {
                if !self.call(form(&part))? {
                    left.extend(parts(&part).into_iter().rev());
                }
            }
        }
        Ok(())
    }

    /// Makes a call. Returns whether it has ended; otherwise it goes on.
    fn call(&self, invalidation: Invalidation) -> io::Result<bool> {
        while self.calls.load(Ordering::SeqCst) >= CALLS_MAX {
            if self.device.is_dead() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            thread::sleep(STALL);
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        let under_way = CallUnderWay(Arc::clone(&self.calls));
        let (device, (done, is_done)) = (Arc::clone(&self.device), channel());
        let body = move || {
            let outcome = invalidation.call(&device);
            drop(under_way);
            // The receiver may have left the call alone.
            let _sent = done.send(outcome);
        };
        let named = Builder::new().name("guard-call".to_owned());
        named.stack_size(STACK_BYTES).spawn(body)?;
        match is_done.recv_timeout(STALL) {
            Ok(outcome) => Ok(outcome.map(|_knows| true)?),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("a call has failed")),
        }
    }
}

/// The parts of a range of inodes for one call each, the last one first.
fn in_calls(files: &FilePages) -> Vec<FilePages> {
    pieces(files.inodes.clone(), INODES_MAX)
        .into_iter()
        .rev()
        .map(|inodes| FilePages {
            inodes,
            bytes: files.bytes.clone(),
        })
        .collect()
}

/// The parts of a call that is left alone; none of a single page.
fn parts(of: &FilePages) -> Vec<FilePages> {
    let count = of.inodes.end - of.inodes.start;
    if count > 1 {
        return pieces(of.inodes.clone(), count.div_ceil(PARTS))
            .into_iter()
            .map(|inodes| FilePages {
                inodes,
                bytes: of.bytes.clone(),
            })
            .collect();
    }
    bytes_in_parts(&of.bytes)
        .into_iter()
        .map(|bytes| FilePages {
            inodes: of.inodes.clone(),
            bytes,
        })
        .collect()
}

/// The parts of the bytes of one file. The first parts are small: a file is much shorter than it could be.
fn bytes_in_parts(bytes: &Range<u64>) -> Vec<Range<u64>> {
    if bytes.end == u64::MAX {
        let first = bytes.start.max(PAGE).saturating_mul(PARTS);
        // No file is longer.
        let is_possible = i64::try_from(first).is_ok();
        return if is_possible {
            vec![bytes.start..first, first..bytes.end]
        } else {
            Vec::new()
        };
    }
    let pages = (bytes.end - bytes.start).div_ceil(PAGE);
    if pages <= 1 {
        return Vec::new();
    }
    pieces(bytes.clone(), pages.div_ceil(PARTS) * PAGE)
}

/// A range in pieces of this length; the last one may be shorter.
fn pieces(whole: Range<u64>, length: u64) -> Vec<Range<u64>> {
    let step = usize::try_from(length.max(1)).unwrap_or(usize::MAX);
    whole
        .clone()
        .step_by(step)
        .map(|start| start..start.saturating_add(length).min(whole.end))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: Range<u64>) -> FilePages {
        FilePages {
            inodes: 7..8,
            bytes,
        }
    }

    /// The number of calls until only one page of a file is left, and whether the pieces of each step are the whole.
    fn calls_until(page: u64) -> usize {
        let (mut part, mut calls) = (file(0..u64::MAX), 1);
        loop {
            let found = parts(&part);
            let Some(first) = found.first() else {
                return calls;
            };
            assert_eq!(first.bytes.start, part.bytes.start);
            assert_eq!(found.last().unwrap().bytes.end, part.bytes.end);
            for (one, next) in found.iter().zip(found.iter().skip(1)) {
                assert_eq!(one.bytes.end, next.bytes.start);
            }
            part = found
                .into_iter()
                .find(|part| part.bytes.contains(&(page * PAGE)))
                .unwrap();
            calls += 1;
        }
    }

    #[test]
    fn a_page_that_holds_up_is_found_by_few_calls() {
        for page in [0, 1, 15, 16, 300, 262_143] {
            let calls = calls_until(page);
            assert!(calls <= 12, "{page}: {calls}");
        }
    }

    #[test]
    fn many_inodes_are_parted_into_files() {
        let many = FilePages::all(3..1000);
        let first = in_calls(&many);
        assert_eq!(first.last(), Some(&FilePages::all(3..515)));
        assert_eq!(first.first(), Some(&FilePages::all(515..1000)));
        let smaller = parts(&FilePages::all(3..515));
        assert_eq!(smaller.len(), 16);
        assert_eq!(
            parts(&FilePages::all(3..5)),
            [FilePages::all(3..4), FilePages::all(4..5)]
        );
    }
}
