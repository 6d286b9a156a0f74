//! Where the bytes of writes are kept that cannot begin at once (rule P19).
//!
//! Up to a limit they are kept in memory. Beyond it a thread that takes requests of the kernel puts them into a
//! *waiting file* on the disk of the store; they are read from there when the write begins. That file has no name,
//! so nothing of it outlives the process, and no more than one is open but while one is being replaced. Where the
//! file may not grow either, that thread waits until there is room (`door`). Any other thread keeps the bytes in
//! memory, for the writes that wait may need that thread.
//!
//! Invariants:
//! - The bytes of a write are settled once: whoever asks for them gets the same ones, or all get an error. Bytes from
//!   the disk are those that were put there.
//! - Nothing here is locked while a disk is asked, and giving bytes back asks no disk.
//! - Whatever makes room is followed by [`Keeper::look_again`], so nobody waits for room that is there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Hash128};
use parking_lot::Mutex;

use super::host::{Gate, Host, KeptLimits};
use crate::client::KeptBytes;
use file::{Slot, WaitingFile};

mod file;

/// Begins the names of waiting files, for as long as they have one.
const FILE_PREFIX: &str = "waiting.";

/// Keeps the bytes of the writes of one datastore.
pub(super) struct Keeper {
    backing: Arc<dyn Backing>,
    host: Arc<dyn Host>,
    limits: KeptLimits,
    /// Bytes in memory.
    in_memory: AtomicU64,
    /// Those of them that belong to writes which have begun.
    begun: AtomicU64,
    /// Bytes in the file.
    in_file: AtomicU64,
    file: Mutex<Option<Arc<WaitingFile>>>,
    /// Counts waiting files.
    files: AtomicU64,
    waiters: Mutex<Waiters>,
    has_waiters: AtomicBool,
    /// Counts how often there may have come to be room.
    rounds: AtomicU64,
    /// Bytes kept since this was last asked for.
    kept: AtomicU64,
}

/// Threads that wait for room.
#[derive(Default)]
struct Waiters {
    gates: Vec<Arc<dyn Gate>>,
    /// Nobody waits any more.
    closed: bool,
}

/// How often there may have come to be room, at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round(u64);

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptLoad {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Those of them that belong to writes which have begun: read from the waiting file, or given to another thread.
    pub begun_bytes: u64,
    /// Bytes in the waiting file.
    pub file_bytes: u64,
    /// Writes in the waiting file.
    pub in_file: usize,
}

impl KeptLoad {
    /// All bytes.
    pub const fn bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(self.file_bytes)
    }
}

/// Removes waiting files that a process before this one has left: one that was killed between the making of a
/// file and the removal of its name, or a power loss that took that removal back.
pub(super) fn remove_left(backing: &dyn Backing) -> io::Result<()> {
    let names = backing.list(".")?.into_iter();
    for name in names.filter(|name| name.starts_with(FILE_PREFIX)) {
        backing.remove(&name)?;
    }
    Ok(())
}

impl Keeper {
    /// Keeps nothing yet.
    pub fn new(backing: Arc<dyn Backing>, host: Arc<dyn Host>, limits: KeptLimits) -> Self {
        Self {
            backing,
            host,
            limits,
            in_memory: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            in_file: AtomicU64::new(0),
            file: Mutex::default(),
            files: AtomicU64::new(0),
            waiters: Mutex::default(),
            has_waiters: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        }
    }

    /// Whether memory has as much as it may.
    pub fn is_full(&self) -> bool {
        let is_full = self.in_memory.load(Ordering::SeqCst) >= self.limits.memory_bytes;
        is_full && !is_active(Mutant::KeepWithoutLimit)
    }

    /// Keeps bytes in memory, whatever is there already.
    pub fn keep_here(self: &Arc<Self>, data: &[u8]) -> Arc<Kept> {
        let length = data.len() as u64;
        self.kept.fetch_add(length, Ordering::Relaxed);
        self.in_memory.fetch_add(length, Ordering::SeqCst);
        self.keep_at(Place::Memory(data.into()), data.len())
    }

    /// The same for a write that has begun, and goes on on another thread.
    pub fn keep_begun(self: &Arc<Self>, data: &[u8]) -> Arc<Kept> {
        let length = data.len() as u64;
        self.kept.fetch_add(length, Ordering::Relaxed);
        self.count_begun(length);
        self.keep_at(Place::Begun(data.into()), data.len())
    }

