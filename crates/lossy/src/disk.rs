//! The disk of one node: files in memory that lose, tear and refuse as the files of a real disk may.
//!
//! The disk keeps exactly the promises of [`lockstep_types::backing`]. After the end of the process all files
//! are unchanged. After a power loss any subset of the unsynced changes survives, for each page of 4 KiB,
//! each length and each name separately. Where a real disk could choose, this disk chooses at random from a
//! seed. The same calls with the same seed leave the same disk.
//!
//! Where the contract leaves a choice, the disk follows Linux:
//! - A sync of a file does not cover its name. A sync of a directory covers the names in the directory, the
//!   name of the directory, and the names of the directories above it. It does not cover other names in the
//!   directories above.
//! - A failed sync is reported once. Reads still see the changes that it should have saved. The changes are
//!   treated as clean, and are not on the disk. Later syncs succeed without them, unless they were changed
//!   again.
//! - Reserved space that was never written is a hole for `SEEK_DATA` (ext4's unwritten extents). It takes
//!   space, and needs no more space when it is written.
//! - A removed file keeps its space until the last process that has it open closes it.
//! - If the disk gets full in the middle of a write, the pages before are written. If the disk has too little
//!   room to reserve a range, it reserves nothing.
//! - Directories are made with the files in them. Only files can be renamed.
//!
//! One lock protects all state. No callback runs under the lock.

mod call;
mod data_runs;
mod digest;
mod faults;
mod history;
mod inode;
mod loss;
mod mount;
mod names;
mod pages;
mod state;

use std::io;
use std::sync::Arc;

use lockstep_types::Errno;
use parking_lot::Mutex;

pub use call::{Call, CallClass, CallKind, Observer, Verdict};
pub use loss::Survivors;
pub use state::{DiskOptions, gone};

use crate::random::Random;
pub(crate) use mount::{Kind, Mount};
use state::State;

/// A disk. Clones share the same state.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
}

impl Default for Disk {
    /// An empty disk with more room than any test fills.
    fn default() -> Self {
        Self::new(DiskOptions {
            capacity_bytes: 1 << 40,
            capacity_files: 1 << 20,
        })
    }
}

impl Disk {
    /// An empty disk.
    pub fn new(options: DiskOptions) -> Self {
        Self::of(State::new(options))
    }

    fn of(state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        Self { state }
    }

    /// Ends the process: its later calls fail and change nothing. Its tables then read as zeros and drop
    /// stores.
    pub fn kill(&self) {
        self.state.lock().kill();
    }

    /// Ends the process and loses power: any subset of the unsynced changes survives. Returns the choice.
    pub fn power_loss(&self, random: &mut Random) -> Survivors {
        let mut state = self.state.lock();
        let survivors = state.choose_survivors(random);
        state.lose_power(survivors, random);
        survivors
    }

    /// Loses power with the given survivors.
    pub fn power_loss_with(&self, survivors: Survivors, random: &mut Random) {
        self.state.lock().lose_power(survivors, random);
    }

