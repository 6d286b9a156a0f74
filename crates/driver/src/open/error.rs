//! Why a datastore cannot be opened or closed.

use lockstep_fs::StoreError;
use lockstep_fs::poison::Failure;
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
        /// Its directory.
        path: String,
        /// Why.
        source: StoreError,
    },
    /// A table of writes in flight was refused.
    #[error("store {path}: {source}")]
    Table {
        /// Directory of the store.
        path: String,
        /// Why.
        source: TableError,
    },
    /// A file of the store could not be used.
    #[error("store {path}: {source}")]
    Io {
        /// Its directory.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has the store open.
    #[error("store {path} is in use by another node process: stop that one first")]
    InUse {
        /// Its directory.
        path: String,
    },
    /// There is no store where the configuration says.
    #[error(
        "there is no store in {path}{what}\n  cure: {}if the datastore is new{}, make its store with \
         `lockstep create-store {name}`", mount_first(*.is_unfinished), or_replaced(*.role)
    )]
    NoStore {
        /// Where it was expected.
        path: String,
        /// Name of the datastore.
        name: String,
        /// What this node is for it.
        role: Role,
        /// What was found instead, in words that go on from the path.
        what: &'static str,
        /// That is what an interrupted creation has left.
        is_unfinished: bool,
    },
    /// The store bears the mark of a disk that failed, and cannot even be read.
    #[error("store {path}: its disk failed {failure}; and now it cannot be read either: {source}")]
    Poisoned {
        /// Its directory.
        path: String,
        /// What the mark says.
        failure: Failure,
        /// Why it cannot be read.
        source: Box<Self>,
    },
    /// The configuration gives the node another role than it had.
    #[error(
        "store {path} is the {found}'s, the configuration says {configured}: the roles of an \
         existing datastore cannot be changed yet; put role = \"{found}\" back, or take the data \
         out with `lockstep export`"
    )]
    RoleChanged {
        /// Its directory.
        path: String,
        /// By the store.
        found: &'static str,
        /// By the configuration.
        configured: &'static str,
    },
}

/// What to do first about a store that is not there.
const fn mount_first(is_unfinished: bool) -> &'static str {
    if is_unfinished {
        ""
    } else {
        "most likely the disk that holds it is not mounted: mount it; or correct `store`; "
    }
}

/// When else a new store may be made: a secondary's is filled from the primary.
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
