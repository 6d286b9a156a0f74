//! The view of a store as a snapshot sees it.
//!
//! Records come from the history, content from the present files, the packs and the bodies. A read of a snapshot that is no longer
//! alive fails with `ESTALE`.

use std::sync::Arc;

use lockstep_types::backing::{BackingFile, BackingStat};
use lockstep_types::{Errno, Ino, SnapshotId};

use super::content_at::{ContentAt, KeptSource};
use crate::content::ContentStore;
use crate::error::{OpError, StoreError};
use crate::kv::Each;
use crate::namespace::RecordsAt;
use crate::namespace::keys::KeyRange;
use crate::namespace::plan::View;
use crate::namespace::record::{Body, Inode};
use crate::namespace::snapshot_list::SnapshotRecord;
use crate::view::{FileTimes, StoreView};

/// See the head of this file.
pub struct SnapshotView<'a> {
    records: RecordsAt<'a>,
    content: &'a ContentStore,
    source: KeptSource,
}

impl<'a> SnapshotView<'a> {
    /// The view of the snapshot of these records.
    pub(crate) const fn new(
        records: RecordsAt<'a>,
        content: &'a ContentStore,
        source: KeptSource,
    ) -> Self {
        Self {
            records,
            content,
            source,
        }
    }

    /// The snapshot.
    pub const fn id(&self) -> SnapshotId {
        self.records.id()
    }

    /// The record of the snapshot.
    pub fn snapshot(&self) -> &SnapshotRecord {
        self.records.snapshot()
    }

    /// The content of a regular file; `None` if the snapshot sees no such file.
    fn open(&self, ino: Ino) -> Result<Option<ContentAt>, StoreError> {
        let inode = self.records.inode(ino).map_err(OpError::into_store)?;
        let Some(Body::File { size }) = inode.map(|inode| inode.body) else {
            return Ok(None);
        };
        let id = self.id();
        // The present content first: an inode that is freed after that has its body then, which is the same file.
        let present = self.content.open_content_once(ino)?;
        let backing = self.content.disk().backing();
        let body = self.source.bodies.body_at(&**backing, ino, id)?;
        let (last, base) = match body {
            Some(body) => (body.last, Some(body.content)),
            None => (SnapshotId::LAST, present),
        };
        Ok(Some(ContentAt::new(
            self.source.clone(),
            ino,
            id..=last,
            size,
            base,
        )))
    }
}

impl View for SnapshotView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        self.records.get(key)
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError> {
        self.records.keys(range)
    }

    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        self.records.inode(ino)
    }
}

impl StoreView for SnapshotView<'_> {
    fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.records.scan(range, each)
    }

    fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.records.scan_down(range, each)
    }

    fn file_times(&self, ino: Ino) -> Result<Option<FileTimes>, OpError> {
        Ok(self.inode(ino)?.and_then(|inode| match inode.body {
            Body::File { size } => Some(FileTimes {
                size,
                mtime: inode.mtime,
                ctime: inode.ctime,
                last_write: None,
            }),
            _ => None,
        }))
    }

    fn content(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        let content = self.open(ino)?;
        Ok(content.map(|content| Arc::new(content) as Arc<dyn BackingFile>))
    }

    fn content_stat(&self, ino: Ino) -> Result<BackingStat, StoreError> {
        match self.open(ino)? {
            Some(content) => content.stat().map_err(StoreError::content("stat", ino)),
            None => Ok(BackingStat::default()),
        }
    }

    /// The content as of a snapshot has the length of its record in any case.
    fn check_content(&self, ino: Ino) -> Result<(), OpError> {
        match self.inode(ino)?.map(|inode| inode.body) {
            Some(Body::File { .. }) => Ok(()),
            Some(Body::Directory { .. }) => Err(Errno::IsDirectory.into()),
            Some(_) => Err(Errno::Invalid.into()),
            None => Err(Errno::Stale.into()),
        }
    }
}
