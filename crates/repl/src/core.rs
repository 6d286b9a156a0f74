//! The protocol core of one datastore on one node: events in, effects out, no IO.
//!
//! The driver brings events ([`Event`]) and carries out the effects ([`Effect`]) in the given order. The core owns the
//! locks, the state, the OSNs and the operations in flight. The core must never block, read a clock, or look at bytes.
//! `docs/protocol/rules.md` numbers the rules cited here.
//!
//! Invariants:
//! - An operation is finished once, after both nodes are done with it or the other node has been
//!   marked out of sync durably (P1).
//! - Metadata operations are numbered, sent, committed by the peer and applied here in one order (P2).
//! - While a write may be on one node only, [`Core::done_below`] does not pass it (P3).
//! - The operations that are admitted to be sent fit the way to the peer: `bytes_max` bounds them (P19).

mod clock;
mod event;
mod gate;
mod link_pace;
mod link_watch;
mod meta_queue;
mod mirrored_writes;
mod op_table;
mod operations;
mod pending;
mod recovery;
mod send_room;

use lockstep_types::coverage;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, OnPeerLoss, Osn};

pub use crate::lock::{LockSet, OpId};
use crate::message::Message;
use crate::state::{Action, ServiceMode, State, Trigger};
use clock::CoreClock;
pub use event::{ConnectionId, Effect, Effects, Event, OpKind, Transfer};
use gate::{GateStep, HeldOps};
pub use link_pace::{Dispatch, LinkPace};
use link_watch::LinkWatch;
use meta_queue::MetaQueue;
use mirrored_writes::MirroredWrites;
pub use op_table::LockCounts;
use op_table::OpTable;
use send_room::SendRoom;

/// The decisions of an operator.
#[derive(Clone, Copy, Debug)]
pub struct CoreConfig {
    /// How long acknowledgements wait for a lost peer, in milliseconds. `None`: until the witness has answered.
    pub pause_limit_ms: Option<u64>,
    /// How long all pauses of a series of losses may last together before a witness is asked at once, in milliseconds.
    pub pauses_max_ms: u64,
    /// How long a connection must stand at most before it ends the time alone of this node, in milliseconds. Zero: no
    /// connection must (rule P23).
    pub flap_wait_max_ms: u64,
    /// How many beats an operation waits for the answer of a connected peer.
    pub answer_limit: u64,
    /// The policy after either limit.
    pub on_peer_loss: OnPeerLoss,
    /// How long the operation of a snapshot waits for its number at most, in milliseconds (rule P35).
    pub gate_limit_ms: u64,
    /// Most mirrored writes from the oldest in flight on.
    pub writes_max: usize,
    /// Most bytes of mirrored operations in flight. One operation alone may have more.
    pub bytes_max: u64,
}

/// The store's state at the last stop, from which a core starts.
#[derive(Clone, Debug)]
pub struct CoreStart {
    /// State at the last stop.
    pub state: State,
    /// The first OSN to give out.
    pub first_osn: Osn,
    /// Metadata operations that were pending at the last stop, in order.
    pub in_doubt: Vec<Osn>,
    /// The locks of writes that were under way at the last stop, one set for each write. The core holds them until both
    /// nodes are known to have the same bytes there, or the other node counts no more (P4). No client reads bytes
    /// before then that may be on this node only.
    pub interrupted_writes: Vec<LockSet>,
}

/// Numbers for status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Mirrored writes not yet done on both nodes.
    pub writes: usize,
    /// Mirrored metadata operations not yet applied here.
    pub metadata: usize,
    /// Bytes of the mirrored operations that were admitted and are not over.
    pub bytes: u64,
    /// Operations submitted and not finished.
    pub submitted: usize,
    /// Operations that have their locks and wait for the state, for a snapshot, or for room on the way to the peer.
    pub held: usize,
}

/// The protocol core. See the head of this file.
pub struct Core {
    config: CoreConfig,
    clock: CoreClock,
    state: State,
    link: LinkWatch,
    ops: OpTable,
    next_osn: Osn,
    writes: MirroredWrites,
    metas: MetaQueue,
    held: HeldOps,
    room: SendRoom,
    recovery: Option<RecoveryStep>,
    image: ImageFlags,
}

