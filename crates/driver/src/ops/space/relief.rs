//! The wait of a change that finds no room, until a snapshot gives some back (rule P20).
//!
//! The oldest snapshot of the schedule is deleted then (`jobs/snapshot_relief.rs`), and both nodes free its space in the background. Meanwhile the
//! change stays undecided. It is refused once no deletion is under way, none can begin, and the other node has had time to end its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_fs::store::SnapshotAccess;
use lockstep_types::backing::{Room, Space};
use parking_lot::Mutex;

use crate::engine::Engine;

/// Time from the last sign of a deletion to the refusal: the other node begins its own within two seconds.
const GRACE: Duration = Duration::from_secs(5);
/// The longest wait of a change.
const LONGEST: Duration = Duration::from_secs(30);

/// A disk is low when it has less than this part of its space.
const LOW_SHARE: u64 = 16;

/// The room below which snapshots of the schedule give way, on a disk with this space.
pub(super) fn low_room(space: &Space, ample: Room) -> Room {
    ample.min(Room {
        bytes: space.total_bytes / LOW_SHARE,
        files: space.total_files / LOW_SHARE,
    })
}

/// The wait of one change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReliefWait {
    /// When the change first found no room, in the time of the host.
    began: Option<Duration>,
}

impl ReliefWait {
    /// Whether the change goes on waiting at `now`. `may_come`: a snapshot is being deleted, was lately, or can be.
    pub fn goes_on(&mut self, now: Duration, may_come: bool) -> bool {
        let began = *self.began.get_or_insert(now);
        may_come && now < began + LONGEST
    }
}

/// Whether changes wait for the deletion of a snapshot, and the last sign of one.
#[derive(Default)]
pub(super) struct ReliefWish {
    is_there: AtomicBool,
    /// The last sign of a deletion, in the time of the host.
    last: Mutex<Option<Duration>>,
}

impl ReliefWish {
    /// Notes whether changes wait.
    pub fn note(&self, engine: &Engine, is_there: bool) {
        self.is_there.store(is_there, Ordering::Release);
        if is_there {
            engine.wakes.tick_work.note();
        }
    }

    /// Whether a change for which a disk has no room goes on waiting: a snapshot is being deleted, was lately, or can be.
    pub fn lets_wait(&self, engine: &Engine, wait: &mut ReliefWait) -> bool {
        let (now, snapshots) = (engine.host.now(), SnapshotAccess::of(&engine.store));
        let can_begin = || {
            let has_trash = !engine.references.trash.is_empty();
            has_trash || snapshots.is_deleting() || snapshots.first_to_give_way().is_some()
        };
        let goes_on = wait.goes_on(now, self.is_recent(now) || can_begin());
        if goes_on {
            self.note(engine, true);
        }
        goes_on
    }

    /// Whether changes wait.
    pub fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Notes a sign of a deletion.
    pub fn note_deletion(&self, now: Duration) {
        *self.last.lock() = Some(now);
    }

    /// Whether there was a sign of a deletion lately: the other node may not have freed the space yet.
    pub fn is_recent(&self, now: Duration) -> bool {
        self.last.lock().is_some_and(|last| now < last + GRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_deletion_and_at_the_latest_at_its_limit() {
        let at = Duration::from_secs;
        let mut wait = ReliefWait::default();
        assert!(!wait.goes_on(at(5), false), "nothing gives room");
        for second in 6..35 {
            assert!(wait.goes_on(at(second), true));
        }
        assert!(!wait.goes_on(at(35), true));
    }

    #[test]
    fn a_disk_is_low_below_what_is_ample_or_a_sixteenth() {
        let ample = Room {
            bytes: 1000,
            files: 10,
        };
        let mut space = Space {
            total_bytes: 8000,
            total_files: 0,
            ..Space::default()
        };
        let [bytes, files] = [500, 0];
        assert_eq!(low_room(&space, ample), Room { bytes, files });
        space.total_bytes = 32_000;
        space.total_files = 1600;
        assert_eq!(low_room(&space, ample), ample);
    }

    #[test]
    fn the_other_node_has_time_to_end_a_deletion() {
        let at = Duration::from_secs;
        let wish = ReliefWish::default();
        assert!(!wish.is_recent(at(1)));
        wish.note_deletion(at(10));
        assert!(wish.is_recent(at(14)) && !wish.is_recent(at(15)));
    }
}
