//! Records under keys, every change in a journal, and a digest of all: what lets the search try
//! and take back.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use lockstep_types::{FileName, Ino};

use super::Node;

/// What a record is about: the records of an inode lie together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The inode.
    pub ino: Ino,
    /// What of it.
    pub part: Part,
}

/// What of an inode a record is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The inode itself.
    Node,
    /// A name in it.
    Entry(FileName),
    /// An extended attribute.
    Xattr(Vec<u8>),
}

impl Key {
    /// Of the inode itself.
    pub const fn node(ino: Ino) -> Self {
        let part = Part::Node;
        Self { ino, part }
    }

    /// Of a name in it.
    pub fn entry(ino: Ino, name: &FileName) -> Self {
        let part = Part::Entry(name.clone());
        Self { ino, part }
    }

    /// Of an extended attribute.
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
    /// Where a name leads.
    Entry(Ino),
    /// A value.
    Xattr(Vec<u8>),
}

/// A moment to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(usize);

/// All records.
#[derive(Debug, Default)]
pub struct Records {
    held: BTreeMap<Key, Record>,
    /// What each change replaced, oldest first.
    journal: Vec<(Key, Option<Record>)>,
    /// Sum of the hashes of all records.
    digest: u64,
}

impl Records {
    /// A number that differs between different states, in all likelihood.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// This moment, to go back to.
    pub const fn now(&self) -> Moment {
        Moment(self.journal.len())
    }

    /// Takes back all changes since a moment.
    pub fn back_to(&mut self, moment: Moment) {
        while self.journal.len() > moment.0
            && let Some((key, before)) = self.journal.pop()
        {
            self.replace(&key, before);
        }
    }

    /// Makes everything as it was at a moment: a change like others, which can be taken back.
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

    /// A record.
    pub fn get(&self, key: &Key) -> Option<&Record> {
        self.held.get(key)
    }

    /// All records, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Record)> {
        self.held.iter()
    }

    /// All records of an inode, in order.
    pub fn of_ino(&self, ino: Ino) -> impl Iterator<Item = (&Key, &Record)> {
        let from = self.held.range(Key::node(ino)..);
        from.take_while(move |(key, _)| key.ino == ino)
    }
}

/// Hashes alike in every run.
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

/// Spreads every bit of `value` over all.
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
