//! A program at a node that does not serve. Its request waits at the gate, as a request of a standby mount does.
//!
//! The service promises to run the waiting request once the node serves. So a request that still waits although the
//! node has served for some time was forgotten.

use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::client::FileService as _;
use parking_lot::Mutex;

use super::mount::Mount;
use crate::scenario::recording::history_recorder::HistoryRecorder;
use crate::world::{self, Event, Latch, Wait};

/// The interval between two looks whether the node serves.
const LOOK: Duration = Duration::from_millis(50);
/// Number of looks in a row at which the node serves, before a waiting request counts as forgotten.
const LOOKS_MAX: u32 = 20;

/// Waits at a node again and again, until its mount is gone.
pub fn run(mount: &Mount, recorder: &Mutex<HistoryRecorder>) {
    while !mount.is_unmounted() {
        if mount.serves() {
            world::wait(Wait::Until(mount.process().shared().now() + LOOK));
        } else if wait_at_gate(mount).is_err() {
            let what = "standby: a request waits, though the node has served for some time";
            return recorder.lock().wrong(what.to_owned());
        }
    }
}

/// Waits once. Returns an error if the request was forgotten.
fn wait_at_gate(mount: &Mount) -> Result<(), ()> {
    let process = mount.process();
    let is_due = Arc::new(Latch::default());
    let latch = Arc::clone(&is_due);
    mount.service().when_serving(Box::new(move || latch.open()));
    let mut looks = 0;
    while !is_due.has_happened(Duration::ZERO) && !mount.is_unmounted() {
        let event = Arc::clone(&is_due) as Arc<dyn Event>;
        process.wait_for(event, Some(process.shared().now() + LOOK));
        // A disk that hangs holds the thread that would run the request.
        let counts = mount.serves() && !process.is_hanging();
        looks = if counts { looks + 1 } else { 0 };
        if looks > LOOKS_MAX {
            return Err(());
        }
    }
    Ok(())
}
