//! The bytes of writes that cannot begin at once (rule P19).
//!
//! Up to a limit the bytes are kept in memory. Beyond the limit, a thread that takes requests of the kernel puts the bytes
//! into a *spill file* on the disk of the store, and the write reads them when it begins. The spill file has no name,
//! so it ends with the process. One spill file is open at most, or two while one replaces the other. If the file may not
//! grow either, the thread waits until there is room (`write_backpressure`). Any other thread keeps the bytes in memory,
//! because the waiting writes may need that thread.
//!
//! Invariants:
//! - The bytes of a write are settled once: every reader gets the same bytes, or every reader gets an error. Bytes from
//!   the disk are checked against their hash.
//! - No lock is held here while a disk is called. To give bytes back calls no disk.
//! - A call of [`RoomQueue::look_again`] follows every change that makes room, so no thread waits for room that is there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Hash128};
use parking_lot::Mutex;

use crate::client::SpilledBytes;
use crate::durable::SCRATCH_PREFIX;
use crate::engine::tick_work::TickWork;
use crate::host::{Host, SpillLimits};
use file::{FileSlot, SpillFile};
use room_queue::RoomQueue;

mod file;
mod room_queue;

/// Keeps the bytes of the writes of one datastore.
pub(crate) struct SpillBuffer {
    backing: Arc<dyn Backing>,
    limits: SpillLimits,
    /// The threads that wait for room.
    pub room: RoomQueue,
    /// Bytes in memory.
    in_memory: AtomicU64,
    /// The bytes in memory that belong to writes which have begun.
    begun: AtomicU64,
    /// Bytes in the file.
    in_file: AtomicU64,
    file: Mutex<Option<Arc<SpillFile>>>,
    /// Number of spill files so far.
    files: AtomicU64,
    /// Bytes kept since the last call of [`SpillBuffer::take_kept`].
    kept: AtomicU64,
}

/// The kept bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillLoad {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// The bytes in memory of writes that have begun: read from the spill file, or handed to another thread.
    pub begun_bytes: u64,
    /// Bytes in the spill file.
    pub file_bytes: u64,
    /// Writes in the spill file.
    pub in_file: usize,
}

impl SpillLoad {
    /// All bytes.
    pub const fn bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(self.file_bytes)
    }
}

/// Removes the spill files of a previous process. The process was killed between the creation of a file and the removal
/// of its name, or a power loss undid the removal.
pub(crate) fn remove_left(backing: &dyn Backing) -> io::Result<()> {
    let names = backing.list(".")?.into_iter();
    for name in names.filter(|name| name.starts_with(SCRATCH_PREFIX)) {
        backing.remove(&name)?;
    }
    Ok(())
}

impl SpillBuffer {
    /// A buffer without bytes.
    pub fn new(
        backing: Arc<dyn Backing>,
        host: Arc<dyn Host>,
        limits: SpillLimits,
        tick_work: Arc<TickWork>,
    ) -> Self {
        Self {
            room: RoomQueue::new(host, tick_work),
            backing,
            limits,
            in_memory: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            in_file: AtomicU64::new(0),
            file: Mutex::default(),
            files: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        }
    }

    /// Whether memory holds as many bytes as it may.
    pub fn is_full(&self) -> bool {
        let is_full = self.in_memory.load(Ordering::SeqCst) >= self.limits.memory_bytes;
        is_full && !is_active(Mutant::KeepWithoutLimit)
    }

    /// Puts bytes into memory, even beyond the limit.
    pub fn put_in_memory(self: &Arc<Self>, data: &[u8]) -> Arc<Spilled> {
        let length = data.len() as u64;
        self.kept.fetch_add(length, Ordering::Relaxed);
        self.in_memory.fetch_add(length, Ordering::SeqCst);
        self.put_at(SpilledPlace::Memory(data.into()), data.len())
    }

    /// The same for a write that has begun and continues on another thread.
    pub fn put_begun(self: &Arc<Self>, data: &[u8]) -> Arc<Spilled> {
        let length = data.len() as u64;
        self.kept.fetch_add(length, Ordering::Relaxed);
        self.count_begun(length);
        self.put_at(SpilledPlace::Begun(data.into()), data.len())
    }

