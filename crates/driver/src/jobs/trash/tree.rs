//! The inodes in the trash at one moment, by the directory of their last name: for a command that looks for paths and goes down into directories.

use std::collections::HashMap;
use std::ops::ControlFlow;

use lockstep_fs::record::TrashMark;
use lockstep_fs::{OpError, StoreView};
use lockstep_types::{FileName, Ino, Osn};

/// An inode in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trashed {
    pub ino: Ino,
    pub name: FileName,
    pub secs: i64,
    pub osn: Osn,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct TrashTree {
    /// The inodes that were deleted from each directory.
    deleted: HashMap<Ino, Vec<Trashed>>,
}

/// Which deletions count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeletionSpan {
    /// Those before this operation.
    pub before: Option<Osn>,
    /// Those at this moment or later.
    pub since: Option<i64>,
}

impl DeletionSpan {
    fn has(&self, trashed: &Trashed) -> bool {
        self.before.is_none_or(|before| trashed.osn < before)
            && self.since.is_none_or(|since| trashed.secs >= since)
    }
}

impl TrashTree {
    /// Reads the marks of all inodes in the trash.
    pub fn read(view: &dyn StoreView) -> Result<Self, OpError> {
        let mut tree = Self::default();
        view.each_in_trash(Ino::ROOT, &mut |ino, mark| {
            tree.add(ino, mark);
            ControlFlow::Continue(())
        })?;
        Ok(tree)
    }

    fn add(&mut self, ino: Ino, mark: TrashMark) {
        let trashed = Trashed {
            ino,
            name: mark.name,
            secs: mark.time.secs,
            osn: mark.osn,
        };
        self.deleted.entry(mark.parent).or_default().push(trashed);
    }

    /// Everything with a name that was deleted from a directory.
    pub fn named<'a>(
        &'a self,
        directory: Ino,
        name: &'a FileName,
    ) -> impl Iterator<Item = &'a Trashed> {
        let deleted = self.deleted.get(&directory).into_iter().flatten();
        deleted.filter(move |trashed| trashed.name == *name)
    }

    /// The newest deletion of each name of a directory, among those that count, the oldest first.
    pub fn newest_of_each(&self, directory: Ino, span: DeletionSpan) -> Vec<Trashed> {
        let mut newest: HashMap<&FileName, &Trashed> = HashMap::new();
        let deleted = self.deleted.get(&directory).into_iter().flatten();
        for trashed in deleted.filter(|trashed| span.has(trashed)) {
            let known = newest.entry(&trashed.name).or_insert(trashed);
            if known.osn < trashed.osn {
                *known = trashed;
            }
        }
        let mut newest: Vec<Trashed> = newest.into_values().cloned().collect();
        newest.sort_by_key(|trashed| trashed.osn);
        newest
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::Timestamp;

    use super::*;

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    fn name(text: &str) -> FileName {
        FileName::new(text.as_bytes()).unwrap()
    }

    fn tree(all: &[(u64, u64, &str, i64)]) -> TrashTree {
        let mut tree = TrashTree::default();
        for (sequence, (number, parent, text, secs)) in (1..).zip(all) {
            let mark = TrashMark {
                parent: ino(*parent),
                name: name(text),
                time: Timestamp {
                    secs: *secs,
                    nanos: 0,
                },
                osn: Osn {
                    sequence,
                    ..Osn::ZERO
                },
            };
            tree.add(ino(*number), mark);
        }
        tree
    }

    #[test]
    fn the_newest_deletion_of_each_name_counts() {
        let tree = tree(&[
            (5, 2, "a", 10),
            (6, 2, "b", 20),
            (7, 2, "a", 30),
            (8, 3, "a", 40),
        ]);
        let inos = |span| -> Vec<u64> {
            let found = tree.newest_of_each(ino(2), span);
            found.iter().map(|trashed| trashed.ino.get()).collect()
        };
        assert_eq!(inos(DeletionSpan::default()), [6, 7]);
        let before = Osn {
            sequence: 3,
            ..Osn::ZERO
        };
        let span = DeletionSpan {
            before: Some(before),
            since: None,
        };
        assert_eq!(inos(span), [5, 6]);
        let since = DeletionSpan {
            before: None,
            since: Some(30),
        };
        assert_eq!(inos(since), [7]);
        assert_eq!(tree.named(ino(2), &name("a")).count(), 2);
    }
}
