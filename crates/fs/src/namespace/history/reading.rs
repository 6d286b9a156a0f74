//! Reading the records as of a snapshot.
//!
//! As of a snapshot a record has the first kept value with a label from the snapshot on, else its present value; and no value at all if
//! the record is born after the snapshot ([`births`]). Sizes and times of files are those of the records: the moment of a snapshot has no
//! unflushed ones.
//!
//! Present values are read first, and the kept values of the same range afterwards: a change in between has kept the value that was
//! read. `removing` of the history is held shared from the first reading to the last: nothing that is kept goes in between. At the
//! end the snapshot is still alive, else the reader gets [`Errno::Stale`]. No lock is held while a callback runs.

use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_types::{Errno, Ino, SnapshotId};
use parking_lot::{Mutex, RwLock};

use super::births;
use super::kept;
use super::merge::{KeptPart, PastPiece, ScanPart};
use crate::error::{OpError, StoreError};
use crate::kv::memtable::Memtable;
use crate::kv::redb::RedbKv;
use crate::kv::{Direction, Each, KvError};
use crate::namespace::keys::{self, KeyRange};
use crate::namespace::plan::View;
use crate::namespace::record::{self, Inode};
use crate::namespace::snapshot_list::{SnapshotList, SnapshotRecord};

/// Records of the first piece of a scan, and about the most of a later one. Each piece takes whole chunks of the memtable, whose sizes
/// double from 64 on.
const ENTRIES_FIRST: usize = 64;
const ENTRIES_MAX: usize = 960;

/// A directory, and the cookie that it would have given out next as of a snapshot.
type NextCookie = (Ino, u64);

/// The records as of one snapshot. It may be used for long, by many threads: a snapshot that is deleted meanwhile refuses reads.
pub struct RecordsAt<'a> {
    records: &'a Memtable<RedbKv>,
    snapshots: &'a SnapshotList,
    removing: &'a RwLock<()>,
    id: SnapshotId,
    snapshot: Arc<SnapshotRecord>,
    /// The directory of the last entry: most entries come directory by directory.
    last_directory: Mutex<Option<NextCookie>>,
}

impl<'a> RecordsAt<'a> {
    /// The records as of snapshot `id`, which is alive.
    pub(super) const fn new(
        records: &'a Memtable<RedbKv>,
        (snapshots, removing): (&'a SnapshotList, &'a RwLock<()>),
        id: SnapshotId,
        snapshot: Arc<SnapshotRecord>,
    ) -> Self {
        Self {
            records,
            snapshots,
            removing,
            id,
            snapshot,
            last_directory: Mutex::new(None),
        }
    }

    /// The snapshot.
    pub const fn id(&self) -> SnapshotId {
        self.id
    }

    /// The record of the snapshot.
    pub fn snapshot(&self) -> &SnapshotRecord {
        &self.snapshot
    }

    /// Refuses once the snapshot is not alive any more. Records that were read before count.
    pub fn check_alive(&self) -> Result<(), Errno> {
        if self.snapshots.is_alive(self.id) {
            Ok(())
        } else {
            Err(Errno::Stale)
        }
    }

