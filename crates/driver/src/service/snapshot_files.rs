//! The files of snapshots, as a mount shows them below `.lockstep/snapshots` in its root: read-only, and with the inode numbers of
//! [`SnapshotIno`].
//!
//! The root lists no `.lockstep`: a program that walks the tree does not meet each file once per snapshot. A file of that name in the
//! datastore itself, of an earlier version say, is shown in the place of the snapshots until it has another name.
//!
//! Only snapshots whose bytes this node has whole are shown. An answer about a deleted one is `ESTALE`.

use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_fs::snapshot_list::{SnapshotKind, SnapshotRecord};
use lockstep_fs::store::{SeekFor, SnapshotAccess, SnapshotView};
use lockstep_fs::{OpError, StoreView};
use lockstep_types::{
    Attr, Errno, FileName, Ino, InodeFlags, MetaRequest, NodeKind, SnapshotId, SnapshotIno,
    Timestamp,
};

use crate::client::DirEntry;

/// The directory of the snapshots below the entrance.
const SNAPSHOTS: &[u8] = b"snapshots";

/// Permissions of these two directories: those of the files below decide who reads them.
const OPEN_TO_ALL: u32 = 0o555;

/// The first cookie of a listing that is not that of `.` or `..`.
const FIRST_COOKIE: u64 = 3;

/// The files of the snapshots of one node.
#[derive(Clone, Copy)]
pub(super) struct SnapshotFiles<'a>(SnapshotAccess<'a>);

/// A snapshot that is shown.
type Shown = (SnapshotId, Arc<SnapshotRecord>);

impl<'a> SnapshotFiles<'a> {
    /// The files of the snapshots of a node.
    pub const fn of(snapshots: SnapshotAccess<'a>) -> Self {
        Self(snapshots)
    }

    /// The answer to a change that is about a file of a snapshot; `None` for any other one. `has_own` says whether the datastore itself has
    /// a file with the name of the entrance in its root.
    pub fn refusal(request: &MetaRequest, has_own: impl Fn(&FileName) -> bool) -> Option<Errno> {
        let is_past = |ino: Ino| SnapshotIno::of(ino).is_some();
        let is_taken =
            |parent, name: &FileName| SnapshotIno::is_entrance(parent, name) && !has_own(name);
        match request {
            MetaRequest::Link { ino, parent, .. } if is_past(*ino) && !is_past(*parent) => {
                return Some(Errno::CrossDevice);
            }
            MetaRequest::Rename {
                parent, new_parent, ..
            } if is_past(*parent) || is_past(*new_parent) => return Some(Errno::ReadOnly),
            MetaRequest::Create { parent, name, .. } | MetaRequest::Link { parent, name, .. }
                if is_taken(*parent, name) =>
            {
                return Some(Errno::Exists);
            }
            MetaRequest::Unlink { parent, name } | MetaRequest::Rmdir { parent, name }
                if is_taken(*parent, name) =>
            {
                return Some(Errno::Busy);
            }
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                ..
            } if is_taken(*parent, name) || is_taken(*new_parent, new_name) => {
                return Some(Errno::Busy);
            }
            _ => {}
        }
        let (_, ino) = request.describe();
        ino.is_some_and(is_past).then_some(Errno::ReadOnly)
    }
}

/// The snapshots, by name and by number.
impl<'a> SnapshotFiles<'a> {
    /// The newest of the snapshots that are shown and fit.
    fn newest(self, fits: impl Fn(&SnapshotRecord) -> bool) -> Option<Shown> {
        let all = self.0.all();
        let mut newest_first = all.iter().rev();
        let found = newest_first.find(|(id, record)| is_shown(**id, record) && fits(record));
        found.map(|(id, record)| (*id, Arc::clone(record)))
    }

    /// The snapshot that has a file.
    fn snapshot_of(self, at: SnapshotIno) -> Result<Shown, OpError> {
        let found = self.newest(|record| at.is_of(record.serial));
        Ok(found.ok_or(Errno::Stale)?)
    }

