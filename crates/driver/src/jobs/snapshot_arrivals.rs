//! The arrival of snapshots on the node that lacks them (rule P37): a primary in sync sees to it.
//!
//! The job makes a snapshot of the datastore, brings the values of older ones that changed before that, and deletes the snapshot. It keeps to the limits of a resync.
//!
//! Invariants: one arrival runs at a time. Snapshots that have arrived whole stay whole when an arrival is cut short.

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::snapshot_list::SnapshotKind;
use lockstep_fs::store::{ArrivalAccess, SnapshotAccess};
use lockstep_repl::core::ConnectionId;
use lockstep_resync::arrival::{Arrival, Arrived, SnapshotsOfBoth};
use lockstep_resync::{Locks, PeerError, ResyncError};
use lockstep_types::{Errno, MetaRequest, SnapshotId, SnapshotName, SyncId};
use parking_lot::Mutex;

use super::resync::ResyncJobs;
use super::snapshots::{ARRIVAL, SnapshotService, creation};
use crate::engine::Engine;
use crate::host::single_job::SingleJob;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::ops::space::SpaceCheck;
use crate::replication::remote::RemotePeer;

/// Time until the next look. The time doubles with each look that brings nothing, to the longest one: a snapshot that is in the way may go in a moment, or
/// stay for months.
const REST: Duration = Duration::from_secs(5);
/// The longest time between two looks.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// The next look for snapshots that a node lacks.
#[derive(Default)]
pub(crate) struct SnapshotArrivals {
    job: SingleJob,
    state: Arc<Mutex<TurnState>>,
}

#[derive(Default)]
struct TurnState {
    /// No look before this moment of the host's clock.
    rests_until: Duration,
    /// The last rest, if nothing has arrived since.
    rest: Option<Duration>,
    /// The time in sync in which a look found that no node lacks a snapshot. A node begins to lack one only while the nodes are not in sync.
    settled: Option<InSyncTime>,
}

/// A time in sync: the connection, and the name of the sync.
type InSyncTime = (ConnectionId, Option<SyncId>);

/// The result of a look.
#[derive(Clone, Copy)]
enum LookEnd {
    /// No node lacks a snapshot that the other one has.
    Settled,
    /// The next look may find more.
    Soon,
    /// Nothing has arrived: the rest before the next look is longer each time.
    Later,
}

impl TurnState {
    /// Notes the end of a look at `now`, in the time in sync `present`.
    fn note(&mut self, end: LookEnd, present: InSyncTime, now: Duration) {
        self.rest = match end {
            LookEnd::Settled => {
                self.settled = Some(present);
                None
            }
            LookEnd::Soon => None,
            LookEnd::Later => {
                let rest = self.rest.map_or(REST, |last| last * 2);
                Some(rest.min(LONGEST_REST))
            }
        };
        self.rests_until = now + self.rest.unwrap_or(REST);
    }
}

impl SnapshotArrivals {
    /// Begins an arrival on another thread, if a node may lack a snapshot. Costs little.
    pub fn look(
        &self,
        engine: &Arc<Engine>,
        jobs: &Arc<ResyncJobs>,
        pipeline: &Arc<MetaPipeline>,
        space: &Arc<SpaceCheck>,
    ) {
        let all = SnapshotAccess::of(&engine.store).all();
        if !all.iter().any(|(id, record)| record.is_taken(*id)) {
            return;
        }
        let Ok(peer) = jobs.peer_in_sync() else {
            return;
        };
        let sync = engine.role_file.state().lineage.sync.newest();
        let present = (peer.connection.id, sync);
        let is_due = {
            let state = self.state.lock();
            state.settled != Some(present) && engine.host.now() >= state.rests_until
        };
        let Some(run) = is_due.then(|| self.job.begin()).flatten() else {
            return;
        };
        let look = ArrivalLook {
            engine: Arc::clone(engine),
            jobs: Arc::clone(jobs),
            pipeline: Arc::clone(pipeline),
            space: Arc::clone(space),
        };
        let state = Arc::clone(&self.state);
        Arc::clone(&peer.replication).spawn(move || {
            let end = look.run(&peer);
            state.lock().note(end, present, look.engine.host.now());
            drop(run);
        });
    }
}

/// One look.
struct ArrivalLook {
    engine: Arc<Engine>,
    jobs: Arc<ResyncJobs>,
    pipeline: Arc<MetaPipeline>,
    space: Arc<SpaceCheck>,
}

impl ArrivalLook {
    fn run(&self, peer: &RemotePeer) -> LookEnd {
        let datastore = self.engine.name();
        match self.let_arrive(peer) {
            Ok(end) => end,
            Err(ResyncError::Peer(PeerError::Lost)) => LookEnd::Soon,
            Err(error) => {
                tracing::warn!(
                    datastore, %error,
                    "a node still lacks snapshots that the other one has; the next try comes by itself",
                );
                self.delete_made();
                LookEnd::Later
            }
        }
    }

    fn let_arrive(&self, peer: &RemotePeer) -> Result<LookEnd, ResyncError> {
        let store = &self.engine.store;
        let mut of_both = SnapshotsOfBoth::ask(store, peer)?;
        if of_both.lacked().is_empty() {
            self.delete_made();
            return Ok(LookEnd::Settled);
        }
        if self.space.is_low() {
            return Ok(LookEnd::Later);
        }
        if !of_both.can_begin() {
            self.delete_made();
            if let Err(errno) = self.make() {
                let datastore = self.engine.name();
                tracing::debug!(datastore, %errno, "no snapshot can be made for an arrival yet");
                return Ok(LookEnd::Later);
            }
            of_both = SnapshotsOfBoth::ask(store, peer)?;
        }
        let goes_on = || peer.is_standing() && !self.space.is_low() && !self.engine.is_stopping();
        let bring = |locks: &dyn Locks| Arrival::new(store, peer, locks, &goes_on).bring(of_both);
        let arrived = self.jobs.with_core_locks(peer, bring)?;
        if arrived.snapshots > 0 {
            self.log(arrived);
        }
        if !peer.is_standing() {
            return Err(PeerError::Lost.into());
        }
        self.delete_made();
        Ok(match arrived.snapshots {
            0 => LookEnd::Later,
            _ => LookEnd::Soon,
        })
    }

    fn log(&self, arrived: Arrived) {
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
    fn make(&self) -> Result<(), Errno> {
        let service = SnapshotService::of(&self.engine);
        let names = (1_u32..).map(|number| match number {
            1 => ARRIVAL.to_owned(),
            _ => format!("{ARRIVAL}-{number}"),
        });
        // A user of an earlier version may have taken the name.
        let mut names = names.filter_map(|name| SnapshotName::new(name).ok());
        let name = names.find(|name| service.named(name.as_str()).is_none());
        let name = name.ok_or(Errno::Exists)?;
        carry_out(
            creation(name, SnapshotKind::Arrival),
            &self.engine,
            &self.pipeline,
        )
    }

    /// Deletes the snapshots that were made for arrivals.
    fn delete_made(&self) {
        let made: Vec<SnapshotId> = ArrivalAccess::of(&self.engine.store).made();
        for id in made {
            let delete = MetaRequest::SnapshotDelete { id };
            if let Err(errno) = carry_out(delete, &self.engine, &self.pipeline) {
                let datastore = self.engine.name();
                tracing::debug!(datastore, %errno, "the snapshot of an arrival stays for now");
            }
        }
    }
}
