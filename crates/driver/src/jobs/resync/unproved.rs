//! The places that a resync has touched, and that are not proved to be the same on both nodes (rule P33).
//!
//! The places are noted before anything of them is sent, and leave the notes when they are proved. So a resync that loses its connection
//! proves the rest later. The notes end with the session; the delta says whether an earlier session, or an earlier process, has touched
//! places that the notes lack, and then everything is compared by its sums.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockstep_resync::{FirstTouched, TouchedPlaces};
use parking_lot::Mutex;

/// After so many resyncs in a row that could not be proved, the next one waits for [`REST`].
const FAILURES_MAX: u32 = 3;
/// Time until the next resync then. Each of them compares everything, and an operator has to look.
const REST: Duration = Duration::from_secs(60 * 60);

/// The places that are not proved yet.
#[derive(Default)]
pub(super) struct UnprovedPlaces {
    notes: Mutex<UnprovedNotes>,
    /// The resyncs in a row that could not be proved.
    failures: AtomicU32,
}

#[derive(Default)]
struct UnprovedNotes {
    places: TouchedPlaces,
    /// A resync has noted its places, so these are those of all of its parts.
    is_begun: bool,
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

    /// The number of inodes that are named one by one, and the number from which on all are touched.
    pub fn extent(&self) -> (u64, Option<u64>) {
        let notes = self.notes.lock();
        (notes.places.named(), notes.places.all_from())
    }

    /// Notes a resync that could not be proved. Returns the number of them in a row.
    pub fn note_failure(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Time until the next resync; none before [`FAILURES_MAX`] failures.
    pub fn rest(&self) -> Duration {
        if self.failures.load(Ordering::Relaxed) < FAILURES_MAX {
            return Duration::ZERO;
        }
        REST
    }

    /// Everything is proved, and the next resync begins with nothing.
    pub fn end(&self) {
        *self.notes.lock() = UnprovedNotes::default();
        self.failures.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_failure_in_a_row_brings_a_rest() {
        let unproved = UnprovedPlaces::default();
        assert_eq!(
            (unproved.note_failure(), unproved.rest()),
            (1, Duration::ZERO)
        );
        assert_eq!(
            (unproved.note_failure(), unproved.rest()),
            (2, Duration::ZERO)
        );
        unproved.end();
        assert_eq!(
            (unproved.note_failure(), unproved.rest()),
            (1, Duration::ZERO)
        );
        unproved.note_failure();
        assert_eq!((unproved.note_failure(), unproved.rest()), (3, REST));
        assert!(unproved.first().is_none());
    }
}
