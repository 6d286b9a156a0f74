//! The whole state of a disk: its names, its files, its room, and its faults.
//!
//! Invariants: `used_pages` and `used_files` count the files that are seen or open. Any other file is held
//! only while a power loss may bring its name back. Every change of a held file goes through [`State::edit`],
//! which updates the counts.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use lockstep_types::Errno;
use lockstep_types::backing::{BackingStat, Space};
use lockstep_types::limits::FILE_BYTES_MAX;

use super::call::{Action, Extent, FileAction, Observer};
use super::faults::Faults;
use super::inode::{ChangeCounter, Inode};
use super::loss::Survivors;
use super::names::{Entry, InodeNumber, Names, parent};
use super::pages::{PAGE_BYTES, Pages, index};
use crate::random::Random;

/// A disk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Room for content in bytes, counted in pages of 4 KiB.
    pub capacity_bytes: u64,
    /// Most files and directories.
    pub capacity_files: u64,
}

/// An error with an errno, which survives being passed on.
pub(super) fn refused(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.code())
}

/// The error of a call by a process that has ended.
pub fn gone() -> io::Error {
    io::Error::other("the process of this call has ended")
}

/// A file, and the reasons to hold it.
#[derive(Clone, Debug)]
struct Slot {
    inode: Arc<Inode>,
    opens: u64,
    /// The file has a name that is seen.
    is_named: bool,
    /// A power loss may leave the file with a name.
    is_kept: bool,
}

impl Slot {
    /// A file that is not counted yet.
    fn new(inode: Arc<Inode>) -> Self {
        Self {
            inode,
            opens: 0,
            is_named: false,
            is_kept: true,
        }
    }

    /// Pages and inodes that the file takes from the room on the disk.
    fn used(&self) -> (u64, u64) {
        if self.is_named || self.opens > 0 {
            (self.inode.seen().count(), 1)
        } else {
            (0, 0)
        }
    }
}

/// The state of a disk.
#[derive(Clone)]
pub(super) struct State {
    pub(super) options: DiskOptions,
    pub(super) names: Names,
    slots: BTreeMap<InodeNumber, Slot>,
    next_number: InodeNumber,
    used_pages: u64,
    used_files: u64,
    changes: ChangeCounter,
    incarnation: u64,
    serial: u64,
    pub(super) faults: Faults,
    pub(super) observer: Option<Observer>,
}

impl State {
    pub(super) fn new(options: DiskOptions) -> Self {
        Self {
            options,
            names: Names::default(),
            slots: BTreeMap::new(),
            next_number: 1,
            used_pages: 0,
            used_files: 0,
            changes: ChangeCounter::default(),
            incarnation: 0,
            serial: 0,
            faults: Faults::default(),
            observer: None,
        }
    }

    /// The state of a fork: no process, no faults.
    pub(super) fn forked(&self) -> Self {
        let mut state = self.clone();
        state.observer = None;
        state.faults.clear();
        state.kill();
        state
    }

    /// The process that uses the disk, as a number.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Refuses a call of a process that has ended.
    pub(super) fn check(&self, incarnation: u64) -> io::Result<()> {
        if self.incarnation == incarnation {
            Ok(())
        } else {
            Err(gone())
        }
    }

    /// Ends the process and closes its files.
    pub(super) fn kill(&mut self) {
        self.incarnation += 1;
        let open = self.slots.iter().filter(|(_, slot)| slot.opens > 0);
        let open: Vec<InodeNumber> = open.map(|(number, _)| *number).collect();
        for number in open {
            self.edit(number, |slot, _| slot.opens = 0);
        }
    }

    /// Ends the process, and returns the error of its call.
    pub(super) fn crash<T>(&mut self) -> io::Result<T> {
        self.kill();
        Err(gone())
    }

    /// Numbers a call.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Number of numbered calls.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Changes a file, and drops it if nothing holds it any more. A file that is not held does not change.
    fn edit<T>(
        &mut self,
        number: InodeNumber,
        body: impl FnOnce(&mut Slot, &mut ChangeCounter) -> T,
    ) -> Option<T> {
        let slot = self.slots.get_mut(&number)?;
        let (pages, files) = slot.used();
        let done = body(slot, &mut self.changes);
        let (pages_now, files_now) = slot.used();
        self.used_pages = self.used_pages + pages_now - pages;
        self.used_files = self.used_files + files_now - files;
        if slot.opens == 0 && !slot.is_named && !slot.is_kept {
            self.slots.remove(&number);
        }
        Some(done)
    }

