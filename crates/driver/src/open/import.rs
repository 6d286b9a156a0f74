//! Making the store of a secondary of a seed, on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_fs::adopt::SyncAfter;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::seed::{
    ImportOptions, ImportPlaces, ImportProgress, ImportSummary, SeedError, SeedManifest,
    SeedSnapshot, import,
};
use lockstep_fs::store::AdoptWay;
use lockstep_intentlog::LogOptions;
use lockstep_types::backing::Backing;
use thiserror::Error;

use super::adopt::forget_earlier_store;
use super::open_directory;
use crate::config::DatastoreConfig;
use crate::durable::DatastoreError;
use crate::durable::role_file::seeding::begin_of_seed;
use crate::engine::contact;

/// The seed that is to be imported, and the way.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// The directory.
    pub seed: PathBuf,
    /// How its files are taken; `None`: by shared blocks if the file systems can do that, otherwise by copies.
    pub way: Option<AdoptWay>,
}

/// A seed that was imported.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Counts.
    pub summary: ImportSummary,
    /// The snapshot of the seed; `None` if an earlier call had made the store.
    pub snapshot: Option<SeedSnapshot>,
}

/// Why a seed could not be imported.
#[derive(Debug, Error)]
pub enum SeedImportError {
    /// No other node would make the copy complete.
    #[error(
        "{name} has no other node, which would make the copy complete\n  cure: set `peer` in the configuration of this server first"
    )]
    NoPeer {
        /// Name of the datastore.
        name: String,
    },
    /// The store cannot be used.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The directory of the seed cannot be used.
    #[error("cannot open the seed {}: {source} (name an existing directory, and run as root)", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The import has stopped.
    #[error("store {}: {source}", path.display())]
    Import {
        /// Directory of the store.
        path: PathBuf,
        /// The reason.
        source: SeedError,
    },
}

/// Makes the new store of `config` of a seed, on this machine. A missing directory of the store is made.
///
/// The copy is that of a secondary. The role in the configuration is that of an empty store, and does not count. The copy is not in sync and not complete, and is
/// overwritten only from the primary whose store the seed names.
///
/// # Errors
/// The store is in use or was used; the seed is damaged, or is one of another datastore; or a disk fails.
pub fn import_on_this_machine(
    config: &DatastoreConfig,
    request: &ImportRequest,
    watch: &mut dyn FnMut(&ImportProgress) -> std::ops::ControlFlow<()>,
) -> Result<Imported, SeedImportError> {
    if config.peer.is_none() {
        let name = config.name.clone();
        return Err(SeedImportError::NoPeer { name });
    }
    let unusable = |source| SeedImportError::Directory {
        path: request.seed.clone(),
        source,
    };
    let path = request.seed.canonicalize().map_err(unusable)?;
    let seed = Arc::new(OsBacking::open(&path).map_err(unusable)?);
    let stopped = |source| SeedImportError::Import {
        path: config.store.clone(),
        source,
    };
    if lie_in_each_other(&path, &config.store) {
        return Err(stopped(SeedError::InsideStore { path }));
    }
    let files = open_directory(&config.store)?;
    let backing: Arc<dyn Backing> = Arc::clone(&files) as Arc<dyn Backing>;
    let mut places = ImportPlaces::of_directories(files, seed).map_err(stopped)?;
    let options = ImportOptions {
        seed: path.display().to_string(),
        way: request.way,
        datastore: config.uuid,
        log: LogOptions::default(),
        sync_after: SyncAfter::default(),
    };
    let mut snapshot = None;
    let mut settle = |manifest: &SeedManifest| {
        snapshot = Some(manifest.snapshot.clone());
        contact::begin(backing.as_ref(), manifest.snapshot.time)?;
        begin_of_seed(backing.as_ref(), manifest)
    };
    let summary = import(&mut places, &options, watch, &mut settle).map_err(stopped)?;
    forget_earlier_store(config, &config.store, backing)?;
    Ok(Imported { summary, snapshot })
}

/// Whether one of two directories lies in the other one.
fn lie_in_each_other(seed: &Path, store: &Path) -> bool {
    let store = store.canonicalize();
    store.is_ok_and(|store| seed.starts_with(&store) || store.starts_with(seed))
}
