//! Bodies: whole contents of freed files that a snapshot still sees.
//!
//! The content of a freed inode leaves its place in any case, since a resync may bring another inode of the same number. If a snapshot
//! sees the inode, the content moves into `bodies/`, and a record says up to which snapshot it is the content of that inode.
//!
//! Invariant: the mark of the freed inode is durable before the content moves, and goes after the record is written. So the next opening
//! finds the moved content of each mark, and writes the records that a stop has taken. The file has the name of a snapshot that sees the
//! content, and that name does not change.

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

/// The record of a body.
struct NotedBody {
    /// The last snapshot that sees the body: the label of the record.
    last: SnapshotId,
    /// The snapshot in the name of its file.
    file: SnapshotId,
}

/// The last value of a freed inode that a snapshot sees.
struct LastSeen {
    /// The label of the value.
    last: SnapshotId,
    /// The newest snapshot alive that sees the value.
    by: SnapshotId,
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
        let backing = content.disk().backing().as_ref();
        let freed = content.removal().freed();
        for ino in freed.iter().filter(|_| !is_active(Mutant::BodyUnrecovered)) {
            let Some(seen) = self.last_seen(*ino)? else {
                continue;
            };
            // While the content is in its place, a body is only the empty file before the move.
            if exists(backing, content_path(*ino))? {
                continue;
            }
            if self.body_since(*ino, seen.by)?.is_none()
                && let Some(file) = self.moved_body(backing, *ino, seen.last)?
            {
                self.note(*ino, seen.last, file)?;
            }
        }
        Ok(())
    }

    /// The file to which the content of an inode was moved before a stop, if no record names the file.
    ///
    /// The stop may have taken a deletion back that had begun when the content was moved. So the file may have the name of any snapshot up to the last one.
    fn moved_body(
        &self,
        backing: &dyn Backing,
        ino: Ino,
        last: SnapshotId,
    ) -> Result<Option<SnapshotId>, StoreError> {
        let snapshots = self.0.snapshots().all();
        let listed = snapshots.range(..=last).rev().map(|(id, _)| *id);
        // Earlier versions gave the file the name of the label.
        for id in std::iter::once(last).chain(listed) {
            if self.body_since(ino, id)?.is_some() {
                break;
            }
            if exists(backing, body_path(ino, id))? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Moves the content of a freed inode into `bodies/` if a snapshot sees the inode. Returns the directory that has it then.
    pub fn set_aside(&self, removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        let ino = removal.ino;
        let Some(seen) = self.last_seen(ino)? else {
            return Ok(None);
        };
        let noted = self.body_since(ino, seen.by)?.map(|body| body.file);
        // The label gives the file no name: a deletion moves values to another label, and a stop takes that back.
        let file = noted.unwrap_or(seen.by);
        let path = body_path(ino, file);
        let backing = removal.disk.backing().as_ref();
        if exists(backing, content_path(ino))? {
            if noted.is_some() && is_filled(backing, &path)? {
                // The content is that of another inode of this number, which no snapshot sees.
                return Ok(None);
            }
            let moved = move_content(removal, &path);
            moved.map_err(StoreError::disk("set aside", content_path(ino)))?;
        } else if !exists(backing, path.clone())? {
            // The inode had no content.
            return Ok(None);
        }
        if noted.is_none() {
            self.note(ino, seen.last, file)?;
        }
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

    /// Notes that a file has the content of an inode for the snapshots up to `last`, and to all that are deleted.
    ///
    /// Blocks of the content may have the label of a newer snapshot that is deleted, and an older snapshot sees them still: the body must not end
    /// before them.
    fn note(&self, ino: Ino, last: SnapshotId, file: SnapshotId) -> Result<(), StoreError> {
        let label = last.max(self.newest_label()?);
        self.put_record(ino, label, file)
    }

    fn put_record(&self, ino: Ino, label: SnapshotId, file: SnapshotId) -> Result<(), StoreError> {
        let key = keys::body(ino, label);
        self.0.apply([
            (keys::kept_index(label, &key), Some(Vec::new())),
            (key, Some(record::encode(&file))),
        ])
    }

    /// The value that the last change of an inode has kept, if a snapshot that is alive sees the inode with that value: the
    /// freeing of an inode is its last change.
    fn last_seen(&self, ino: Ino) -> Result<Option<LastSeen>, StoreError> {
        let range = keys::history_of(&keys::inode(ino), SnapshotId::FIRST);
        let mut last = None;
        self.0.scan_down(&range, &mut |key, _| {
            last = keys::snapshot_of(key);
            ControlFlow::Break(())
        })?;
        let Some(last) = last else {
            return Ok(None);
        };
        let Some((by, _)) = self.0.snapshots().newest_up_to(last) else {
            return Ok(None);
        };
        let Some(records) = self.0.at(by) else {
            return Ok(None);
        };
        let inode = records.inode(ino).map_err(crate::OpError::into_store)?;
        Ok(inode.map(|_| LastSeen { last, by }))
    }

    /// The newest snapshot alive up to `id` that sees an inode. Looks at the kept values of the inode, each of which is that of the newest snapshot up to its label.
    pub fn newest_seer(&self, ino: Ino, id: SnapshotId) -> Result<Option<SnapshotId>, StoreError> {
        let range = keys::history_of(&keys::inode(ino), SnapshotId::FIRST);
        let labels = self.0.keys(&range)?;
        let labels = labels.iter().rev().filter_map(|key| keys::snapshot_of(key));
        for label in std::iter::once(id).chain(labels) {
            let Some((by, _)) = self.0.snapshots().newest_up_to(label.min(id)) else {
                break;
            };
            if self.0.size_at(by, ino)?.is_some() {
                return Ok(Some(by));
            }
        }
        Ok(None)
    }

    /// Whether snapshot `id`, or a newer one, sees a body as the content of an inode.
    pub fn has_since(&self, ino: Ino, id: SnapshotId) -> Result<bool, StoreError> {
        if is_active(Mutant::KeepOfSuccessor) {
            return Ok(false);
        }
        Ok(self.body_since(ino, id)?.is_some())
    }

    /// The body that snapshot `id` sees as the content of an inode; `None` if that is the present content.
    pub fn body_at(
        &self,
        backing: &dyn Backing,
        ino: Ino,
        id: SnapshotId,
    ) -> Result<Option<BodyAt>, StoreError> {
        let Some(NotedBody { last, file }) = self.body_since(ino, id)? else {
            return Ok(None);
        };
        let path = body_path(ino, file);
        let content = backing.open(&path);
        let content = content.map_err(StoreError::disk("open", path))?;
        Ok(Some(BodyAt { last, content }))
    }

    /// The label of the body that snapshot `id` sees as the content of an inode; `None` if that is the present content.
    pub fn label_since(&self, ino: Ino, id: SnapshotId) -> Result<Option<SnapshotId>, StoreError> {
        Ok(self.body_since(ino, id)?.map(|body| body.last))
    }

    /// The content under the blocks that arrive for snapshot `id`, of an inode that is freed on both nodes: the body that this node has, or a new one without bytes. So no
    /// later content of this number shows through.
    pub fn of_arrival(
        &self,
        backing: &dyn Backing,
        ino: Ino,
        id: SnapshotId,
    ) -> Result<Arc<dyn BackingFile>, StoreError> {
        if let Some(body) = self.body_at(backing, ino, id)? {
            return Ok(body.content);
        }
        let path = body_path(ino, id);
        let made = backing.open_or_create(&path);
        let content = made.map_err(StoreError::disk("create", path))?;
        self.put_record(ino, id, id)?;
        Ok(content)
    }

    /// The record of the body that snapshot `id` sees.
    fn body_since(&self, ino: Ino, id: SnapshotId) -> Result<Option<NotedBody>, StoreError> {
        let range = KeyRange::inclusive(keys::body(ino, id), keys::body(ino, SnapshotId::LAST));
        let mut found = None;
        self.0.scan(&range, &mut |key, value| {
            found = keys::snapshot_of(key).zip(record::decode(value));
            ControlFlow::Break(())
        })?;
        Ok(found.map(|(last, file)| NotedBody { last, file }))
    }
}

fn exists(backing: &dyn Backing, path: String) -> Result<bool, StoreError> {
    let found = backing.exists(&path);
    found.map_err(StoreError::disk("look for", path))
}

/// Whether a body has bytes. A loss of power may take the move back, and leave its record and the empty file before the move.
fn is_filled(backing: &dyn Backing, path: &str) -> Result<bool, StoreError> {
    match backing.stat(path) {
        Ok(stat) => Ok(stat.length > 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::disk("stat", path)(error)),
    }
}

fn move_content(removal: &Removal<'_>, path: &str) -> io::Result<()> {
    // Also makes the directories.
    removal.disk.backing().open_or_create(path)?;
    removal.take(path)
}
