//! Lost+found: the data that only a deposed node had, set aside before a resync overwrites it.
//!
//! Each generation in which the node was deposed has a directory (`docs/on-disk.md`): a list for people, whole content
//! files that were removed, and sparse files with the old bytes of overwritten ranges, each byte at its old offset.
//!
//! Prohibitions: nothing here fails the caller's work. Data that cannot be preserved are named in the list. Nothing here takes
//! the reserve, or more than a part of the room that is free when the preservation begins.
//!
//! Invariants:
//! - The list names a range before its bytes are preserved, and the bytes are preserved before the caller overwrites them. So a
//!   killed process loses nothing of either.
//! - Of several changes of one block, the bytes before the first are preserved.
//!
//! Locks: `preservation`, then `progress` or `totals`. No other lock is taken under them but those of the namespace. Only
//! `preservation` is held for calls of the disk, but for the noting of records, in which no operation runs beside.

mod list;
mod names;
mod progress;
mod totals;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::backing::{Backing, BackingFile, Room};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Generation, Ino};
use parking_lot::Mutex;

use self::list::{Entry, Path, PreservedList};
pub use self::progress::OwnBytes;
use self::progress::ResyncProgress;
use crate::content::before_change::{ByteChange, ByteEdit, ByteObserver, ChangeOrigin};
use crate::content::freed::{MarkOwner, Removal};
use crate::error::StoreError;
use crate::namespace::{Namespace, record};
use crate::paths::{content_path, lost_found_dir};
use crate::store_disk::StoreDisk;

pub use self::totals::PreservedTotals;

/// The part of the free room, in bytes and in files, that one preservation may take: one in this number.
const ROOM_SHARE: u64 = 4;
/// Bytes that are read and preserved at once.
const PIECE_BYTES: u64 = 256 << 10;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of a file that are about to change.
#[derive(Clone, Debug)]
pub struct LostBytes<'a> {
    /// The file.
    pub ino: Ino,
    /// The bytes; the end of the content bounds them.
    pub range: Range<u64>,
    /// The bytes that come in their place, if they are known: blocks that stay equal are not preserved.
    pub new: Option<&'a [u8]>,
    /// The change.
    pub kind: LostKind,
}

/// How bytes are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostKind {
    /// Other bytes, or none, come in their place.
    Overwritten,
    /// The file becomes shorter.
    Cut,
}

/// The data that are set aside of one store. Does nothing until [`Self::begin`].
#[derive(Default)]
pub struct LostFound {
    /// Whether a preservation is under way, for callers that must not wait.
    is_preserving: AtomicBool,
    preservation: Mutex<Option<Preservation>>,
    /// Apart from `preservation`, which is held while the disk works.
    progress: Mutex<ResyncProgress>,
    totals: Mutex<BTreeMap<Generation, PreservedTotals>>,
}

/// A preservation under way.
struct Preservation {
    generation: Generation,
    backing: Arc<dyn Backing>,
    list: PreservedList,
    /// Room that may still be taken.
    left: Room,
}

/// Begin and end.
impl LostFound {
    /// Preserves what changes from now on. `generation` is the one in which this node was deposed. A preservation of the same
    /// generation that was interrupted is continued; its limit is counted anew.
    /// `own`: this node had nothing alone but these bytes.
    pub fn begin(&self, disk: &StoreDisk, generation: Generation, own: Option<OwnBytes>) {
        let mut preservation = self.preservation.lock();
        *preservation = Some(Preservation::open(disk, generation));
        *self.progress.lock() = ResyncProgress::of(own);
        self.is_preserving.store(true, Ordering::Release);
    }

    /// Preserves nothing from now on.
    pub fn end(&self) {
        let mut preservation = self.preservation.lock();
        self.is_preserving.store(false, Ordering::Release);
        *preservation = None;
    }

    /// Whether a preservation is under way.
    pub fn is_preserving(&self) -> bool {
        self.is_preserving.load(Ordering::Acquire)
    }

    /// The generation of the preservation under way.
    pub fn generation(&self) -> Option<Generation> {
        self.preservation
            .lock()
            .as_ref()
            .map(|preservation| preservation.generation)
    }
}

