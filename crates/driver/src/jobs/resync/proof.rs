//! The comparison at the end of a resync, before the nodes are in sync (rule P33).
//!
//! Invariants: the nodes are in sync only when no place is unproved. A place that differs is sent again at most [`ROUNDS_MAX`] times.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_resync::{FirstTouched, Locks, ResyncError, ResyncSource};
use lockstep_types::Ino;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::{DeepCopy, Report};

use super::ResyncJobs;
use crate::replication::remote::RemotePeer;

/// How often a place that differs is sent again.
const ROUNDS_MAX: usize = 2;

impl ResyncJobs {
    /// Proves that the places that the resync has touched are the same on both nodes. A place that differs is sent again.
    ///
    /// # Errors
    /// If places still differ then.
    pub(super) fn prove(
        &self,
        source: ResyncSource<'_>,
        peer: &RemotePeer,
        locks: &dyn Locks,
    ) -> Result<(), ResyncError> {
        let (named, from) = self.unproved.extent();
        let rest = from.map(|from| source.view().census(from, u64::MAX));
        let rest = rest.transpose()?.map_or(0, |census| census.inodes);
        self.progress.begin_proof(named + rest);
        while let Some(first) = self.unproved.first() {
            if is_active(Mutant::InSyncUnproved) {
                break;
            }
            let next = self.prove_first(source, peer, locks, &first)?;
            self.unproved.proved_below(next);
        }
        let sent_again = self.unproved.end();
        if sent_again > 0 {
            self.engine.notes.note_sent_again(sent_again);
        }
        Ok(())
    }

    fn prove_first(
        &self,
        source: ResyncSource<'_>,
        peer: &RemotePeer,
        locks: &dyn Locks,
        first: &FirstTouched,
    ) -> Result<u64, ResyncError> {
        let store = &self.engine.store;
        let sums = &StoreSums::of(store);
        let copy = DeepCopy { store, sums };
        let proof = &self.progress.proof;
        for round in 0.. {
            let (found, next) = lockstep_verify::compare_touched(copy, peer, locks, proof, first)?;
            if found.is_identical() {
                return Ok(next);
            }
            let time = self.engine.host.time_of_day();
            self.engine.notes.note_unproved(&found, time);
            if round == ROUNDS_MAX {
                return Err(self.unproved(&found));
            }
            let files = found.differences.iter();
            let files: BTreeSet<Ino> = files.filter_map(|found| Ino::new(found.ino)).collect();
            self.unproved.note_sent_again(&files);
            for ino in &files {
                // The secondary may lose them with its power before the next barrier.
                store.barriers().mark_write(*ino, 0, u64::MAX);
            }
            let sent = lockstep_resync::send_again(source, peer, locks, &files)?;
            self.progress.content.bytes_sent.add(sent);
        }
        Ok(first.numbers.end)
    }

    fn unproved(&self, found: &Report) -> ResyncError {
        let (failures, rest) = self.unproved.note_failure();
        let first = found.differences.first();
        let first = first.map(ToString::to_string).unwrap_or_default();
        let next = if rest.is_zero() {
            "the next resync compares everything".to_owned()
        } else {
            let minutes = rest.as_secs() / 60;
            format!(
                "{failures} resyncs in a row have ended so: the next one follows in {minutes} minutes, or when this node is started \
                 again; see \"A resync cannot be proved\" in docs/operations/disks.md"
            )
        };
        ResyncError::Unproved {
            differences: found.total,
            first,
            next,
        }
    }

    /// Time until the next connection, after one has ended whose resync could not be proved.
    pub fn take_rest(&self) -> Duration {
        self.unproved.take_rest()
    }
}
