//! The places that a resync has touched, and that are not proved to be the same on both nodes (rule P33).
//!
//! The places are noted before anything of them is sent, and leave the notes when they are proved. So a resync that loses its connection
//! proves the rest later. The notes end with the session; the delta says whether an earlier session, or an earlier process, has touched
//! places that the notes lack, and then everything is compared by its sums.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_resync::{FirstTouched, TouchedPlaces};
use lockstep_types::Ino;
use parking_lot::Mutex;

/// After so many resyncs in a row that could not be proved, the next one waits for [`REST`].
const FAILURES_MAX: u32 = 3;
/// Time until the next resync then. Each of them compares everything, and an operator has to look.
const REST: Duration = Duration::from_secs(10 * 60);

/// The places that are not proved yet.
#[derive(Default)]
pub(super) struct UnprovedPlaces {
    notes: Mutex<UnprovedNotes>,
    failures: Mutex<ProofFailures>,
}

/// The resyncs in a row that could not be proved.
#[derive(Default)]
struct ProofFailures {
    in_a_row: u32,
    /// The last one has ended its connection, and the next connection has not waited for that.
    is_new: bool,
}

impl ProofFailures {
    const fn rest(&self) -> Duration {
        if self.is_new && self.in_a_row >= FAILURES_MAX {
            REST
        } else {
            Duration::ZERO
        }
    }
}

#[derive(Default)]
struct UnprovedNotes {
    places: TouchedPlaces,
    /// A resync has noted its places, so these are those of all of its parts.
    is_begun: bool,
    /// Inodes that were found to differ, and that any part of the resync has sent again.
    sent_again: BTreeSet<Ino>,
}

impl UnprovedPlaces {
    /// A resync is about to touch places.
    pub fn add(&self, places: TouchedPlaces) {
        let mut notes = self.notes.lock();
        let knows_earlier = std::mem::replace(&mut notes.is_begun, true);
        notes.places.add(places, knows_earlier);
    }

    /// The first of them; `None` if all are proved.
    pub fn first(&self) -> Option<FirstTouched> {
        self.notes.lock().places.first()
    }

    /// The inodes below this number are proved.
    pub fn proved_below(&self, number: u64) {
        self.notes.lock().places.proved_below(number);
    }

    /// The proof has found that inodes differ, and sends them again.
    pub fn note_sent_again(&self, inodes: &BTreeSet<Ino>) {
        self.notes.lock().sent_again.extend(inodes);
    }

    /// The number of inodes that are named one by one, and the number from which on all are touched.
    pub fn extent(&self) -> (u64, Option<u64>) {
        let notes = self.notes.lock();
        (notes.places.named(), notes.places.all_from())
    }

    /// Notes a resync that could not be proved. Returns the number of them in a row, and the time until the next one.
    pub fn note_failure(&self) -> (u32, Duration) {
        let mut failures = self.failures.lock();
        failures.in_a_row += 1;
        failures.is_new = true;
        (failures.in_a_row, failures.rest())
    }

    /// Time until the next connection, after one has ended: none before [`FAILURES_MAX`] failures, and none after a connection that
    /// has ended for another reason.
    pub fn take_rest(&self) -> Duration {
        let mut failures = self.failures.lock();
        let rest = failures.rest();
        failures.is_new = false;
        rest
    }

    /// Everything is proved, and the next resync begins with nothing. Returns the number of inodes that this one has sent again.
    pub fn end(&self) -> u64 {
        let ended = std::mem::take(&mut *self.notes.lock());
        *self.failures.lock() = ProofFailures::default();
        ended.sent_again.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_again_is_counted_over_all_parts_of_a_resync() {
        let unproved = UnprovedPlaces::default();
        for number in [2, 3, 2] {
            unproved.note_sent_again(&BTreeSet::from([Ino::new(number).unwrap()]));
        }
        assert_eq!((unproved.end(), unproved.end()), (2, 0));
    }

    #[test]
    fn the_third_failure_in_a_row_brings_a_rest() {
        let unproved = UnprovedPlaces::default();
        assert_eq!(unproved.note_failure(), (1, Duration::ZERO));
        assert_eq!(unproved.note_failure(), (2, Duration::ZERO));
        unproved.end();
        assert_eq!(unproved.note_failure(), (1, Duration::ZERO));
        unproved.note_failure();
        assert_eq!(unproved.note_failure(), (3, REST));
        assert_eq!(unproved.take_rest(), REST);
        assert_eq!(unproved.take_rest(), Duration::ZERO, "a lost connection");
        assert_eq!(unproved.note_failure(), (4, REST));
        assert!(unproved.first().is_none());
    }
}
