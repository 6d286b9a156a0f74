//! The memory of one mount that outlives its process: a memory file, whose descriptor is kept beside those of the device.
//!
//! It holds four things: the [`MountRecord`], the numbers of the inodes that the kernel knows (`known_inodes`), the words of the
//! guard (`guard_words`), and a slot for each change under way whose second execution needs a note. The kernel sends a request
//! again that the killed process had executed and not answered. Most kinds of requests can be repeated, or find their own effect
//! (`resent`). The others note here, before they begin, the facts of that moment: an exchange of names (`exchange`), and a change
//! whose refusal leaves the store as its success would (`change_note`). A change that waits for this node to serve is noted as
//! well (`standby_queue`): it is not executed.
//!
//! The memory ends with the machine, as the mount does. A kill of the process at any instruction leaves each slot and each
//! number old or new: the kernel copies a slot, which never crosses a page, in one piece.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use fuser::Request;
use lockstep_driver::client::Done;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use lockstep_types::{Attr, Ino};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, MemfdFlags, SeekFrom, flock, memfd_create};
use serde::{Deserialize, Serialize};

use super::delivery::RequestDelivery;
use super::guard_words::GuardWords;
use crate::device::init;

/// Form of the memory. A program with another form cannot resume the mount.
const FORMAT: u32 = 2;

/// Bytes of the record, which is text, filled up with blanks. The slots are behind it.
const RECORD_BYTES: usize = BLOCK_BYTES;

/// Bytes of a slot: the unique number of a request, two inodes or zeros, and the kind of the note.
const SLOT_BYTES: usize = 32;

/// Where the numbers of the inodes begin.
const INODES_AT: u64 = 1 << 30;

/// Where the words of the guard are, in a block of their own before the numbers of the inodes. The file has a hole before it.
const GUARD_AT: u64 = INODES_AT - BLOCK_BYTES as u64;

/// Bytes of the number of an inode.
const INODE_BYTES: usize = 8;

/// The kinds of notes in a slot.
const EXCHANGE: u64 = 0;
const ATTRIBUTE: u64 = 1;
const PARKED: u64 = 2;

/// The facts about a mount that the next process has to know, or to agree with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    format: u32,
    /// Number of the mount in the mount table.
    pub mount_id: u64,
    /// Mount point of the configuration.
    pub mount_point: PathBuf,
    /// Capabilities that Lockstep has asked the kernel for.
    capabilities: u64,
    /// Most bytes of a write.
    write_bytes_max: usize,
}

impl MountRecord {
    /// The record of a mount that this program makes.
    pub fn new(mount_id: u64, mount_point: PathBuf) -> Self {
        Self {
            format: FORMAT,
            mount_id,
            mount_point,
            capabilities: init::asked_for().bits(),
            write_bytes_max: WRITE_BYTES_MAX,
        }
    }
}

/// A fact about a change that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeNote {
    /// The inodes behind the first and the second name of an exchange.
    Exchange { from: Ino, to: Ino },
    /// The store was as the change needs.
    Succeeds,
    /// The change has not begun.
    Parked,
}

/// A slot that is in use.
#[derive(Debug)]
pub(crate) struct NoteSlot(u64);

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct MountMemory {
    file: Arc<File>,
    slots: Arc<Mutex<NoteSlots>>,
    /// The notes of earlier processes on requests that this one has not read, by unique number.
    left: Arc<Mutex<HashMap<u64, (ChangeNote, NoteSlot)>>>,
}

#[derive(Debug, Default)]
struct NoteSlots {
    free: Vec<u64>,
    used: u64,
}

impl MountMemory {
    /// The memory of a new mount.
    pub fn create(record: &MountRecord) -> io::Result<Self> {
        let file = File::from(memfd_create("lockstep-mount", MemfdFlags::CLOEXEC)?);
        let mut text = serde_json::to_vec(record).map_err(io::Error::other)?;
        if text.len() > RECORD_BYTES {
            return Err(io::Error::other("the record of the mount is too long"));
        }
        text.resize(RECORD_BYTES, b' ');
        file.write_all_at(&text, 0)?;
        let memory = Self {
            file: Arc::new(file),
            slots: Arc::default(),
            left: Arc::default(),
        };
        memory.guard_words().begin()?;
        Ok(memory)
    }

