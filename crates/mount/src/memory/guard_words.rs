//! The words of the mount memory by which a node and the guard of its mount understand each other (`guard`, `docs/adr/0014`).
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | lease | the node | no other node serves before this time of the machine's monotonic clock, in nanoseconds |
//! | dropped | the guard | the end of the lease after which it has dropped the kernel's caches |
//! | number | the node | the number of the guard that is to work; a guard with another number ends |
//!
//! A word is eight bytes at a place that no page border crosses. A reader that could see half of a write looks again soon.
//!
//! Invariant: a lease is never replaced by an earlier one. A process that starts has no lease yet, and that of the process before
//! still holds.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_driver::client::LeaseBoard;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// The lease of a node that serves without one.
const WITHOUT_END: u64 = u64::MAX;

const LEASE: u64 = 0;
const DROPPED: u64 = 1;
const NUMBER: u64 = 2;

/// Bytes of a word.
const WORD_BYTES: u64 = 8;

/// The words of one mount.
#[derive(Clone, Debug)]
pub(crate) struct GuardWords {
    file: Arc<File>,
    /// Place of the first word.
    at: u64,
}

/// The time of the clock that all processes of this machine share.
pub(crate) fn machine_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(WITHOUT_END)
}

impl GuardWords {
    /// The words at a place of a memory file.
    pub const fn new(file: Arc<File>, at: u64) -> Self {
        Self { file, at }
    }

    /// Writes the words of a mount whose kernel caches nothing yet.
    pub fn begin(&self) -> io::Result<()> {
        self.write(LEASE, WITHOUT_END)?;
        self.write(DROPPED, WITHOUT_END)
    }

    /// Raises the number of the guard that is to work, and returns it.
    pub fn next_number(&self) -> io::Result<u64> {
        let number = self.number()? + 1;
        self.write(NUMBER, number)?;
        Ok(number)
    }

    /// The number of the guard that is to work.
    pub fn number(&self) -> io::Result<u64> {
        self.read(NUMBER)
    }

    /// The end of the lease after which the kernel's caches have not been dropped yet; `None` if there is none. A memory that an
    /// older program has made has a lease that is over.
    pub fn due_at(&self) -> io::Result<Option<Duration>> {
        let lease = self.read(LEASE)?;
        let is_due = lease != WITHOUT_END && (lease == 0 || lease != self.read(DROPPED)?);
        Ok(is_due.then(|| Duration::from_nanos(lease)))
    }

    /// Notes that the kernel's caches were dropped after the end of a lease.
    pub fn note_drop(&self, lease: Duration) -> io::Result<()> {
        self.write(DROPPED, nanoseconds(lease))
    }

    fn read(&self, word: u64) -> io::Result<u64> {
        let mut bytes = [0; size_of::<u64>()];
        // A word that was never written may lie behind the end of the file.
        self.file.read_at(&mut bytes, self.at + word * WORD_BYTES)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn write(&self, word: u64, value: u64) -> io::Result<()> {
        self.file
            .write_all_at(&value.to_ne_bytes(), self.at + word * WORD_BYTES)
    }
}

/// The board on which a node shows its lease.
pub(crate) struct GuardBoard {
    words: GuardWords,
    shown: Mutex<u64>,
    /// A lease could not be shown. The log says that once.
    has_failed: AtomicBool,
}

impl GuardBoard {
    /// The board of a mount, with the lease of the process before.
    pub fn of(words: GuardWords) -> io::Result<Self> {
        Ok(Self {
            shown: Mutex::new(words.read(LEASE)?),
            words,
            has_failed: AtomicBool::new(false),
        })
    }
}

impl LeaseBoard for GuardBoard {
    fn time(&self) -> Duration {
        machine_time()
    }

    fn show(&self, end: Option<Duration>) {
        let end = end.map_or(WITHOUT_END, nanoseconds);
        let mut shown = self.shown.lock();
        if *shown != WITHOUT_END && end <= *shown {
            return;
        }
        match self.words.write(LEASE, end) {
            Ok(()) => *shown = end,
            // The kernel drops its caches early then.
            Err(error) if !self.has_failed.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "the lease is not written to the memory of the mount");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> GuardWords {
        let file = tempfile::tempfile().unwrap();
        GuardWords::new(Arc::new(file), 64)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_drop_is_due_once_after_each_lease() {
        let words = words();
        words.begin().unwrap();
        assert_eq!(words.due_at().unwrap(), None);
        let board = GuardBoard::of(words.clone()).unwrap();
        board.show(Some(SECOND));
        assert_eq!(words.due_at().unwrap(), Some(SECOND));
        board.show(Some(SECOND * 2));
        assert_eq!(words.due_at().unwrap(), Some(SECOND * 2));
        words.note_drop(SECOND * 2).unwrap();
        assert_eq!(words.due_at().unwrap(), None);
        board.show(Some(SECOND * 3));
        assert_eq!(words.due_at().unwrap(), Some(SECOND * 3));
        board.show(None);
        assert_eq!(words.due_at().unwrap(), None);
        board.show(Some(SECOND));
        assert_eq!(words.due_at().unwrap(), Some(SECOND));
    }

    #[test]
    fn a_process_without_a_lease_leaves_that_of_the_process_before() {
        let words = words();
        words.begin().unwrap();
        GuardBoard::of(words.clone())
            .unwrap()
            .show(Some(SECOND * 5));
        GuardBoard::of(words.clone()).unwrap().show(Some(SECOND));
        assert_eq!(words.due_at().unwrap(), Some(SECOND * 5));
    }

    #[test]
    fn a_memory_of_an_older_program_is_due_at_once() {
        assert_eq!(words().due_at().unwrap(), Some(Duration::ZERO));
    }
}