    fn count_begun(&self, length: u64) {
        self.begun.fetch_add(length, Ordering::SeqCst);
        self.in_memory.fetch_add(length, Ordering::SeqCst);
    }

    /// Puts bytes into the spill file, on a thread that may wait for the disk. Returns `None` if the file may not grow, or
    /// the disk does not take the bytes now.
    ///
    /// # Errors
    /// `Io` when the disk has failed.
    pub fn put_in_file(self: &Arc<Self>, data: &[u8]) -> Result<Option<Arc<Spilled>>, Errno> {
        match self.write_to_slot(data) {
            Ok(None) => Ok(None),
            Ok(Some(slot)) => {
                self.in_file.fetch_add(data.len() as u64, Ordering::SeqCst);
                let place = SpilledPlace::File(slot, Hash128::of(data));
                Ok(Some(self.put_at(place, data.len())))
            }
            Err(_) if self.backing.is_poisoned() => Err(Errno::Io),
            Err(error) => {
                // A temporary failure, such as a full disk or too many open files.
                tracing::debug!(%error, "the bytes of a write that waits are not kept on the disk");
                Ok(None)
            }
        }
    }

    fn put_at(self: &Arc<Self>, place: SpilledPlace, length: usize) -> Arc<Spilled> {
        Arc::new(Spilled {
            spill: Arc::clone(self),
            length,
            place: Mutex::new(place),
        })
    }

    fn write_to_slot(&self, data: &[u8]) -> io::Result<Option<Arc<FileSlot>>> {
        let length = data.len() as u64;
        let Some(file) = self.open_file(length)? else {
            return Ok(None);
        };
        let Some(mut slot) = file.take(data.len(), self.limits.file_bytes) else {
            return Ok(None);
        };
        if slot.growth() > 0 && !self.may_grow(slot.growth(), length)? {
            return Ok(None);
        }
        slot.write(data)?;
        Ok(Some(Arc::new(slot)))
    }

    /// Whether the disk has room for `growth` more bytes of the spill file. The content of all waiting writes, and of
    /// this one of `length` bytes, must find room, too: otherwise the writes would wait for the space of their own bytes.
    fn may_grow(&self, growth: u64, length: u64) -> io::Result<bool> {
        let in_memory = self.in_memory.load(Ordering::SeqCst);
        let kept = in_memory.saturating_add(self.in_file.load(Ordering::SeqCst));
        let content = kept.saturating_add(length);
        let needed = self.limits.spare_bytes.saturating_add(content);
        let available = self.backing.space()?.available_bytes;
        Ok(available >= needed.saturating_add(growth))
    }

    /// The spill file. It is made if there is none and the disk has room for `length` bytes in it.
    fn open_file(&self, length: u64) -> io::Result<Option<Arc<SpillFile>>> {
        if let Some(file) = &*self.file.lock() {
            return Ok(Some(Arc::clone(file)));
        }
        if !self.may_grow(length, length)? {
            return Ok(None);
        }
        let made = self.make_file()?;
        // Another thread may have made a file at the same time. Then that file is used, and this one is dropped without
        // the lock.
        let mut file = self.file.lock();
        let used = Arc::clone(file.get_or_insert_with(|| Arc::clone(&made)));
        drop(file);
        Ok(Some(used))
    }

    /// Makes a file without a name.
    fn make_file(&self) -> io::Result<Arc<SpillFile>> {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let name = format!("{SCRATCH_PREFIX}{number}");
        let file = self.backing.open_or_create(&name)?;
        self.backing.remove(&name)?;
        Ok(SpillFile::new(file))
    }

    /// Number of bytes kept since the last call of this method.
    pub fn take_kept(&self) -> u64 {
        self.kept.swap(0, Ordering::Relaxed)
    }

