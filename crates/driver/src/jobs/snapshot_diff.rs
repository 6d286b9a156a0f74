//! The difference between two snapshots of a node, or between a snapshot and the present, in a node of any role.
//!
//! The answer comes in pages, and takes memory for one of them. A cursor names both moments and a place. Two snapshots of the datastore are the
//! same on both nodes, so the other node goes on at a cursor, too.

use std::str::FromStr;

use lockstep_fs::OpError;
use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotRecord};
use lockstep_fs::store::{
    DiffAttribute, DiffChange, DiffCursor, DiffEntry, DiffPage, DiffPlace, DiffReader, DiffWish,
    FallbackAccess, SnapshotAccess, SnapshotMark,
};
use lockstep_types::{Errno, NodeKind, SnapshotId};

use super::told_path::told_path;
use crate::engine::Engine;
use crate::report::{
    CommandFailure, DiffBegin, DiffBytes, DiffHead, DiffItem, DiffMoment, DiffPart, DiffQuestion,
};

/// Records that one page looks at. Its entries have as many names and runs of bytes at most, and a few more.
const PAGE_WORK: usize = 2048;
/// Most bytes of the paths and ranges of a page, unless it is the smallest one. As text and in hexadecimal digits they take five times as much at most,
/// and a message of the control socket may have 4 MiB.
const PAGE_BYTES_MAX: usize = 512 << 10;

/// The differences of the snapshots of a running datastore.
#[derive(Clone, Copy)]
pub(crate) struct DiffService<'a> {
    snapshots: SnapshotAccess<'a>,
    engine: &'a Engine,
}

impl<'a> DiffService<'a> {
    /// The differences of the snapshots of a node.
    pub fn of(engine: &'a Engine) -> Self {
        let snapshots = SnapshotAccess::of(&engine.store);
        Self { snapshots, engine }
    }

    /// Answers a question part by part, until `take` returns false.
    ///
    /// # Errors
    /// If there is no answer, or if it ends before all of it was told.
    pub fn tell(
        self,
        question: &DiffQuestion,
        take: &mut dyn FnMut(DiffPart) -> bool,
    ) -> Result<(), CommandFailure> {
        let mut cursor = self.begin(question)?;
        let store = &self.engine.store;
        let mut reader = DiffReader::at(store, &cursor).ok_or_else(|| self.gone())?;
        if !take(DiffPart::Head(self.head(&cursor)?)) {
            return Ok(());
        }
        let mut left = question.entries_max.unwrap_or(u64::MAX).max(1);
        loop {
            if self.engine.is_stopping() {
                return Err(CommandFailure::new(
                    "the node stops",
                    "go on with --cursor once it runs again, or on the other node",
                ));
            }
            let wish = DiffWish {
                work: usize::try_from(left).map_or(PAGE_WORK, |left| left.min(PAGE_WORK)),
                bytes: question.ranges,
            };
            let page = read_page(&mut reader, &cursor.place, wish);
            let page = page.map_err(|error| self.unreadable(&error))?;
            left = left.saturating_sub(page.entries.len() as u64);
            let is_end = page.next.is_none();
            if let Some(place) = page.next {
                cursor.place = place;
            }
            let part = DiffPart::Page {
                items: page.entries.into_iter().map(told).collect(),
                cursor: (!is_end).then(|| cursor.to_string()),
            };
            if !take(part) || is_end || left == 0 {
                return Ok(());
            }
        }
    }

    /// The place where the answer begins.
    fn begin(self, question: &DiffQuestion) -> Result<DiffCursor, CommandFailure> {
        let cursor = match &question.begin {
            DiffBegin::Cursor(text) => self.at(text)?,
            DiffBegin::Moments { from, to } => {
                let from = self.find(from)?;
                let to = to.as_deref().map(|to| self.find(to)).transpose()?;
                DiffCursor {
                    from,
                    to,
                    place: DiffPlace::BEGIN,
                }
            }
        };
        for mark in [Some(cursor.from), cursor.to].into_iter().flatten() {
            self.check(mark.id, question.accepts_torn)?;
        }
        match cursor.to {
            Some(to) => self.check_order(cursor.from.id, to.id)?,
            None => self.check_present()?,
        }
        Ok(cursor)
    }

    fn at(self, text: &str) -> Result<DiffCursor, CommandFailure> {
        let cursor = DiffCursor::from_str(text).map_err(|error| {
            let cure =
                "give a cursor that the command has printed, whole, or the names of the snapshots";
            CommandFailure::new(error.to_string(), cure)
        })?;
        let all = self.snapshots.all();
        let is_there = |mark: &SnapshotMark| {
            let record = all.get(&mark.id);
            record.is_some_and(|record| record.time == mark.time && !record.is_deleted)
        };
        if is_there(&cursor.from) && cursor.to.as_ref().is_none_or(is_there) {
            Ok(cursor)
        } else {
            Err(self.gone())
        }
    }

