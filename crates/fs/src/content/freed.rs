//! Freed content: which observers need it, and how it leaves its place.
//!
//! An observer that needs the content of a freed inode gives the inode a *mark*. The marks of all observers stand in one
//! record, with the inode, until the content has left its place. Then the observers are asked in the order of their list:
//!
//! - Each of them gets its own mark.
//! - An observer takes the content by [`Removal::take`]. While a later observer has a mark as well, the content stays in its
//!   place, and the observer gets a copy. The last one gets the file itself.
//! - A stop of the process, or an error of a later observer, lets all of them be asked again. So an observer may be asked for
//!   content of which it has a copy, and for content that is no longer there.
//!
//! Invariant: a copy and its name are durable before a later observer is asked.

use std::collections::BTreeMap;
use std::io;

use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;
use serde::{Deserialize, Serialize};

use crate::namespace::record;
use crate::paths::content_path;
use crate::store_disk::StoreDisk;

/// The first byte of a record with more marks than that of the lost+found.
const LIST: u8 = 0;

/// Most bytes that a copy reads at once.
const COPY_BYTES: usize = 256 << 10;

/// The observer to which a mark belongs, as the disk names it. No number is given to another observer later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MarkOwner(u8);

impl MarkOwner {
    /// The lost+found.
    pub const LOST_FOUND: Self = Self(0);
    /// An observer of a test.
    #[cfg(test)]
    pub const TEST: Self = Self(255);
}

/// The marks of one freed inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreedMarks(BTreeMap<MarkOwner, Vec<u8>>);

impl FreedMarks {
    /// Adds the mark of an observer.
    pub fn add(&mut self, owner: MarkOwner, mark: Vec<u8>) {
        self.0.insert(owner, mark);
    }

    /// Whether no observer needs the content.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The mark of an observer.
    pub fn of(&self, owner: MarkOwner) -> Option<&[u8]> {
        self.0.get(&owner).map(Vec::as_slice)
    }

    /// The record: nothing without a mark, the mark of the lost+found if it is the only one, and a list otherwise. The mark of
    /// the lost+found begins with another byte than a list.
    pub fn encode(&self) -> Vec<u8> {
        match self.of(MarkOwner::LOST_FOUND) {
            _ if self.is_empty() => Vec::new(),
            Some(mark) if self.0.len() == 1 && mark.first().is_some_and(|it| *it != LIST) => {
                mark.to_vec()
            }
            _ => [vec![LIST], record::encode(&self.0)].concat(),
        }
    }

    /// Reads a record; `None` if it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first() {
            None => Some(Self::default()),
            Some((&LIST, list)) => record::decode(list).map(Self),
            Some(_) => {
                let mark = (MarkOwner::LOST_FOUND, bytes.to_vec());
                Some(Self([mark].into()))
            }
        }
    }
}

/// The content of a freed inode, which is about to leave its place.
#[derive(Clone, Copy)]
pub struct Removal<'a> {
    /// The disk with the content.
    pub disk: &'a StoreDisk,
    /// The inode.
    pub ino: Ino,
    /// The mark that the observer has given the inode when it was freed.
    pub mark: Option<&'a [u8]>,
    /// A later observer has a mark, too.
    pub is_shared: bool,
}

impl Removal<'_> {
    /// Gives the observer the content at `path`, where an empty file is: the file itself, or a durable copy while a later
    /// observer needs the content, too. The caller of the observer makes the name durable.
    ///
    /// # Errors
    /// The content is still in its place.
    pub fn take(&self, path: &str) -> io::Result<()> {
        let (backing, from) = (self.disk.backing(), content_path(self.ino));
        if !self.is_shared {
            return backing.rename(&from, path);
        }
        let copy = backing.open_or_create(path)?;
        copy_content(&*backing.open(&from)?, &*copy)?;
        copy.sync()
    }
}

/// Copies the data of a file, without its holes.
fn copy_content(from: &dyn BackingFile, to: &dyn BackingFile) -> io::Result<()> {
    let length = from.stat()?.length;
    to.set_len(length)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while let Some(data) = from.seek_data(at)?.filter(|data| *data < length) {
        let hole = from.seek_hole(data)?.unwrap_or(length);
        let wanted = usize::try_from(hole.saturating_sub(data)).unwrap_or(COPY_BYTES);
        let wanted = wanted.clamp(1, COPY_BYTES);
        let read = from.read_at(data, buffer.get_mut(..wanted).unwrap_or_default())?;
        if read == 0 {
            break;
        }
        to.write_at(data, buffer.get(..read).unwrap_or_default())?;
        at = data.saturating_add(read as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockstep_types::Generation;

    use super::*;

    fn marks(marks: &[(MarkOwner, &[u8])]) -> FreedMarks {
        let marks = marks.iter().map(|(owner, mark)| (*owner, mark.to_vec()));
        FreedMarks(marks.collect())
    }

    #[test]
    fn every_record_is_read_as_it_was_written() {
        let (lost_found, other) = (MarkOwner::LOST_FOUND, MarkOwner::TEST);
        for written in [
            marks(&[]),
            marks(&[(lost_found, b"a")]),
            marks(&[(lost_found, &[LIST, 1])]),
            marks(&[(lost_found, b"")]),
            marks(&[(other, b"a")]),
            marks(&[(lost_found, b"a"), (other, b"")]),
        ] {
            let record = written.encode();
            assert_eq!(FreedMarks::decode(&record), Some(written), "{record:?}");
        }
        assert_eq!(FreedMarks::decode(&[LIST, 200]), None);
    }

    /// A store without another observer has the records that every version reads.
    #[test]
    fn the_mark_of_the_lost_found_alone_is_its_generation() {
        for generation in [1, 127, 128, u64::MAX] {
            let generation = record::encode(&Generation::new(generation).unwrap());
            let alone = marks(&[(MarkOwner::LOST_FOUND, &generation)]);
            assert_eq!(alone.encode(), generation);
        }
        assert_eq!(FreedMarks::default().encode(), [0_u8; 0]);
    }
}
