//! The arrival of snapshots on the node that lacks them (rule P37): a primary in sync sees to it.
//!
//! The job makes a snapshot of the datastore, brings the values of older ones that changed before that, and deletes the snapshot. It keeps to the limits of a resync.
//!
//! Invariants: one arrival runs at a time. After an interruption the next one begins anew, with what has arrived whole.

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::snapshot_list::SnapshotKind;
use lockstep_fs::store::{ArrivalAccess, SnapshotAccess};
use lockstep_repl::core::ConnectionId;
use lockstep_resync::arrival::{Arrival, Arrived, SnapshotsOfBoth};
use lockstep_resync::{PeerError, ResyncError};
use lockstep_types::{Errno, MetaRequest, SnapshotId, SnapshotName, SyncId};
use parking_lot::Mutex;

use super::{ResyncJobs, stopped};
use crate::host::single_job::SingleJob;
use crate::jobs::snapshots::{ARRIVAL, SnapshotService, creation};
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::space::SpaceCheck;
use crate::replication::remote::RemotePeer;

/// Time between two looks, after one that found the list changed or no moment for a snapshot.
const AGAIN: Duration = Duration::from_secs(5);
/// Time between two looks after a failure, and while a disk has no room.
const LATER: Duration = Duration::from_secs(300);

/// The next look for snapshots that a node lacks.
#[derive(Default)]
pub(super) struct ArrivalTurn {
    job: SingleJob,
    state: Mutex<TurnState>,
}

#[derive(Default)]
struct TurnState {
    /// No look before this moment of the host's clock.
    rests_until: Duration,
    /// The time in sync in which a look found that no node lacks a snapshot. A node begins to lack one only while the nodes are not in sync.
    settled: Option<InSyncTime>,
}

/// A time in sync: the connection, and the name of the sync.
type InSyncTime = (ConnectionId, Option<SyncId>);

/// What a look has come to.
enum LookEnd {
    /// No node lacks a snapshot that the other one has.
    Settled,
    /// The next look may find more.
    Again(Duration),
}

impl ResyncJobs {
    /// Begins an arrival on another thread, if a node may lack a snapshot. Costs little.
    pub fn look_at_arrivals(
        self: &Arc<Self>,
        pipeline: &Arc<MetaPipeline>,
        space: &Arc<SpaceCheck>,
    ) {
        let all = SnapshotAccess::of(&self.engine.store).all();
        if !all.iter().any(|(id, record)| record.is_taken(*id)) {
            return;
        }
        let Ok(peer) = self.peer_in_sync() else {
            return;
        };
        let sync = self.engine.role_file.state().lineage.sync.newest();
        let present = (peer.connection.id, sync);
        let is_due = {
            let state = self.arrivals.state.lock();
            state.settled != Some(present) && self.engine.host.now() >= state.rests_until
        };
        let Some(run) = is_due.then(|| self.arrivals.job.begin()).flatten() else {
            return;
        };
        let (jobs, pipeline, space) = (Arc::clone(self), Arc::clone(pipeline), Arc::clone(space));
        self.replication.spawn(move || {
            let end = jobs.look(&peer, &pipeline, &space);
            let mut state = jobs.arrivals.state.lock();
            match end {
                LookEnd::Settled => state.settled = Some(present),
                LookEnd::Again(after) => state.rests_until = jobs.engine.host.now() + after,
            }
            drop(state);
            drop(run);
        });
    }

    fn look(&self, peer: &RemotePeer, pipeline: &MetaPipeline, space: &SpaceCheck) -> LookEnd {
        let datastore = self.engine.name();
        match self.let_arrive(peer, pipeline, space) {
            Ok(end) => end,
            Err(ResyncError::Peer(PeerError::Lost) | ResyncError::Stopped { .. }) => {
                LookEnd::Again(AGAIN)
            }
            Err(error) => {
                tracing::warn!(
                    datastore, %error,
                    "a node still lacks snapshots that the other one has; the next try comes by itself",
                );
                self.delete_made(pipeline);
                LookEnd::Again(LATER)
            }
        }
    }

    fn let_arrive(
        &self,
        peer: &RemotePeer,
        pipeline: &MetaPipeline,
        space: &SpaceCheck,
    ) -> Result<LookEnd, ResyncError> {
        let store = &self.engine.store;
        let mut of_both = SnapshotsOfBoth::ask(store, peer)?;
        if of_both.lacked().is_empty() {
            self.delete_made(pipeline);
            return Ok(LookEnd::Settled);
        }
        if space.is_low() {
            return Ok(LookEnd::Again(LATER));
        }
        if !of_both.can_begin() {
            self.delete_made(pipeline);
            if let Err(errno) = self.make(pipeline) {
                let datastore = self.engine.name();
                tracing::debug!(datastore, %errno, "no snapshot can be made for an arrival yet");
                return Ok(LookEnd::Again(AGAIN));
            }
            of_both = SnapshotsOfBoth::ask(store, peer)?;
        }
        let goes_on = || peer.is_standing() && !space.is_low() && !self.engine.is_stopping();
        let locks = self.core_locks(peer);
        let arrived = Arrival::new(store, peer, &locks, &goes_on).bring(of_both)?;
        self.log_arrival(arrived);
        if !peer.is_standing() {
            return Err(stopped("the connection is lost"));
        }
        self.delete_made(pipeline);
        Ok(LookEnd::Again(AGAIN))
    }

    fn log_arrival(&self, arrived: Arrived) {
        let datastore = self.engine.name();
        let Arrived {
            snapshots,
            bytes,
            is_cut_short,
        } = arrived;
        tracing::info!(
            datastore,
            snapshots,
            bytes,
            is_cut_short,
            "snapshots that one node lacked are whole on both nodes",
        );
    }

    /// Makes the snapshot of an arrival, on both nodes.
    fn make(&self, pipeline: &MetaPipeline) -> Result<(), Errno> {
        let service = SnapshotService::of(&self.engine);
        let names = (1_u32..).map(|number| match number {
            1 => ARRIVAL.to_owned(),
            _ => format!("{ARRIVAL}-{number}"),
        });
        // A user of an earlier version may have taken the name.
        let mut names = names.filter_map(|name| SnapshotName::new(name).ok());
        let name = names.find(|name| service.named(name.as_str()).is_none());
        let name = name.ok_or(Errno::Exists)?;
        service.carry_out(creation(name, SnapshotKind::Arrival), pipeline)
    }

    /// Deletes the snapshots that were made for arrivals.
    fn delete_made(&self, pipeline: &MetaPipeline) {
        let service = SnapshotService::of(&self.engine);
        let made: Vec<SnapshotId> = ArrivalAccess::of(&self.engine.store).made();
        for id in made {
            let delete = MetaRequest::SnapshotDelete { id };
            if let Err(errno) = service.carry_out(delete, pipeline) {
                let datastore = self.engine.name();
                tracing::debug!(datastore, %errno, "the snapshot of an arrival stays for now");
            }
        }
    }
}