/// How far distributed recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryStep {
    /// Pending metadata operations are being committed on both nodes.
    Metadata,
    /// Ranges are being sent.
    Ranges,
    /// Writes in flight are being sent again.
    Writes,
}

/// The namespace on its way to the secondary.
#[derive(Clone, Copy, Default)]
struct ImageFlags {
    /// The end of the image is to be sent once no metadata operation is in flight.
    is_tail_due: bool,
    /// So many changes of the namespace are not sent yet that no further change begins.
    is_behind: bool,
}

/// The moments at which a wait ends, in the time of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseEnds {
    /// From this moment on, [`Event::Tick`] ends the pause.
    pub tick_ms: Option<u64>,
    /// From this moment on, [`Event::Tick`] ends the wait of a snapshot for its number (rule P35).
    pub gate_ms: Option<u64>,
    /// From this moment on, the witness is to be asked at once whether this node may serve alone: the pauses of the series of
    /// losses have lasted for so long together (rule P23).
    pub ask_ms: Option<u64>,
}

impl PauseEnds {
    /// The first moment at which [`Event::Tick`] has an effect.
    pub fn next_tick_ms(self) -> Option<u64> {
        let all = [self.tick_ms, self.gate_ms];
        all.into_iter().flatten().min()
    }
}

impl Core {
    /// A core in the state in which a store was left.
    pub fn new(config: CoreConfig, start: CoreStart, now_ms: u64) -> Self {
        let mut clock = CoreClock::new(now_ms);
        if start.state == State::Paused {
            clock.start_pause();
        }
        Self {
            config,
            clock,
            state: start.state,
            link: LinkWatch::new(config.flap_wait_max_ms),
            ops: OpTable::new(start.interrupted_writes),
            next_osn: start.first_osn,
            writes: MirroredWrites::default(),
            metas: MetaQueue::new(start.in_doubt),
            held: HeldOps::default(),
            room: SendRoom::new(config.bytes_max, now_ms),
            recovery: None,
            image: ImageFlags::default(),
        }
    }

    /// Takes other decisions of an operator, which count from the next event on. The bounds of the operations in flight stay as
    /// they were at the beginning.
    pub const fn reconfigure(&mut self, config: CoreConfig) {
        let CoreConfig {
            writes_max,
            bytes_max,
            ..
        } = self.config;
        self.config = CoreConfig {
            writes_max,
            bytes_max,
            ..config
        };
        self.link.set_wait_max(config.flap_wait_max_ms);
    }

    /// The present state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Every write below this OSN is done on both nodes (rule P3). This also holds in a recovery, once the ranges are
    /// equal. Otherwise the writes that the secondary still remembers would leave no room for the writes that are
    /// sent again.
    pub fn done_below(&self) -> Osn {
        let is_known = match self.recovery {
            Some(step) => step == RecoveryStep::Writes,
            None => self.state.service_mode() == ServiceMode::Mirrored,
        };
        if !is_known {
            return Osn::ZERO;
        }
        if is_active(Mutant::WatermarkTooHigh) {
            return self.next_osn;
        }
        self.writes.oldest().unwrap_or(self.next_osn)
    }

    /// Whether each mirrored operation with a number below this one is over on both nodes, in any way: done, refused or given up.
    /// Once this is so, it stays so, for numbers that were given out.
    pub fn is_over_below(&self, end: Osn) -> bool {
        let oldest = [self.writes.oldest(), self.metas.oldest()];
        oldest.into_iter().flatten().all(|osn| osn >= end)
    }

    /// The OSN of the next operation.
    pub const fn next_osn(&self) -> Osn {
        self.next_osn
    }