/// Progress of the resync, which tells bytes of this node from bytes that came from the primary.
impl LostFound {
    /// The secondary has taken over size and times of a file. `differs`: the bytes before `size` are compared next.
    pub fn file_begun(&self, ino: Ino, size: u64, differs: bool) {
        self.note_progress(|progress| progress.file_begun(ino, size, differs));
    }

    /// The bytes of a file before `end` are equal on both nodes, or are being made equal.
    pub fn compared(&self, ino: Ino, end: u64) {
        self.note_progress(|progress| progress.compared(ino, end));
    }

    /// Every record up to `key` came from the primary.
    pub fn records_loaded(&self, key: &[u8]) {
        self.note_progress(|progress| progress.records_loaded(key));
    }

    /// The namespace came from the primary. Files with numbers from `first_new` on are made on both nodes.
    pub fn namespace_loaded(&self, first_new: u64) {
        self.note_progress(|progress| progress.namespace_loaded(first_new));
    }

    /// Whether a mirrored change of these bytes may change some that only this node has.
    pub fn is_unsettled(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        self.is_preserving() && self.progress.lock().is_unsettled(ino, bytes)
    }

    fn note_progress(&self, note: impl FnOnce(&mut ResyncProgress)) {
        if self.is_preserving() {
            note(&mut self.progress.lock());
        }
    }

    fn with(&self, change: impl FnOnce(&mut Preservation)) {
        if self.is_preserving()
            && let Some(preservation) = &mut *self.preservation.lock()
        {
            change(preservation);
        }
    }
}

/// Of a change by a resync, every byte that this node may have had alone; of a mirrored operation, the bytes that the
/// resync has not come to. No failure stops the change.
impl ByteObserver for LostFound {
    fn before_change(
        &self,
        change: &ByteChange<'_>,
        old: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        if !self.is_preserving() {
            return Ok(());
        }
        if let Some(loss) = loss_of(change)
            && (change.origin == ChangeOrigin::Resync || self.is_unsettled(loss.ino, &loss.range))
        {
            self.preserve_range(old, &loss);
        }
        Ok(())
    }

    fn mark_owner(&self) -> Option<MarkOwner> {
        Some(MarkOwner::LOST_FOUND)
    }

    /// The mark is the generation.
    fn freed(&self, ino: Ino, origin: ChangeOrigin) -> Option<Vec<u8>> {
        let whole = 0..u64::MAX;
        let may_be_own = match origin {
            ChangeOrigin::Operation => self.is_unsettled(ino, &whole),
            ChangeOrigin::Resync => self.progress.lock().concerns(ino, &whole),
        };
        let generation = may_be_own.then(|| self.generation())??;
        Some(record::encode(&generation))
    }

    fn before_removal(&self, removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        let Some(generation) = removal.mark.and_then(record::decode) else {
            return Ok(None);
        };
        let moved = self.move_content(removal, generation);
        moved.map_err(StoreError::disk("keep", content_path(removal.ino)))
    }
}

/// Preserving.
impl LostFound {
    /// Preserves bytes of `content` that are about to change.
    pub fn preserve_range(&self, content: &dyn BackingFile, loss: &LostBytes<'_>) {
        if !self.progress.lock().concerns(loss.ino, &loss.range) {
            return;
        }
        self.with(|preservation| {
            let mut preserved = PreservedTotals::default();
            if let Err(error) = preservation.preserve_range(content, loss, &mut preserved) {
                preservation.list_failure(loss.ino, &error);
            }
            self.add(preservation.generation, preserved);
        });
    }

    /// Notes that records are about to change that this node had alone.
    pub fn note_records(
        &self,
        namespace: &Namespace,
        changes: &BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ) -> Result<(), StoreError> {
        let mut noted = Ok(());
        self.with(|preservation| {
            let progress = self.progress.lock();
            let changes = changes.iter().filter(|(key, _)| !progress.is_loaded(key));
            noted = names::note(namespace, changes, &mut preservation.list);
        });
        noted
    }

