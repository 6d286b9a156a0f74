//! The barriers of a session: when one begins, and the work that the machine of the store asks for (rule P27).
//!
//! The machine (`lockstep_delta::BarrierMachine`) lies in the store and decides. This file has its clock and its hands: one
//! worker at a time, on a thread of the pool, sends, makes everything stable, and drops marks.
//!
//! **The drain.** An operation takes its interval when the core numbers it. At the *turn*, under the core's lock, the machine
//! opens the next interval, and this file notes the number that the core gives out next. So the operations of the earlier intervals
//! are exactly those with lower numbers. The core knows the oldest operation that is not over on both nodes, also while its
//! connection is lost and it waits to be sent again. The machine counts all of them as one operation, which ends when
//! [`Core::is_over_below`] says so. No operation does anything for a barrier, and none waits for one.
//!
//! No number counts the requests of a resync or of a recovery. *A resync* needs none: a place leaves the rest with the answer of the
//! secondary, for the interval that is open then (P30). Barriers run from the begin of its content on, when all writes that were admitted
//! before are in the rest ([`Barriers::content_begun`]). *A recovery* may run beside a barrier. Its ranges are those of writes in
//! flight, which hold the drain up; of writes that are over, whose bytes the other node gets once more; and of writes of the previous
//! process, of which no barrier of this process is under way.
//!
//! Invariants:
//! - The core's lock is held for decisions in memory only. The worker holds no lock while it waits for the disk, but for the short
//!   note of a name.
//! - A word to the secondary goes over a connection only once the secondary has said over that connection that its copy is
//!   complete, or once a resync over that connection has come to the content. So a copy that has lost power notes no barrier before the
//!   primary has in its rest all that the copy lacks.
//! - A name is noted and forgotten under one lock: a sync that was begun before brings no forgotten name back.
//!
//! Lock order: core, `state`, the machine of the store. `noting` is taken before the machine's lock, and never under the core's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lockstep_delta::{
    BarrierEffect, BarrierEvent, BarrierMachine, BarrierMessage, BarrierName, BarrierNames,
    Interval,
};
use lockstep_fs::StoreError;
use lockstep_repl::core::{ConnectionId, Core};
use lockstep_repl::message::Message;
use lockstep_repl::state::State;
use lockstep_sums::SummedBytes;
use lockstep_types::Osn;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use crate::engine::Engine;
use crate::ops::announcements::Announcements;
use crate::peer::connection::{ActiveConnection, Delivery};
use crate::replication::Replication;

/// The used part of a table of marks from which on a barrier begins early, in thousandths.
const EARLY_FILL: u32 = 750;

/// An early barrier begins this part of the interval after the last attempt, or later.
const EARLY_PART: u32 = 16;

/// The operations that a barrier waits for.
#[derive(Clone, Copy, Debug)]
struct BarrierTurn {
    /// The interval that the barrier ends.
    through: Interval,
    /// Each operation of an interval up to there has a number below this one.
    end: Osn,
}

/// The state of the barriers of a session, in memory.
#[derive(Default)]
struct BarrierWork {
    /// The nodes are in sync, or their connection was lost in sync, or a resync has come to the content.
    mirrors: bool,
    /// The connection over which a resync has come to the content.
    resynced_on: Option<ConnectionId>,
    /// The operations that are not over yet.
    draining: Option<BarrierTurn>,
    /// The interval of the last turn since the nodes are in sync, and its moment on the host's clock.
    turned: Option<(Interval, Duration)>,
    /// A barrier has become complete since the nodes are in sync.
    has_base: bool,
    /// The moment of the turn of the last complete barrier.
    complete: Option<Duration>,
    /// The connection over which the last word was repeated.
    told_on: Option<ConnectionId>,
    /// Work for the worker, in order.
    queue: VecDeque<BarrierEffect>,
    /// A worker is at work, or about to be.
    is_working: bool,
}