    /// Operations in flight, and those that wait.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            writes: self.writes.len(),
            metadata: self.metas.len(),
            bytes: self.room.bytes(),
            submitted: self.ops.len(),
            held: self.held.len() + self.room.waiting(),
        }
    }

    /// Counts the locks one by one: for tests of the whole, not for status.
    pub fn lock_counts(&self) -> LockCounts {
        self.ops.lock_counts()
    }

    /// The moments at which the present pause ends, if it goes on until then, and the wait of a snapshot.
    pub fn pause_ends(&self) -> PauseEnds {
        // The pauses of a series count together (rule P23).
        let paused_ms = self.link.paused_ms();
        let end_of = |limit_ms: u64| {
            let left_ms = limit_ms.saturating_sub(paused_ms);
            self.clock.end_of_pause(left_ms)
        };
        let is_paused = self.state == State::Paused;
        let tick_ms = self.config.pause_limit_ms.filter(|_| is_paused);
        let asks = self.config.flap_wait_max_ms > 0;
        PauseEnds {
            tick_ms: tick_ms.and_then(end_of),
            gate_ms: self.held.gate_ends_ms(),
            ask_ms: asks.then_some(self.config.pauses_max_ms).and_then(end_of),
        }
    }

    /// Takes in an event at `now_ms` (monotonic) and appends the effects.
    pub fn handle(&mut self, now_ms: u64, event: Event, effects: &mut Effects) {
        self.clock.set(now_ms);
        match event {
            Event::Submit {
                op,
                kind,
                locks,
                bytes,
            } => self.submit(op, kind, locks, bytes, effects),
            Event::Sequence(op) => self.sequence(op, effects),
            Event::LocalDone(op, result) => self.local_done(op, result, effects),
            Event::Refused(op, errno) => self.refused(op, errno, effects),
            Event::WriteAcked(osn, failed) => {
                if let Some(op) = self.writes.get(osn) {
                    self.peer_done(op, failed, effects);
                }
            }
            Event::MetaAcked(osn, outcome) => self.meta_acked(osn, outcome, effects),
            Event::SyncAcked(op, failed) => self.peer_done(op, failed, effects),
            Event::Applied(osn) => {
                self.metas.applied(osn);
                self.commit_ready(effects);
            }
            Event::LinkUp {
                connection,
                in_sync,
                peer_applied,
            } => {
                self.link.connected(connection);
                self.room.begin_connection(now_ms);
                self.link_up(in_sync, peer_applied, effects);
            }
            Event::NamesBehind(is_behind) => self.names_behind(is_behind, effects),
            Event::RangesRecovered => self.ranges_recovered(effects),
            Event::PeerStops => self.link.peer_stops(),
            Event::Trigger(trigger) => self.trigger(trigger, effects),
            Event::Beat => self.beat(effects),
            Event::Tick => self.tick(effects),
        }
        self.restore_invariants(effects);
    }

    /// Restores the conditions that hold between events.
    fn restore_invariants(&mut self, effects: &mut Effects) {
        let decides_itself = self.config.pause_limit_ms.is_some();
        if decides_itself && self.waits_for_stopped_peer() {
            self.trigger(Trigger::PauseOverContinue, effects);
        }
        if self.image.is_tail_due && self.metas.is_empty() {
            self.image.is_tail_due = false;
            self.transfer(Transfer::SendTail, effects);
        }
        self.writes.shrink_window();
        while let Some(step) = self
            .held
            .next_step(self.clock.now_ms(), self.state, |counts| {
                !self.metas.is_empty() || self.ops.has_numbered(counts)
            })
        {
            match step {
                GateStep::Prepare(op) => effects.push(Effect::Prepare { op }),
                // Nothing was done. The next operation may have the gate then.
                GateStep::End(op) => self.refused(op, Errno::Busy, effects),
            }
        }
        self.admit_queued(effects);
        self.advance_recovery(effects);
    }

    fn link_up(&mut self, in_sync: bool, peer_applied: Osn, effects: &mut Effects) {
        let trigger = if in_sync {
            Trigger::LinkUpInSync
        } else {
            Trigger::LinkUpOutOfSync
        };
        let before = self.state;
        if before == State::OutOfSync
            && let Some(wait_ms) = self.link.begin_standing(trigger, self.clock.now_ms())
        {
            let losses = self.link.losses();
            effects.push(Effect::AwaitSteadyLink { losses, wait_ms });
            return;
        }
        self.trigger(trigger, effects);
        if before != State::CatchingUp && self.state == State::CatchingUp {
            self.start_recovery(peer_applied, effects);
        }
    }

    /// Moves along the state table. A trigger that the present state refuses changes nothing.
    fn trigger(&mut self, trigger: Trigger, effects: &mut Effects) {
        coverage::record_transition(trigger, self.state);
        let (next, actions) = match self.state.next(trigger) {
            Ok(row) => row,
            Err(refused) => {
                effects.push(Effect::Refused(refused));
                return;
            }
        };
        if next != State::CatchingUp {
            self.recovery = None;
        }
        self.image = ImageFlags::default();
        if !matches!(next, State::Paused | State::CatchingUp) {
            self.link.note_pause(self.clock.end_pause());
        }
        self.link
            .follow(self.state, trigger, next, self.clock.now_ms());
        let changed = next != self.state;
        self.state = next;
        if changed {
            effects.push(Effect::Entered(next));
        }
        for action in actions {
            self.act(*action, effects);
        }
    }

    fn act(&mut self, action: Action, effects: &mut Effects) {
        match action {
            Action::StartPause => self.clock.start_pause(),
            Action::Recover => {} // `link_up` starts the recovery with the peer's watermark
            Action::MarkInSync => effects.push(Effect::Mark { in_sync: true }),
            Action::MarkOutOfSync => effects.push(Effect::Mark { in_sync: false }),
            Action::DropLink => effects.push(Effect::DropLink),
            Action::FinishAlone => self.finish_alone(effects),
            Action::Admit => self.admit_held(effects),
            Action::SendImage => self.transfer(Transfer::SendImage, effects),
            Action::SendTail => self.image.is_tail_due = true,
            Action::SendContent => self.transfer(Transfer::SendContent, effects),
            Action::TellInSync => self.transfer(Transfer::TellInSync, effects),
            Action::RefuseAll => self.refuse_all(effects),
        }
    }

    /// Holds metadata operations back while the resync is behind them. Otherwise the resync would never end.
    fn names_behind(&mut self, is_behind: bool, effects: &mut Effects) {
        let was_behind = self.image.is_behind;
        self.image.is_behind = is_behind && self.state == State::ResyncNamespace;
        if was_behind && !self.image.is_behind {
            self.admit_held(effects);
        }
    }

    fn transfer(&self, transfer: Transfer, effects: &mut Effects) {
        effects.push(Effect::Transfer(transfer, self.link.connection));
    }

    fn tick(&mut self, effects: &mut Effects) {
        let now_ms = self.clock.now_ms();
        if self
            .pause_ends()
            .tick_ms
            .is_some_and(|due_ms| now_ms >= due_ms)
        {
            let trigger = match self.config.on_peer_loss {
                OnPeerLoss::Continue => Trigger::PauseOverContinue,
                OnPeerLoss::Freeze => Trigger::PauseOverFreeze,
            };
            self.trigger(trigger, effects);
        }
    }

    /// Whether operations wait for a peer that has said that it stops, and need not wait for the pause limit (rule R1).
    /// While no operation waits, this node need not leave the sync: a peer that is back soon needs no resync then.
    pub fn waits_for_stopped_peer(&self) -> bool {
        let is_over = self.state == State::Paused && self.link.has_peer_stopped();
        let has_waiting =
            || self.in_flight().held > 0 || !self.metas.is_empty() || self.ops.has_unanswered();
        is_over && self.config.on_peer_loss == OnPeerLoss::Continue && has_waiting()
    }

    fn beat(&mut self, effects: &mut Effects) {
        self.clock.beat();
        if let Some(trigger) = self.link.stood(self.clock.now_ms()) {
            self.trigger(trigger, effects);
        }
        let is_connected =
            self.state.service_mode() == ServiceMode::Mirrored || self.state == State::CatchingUp;
        let is_over = |sent: u64| self.clock.age(sent) >= self.config.answer_limit;
        // The peer is connected, and lets an operation wait for too long (rule P15).
        let is_overdue = is_connected
            && (self.accepts_acks() && self.ops.is_overdue(is_over)
                || self.metas.is_overdue(is_over));
        if self.config.on_peer_loss == OnPeerLoss::Continue && is_overdue {
            effects.push(Effect::NoteOverdue);
            self.trigger(Trigger::PeerFailed, effects);
        }
    }

    /// Notes that a message is about to be sent to the peer, and returns the watermark that goes with it
    /// (rule P3).
    pub fn note_sent(&mut self, message: &Message) -> Osn {
        let beat = self.clock.beats();
        match message {
            Message::Write(write) => {
                if let Some(op) = self.writes.get(write.osn) {
                    self.ops.note_sent(op, beat);
                }
            }
            Message::Sync { id, .. } => self.ops.note_sent(OpId(*id), beat),
            Message::Meta { op, .. } => self.metas.note_sent(op.osn, beat),
            _ => {}
        }
        self.done_below()
    }
}

#[cfg(test)]
mod tests;
