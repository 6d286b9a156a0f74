//! Records under keys, a journal of every change, and a digest of all records. The search uses them
//! to try steps and to undo them.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use lockstep_types::{FileName, Ino, NodeKind};

/// An inode of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The kind of the inode.
    pub kind: NodeKind,
    /// Permission bits with set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Device number, or zero if the inode is no device.
    pub rdev: u32,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// The directory above a directory.
    pub(super) parent: Ino,
    /// Number of entries of a directory.
    pub(super) entries: u32,
}

/// The subject of a record. Keys sort so that the records of an inode are adjacent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The inode.
    pub ino: Ino,
    /// The part of the inode.
    pub part: Part,
}

/// The part of an inode that a record describes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The inode itself.
    Node,
    /// A name in the inode.
    Entry(FileName),
    /// An extended attribute.
    Xattr(Vec<u8>),
}

impl Key {
    /// Returns the key of the inode itself.
    pub const fn node(ino: Ino) -> Self {
        let part = Part::Node;
        Self { ino, part }
    }

    /// Returns the key of a name in the inode.
    pub fn entry(ino: Ino, name: &FileName) -> Self {
        let part = Part::Entry(name.clone());
        Self { ino, part }
    }

    /// Returns the key of an extended attribute.
    pub fn xattr(ino: Ino, name: &[u8]) -> Self {
        let part = Part::Xattr(name.to_vec());
        Self { ino, part }
    }
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// An inode.
    Node(Node),
    /// The inode to which a name leads.
    Entry(Ino),
    /// The value of an extended attribute.
    Xattr(Vec<u8>),
}

/// A moment whose state can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(usize);

/// All records.
#[derive(Debug, Default)]
pub struct Records {
    held: BTreeMap<Key, Record>,
    /// The record that each change replaced, oldest first.
    journal: Vec<(Key, Option<Record>)>,
    /// Sum of the hashes of all records.
    digest: u64,
}

impl Records {
    /// Returns a number that very probably differs between different states.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the present moment, as a target for [`Self::back_to`].
    pub const fn now(&self) -> Moment {
        Moment(self.journal.len())
    }

    /// Undoes all changes since a moment.
    pub fn back_to(&mut self, moment: Moment) {
        while self.journal.len() > moment.0
            && let Some((key, before)) = self.journal.pop()
        {
            self.replace(&key, before);
        }
    }

    /// Restores the state of a moment. This is a change like others, and can be undone.
    pub fn revert_to(&mut self, moment: Moment) {
        let since: Vec<_> = self.journal.iter().skip(moment.0).rev().cloned().collect();
        for (key, before) in since {
            self.put(key, before);
        }
    }

    /// Writes a record, or deletes it.
    pub fn put(&mut self, key: Key, record: Option<Record>) {
        let before = self.replace(&key, record);
        self.journal.push((key, before));
    }

    fn replace(&mut self, key: &Key, record: Option<Record>) -> Option<Record> {
        if let Some(record) = &record {
            self.digest = self.digest.wrapping_add(digest(key, record));
        }
        let before = match record {
            Some(record) => self.held.insert(key.clone(), record),
            None => self.held.remove(key),
        };
        if let Some(before) = &before {
            self.digest = self.digest.wrapping_sub(digest(key, before));
        }
        before
    }

    /// Returns a record.
    pub fn get(&self, key: &Key) -> Option<&Record> {
        self.held.get(key)
    }

    /// Returns all records, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Record)> {
        self.held.iter()
    }

    /// Returns all records of an inode, by key.
    pub fn of_ino(&self, ino: Ino) -> impl Iterator<Item = (&Key, &Record)> {
        let from = self.held.range(Key::node(ino)..);
        from.take_while(move |(key, _)| key.ino == ino)
    }
}

/// A hasher that gives the same hashes in every run.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        mix(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// Spreads every bit of `value` over all bits of the result.
pub const fn mix(value: u64) -> u64 {
    let mut mixed = value ^ (value >> 30);
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn digest(key: &Key, record: &Record) -> u64 {
    let mut mixer = Mixer(1);
    key.hash(&mut mixer);
    record.hash(&mut mixer);
    mixer.finish()
}