    /// The generation of the inode number of a file.
    pub fn generation(self, at: SnapshotIno) -> Result<u64, OpError> {
        if at.is_above() {
            return Ok(0);
        }
        let (_, record) = self.snapshot_of(at)?;
        Ok(SnapshotIno::generation(record.serial))
    }

    /// Looks at a file with the view of its snapshot.
    ///
    /// # Errors
    /// `Stale` once the snapshot is deleted.
    fn look<T>(
        self,
        at: SnapshotIno,
        look: impl FnOnce(&SnapshotView<'a>, u32) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let (id, record) = self.snapshot_of(at)?;
        let view = self.0.view(id).ok_or(Errno::Stale)?;
        let looked = look(&view, record.serial);
        match self.0.get(id) {
            Some(_) => looked,
            None => Err(Errno::Stale.into()),
        }
    }
}

/// Attributes and names.
impl SnapshotFiles<'_> {
    /// Attributes of the directory at the entrance.
    pub fn entrance(self) -> Attr {
        self.above(SnapshotIno::LOCKSTEP)
    }

    /// Attributes of a directory above the snapshots. Each change of the list shows as another time.
    fn above(self, at: SnapshotIno) -> Attr {
        let newest = self.newest(|_| true);
        let time = Timestamp {
            secs: newest.map_or(0, |(_, record)| record.time.secs),
            nanos: u32::try_from(self.0.changes() % 1_000_000_000).unwrap_or(0),
        };
        Attr {
            ino: at.number(),
            kind: NodeKind::Directory,
            mode: OPEN_TO_ALL,
            flags: InodeFlags::NONE,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    /// Attributes of a file.
    pub fn getattr(self, at: SnapshotIno) -> Result<Attr, OpError> {
        if at.is_above() {
            return Ok(self.above(at));
        }
        self.look(at, |view, serial| shown_as(view.getattr(at.ino())?, serial))
    }

    /// Attributes of the file that a name leads to.
    pub fn lookup(self, parent: SnapshotIno, name: &FileName) -> Result<Attr, OpError> {
        if parent == SnapshotIno::LOCKSTEP {
            let is_there = name.as_bytes() == SNAPSHOTS;
            let found = is_there.then(|| self.above(SnapshotIno::SNAPSHOTS));
            return Ok(found.ok_or(Errno::NoEntry)?);
        }
        if parent.is_above() {
            let named = |record: &SnapshotRecord| record.name.as_bytes() == name.as_bytes();
            let (_, record) = self.newest(named).ok_or(Errno::NoEntry)?;
            return self.getattr(root_of(&record)?);
        }
        self.look(parent, |view, serial| {
            shown_as(view.lookup(parent.ino(), name)?, serial)
        })
    }

    /// Attributes of the directory above a directory other than that at the entrance.
    pub fn lookup_parent(self, directory: SnapshotIno) -> Result<Attr, OpError> {
        if directory.is_above() {
            return Ok(self.entrance());
        }
        if directory.ino() == Ino::ROOT {
            return Ok(self.above(SnapshotIno::SNAPSHOTS));
        }
        self.look(directory, |view, serial| {
            let parent = view.parent(directory.ino())?;
            shown_as(view.getattr(parent)?, serial)
        })
    }

    /// The entries of a directory after a position.
    pub fn readdir(
        self,
        directory: SnapshotIno,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        if directory == SnapshotIno::LOCKSTEP {
            if after == 0 {
                let _ = each(DirEntry {
                    cookie: FIRST_COOKIE,
                    ino: SnapshotIno::SNAPSHOTS.number(),
                    kind: NodeKind::Directory,
                    name: FileName::new(SNAPSHOTS)?,
                });
            }
            return Ok(());
        }
        if directory.is_above() {
            return self.list(after, each);
        }
        self.look(directory, |view, serial| {
            let mut unshown = None;
            view.readdir(directory.ino(), after, &mut |cookie, entry| {
                let Some(at) = SnapshotIno::new(serial, entry.ino) else {
                    unshown = Some(Errno::TooBig);
                    return ControlFlow::Break(());
                };
                each(DirEntry {
                    cookie,
                    ino: at.number(),
                    kind: entry.kind,
                    name: entry.name,
                })
            })?;
            unshown.map_or(Ok(()), |errno| Err(errno.into()))
        })
    }

    /// The snapshots after a position, the newest first. Their serial numbers give the positions.
    fn list(
        self,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), OpError> {
        let all = self.0.all();
        for (id, record) in all.iter().rev() {
            let cookie = FIRST_COOKIE + u64::from(record.serial);
            if !is_shown(*id, record) || (after != 0 && cookie >= after) {
                continue;
            }
            let entry = DirEntry {
                cookie,
                ino: root_of(record)?.number(),
                kind: NodeKind::Directory,
                name: FileName::new(record.name.as_bytes())?,
            };
            if each(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Target of a symbolic link.
    pub fn readlink(self, at: SnapshotIno) -> Result<Vec<u8>, OpError> {
        if at.is_above() {
            return Err(Errno::Invalid.into());
        }
        self.look(at, |view, _| view.readlink(at.ino()))
    }

    /// Value of an extended attribute.
    pub fn getxattr(self, at: SnapshotIno, name: &[u8]) -> Result<Vec<u8>, OpError> {
        if at.is_above() {
            return Err(Errno::NoData.into());
        }
        self.look(at, |view, _| view.getxattr(at.ino(), name))
    }

    /// Names of all extended attributes.
    pub fn listxattr(self, at: SnapshotIno) -> Result<Vec<Vec<u8>>, OpError> {
        if at.is_above() {
            return Ok(Vec::new());
        }
        self.look(at, |view, _| view.listxattr(at.ino()))
    }
}

/// Content.
impl SnapshotFiles<'_> {
    /// Next data or hole of a file.
    pub fn seek(self, at: SnapshotIno, offset: u64, target: SeekFor) -> Result<u64, OpError> {
        self.look_at_content(at, |view, size| {
            if offset >= size {
                return Err(Errno::NoDevice.into());
            }
            match target {
                SeekFor::Data => {
                    let data = view.next_data(at.ino(), offset)?;
                    Ok(data.filter(|at| *at < size).ok_or(Errno::NoDevice)?)
                }
                SeekFor::Hole => Ok(view.next_hole(at.ino(), offset)?.min(size)),
            }
        })
    }

    /// Reads bytes of a file.
    pub fn read(self, at: SnapshotIno, offset: u64, length: usize) -> Result<Vec<u8>, OpError> {
        self.look_at_content(at, |view, size| {
            let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let mut bytes = vec![0; length.min(left)];
            view.read_raw(at.ino(), offset, &mut bytes)?;
            Ok(bytes)
        })
    }

    /// The same for a regular file, with its size.
    fn look_at_content<T>(
        self,
        at: SnapshotIno,
        look: impl FnOnce(&SnapshotView<'_>, u64) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        if at.is_above() {
            return Err(Errno::IsDirectory.into());
        }
        self.look(at, |view, _| {
            view.check_content(at.ino())?;
            let times = view.file_times(at.ino())?.ok_or(Errno::Stale)?;
            look(view, times.size)
        })
    }
}

/// Whether a snapshot is one of the datastore, of which this node has all bytes, and not made for a while only.
fn is_shown(id: SnapshotId, record: &SnapshotRecord) -> bool {
    let is_made_for_arrival = record.kind == SnapshotKind::Arrival;
    record.is_taken(id) && record.is_whole() && !is_made_for_arrival
}

/// The root of a snapshot.
fn root_of(record: &SnapshotRecord) -> Result<SnapshotIno, OpError> {
    Ok(SnapshotIno::new(record.serial, Ino::ROOT).ok_or(Errno::TooBig)?)
}

/// Attributes of a file as the mount shows them.
fn shown_as(attr: Attr, serial: u32) -> Result<Attr, OpError> {
    let at = SnapshotIno::new(serial, attr.ino).ok_or(Errno::TooBig)?;
    Ok(Attr {
        ino: at.number(),
        ..attr
    })
}