impl BarrierWork {
    /// The barrier of an interval is complete. After another turn, the moment of an earlier barrier stays: that says too much of the
    /// cost of a loss of power, and never too little.
    fn note_complete(&mut self, through: Interval) {
        self.has_base = true;
        let of_turn = self.turned.filter(|(turned, _)| *turned == through);
        self.complete = of_turn.map(|(_, moment)| moment).or(self.complete);
    }
}

/// See the head of this file.
pub(crate) struct Barriers {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    state: Mutex<BarrierWork>,
    /// Held while names are noted on stable storage, and while they are forgotten.
    noting: Mutex<()>,
    /// The regions that the secondary has marked.
    pub announcements: Arc<Announcements>,
}

/// The decisions of a primary.
impl Barriers {
    /// The barriers of a session that begins. A barrier that an earlier session had under way is over.
    pub fn begin(
        engine: &Arc<Engine>,
        replication: &Arc<Replication>,
        announcements: Arc<Announcements>,
    ) -> Arc<Self> {
        let barriers = engine.store.barriers();
        barriers.restarted();
        if !engine.role_file.state().record.is_primary() {
            let from = barriers.open();
            let _none = barriers.handle(BarrierEvent::FollowingBegun { from });
        }
        Arc::new(Self {
            engine: Arc::clone(engine),
            replication: Arc::clone(replication),
            state: Mutex::default(),
            noting: Mutex::new(()),
            announcements,
        })
    }

    /// The core has entered a state. The caller holds the core's lock.
    pub fn entered(self: &Arc<Self>, entered: State) {
        match entered {
            State::Synced => self.begin_mirroring(),
            State::Paused
            | State::Frozen
            | State::CatchingUp
            | State::ResyncContent
            | State::EnteringSync => {}
            _ => self.end_mirroring(),
        }
        match entered {
            State::ResyncContent if is_active(Mutant::ResyncUnannounced) => {}
            State::Synced | State::ResyncContent => self.announcements.set_mirroring(true),
            State::Paused
            | State::Frozen
            | State::CatchingUp
            | State::EnteringSync
            | State::LeavingSync => {}
            // The names are hidden on stable storage, or the disk has failed.
            _ => self.announcements.set_mirroring(false),
        }
        if entered == State::OutOfSync {
            // Also of a resync that has lost its connection.
            self.engine.store.barriers().serve_alone();
        }
    }

    /// A resync over this connection has come to the content, and each write that was admitted before is in the rest.
    pub fn content_begun(self: &Arc<Self>, connection: ConnectionId) {
        let core = self.replication.core.lock();
        // No resync ends, as long as the core's lock is held.
        if core.state() != State::ResyncContent || self.replication.peer.get(connection).is_none() {
            return;
        }
        self.begin_mirroring();
        self.state.lock().resynced_on = Some(connection);
    }

    /// Whether the secondary may hear of barriers over this connection.
    fn may_tell(&self, connection: &ActiveConnection) -> bool {
        connection.has_complete_peer() || self.state.lock().resynced_on == Some(connection.id)
    }

