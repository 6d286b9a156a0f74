//! The records and the chunks of content that have changed since a snapshot, by the index of kept values, in the order of inode numbers.
//!
//! The index has one list for each snapshot by which values are kept, the *label*, and in that the kept values in the order of their keys.
//! The lists between two snapshots are merged. So the costs are those of the changes between the two, without those before and after, and of
//! some look-ups for each label.
//!
//! A deletion may move kept values from one label to another one, so nothing is removed during one call. Not found are records that were
//! born after the older snapshot: nothing is kept for those.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;

use lockstep_types::SnapshotId;

use super::place::{DiffPlace, DiffStage};
use crate::error::StoreError;
use crate::namespace::Namespace;
use crate::namespace::keys::{self, KeyRange};

/// Keys of a list that are read first, and about the most that are read at once.
const READ_FIRST: usize = 8;
const READ_MAX: usize = 512;
/// The lists of a label, by the begin of their keys behind the label.
const LISTS: [&[u8]; 5] = [
    &[keys::HISTORY, keys::INODES],
    &[keys::HISTORY, keys::XATTRS],
    &[keys::HISTORY, keys::ENTRIES],
    &[keys::KEPT_BLOCKS],
    &[keys::BODIES],
];

/// The part of an inode that has changed. The parts come in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TouchedPart {
    /// Its record, or its whole content.
    Record,
    /// An extended attribute.
    Xattrs,
    /// The entry of this name in the directory.
    Name(Vec<u8>),
    /// This chunk of its content.
    Chunk(u64),
}

/// A part of an inode that may have changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TouchedKey {
    /// The number of the inode.
    pub ino: u64,
    /// The part.
    pub part: TouchedPart,
}

/// Changed keys, and whether these are all from the place on.
pub type TouchedKeys = (Vec<TouchedKey>, bool);

/// The first changed keys from a place on, at most `max`, without doubles and in order. The labels of their kept values go from the first of `labels` up to,
/// but not including, the second one. Without `chunks` none of a chunk is among them.
pub fn touched_keys(
    namespace: &Namespace,
    labels: (SnapshotId, Option<SnapshotId>),
    place: &DiffPlace,
    (max, chunks): (usize, bool),
) -> Result<TouchedKeys, StoreError> {
    namespace.without_removals(|| {
        let mut merge = LabelMerge::begin(namespace, labels, place, chunks)?;
        let mut found: Vec<TouchedKey> = Vec::new();
        while let Some(key) = merge.next()? {
            if found.last() == Some(&key) {
                continue;
            }
            if found.len() == max {
                return Ok((found, false));
            }
            found.push(key);
        }
        Ok((found, true))
    })
}

/// The lists of all labels, merged.
struct LabelMerge<'a> {
    namespace: &'a Namespace,
    lists: Vec<LabelList>,
    heads: BinaryHeap<Reverse<(TouchedKey, usize)>>,
}

impl<'a> LabelMerge<'a> {
    fn begin(
        namespace: &'a Namespace,
        (from, to): (SnapshotId, Option<SnapshotId>),
        place: &DiffPlace,
        chunks: bool,
    ) -> Result<Self, StoreError> {
        let mut merge = Self {
            namespace,
            lists: Vec::new(),
            heads: BinaryHeap::new(),
        };
        let mut range = keys::kept_index_range(from, to);
        while let Some(label) = first_label(namespace, &range)? {
            let lists = LISTS
                .iter()
                .filter(|table| chunks || table[..] != [keys::KEPT_BLOCKS]);
            for table in lists {
                merge.add(LabelList::new(label, table, place))?;
            }
            // No kept value has a key that begins with this byte.
            range = range.starting_at(&keys::kept_index(label, &[u8::MAX]));
        }
        Ok(merge)
    }

