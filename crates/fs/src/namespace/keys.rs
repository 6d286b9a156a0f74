//! Keys of the namespace in the key-value store: a table letter, then big-endian numbers, so that
//! the order of keys is the order of scans. `docs/on-disk.md` lists them.
//!
//! Tables `i d c x o` are the namespace, the same on both nodes. Tables `g m` are this node's own. So are, for now, those of
//! snapshots, `b e h p v` ([`OF_SNAPSHOTS`]): the key of the kept value of a record begins with the key of the record, so both are in one order. (A
//! name has no zero byte, and the bytes of a [`SnapshotId`] begin with zeros.)

use std::ops::Bound;

use lockstep_types::{Ino, SnapshotId};

/// Inode records, by inode.
pub const INODES: u8 = b'i';
/// Directory entries, by directory and name.
pub const ENTRIES: u8 = b'd';
/// Directory entries, by directory and cookie: the order of `readdir`.
pub const COOKIES: u8 = b'c';
/// Extended attributes, by inode and name.
pub const XATTRS: u8 = b'x';
/// Inodes that have lost their last name: they may still be open, or are in the trash.
pub const ORPHANS: u8 = b'o';
/// Freed inodes whose content is still to be removed from this node's disk.
pub const GARBAGE: u8 = b'g';
/// Snapshots, by the moment that they show.
pub const SNAPSHOTS: u8 = b'p';
/// Values of records that snapshots see, by record and the newest snapshot that sees the value.
pub const HISTORY: u8 = b'h';
/// Blocks of files that snapshots see, by inode, chunk and the newest snapshot that sees the blocks.
pub const KEPT_BLOCKS: u8 = b'v';
/// Contents of freed inodes that snapshots see, by inode and the newest snapshot that sees the content.
pub const BODIES: u8 = b'b';
/// The keys of kept values, by the newest snapshot that sees the value.
pub const KEPT_INDEX: u8 = b'e';
/// This node's bookkeeping.
pub const LOCAL: u8 = b'm';

/// The tables that are the same on both nodes, in the order they are sent in a resync.
pub const REPLICATED: [u8; 5] = [COOKIES, ENTRIES, INODES, ORPHANS, XATTRS];

/// The tables of snapshots, and of the values that they see: this node's own. All are empty once every snapshot is deleted.
pub const OF_SNAPSHOTS: [u8; 5] = [BODIES, KEPT_INDEX, HISTORY, SNAPSHOTS, KEPT_BLOCKS];

/// Number of the checkpoint record under [`LOCAL`].
pub const CHECKPOINT: &[u8] = b"mcheckpoint";
/// Says that a resync has begun to change this copy, under [`LOCAL`].
pub const MIXED: &[u8] = b"mmixed";
/// The serial number of the snapshot that was made last, under [`LOCAL`].
pub const LAST_SERIAL: &[u8] = b"mserial";
/// The place up to which the index has the packs, under [`LOCAL`].
pub const PACKS: &[u8] = b"mpacks";

/// A key of `table` that starts with `ino`.
fn by_ino(table: u8, ino: Ino, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(table);
    key.extend_from_slice(&ino.get().to_be_bytes());
    key.extend_from_slice(rest);
    key
}

/// A key of any table that has inode numbers.
pub fn of_table(table: u8, ino: Ino, rest: &[u8]) -> Vec<u8> {
    by_ino(table, ino, rest)
}

/// Key of an inode record.
pub fn inode(ino: Ino) -> Vec<u8> {
    by_ino(INODES, ino, &[])
}

/// Key of a directory entry.
pub fn entry(directory: Ino, name: &[u8]) -> Vec<u8> {
    by_ino(ENTRIES, directory, name)
}

/// Key of a directory entry in `readdir` order.
pub fn cookie(directory: Ino, cookie: u64) -> Vec<u8> {
    by_ino(COOKIES, directory, &cookie.to_be_bytes())
}

/// Key of an extended attribute.
pub fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    by_ino(XATTRS, ino, name)
}

/// Key of an orphan mark.
pub fn orphan(ino: Ino) -> Vec<u8> {
    by_ino(ORPHANS, ino, &[])
}

/// Key of a garbage mark.
pub fn garbage(ino: Ino) -> Vec<u8> {
    by_ino(GARBAGE, ino, &[])
}

/// Key of a snapshot.
pub fn snapshot(id: SnapshotId) -> Vec<u8> {
    [&[SNAPSHOTS], &id.to_bytes()[..]].concat()
}

