//! Why a datastore cannot be opened or closed.

use lockstep_fs::StoreError;
use lockstep_fs::poison::DiskFailure;
use lockstep_types::settings::Role;
use thiserror::Error;

use super::tables::TableError;
use crate::config::DatastoreConfig;

/// Why a datastore could not be opened.
#[derive(Debug, Error)]
pub enum DatastoreError {
    /// The store was refused.
    #[error("store {path}: {source}")]
    Store {
        /// Directory of the store.
        path: String,
        /// The error of the store.
        source: StoreError,
    },
    /// A table of writes in flight was refused.
    #[error("store {path}: {source}")]
    Table {
        /// Directory of the store.
        path: String,
        /// The error of the table.
        source: TableError,
    },
    /// A file of the store could not be used.
    #[error("store {path}: {source}")]
    Io {
        /// Directory of the store.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Another process has the store open.
    #[error("store {path} is in use by another node process: stop that one first")]
    InUse {
        /// Directory of the store.
        path: String,
    },
    /// The configured directory holds no store.
    #[error(
        "there is no store in {path}{what}\n  cure: {}if the datastore is new{}, make its store with \
         `lockstep create-store {name}`", mount_first(*.is_unfinished), or_replaced(*.role)
    )]
    NoStore {
        /// The configured directory.
        path: String,
        /// Name of the datastore.
        name: String,
        /// Role of this node.
        role: Role,
        /// The content of the directory, as a continuation of the path.
        what: &'static str,
        /// The directory holds the remains of an interrupted creation.
        is_unfinished: bool,
    },
    /// The store bears the mark of a failed disk, and cannot be read.
    #[error("store {path}: its disk failed {failure}; and now it cannot be read either: {source}")]
    Poisoned {
        /// Directory of the store.
        path: String,
        /// The failure in the mark.
        failure: DiskFailure,
        /// The error of the read.
        source: Box<Self>,
    },
}

/// The first cure for a missing store.
const fn mount_first(is_unfinished: bool) -> &'static str {
    if is_unfinished {
        ""
    } else {
        "most likely the disk that holds it is not mounted: mount it; or correct `store`; "
    }
}

/// The other case in which a new store may be made: the primary fills a secondary's store.
const fn or_replaced(role: Role) -> &'static str {
    match role {
        Role::Primary => "",
        Role::Secondary => ", or the disk of this secondary was replaced",
    }
}

pub(crate) fn refused(config: &DatastoreConfig) -> impl FnOnce(StoreError) -> DatastoreError {
    let path = config.store.display().to_string();
    |source| DatastoreError::Store { path, source }
}

pub(crate) fn table_refused(config: &DatastoreConfig) -> impl FnOnce(TableError) -> DatastoreError {
    let path = config.store.display().to_string();
    |source| DatastoreError::Table { path, source }
}

pub(crate) fn failed(config: &DatastoreConfig) -> impl FnOnce(std::io::Error) -> DatastoreError {
    let path = config.store.display().to_string();
    |source| DatastoreError::Io { path, source }
}
