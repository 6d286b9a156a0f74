//! The source of an export: a store that no node has open, at present or as one of its snapshots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_intentlog::LogOptions;
use lockstep_types::SnapshotId;
use lockstep_types::backing::Backing;

use super::error::ExportError;
use crate::backing::boot::boot_id;
use crate::backing::os_backing::OsBacking;
use crate::error::StoreError;
use crate::namespace::snapshot_list::SnapshotBytes;
use crate::store::{Access, FallbackAccess, MarkTableSizes, OpenOptions, SnapshotAccess, Store};
use crate::view::StoreView;

/// The state of a store that is written out.
#[derive(Clone, Copy, Debug)]
pub struct ExportSource<'a> {
    /// The directory of the store.
    pub store: &'a Path,
    /// The name of a snapshot; `None` for the present state.
    pub at: Option<&'a str>,
}

impl<'a> From<&'a Path> for ExportSource<'a> {
    fn from(store: &'a Path) -> Self {
        Self { store, at: None }
    }
}

impl<'a> From<&'a PathBuf> for ExportSource<'a> {
    fn from(store: &'a PathBuf) -> Self {
        store.as_path().into()
    }
}

/// An opened source.
pub(super) struct OpenedSource {
    store: Store,
    snapshot: Option<SnapshotId>,
}

impl ExportSource<'_> {
    /// Opens the store, which is only read.
    pub(super) fn open(self) -> Result<OpenedSource, ExportError> {
        let store = open_store(self.store)?;
        let snapshot = self.at.map(|name| self.find(&store, name)).transpose()?;
        Ok(OpenedSource { store, snapshot })
    }

    pub(crate) fn find(self, store: &Store, name: &str) -> Result<SnapshotId, ExportError> {
        let snapshots = SnapshotAccess::of(store).list();
        let found = snapshots.iter().find(|(_, record)| record.name == name);
        let no_snapshot = || ExportError::NoSnapshot {
            path: self.store.into(),
            name: name.to_owned(),
            others: snapshots
                .iter()
                .map(|(_, record)| record.name.clone())
                .collect(),
        };
        found.map(|(id, _)| *id).ok_or_else(no_snapshot)
    }
}

impl OpenedSource {
    /// Whether a resync has changed the present state in part.
    pub fn is_mixed(&self) -> bool {
        let mixture = FallbackAccess::of(&self.store).is_mixed();
        self.snapshot.is_none() && mixture.unwrap_or(true)
    }

    /// Whether the state is that of a torn snapshot.
    pub fn is_torn(&self) -> bool {
        let record = self
            .snapshot
            .and_then(|id| SnapshotAccess::of(&self.store).get(id));
        record.is_some_and(|record| record.bytes == SnapshotBytes::Torn)
    }

    /// The view of the state.
    pub fn view(&self) -> Box<dyn StoreView + '_> {
        let snapshot = self
            .snapshot
            .map(|id| SnapshotAccess::of(&self.store).view(id));
        match snapshot.flatten() {
            Some(view) => Box::new(view),
            None => Box::new(self.store.tree()),
        }
    }
}

fn open_store(dir: &Path) -> Result<Store, ExportError> {
    let disk = |source| ExportError::store(dir)(StoreError::disk("open", ".")(source));
    let backing = OsBacking::open(dir).map_err(disk)?;
    backing
        .lock_for_reading()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => ExportError::InUse { path: dir.into() },
            _ => ExportError::store(dir)(StoreError::disk("lock", ".")(error)),
        })?;
    let backing: Arc<dyn Backing> = Arc::new(backing);
    let options = OpenOptions {
        datastore: None,
        boot: boot_id(),
        access: Access::Read,
        log: LogOptions::default(),
        marks: MarkTableSizes::default(),
    };
    let opened = Store::open(backing, &options).map_err(ExportError::store(dir))?;
    Ok(opened.store)
}