    /// The nodes are in sync, or a resync has come to the content. A barrier under way goes on over a lost connection.
    fn begin_mirroring(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.mirrors, true) {
            // The word of a barrier that began in the resync goes again.
            state.told_on = None;
            return;
        }
        (state.turned, state.has_base) = (None, false);
        let told = self.replication.peer.current();
        let told = told
            .iter()
            .flat_map(|connection| &connection.copy.marks.known);
        let barriers = self.engine.store.barriers();
        let own: Vec<BarrierName> = barriers.ask(|machine| machine.known().collect());
        let heard = own.iter().chain(told).map(|name| name.through.next());
        let from = heard.max().unwrap_or(Interval::ZERO).max(barriers.open());
        let effects = barriers.handle(BarrierEvent::MirroringBegun { from });
        drop(state);
        self.execute(effects);
    }

    fn end_mirroring(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.mirrors, false) {
            return;
        }
        let barriers = self.engine.store.barriers();
        let mut effects = barriers.handle(BarrierEvent::MirroringEnded);
        if let Some(turn) = state.draining.take() {
            effects.extend(barriers.handle(BarrierEvent::Ended(turn.through)));
        }
        drop(state);
        self.execute(effects);
    }

    /// Begins a barrier if one is due, and lets the one under way go on. Does no IO.
    pub fn tick(self: &Arc<Self>) {
        if !self.state.lock().mirrors {
            return;
        }
        let connection = self.replication.peer.current();
        let Some(connection) = connection.filter(|found| self.may_tell(found)) else {
            return;
        };
        self.announcements.go_on();
        let next = self.engine.store.barriers().open().next();
        let may_turn = self.may_turn(&connection, next);
        let effects = {
            let core = self.replication.core.lock();
            // No operation goes over another connection, as long as the core's lock is held.
            let is_standing = self.replication.peer.get(connection.id).is_some();
            let has_both = matches!(
                core.state(),
                State::Synced | State::ResyncContent | State::EnteringSync
            );
            if !has_both || !is_standing {
                return;
            }
            let mut state = self.state.lock();
            let may_turn = may_turn && self.engine.store.barriers().open().next() == next;
            let mut effects = self.go_on(&mut state, &core, may_turn);
            if state.told_on.replace(connection.id) != Some(connection.id) {
                let again = self.engine.store.barriers().ask(BarrierMachine::outgoing);
                let again = again.map(BarrierEffect::Send);
                effects.extend(again.filter(|again| !effects.contains(again)));
            }
            effects
        };
        self.execute(effects);
    }

    /// Whether the secondary has been told of the next interval over this connection, and has marked the regions in use for that
    /// interval. If a barrier is due, this node tells it.
    fn may_turn(&self, connection: &ActiveConnection, next: Interval) -> bool {
        let is_due = self.may_begin(&self.state.lock());
        is_due && self.announcements.prepare_turn(connection, next)
    }

    fn may_begin(&self, state: &BarrierWork) -> bool {
        let is_under_way = self
            .engine
            .store
            .barriers()
            .ask(BarrierMachine::is_under_way);
        state.draining.is_none() && !is_under_way && self.is_due(state)
    }

    fn go_on(&self, state: &mut BarrierWork, core: &Core, may_turn: bool) -> Vec<BarrierEffect> {
        let barriers = self.engine.store.barriers();
        let mut effects = Vec::new();
        if may_turn && self.may_begin(state) {
            effects = self.turn(state, core);
        }
        if let Some(turn) = state.draining.take_if(|turn| core.is_over_below(turn.end)) {
            effects.extend(barriers.handle(BarrierEvent::Ended(turn.through)));
        }
        effects
    }

    fn is_due(&self, state: &BarrierWork) -> bool {
        // At once after the begin of a sync, so that the copies have a base.
        let Some((_, turned)) = state.turned else {
            return true;
        };
        let barriers = self.engine.store.barriers();
        let interval = self.engine.host.barrier_interval();
        let since = self.engine.host.since(turned);
        let is_early = || barriers.fill() >= EARLY_FILL;
        since >= interval && (barriers.ask(BarrierMachine::is_due) || !state.has_base)
            || since >= interval / EARLY_PART && is_early()
    }

    /// Opens the next interval. The caller holds the core's lock, so each operation of the intervals before has its number.
    fn turn(&self, state: &mut BarrierWork, core: &Core) -> Vec<BarrierEffect> {
        let barriers = self.engine.store.barriers();
        let through = barriers.open();
        state.turned = Some((through, self.engine.host.now()));
        let mut effects = barriers.handle(BarrierEvent::Begun(through));
        let end = core.next_osn();
        state.draining = Some(BarrierTurn { through, end });
        let nonce = self.engine.host.random_id();
        effects.extend(barriers.handle(BarrierEvent::Due { nonce }));
        effects
    }

    /// Time since the turn of the last complete barrier of this session; `None` before the first one. After a loss of power of the
    /// secondary, the writes since then are compared.
    pub fn since_complete(&self) -> Option<Duration> {
        let complete = self.state.lock().complete;
        complete.map(|moment| self.engine.host.since(moment))
    }
}