    /// Calls `each` with the records of a range of one replicated table, in the order of their keys, until `each` breaks. All of them
    /// are of the moment of the snapshot. Other tables are empty.
    pub fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.scan_in(Direction::Up, range, each)
    }

    /// The same from the last key to the first.
    pub fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.scan_in(Direction::Down, range, each)
    }

    fn scan_in(
        &self,
        direction: Direction,
        range: &KeyRange,
        each: &mut Each<'_>,
    ) -> Result<(), OpError> {
        let mut rest = self.without_new(range.clone())?;
        let mut entries = ENTRIES_FIRST;
        while !rest.is_empty() {
            let piece = self.read_piece(direction, &rest, entries)?;
            let passed = piece.for_each(&mut |key, value| {
                if self.is_born(key, value)? {
                    return Ok(ControlFlow::Continue(()));
                }
                Ok(each(key, value))
            })?;
            let Some(last) = piece.horizon().filter(|_| passed.is_continue()) else {
                break;
            };
            rest = match direction {
                Direction::Up => rest.after(last),
                Direction::Down => rest.before(last),
            };
            entries = (2 * entries + ENTRIES_FIRST).min(ENTRIES_MAX);
        }
        Ok(())
    }

    /// The part of a range whose keys do not say that they are born after the snapshot: a scan does not walk over records that came since.
    fn without_new(&self, range: KeyRange) -> Result<KeyRange, OpError> {
        let Some(table) = range
            .table()
            .filter(|table| keys::REPLICATED.contains(table))
        else {
            return Ok(KeyRange::none());
        };
        let mut range = range;
        if let Some(new) = Ino::new(self.snapshot.inos_below) {
            range = range.cut_at(&keys::of_table(table, new, &[]));
        }
        if table == keys::COOKIES
            && let Some(directory) = range.ino()
        {
            let next = self.next_cookie(directory)?;
            range = range.cut_at(&keys::cookie(directory, next));
        }
        Ok(range)
    }

    fn read_piece(
        &self,
        direction: Direction,
        range: &KeyRange,
        entries: usize,
    ) -> Result<PastPiece, OpError> {
        let _nothing_is_removed = self.removing.read();
        let mut present = ScanPart::default();
        self.walk(direction, range, &mut |key, value| {
            present.take_present(key, value, entries)
        })?;
        let range = match (present.cut_at(), direction) {
            (None, _) => range.clone(),
            (Some(last), Direction::Up) => range.clone().through(last),
            (Some(last), Direction::Down) => range.clone().starting_at(last),
        };
        let mut kept = KeptPart::new(self.id, direction, entries);
        self.walk(direction, &range.of_history(), &mut |key, value| {
            kept.take(key, value)
        })?;
        let kept = kept.finish()?;
        self.check_alive()?;
        Ok(PastPiece::new(direction, present, kept))
    }

    fn walk(
        &self,
        direction: Direction,
        range: &KeyRange,
        each: &mut Each<'_>,
    ) -> Result<(), KvError> {
        match direction {
            Direction::Up => self.records.scan(range.from(), range.to(), each),
            Direction::Down => self.records.scan_down(range.from(), range.to(), each),
        }
    }

    fn is_born(&self, key: &[u8], value: &[u8]) -> Result<bool, OpError> {
        let next_cookie = |directory| self.next_cookie(directory);
        births::is_born(key, value, self.snapshot.inos_below, next_cookie)
    }

    fn next_cookie(&self, directory: Ino) -> Result<u64, OpError> {
        if let Some((last, next)) = *self.last_directory.lock()
            && last == directory
        {
            return Ok(next);
        }
        let _nothing_is_removed = self.removing.read();
        let next = births::next_cookie(self.records, directory, self.id)?;
        self.check_alive()?;
        *self.last_directory.lock() = Some((directory, next));
        Ok(next)
    }
}

impl View for RecordsAt<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        if !keys::is_replicated(key) || births::is_new_number(key, self.snapshot.inos_below) {
            self.check_alive()?;
            return Ok(None);
        }
        let value = {
            let _nothing_is_removed = self.removing.read();
            let value = kept::as_of(self.records, key, self.id)?;
            self.check_alive()?;
            value
        };
        match value {
            Some(value) if self.is_born(key, &value)? => Ok(None),
            value => Ok(value),
        }
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError> {
        let mut keys = Vec::new();
        self.scan(range, &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    /// The record as it was at the moment of the snapshot: no unflushed size or time belongs to it.
    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        let key = keys::inode(ino);
        let Some(bytes) = self.get(&key)? else {
            return Ok(None);
        };
        let inode = record::decode(&bytes).ok_or_else(|| StoreError::unreadable(&key))?;
        Ok(Some(inode))
    }
}
