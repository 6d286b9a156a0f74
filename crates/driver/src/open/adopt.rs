//! Making an existing directory the content of a new store, on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_fs::adopt::{
    AdoptError, AdoptOptions, AdoptSummary, AdoptTarget, AdoptWatcher, SyncAfter, adopt,
};
use lockstep_fs::poison::PoisonMarkers;
use lockstep_fs::store::AdoptWay;
use lockstep_intentlog::LogOptions;
use lockstep_types::backing::Backing;
use lockstep_types::settings::Role;
use thiserror::Error;

use super::open_directory;
use crate::config::DatastoreConfig;
use crate::durable::poison_marker::RunDirMarker;
use crate::durable::{DatastoreError, failed};

/// The directory that is to be adopted, and the way.
#[derive(Clone, Debug)]
pub struct AdoptRequest {
    /// The directory.
    pub source: PathBuf,
    /// How its files are taken; `None`: by shared blocks if the file systems can do that, otherwise by copies.
    pub way: Option<AdoptWay>,
    /// File systems that are mounted below the directory are left out.
    pub one_file_system: bool,
}

/// Why a directory could not be adopted.
#[derive(Debug, Error)]
pub enum AdoptionError {
    /// The store begins as the secondary: the primary would overwrite what it has adopted.
    #[error(
        "this node is the secondary of {name}: the primary fills its store, so this node adopts nothing\n  cure: adopt on the other \
         server; or set `role = \"primary\"` in the configuration of this one, and `role = \"secondary\"` in that of the other"
    )]
    Secondary {
        /// Name of the datastore.
        name: String,
    },
    /// The store cannot be used.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The adoption has stopped.
    #[error("store {}: {source}", path.display())]
    Adopt {
        /// Directory of the store.
        path: PathBuf,
        /// The reason.
        source: AdoptError,
    },
}

/// Adopts a directory into the new store of `config`, on this machine. A missing directory of the store is made.
///
/// The store counts as one that has served: a node whose store is new follows it, and no other node overwrites it. Only the node
/// that begins as the primary adopts.
pub fn adopt_on_this_machine(
    config: &DatastoreConfig,
    request: AdoptRequest,
    watcher: &mut dyn AdoptWatcher,
) -> Result<AdoptSummary, AdoptionError> {
    if config.role == Role::Secondary {
        let name = config.name.clone();
        return Err(AdoptionError::Secondary { name });
    }
    let files = open_directory(&config.store)?;
    let backing: Arc<dyn Backing> = Arc::clone(&files) as Arc<dyn Backing>;
    let stopped = |source| AdoptionError::Adopt {
        path: config.store.clone(),
        source,
    };
    let target = AdoptTarget::of_directory(files, &config.store).map_err(stopped)?;
    let options = AdoptOptions {
        source: request.source,
        way: request.way,
        one_file_system: request.one_file_system,
        datastore: config.uuid,
        log: LogOptions::default(),
        sync_after: SyncAfter::default(),
    };
    let summary = adopt(&target, &options, watcher).map_err(stopped)?;
    forget_earlier_store(config, &config.store, backing)?;
    Ok(summary)
}

/// Removes the mark that an earlier store in this place was on a failed disk.
pub(super) fn forget_earlier_store(
    config: &DatastoreConfig,
    store: &Path,
    backing: Arc<dyn Backing>,
) -> Result<(), DatastoreError> {
    let marks = PoisonMarkers::new(backing, Some(Arc::new(RunDirMarker::of(store))));
    marks.remove_copy().map_err(failed(config))
}
