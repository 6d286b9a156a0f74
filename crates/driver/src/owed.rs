//! Answers that a secondary owes: what it was asked and is still doing (rule P9).
//!
//! The reader hands to other threads what may wait for a disk, and reads on. How much it hands on is
//! bounded here, so that no primary, however fast it asks, fills the memory of the secondary.
//!
//! Invariant: whatever was counted is counted off once its answer was given, or it was dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most questions of recovery, resync and verify at once; each may hold the bytes of a frame. A primary
/// asks one per thread and waits.
const QUESTIONS_MAX: usize = 64;

/// Most operations that wait for a flush at once; they hold no bytes. A primary has as many as its
/// clients wait for.
const FLUSHES_MAX: usize = 1 << 16;

/// Most metadata operations that wait for a checkpoint. The primary bounds how many bytes of them are on
/// their way (P19).
const METADATA_MAX: usize = 1 << 16;

/// What is owed.
#[derive(Default)]
pub(super) struct Owed {
    questions: Arc<AtomicUsize>,
    flushes: Arc<AtomicUsize>,
    /// Metadata operations that the courier does, as they have to wait for a checkpoint.
    metadata: Arc<AtomicUsize>,
}

/// One answer that is owed, until this is dropped.
pub(super) struct Debt(Arc<AtomicUsize>);

impl Owed {
    /// One more question. The error ends the connection.
    pub fn question(&self) -> Result<Debt, String> {
        owe(&self.questions, QUESTIONS_MAX, "questions")
    }

    /// One more metadata operation that the courier does. The error ends the connection.
    pub fn metadata(&self) -> Result<Debt, String> {
        owe(&self.metadata, METADATA_MAX, "metadata operations")
    }

    /// Whether the courier has metadata operations to do: what comes behind them must not overtake.
    pub fn has_metadata(&self) -> bool {
        self.metadata.load(Ordering::Acquire) > 0
    }

    /// Whether an operation waits for a flush.
    pub fn is_flushing(&self) -> bool {
        self.flushes.load(Ordering::Acquire) > 0
    }

    /// One more operation that waits for a flush. The error ends the connection.
    pub fn flush(&self) -> Result<Debt, String> {
        owe(&self.flushes, FLUSHES_MAX, "flushes")
    }
}

fn owe(counter: &Arc<AtomicUsize>, most: usize, what: &str) -> Result<Debt, String> {
    let before = counter.fetch_add(1, Ordering::Relaxed);
    let debt = Debt(Arc::clone(counter));
    if before >= most {
        return Err(format!(
            "the primary has asked for more than {most} {what} at once"
        ));
    }
    Ok(debt)
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_bounded_and_counted_off() {
        let owed = Owed::default();
        let mut debts: Vec<Debt> = (0..QUESTIONS_MAX)
            .map(|_| owed.question().unwrap())
            .collect();
        for _ in 0..3 {
            let refused = owed.question().err().unwrap();
            assert!(refused.contains("more than 64 questions"), "{refused}");
        }
        assert!(owed.flush().is_ok());
        debts.pop();
        debts.push(owed.question().unwrap());
        assert!(owed.question().is_err());
    }
}