/// Key of the value of record `key` that snapshots up to `id` see.
pub fn history(key: &[u8], id: SnapshotId) -> Vec<u8> {
    [&[HISTORY], key, &id.to_bytes()[..]].concat()
}

/// Key of the blocks of a chunk that snapshots up to `id` see.
pub fn kept_blocks(ino: Ino, chunk: u64, id: SnapshotId) -> Vec<u8> {
    by_ino(
        KEPT_BLOCKS,
        ino,
        &[&chunk.to_be_bytes()[..], &id.to_bytes()].concat(),
    )
}

/// Key of the body of a freed inode that snapshots up to `id` see.
pub fn body(ino: Ino, id: SnapshotId) -> Vec<u8> {
    by_ino(BODIES, ino, &id.to_bytes())
}

/// The chunk in the key of kept blocks.
pub fn chunk_of(key: &[u8]) -> Option<u64> {
    let (number, _) = rest_of(key).split_first_chunk()?;
    Some(u64::from_be_bytes(*number))
}

/// Key in the index of the kept value under the whole key `kept`.
pub fn kept_index(id: SnapshotId, kept: &[u8]) -> Vec<u8> {
    [&[KEPT_INDEX], &id.to_bytes()[..], kept].concat()
}

/// The snapshot at the end of a key.
pub fn snapshot_of(key: &[u8]) -> Option<SnapshotId> {
    let (_, id) = key.split_last_chunk::<{ SnapshotId::BYTES }>()?;
    SnapshotId::from_bytes(id)
}

/// Whether the key is one of a replicated table.
pub fn is_replicated(key: &[u8]) -> bool {
    key.first().is_some_and(|table| REPLICATED.contains(table))
}

/// The inode number in a key of any table that has one.
pub fn ino_of(key: &[u8]) -> Option<Ino> {
    let number = key.get(1..9)?.try_into().ok()?;
    Ino::new(u64::from_be_bytes(number))
}

/// The rest of a key after the inode number.
pub fn rest_of(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// A range of keys: from a start up to but not including an end.
#[derive(Clone, Debug)]
pub struct KeyRange {
    from: Bound<Vec<u8>>,
    to: Vec<u8>,
}

impl KeyRange {
    /// The keys from `first` up to but not including `end`.
    pub const fn between(first: Vec<u8>, end: Vec<u8>) -> Self {
        Self {
            from: Bound::Included(first),
            to: end,
        }
    }

    /// The keys from `first` up to `last`, which is one of them.
    pub fn inclusive(first: Vec<u8>, last: Vec<u8>) -> Self {
        let mut to = last;
        // The first key behind `last`.
        to.push(0);
        Self {
            from: Bound::Included(first),
            to,
        }
    }

    /// Where the range starts.
    pub fn from(&self) -> Bound<&[u8]> {
        match &self.from {
            Bound::Included(key) => Bound::Included(key),
            Bound::Excluded(key) => Bound::Excluded(key),
            Bound::Unbounded => Bound::Unbounded,
        }
    }

    /// The first key after the range.
    pub fn to(&self) -> Bound<&[u8]> {
        Bound::Excluded(&self.to)
    }

    /// The part of this range before `key`.
    #[must_use]
    pub fn before(mut self, key: &[u8]) -> Self {
        self.to = key.to_vec();
        self
    }

    /// The part of this range after `key`.
    #[must_use]
    pub fn after(mut self, key: &[u8]) -> Self {
        self.from = Bound::Excluded(key.to_vec());
        self
    }

    /// The part of this range up to `key`, and with `key`, which is the key of a record.
    #[must_use]
    pub fn through(mut self, key: &[u8]) -> Self {
        self.to = behind(key);
        self
    }

    /// The part of this range from `key` on.
    #[must_use]
    pub fn starting_at(mut self, key: &[u8]) -> Self {
        self.from = Bound::Included(key.to_vec());
        self
    }

    /// A range without keys.
    pub const fn none() -> Self {
        Self {
            from: Bound::Unbounded,
            to: Vec::new(),
        }
    }

    /// The part of this range before `key`; all of it if the range ends before.
    #[must_use]
    pub fn cut_at(self, key: &[u8]) -> Self {
        if self.to.as_slice() > key {
            self.before(key)
        } else {
            self
        }
    }

    /// The key at which the range starts, or after which it starts.
    fn start(&self) -> &[u8] {
        match &self.from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        }
    }

    /// The table that all keys of this range are of.
    pub fn table(&self) -> Option<u8> {
        let table = *self.start().first()?;
        let is_whole = self.to.first() == Some(&table) || self.to == [table.checked_add(1)?];
        is_whole.then_some(table)
    }

    /// The inode that all keys of this range are of.
    pub fn ino(&self) -> Option<Ino> {
        let ino = ino_of(self.start())?;
        let all = of_ino(self.table()?, ino);
        (self.to <= all.to).then_some(ino)
    }

    /// Whether no key lies in this range.
    pub fn is_empty(&self) -> bool {
        match &self.from {
            Bound::Included(from) => *from >= self.to,
            Bound::Excluded(from) => behind(from) >= self.to,
            Bound::Unbounded => self.to.is_empty(),
        }
    }

    /// The kept values of the records in this range, which is of replicated tables.
    #[must_use]
    pub fn of_history(&self) -> Self {
        let of = |key: &[u8]| [&[HISTORY], key].concat();
        Self {
            from: Bound::Included(match &self.from {
                Bound::Included(key) => of(key),
                Bound::Excluded(key) => of(&behind(key)),
                Bound::Unbounded => vec![HISTORY],
            }),
            to: of(&self.to),
        }
    }
}

