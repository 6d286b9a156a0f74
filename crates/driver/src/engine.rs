//! The parts of a datastore that outlive a session: configuration, store, host, and the durable marks.
//!
//! A session of either role shares the engine. The engine knows no connection, no core and no client.

pub(crate) mod contact;
pub(crate) mod disk_watch;
pub(crate) mod failure_log;
pub(crate) mod references;
pub(crate) mod shared_machine;
pub(crate) mod status_notes;
pub(crate) mod takeover_promise;
pub(crate) mod tick_work;
pub(crate) mod trash_ledger;
pub(crate) mod wakes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use lockstep_fs::poison::Poison;
use lockstep_fs::reserve::Reserve;
use lockstep_fs::store::SnapshotAccess;
use lockstep_fs::{OpError, Store};
use lockstep_paw_saw::SyncCounter;
use lockstep_types::backing::{FileIdentity, Room};
use lockstep_types::settings::{Choice, Durability, Standby};
use lockstep_types::time::millis;
use lockstep_types::{Errno, SyncStanding};

use crate::config::ConfigHandle;
use crate::durable::role_file::RoleFile;
use crate::engine::disk_watch::DiskWatch;
use crate::engine::failure_log::FailureLog;
use crate::engine::references::References;
use crate::engine::shared_machine::SharedMachine;
use crate::engine::status_notes::StatusNotes;
use crate::engine::wakes::Wakes;
use crate::host::{Host, ThreadKind};
use crate::service_gate::ServiceGate;

/// The disk of the store, beside the content of the store.
pub(crate) struct EngineDisk {
    /// Space of the disk that clients do not get.
    pub reserve: Arc<Reserve>,
    /// Whether the disk answers.
    pub watch: DiskWatch,
    /// The log lines about its failures.
    pub failures: FailureLog,
    /// The role file at the opening; `None` if the disk cannot tell files apart.
    pub role_file: Option<FileIdentity>,
    /// The directory of the store is not where its path leads to.
    pub is_moved: AtomicBool,
    /// The operations of the sync that this copy is in (rule P17).
    pub count: SyncCounter,
}

/// See the head of this file.
pub(crate) struct Engine {
    /// The configuration, which can change: each reader takes the present value.
    pub config: Arc<ConfigHandle>,
    pub store: Store,
    pub host: Arc<dyn Host>,
    pub role_file: RoleFile,
    /// Whether the disk of the store has failed.
    pub poison: Arc<Poison>,
    pub disk: EngineDisk,
    /// The reasons that `status` shows.
    pub notes: StatusNotes,
    /// The references of clients to inodes. The mount, and so its references, outlives a session.
    pub references: Arc<References>,
    /// Decides on the role of this node.
    pub role: SharedMachine,
    /// Lets clients in while this node serves.
    pub gate: Arc<ServiceGate>,
    /// Counts changes of the state, in all sessions.
    pub state_version: AtomicU64,
    /// The reasons for which the threads of the datastore wake.
    pub wakes: Wakes,
}

impl Engine {
    /// Name of the datastore.
    pub fn name(&self) -> &str {
        self.config.name()
    }

    /// The knowledge that this copy has of its sync (rule P17).
    pub fn standing(&self) -> SyncStanding {
        SyncStanding::of(self.role_file.state().lineage.sync, self.disk.count.count())
    }

    /// Milliseconds of the host's monotonic clock.
    pub fn now_ms(&self) -> u64 {
        millis(self.host.now())
    }