    /// Changes the content of a file.
    fn change<T>(
        &mut self,
        number: InodeNumber,
        body: impl FnOnce(&mut Inode, &mut ChangeCounter) -> T,
    ) -> io::Result<T> {
        let edit = |slot: &mut Slot, changes: &mut ChangeCounter| {
            body(Arc::make_mut(&mut slot.inode), changes)
        };
        self.edit(number, edit)
            .ok_or_else(|| refused(Errno::BadHandle))
    }

    /// The content that reads see.
    pub(super) fn content(&self, number: InodeNumber) -> io::Result<&Pages> {
        let slot = self.slots.get(&number);
        let slot = slot.ok_or_else(|| refused(Errno::BadHandle))?;
        Ok(slot.inode.seen())
    }

    /// A file with its seen and its durable state.
    pub(super) fn inode(&self, number: InodeNumber) -> Option<&Inode> {
        Some(&self.slots.get(&number)?.inode)
    }

    /// The limits at which nothing more fits.
    pub(super) fn full(&self) -> DiskOptions {
        DiskOptions {
            capacity_bytes: self.used_pages * PAGE_BYTES,
            capacity_files: self.used_files + self.names.directories().count() as u64,
        }
    }

    fn free_pages(&self) -> u64 {
        let pages = self.options.capacity_bytes / PAGE_BYTES;
        pages.saturating_sub(self.used_pages)
    }

    fn free_files(&self) -> u64 {
        let used = self.used_files + self.names.directories().count() as u64;
        self.options.capacity_files.saturating_sub(used)
    }

    /// Room on the disk.
    pub(super) fn space(&self) -> Space {
        let free_bytes = self.free_pages() * PAGE_BYTES;
        Space {
            total_bytes: self.options.capacity_bytes,
            free_bytes,
            available_bytes: free_bytes,
            total_files: self.options.capacity_files,
            free_files: self.free_files(),
        }
    }

    /// Length and space of a file.
    pub(super) fn stat(&self, number: InodeNumber) -> io::Result<BackingStat> {
        let content = self.content(number)?;
        Ok(BackingStat {
            length: content.length(),
            blocks: content.count() * (PAGE_BYTES / 512),
        })
    }

    /// Opens a file.
    pub(super) fn open(&mut self, path: &str) -> io::Result<InodeNumber> {
        let number = self.names.file(path).map_err(refused)?;
        self.edit(number, |slot, _| slot.opens += 1);
        Ok(number)
    }

    /// A process closes a file. Does nothing if that process has ended.
    pub(super) fn close(&mut self, number: InodeNumber, incarnation: u64) {
        if self.check(incarnation).is_ok() {
            self.edit(number, |slot, _| slot.opens = slot.opens.saturating_sub(1));
        }
    }

    /// Executes a call.
    pub(super) fn act(&mut self, action: Action<'_>) -> io::Result<()> {
        match action {
            Action::Create(path) => self.create(path),
            Action::MakeDirectory(path) => self.make_directory(path),
            Action::Remove(path) => self.remove(path),
            Action::RemoveDirectory(path) => {
                let change = self.changes.next();
                self.names.remove_directory(path, change).map_err(refused)
            }
            Action::Rename(from, to) => self.rename(from, to),
            Action::File(_, number, action) => self.act_on(number, action),
            Action::SyncDirectory(path) => self.sync_directory(path),
            Action::SyncAll => {
                self.sync_all();
                Ok(())
            }
        }
    }

    fn act_on(&mut self, number: InodeNumber, action: FileAction<'_>) -> io::Result<()> {
        match action {
            FileAction::Write { offset, data } => self.write(number, offset, data),
            FileAction::Store { offset, data } => self.store(number, offset, data),
            FileAction::SetLength(length) => {
                end_of(length, 0)?;
                self.change(number, |inode, changes| inode.set_len(length, changes))
            }
            FileAction::Allocate(extent) => self.allocate(number, extent),
            FileAction::PunchHole(extent) => {
                let range = extent.offset..end_of(extent.offset, extent.length)?;
                self.change(number, |inode, changes| inode.punch(range, changes))
            }
            FileAction::ZeroRange(extent) => {
                let range = self.room_for(number, extent)?;
                self.change(number, |inode, changes| {
                    inode.zero(&range, extent.keep_size, changes);
                })
            }
            FileAction::Sync => self.change(number, |inode, _| inode.sync()),
        }
    }

