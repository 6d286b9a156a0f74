//! Metadata operations on the primary: numbered, logged and sent one at a time, and applied in the same
//! order (rule P2).
//!
//! Invariants: the sequencer is held while one is numbered, logged and sent, and while they are applied;
//! the core is told what came of them after it was let go, but for what could not be applied, which it hears
//! of at once. What this node could not apply stops all that
//! came after it until the secondary is marked out of sync (rule P15).

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::OpError;
use lockstep_fs::store::Applied;
use lockstep_repl::core::{Effect, Effects, Event, OpId};
use lockstep_repl::message::Message;
use lockstep_repl::state::Trigger;
use lockstep_types::settings::Durability;
use lockstep_types::{Errno, MetaOp, Osn};

use super::flight::Work;
use super::{Datastore, Thread, lockset};

/// How long those who must not wait for the disk wait for their turn: longer than it takes to number, log and
/// send an operation.
const SOON: Duration = Duration::from_millis(1);

/// A metadata operation that was applied after both sides had agreed on it.
pub(super) struct Committed {
    osn: Osn,
    op: Option<OpId>,
    outcome: Result<Option<Applied>, OpError>,
}

/// The number that a metadata operation was given, if it was.
fn number_in(effects: &Effects) -> Option<Osn> {
    effects.iter().find_map(|effect| match effect {
        Effect::Sequenced { osn, .. } => Some(*osn),
        _ => None,
    })
}