    fn count_begun(&self, length: u64) {
        self.begun.fetch_add(length, Ordering::SeqCst);
        self.in_memory.fetch_add(length, Ordering::SeqCst);
    }

    /// Keeps bytes in the waiting file, on a thread that may wait for the disk; `None` if the file may not grow by
    /// them, or the disk does not take them now.
    ///
    /// # Errors
    /// `Io` when the disk has failed.
    pub fn keep_in_file(self: &Arc<Self>, data: &[u8]) -> Result<Option<Arc<Kept>>, Errno> {
        match self.write_to_slot(data) {
            Ok(None) => Ok(None),
            Ok(Some(slot)) => {
                self.in_file.fetch_add(data.len() as u64, Ordering::SeqCst);
                let place = Place::File(slot, Hash128::of(data));
                Ok(Some(self.keep_at(place, data.len())))
            }
            Err(_) if self.backing.is_poisoned() => Err(Errno::Io),
            Err(error) => {
                // The disk is full, say, or no more files can be opened: that passes.
                tracing::debug!(%error, "the bytes of a write that waits are not kept on the disk");
                Ok(None)
            }
        }
    }

    fn keep_at(self: &Arc<Self>, place: Place, length: usize) -> Arc<Kept> {
        Arc::new(Kept {
            keeper: Arc::clone(self),
            length,
            place: Mutex::new(place),
        })
    }

    fn write_to_slot(&self, data: &[u8]) -> io::Result<Option<Arc<Slot>>> {
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

    /// Whether the disk has room for so many bytes more of the waiting file. The content of all writes that wait,
    /// and of this one of `length` bytes, must find room, too: otherwise they would wait for what their bytes take.
    fn may_grow(&self, growth: u64, length: u64) -> io::Result<bool> {
        let in_memory = self.in_memory.load(Ordering::SeqCst);
        let kept = in_memory.saturating_add(self.in_file.load(Ordering::SeqCst));
        let content = kept.saturating_add(length);
        let needed = self.limits.spare_bytes.saturating_add(content);
        let available = self.backing.space()?.available_bytes;
        Ok(available >= needed.saturating_add(growth))
    }

    /// The waiting file, made if there is none and the disk has room for so many bytes in it.
    fn open_file(&self, length: u64) -> io::Result<Option<Arc<WaitingFile>>> {
        if let Some(file) = &*self.file.lock() {
            return Ok(Some(Arc::clone(file)));
        }
        if !self.may_grow(length, length)? {
            return Ok(None);
        }
        let made = self.make_file()?;
        // Another thread may have been as fast: then its file is used, and this one goes when nothing is locked.
        let mut file = self.file.lock();
        let used = Arc::clone(file.get_or_insert_with(|| Arc::clone(&made)));
        drop(file);
        Ok(Some(used))
    }

    /// Makes a file that has no name.
    fn make_file(&self) -> io::Result<Arc<WaitingFile>> {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let name = format!("{FILE_PREFIX}{number}");
        let file = self.backing.open_or_create(&name)?;
        self.backing.remove(&name)?;
        Ok(WaitingFile::new(file))
    }

    /// To be asked for before one looks for room, for [`Self::wait_for_room`].
    pub fn round(&self) -> Round {
        Round(self.rounds.load(Ordering::SeqCst))
    }

    /// Waits until there may have come to be room since `looked`.
    ///
    /// # Errors
    /// `Io` when nobody may wait any more.
    pub fn wait_for_room(&self, looked: Round) -> Result<(), Errno> {
        let gate = self.host.gate();
        {
            let mut waiters = self.waiters.lock();
            if waiters.closed {
                return Err(Errno::Io);
            }
            waiters.gates.push(Arc::clone(&gate));
            self.has_waiters.store(true, Ordering::SeqCst);
        }
        // What comes after this look opens the gate.
        if self.rounds.load(Ordering::SeqCst) == looked.0 {
            gate.wait();
        }
        Ok(())
    }

    /// There may have come to be room: lets those who wait for some look again.
    pub fn look_again(&self) {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        if !self.has_waiters.load(Ordering::SeqCst) {
            return;
        }
        let gates = {
            let mut waiters = self.waiters.lock();
            self.has_waiters.store(false, Ordering::SeqCst);
            std::mem::take(&mut waiters.gates)
        };
        for gate in gates {
            gate.open();
        }
    }

    /// Lets nobody wait for room any more: whoever would gets an error.
    pub fn close(&self) {
        self.waiters.lock().closed = true;
        self.look_again();
    }

    /// How many bytes were kept since this was called last.
    pub fn take_kept(&self) -> u64 {
        self.kept.swap(0, Ordering::Relaxed)
    }

    /// The same, without counting anew.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// The waiting file, if nobody uses it: dropped, it is gone, which may take long.
    pub fn unused_file(&self) -> Option<impl Send + 'static> {
        // A slot that is just given back has the file still; it comes by this lock only.
        let mut file = self.file.lock();
        file.take_if(|file| Arc::strong_count(file) == 1)
    }

