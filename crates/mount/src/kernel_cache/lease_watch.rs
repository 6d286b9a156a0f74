//! The lease of a node, as the guard of its mount watches it (`docs/adr/0014`).
//!
//! The guard sleeps until the timer rings. The node writes the word of a lease first and then sets the timer (`guard_words`). So
//! the timer is never set to a later time than the end of the lease in the memory. While the node is between the two, the timer
//! may not be set at all. The guard need not know of that lease yet (see [`GuardBoard`]).
//!
//! A guard that is awake and finds a lease without a set timer sleeps until the end of that lease.
//!
//! [`GuardBoard`]: crate::memory::guard_words::GuardBoard

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::memory::guard_words::GuardWords;
use crate::memory::lease_timer::LeaseTimer;

/// The longest time between two looks of a guard. Nothing wakes a guard whose place another one has taken: the old guard ends
/// within this time.
const LOOK: Duration = Duration::from_secs(10);

/// The state of a lease, as a guard finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseSight {
    /// The lease with this end is over, and the kernel's caches have not been dropped since.
    Over(Duration),
    /// There is nothing to do until the timer rings, but for no longer than this.
    Wait(Duration),
}

/// See the head of this file.
pub(crate) struct LeaseWatch {
    words: GuardWords,
    timer: LeaseTimer,
}

impl LeaseWatch {
    pub const fn new(words: GuardWords, timer: LeaseTimer) -> Self {
        Self { words, timer }
    }

    /// The number of the guard that is to work.
    pub fn number(&self) -> io::Result<u64> {
        self.words.number()
    }

    /// Notes that the kernel's caches were dropped after the end of a lease.
    pub fn note_drop(&self, lease: Duration) -> io::Result<()> {
        self.words.note_drop(lease)
    }

    /// Looks at the lease. `now` is a time of the machine's monotonic clock.
    pub fn look(&self, now: Duration) -> io::Result<LeaseSight> {
        // Before the look at the words: a timer that is set after that look, and rings, wakes the guard again.
        self.timer.take_ring();
        let due_at = self.words.due_at()?;
        let left = due_at.map(|end| end.saturating_sub(now));
        Ok(match (due_at, left) {
            // A second look: the first one may have come in the middle of a write.
            (Some(end), Some(Duration::ZERO)) if self.words.due_at()? == due_at => {
                LeaseSight::Over(end)
            }
            (Some(_), Some(left)) if !self.timer.is_set() => LeaseSight::Wait(left.min(LOOK)),
            _ => LeaseSight::Wait(LOOK),
        })
    }
}

