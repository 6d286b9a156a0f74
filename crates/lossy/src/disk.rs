//! The disk of one node: files in memory that lose, tear and refuse as real ones may.
//!
//! What it keeps is what [`lockstep_types::backing`] promises, and nothing more: after the process
//! has ended everything is as it left it; after a power loss, of what no sync covered any subset is
//! left, pages of 4 KiB, lengths and names each by themselves. Where a real disk could choose, this
//! one does so by chance from a seed; the same calls with the same chance leave the same disk.
//!
//! How it follows Linux where the contract leaves it open:
//! - A sync of a file says nothing of its name. A sync of a directory covers the names in it, its
//!   own name and those of the directories above it, but not their other names.
//! - A sync that fails is reported once. What it should have saved is still seen, counts as clean,
//!   and is not on the disk: later syncs succeed without it, unless it was changed again.
//! - Space that was reserved and never written is a hole to those who look for data (ext4's
//!   unwritten extents), takes space, and needs no more when it is written.
//! - A removed file keeps its space until the last who has it open closes it.
//! - A disk that gets full in the middle of a write has the pages before; one that has too little
//!   room to reserve a range reserves nothing.
//! - Directories are made with the files in them and never removed; only files can be renamed.
//!
//! One owner: all state is behind one lock, which is never held while a callback runs.

mod call;
mod digest;
mod history;
mod inode;
mod loss;
mod mount;
mod names;
mod pages;
mod state;

use std::sync::Arc;

use lockstep_types::Errno;
use lockstep_types::backing::Backing;
use parking_lot::Mutex;

pub use call::{Call, CallClass, CallKind, Observer, Verdict};
pub use loss::Survivors;
pub use state::{DiskOptions, gone};

use crate::random::Random;
pub(crate) use mount::{Kind, Mount};
use state::State;

/// A disk. Clones are the same one.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
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

    /// The disk as the process has it that uses it now. It may be had more than once; all are
    /// over with the next [`Self::kill`] or power loss.
    pub fn mount(&self) -> Arc<dyn Backing> {
        Arc::new(self.take())
    }

    /// The same, with what only the kernel asks for.
    pub(crate) fn take(&self) -> Mount {
        Mount {
            disk: self.clone(),
            incarnation: self.state.lock().incarnation(),
        }
    }

    /// The process is gone: whatever it still asks for fails and changes nothing. Tables then read
    /// as zeros, and what is stored in them is dropped.
    pub fn kill(&self) {
        self.state.lock().kill();
    }

    /// The process is gone and power is lost: any subset of what was not synced is left. Returns how
    /// it was chosen.
    pub fn power_loss(&self, random: &mut Random) -> Survivors {
        let mut state = self.state.lock();
        let survivors = state.choose_survivors(random);
        state.lose_power(survivors, random);
        survivors
    }

    /// The same, with these survivors.
    pub fn power_loss_with(&self, survivors: Survivors, random: &mut Random) {
        self.state.lock().lose_power(survivors, random);
    }

    /// A disk of its own in the same state, which no process uses and on which nothing was set to
    /// go wrong. Cheap: content is shared until one of the two changes it.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::of(self.state.lock().forked())
    }

    /// Who is asked from now on before each call that changes or saves something. One that holds the
    /// disk keeps it from being freed until it is taken off again.
    pub fn observe(&self, observer: Option<Observer>) {
        let before = std::mem::replace(&mut self.state.lock().observer, observer);
        // Not under the lock: it may hold open files, and those take the lock when they are closed.
        drop(before);
    }

    /// Lets the `nth` call of a class from now fail (1 is the next), without effect. A sync that
    /// fails so leaves what it should have saved seen, clean, and not on the disk. Where the observer
    /// has another wish for that call, the fault is spent.
    pub fn fail_call(&self, class: CallClass, nth: u64, errno: Errno) {
        self.state.lock().arm(class, None, nth, errno);
    }

    /// The same for the next call of a class on one file.
    pub fn fail_next_on(&self, path: &'static str, class: CallClass, errno: Errno) {
        self.state.lock().arm(class, Some(path), 1, errno);
    }

    /// Lets every call of a class fail from now on, as [`Self::fail_call`] does one.
    pub fn fail_calls(&self, class: CallClass, errno: Errno) {
        self.state.lock().break_down(class, errno);
    }

    /// Takes back what [`Self::fail_call`] has set and no call has met yet, and what
    /// [`Self::fail_calls`] has.
    pub fn stop_failing(&self) {
        self.state.lock().disarm();
    }

    /// The pages that failed syncs have given up are seen as stable storage has them, as if they had
    /// been dropped from memory: any time may be the one. Lengths and names are still seen.
    pub fn drop_lost_pages(&self) {
        self.state.lock().drop_lost_pages();
    }

    /// Takes everything off the disk, for one that is of no more use but may still be held somewhere.
    pub fn discard(&self) {
        let mut state = self.state.lock();
        let options = state.options;
        let gone = std::mem::replace(&mut *state, State::new(options));
        // Not under the lock: an observer may hold open files, and those take it when they are closed.
        drop(state);
        drop(gone);
    }

    /// Makes the disk larger or smaller. One that has less room than is used is full.
    pub fn set_capacity(&self, options: DiskOptions) {
        self.state.lock().options = options;
    }

    /// Makes the disk as small as what is on it: nothing more fits.
    pub fn fill(&self) {
        let mut state = self.state.lock();
        state.options = state.full();
    }

    /// Turns over one bit (0 to 7) of the byte at `offset`, for reads and on stable storage. False
    /// when there is no such file, or no byte at that place: past the end, or in a hole.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u32) -> bool {
        self.state.lock().flip(path, offset, bit)
    }

    /// Calls so far that changed or saved something, or tried to.
    pub fn calls(&self) -> u64 {
        self.state.lock().serial()
    }

    /// The paths of all files, in their order.
    pub fn files(&self) -> Vec<String> {
        let state = self.state.lock();
        state
            .names
            .files()
            .map(|(path, _)| path.to_owned())
            .collect()
    }

    /// The paths of all directories, in their order.
    pub fn directories(&self) -> Vec<String> {
        let state = self.state.lock();
        state.names.directories().map(str::to_owned).collect()
    }

    /// All bytes of a file, as reads see them; `None` when there is none.
    pub fn read_all(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let number = state.names.file(path).ok()?;
        let content = state.content(number).ok()?;
        let mut bytes = vec![0; usize::try_from(content.length()).ok()?];
        content.read(0, &mut bytes);
        Some(bytes)
    }

    /// How many pages, lengths and changes of names are not on stable storage.
    pub fn unsynced(&self) -> usize {
        self.state.lock().unsynced()
    }

    /// A number for all that is seen and all that is kept: two disks that were treated alike have
    /// the same.
    pub fn digest(&self) -> u64 {
        digest::of(&self.state.lock())
    }
}