    /// Notes an operation that the store drops because its outcome is not known.
    pub fn note_dropped(disk: &StoreDisk, generation: Generation, operation: &str) {
        let mut preservation = Preservation::open(disk, generation);
        let entry = Entry {
            what: "in doubt",
            ino: None,
            path: Path::Unknown,
            detail: operation,
            place: "",
        };
        preservation.list.add(&entry);
    }

    /// Takes the content of a removed file. Returns the directory that has it now, whose names are to be
    /// synced. The content of a file for which there is no room stays in place, for the caller to remove.
    ///
    /// # Errors
    /// If the disk cannot be asked for the file.
    pub fn move_content(
        &self,
        removal: &Removal<'_>,
        generation: Generation,
    ) -> io::Result<Option<String>> {
        let mut preservation = self.preservation.lock();
        let mut other;
        let preservation = match &mut *preservation {
            Some(preservation) if preservation.generation == generation => preservation,
            _ => {
                other = Preservation::open(removal.disk, generation);
                &mut other
            }
        };
        let (directory, moved) = preservation.move_content(removal)?;
        self.add(generation, moved);
        Ok(directory)
    }

    /// Makes room on a full disk: removes the content that is preserved of this generation, says so in the list, and preserves no
    /// more. Returns whether there was any.
    pub fn give_room_back(&self) -> bool {
        let mut given = false;
        self.with(|preservation| {
            preservation.left = Room::NONE;
            let directory = format!("{}/content", lost_found_dir(preservation.generation));
            let removed = totals::remove_all(&*preservation.backing, &directory);
            given = removed.files > 0;
            if given {
                let detail = format!("{} bytes in {} files", removed.bytes, removed.files);
                let entry = Entry {
                    what: "REMOVED AGAIN",
                    ino: None,
                    path: Path::Unknown,
                    detail: &detail,
                    place: "NOT KEPT: the disk got full, and the resync needs the room",
                };
                preservation.list.add(&entry);
                self.totals.lock().remove(&preservation.generation);
            }
        });
        given
    }

    fn add(&self, generation: Generation, preserved: PreservedTotals) {
        if preserved == PreservedTotals::default() {
            return;
        }
        if let Some(totals) = self.totals.lock().get_mut(&generation) {
            *totals = totals.plus(preserved);
        }
    }
}

/// For operators.
impl LostFound {
    /// The preserved data, by generation, as of the last [`Self::refresh`]. Asks no disk.
    pub fn totals(&self) -> Vec<(Generation, PreservedTotals)> {
        let totals = self.totals.lock();
        totals
            .iter()
            .map(|(generation, preserved)| (*generation, *preserved))
            .collect()
    }

    /// Looks which directories exist, and counts what is in those that were not counted before.
    pub fn refresh(&self, disk: &StoreDisk) -> Result<(), StoreError> {
        let found = totals::generations(disk)?;
        let known: Vec<Generation> = {
            let mut totals = self.totals.lock();
            totals.retain(|generation, _| found.contains(generation));
            totals.keys().copied().collect()
        };
        for generation in found {
            if !known.contains(&generation) {
                let counted = totals::count(disk, generation)?;
                self.totals.lock().insert(generation, counted);
            }
        }
        Ok(())
    }

    /// The inodes in the list of the preservation under way whose paths are not known yet.
    pub fn without_path(&self) -> io::Result<Vec<Ino>> {
        let mut found = Ok(Vec::new());
        self.with(|preservation| found = preservation.list.without_path());
        found
    }

    /// Writes the list of the preservation under way anew, with these paths.
    pub fn add_paths(&self, paths: &BTreeMap<Ino, String>) -> io::Result<()> {
        let mut written = Ok(());
        self.with(|preservation| written = preservation.list.add_paths(paths));
        written
    }
}

impl Preservation {
    fn open(disk: &StoreDisk, generation: Generation) -> Self {
        let backing = Arc::clone(disk.backing());
        let room = disk.space().map_or(Room::NONE, |space| Room::of(&space));
        Self {
            generation,
            list: PreservedList::open(Arc::clone(&backing), generation),
            backing,
            left: Room {
                bytes: room.bytes / ROOM_SHARE,
                files: room.files / ROOM_SHARE,
            },
        }
    }