/// A bound behind `key` and all kept values of `key`, and before each longer key of a record. The bytes of a [`SnapshotId`]
/// begin with zero (no generation reaches 2⁵⁶), and no name has a zero byte.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[1]].concat()
}

/// The kept values of one record that snapshots from `first` on see.
pub fn history_of(key: &[u8], first: SnapshotId) -> KeyRange {
    KeyRange {
        from: Bound::Included(history(key, first)),
        to: [&[HISTORY], &behind(key)[..]].concat(),
    }
}

/// The key of the record in the key of a kept value of that record.
pub fn record_of_history(key: &[u8]) -> Option<&[u8]> {
    let (key, _) = key.split_last_chunk::<{ SnapshotId::BYTES }>()?;
    key.strip_prefix(&[HISTORY])
}

/// The index of kept values with labels from `first` on, up to but not including `end`.
pub fn kept_index_range(first: SnapshotId, end: Option<SnapshotId>) -> KeyRange {
    KeyRange {
        from: Bound::Included(kept_index(first, &[])),
        to: match end {
            Some(end) => kept_index(end, &[]),
            None => vec![KEPT_INDEX + 1],
        },
    }
}

/// The key of the kept value in a key of the index.
pub fn kept_of_index(key: &[u8]) -> &[u8] {
    key.get(1 + SnapshotId::BYTES..).unwrap_or_default()
}

/// The snapshot in a key of the index.
pub fn label_of_index(key: &[u8]) -> Option<SnapshotId> {
    SnapshotId::from_bytes(key.get(1..=SnapshotId::BYTES)?)
}

/// All keys of a table.
pub fn table(table: u8) -> KeyRange {
    KeyRange {
        from: Bound::Included(vec![table]),
        to: vec![table + 1],
    }
}

/// All keys of a table from inode `first` on.
pub fn table_from(table: u8, first: Ino) -> KeyRange {
    KeyRange {
        from: Bound::Included(by_ino(table, first, &[])),
        to: vec![table + 1],
    }
}

/// All keys of a table that belong to one inode.
pub fn of_ino(table: u8, ino: Ino) -> KeyRange {
    KeyRange {
        from: Bound::Included(by_ino(table, ino, &[])),
        to: match ino.get().checked_add(1) {
            Some(next) => [&[table], &next.to_be_bytes()[..]].concat(),
            None => vec![table + 1],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_inode_lie_in_its_range_and_no_other() {
        let ino = Ino::new(0x1ff).unwrap();
        let range = of_ino(XATTRS, ino);
        let inside = |key: &[u8]| {
            (matches!(range.from(), Bound::Included(from) if key >= from))
                && (matches!(range.to(), Bound::Excluded(to) if key < to))
        };
        assert!(inside(&xattr(ino, b"")));
        assert!(inside(&xattr(ino, &[0xff; 255])));
        assert!(!inside(&xattr(ino.next(), b"")));
        assert_eq!(ino_of(&xattr(ino, b"user.a")), Some(ino));
        assert_eq!(rest_of(&xattr(ino, b"user.a")), b"user.a");
    }
}