impl Datastore {
    /// Prepares a metadata operation on this thread, or in the pool where it is one of a client that finds no
    /// berth: it may wait for its turn, and for a checkpoint.
    pub(super) fn prepare_on(self: &Arc<Self>, thread: Thread, op: OpId) -> Option<Event> {
        if thread == Thread::MayWait {
            return self.prepare(op);
        }
        if let Some(_berth) = self.berths.take() {
            return self.prepare(op);
        }
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || {
            if let Some(event) = datastore.prepare(op) {
                datastore.drive(Thread::MayWait, event);
            }
        }));
        None
    }

    /// Numbers, validates, logs and sends a metadata operation, alone (rule P2).
    fn prepare(self: &Arc<Self>, op: OpId) -> Option<Event> {
        let mut outcome = None;
        let mut others = Effects::new();
        let earlier = {
            let _turn = self.sequencer.lock();
            let effects = self.decide(Event::Sequence(op));
            // What was committed before this one was numbered is applied before it. Itself it may be
            // committed already, as the secondary was given up since, but it is not logged yet.
            let earlier = self.apply_committed(number_in(&effects));
            for effect in effects {
                if let Effect::Sequenced { op, osn, mirrored } = effect {
                    outcome = self.begin_meta(op, osn, mirrored);
                } else {
                    others.push(effect);
                }
            }
            earlier
        };
        self.settle_committed(Thread::MayWait, earlier);
        // It was refused, as the disk has failed meanwhile, and let go on who waited behind it.
        self.carry_out_all(Thread::MayWait, others, None);
        if self.store.changes_exceed() {
            // Those that come wait until a resync has sent some of what was changed (rule P18).
            self.drive(Thread::MayWait, Event::NamesBehind(true));
        }
        outcome
    }

    pub(super) fn begin_meta(&self, id: OpId, osn: Osn, mirrored: bool) -> Option<Event> {
        let done = |result| Some(Event::LocalDone(id, result));
        let op = {
            let mut works = self.works.lock();
            let Some(Work::Meta(meta)) = works.get_mut(&id) else {
                return done(Err(Errno::Io));
            };
            if lockset::targets(&self.store, &meta.request) != meta.targets {
                meta.again = true;
                return done(Err(Errno::Again));
            }
            MetaOp {
                osn,
                time: meta.time,
                request: meta.request.clone(),
            }
        };
        match self.begin_checked(id, &op, mirrored) {
            Ok(true) => done(Ok(())),
            Ok(false) => None,
            Err(error) => done(Err(self.told(&error))),
        }
    }

    /// Whether the operation is over already.
    fn begin_checked(&self, id: OpId, op: &MetaOp, mirrored: bool) -> Result<bool, OpError> {
        let durable = self.config.durability == Durability::Always;
        if !mirrored {
            let applied = self.store.commit(op)?;
            if durable {
                self.store.sync_applied(&applied)?;
            }
            self.keep_outcome(id, applied);
            return Ok(true);
        }
        self.store.validate(op)?;
        let intent = self.store.log_pending(op)?;
        let message = Message::Meta {
            op: op.clone(),
            previous: intent.previous,
            durable,
        };
        self.send(message, &[]);
        Ok(false)
    }

    fn keep_outcome(&self, id: OpId, applied: Applied) {
        if let Some(Work::Meta(meta)) = self.works.lock().get_mut(&id) {
            meta.applied = Some(applied);
        }
    }

    pub(super) fn resend_meta(&self, osn: Osn) -> Option<Event> {
        if let Some((op, previous)) = self.store.pending(osn) {
            let durable = self.config.durability == Durability::Always;
            let message = Message::Meta {
                op,
                previous,
                durable,
            };
            self.send(message, &[]);
        }
        None
    }

    /// Applies what both sides have agreed on. The turn comes soon, unless who has it waits for the disk:
    /// then those who must not wait leave it to the pool.
    pub(super) fn commit(self: &Arc<Self>, thread: Thread) -> Option<Event> {
        let turn = match thread {
            Thread::MayWait => Some(self.sequencer.lock()),
            Thread::Client | Thread::Reader => self.sequencer.try_lock_for(SOON),
        };
        let Some(turn) = turn else {
            let datastore = Arc::clone(self);
            self.host
                .spawn(Box::new(move || drop(datastore.commit(Thread::MayWait))));
            return None;
        };
        let applied = self.apply_committed(None);
        drop(turn);
        self.settle_committed(thread, applied);
        None
    }

    /// Applies, in their order, all metadata operations that were decided to be committed, or those with a
    /// number below `end`, whichever thread was told first. The caller holds the sequencer.
    fn apply_committed(self: &Arc<Self>, end: Option<Osn>) -> Vec<Committed> {
        let mut applied = Vec::new();
        while self.stuck.lock().is_none() {
            let Some((osn, op)) = self.next_committed(end) else {
                break;
            };
            let outcome = self.store.commit_pending(osn);
            let failed = outcome.as_ref().err().map(ToString::to_string);
            let committed = Committed { osn, op, outcome };
            match failed {
                None => applied.push(committed),
                Some(why) => {
                    self.leave_sync(&why);
                    applied.extend(self.give_up(committed));
                }
            }
        }
        applied
    }

    fn next_committed(&self, end: Option<Osn>) -> Option<(Osn, Option<OpId>)> {
        let mut committed = self.committed.lock();
        let next = committed.first_entry()?;
        let is_due = end.is_none_or(|end| *next.key() < end);
        is_due.then(|| next.remove_entry())
    }

    /// This node could not do what the secondary has done. The core hears of it before anything is rolled
    /// back: or a mark "in sync" that is just being made could still count. The caller holds the sequencer.
    fn leave_sync(self: &Arc<Self>, why: &str) {
        self.set_reason(why);
        let effects = self.decide(Event::Trigger(Trigger::PeerFailed));
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || {
            datastore.carry_out_all(Thread::MayWait, effects, None);
        }));
    }

    /// An operation that the secondary has done could not be applied here. It did not happen, once
    /// the secondary is marked out of sync; until then a restart would have to try it again, before
    /// all that came after it (rules P8, P15). The caller holds the sequencer.
    fn give_up(&self, committed: Committed) -> Option<Committed> {
        if self.poison.has_failed() {
            // The mark it would wait for is not made any more (rule P16): it ends with an error.
            return Some(committed);
        }
        if self.role.state().in_sync {
            *self.stuck.lock() = Some(committed);
            return None;
        }
        if let Err(error) = self.store.roll_back(committed.osn) {
            tracing::error!(datastore = self.name(), %error, "an agreed operation failed here");
        }
        Some(committed)
    }

    /// Ends what could not be applied, and lets what was behind it go on.
    pub(super) fn apply_stuck(self: &Arc<Self>) {
        let applied = {
            let _turn = self.sequencer.lock();
            let stuck = self.stuck.lock().take();
            let mut applied: Vec<Committed> = stuck
                .and_then(|committed| self.give_up(committed))
                .into_iter()
                .collect();
            applied.extend(self.apply_committed(None));
            applied
        };
        self.settle_committed(Thread::MayWait, applied);
    }

    /// Tells the core what became of operations that were applied.
    fn settle_committed(self: &Arc<Self>, thread: Thread, applied: Vec<Committed>) {
        for committed in applied {
            if let Some(event) = self.settle(thread, committed) {
                self.drive(thread, event);
            }
        }
    }

    fn settle(self: &Arc<Self>, thread: Thread, committed: Committed) -> Option<Event> {
        let Committed { osn, op, outcome } = committed;
        let result = match outcome {
            // Refused here before it was sent: whoever refused it tells the core.
            Ok(None) if op.is_some() => return None,
            Ok(None) => Ok(()),
            Ok(Some(applied)) => {
                if let Some(op) = op {
                    self.keep_outcome(op, applied);
                    if self.config.durability == Durability::Always {
                        return self.finish_durably(thread, op, applied);
                    }
                } else if let Some(ino) = applied.orphaned {
                    self.orphaned(ino);
                }
                Ok(())
            }
            Err(error) => Err(self.told(&error)),
        };
        Some(match op {
            Some(op) => Event::LocalDone(op, result),
            None => Event::Applied(osn),
        })
    }

    /// With `durability = "always"`: first to stable storage, then the answer (rule P11).
    fn finish_durably(
        self: &Arc<Self>,
        thread: Thread,
        op: OpId,
        applied: Applied,
    ) -> Option<Event> {
        let datastore = Arc::clone(self);
        let sync = move || {
            let synced = datastore.store.sync_applied(&applied);
            let result = synced.map_err(|error| datastore.told(&error.into()));
            Event::LocalDone(op, result)
        };
        if thread == Thread::MayWait {
            return Some(sync());
        }
        let datastore = Arc::clone(self);
        self.host
            .spawn(Box::new(move || datastore.drive(Thread::MayWait, sync())));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::tests::Place;

    /// While one is numbered and not yet logged, the core may come to count it as committed: the
    /// connection is lost, or an earlier one fails here. It must be found when it is in the log.
    #[test]
    fn what_is_not_logged_yet_is_left_to_be_applied() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let number = |sequence| Osn {
            sequence: datastore.first_osn.sequence + sequence,
            ..datastore.first_osn
        };
        for sequence in [1, 2] {
            datastore.committed.lock().insert(number(sequence), None);
        }
        let osns = |applied: Vec<Committed>| -> Vec<Osn> {
            applied.into_iter().map(|committed| committed.osn).collect()
        };
        let turn = datastore.sequencer.lock();
        assert_eq!(
            osns(datastore.apply_committed(Some(number(2)))),
            [number(1)]
        );
        assert_eq!(osns(datastore.apply_committed(None)), [number(2)]);
        drop(turn);
        datastore.stop();
        datastore.close();
    }
}
