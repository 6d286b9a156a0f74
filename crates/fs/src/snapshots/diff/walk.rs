//! The walk over the changed keys of one page: the findings about inodes and names, without paths.
//!
//! An inode is looked at in stages: its record; the names of a directory that were kept, and those that are new; the chunks of a file that were
//! kept, and the bytes behind its older size. A page may end between any two of them.

use lockstep_types::Ino;

use super::bytes::{FileAt, FilePair};
use super::entry::{DiffRange, push_range};
use super::place::{DiffPlace, DiffStage};
use super::sides::Sides;
use super::touched::{TouchedKey, TouchedPart, touched_keys};
use crate::error::OpError;
use crate::view::StoreView;

/// The work of comparing a chunk, against that of looking at a record.
const CHUNK_WORK: usize = 4;

/// An inode that may have changed.
pub struct FoundInode {
    /// The inode.
    pub ino: Ino,
    /// Its extended attributes may have changed.
    pub xattrs: bool,
    /// The bytes that differ.
    pub ranges: Vec<DiffRange>,
    /// An earlier page has told of the inode, and has not told these bytes.
    pub continued: bool,
}

/// A name that has come or gone.
pub struct FoundName {
    /// The directory.
    pub directory: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// The inode that the name leads to, or has led to.
    pub ino: Ino,
    /// Whether the name has come.
    pub has_come: bool,
}

/// A part of a page.
pub enum DiffFinding {
    /// An inode.
    Inode(FoundInode),
    /// A name.
    Name(FoundName),
}

/// The changed keys of a page, and the place behind them; `None` if there are no further ones.
struct PageKeys {
    keys: Vec<TouchedKey>,
    next: Option<DiffPlace>,
}

/// The sizes of a file.
#[derive(Clone, Copy)]
struct FileSizes {
    /// At the older moment; `None` if the file was not there.
    old: Option<u64>,
    /// At the newer moment.
    new: u64,
}

/// The end of a stage of an inode.
enum StageEnd {
    /// The next stage.
    Next(DiffStage),
    /// The next inode, or the end of the keys.
    Over,
    /// The end of the page, at this stage.
    Stop(DiffStage),
}

/// See the head of this file.
pub struct DiffWalk<'a> {
    sides: &'a Sides<'a>,
    found: Vec<DiffFinding>,
    /// Work that is left for this page.
    left: usize,
    /// Whether the bytes of files are compared.
    bytes: bool,
}

/// The extent of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffWish {
    /// About the most records that the page looks at. Comparing a chunk of 64 KiB counts as four.
    pub work: usize,
    /// Whether the bytes of files are compared and told.
    pub bytes: bool,
}

/// The findings of a page, and the place where the next one begins; `None` at the end.
pub type FoundPage = (Vec<DiffFinding>, Option<DiffPlace>);

impl<'a> DiffWalk<'a> {
    /// The findings from a place on. `unflushed`: files whose records are behind, by number.
    pub fn page(
        sides: &'a Sides<'a>,
        place: &DiffPlace,
        unflushed: &[Ino],
        wish: DiffWish,
    ) -> Result<FoundPage, OpError> {
        let DiffWish { work, bytes } = wish;
        let work = work.max(2);
        let page = page_keys(sides, place, unflushed, (work, bytes))?;
        let mut walk = Self {
            sides,
            found: Vec::new(),
            left: work,
            bytes,
        };
        let next = walk.run(place, page)?;
        Ok((walk.found, next))
    }

