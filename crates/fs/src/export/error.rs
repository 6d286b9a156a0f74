//! Errors of an export.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::{OpError, StoreError};

/// Why an export stopped. The store is as it was; the destination may hold a part of the tree.
#[derive(Debug, Error)]
pub enum ExportError {
    /// A node has the store open.
    #[error("the store {} is in use: stop its node first", path.display())]
    InUse {
        /// The store's directory.
        path: PathBuf,
    },
    /// The store has no snapshot of this name.
    #[error("the store {} has no snapshot {name}{}", path.display(), known(others))]
    NoSnapshot {
        /// The store's directory.
        path: PathBuf,
        /// The name.
        name: String,
        /// The names that there are.
        others: Vec<String>,
    },
    /// The snapshot was deleted while it was written out.
    #[error("the snapshot {name} was deleted meanwhile; a fallback ends with the resync")]
    SnapshotGone {
        /// The name.
        name: String,
    },
    /// Only a snapshot of the datastore makes a seed.
    #[error(
        "{name} is a snapshot of this node's own copy, and a seed is made of one of the datastore\n  cure: make one with `lockstep \
         snapshot create`"
    )]
    NotOfDatastore {
        /// The name.
        name: String,
    },
    /// No seed is made of a snapshot that lacks bytes.
    #[error(
        "the snapshot {name} is {why}\n  cure: export the seed on the other node, if `lockstep snapshot list` calls the snapshot settled \
         there, or export a newer snapshot"
    )]
    Unfit {
        /// The name.
        name: String,
        /// The state of its bytes.
        why: &'static str,
    },
    /// The caller has ended the export, or the node stops.
    #[error("the export was stopped")]
    Stopped,
    /// The store cannot be read.
    #[error("cannot read the store {}: {source}", path.display())]
    Store {
        /// The store's directory.
        path: PathBuf,
        /// The defect.
        source: StoreError,
    },
    /// One file of the datastore cannot be read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// Its path in the datastore, escaped.
        name: String,
        /// The defect.
        source: OpError,
    },
    /// The destination exists and is not an empty directory.
    #[error("{} is not an empty directory: give a new name, or empty it first", path.display())]
    NotEmpty {
        /// The destination.
        path: PathBuf,
    },
    /// A list of another export would be overwritten.
    #[error("the manifest {} exists: name another, or move it away", path.display())]
    ManifestExists {
        /// The file.
        path: PathBuf,
    },
    /// The partial copy of an interrupted export exists.
    #[error("{} is the partial copy of an interrupted export: remove it, then export again", path.display())]
    PartExists {
        /// The file or directory.
        path: PathBuf,
    },
    /// The export stopped with a part of the tree written.
    #[error("{source}\n  the copy in {} is INCOMPLETE: remove it, then export again", path.display())]
    Incomplete {
        /// Where the part lies.
        path: PathBuf,
        /// Why it stopped.
        source: Box<Self>,
    },
    /// The destination lies in the store.
    #[error("{} lies in the store itself: export to a place outside of it", path.display())]
    InsideStore {
        /// The destination.
        path: PathBuf,
    },
    /// The destination, or the manifest, cannot be written.
    #[error("cannot {operation} {name}: {source}{}", advice(source))]
    Write {
        /// The operation.
        operation: &'static str,
        /// The file, escaped.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The names of snapshots, behind the words that there is none of a name.
fn known(names: &[String]) -> String {
    if names.is_empty() {
        ", and no other one".to_owned()
    } else {
        format!(": it has {}", names.join(", "))
    }
}

impl ExportError {
    pub(crate) fn write<E: Into<io::Error>>(
        operation: &'static str,
        name: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let name = name.into();
        move |source| Self::Write {
            operation,
            name,
            source: source.into(),
        }
    }

    /// The same error, with the name of the destination that the caller gave.
    pub(crate) fn about(self, dest: &Path) -> Self {
        match self {
            Self::InsideStore { .. } => Self::InsideStore { path: dest.into() },
            other => other,
        }
    }

    /// Whether a file of the datastore could not be read.
    pub(crate) const fn is_of_reading(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    pub(crate) fn store(path: &Path) -> impl FnOnce(StoreError) -> Self {
        let path = path.to_owned();
        move |source| Self::Store { path, source }
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => " (run as root, who alone can keep owners and devices)",
        io::ErrorKind::NotFound => " (the directory above it must exist)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (export to a disk with more room: the copy takes as much as the data)"
        }
        io::ErrorKind::ReadOnlyFilesystem => " (choose a destination that can be written)",
        io::ErrorKind::Unsupported => {
            " (the file system of the destination cannot hold this; choose another, such as ext4)"
        }
        _ => "",
    }
}
