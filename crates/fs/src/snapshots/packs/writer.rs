//! Writing groups: threads that keep blocks at the same time share one group, and one sync.
//!
//! One thread leads: it writes the group of all touches that wait, makes the group durable, and notes the touches in the index.
//! Touches that come meanwhile wait for the next group. The thread with the first of them leads next.
//!
//! Invariants:
//! - A group is durable, and in the index, before any thread that waits for its touches goes on (to change these blocks).
//! - The next group begins after the last one is durable. So only the last group of a pack may be torn.
//! - After a failure each thread that waited tries once more by itself, and gets its own error.
//!
//! Blocks that arrive for a snapshot that this node lacks ([`GroupWriter::keep_alone`]) have packs of their own, with numbers from [`ARRIVED_FROM`](super::touch::ARRIVED_FROM) on, and another
//! writer: the label is not that of the newest snapshot, and an opening reads none of these packs again.
//!
//! Locks: that of the queue, then that of an outcome; held for no call of the disk or of the namespace.

use std::sync::Arc;

use lockstep_types::SnapshotId;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::files::{PackFile, PackFiles, offset_of};
use super::group::Group;
use super::index::BlockIndex;
use super::touch::{NewTouch, PackPlace};
use crate::error::StoreError;
use crate::paths::pack_path;
use crate::store_disk::StoreDisk;

/// Blocks of a pack, about: the pack with this many is the last one that gets another group. 256 MiB.
const PACK_BLOCKS: u32 = 1 << 16;

/// The touches of one thread, until a group has them.
struct Submission {
    touches: Vec<NewTouch>,
    outcome: Mutex<Option<GroupOutcome>>,
}

/// How a group with a submission has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupOutcome {
    /// It is durable, and in the index.
    Durable,
    /// Its leader has the error.
    Failed,
}

/// Where the next group goes.
struct Tail {
    number: u64,
    block: u32,
    file: Arc<PackFile>,
}

impl Tail {
    const fn place(&self) -> PackPlace {
        PackPlace {
            pack: self.number,
            block: self.block,
        }
    }
}

#[derive(Default)]
struct GroupQueue {
    /// Touches that wait for the next group.
    waiting: Vec<Arc<Submission>>,
    /// Whether a thread leads.
    is_led: bool,
    /// `None` while a thread leads, before the first group and after a failure: the next group begins a pack then.
    tail: Option<Tail>,
    /// Every group before this place is in the index.
    noted_to: Option<PackPlace>,
}

/// See the head of this file.
#[derive(Default)]
pub struct GroupWriter {
    queue: Mutex<GroupQueue>,
    ended: Condvar,
}

/// The parts of a store that a group is written to.
#[derive(Clone, Copy)]
pub struct PackDisk<'a> {
    /// The disk, which a failed sync poisons.
    pub disk: &'a StoreDisk,
    /// The packs.
    pub files: &'a PackFiles,
    /// The index.
    pub index: &'a BlockIndex,
    /// The packs have numbers from this one on.
    pub numbers_from: u64,
}

impl GroupWriter {
    /// Keeps blocks for snapshot `label`: returns once they are durable, and in the index.
    ///
    /// # Errors
    /// Nothing is kept, as far as the caller may know.
    pub fn keep(
        &self,
        on: PackDisk<'_>,
        label: SnapshotId,
        touches: Vec<NewTouch>,
    ) -> Result<(), StoreError> {
        let mine = Arc::new(Submission {
            touches,
            outcome: Mutex::new(None),
        });
        if self.keep_with_others(on, label, &mine)? == GroupOutcome::Durable {
            return Ok(());
        }
        self.keep_submission(on, label, &mine)
    }

    /// Keeps blocks for a snapshot in a group of their own.
    ///
    /// # Errors
    /// Nothing is kept, as far as the caller may know.
    pub fn keep_alone(
        &self,
        on: PackDisk<'_>,
        label: SnapshotId,
        touches: Vec<NewTouch>,
    ) -> Result<(), StoreError> {
        let outcome = Mutex::new(None);
        self.keep_submission(on, label, &Arc::new(Submission { touches, outcome }))
    }

