//! Permits for the replies that a secondary owes (rule P9).
//!
//! The reader hands work that may wait for a disk to other threads, and reads on. The permits bound this work,
//! so that no primary fills the memory of the secondary.
//!
//! Invariant: a permit is given back when its reply was sent or dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

use crate::host::signal::Signal;

/// Most requests of recovery, resync and verify at once. Each may hold the bytes of a frame. A thread of the
/// primary sends one and waits.
const REQUESTS_MAX: usize = 64;

/// Most operations that wait for a flush at once. They hold no bytes. A primary has one for each waiting client.
const FLUSHES_MAX: usize = 1 << 16;

/// Most writes that wait on other threads than the reader. The primary bounds their bytes in flight (rule P19).
const WRITES_MAX: usize = 1 << 16;

/// Most metadata operations that wait for a checkpoint. The primary bounds their bytes in flight (rule P19).
const METADATA_MAX: usize = 1 << 16;

/// The primary has sent more at once than a primary sends. The connection ends.
#[derive(Debug, Error)]
#[error("the primary has asked for more than {most} {work} at once")]
pub(crate) struct TooMany {
    most: usize,
    work: &'static str,
}

/// Counts the replies that are owed.
#[derive(Default)]
pub(crate) struct ReplyPermits {
    requests: Arc<AtomicUsize>,
    flushes: Arc<AtomicUsize>,
    /// Writes that wait for a checkpoint, or for bytes that are set aside.
    writes: Arc<AtomicUsize>,
    /// Metadata operations that wait for a checkpoint on the courier thread.
    metadata: Arc<AtomicUsize>,
    /// Raised when the last permit of a kind is given back.
    pub all_back: Arc<Signal>,
}

/// The permit for one reply. Dropped, it is given back.
pub(crate) struct Permit {
    counter: Arc<AtomicUsize>,
    all_back: Arc<Signal>,
}

impl ReplyPermits {
    /// A permit for a request.
    pub fn request(&self) -> Result<Permit, TooMany> {
        self.take(&self.requests, REQUESTS_MAX, "requests")
    }

    /// A permit for a metadata operation on the courier thread.
    pub fn metadata(&self) -> Result<Permit, TooMany> {
        self.take(&self.metadata, METADATA_MAX, "metadata operations")
    }

    /// Whether the courier thread has metadata operations to execute. Later operations must not overtake them.
    pub fn has_metadata(&self) -> bool {
        self.metadata.load(Ordering::Acquire) > 0
    }

    /// Whether an operation waits for a flush.
    pub fn is_flushing(&self) -> bool {
        self.flushes.load(Ordering::Acquire) > 0
    }

    /// Whether a write waits on another thread than the reader.
    pub fn has_writes(&self) -> bool {
        self.writes.load(Ordering::Acquire) > 0
    }

    /// A permit for a write on another thread than the reader.
    pub fn write(&self) -> Result<Permit, TooMany> {
        self.take(&self.writes, WRITES_MAX, "writes")
    }

    /// A permit for an operation that waits for a flush.
    pub fn flush(&self) -> Result<Permit, TooMany> {
        self.take(&self.flushes, FLUSHES_MAX, "flushes")
    }

    fn take(
        &self,
        counter: &Arc<AtomicUsize>,
        most: usize,
        work: &'static str,
    ) -> Result<Permit, TooMany> {
        let before = counter.fetch_add(1, Ordering::Relaxed);
        let permit = Permit {
            counter: Arc::clone(counter),
            all_back: Arc::clone(&self.all_back),
        };
        if before >= most {
            return Err(TooMany { most, work });
        }
        Ok(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.counter.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all_back.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_bounded_and_given_back() {
        let permits = ReplyPermits::default();
        let mut taken: Vec<Permit> = (0..REQUESTS_MAX)
            .map(|_| permits.request().unwrap())
            .collect();
        for _ in 0..3 {
            let refused = permits.request().err().unwrap();
            assert!(
                refused.to_string().contains("more than 64 requests"),
                "{refused}"
            );
        }
        assert!(permits.flush().is_ok());
        taken.pop();
        taken.push(permits.request().unwrap());
        assert!(permits.request().is_err());
    }
}
