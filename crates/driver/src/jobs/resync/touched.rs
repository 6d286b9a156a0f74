//! The comparison that follows a resync of the changes (rule P21).
//!
//! Such a resync takes the delta for complete, and the rest of the copy for equal. So, once the nodes are in sync, each inode
//! that it has touched is compared as a whole: its attributes, its names, and all of its content. The comparison runs beside the
//! clients, and works a tenth of the time. A lost connection does not end it, but the end of the session does.
//!
//! Invariants: the comparison changes nothing. A difference ends the sync, and the next resync compares everything.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_repl::core::LockSet;
use lockstep_resync::{LockClaim, Locks, PeerError, ResyncError};
use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_verify::Report;
use parking_lot::Mutex;

use crate::replication::Replication;
use crate::replication::remote::RemotePeer;

/// Most inodes that are compared before the next look for the end of the connection.
const INODES_AT_ONCE: usize = 64;
/// The comparison pauses this many times as long as it has held locks.
const PAUSE_FACTOR: u32 = 9;
/// A pause looks so often for the end of the connection, because a change of the role waits for the comparison.
/// Time between two looks at an inode that differs: it may be made or freed just then.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The inodes that a resync has touched, and that are not compared yet.
#[derive(Default)]
pub(super) struct TouchedInodes(Mutex<BTreeSet<Ino>>);

impl TouchedInodes {
    /// Adds inodes.
    pub fn add(&self, inodes: BTreeSet<Ino>) {
        self.0.lock().extend(inodes);
    }

    /// Everything has been compared.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Compares what is left, over a connection in sync. Returns the result; `None` if nothing is left. After the first
    /// difference nothing is.
    pub fn compare(
        &self,
        replication: &Replication,
        peer: &RemotePeer,
        locks: &dyn Locks,
    ) -> Result<Option<Report>, ResyncError> {
        if is_active(Mutant::TrustResync) {
            return Ok(None);
        }
        let locks = PacedLocks {
            locks,
            replication,
            peer,
        };
        let mut done = None;
        while let Some(inodes) = self.first() {
            let compared = compare_some(&locks, &inodes);
            let may_go_on = matches!(
                compared,
                Err(ResyncError::Peer(PeerError::Lost) | ResyncError::Stopped { .. })
            );
            if compared.is_err() && !may_go_on {
                self.clear();
            }
            let found = compared?;
            if !found.is_identical() {
                self.clear();
                return Ok(Some(found));
            }
            self.remove(&inodes);
            let done: &mut Report = done.get_or_insert_default();
            done.inodes += found.inodes;
            done.bytes = done.bytes.saturating_add(found.bytes);
        }
        Ok(done)
    }

    /// The first inodes; `None` if there are none.
    fn first(&self) -> Option<BTreeSet<Ino>> {
        let inodes = self.0.lock();
        let first: BTreeSet<Ino> = inodes.iter().take(INODES_AT_ONCE).copied().collect();
        (!first.is_empty()).then_some(first)
    }

    fn remove(&self, compared: &BTreeSet<Ino>) {
        self.0.lock().retain(|ino| !compared.contains(ino));
    }
}

/// The locks of the core, with a pause after each use.
struct PacedLocks<'a> {
    locks: &'a dyn Locks,
    replication: &'a Replication,
    peer: &'a RemotePeer,
}

impl Locks for PacedLocks<'_> {
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        let host = &self.replication.engine.host;
        let start = host.now();
        let done = self.locks.with_locks(locks, body);
        self.pause(host.since(start) * PAUSE_FACTOR);
        done
    }

    fn is_turn(&self) -> bool {
        self.locks.is_turn()
    }

    fn wait_for_turn(&self) {
        self.locks.wait_for_turn();
    }

    fn note_read(&self, bytes: u64) {
        self.locks.note_read(bytes);
    }

    fn claim(&self, locks: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError> {
        self.locks.claim(locks)
    }

    fn pause(&self, time: Duration) {
        self.replication
            .engine
            .sleep_unless(time, || !self.peer.is_standing());
    }
}

/// Compares inodes, and those that differ once more.
fn compare_some(locks: &PacedLocks<'_>, inodes: &BTreeSet<Ino>) -> Result<Report, ResyncError> {
    let (store, peer) = (&locks.replication.engine.store, locks.peer);
    let first = lockstep_verify::compare_inodes(&store.tree(), peer, locks, inodes)?;
    if first.is_identical() {
        return Ok(first);
    }
    locks.pause(LOOK_AGAIN_AFTER);
    let differing = first.differences.iter();
    let differing = differing.filter_map(|found| Ino::new(found.ino)).collect();
    lockstep_verify::compare_inodes(&store.tree(), peer, locks, &differing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_inodes_stay_until_they_are_compared() {
        let touched = TouchedInodes::default();
        touched.add((1..=100).filter_map(Ino::new).collect());
        let first = touched.first().unwrap();
        assert_eq!(first.len(), INODES_AT_ONCE);
        assert_eq!(touched.first().unwrap(), first, "a lost connection");
        touched.remove(&first);
        let second = touched.first().unwrap();
        assert_eq!(first.len() + second.len(), 100);
        touched.add(first.clone());
        touched.remove(&second);
        assert_eq!(touched.first(), Some(first));
        touched.clear();
        assert_eq!(touched.first(), None);
    }
}