    /// Takes room, unless too little is left.
    fn take_room(&mut self, room: Room) -> bool {
        let has_room = self.left.covers(&room);
        if has_room {
            self.left = self.left.minus(room);
        }
        has_room
    }

    fn list_failure(&mut self, ino: Ino, error: &io::Error) {
        let place = format!("NOT KEPT: {error}");
        self.list.add(&Entry {
            what: "failure",
            ino: Some(ino),
            path: Path::Unknown,
            detail: "",
            place: &place,
        });
    }

    /// The path of a preserved file. `suffix` tells several files of one inode apart.
    fn place(&self, ino: Ino, suffix: &str) -> String {
        let directory = lost_found_dir(self.generation);
        format!("{directory}/{}{suffix}", content_path(ino))
    }

    /// Preserves the blocks of a range that hold data.
    fn preserve_range(
        &mut self,
        content: &dyn BackingFile,
        loss: &LostBytes<'_>,
        preserved: &mut PreservedTotals,
    ) -> io::Result<()> {
        let length = content.stat()?.length;
        // A file that becomes no shorter loses nothing, although its last block may be a part of one.
        if loss.kind == LostKind::Cut && length <= loss.range.start {
            return Ok(());
        }
        let end = loss.range.end.checked_next_multiple_of(BLOCK);
        let end = end.unwrap_or(u64::MAX).min(length);
        let mut at = loss.range.start - loss.range.start % BLOCK;
        while at < end {
            let Some(data) = content.seek_data(at)?.filter(|data| *data < end) else {
                break;
            };
            let start = (data - data % BLOCK).max(at);
            let hole = content.seek_hole(data)?.unwrap_or(end);
            let stop = hole.max(data + 1).next_multiple_of(BLOCK);
            let stop = stop.min(start + PIECE_BYTES).min(end);
            self.preserve_piece(content, loss, start..stop, preserved)?;
            at = stop;
        }
        Ok(())
    }