    /// Lets a call fail. Only a failed sync has an effect.
    pub(super) fn fail(&mut self, action: Action<'_>) {
        match action {
            Action::File(_, number, FileAction::Sync) => {
                self.edit(number, |slot, _| Arc::make_mut(&mut slot.inode).fail_sync());
            }
            Action::SyncDirectory(path) => self.names.fail_sync(path),
            Action::SyncAll => {
                self.names.fail_sync_all();
                for slot in self.slots.values_mut() {
                    Arc::make_mut(&mut slot.inode).fail_sync();
                }
            }
            _ => {}
        }
    }

    /// Makes a file and the directories above it. The directories stay if there is no room for the file, as
    /// separate calls make them.
    fn create(&mut self, path: &str) -> io::Result<()> {
        self.must_be_free(path)?;
        for directory in self.names.missing_above(path) {
            self.make(&directory, Entry::Directory)?;
        }
        let number = self.next_number;
        self.make(path, Entry::File(number))?;
        self.next_number += 1;
        self.slots.insert(number, Slot::new(Arc::default()));
        self.edit(number, |slot, _| slot.is_named = true);
        Ok(())
    }

    /// Makes a directory in an existing directory.
    fn make_directory(&mut self, path: &str) -> io::Result<()> {
        self.must_be_free(path)?;
        self.make(path, Entry::Directory)
    }

    fn must_be_free(&self, path: &str) -> io::Result<()> {
        match self.names.find(path) {
            Err(Errno::NoEntry) => Ok(()),
            Err(error) => Err(refused(error)),
            Ok(_) => Err(refused(Errno::Exists)),
        }
    }

    fn make(&mut self, path: &str, entry: Entry) -> io::Result<()> {
        if self.free_files() == 0 {
            return Err(refused(Errno::NoSpace));
        }
        let change = self.changes.next();
        self.names.make(path, entry, change).map_err(refused)
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        let change = self.changes.next();
        let number = self.names.remove(path, change).map_err(refused)?;
        self.edit(number, |slot, _| slot.is_named = false);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let change = self.changes.next();
        let replaced = self.names.rename(from, to, change).map_err(refused)?;
        if let Some(number) = replaced {
            self.edit(number, |slot, _| slot.is_named = false);
        }
        Ok(())
    }

    /// If the disk gets full in the middle of a write, the pages before are written.
    fn write(&mut self, number: InodeNumber, offset: u64, data: &[u8]) -> io::Result<()> {
        end_of(offset, data.len() as u64)?;
        let room = self.free_pages();
        let written = self.change(number, |inode, changes| {
            inode.write(offset, data, room, changes)
        })?;
        if written < data.len() {
            return Err(refused(Errno::NoSpace));
        }
        Ok(())
    }

    /// Stores into a table, whose space is always reserved. Bytes past the end of the file cannot be kept.
    fn store(&mut self, number: InodeNumber, offset: u64, data: &[u8]) -> io::Result<()> {
        let left = self.content(number)?.length().saturating_sub(offset);
        let data = data.get(..index(left)).unwrap_or(data);
        self.change(number, |inode, changes| {
            inode.write(offset, data, u64::MAX, changes);
        })
    }

    /// If the disk gets full in the middle, the range keeps the pages reserved so far, as on ext4.
    fn allocate(&mut self, number: InodeNumber, extent: Extent) -> io::Result<()> {
        let range = extent.offset..end_of(extent.offset, extent.length)?;
        let room = self.free_pages();
        let is_whole = self.change(number, |inode, changes| {
            inode.reserve_some(&range, extent.keep_size, room, changes)
        })?;
        is_whole
            .then_some(())
            .ok_or_else(|| refused(Errno::NoSpace))
    }

    /// The range of an extent, if there is room to reserve the whole range. Otherwise nothing is reserved.
    fn room_for(&self, number: InodeNumber, extent: Extent) -> io::Result<Range<u64>> {
        let range = extent.offset..end_of(extent.offset, extent.length)?;
        let missing = self
            .inode(number)
            .map_or(0, |inode| inode.missing_pages(&range));
        if missing > self.free_pages() {
            return Err(refused(Errno::NoSpace));
        }
        Ok(range)
    }