    /// The snapshot with a name.
    fn find(self, name: &str) -> Result<SnapshotMark, CommandFailure> {
        let datastore = self.engine.name();
        let all = self.snapshots.all();
        let named = || all.iter().filter(|(_, record)| record.name == name);
        if let Some((id, record)) = named().find(|(_, record)| !record.is_deleted) {
            let (id, time) = (*id, record.time);
            return Ok(SnapshotMark { id, time });
        }
        let cause = if named().next().is_some() {
            format!("snapshot {name:?} is deleted, and its space is being freed")
        } else {
            format!("this node has no snapshot {name:?}")
        };
        Err(CommandFailure::new(
            cause,
            format!("see the snapshots of this node with `lockstep snapshot list {datastore}`"),
        ))
    }

    fn check(self, id: SnapshotId, accepts_torn: bool) -> Result<(), CommandFailure> {
        match self.snapshots.all().get(&id) {
            Some(record) => check_bytes(id, record, accepts_torn),
            None => Err(self.gone()),
        }
    }

    fn check_order(self, from: SnapshotId, to: SnapshotId) -> Result<(), CommandFailure> {
        if from <= to {
            return Ok(());
        }
        Err(CommandFailure::new(
            "the first snapshot is newer than the second one",
            format!(
                "name the older one first, as `lockstep snapshot list {}` lists them",
                self.engine.name()
            ),
        ))
    }

    /// Refuses a present that shows no moment.
    fn check_present(self) -> Result<(), CommandFailure> {
        match FallbackAccess::of(&self.engine.store).is_mixed() {
            Ok(false) => Ok(()),
            Ok(true) => Err(CommandFailure::new(
                "a resync is changing the copy of this node: its present state is of no moment",
                format!(
                    "name a second snapshot, ask the other node, or wait: `lockstep wait {} --in-sync`",
                    self.engine.name()
                ),
            )),
            Err(error) => Err(self.unreadable(&error.into())),
        }
    }

    fn head(self, cursor: &DiffCursor) -> Result<DiffHead, CommandFailure> {
        let moment = |mark: &SnapshotMark| {
            let record = self.snapshots.get(mark.id);
            let record = record.ok_or_else(|| self.gone())?;
            Ok(moment(mark.id, &record))
        };
        Ok(DiffHead {
            from: moment(&cursor.from)?,
            to: cursor.to.as_ref().map(moment).transpose()?,
        })
    }

    /// A snapshot has gone that was there, or was named by a cursor.
    fn gone(self) -> CommandFailure {
        CommandFailure::new(
            "one of the two snapshots is deleted, or is not on this node",
            format!(
                "choose two of `lockstep snapshot list {}`, and ask from the begin",
                self.engine.name()
            ),
        )
    }

    fn unreadable(self, error: &OpError) -> CommandFailure {
        if error.errno() == Errno::Stale {
            return self.gone();
        }
        let cure = "see \"A store is damaged\" in docs/operations/disks.md";
        CommandFailure::new(error.to_string(), cure)
    }
}

/// Reads a page that fits a message: a smaller one where paths are long.
fn read_page(
    reader: &mut DiffReader<'_>,
    place: &DiffPlace,
    wish: DiffWish,
) -> Result<DiffPage, OpError> {
    let mut wish = wish;
    loop {
        let page = reader.page(place, wish)?;
        let bytes: usize = page.entries.iter().map(bytes_of).sum();
        if bytes <= PAGE_BYTES_MAX || wish.work <= 1 {
            return Ok(page);
        }
        wish.work /= 4;
    }
}

fn bytes_of(entry: &DiffEntry) -> usize {
    let from = entry.from.as_ref().map_or(0, Vec::len);
    64 + entry.path.len() + from + 24 * entry.ranges.len()
}

/// Refuses a snapshot whose bytes are not all on this node.
fn check_bytes(
    id: SnapshotId,
    record: &SnapshotRecord,
    accepts_torn: bool,
) -> Result<(), CommandFailure> {
    let name = &record.name;
    match record.bytes {
        SnapshotBytes::Missing => Err(CommandFailure::new(
            format!("the other node has made snapshot {name:?} alone: this node does not have it"),
            "ask the other node",
        )),
        SnapshotBytes::Torn if !accepts_torn => Err(CommandFailure::new(
            format!(
                "this machine has lost its power before snapshot {name:?} was settled: some bytes may be of an earlier moment"
            ),
            if id.is_local() {
                "add --accept-torn: only this node has the snapshot"
            } else {
                "ask the other node; or add --accept-torn for the bytes of this node"
            },
        )),
        SnapshotBytes::Torn | SnapshotBytes::Settled | SnapshotBytes::Unsettled => Ok(()),
    }
}