/// The timer: it can be read when it has rung.
impl AsFd for LeaseWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockstep_driver::client::LeaseBoard;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::LeaseSight::{Over, Wait};
    use super::*;
    use crate::memory::guard_words::{GuardBoard, machine_time};

    const HOUR: Duration = Duration::from_hours(1);
    const SHORT: Duration = Duration::from_millis(20);
    /// Longer than anything takes that the tests wait for.
    const PATIENCE: Timespec = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    const AT_ONCE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };

    struct Pair {
        words: GuardWords,
        timer: Arc<LeaseTimer>,
        watch: LeaseWatch,
    }

    impl Pair {
        /// A node that has shown nothing, and its guard.
        fn new() -> Self {
            let words = GuardWords::new(Arc::new(tempfile::tempfile().unwrap()), 64);
            words.begin().unwrap();
            Self::of(words)
        }

        fn of(words: GuardWords) -> Self {
            let timer = Arc::new(LeaseTimer::new().unwrap());
            let theirs = timer.as_fd().try_clone_to_owned().unwrap();
            let watch = LeaseWatch::new(words.clone(), LeaseTimer::adopt(theirs).unwrap());
            Self {
                words,
                timer,
                watch,
            }
        }

        fn board(&self) -> GuardBoard {
            GuardBoard::of(self.words.clone(), Arc::clone(&self.timer)).unwrap()
        }

        fn look(&self) -> LeaseSight {
            self.watch.look(machine_time()).unwrap()
        }

        fn wakes_within(&self, limit: &Timespec) -> bool {
            let mut watched = [PollFd::new(&self.watch, PollFlags::IN)];
            poll(&mut watched, Some(limit)).unwrap() == 1
        }
    }

    #[test]
    fn the_end_of_a_lease_wakes_the_guard_and_an_extension_does_not() {
        let pair = Pair::new();
        let board = pair.board();
        assert_eq!(pair.look(), Wait(LOOK));
        board.show(Some(machine_time() + SHORT));
        board.show(Some(machine_time() + HOUR));
        std::thread::sleep(SHORT * 2);
        assert!(!pair.wakes_within(&AT_ONCE));
        assert_eq!(pair.look(), Wait(LOOK));

        let pair = Pair::new();
        let end = machine_time() + SHORT;
        pair.board().show(Some(end));
        // The node is gone by the end of its lease.
        assert!(pair.wakes_within(&PATIENCE));
        assert!(machine_time() >= end);
        assert_eq!(pair.look(), Over(end));
        assert!(!pair.wakes_within(&AT_ONCE));
        pair.watch.note_drop(end).unwrap();
        assert_eq!(pair.look(), Wait(LOOK));
    }

    #[test]
    fn a_node_that_needs_no_lease_wakes_nobody() {
        let pair = Pair::new();
        let board = pair.board();
        board.show(Some(machine_time() + SHORT));
        board.show(None);
        std::thread::sleep(SHORT * 2);
        assert!(!pair.wakes_within(&AT_ONCE));
        assert_eq!(pair.look(), Wait(LOOK));
    }

    /// The node is suspended or killed between the word and the timer.
    #[test]
    fn a_guard_that_finds_a_lease_without_a_timer_waits_for_its_end() {
        let pair = Pair::new();
        let board = pair.board();
        let first = machine_time();
        board.show(Some(first));
        assert!(pair.wakes_within(&PATIENCE));
        let next = first + SHORT;
        board.show(Some(next));
        pair.timer.set(first).unwrap();
        assert!(pair.wakes_within(&AT_ONCE));
        assert_eq!(pair.watch.look(first).unwrap(), Wait(SHORT));
        assert_eq!(pair.watch.look(next).unwrap(), Over(next));
        board.show(Some(next + HOUR));
        pair.timer.unset().unwrap();
        assert_eq!(pair.watch.look(next).unwrap(), Wait(LOOK));
    }

    /// The node is suspended between the word and the timer until the lease is over.
    #[test]
    fn a_lease_that_is_over_when_it_is_shown_wakes_the_guard() {
        let pair = Pair::new();
        let end = machine_time();
        pair.board().show(Some(end));
        assert!(pair.wakes_within(&AT_ONCE));
        assert_eq!(pair.look(), Over(end));
    }

    /// The node is suspended or killed between the word of a service without a lease and the timer.
    #[test]
    fn a_timer_without_a_lease_has_nothing_dropped() {
        let pair = Pair::new();
        let board = pair.board();
        board.show(None);
        pair.timer.set(machine_time()).unwrap();
        drop(board);
        assert!(pair.wakes_within(&AT_ONCE));
        assert_eq!(pair.look(), Wait(LOOK));
        assert!(!pair.wakes_within(&AT_ONCE));
    }

    #[test]
    fn a_process_sets_its_timer_to_the_lease_of_the_process_before_and_to_no_earlier_one() {
        let before = Pair::new();
        let end = machine_time() + HOUR;
        before.board().show(Some(end));
        let pair = Pair::of(before.words.clone());
        let board = pair.board();
        assert!(pair.timer.is_set());
        board.show(Some(machine_time()));
        assert!(!pair.wakes_within(&AT_ONCE));
        assert_eq!(pair.look(), Wait(LOOK));

        before.watch.note_drop(end).unwrap();
        let pair = Pair::of(before.words.clone());
        let _board = pair.board();
        assert!(!pair.timer.is_set(), "the caches are dropped");
    }

    /// The words of an older program, which knew no lease.
    #[test]
    fn a_memory_without_a_lease_is_due_until_the_node_shows_one() {
        let words = GuardWords::new(Arc::new(tempfile::tempfile().unwrap()), 64);
        let pair = Pair::of(words);
        let board = pair.board();
        assert!(pair.wakes_within(&AT_ONCE));
        for _ in 0..2 {
            assert_eq!(pair.look(), Over(Duration::ZERO));
            pair.watch.note_drop(Duration::ZERO).unwrap();
        }
        board.show(Some(machine_time() + HOUR));
        assert_eq!(pair.look(), Wait(LOOK));
    }
}
