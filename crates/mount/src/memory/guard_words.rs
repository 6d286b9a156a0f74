//! The words of the mount memory by which a node and the guard of its mount understand each other (`guard`, `docs/adr/0014`).
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | lease | the node | no other node serves before this time of the machine's monotonic clock, in nanoseconds |
//! | dropped | the guard | the end of the lease after which it has dropped the kernel's caches |
//! | number | the node | the number of the guard that is to work; a guard with another number ends |
//!
//! A word is eight bytes at a place that no page border crosses. A reader that could see half of a write looks again: the timer
//! of the lease is set after the write.
//!
//! Invariants:
//! - A lease is never replaced by an earlier one, in the memory or on the timer. A process that starts has no lease yet, and the
//!   lease of the process before still holds.
//! - The timer (`lease_timer`) is not set to a later time than the end of the lease in the memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_driver::client::LeaseBoard;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::lease_timer::LeaseTimer;

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

/// The board on which a node shows its lease: the word in the memory, and the timer that rings at the end of the lease.
///
/// The word is written before the timer is set. The node may be suspended or killed between the two.
/// - The timer is set to an earlier lease. Then the timer rings, and the guard finds the later lease in the memory.
/// - The timer is not set: the node has had no lease, or the guard has dropped the caches after the last one. Then the guard may
///   sleep on, because nothing becomes old until the node goes on. The gate of the node shows a lease under its lock, and lets no
///   request in meanwhile. A node that has served without a lease lets the other node take over only after it has shown one. Once
///   the node goes on, it sets the timer, which rings at once if the lease is over.
///
/// In the other order, the timer could ring before the word is there, and would not ring again for the word.
pub(crate) struct GuardBoard {
    words: GuardWords,
    timer: Arc<LeaseTimer>,
    shown: Mutex<u64>,
    /// A lease could not be shown. The log says that once.
    has_failed: AtomicBool,
}

impl GuardBoard {
    /// The board of a mount, with the lease of the process before.
    pub fn of(words: GuardWords, timer: Arc<LeaseTimer>) -> io::Result<Self> {
        if let Some(end) = words.due_at()? {
            timer.set(end)?;
        }
        Ok(Self {
            shown: Mutex::new(words.read(LEASE)?),
            words,
            timer,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Shows the end of a lease, or [`WITHOUT_END`], in the order that the guard needs.
    fn write(&self, shown: &mut u64, end: u64) -> io::Result<()> {
        self.words.write(LEASE, end)?;
        *shown = end;
        if end == WITHOUT_END {
            self.timer.unset()
        } else {
            self.timer.set(Duration::from_nanos(end))
        }
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
        // Without the word the kernel drops its caches early. Without the timer the guard finds the lease when it looks next.
        if let Err(error) = self.write(&mut shown, end)
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "the lease is not shown to the guard of the mount");
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

    fn board(words: &GuardWords) -> GuardBoard {
        let timer = Arc::new(LeaseTimer::new().unwrap());
        GuardBoard::of(words.clone(), timer).unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_drop_is_due_once_after_each_lease() {
        let words = words();
        words.begin().unwrap();
        assert_eq!(words.due_at().unwrap(), None);
        let board = board(&words);
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
        board(&words).show(Some(SECOND * 5));
        board(&words).show(Some(SECOND));
        assert_eq!(words.due_at().unwrap(), Some(SECOND * 5));
    }

    #[test]
    fn a_memory_of_an_older_program_is_due_at_once() {
        assert_eq!(words().due_at().unwrap(), Some(Duration::ZERO));
    }
}