/// The words of the other node, and the names.
impl Barriers {
    /// Takes a word of the other node. Never waits.
    pub fn receive(self: &Arc<Self>, message: BarrierMessage) {
        let received = BarrierEvent::Received(message);
        let effects = self.engine.store.barriers().handle(received);
        self.execute(effects);
    }

    /// This copy has no base in common with another one any more: the names are gone from stable storage when this returns.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn forget(&self) -> Result<(), StoreError> {
        let _noting = self.noting.lock();
        {
            let mut state = self.state.lock();
            (state.complete, state.has_base) = (None, false);
        }
        self.engine.store.barriers().forget()
    }
}

/// The worker.
impl Barriers {
    /// Has the worker do what the machine asks for, behind earlier work.
    fn execute(self: &Arc<Self>, effects: Vec<BarrierEffect>) {
        if effects.is_empty() {
            return;
        }
        {
            let mut state = self.state.lock();
            for effect in effects {
                // A hostile peer may ask for the same again and again.
                if !state.queue.contains(&effect) {
                    state.queue.push_back(effect);
                }
            }
            if std::mem::replace(&mut state.is_working, true) {
                return;
            }
        }
        let barriers = Arc::clone(self);
        // A sync may outlive the session: it changes nothing, and its name is not noted then.
        self.engine.host.spawn(Box::new(move || barriers.work()));
    }

    fn work(self: &Arc<Self>) {
        while let Some(effect) = self.next_work() {
            match effect {
                BarrierEffect::Send(message) => self.send(message),
                BarrierEffect::Sync(names) => self.make_stable(names),
                BarrierEffect::Drop { through, .. } => {
                    self.announcements.forget_through(through);
                    let Some(_working) = self.replication.begin_work() else {
                        continue;
                    };
                    match self.engine.store.barriers().drop_columns() {
                        Ok(()) => self.state.lock().note_complete(through),
                        Err(error) => self.warn_of_failure(&error),
                    }
                }
            }
        }
    }

    fn next_work(&self) -> Option<BarrierEffect> {
        let mut state = self.state.lock();
        let next = state.queue.pop_front();
        state.is_working = next.is_some();
        next
    }

    /// Sends a word, if the nodes are in sync over the connection of the moment. After a loss, the primary says it again.
    fn send(&self, message: BarrierMessage) {
        let Some(connection) = self.replication.peer.current() else {
            return;
        };
        let message = Message::Barrier(message);
        if self.replication.state().is_secondary() {
            self.replication
                .reply(&*connection.sender, message, Delivery::Post);
        } else if self.may_tell(&connection) {
            self.replication.send(
                connection.id,
                message,
                SummedBytes::default(),
                Delivery::Post,
            );
        }
    }

    /// Puts everything changed so far on stable storage, and then the names.
    fn make_stable(self: &Arc<Self>, names: BarrierNames) {
        let barriers = self.engine.store.barriers();
        let synced = barriers.make_stable();
        let Some(_working) = self.replication.begin_work() else {
            return;
        };
        let event = {
            let _noting = self.noting.lock();
            match synced.and_then(|()| barriers.note_names(names)) {
                // The copy has forgotten its names meanwhile.
                Ok(false) => return,
                Ok(true) => barriers.handle(BarrierEvent::Synced),
                Err(error) => {
                    self.warn_of_failure(&error);
                    barriers.handle(BarrierEvent::SyncFailed)
                }
            }
        };
        self.execute(event);
    }

    fn warn_of_failure(&self, error: &StoreError) {
        let datastore = self.engine.name();
        tracing::warn!(datastore, %error, "a barrier is given up");
    }
}
