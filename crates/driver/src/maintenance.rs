//! What has to be done from time to time: ticks for the core, signs of life for the peer,
//! checkpoints, and removing the content of freed inodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_repl::core::Event;
use lockstep_repl::message::Message;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;

use super::start::{DatastoreError, failed, refused};
use super::{Datastore, Thread, tables};

/// How often the core hears that time passes.
const TICK: Duration = Duration::from_millis(50);
/// How often the content of freed inodes is removed, and the directories that are empty then.
const GARBAGE: Duration = Duration::from_secs(2);
/// How often a checkpoint is made while nothing forces one.
const CHECKPOINT: Duration = Duration::from_secs(20);

/// After so many bytes of writes were kept in memory, the allocator is told to give memory back.
const TRIM_AFTER_BYTES: u64 = 16 << 20;
/// When so few operations are under way.
const FEW_OPERATIONS: usize = 16;

impl Datastore {
    /// Runs until the datastore is stopped.
    pub fn run_maintenance(self: &Arc<Self>) {
        let start = self.host.now();
        let (mut pinged, mut checkpointed, mut collected) = (start, start, start);
        while !self.is_stopping() {
            self.host.sleep(TICK);
            self.ticked_ms.store(self.now_ms(), Ordering::Release);
            self.notice_poison();
            self.send_left();
            self.drive(Thread::MayWait, Event::Tick);
            self.keeper.look_again();
            self.give_room_back();
            if self.host.since(pinged) >= self.config.beat() {
                pinged = self.host.now();
                self.ping();
            }
            if self.poison.has_failed() {
                continue;
            }
            self.look_at_room();
            let garbage = self.host.since(collected) >= GARBAGE;
            let checkpoint =
                self.store.needs_checkpoint() || self.host.since(checkpointed) >= CHECKPOINT;
            if (garbage || checkpoint) && self.keep_up(garbage, checkpoint) {
                let now = self.host.now();
                collected = if garbage { now } else { collected };
                checkpointed = if checkpoint { now } else { checkpointed };
            }
        }
    }

    /// How long ago maintenance went on last.
    pub fn since_tick(&self) -> Duration {
        let ticked = self.ticked_ms.load(Ordering::Acquire);
        Duration::from_millis(self.now_ms().saturating_sub(ticked))
    }

    /// Gives back what many writes at once have taken, as they had to wait: of the disk when none of them is
    /// left there, of memory when few are left, for the allocator would keep some for the next time.
    fn give_room_back(self: &Arc<Self>) {
        if let Some(file) = self.keeper.unused_file() {
            self.host.spawn(Box::new(move || drop(file)));
        }
        let is_due = self.keeper.kept() >= TRIM_AFTER_BYTES;
        if is_due && self.core.lock().operations() < FEW_OPERATIONS {
            self.keeper.take_kept();
            let datastore = Arc::clone(self);
            self.host
                .spawn(Box::new(move || datastore.host.give_memory_back()));
        }
    }

    /// Has done for the store what is due and may take long, unless that is under way already; whether
    /// it was begun. All of it at once, so that neither keeps the other away. Not on this thread: while it
    /// waits for the disk, the peer must hear of this node, and the pause must end.
    fn keep_up(self: &Arc<Self>, garbage: bool, checkpoint: bool) -> bool {
        if self.keeping_up.swap(true, Ordering::AcqRel) {
            return false;
        }
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || {
            if garbage {
                datastore.remove_garbage();
                datastore.fill_reserve();
            }
            if checkpoint {
                datastore.checkpoint();
            }
            datastore.keeping_up.store(false, Ordering::Release);
        }));
        true
    }

    /// Only the primary asks. Not again before it has an answer: behind much that is on its way over a slow
    /// link, answers would come all at once, and say nothing of how long the peer has had anything (P15). It
    /// says that it is there all the same: a round trip may take longer than either may be silent.
    fn ping(&self) {
        if self.config.role != Role::Primary {
            return;
        }
        let link = self.link.read().clone();
        if let Some(link) = link {
            let waits = link.course.pinged.swap(true, Ordering::AcqRel);
            let sign = if waits {
                Message::Alive
            } else {
                self.asks_for_room();
                Message::Ping
            };
            self.send_over(link.id, sign, &[]);
        }
    }

    /// The peer has answered.
    pub(super) fn pong(&self) {
        if let Some(link) = &*self.link.read() {
            link.course.pinged.store(false, Ordering::Release);
        }
    }

    fn remove_garbage(&self) {
        if let Err(error) = self.store.collect_garbage() {
            tracing::warn!(datastore = self.name(), %error, "content of a freed inode stays");
        }
        if let Err(error) = self.store.remove_empty_directories() {
            // Nothing is lost by that, and it is tried again.
            tracing::debug!(datastore = self.name(), %error, "an empty directory stays");
        }
    }

    fn checkpoint(&self) {
        if let Err(error) = self.store.checkpoint() {
            tracing::error!(datastore = self.name(), %error, "checkpoint failed");
        }
    }

    /// Ends all work: nothing new is begun, the connection is closed, what is queued is done. The
    /// threads that run this datastore end soon; when they have, it can be closed.
    pub fn stop(self: &Arc<Self>) {
        self.stopping.store(true, Ordering::Release);
        self.drop_link("this node is stopping");
        self.calls.abandon();
        self.abandon_inspections();
        self.keeper.close();
        self.host.stop();
        self.abandon_applicants();
    }

    /// Puts everything on stable storage, once no thread works on it any more. Whether all of it could
    /// be, or nothing can be on this disk and that is known; what failed is in the log.
    pub fn close(&self) -> bool {
        let _nobody_is_served = self.serving.enter(&*self.host);
        if self.poison.has_failed() {
            // Nothing can be put on stable storage any more, and nothing must say that it was.
            tracing::warn!(
                datastore = self.name(),
                "poisoned: the store is left as it is"
            );
            return true;
        }
        let closed = self.close_in_order();
        if let Err(error) = &closed {
            tracing::error!(datastore = self.name(), %error, "not closed in order");
        }
        closed.is_ok()
    }

    /// Content, log, and the tables of writes under way; the mark that all of it is there goes last (rules P6,
    /// P7, P12).
    fn close_in_order(&self) -> Result<(), DatastoreError> {
        if self.role.was_killed() && !is_active(Mutant::ClosedTooEarly) {
            let synced = self.store.sync_everything();
            synced.map_err(refused(&self.config))?;
        }
        self.store.close().map_err(refused(&self.config))?;
        if !is_active(Mutant::NoTablesSync) {
            let tables = tables::sync(self.store.backing().as_ref());
            tables.map_err(refused(&self.config))?;
        }
        self.role.closed().map_err(failed(&self.config))
    }
}