    fn run(&mut self, place: &DiffPlace, page: PageKeys) -> Result<Option<DiffPlace>, OpError> {
        let PageKeys { keys, next } = page;
        let is_begun = place.stage != DiffStage::Inode;
        if is_begun && keys.first().is_none_or(|key| key.ino != place.ino) {
            let is_whole = next.as_ref().is_none_or(|next| place.ino < next.ino);
            let stop = self.inode(place.ino, place.stage.clone(), &[], is_whole)?;
            if let Some(stop) = stop {
                return Ok(Some(stop));
            }
        }
        for group in keys.chunk_by(|one, other| one.ino == other.ino) {
            let Some(ino) = group.first().map(|key| key.ino) else {
                continue;
            };
            if self.left == 0 {
                return Ok(Some(DiffPlace::before(ino)));
            }
            let is_whole = next.as_ref().is_none_or(|next| ino < next.ino);
            if let Some(stop) = self.inode(ino, place.stage_of(ino), group, is_whole)? {
                return Ok(Some(stop));
            }
        }
        Ok(next)
    }

    fn work(&mut self, amount: usize) {
        self.left = self.left.saturating_sub(amount);
    }

    /// Looks at an inode from a stage on. Returns the place in it where the page ends; `None` if the page goes on behind the inode, or at the end of its
    /// keys.
    fn inode(
        &mut self,
        number: u64,
        stage: DiffStage,
        keys: &[TouchedKey],
        is_whole: bool,
    ) -> Result<Option<DiffPlace>, OpError> {
        let Some(ino) = Ino::new(number) else {
            return Ok(None);
        };
        let mut stage = stage;
        loop {
            match self.step(ino, stage, keys, is_whole)? {
                StageEnd::Next(next) => stage = next,
                StageEnd::Over => return Ok(None),
                StageEnd::Stop(stage) => {
                    let ino = number;
                    return Ok(Some(DiffPlace { ino, stage }));
                }
            }
        }
    }

    /// Looks at an inode in one stage. Of keys that are not whole, some of the last stage among them are missing.
    fn step(
        &mut self,
        ino: Ino,
        stage: DiffStage,
        keys: &[TouchedKey],
        is_whole: bool,
    ) -> Result<StageEnd, OpError> {
        Ok(match stage {
            DiffStage::Inode => {
                self.record(ino, keys);
                StageEnd::Next(DiffStage::Names(Vec::new()))
            }
            DiffStage::Names(after) => match self.names(ino, &after, keys)? {
                Some(after) => StageEnd::Stop(DiffStage::Names(after)),
                None if is_whole || has_chunk(keys) => StageEnd::Next(DiffStage::Cookies(0)),
                None => StageEnd::Over,
            },
            DiffStage::Cookies(after) => match self.cookies(ino, after)? {
                Some(after) => StageEnd::Stop(DiffStage::Cookies(after)),
                None => StageEnd::Next(DiffStage::Chunks(0)),
            },
            DiffStage::Chunks(_) | DiffStage::Beyond(_) if !self.bytes => StageEnd::Over,
            DiffStage::Chunks(from) => match self.chunks(ino, from, keys)? {
                Some(from) => StageEnd::Stop(DiffStage::Chunks(from)),
                None if is_whole => StageEnd::Next(DiffStage::Beyond(0)),
                None => StageEnd::Over,
            },
            DiffStage::Beyond(from) => match self.beyond(ino, from)? {
                Some(from) => StageEnd::Stop(DiffStage::Beyond(from)),
                None => StageEnd::Over,
            },
        })
    }

    fn record(&mut self, ino: Ino, keys: &[TouchedKey]) {
        self.work(1);
        let xattrs = keys.iter().any(|key| key.part == TouchedPart::Xattrs);
        self.found.push(DiffFinding::Inode(FoundInode {
            ino,
            xattrs,
            ranges: Vec::new(),
            continued: false,
        }));
    }

    /// Looks at the kept names behind `after`. Returns the last one if the page ends there.
    fn names(
        &mut self,
        directory: Ino,
        after: &[u8],
        keys: &[TouchedKey],
    ) -> Result<Option<Vec<u8>>, OpError> {
        let names = keys.iter().filter_map(|key| match &key.part {
            TouchedPart::Name(name) if name.as_slice() > after => Some(name),
            _ => None,
        });
        let mut last = after;
        for name in names {
            if self.left == 0 {
                return Ok(Some(last.to_vec()));
            }
            self.name(directory, name)?;
            last = name;
        }
        Ok(None)
    }