    /// Waits for a group of another thread, or leads one.
    fn keep_with_others(
        &self,
        on: PackDisk<'_>,
        label: SnapshotId,
        mine: &Arc<Submission>,
    ) -> Result<GroupOutcome, StoreError> {
        let mut queue = self.queue.lock();
        queue.waiting.push(Arc::clone(mine));
        while queue.is_led {
            self.ended.wait(&mut queue);
            let outcome = *mine.outcome.lock();
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
        let group = std::mem::take(&mut queue.waiting);
        self.lead(on, label, &group, queue)?;
        Ok(GroupOutcome::Durable)
    }

    fn keep_submission(
        &self,
        on: PackDisk<'_>,
        label: SnapshotId,
        mine: &Arc<Submission>,
    ) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        while queue.is_led {
            self.ended.wait(&mut queue);
        }
        self.lead(on, label, &[Arc::clone(mine)], queue)
    }

    fn lead(
        &self,
        on: PackDisk<'_>,
        label: SnapshotId,
        group: &[Arc<Submission>],
        mut queue: MutexGuard<'_, GroupQueue>,
    ) -> Result<(), StoreError> {
        queue.is_led = true;
        let tail = queue.tail.take();
        drop(queue);
        let touches = group.iter().flat_map(|submitted| &submitted.touches);
        let written = write_group(on, label, touches, tail);
        let outcome = if written.is_ok() {
            GroupOutcome::Durable
        } else {
            GroupOutcome::Failed
        };
        let mut queue = self.queue.lock();
        for submitted in group {
            *submitted.outcome.lock() = Some(outcome);
        }
        queue.is_led = false;
        let led = written.map(|tail| {
            queue.noted_to = Some(tail.place());
            queue.tail = Some(tail);
        });
        drop(queue);
        self.ended.notify_all();
        led
    }

    /// The place before which every group of this process is in the index; `None` before the first group.
    pub fn noted_to(&self) -> Option<PackPlace> {
        self.queue.lock().noted_to
    }

    /// The pack that gets the next group, unless the next group begins a pack.
    pub fn current(&self) -> Option<u64> {
        let queue = self.queue.lock();
        let current = queue.tail.as_ref().map(|tail| tail.number);
        current.or_else(|| queue.noted_to.map(|place| place.pack))
    }
}

/// Writes a group behind `tail`, makes it durable and notes it. Returns the place behind it.
fn write_group<'a>(
    on: PackDisk<'_>,
    label: SnapshotId,
    touches: impl Iterator<Item = &'a NewTouch> + Clone,
    tail: Option<Tail>,
) -> Result<Tail, StoreError> {
    on.disk.check_not_poisoned()?;
    let fits = |tail: &Tail| tail.file.label == label && tail.block < PACK_BLOCKS;
    let tail = match tail.filter(fits) {
        Some(tail) => tail,
        None => new_pack(on, label)?,
    };
    let at = tail.place();
    let group = Group::new(&tail.file.key, at, touches.clone());
    let mut bytes = group.header.clone();
    touches.for_each(|touch| bytes.extend_from_slice(&touch.bytes));
    let path = || pack_path(tail.number, label);
    let written = tail.file.bytes.write_at(offset_of(at.block), &bytes);
    written.map_err(StoreError::disk("write", path()))?;
    if !is_active(Mutant::KeepUnsynced) {
        let synced = tail.file.bytes.sync();
        on.disk
            .poison_on_error(synced.map_err(StoreError::disk("sync", path())))?;
    }
    on.index.add(label, &group.touches)?;
    let block = at.block.saturating_add(group.blocks());
    Ok(Tail { block, ..tail })
}

fn new_pack(on: PackDisk<'_>, label: SnapshotId) -> Result<Tail, StoreError> {
    let number = on.files.next_number(on.numbers_from);
    let file = on.files.create(number, label)?;
    Ok(Tail {
        number,
        block: 1,
        file,
    })
}