    /// Returns a separate disk in the same state, without a process and without faults. A fork is cheap: both
    /// disks share content until one of them changes it.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::of(self.state.lock().forked())
    }

    /// Returns the disk that a power loss would leave now. This disk stays unchanged.
    #[must_use]
    pub fn after_power_loss(&self, survivors: Survivors, seed: u64) -> Self {
        let left = self.fork();
        left.power_loss_with(survivors, &mut Random::new(seed));
        left
    }

    /// Gives the `nth` changing or saving call from now (1 is the next) this verdict. Replaces the observer.
    pub fn set_verdict(&self, nth: u64, verdict: Verdict) {
        let serial = self.calls() + nth;
        self.observe(Some(Arc::new(move |call| {
            if call.serial == serial {
                verdict
            } else {
                Verdict::Go
            }
        })));
    }

    /// Sets the observer, which is asked before each call that changes or saves something. An observer that
    /// holds the disk keeps the disk in memory until the observer is removed.
    pub fn observe(&self, observer: Option<Observer>) {
        let before = std::mem::replace(&mut self.state.lock().observer, observer);
        // Dropped without the lock: the observer may hold open files, and closing them takes the lock.
        drop(before);
    }

    /// Lets the `nth` call of a class from now (1 is the next) fail without effect. After a failed sync reads
    /// still see the unsaved changes, which are clean and not on the disk. If the observer has another
    /// verdict for that call, the fault is spent.
    pub fn fail_call(&self, class: CallClass, nth: u64, errno: Errno) {
        self.state.lock().faults.add(class, None, nth, errno);
    }

    /// As [`Self::fail_call`], for the calls on one file.
    pub fn fail_call_on(&self, path: &'static str, class: CallClass, nth: u64, errno: Errno) {
        self.state.lock().faults.add(class, Some(path), nth, errno);
    }

    /// Lets every call of a class fail from now on, as [`Self::fail_call`] does for one call.
    pub fn fail_calls(&self, class: CallClass, errno: Errno) {
        self.state.lock().faults.add_for_all(class, errno);
    }

    /// Removes all faults of [`Self::fail_call`] and [`Self::fail_calls`] that are still set.
    pub fn stop_failing(&self) {
        self.state.lock().faults.clear();
    }

    /// Shows the pages that failed syncs gave up as they are on stable storage, as if memory had dropped
    /// them. Linux may drop them at any time. Lengths and names stay as they were seen.
    pub fn drop_lost_pages(&self) {
        self.state.lock().drop_lost_pages();
    }

    /// Removes everything from a disk that no test needs any more but that something may still hold.
    pub fn discard(&self) {
        let mut state = self.state.lock();
        let options = state.options;
        let gone = std::mem::replace(&mut *state, State::new(options));
        // Dropped without the lock: an observer may hold open files, and closing them takes the lock.
        drop(state);
        drop(gone);
    }

    /// Makes the disk larger or smaller. A disk with less room than is used is full.
    pub fn set_capacity(&self, options: DiskOptions) {
        self.state.lock().options = options;
    }

    /// Makes the disk as small as its content: nothing more fits.
    pub fn fill(&self) {
        let mut state = self.state.lock();
        state.options = state.full();
    }

    /// Flips one bit (0 to 7) of the byte at `offset`, for reads and on stable storage. Returns false if
    /// there is no such file, or no byte at that place: past the end, or in a hole.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u32) -> bool {
        self.state.lock().flip(path, offset, bit)
    }

    /// Number of calls so far that changed or saved something, or tried to.
    pub fn calls(&self) -> u64 {
        self.state.lock().serial()
    }

    /// The paths of all files, sorted.
    pub fn files(&self) -> Vec<String> {
        let state = self.state.lock();
        state
            .names
            .files()
            .map(|(path, _)| path.to_owned())
            .collect()
    }

    /// The paths of all directories, sorted.
    pub fn directories(&self) -> Vec<String> {
        let state = self.state.lock();
        state.names.directories().map(str::to_owned).collect()
    }

    /// All bytes of a file, as reads see them; `None` if there is no such file.
    pub fn read_all(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let number = state.names.file(path).ok()?;
        let content = state.content(number).ok()?;
        let mut bytes = vec![0; usize::try_from(content.length()).ok()?];
        content.read(0, &mut bytes);
        Some(bytes)
    }

    /// Gives a file these bytes, on stable storage, without a call of any process. Makes a missing file, with
    /// the directories above it.
    pub fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.state.lock().put(path, bytes)
    }

    /// Changes the bytes of a file that must exist, as [`Self::put`] does.
    pub fn edit(&self, path: &str, edit: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut bytes = self.read_all(path).ok_or(io::ErrorKind::NotFound)?;
        edit(&mut bytes);
        self.put(path, &bytes)
    }

    /// Whether a file exists and a power loss takes neither its name nor any of its bytes.
    pub fn is_durable(&self, path: &str) -> bool {
        let kept = self.after_power_loss(Survivors::Nothing, 0).read_all(path);
        kept.is_some() && kept == self.read_all(path)
    }

    /// Number of pages, lengths and changes of names that are not on stable storage.
    pub fn unsynced(&self) -> usize {
        self.state.lock().unsynced()
    }

    /// A digest of the state that reads see and of the state on stable storage. Two disks with the same
    /// history of calls have the same digest.
    pub fn digest(&self) -> u64 {
        digest::of(&self.state.lock())
    }
}