fn moment(id: SnapshotId, record: &SnapshotRecord) -> DiffMoment {
    DiffMoment {
        name: record.name.clone(),
        osn: id.to_string(),
        time: record.time.utc(),
    }
}

fn told(entry: DiffEntry) -> DiffItem {
    let (path, path_hex) = told_path(&entry.path);
    let (old_path, old_path_hex) = entry.from.as_deref().map(told_path).unzip();
    let ranges = entry.ranges.into_iter().map(|range| DiffBytes {
        offset: range.bytes.start,
        length: range.bytes.end - range.bytes.start,
        zeros: range.is_zero,
    });
    let attributes = entry.attributes.into_iter().map(attribute);
    let (ino, kind) = entry.node;
    DiffItem {
        change: change(entry.change).to_owned(),
        path,
        path_hex,
        old_path,
        old_path_hex: old_path_hex.flatten(),
        inode: ino.get(),
        kind: word(kind).to_owned(),
        size: entry.size,
        attributes: attributes.map(str::to_owned).collect(),
        xattrs: entry.xattrs,
        ranges: ranges.collect(),
        continued: entry.continued,
    }
}

const fn change(change: DiffChange) -> &'static str {
    match change {
        DiffChange::Created => "created",
        DiffChange::Deleted => "deleted",
        DiffChange::Renamed => "renamed",
        DiffChange::Linked => "linked",
        DiffChange::Unlinked => "unlinked",
        DiffChange::Changed => "changed",
    }
}

const fn word(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::File => "file",
        NodeKind::Directory => "directory",
        NodeKind::Symlink => "symlink",
        NodeKind::Fifo => "fifo",
        NodeKind::Socket => "socket",
        NodeKind::CharDevice => "char_device",
        NodeKind::BlockDevice => "block_device",
    }
}

const fn attribute(attribute: DiffAttribute) -> &'static str {
    match attribute {
        DiffAttribute::Mode => "mode",
        DiffAttribute::Flags => "flags",
        DiffAttribute::Owner => "owner",
        DiffAttribute::Group => "group",
        DiffAttribute::Links => "links",
        DiffAttribute::Size => "size",
        DiffAttribute::Atime => "atime",
        DiffAttribute::Mtime => "mtime",
        DiffAttribute::Ctime => "ctime",
        DiffAttribute::Target => "target",
        DiffAttribute::Device => "device",
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{Ino, SnapshotKind, Timestamp};

    use super::*;

    fn snapshot(local: u8, bytes: SnapshotBytes) -> (SnapshotId, SnapshotRecord) {
        let record = SnapshotRecord {
            name: "a".to_owned(),
            time: Timestamp::default(),
            kind: SnapshotKind::User,
            inos_below: 2,
            is_deleted: false,
            bytes,
            holds: Vec::new(),
            serial: 0,
        };
        let id = SnapshotId {
            local,
            ..SnapshotId::FIRST
        };
        (id, record)
    }

    #[test]
    fn a_snapshot_that_is_not_whole_here_is_refused_with_the_next_step() {
        let check = |local, bytes, accepts_torn| {
            let (id, record) = snapshot(local, bytes);
            check_bytes(id, &record, accepts_torn).map_err(|failure| failure.cure)
        };
        for whole in [SnapshotBytes::Settled, SnapshotBytes::Unsettled] {
            assert_eq!(check(0, whole, false), Ok(()));
        }
        let missing = check(0, SnapshotBytes::Missing, true);
        assert_eq!(missing, Err("ask the other node".to_owned()));
        let torn = check(0, SnapshotBytes::Torn, false).unwrap_err();
        assert!(torn.contains("ask the other node"), "{torn}");
        let own = check(1, SnapshotBytes::Torn, false).unwrap_err();
        assert!(own.contains("only this node"), "{own}");
        assert_eq!(check(1, SnapshotBytes::Torn, true), Ok(()));
    }

    #[test]
    fn an_entry_is_told_with_all_bytes_of_its_names() {
        let entry = DiffEntry {
            change: DiffChange::Renamed,
            path: b"new\xff".to_vec(),
            from: Some(b"old".to_vec()),
            node: (Ino::ROOT, NodeKind::CharDevice),
            size: None,
            attributes: vec![DiffAttribute::Ctime],
            xattrs: true,
            ranges: vec![],
            continued: false,
        };
        let item = told(entry);
        assert_eq!((&*item.change, &*item.kind), ("renamed", "char_device"));
        assert_eq!(item.path_hex.as_deref(), Some("6e6577ff"));
        assert_eq!(
            (item.old_path.as_deref(), item.old_path_hex),
            (Some("old"), None)
        );
        assert_eq!(item.attributes, ["ctime"]);
    }
}