    fn name(&mut self, directory: Ino, name: &[u8]) -> Result<(), OpError> {
        self.work(1);
        let old = self.sides.old_entry(directory, name)?;
        let new = self.sides.new_entry(directory, name)?;
        if let (Some(old), Some(new)) = (old, new)
            && old.ino == new.ino
            && self.sides.is_same(old.ino)?
        {
            return Ok(());
        }
        if let Some(old) = old {
            self.push_name(directory, name, old.ino, false);
        }
        let first_new = self.sides.first_new_cookie(directory)?;
        // A new one is found by its cookie.
        if let Some(new) = new.filter(|new| new.cookie < first_new) {
            self.push_name(directory, name, new.ino, true);
        }
        Ok(())
    }

    fn push_name(&mut self, directory: Ino, name: &[u8], ino: Ino, has_come: bool) {
        self.found.push(DiffFinding::Name(FoundName {
            directory,
            name: name.to_vec(),
            ino,
            has_come,
        }));
    }

    /// Looks at the new names behind a cookie. Returns the last one if the page ends there.
    fn cookies(&mut self, directory: Ino, after: u64) -> Result<Option<u64>, OpError> {
        let first = self.sides.first_new_cookie(directory)?;
        let first = first.max(after.saturating_add(1));
        // One more than there is work for: the page ends if it is there.
        let entries = self
            .sides
            .new_entries(directory, first, self.left.saturating_add(1))?;
        let mut last = after;
        for (cookie, entry) in entries {
            if self.left == 0 {
                return Ok(Some(last));
            }
            self.work(1);
            last = cookie;
            let name = entry.name.as_bytes();
            let old = self.sides.old_entry(directory, name)?;
            let was_here = old.is_some_and(|old| old.ino == entry.ino);
            if !was_here || !self.sides.is_same(entry.ino)? {
                self.push_name(directory, name, entry.ino, true);
            }
        }
        Ok(None)
    }

    /// The sizes of a file, if it is there now. Opens no content.
    fn sizes(&self, ino: Ino) -> Result<Option<FileSizes>, OpError> {
        let Some(inode) = self.sides.inode_now(ino)? else {
            return Ok(None);
        };
        let Some(new) = inode.body.file_size() else {
            return Ok(None);
        };
        let old = match self.sides.inode_then(ino)? {
            Some(old) if !self.sides.is_replaced(ino, &old, &inode)? => old.body.file_size(),
            _ => None,
        };
        Ok(Some(FileSizes { old, new }))
    }

    /// A file of these sizes at both moments.
    fn file(&self, ino: Ino, sizes: FileSizes) -> Result<FilePair, OpError> {
        let old = match sizes.old {
            Some(size) => Some(file_at(&self.sides.from, ino, size)?),
            None => None,
        };
        let new = file_at(&*self.sides.to, ino, sizes.new)?;
        Ok(FilePair { ino, old, new })
    }

    /// Compares the kept chunks from a number on. Returns the next one if the page ends before it.
    fn chunks(&mut self, ino: Ino, from: u64, keys: &[TouchedKey]) -> Result<Option<u64>, OpError> {
        let numbers = keys.iter().filter_map(|key| match key.part {
            TouchedPart::Chunk(number) if number >= from => Some(number),
            _ => None,
        });
        let mut file = None;
        let mut ranges = Vec::new();
        let mut stop = None;
        for number in numbers {
            if self.left == 0 {
                stop = Some(number);
                break;
            }
            self.work(CHUNK_WORK);
            let pair = match file {
                Some(pair) => pair,
                None => match self.sizes(ino)? {
                    Some(sizes) => self.file(ino, sizes)?,
                    None => break,
                },
            };
            pair.compare_chunk(number, &mut ranges)?;
            file = Some(pair);
        }
        self.push_ranges(ino, ranges);
        Ok(stop)
    }