    /// Whether the datastore is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.wakes.is_stopping()
    }

    /// Stops the datastore: every wait ends.
    pub fn stop(&self) {
        self.wakes.stop();
    }

    /// Waits until `is_met` says so, or the datastore is stopped, or until `deadline` on the host's clock: every change of the
    /// condition raises [`Wakes::changes`]. Returns whether the condition is met.
    pub fn wait_until(&self, deadline: Option<Duration>, mut is_met: impl FnMut() -> bool) -> bool {
        let mut met = false;
        self.wakes.changes.wait_until(&*self.host, deadline, || {
            met = is_met();
            met || self.is_stopping()
        });
        met
    }

    /// Whether the configuration demands stable storage for every operation.
    pub fn is_always_durable(&self) -> bool {
        self.config.durability() == Durability::Always
    }

    /// The answer to a request that a change of the role, or the end of the datastore, leaves without an outcome: either
    /// node may have done it, or none.
    pub fn unknown_outcome(&self) -> Errno {
        match self.config.current().policies.standby {
            Standby::Wait | Standby::Erofs => Errno::Io,
            Standby::Eagain => Errno::Again,
        }
    }

    /// Sleeps for `wait`, or until the datastore is stopped, or until `is_over` says so.
    pub fn sleep_unless(&self, wait: Duration, is_over: impl Fn() -> bool) {
        let until = self.host.now() + wait;
        self.wait_until(Some(until), is_over);
    }

    /// The kind of the calling thread: a client's, or the reader. The reader completes operations of clients,
    /// and a completion may submit the next operation.
    pub fn calling_thread(&self) -> ThreadKind {
        if self.host.is_reading() {
            ThreadKind::Reader
        } else {
            ThreadKind::Client
        }
    }

    /// Logs an error of the store, within bounds, and returns the error number for the client. A refusal is not logged,
    /// whether the rules of file systems refuse the operation or the disk does.
    pub fn log_and_errno(&self, error: &OpError) -> Errno {
        let errno = error.errno();
        let OpError::Store(error) = error else {
            return errno;
        };
        // A full disk shows in the status, and no file system takes a file that is too large.
        if matches!(errno, Errno::NoSpace | Errno::TooBig) {
            tracing::debug!(datastore = self.name(), %error, "an operation was refused");
        } else if let Some(left_out) = self.disk.failures.is_due(self.host.now()) {
            let datastore = self.name();
            tracing::error!(datastore, %error, left_out, "the store failed");
        }
        errno
    }

    /// Why this node promises nothing any more, for the operators of both nodes; `None` while the disk is sound
    /// (rule P16).
    pub fn failure_reason(&self) -> Option<String> {
        let failure = self.poison.failure()?;
        Some(format!(
            "the {}'s disk failed {failure}; it promises nothing until it is repaired or replaced \
             and `lockstep clear-poison {}` was run there",
            self.role_file.state().record.role.word(),
            self.name()
        ))
    }

    /// Why this node deals with no other node now, for the operator of that node; `None` while the disk answers (rule R12).
    pub fn stall_reason(&self) -> Option<String> {
        let limit = self.disk.watch.stuck_for_more_than()?;
        Some(format!(
            "the disk of the node hangs: it has not answered for more than {} ms; the node goes on by itself once the disk \
             answers",
            millis(limit)
        ))
    }

    /// Removes the content of freed inodes. For a change that may not fit, also gives lost copies up, the oldest first, while the disk has not ample room beside
    /// `wanted`.
    pub fn make_room(&self, wanted: Option<Room>) {
        let datastore = self.name();
        if let Err(error) = self.store.collect_garbage() {
            tracing::debug!(datastore, %error, "content of a freed inode stays");
        }
        let Some(wanted) = wanted else {
            return;
        };
        let needed = wanted.plus(self.host.room_limits().ample);
        let is_short = || {
            let room = self.store.capacity().room();
            room.is_ok_and(|room| !room.covers(&needed))
        };
        while is_short() {
            match SnapshotAccess::of(&self.store).give_up_lost() {
                Ok(Some(snapshot)) => tracing::error!(
                    datastore,
                    snapshot,
                    "the disk is nearly full: what this node had alone is given up, and programs get the space",
                ),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(datastore, %error, "the space of a snapshot is not all free yet");
                    return;
                }
            }
        }
    }
}