    /// How much is kept now.
    pub fn load(&self) -> KeptLoad {
        let in_file = self.file.lock().as_ref().map_or(0, |file| file.taken());
        KeptLoad {
            memory_bytes: self.in_memory.load(Ordering::SeqCst),
            begun_bytes: self.begun.load(Ordering::SeqCst),
            file_bytes: self.in_file.load(Ordering::SeqCst),
            in_file,
        }
    }

    /// Whether a thread waits for room that nothing has let look again.
    #[cfg(test)]
    pub fn has_waiters(&self) -> bool {
        self.has_waiters.load(Ordering::SeqCst)
    }
}

/// The bytes of one write. Dropped, they are given back.
pub(super) struct Kept {
    keeper: Arc<Keeper>,
    length: usize,
    place: Mutex<Place>,
}

enum Place {
    /// In memory, of a write that waits or has waited.
    Memory(Arc<[u8]>),
    /// In the waiting file, with their hash.
    File(Arc<Slot>, Hash128),
    /// In memory since the write has begun.
    Begun(Arc<[u8]>),
    /// They could not be read, or were others.
    Lost,
}

impl Kept {
    /// What settles whether the bytes are there, where that is known.
    fn settled(place: &Place) -> Option<Result<Arc<[u8]>, Errno>> {
        match place {
            Place::Memory(bytes) | Place::Begun(bytes) => Some(Ok(Arc::clone(bytes))),
            Place::Lost => Some(Err(Errno::Io)),
            Place::File(..) => None,
        }
    }

    /// Settles them by what was read, unless another thread was first.
    fn settle(&self, read: io::Result<Arc<[u8]>>) -> Result<Arc<[u8]>, Errno> {
        let mut place = self.place.lock();
        if let Some(settled) = Self::settled(&place) {
            return settled;
        }
        let length = self.length as u64;
        self.keeper.in_file.fetch_sub(length, Ordering::SeqCst);
        *place = match read {
            Ok(bytes) => {
                self.keeper.count_begun(length);
                Place::Begun(bytes)
            }
            Err(error) => {
                tracing::error!(%error, "the bytes of a write that waited cannot be read again");
                Place::Lost
            }
        };
        Self::settled(&place).unwrap_or(Err(Errno::Io))
    }
}

/// The bytes that were read, if their hash is `expected`.
fn checked(bytes: Arc<[u8]>, expected: Hash128) -> io::Result<Arc<[u8]>> {
    if Hash128::of(&bytes) == expected {
        return Ok(bytes);
    }
    let what = "the disk has other bytes than were put there";
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

impl KeptBytes for Kept {
    fn length(&self) -> usize {
        self.length
    }

    fn load(&self) -> Result<Arc<[u8]>, Errno> {
        let (slot, hash) = match &*self.place.lock() {
            Place::File(slot, hash) => (Arc::clone(slot), *hash),
            place => return Self::settled(place).unwrap_or(Err(Errno::Io)),
        };
        let read = slot.read(self.length);
        let settled = self.settle(read.and_then(|bytes| checked(bytes, hash)));
        drop(slot);
        self.keeper.look_again();
        settled
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let length = self.length as u64;
        let place = std::mem::replace(self.place.get_mut(), Place::Lost);
        let (in_memory, begun, in_file) = match &place {
            Place::Memory(_) => (length, 0, 0),
            Place::Begun(_) => (length, length, 0),
            Place::File(..) => (0, 0, length),
            Place::Lost => (0, 0, 0),
        };
        self.keeper.in_memory.fetch_sub(in_memory, Ordering::SeqCst);
        self.keeper.begun.fetch_sub(begun, Ordering::SeqCst);
        self.keeper.in_file.fetch_sub(in_file, Ordering::SeqCst);
        drop(place);
        self.keeper.look_again();
    }
}

#[cfg(test)]
mod tests;