    /// Looks for bytes behind the older size, from an offset on. Returns the offset at which the page ends.
    fn beyond(&mut self, ino: Ino, from: u64) -> Result<Option<u64>, OpError> {
        let longer = |sizes: &FileSizes| sizes.new > sizes.old.unwrap_or(0);
        let Some(sizes) = self.sizes(ino)?.filter(longer) else {
            return Ok(None);
        };
        let file = self.file(ino, sizes)?;
        let (mut at, mut ranges) = (from, Vec::new());
        let stop = loop {
            let Some(data) = file.beyond(at)? else {
                break None;
            };
            if self.left == 0 {
                break Some(at);
            }
            self.work(1);
            at = data.end;
            push_range(&mut ranges, data, false);
        };
        self.push_ranges(ino, ranges);
        Ok(stop)
    }

    fn push_ranges(&mut self, ino: Ino, ranges: Vec<DiffRange>) {
        if ranges.is_empty() {
            return;
        }
        match self.found.last_mut() {
            Some(DiffFinding::Inode(last)) if last.ino == ino => {
                for DiffRange { bytes, is_zero } in ranges {
                    push_range(&mut last.ranges, bytes, is_zero);
                }
            }
            _ => self.found.push(DiffFinding::Inode(FoundInode {
                ino,
                xattrs: false,
                ranges,
                continued: true,
            })),
        }
    }
}

fn file_at(view: &dyn StoreView, ino: Ino, size: u64) -> Result<FileAt, OpError> {
    let content = view.content(ino)?;
    Ok(FileAt { size, content })
}

fn has_chunk(keys: &[TouchedKey]) -> bool {
    keys.iter()
        .any(|key| matches!(key.part, TouchedPart::Chunk(_)))
}

/// The keys of a page: those of the index, those of new inodes, and those of unflushed files. None is missing before the place behind them.
fn page_keys(
    sides: &Sides<'_>,
    place: &DiffPlace,
    unflushed: &[Ino],
    (max, chunks): (usize, bool),
) -> Result<PageKeys, OpError> {
    // New inodes first: a record that is removed in between is kept, and in the index.
    let new = sides.new_inodes(place, max)?;
    let ids = (sides.from.id(), sides.to_id);
    let (mut keys, is_all) = touched_keys(&sides.source.namespace, ids, place, (max, chunks))?;
    let last_kept = keys.last().filter(|_| !is_all).cloned();
    let last_new = new.last().filter(|_| new.len() >= max).cloned();
    let last = last_kept.into_iter().chain(last_new).min();
    keys.extend(new);
    let first_unflushed = match place.stage {
        DiffStage::Inode => place.ino,
        _ => place.ino.saturating_add(1),
    };
    let unflushed = unflushed.iter().map(|ino| ino.get());
    keys.extend(
        unflushed
            .filter(|ino| *ino >= first_unflushed)
            .map(|ino| TouchedKey {
                ino,
                part: TouchedPart::Record,
            }),
    );
    keys.sort_unstable();
    keys.dedup();
    let Some(last) = last else {
        return Ok(PageKeys { keys, next: None });
    };
    let next = match &last.part {
        // The record and the extended attributes of an inode are of one page.
        TouchedPart::Record => DiffPlace::before(last.ino),
        TouchedPart::Xattrs => DiffPlace {
            ino: last.ino,
            stage: DiffStage::Names(Vec::new()),
        },
        TouchedPart::Name(name) => DiffPlace {
            ino: last.ino,
            stage: DiffStage::Names(name.clone()),
        },
        TouchedPart::Chunk(number) => DiffPlace {
            ino: last.ino,
            stage: DiffStage::Chunks(number.saturating_add(1)),
        },
    };
    let is_left_out = last.part == TouchedPart::Record;
    keys.retain(|key| {
        if is_left_out {
            key.ino < last.ino
        } else {
            *key <= last
        }
    });
    Ok(PageKeys {
        keys,
        next: Some(next),
    })
}