    fn sync_directory(&mut self, path: &str) -> io::Result<()> {
        match self.names.find(path) {
            Ok(Entry::Directory) => {}
            Ok(Entry::File(_)) => return Err(refused(Errno::NotDirectory)),
            // The directory was removed: the removal must survive.
            Err(Errno::NoEntry) if path.contains('/') => return self.sync_directory(parent(path)),
            Err(error) => return Err(refused(error)),
        }
        let gone = self.names.sync(path);
        self.forget(gone);
        Ok(())
    }

    fn sync_all(&mut self) {
        for slot in self.slots.values_mut() {
            if slot.inode.unsynced() > 0 {
                Arc::make_mut(&mut slot.inode).sync();
            }
        }
        let gone = self.names.sync_all();
        self.forget(gone);
    }

    /// These files have lost their durable name too.
    fn forget(&mut self, gone: Vec<InodeNumber>) {
        for number in gone {
            self.edit(number, |slot, _| slot.is_kept = false);
        }
    }

    /// Chooses survivors at random, among the changes that are not on stable storage.
    pub(super) fn choose_survivors(&self, random: &mut Random) -> Survivors {
        let inodes = self.slots.values();
        let first = inodes.filter_map(|slot| slot.inode.first_change());
        let first = first.chain(self.names.first_change()).min();
        let last = self.changes.last();
        Survivors::choose(random, first.unwrap_or(last), last)
    }

    /// The process ends and power is lost.
    pub(super) fn lose_power(&mut self, survivors: Survivors, random: &mut Random) {
        self.kill();
        self.keep(survivors, random);
    }

    /// Forgets unsynced changes, and closes all files.
    pub(super) fn forget_cached(&mut self) {
        // With no survivors nothing is left to chance.
        self.keep(Survivors::Nothing, &mut Random::new(0));
    }

    /// Reads the pages that failed syncs gave up from the disk again.
    pub(super) fn drop_lost_pages(&mut self) {
        let numbers: Vec<InodeNumber> = self.slots.keys().copied().collect();
        for number in numbers {
            self.edit(number, |slot, _| {
                Arc::make_mut(&mut slot.inode).drop_lost_pages();
            });
        }
    }

    /// Makes the survivors the seen state.
    fn keep(&mut self, survivors: Survivors, random: &mut Random) {
        self.names.lose_power(survivors, random);
        let mut before = std::mem::take(&mut self.slots);
        (self.used_pages, self.used_files) = (0, 0);
        let left: Vec<_> = self.names.files().map(|(_, number)| number).collect();
        for number in left {
            if let Some(slot) = before.remove(&number) {
                self.restore(number, slot.inode, survivors, random);
            }
        }
    }

    /// Takes over a file that has a name after a power loss.
    fn restore(
        &mut self,
        number: InodeNumber,
        mut inode: Arc<Inode>,
        survivors: Survivors,
        random: &mut Random,
    ) {
        if inode.unsynced() > 0 {
            Arc::make_mut(&mut inode).lose_power(survivors, random);
        }
        self.slots.insert(number, Slot::new(inode));
        self.edit(number, |slot, _| slot.is_named = true);
    }

    /// Gives a file these bytes, on stable storage.
    pub(super) fn put(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        if self.names.find(path).is_err() {
            self.create(path)?;
            self.sync_directory(parent(path))?;
        }
        let number = self.names.file(path).map_err(refused)?;
        self.act_on(number, FileAction::SetLength(0))?;
        self.write(number, 0, bytes)?;
        self.act_on(number, FileAction::Sync)
    }

    /// Flips one bit of a file. Returns false if there is no such byte.
    pub(super) fn flip(&mut self, path: &str, offset: u64, bit: u32) -> bool {
        let Ok(number) = self.names.file(path) else {
            return false;
        };
        let flip = |inode: &mut Inode, _: &mut ChangeCounter| inode.flip(offset, bit);
        self.change(number, flip).unwrap_or(false)
    }

    /// Number of pages, lengths and names that are not on stable storage.
    pub(super) fn unsynced(&self) -> usize {
        let inodes = self.slots.values().map(|slot| slot.inode.unsynced());
        inodes.sum::<usize>() + self.names.unsynced()
    }
}

/// The end of a range, which must lie where a file can.
fn end_of(offset: u64, length: u64) -> io::Result<u64> {
    let end = offset.checked_add(length);
    let end = end.filter(|end| *end <= FILE_BYTES_MAX);
    end.ok_or_else(|| refused(Errno::TooBig))
}