    /// The same without a new count.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// The spill file, if no write uses it. To drop it removes it from the disk, which may take long.
    pub fn unused_file(&self) -> Option<impl Send + 'static> {
        // A slot that is being dropped still holds the file. New slots need this lock.
        let mut file = self.file.lock();
        file.take_if(|file| Arc::strong_count(file) == 1)
    }

    /// The kept bytes of this moment.
    pub fn load(&self) -> SpillLoad {
        let in_file = self.file.lock().as_ref().map_or(0, |file| file.taken());
        SpillLoad {
            memory_bytes: self.in_memory.load(Ordering::SeqCst),
            begun_bytes: self.begun.load(Ordering::SeqCst),
            file_bytes: self.in_file.load(Ordering::SeqCst),
            in_file,
        }
    }
}

/// The bytes of one write. Dropped, they give their memory or disk space back.
pub(crate) struct Spilled {
    spill: Arc<SpillBuffer>,
    length: usize,
    place: Mutex<SpilledPlace>,
}

enum SpilledPlace {
    /// In memory. The write waits, or has waited.
    Memory(Arc<[u8]>),
    /// In the spill file, with the hash of the bytes.
    File(Arc<FileSlot>, Hash128),
    /// In memory. The write has begun.
    Begun(Arc<[u8]>),
    /// The bytes could not be read, or were others.
    Lost,
}

impl Spilled {
    /// The bytes or the error, if that is settled.
    fn settled(place: &SpilledPlace) -> Option<Result<Arc<[u8]>, Errno>> {
        match place {
            SpilledPlace::Memory(bytes) | SpilledPlace::Begun(bytes) => Some(Ok(Arc::clone(bytes))),
            SpilledPlace::Lost => Some(Err(Errno::Io)),
            SpilledPlace::File(..) => None,
        }
    }

    /// Settles the bytes by the outcome of a read, unless another thread has done so.
    fn settle(&self, read: io::Result<Arc<[u8]>>) -> Result<Arc<[u8]>, Errno> {
        let mut place = self.place.lock();
        if let Some(settled) = Self::settled(&place) {
            return settled;
        }
        let length = self.length as u64;
        self.spill.in_file.fetch_sub(length, Ordering::SeqCst);
        *place = match read {
            Ok(bytes) => {
                self.spill.count_begun(length);
                SpilledPlace::Begun(bytes)
            }
            Err(error) => {
                tracing::error!(%error, "the bytes of a write that waited cannot be read again");
                SpilledPlace::Lost
            }
        };
        Self::settled(&place).unwrap_or(Err(Errno::Io))
    }
}

/// The bytes, if their hash is `expected`.
fn checked(bytes: Arc<[u8]>, expected: Hash128) -> io::Result<Arc<[u8]>> {
    if Hash128::of(&bytes) == expected {
        return Ok(bytes);
    }
    let what = "the disk has other bytes than were put there";
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

impl SpilledBytes for Spilled {
    fn length(&self) -> usize {
        self.length
    }

    fn load(&self) -> Result<Arc<[u8]>, Errno> {
        let (slot, hash) = match &*self.place.lock() {
            SpilledPlace::File(slot, hash) => (Arc::clone(slot), *hash),
            place => return Self::settled(place).unwrap_or(Err(Errno::Io)),
        };
        let read = slot.read(self.length);
        let settled = self.settle(read.and_then(|bytes| checked(bytes, hash)));
        drop(slot);
        self.spill.room.look_again();
        settled
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        let length = self.length as u64;
        let place = std::mem::replace(self.place.get_mut(), SpilledPlace::Lost);
        let (in_memory, begun, in_file) = match &place {
            SpilledPlace::Memory(_) => (length, 0, 0),
            SpilledPlace::Begun(_) => (length, length, 0),
            SpilledPlace::File(..) => (0, 0, length),
            SpilledPlace::Lost => (0, 0, 0),
        };
        self.spill.in_memory.fetch_sub(in_memory, Ordering::SeqCst);
        self.spill.begun.fetch_sub(begun, Ordering::SeqCst);
        self.spill.in_file.fetch_sub(in_file, Ordering::SeqCst);
        drop(place);
        self.spill.room.look_again();
    }
}

#[cfg(test)]
mod tests;