    /// The memory of a mount that an earlier process has made, and its record.
    pub fn open(descriptor: OwnedFd) -> io::Result<(Self, MountRecord)> {
        let file = File::from(descriptor);
        let mut text = vec![0; RECORD_BYTES];
        file.read_exact_at(&mut text, 0)?;
        let record = serde_json::from_slice(&text).map_err(io::Error::other)?;
        let used = slots_end(&file)?.saturating_sub(RECORD_BYTES as u64) / SLOT_BYTES as u64;
        let (mut slots, mut left) = (NoteSlots::default(), HashMap::new());
        slots.used = used;
        for slot in 0..used {
            match read_slot(&file, slot)? {
                Some((unique, note)) => drop(left.insert(unique, (note, NoteSlot(slot)))),
                None => slots.free.push(slot),
            }
        }
        let memory = Self {
            file: Arc::new(file),
            slots: Arc::new(Mutex::new(slots)),
            left: Arc::new(Mutex::new(left)),
        };
        Ok((memory, record))
    }

    /// Notes what is true before a change begins.
    pub fn note(&self, unique: u64, note: ChangeNote) -> io::Result<NoteSlot> {
        let slot = self.slots.lock().take();
        let words = match note {
            ChangeNote::Exchange { from, to } => [unique, from.get(), to.get(), EXCHANGE],
            ChangeNote::Succeeds => [unique, 0, 0, ATTRIBUTE],
            ChangeNote::Parked => [unique, 0, 0, PARKED],
        };
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        self.file.write_all_at(&bytes, offset_of(slot))?;
        Ok(NoteSlot(slot))
    }

    /// Forgets a note after the answer to its change.
    #[allow(clippy::needless_pass_by_value)] // the slot is not to be used again
    pub fn forget(&self, slot: NoteSlot) {
        let NoteSlot(slot) = slot;
        if let Err(error) = self.file.write_all_at(&[0; SLOT_BYTES], offset_of(slot)) {
            tracing::warn!(%error, "a slot in the memory of the mount is not cleared");
            return;
        }
        self.slots.lock().free.push(slot);
    }

    /// The completion of a noted change: answers through `done`, and forgets the note after that, because the answer ends the
    /// request for the kernel.
    pub fn forgetting(&self, slot: NoteSlot, done: Done<Option<Attr>>) -> Done<Option<Attr>> {
        let memory = self.clone();
        Box::new(move |outcome| {
            done(outcome);
            memory.forget(slot);
        })
    }

    /// Finds the note of an earlier process on a request, and gives its slot back. Only a request that the kernel has sent
    /// again has one.
    pub fn find(&self, delivery: RequestDelivery) -> Option<(ChangeNote, NoteSlot)> {
        let of_resent = delivery.is_resent.then_some(delivery.unique)?;
        self.left.lock().remove(&of_resent)
    }

    /// The delivery of a request. An earlier process has not executed a request that it has only parked.
    pub fn delivery_of(&self, request: &Request) -> RequestDelivery {
        let marked = RequestDelivery::of(request);
        RequestDelivery {
            is_resent: marked.is_resent && !self.take_parked(marked.unique),
            ..marked
        }
    }

    /// Returns whether an earlier process has noted that a change has not begun, and forgets that.
    pub fn take_parked(&self, unique: u64) -> bool {
        let mut left = self.left.lock();
        let Some((ChangeNote::Parked, _)) = left.get(&unique) else {
            return false;
        };
        let taken = left.remove(&unique);
        drop(left);
        if let Some((_parked, slot)) = taken {
            self.forget(slot);
        }
        true
    }
}

/// The guard of the mount.
impl MountMemory {
    /// The words of the guard.
    pub fn guard_words(&self) -> GuardWords {
        GuardWords::new(Arc::clone(&self.file), GUARD_AT)
    }

    /// Locks the memory until the last process that has this open file is gone: node and holder. The guard waits for that.
    pub fn lock(&self) -> io::Result<()> {
        Ok(flock(&self.file, FlockOperation::NonBlockingLockExclusive)?)
    }
}

/// The numbers of inodes, each at a place of its own.
impl MountMemory {
    /// Writes a number to a place.
    pub fn write_inode(&self, place: u64, ino: Ino) -> io::Result<()> {
        let bytes = ino.get().to_ne_bytes();
        self.file.write_all_at(&bytes, inode_offset(place))
    }

