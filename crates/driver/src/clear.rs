//! Taking a store back into use whose disk had failed: what an operator asks for once the disk is
//! repaired (rule P16).
//!
//! Order, and why: the mark once more, so that nothing below can lose it; then memory forgets what
//! failed syncs have left in it, so that from here on reads show the disk; then the copy is marked out
//! of sync, before anything else of it is changed; then the store is opened as after a loss of power,
//! all of it is put on stable storage, and it is closed in order. Only then the mark goes. Whatever
//! stops this in between leaves the mark.

use std::sync::Arc;

use lockstep_fs::Store;
use lockstep_fs::boot::boot_id;
use lockstep_fs::poison::{DiskFailure, FencedBacking, MarkerStore, Poison, PoisonMarkers};
use lockstep_fs::reserve::{Reserved, Withheld};
use lockstep_types::backing::Backing;
use lockstep_types::settings::Role;
use lockstep_types::{BootId, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::role::RoleFile;
use super::stamp::RuntimeStamp;
use super::start::{DatastoreError, failed, open_existing, open_options, read_role, refused};
use crate::config::DatastoreConfig;

/// Where a store lies that is not in use.
pub struct Repair {
    /// The directory of the store, kept from other processes.
    pub backing: Arc<dyn Backing>,
    /// The run of the machine.
    pub boot: BootId,
    /// Where a failure of the disk is noted besides, if there is such a place.
    pub stamp: Option<Arc<dyn MarkerStore>>,
    /// Time of day.
    pub now: Timestamp,
}

impl Repair {
    /// On this machine, in the directory that the configuration names. A node that runs has it.
    pub fn on_this_machine(config: &DatastoreConfig) -> Result<Self, DatastoreError> {
        Ok(Self {
            backing: open_existing(&config.store)?,
            boot: boot_id(),
            stamp: Some(Arc::new(RuntimeStamp::of(&config.store))),
            now: now(),
        })
    }
}

/// By the clock of the machine: no datastore runs, and so no host.
#[allow(clippy::disallowed_methods)]
fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleared {
    /// Name of the datastore.
    pub datastore: String,
    /// What this node is for it.
    pub role: Role,
    /// What the mark said.
    pub failure: DiskFailure,
    /// Whether memory was made to forget the files of the store; where not, the machine was restarted
    /// since, and it had.
    pub cache_dropped: bool,
    /// Whether this copy counted as in sync before. It does not any more.
    pub was_in_sync: bool,
}

/// Why a store was not taken back into use. Its mark is still there, if there was one.
#[derive(Debug, Error)]
pub enum ClearError {
    /// There is no mark.
    #[error("store {path} is not poisoned: there is nothing to clear")]
    NotPoisoned {
        /// Its directory.
        path: String,
    },
    /// It is the primary's, and nobody said that this may lose something.
    #[error(
        "this node is the primary of {name:?}: from then on what its disk holds counts, and the \
         secondary is made equal to it. What was acknowledged and has not reached this disk is lost \
         then, even if the secondary has it\n  cure: take what the secondary has with `lockstep \
         export` there (see \"A disk has failed\" in docs/operations.md), or give --accept-loss"
    )]
    LossNotAccepted {
        /// The datastore.
        name: String,
    },
    /// What memory holds of the files cannot be told from what is on the disk.
    #[error(
        "store {path}: it cannot be made sure that reads show what is on the disk: {source}\n  cure: \
         unmount its file system and mount it anew, or restart the machine; then try again"
    )]
    StillCached {
        /// Its directory.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The disk, or what lies on it, is still not good.
    #[error(transparent)]
    Store(#[from] DatastoreError),
}

/// Takes a store back into use whose disk had failed and was repaired. Its copy counts as out of sync
/// from then on: everything is compared. For the primary's store `accept_loss` must be set, as what
/// lies on its disk then counts.
pub fn clear_poison(
    config: &DatastoreConfig,
    repair: &Repair,
    accept_loss: bool,
) -> Result<Cleared, ClearError> {
    let marks = PoisonMarkers::new(Arc::clone(&repair.backing), repair.stamp.clone());
    let path = || config.store.display().to_string();
    let Some(failure) = marks.read() else {
        return Err(ClearError::NotPoisoned { path: path() });
    };
    let was_in_sync = read_role(config, repair.backing.as_ref())?.in_sync;
    if config.role == Role::Primary && !accept_loss {
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
    recover(config, repair, &marks)?;
    marks.remove().map_err(failed(config))?;
    Ok(Cleared {
        datastore: config.name.clone(),
        role: config.role,
        failure,
        cache_dropped,
        was_in_sync,
    })
}

/// Brings the store to where its disk has it, as after a loss of power, and closes it.
fn recover(
    config: &DatastoreConfig,
    repair: &Repair,
    marks: &PoisonMarkers,
) -> Result<(), DatastoreError> {
    let now = repair.now;
    let poison = Poison::new(marks.clone(), repair.boot, Box::new(move || now), None);
    let (reserved, _) = Reserved::over(Arc::clone(&repair.backing), Withheld::default());
    let guarded = FencedBacking::new(Arc::new(reserved), Arc::new(poison));
    let guarded: Arc<dyn Backing> = Arc::new(guarded);
    // No run of the machine: what was in use in whichever one counts as interrupted.
    let boot = repair.boot.of_no_run();
    let found = read_role(config, guarded.as_ref())?;
    let role = RoleFile::open(Arc::clone(&guarded), found, boot, false).map_err(failed(config))?;
    let options = open_options(config, boot);
    let checked = Store::check(guarded, &options).map_err(refused(config))?;
    let store = checked.open().map_err(refused(config))?.store;
    store.sync_everything().map_err(refused(config))?;
    store.close().map_err(refused(config))?;
    role.closed().map_err(failed(config))
}
