//! Bodies: whole contents of freed files that a snapshot still sees.
//!
//! The content of a freed inode leaves its place in any case, since a resync may bring another inode of the same number. If a snapshot
//! sees the inode, the content moves into `bodies/`, and a record says up to which snapshot it is the content of that inode.
//!
//! Invariant: the mark of the freed inode is durable before the content moves, and goes after the record is written. So the next opening
//! finds the moved content of each mark, and writes the records that a stop has taken.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Ino, SnapshotId};

use crate::content::ContentStore;
use crate::content::before_change::Removal;
use crate::error::StoreError;
use crate::namespace::Namespace;
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::plan::View;
use crate::namespace::record;
use crate::paths::{body_path, content_path};

/// The content of an inode up to a snapshot.
pub struct BodyAt {
    /// The last snapshot that sees the content.
    pub last: SnapshotId,
    /// The content.
    pub content: Arc<dyn BackingFile>,
}

/// See the head of this file.
#[derive(Clone)]
pub struct Bodies(Arc<Namespace>);

impl Bodies {
    /// The bodies in these records.
    pub const fn new(namespace: Arc<Namespace>) -> Self {
        Self(namespace)
    }

    /// Writes the records that a stop of the process has taken: of freed inodes whose content was moved already.
    pub fn recover(&self, content: &ContentStore) -> Result<(), StoreError> {
        let backing = content.disk().backing();
        let freed = content.removal().freed();
        for ino in freed.iter().filter(|_| !is_active(Mutant::BodyUnrecovered)) {
            let Some(label) = self.last_seen(*ino)? else {
                continue;
            };
            let exists = |path: String| {
                let found = backing.exists(&path);
                found.map_err(StoreError::disk("look for", path))
            };
            // While the content is in its place, a body is only the empty file before the move.
            if !exists(content_path(*ino))? && exists(body_path(*ino, label))? {
                self.note(*ino, label)?;
            }
        }
        Ok(())
    }

    /// Moves the content of a freed inode into `bodies/` if a snapshot sees the inode. Returns the directory that has it then.
    pub fn set_aside(&self, removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        let ino = removal.ino;
        let Some(last_seen) = self.last_seen(ino)? else {
            return Ok(None);
        };
        // Blocks of the content may have the label of a newer snapshot that is deleted, and an older snapshot sees them still: the body must not end
        // before them.
        let label = last_seen.max(self.newest_label()?);
        let path = body_path(ino, label);
        let moved = move_content(removal, &path);
        if !moved.map_err(StoreError::disk("set aside", content_path(ino)))? {
            return Ok(None);
        }
        self.note(ino, label)?;
        let directory = path.rsplit_once('/').map_or(".", |(above, _)| above);
        Ok(Some(directory.to_owned()))
    }

    /// The newest label of all kept values.
    fn newest_label(&self) -> Result<SnapshotId, StoreError> {
        let mut newest = None;
        self.0
            .scan_down(&keys::table(keys::KEPT_INDEX), &mut |key, _| {
                newest = keys::label_of_index(key);
                ControlFlow::Break(())
            })?;
        Ok(newest.unwrap_or(SnapshotId::FIRST))
    }

    /// Notes that the content of an inode is the body of this label, for the snapshots up to the label.
    fn note(&self, ino: Ino, label: SnapshotId) -> Result<(), StoreError> {
        let key = keys::body(ino, label);
        self.0.apply([
            (keys::kept_index(label, &key), Some(Vec::new())),
            (key, Some(record::encode(&label))),
        ])
    }

    /// The label of the value that the last change of an inode has kept, if a snapshot that is alive sees the inode with that value: the
    /// freeing of an inode is its last change.
    fn last_seen(&self, ino: Ino) -> Result<Option<SnapshotId>, StoreError> {
        let range = keys::history_of(&keys::inode(ino), SnapshotId::FIRST);
        let mut last = None;
        self.0.scan_down(&range, &mut |key, _| {
            last = keys::snapshot_of(key);
            ControlFlow::Break(())
        })?;
        let Some(last) = last else {
            return Ok(None);
        };
        let Some((seen_by, _)) = self.0.snapshots().newest_up_to(last) else {
            return Ok(None);
        };
        let Some(records) = self.0.at(seen_by) else {
            return Ok(None);
        };
        let inode = records.inode(ino).map_err(crate::OpError::into_store)?;
        Ok(inode.map(|_| last))
    }

    /// Whether snapshot `id`, or a newer one, sees a body as the content of an inode.
    pub fn has_since(&self, ino: Ino, id: SnapshotId) -> Result<bool, StoreError> {
        if is_active(Mutant::KeepOfSuccessor) {
            return Ok(false);
        }
        let range = KeyRange::inclusive(keys::body(ino, id), keys::body(ino, SnapshotId::LAST));
        Ok(!self.0.keys(&range)?.is_empty())
    }

    /// The body that snapshot `id` sees as the content of an inode; `None` if that is the present content.
    pub fn body_at(
        &self,
        backing: &dyn Backing,
        ino: Ino,
        id: SnapshotId,
    ) -> Result<Option<BodyAt>, StoreError> {
        let range = KeyRange::inclusive(keys::body(ino, id), keys::body(ino, SnapshotId::LAST));
        let mut found = None;
        self.0.scan(&range, &mut |key, value| {
            found = keys::snapshot_of(key).zip(record::decode(value));
            ControlFlow::Break(())
        })?;
        let Some((last, file)) = found else {
            return Ok(None);
        };
        let path = body_path(ino, file);
        let content = backing.open(&path);
        let content = content.map_err(StoreError::disk("open", path))?;
        Ok(Some(BodyAt { last, content }))
    }
}

/// Returns whether the content is at `path` now. An inode without content has none.
fn move_content(removal: &Removal<'_>, path: &str) -> io::Result<bool> {
    let backing = removal.disk.backing();
    if !backing.exists(&content_path(removal.ino))? {
        // Moved before a stop of the process, or never there.
        return backing.exists(path);
    }
    // Also makes the directories.
    backing.open_or_create(path)?;
    removal.take(path)?;
    Ok(true)
}