    /// Leaves a place empty.
    pub fn clear_inode(&self, place: u64) -> io::Result<()> {
        self.file
            .write_all_at(&[0; INODE_BYTES], inode_offset(place))
    }

    /// The inodes that the kernel knows, in the order of their numbers.
    pub fn known_inodes(&self) -> io::Result<Vec<Ino>> {
        let places = self.inodes()?.into_iter();
        let mut all: Vec<Ino> = places.map(|(_, ino)| ino).chain([Ino::ROOT]).collect();
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// The places that are not empty, with their numbers.
    pub fn inodes(&self) -> io::Result<Vec<(u64, Ino)>> {
        let mut file = self.file.try_clone()?;
        file.seek(io::SeekFrom::Start(INODES_AT))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (numbers, _) = bytes.as_chunks::<INODE_BYTES>();
        let numbers = (0..).zip(numbers);
        let inodes = numbers
            .filter_map(|(place, bytes)| Some((place, Ino::new(u64::from_ne_bytes(*bytes))?)));
        Ok(inodes.collect())
    }
}

const fn inode_offset(place: u64) -> u64 {
    INODES_AT + place * INODE_BYTES as u64
}

/// Where the slots end: at the hole before the numbers of the inodes, or at the end of the file.
fn slots_end(file: &File) -> io::Result<u64> {
    let begin = RECORD_BYTES as u64;
    if file.metadata()?.len() <= begin {
        return Ok(begin);
    }
    Ok(rustix::fs::seek(file, SeekFrom::Hole(begin))?.min(GUARD_AT))
}

/// The unique number and the note in a slot, if it is in use.
fn read_slot(file: &File, slot: u64) -> io::Result<Option<(u64, ChangeNote)>> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, offset_of(slot))?;
    let mut words = [0; SLOT_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let [unique, from, to, kind] = words;
    let note = read_note(from, to, kind).filter(|_| unique != 0);
    Ok(note.map(|note| (unique, note)))
}

fn read_note(from: u64, to: u64, kind: u64) -> Option<ChangeNote> {
    match kind {
        ATTRIBUTE => Some(ChangeNote::Succeeds),
        PARKED => Some(ChangeNote::Parked),
        _ => Some(ChangeNote::Exchange {
            from: Ino::new(from)?,
            to: Ino::new(to)?,
        }),
    }
}

impl AsFd for MountMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl NoteSlots {
    fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        })
    }
}

const fn offset_of(slot: u64) -> u64 {
    RECORD_BYTES as u64 + slot * SLOT_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    fn resent(unique: u64) -> RequestDelivery {
        RequestDelivery {
            unique,
            is_resent: true,
            was_read_before: true,
        }
    }

    #[test]
    fn the_next_process_finds_record_and_notes() {
        let record = MountRecord::new(41, PathBuf::from("/srv/data"));
        let first = MountMemory::create(&record).unwrap();
        let exchange = |number| ChangeNote::Exchange {
            from: ino(number),
            to: ino(number + 1),
        };
        let done = first.note(2, exchange(10)).unwrap();
        let _under_way = first.note(4, exchange(20)).unwrap();
        first.forget(done);
        let _reused = first.note(6, exchange(30)).unwrap();
        let _other = first.note(8, ChangeNote::Succeeds).unwrap();
        let kept = first.as_fd().try_clone_to_owned().unwrap();
        drop(first);
        let (second, found) = MountMemory::open(kept).unwrap();
        assert_eq!(found, record);
        assert_eq!(second.find(resent(2)).map(|found| found.0), None);
        assert_eq!(second.find(resent(4)).unwrap().0, exchange(20));
        assert_eq!(second.find(resent(8)).unwrap().0, ChangeNote::Succeeds);
        let (last, slot) = second.find(resent(6)).unwrap();
        assert_eq!(last, exchange(30));
        second.forget(slot);
        assert!(second.find(resent(6)).is_none());
    }

    #[test]
    fn another_form_is_another_record() {
        let record = MountRecord::new(1, PathBuf::from("/a"));
        let other = MountRecord {
            write_bytes_max: 4096,
            ..record.clone()
        };
        assert_ne!(record, other);
    }
}
