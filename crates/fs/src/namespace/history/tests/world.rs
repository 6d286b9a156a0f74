//! A small file tree, as records: changes of it as operations make them, and as a resync loads them.

use std::collections::BTreeMap;

use super::*;
use crate::namespace::record::{EntryRecord, NamedEntry};

/// The directories.
pub(super) const DIRECTORIES: [u64; 2] = [2, 3];
/// Numbers that the other node may have given out, unknown to this one.
const LATE_INOS: u64 = 100;
/// Numbers of this node.
const OWN_INOS: u64 = 1_000;

/// A change of the tree. Names and inodes are chosen among those that there are.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Create {
        directory: usize,
        name: u8,
        is_late: bool,
    },
    Remove {
        directory: usize,
        name: u8,
    },
    Exchange {
        names: [(usize, u8); 2],
    },
    Move {
        from: (usize, u8),
        to: (usize, u8),
    },
    SetXattr {
        inode: u8,
        name: u8,
        value: u8,
    },
    RemoveXattr {
        inode: u8,
        name: u8,
    },
    SetAttr {
        inode: u8,
    },
    Reap,
}

/// The tree at one moment: its records, and the counters of the node that changes them.
#[derive(Clone)]
pub(super) struct Tree {
    pub records: Copy,
    next_cookies: BTreeMap<u64, u64>,
    pub next_own: u64,
    next_late: u64,
    changes: u64,
}

impl Tree {
    pub fn new() -> Self {
        let mut tree = Self {
            records: Copy::new(),
            next_cookies: DIRECTORIES.map(|it| (it, 3)).into(),
            next_own: OWN_INOS,
            next_late: LATE_INOS,
            changes: 0,
        };
        for number in DIRECTORIES {
            let record = (keys::inode(ino(number)), Some(directory(3, 0)));
            tree.apply(&[record]);
        }
        tree
    }

    pub fn apply(&mut self, batch: &[RecordChange]) {
        for (key, value) in batch {
            match value {
                Some(value) => drop(self.records.insert(key.clone(), value.clone())),
                None => drop(self.records.remove(key)),
            }
        }
    }

    /// Takes over another tree, but for the counter of inode numbers.
    pub fn become_other(&mut self, other: Self) {
        let next_own = self.next_own.max(other.next_own);
        let next_late = self.next_late.max(other.next_late);
        let changes = self.changes;
        *self = Self {
            next_own,
            next_late,
            changes,
            ..other
        };
    }

    /// The changes that make a copy with `records` one with those of this tree.
    pub fn load(&self, records: &Copy) -> Vec<RecordChange> {
        let gone = records
            .keys()
            .filter(|key| !self.records.contains_key(*key));
        let gone = gone.map(|key| (key.clone(), None));
        let new = self.records.iter();
        let new = new.filter(|(key, value)| records.get(*key) != Some(value));
        let new = new.map(|(key, value)| (key.clone(), Some(value.clone())));
        let all: BTreeMap<_, _> = gone.chain(new).collect();
        all.into_iter().collect()
    }

    fn entry(&self, (directory, name): (usize, u8)) -> Option<EntryRecord> {
        let key = keys::entry(ino(DIRECTORIES[directory]), &[name]);
        record::decode(self.records.get(&key)?)
    }

    fn inodes(&self) -> Vec<Ino> {
        let range = vec![keys::INODES]..vec![keys::INODES + 1];
        let keys = self.records.range(range).map(|(key, _)| key);
        keys.filter_map(|key| keys::ino_of(key)).collect()
    }

    fn pick(&self, inode: u8) -> Ino {
        let inodes = self.inodes();
        inodes[usize::from(inode) % inodes.len()]
    }

    fn touch(&self, batch: &mut Vec<RecordChange>, at: usize) {
        let number = DIRECTORIES[at];
        let record = directory(self.next_cookies[&number], self.changes);
        batch.push((keys::inode(ino(number)), Some(record)));
    }

    fn next_cookie(&mut self, at: usize) -> u64 {
        let next = self.next_cookies.get_mut(&DIRECTORIES[at]).unwrap();
        *next += 1;
        *next - 1
    }