    fn preserve_piece(
        &mut self,
        content: &dyn BackingFile,
        loss: &LostBytes<'_>,
        piece: Range<u64>,
        preserved: &mut PreservedTotals,
    ) -> io::Result<()> {
        let length = usize::try_from(piece.end - piece.start).unwrap_or(0);
        let mut bytes = vec![0; length];
        let read = content.read_at(piece.start, &mut bytes)?;
        bytes.truncate(read);
        let place = self.place(loss.ino, ".ranges");
        let file = match self.backing.open(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened?),
        };
        let mut run: Option<Range<usize>> = None;
        let mut runs = Vec::new();
        for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let at = number * BLOCK_BYTES;
            let offset = piece.start + at as u64;
            let is_lost = changes(loss, offset, block) && !has_data(file.as_deref(), offset)?;
            match (&mut run, is_lost) {
                (Some(run), true) => run.end = at + block.len(),
                (None, true) => run = Some(at..at + block.len()),
                (_, false) => runs.extend(run.take()),
            }
        }
        runs.extend(run);
        for run in runs {
            let offset = piece.start + run.start as u64;
            let data = bytes.get(run).unwrap_or_default();
            self.preserve_run(loss, &place, offset, data, preserved)?;
        }
        Ok(())
    }

    /// Lists and preserves old bytes, whose blocks are not preserved yet.
    fn preserve_run(
        &mut self,
        loss: &LostBytes<'_>,
        place: &str,
        offset: u64,
        data: &[u8],
        preserved: &mut PreservedTotals,
    ) -> io::Result<()> {
        let is_new = !self.backing.exists(place)?;
        let taken = Room {
            bytes: (data.len() as u64).next_multiple_of(BLOCK),
            files: 2 * u64::from(is_new),
        };
        let has_room = self.take_room(taken);
        let detail = format!("offset {offset} length {}", data.len());
        let what = match loss.kind {
            LostKind::Overwritten => "overwritten",
            LostKind::Cut => "cut off",
        };
        self.list.add(&Entry {
            what,
            ino: Some(loss.ino),
            path: Path::Unknown,
            detail: &detail,
            place: if has_room { place } else { NO_ROOM },
        });
        if has_room {
            self.backing.open_or_create(place)?.write_at(offset, data)?;
            *preserved = preserved.plus(PreservedTotals {
                files: u64::from(is_new),
                bytes: data.len() as u64,
            });
        }
        Ok(())
    }

    fn move_content(
        &mut self,
        removal: &Removal<'_>,
    ) -> io::Result<(Option<String>, PreservedTotals)> {
        let ino = removal.ino;
        let nothing = (None, PreservedTotals::default());
        let from = content_path(ino);
        let stat = match self.backing.stat(&from) {
            // The file never had content, or it was moved before.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(nothing),
            found => found?,
        };
        let bytes = stat.blocks.saturating_mul(512);
        let place = self.free_place(ino)?;
        let has_room = self.take_room(Room { bytes, files: 2 });
        let detail = format!("length {}", stat.length);
        self.list.add(&Entry {
            what: "content removed",
            ino: Some(ino),
            path: Path::Unknown,
            detail: &detail,
            place: if has_room { &place } else { NO_ROOM },
        });
        if !has_room {
            return Ok(nothing);
        }
        // Makes the directories.
        let made = self.backing.open_or_create(&place);
        if let Err(error) = made.and_then(|_| removal.take(&place)) {
            self.list_failure(ino, &error);
            return Ok(nothing);
        }
        let directory = place.rsplit_once('/').map_or(".", |(above, _)| above);
        Ok((
            Some(directory.to_owned()),
            PreservedTotals { files: 1, bytes },
        ))
    }

    /// A path for a whole content file. An empty file there is left from a stop in the middle of a move.
    fn free_place(&self, ino: Ino) -> io::Result<String> {
        let mut number = 0_u64;
        loop {
            let suffix = if number == 0 {
                String::new()
            } else {
                format!(".{number}")
            };
            let place = self.place(ino, &suffix);
            match self.backing.stat(&place) {
                Ok(found) if found.length > 0 => number += 1,
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => return Ok(place),
            }
        }
    }
}

const NO_ROOM: &str = "NOT KEPT: the limit is reached (a quarter of the room that was free)";

/// The bytes that a change loses; `None` if it loses none.
fn loss_of<'a>(change: &ByteChange<'a>) -> Option<LostBytes<'a>> {
    let (new, kind) = match change.edit {
        ByteEdit::Write { data, .. } => (Some(data.bytes()), LostKind::Overwritten),
        ByteEdit::Resize { .. } => (None, LostKind::Cut),
        ByteEdit::Punch { .. } | ByteEdit::Zero { .. } => (None, LostKind::Overwritten),
        ByteEdit::TakeBack { .. } | ByteEdit::Reserve { .. } => return None,
    };
    Some(LostBytes {
        ino: change.ino,
        range: change.edit.range(),
        new,
        kind,
    })
}

/// Whether a change changes a block of old bytes at `offset`.
fn changes(loss: &LostBytes<'_>, offset: u64, old: &[u8]) -> bool {
    let Some(new) = loss.new else {
        return true;
    };
    let end = loss.range.start.saturating_add(new.len() as u64);
    let from = offset.max(loss.range.start);
    let to = (offset + old.len() as u64).min(end);
    let part = |bytes: &[u8], begin: u64| {
        let index = |at: u64| usize::try_from(at.saturating_sub(begin)).unwrap_or(usize::MAX);
        bytes.get(index(from)..index(to)).map(<[u8]>::to_vec)
    };
    from < to && part(old, offset) != part(new, loss.range.start)
}

/// Whether a preserved file has the block at `offset`.
fn has_data(file: Option<&dyn BackingFile>, offset: u64) -> io::Result<bool> {
    let Some(file) = file else {
        return Ok(false);
    };
    let data = file.seek_data(offset)?;
    Ok(data.is_some_and(|data| data < offset + BLOCK))
}

#[cfg(test)]
mod tests;
