//! Waits for an event that must come.

use std::time::{Duration, Instant};

/// Longest wait for an expected event.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Pause between two looks for the event.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `done` returns true.
pub fn await_that(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}