    fn add(&mut self, batch: &mut Vec<RecordChange>, to: (usize, u8), ino: Ino) {
        let cookie = self.next_cookie(to.0);
        let kind = NodeKind::File;
        let entry = EntryRecord { ino, kind, cookie };
        put_entry(batch, to, Some(entry), cookie);
        self.touch(batch, to.0);
    }

    /// The records of a change.
    pub fn change(&mut self, change: &Change) -> Vec<RecordChange> {
        self.changes += 1;
        let mut batch = Vec::new();
        match *change {
            Change::Create {
                directory,
                name,
                is_late,
            } => self.create(&mut batch, (directory, name), is_late),
            Change::Remove { directory, name } => self.remove(&mut batch, (directory, name)),
            Change::Exchange { names } => self.exchange(&mut batch, names),
            Change::Move { from, to } => {
                if let (Some(entry), None) = (self.entry(from), self.entry(to)) {
                    put_entry(&mut batch, from, None, entry.cookie);
                    self.touch(&mut batch, from.0);
                    self.add(&mut batch, to, entry.ino);
                }
            }
            Change::SetXattr { inode, name, value } => {
                batch.push((keys::xattr(self.pick(inode), &[name]), Some(vec![value])));
            }
            Change::RemoveXattr { inode, name } => {
                batch.push((keys::xattr(self.pick(inode), &[name]), None));
            }
            Change::SetAttr { inode } => {
                let number = self.pick(inode);
                let at = DIRECTORIES.iter().position(|it| *it == number.get());
                if let Some(at) = at {
                    self.touch(&mut batch, at);
                } else {
                    batch.push(self.file(number, 2));
                }
            }
            Change::Reap => self.reap(&mut batch),
        }
        self.apply(&batch);
        batch
    }

    fn file(&self, number: Ino, size: u64) -> RecordChange {
        let record = inode(Body::File { size }, self.changes);
        (keys::inode(number), Some(record))
    }

    fn create(&mut self, batch: &mut Vec<RecordChange>, at: (usize, u8), is_late: bool) {
        if self.entry(at).is_some() {
            return;
        }
        let next = if is_late {
            &mut self.next_late
        } else {
            &mut self.next_own
        };
        let number = ino(*next);
        *next += 1;
        self.add(batch, at, number);
        batch.push(self.file(number, 0));
    }

    fn remove(&self, batch: &mut Vec<RecordChange>, at: (usize, u8)) {
        if let Some(entry) = self.entry(at) {
            put_entry(batch, at, None, entry.cookie);
            self.touch(batch, at.0);
            batch.push((keys::orphan(entry.ino), Some(Vec::new())));
            batch.push(self.file(entry.ino, 1));
        }
    }

    fn exchange(&self, batch: &mut Vec<RecordChange>, [one, other]: [(usize, u8); 2]) {
        let (Some(first), Some(second)) = (self.entry(one), self.entry(other)) else {
            return;
        };
        if one == other {
            return;
        }
        for (at, entry, from) in [(one, first, second), (other, second, first)] {
            let ino = from.ino;
            let swapped = EntryRecord { ino, ..entry };
            put_entry(batch, at, Some(swapped), entry.cookie);
            self.touch(batch, at.0);
        }
    }

    /// Frees all inodes without a name, with their attributes.
    fn reap(&self, batch: &mut Vec<RecordChange>) {
        let is_free = |ino: Ino| self.records.contains_key(&keys::orphan(ino));
        for key in self.records.keys() {
            if keys::ino_of(key).is_some_and(is_free) {
                batch.push((key.clone(), None));
            }
        }
    }
}

fn put_entry(
    batch: &mut Vec<RecordChange>,
    (directory, name): (usize, u8),
    entry: Option<EntryRecord>,
    cookie: u64,
) {
    let directory = ino(DIRECTORIES[directory]);
    let named = entry.map(|entry| NamedEntry {
        ino: entry.ino,
        kind: entry.kind,
        name: FileName::new(&[name]).unwrap(),
    });
    let by_name = keys::entry(directory, &[name]);
    batch.push((by_name, entry.map(|it| record::encode(&it))));
    let by_cookie = keys::cookie(directory, cookie);
    batch.push((by_cookie, named.map(|it| record::encode(&it))));
}
