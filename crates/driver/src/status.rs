//! The status of a datastore, for operators.

pub(crate) mod usage;

use std::time::Duration;

use lockstep_fs::Store;
use lockstep_fs::snapshot_list::SnapshotKind;
use lockstep_fs::store::{FallbackAccess, SnapshotAccess};
use lockstep_repl::state::{ServiceMode, State};
use lockstep_types::time::millis;
use lockstep_types::{Generation, Ino, Osn};

use crate::client::Standing;
use crate::durable::role_file::RoleState;
use crate::engine::Engine;
use crate::jobs::change_readers::ReaderService;
use crate::jobs::store_place;
use crate::jobs::trash::TrashService;
use crate::report::{
    ChangeReaderStatus, CopyStatus, DatastoreStatus, OwnSnapshotStatus, PoisonStatus, SeedStatus,
    ServiceStatus, SlowOperationStatus, SpaceStatus, SyncStatus, WorkStatus,
};
use crate::session::Session;

/// The time for which the clients of a node that serves without a lease wait for its restart. No other node serves by itself
/// then, but an operator may promote one.
pub const RESTART_WITHOUT_LEASE: Duration = Duration::from_secs(2);

/// A metadata operation that has been under way for longer is shown.
const SLOW: Duration = Duration::from_secs(1);

fn slow(
    (operation, ino, since): (&'static str, Option<Ino>, Duration),
) -> Option<SlowOperationStatus> {
    (since > SLOW).then(|| SlowOperationStatus {
        operation: operation.to_owned(),
        inode: ino.map_or(0, Ino::get),
        since_ms: millis(since),
    })
}

/// The content of this copy by its role file and its store. The notes know since when.
fn copy(marks: RoleState, readers: Vec<ChangeReaderStatus>, store: &Store) -> CopyStatus {
    CopyStatus {
        marked_in_sync: marks.is_in_sync(),
        complete: marks.record.complete,
        write_verifier: Some(marks.clients.verifier.get()),
        readers,
        seed: marks.lineage.seed.map(|seed| SeedStatus {
            time: seed.time.utc(),
            osn: seed.osn.to_string(),
        }),
        mixed: FallbackAccess::of(store).is_mixed().unwrap_or(true),
        own_snapshots: own_snapshots(store),
        ..CopyStatus::default()
    }
}

/// The snapshots that this node has made of its own copy.
fn own_snapshots(store: &Store) -> Vec<OwnSnapshotStatus> {
    let snapshots = SnapshotAccess::of(store).list();
    let status = snapshots.into_iter().filter_map(|(id, record)| {
        let (exact, lost) = match record.kind {
            SnapshotKind::Fallback { is_exact, own_of } => (is_exact, own_of),
            SnapshotKind::Lost {
                is_exact,
                generation,
            } => (is_exact, Some(generation)),
            SnapshotKind::User | SnapshotKind::Scheduled | SnapshotKind::Arrival => return None,
        };
        Some(OwnSnapshotStatus {
            name: record.name.clone(),
            time: record.time.utc(),
            osn: id.osn.to_string(),
            exact,
            lost_generation: lost.map(Generation::get),
        })
    });
    status.collect()
}

/// The status of a datastore.
pub(crate) fn of(engine: &Engine, session: &Session) -> DatastoreStatus {
    let (state, in_flight, next) = {
        let core = session.replication().core.lock();
        (core.state(), core.in_flight(), core.next_osn())
    };
    let usage = session.usage();
    let poisoned = engine.poison.failure().map(|failure| PoisonStatus {
        reason: failure.reason,
        time: failure.time,
    });
    let mut status = DatastoreStatus::of_configuration(&engine.config.current());
    let marks = engine.role_file.state();
    status.settings.role = marks.record.role;
    status.settings.mount = Some(engine.config.current().mount.display().to_string());
    let now = engine.host.now();
    let (standing, since) = engine.gate.standing_and_since(&*engine.host);
    status.sync = SyncStatus {
        state: state.describe().to_owned(),
        service: match standing {
            Standing::Serving | Standing::Retiring => serving(state),
            Standing::Undecided => ServiceStatus::Undecided,
            Standing::Following => ServiceStatus::None,
        },
        service_since_ms: millis(now.saturating_sub(since)),
        restart_within_ms: engine
            .gate
            .restart_within(&*engine.host, RESTART_WITHOUT_LEASE)
            .map(millis),
        copy: copy(marks, ReaderService::of(engine).list(), &engine.store),
        in_sync: state.is_in_sync() && poisoned.is_none(),
        disk_stall: engine.disk.watch.status(),
        ..status.sync
    };
    status.work = WorkStatus {
        generation: session.replication().generation().get(),
        writes_in_flight: in_flight.writes as u64,
        metadata_in_flight: in_flight.metadata as u64,
        kept_bytes: usage.kept.bytes(),
        slow_operation: usage.oldest_metadata.and_then(slow),
        waiting_requests: engine.gate.waiting_requests(),
        ..status.work
    };
    status.poisoned = poisoned;
    status.witness = engine
        .role
        .status(engine.role_file.state().unrecorded.is_some());
    let space = engine.store.capacity().space().ok();
    status.space = space.map(|space| SpaceStatus {
        total_bytes: space.total_bytes,
        available_bytes: space.available_bytes,
    });
    let entries = usage.in_flight as u64;
    add_role(&mut status, engine, session, (state, next), entries);
    engine.notes.add_to(&mut status, state, now);
    status.sync.reason = store_place::explain(engine, status.sync.reason.take());
    if let Some(peer) = &mut status.peer {
        peer.connected = session.replication().peer.is_connected();
        let silent_ms = engine.disk.watch.peer_stuck_ms();
        peer.disk_silent_ms = silent_ms.filter(|_| peer.connected);
    }
    status
}

/// Adds the entries of one role.
fn add_role(
    status: &mut DatastoreStatus,
    engine: &Engine,
    session: &Session,
    (state, next): (State, Osn),
    in_flight: u64,
) {
    match session {
        Session::Primary(session) => {
            // The last number given out is the one before the next.
            let last = Osn {
                sequence: next.sequence.saturating_sub(1),
                ..next
            };
            status.work.osn = last.to_string();
            status.work.paw = in_flight;
            status.resync = session.jobs.status(state);
            status.sync.copy.scrub = session.jobs.scrub_status();
            status.trash = TrashService::of(engine).status();
            status.sync.barrier_since_ms = session.jobs.barriers.since_complete().map(millis);
        }
        Session::Undecided(session) | Session::Secondary(session) => {
            status.resync = session.told_resync(state);
            status.work.osn = engine.store.applied_lately().to_string();
            status.work.saw = in_flight;
        }
    }
}

fn serving(state: State) -> ServiceStatus {
    if state.is_secondary() {
        return ServiceStatus::None;
    }
    match state.service_mode() {
        ServiceMode::Alone => ServiceStatus::Alone,
        ServiceMode::Mirrored => ServiceStatus::Mirrored,
        ServiceMode::WritesAlone => ServiceStatus::WritesAlone,
        ServiceMode::Wait => ServiceStatus::Waiting,
        ServiceMode::Refused => ServiceStatus::Refused,
    }
}