    fn add(&mut self, mut list: LabelList) -> Result<(), StoreError> {
        if let Some(key) = list.next(self.namespace)? {
            self.heads.push(Reverse((key, self.lists.len())));
            self.lists.push(list);
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<TouchedKey>, StoreError> {
        let Some(Reverse((key, number))) = self.heads.pop() else {
            return Ok(None);
        };
        if let Some(list) = self.lists.get_mut(number)
            && let Some(next) = list.next(self.namespace)?
        {
            self.heads.push(Reverse((next, number)));
        }
        Ok(Some(key))
    }
}

fn first_label(namespace: &Namespace, range: &KeyRange) -> Result<Option<SnapshotId>, StoreError> {
    let mut found = None;
    namespace.scan(range, &mut |key, _| {
        found = Some(keys::label_of_index(key).ok_or_else(|| StoreError::unreadable(key)));
        ControlFlow::Break(())
    })?;
    found.transpose()
}

/// The kept values of one table and one label, from a place on.
struct LabelList {
    rest: KeyRange,
    read: VecDeque<TouchedKey>,
    /// Keys that are read next.
    count: usize,
}

impl LabelList {
    fn new(label: SnapshotId, table: &[u8], place: &DiffPlace) -> Self {
        let key = |rest: &[u8]| keys::kept_index(label, &[table, rest].concat());
        let here = place.ino.to_be_bytes();
        let behind = place.ino.checked_add(1).map(u64::to_be_bytes);
        let first = match (&place.stage, table) {
            (DiffStage::Inode, _) => Some(here.to_vec()),
            (DiffStage::Names(after), [keys::HISTORY, keys::ENTRIES]) => {
                // Behind all values of this name, and before longer names: a label begins with a zero byte, and no name has one.
                Some([&here[..], after, &[1]].concat())
            }
            (DiffStage::Names(_) | DiffStage::Cookies(_), [keys::KEPT_BLOCKS]) => {
                Some(here.to_vec())
            }
            (DiffStage::Chunks(from), [keys::KEPT_BLOCKS]) => {
                Some([here, from.to_be_bytes()].concat())
            }
            _ => behind.map(|behind| behind.to_vec()),
        };
        let end = key(&[u8::MAX; 9]);
        let rest = match first {
            Some(first) => KeyRange::between(key(&first), end),
            None => KeyRange::none(),
        };
        Self {
            rest,
            read: VecDeque::new(),
            count: READ_FIRST,
        }
    }

    fn next(&mut self, namespace: &Namespace) -> Result<Option<TouchedKey>, StoreError> {
        if self.read.is_empty() && !self.rest.is_empty() {
            self.read_more(namespace)?;
        }
        Ok(self.read.pop_front())
    }

    fn read_more(&mut self, namespace: &Namespace) -> Result<(), StoreError> {
        let (mut last, mut left, mut failed) = (None, self.count, None);
        namespace.scan(&self.rest, &mut |key, _| {
            match touched_key(keys::kept_of_index(key)) {
                Some(changed) if self.read.back() == Some(&changed) => {}
                Some(changed) => self.read.push_back(changed),
                None => failed = Some(StoreError::unreadable(key)),
            }
            left -= 1;
            if left > 0 && failed.is_none() {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        failed.map_or(Ok(()), Err)?;
        self.rest = match last {
            Some(last) => self.rest.clone().after(&last),
            None => KeyRange::none(),
        };
        self.count = (2 * self.count).min(READ_MAX);
        Ok(())
    }
}

/// The part that the key of a kept value is of.
fn touched_key(kept: &[u8]) -> Option<TouchedKey> {
    let (key, part) = match *kept.first()? {
        keys::HISTORY => {
            let key = keys::record_of_history(kept)?;
            let part = match *key.first()? {
                keys::XATTRS => TouchedPart::Xattrs,
                keys::ENTRIES => TouchedPart::Name(keys::rest_of(key).to_vec()),
                _ => TouchedPart::Record,
            };
            (key, part)
        }
        keys::KEPT_BLOCKS => (kept, TouchedPart::Chunk(keys::chunk_of(kept)?)),
        _ => (kept, TouchedPart::Record),
    };
    let ino = keys::ino_of(key)?.get();
    Some(TouchedKey { ino, part })
}
