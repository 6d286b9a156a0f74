//! Takes a store whose disk had failed back into use, at the request of an operator, once the disk is repaired (rule
//! P16).
//!
//! Order, and why: (1) The mark is written again, so that no later step can lose it. (2) The system's cache of the
//! files is dropped, because failed syncs may have left pages in it; from here on reads show the disk. (3) The copy
//! is marked out of sync, before anything else of it changes. (4) The store is opened as after a power loss, synced
//! as a whole, and closed cleanly. (5) The mark is removed. A stop before step 5 leaves the mark.

use std::sync::Arc;

use lockstep_fs::Store;
use lockstep_fs::boot::boot_id;
use lockstep_fs::poison::{DiskFailure, FencedBacking, MarkerStore, Poison, PoisonMarkers};
use lockstep_fs::reserve::{Reserved, Withheld};
use lockstep_fs::store::{MarkTableSizes, OpenOptions};
use lockstep_types::backing::Backing;
use lockstep_types::settings::Role;
use lockstep_types::{BootId, Hash128, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{DatastoreError, failed, open_existing, open_options, read_role, refused};
use crate::config::DatastoreConfig;
use crate::durable::poison_marker::RunDirMarker;
use crate::durable::role_file::{RoleFile, SlotChoice};
use crate::durable::{table_refused, tables};

/// The place of a store that is not in use.
pub struct Repair {
    /// The directory of the store, locked against other processes.
    pub backing: Arc<dyn Backing>,
    /// The run of the machine.
    pub boot: BootId,
    /// A second place for the mark of a failed disk, if there is one.
    pub stamp: Option<Arc<dyn MarkerStore>>,
    /// Time of day.
    pub now: Timestamp,
    /// The sizes of the tables of marks of a store that has none.
    pub marks: MarkTableSizes,
}

impl Repair {
    /// The directory of the configuration on this machine. A running node holds its lock.
    pub fn on_this_machine(config: &DatastoreConfig) -> Result<Self, DatastoreError> {
        Ok(Self {
            backing: open_existing(&config.store)?,
            boot: boot_id(),
            stamp: Some(Arc::new(RunDirMarker::of(&config.store))),
            now: now(),
            marks: MarkTableSizes::default(),
        })
    }
}

/// The time by the clock of the machine. No datastore runs, so there is no host.
#[allow(clippy::disallowed_methods)]
fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleared {
    /// Name of the datastore.
    pub datastore: String,
    /// Role of this node.
    pub role: Role,
    /// The failure in the mark.
    pub failure: DiskFailure,
    /// Whether the system's cache of the store's files was dropped. Otherwise the machine was restarted since the
    /// failure, which had dropped the cache.
    pub cache_dropped: bool,
    /// Whether this copy was marked in sync before. It is not any more.
    pub was_in_sync: bool,
    /// Whether the content of this disk is the datastore from now on. Otherwise the other node has every change.
    pub content_counts: bool,
}

/// Why a store was not taken back into use. The mark is still there, if there was one.
#[derive(Debug, Error)]
pub enum ClearError {
    /// There is no mark.
    #[error("store {path} is not poisoned: there is nothing to clear")]
    NotPoisoned {
        /// Directory of the store.
        path: String,
    },
    /// The store is that of a primary whose content counts, and the operator has not accepted a loss.
    #[error(
        "this node is the primary of {name:?}: from then on what its disk holds counts, and the \
         secondary is made equal to it. What was acknowledged and has not reached this disk is lost \
         then, even if the secondary has it. If the other node serves meanwhile, replace this store instead: \
         `lockstep create-store`\n  cure: take what the secondary has with `lockstep \
         export` there (see \"A disk has failed\" in docs/operations/disks.md), or give --accept-loss"
    )]
    LossNotAccepted {
        /// Name of the datastore.
        name: String,
    },
    /// The system's cache of the files may differ from the disk.
    #[error(
        "store {path}: it cannot be made sure that reads show what is on the disk: {source}\n  cure: \
         unmount its file system and mount it anew, or restart the machine; then try again"
    )]
    StillCached {
        /// Directory of the store.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The disk, or the store on it, is still not good.
    #[error(transparent)]
    Store(#[from] DatastoreError),
}

/// Takes a store whose disk had failed and was repaired back into use. From then on the copy is out of sync, and a
/// resync compares everything. For the store of a primary that does not wait for a complete secondary, `accept_loss` must be
/// set, because the content of its disk becomes the datastore.
pub fn clear_poison(
    config: &DatastoreConfig,
    repair: &Repair,
    accept_loss: bool,
) -> Result<Cleared, ClearError> {
    // On a full disk the mark, too, takes the room of the reserve (rule P20).
    let (reserved, _) = Reserved::over(Arc::clone(&repair.backing), Withheld::default());
    let reserved: Arc<dyn Backing> = Arc::new(reserved);
    let marks = PoisonMarkers::new(Arc::clone(&reserved), repair.stamp.clone());
    let path = || config.store.display().to_string();
    let Some(failure) = marks.read() else {
        return Err(ClearError::NotPoisoned { path: path() });
    };
    let role = read_role(config, repair.backing.as_ref(), SlotChoice::BeforeFailure)?;
    // Otherwise the content of this disk does not become the datastore: a complete secondary takes over.
    let content_counts = config.needs_no_peer(role.record);
    if content_counts && !accept_loss {
        let name = config.name.clone();
        return Err(ClearError::LossNotAccepted { name });
    }
    marks.renew(&failure).map_err(failed(config))?;
    let cache_dropped = failure.boot.is_none_or(|boot| boot == repair.boot);
    if cache_dropped {
        let dropped = repair.backing.forget_cached();
        dropped.map_err(|source| ClearError::StillCached {
            path: path(),
            source,
        })?;
    }
    recover(config, repair, reserved, &marks)?;
    marks.remove().map_err(failed(config))?;
    Ok(Cleared {
        datastore: config.name.clone(),
        role: role.record.role,
        failure,
        cache_dropped,
        was_in_sync: role.is_in_sync(),
        content_counts,
    })
}

/// Recovers the store as after a power loss, and closes it.
fn recover(
    config: &DatastoreConfig,
    repair: &Repair,
    reserved: Arc<dyn Backing>,
    marks: &PoisonMarkers,
) -> Result<(), DatastoreError> {
    let now = repair.now;
    let poison = Poison::new(marks.clone(), repair.boot, Box::new(move || now), None);
    let guarded = FencedBacking::new(reserved, Arc::new(poison));
    let guarded: Arc<dyn Backing> = Arc::new(guarded);
    // The id of no run of the machine, so that any earlier use of the store is treated as interrupted.
    let boot = repair.boot.of_no_run();
    let found = read_role(config, guarded.as_ref(), SlotChoice::BeforeFailure)?;
    let lost = found.record.after_power_loss();
    let record = if config.needs_no_peer(lost) && !lost.complete {
        lost.without_peer()
    } else {
        lost
    };
    let drawn = serde_json::to_vec(&(repair.boot, now.secs, now.nanos, found.record.generation));
    let drawn = Hash128::of(&drawn.unwrap_or_default()).0;
    let found = found.without_base().renewed(drawn);
    let role = RoleFile::open(Arc::clone(&guarded), found, boot, record).map_err(failed(config))?;
    let options = OpenOptions {
        marks: repair.marks,
        ..open_options(config, boot)
    };
    let checked = Store::check(guarded, &options).map_err(refused(config))?;
    let store = checked.open().map_err(refused(config))?.store;
    // The count may be of any earlier moment, as after a loss of power: nothing is known of it (rule P17).
    tables::open_count(store.backing().as_ref(), false).map_err(table_refused(config))?;
    // Failed syncs may have dropped changes of which the delta says nothing.
    store.delta().end();
    store.barriers().forget().map_err(refused(config))?;
    store.sync_everything().map_err(refused(config))?;
    store.close().map_err(refused(config))?;
    role.closed().map_err(failed(config))
}
