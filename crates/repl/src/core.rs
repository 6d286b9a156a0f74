//! The protocol core of one datastore on one node: events in, effects out, no IO.
//!
//! The driver tells it what happened ([`Event`]) and carries out what it says ([`Effect`]), in the
//! order given. It owns the locks, the state, the operation numbers and the list of operations in
//! flight. It must never block, read a clock, or look at bytes. `docs/protocol/rules.md` numbers the
//! rules cited here.
//!
//! Invariants:
//! - An operation is finished once, after both sides are done with it or the other side has been
//!   marked out of sync durably (P1).
//! - Metadata operations are numbered, sent, committed by the peer and applied here in one order (P2).
//! - While a write may be on one side only, [`Core::done_below`] does not pass it (P3).
//! - What is admitted to be sent fits the way to the peer: `bytes_max` bounds it (P19).

mod flight;
mod operations;
mod recovery;

use std::collections::{BTreeMap, HashMap, VecDeque};

use lockstep_types::deliberate::{Bug, is_on};
use lockstep_types::probe;
use lockstep_types::{Errno, OnPeerLoss, Osn};
use smallvec::SmallVec;

use crate::lock::LockTable;
pub use crate::lock::{LockSet, OpId};
use crate::message::Message;
use crate::state::{Action, Refused, Service, State, Trigger};
use flight::{MetaFlight, Op, Side};
use recovery::Recovery;

/// Identity of a connection with the peer: no two connections of a process have the same, so late news of a lost connection
/// is known as such. Zero stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub u64);

/// What a client's operation is, as far as the protocol cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Looks at content; needs only its locks.
    Read,
    /// Writes bytes.
    Write,
    /// A metadata operation.
    Meta,
    /// Makes a file durable.
    Sync,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client, or resync or verify, wants to do something.
    Submit {
        /// Its name from now on; never used before.
        op: OpId,
        /// What it is.
        kind: Kind,
        /// The locks it needs.
        locks: LockSet,
        /// About how many bytes of it go to the peer, if it does.
        bytes: u64,
    },
    /// A metadata operation is about to be validated and wants its number. The driver lets one
    /// metadata operation at a time be numbered, validated, logged and sent.
    Sequence(OpId),
    /// The local part of an operation is done, or was refused.
    LocalDone(OpId, Result<(), Errno>),
    /// A write was refused here before anything of it was done or sent: its file is gone.
    Refused(OpId, Errno),
    /// The peer has done its part of a write, or failed.
    WriteAcked(Osn, Option<Errno>),
    /// The peer has committed a metadata operation, or rolled it back.
    MetaAcked(Osn, Result<(), Errno>),
    /// The peer has done its part of a sync, or failed.
    SyncAcked(OpId, Option<Errno>),
    /// A committed metadata operation that no client waits for has been applied.
    Applied(Osn),
    /// A connection stands; both sides have said who they are.
    LinkUp {
        /// Its number.
        connection: ConnectionId,
        /// Whether both sides are in sync.
        in_sync: bool,
        /// Highest metadata operation the peer has committed.
        peer_applied: Osn,
    },
    /// Whether changes of the namespace come faster than a resync sends them.
    NamesBehind(bool),
    /// Blocks that may differ were sent and acknowledged (distributed recovery).
    RangesRecovered,
    /// Anything else that changes the state.
    Happened(Trigger),
    /// The peer has answered a sign of life: it has got all that was sent before, and all that it
    /// answered before was taken in.
    Beat,
    /// Time passes.
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Do the local part of an operation: read, write or sync.
    Execute {
        /// Which operation.
        op: OpId,
        /// Its number; zero for one that has none.
        osn: Osn,
    },
    /// Send a write to the peer.
    SendWrite {
        /// Which operation.
        op: OpId,
        /// Its number.
        osn: Osn,
        /// Over which connection, and no other.
        connection: ConnectionId,
    },
    /// Send a write again, with the bytes that are on this side.
    ResendWrite {
        /// Which operation.
        op: OpId,
        /// Its number.
        osn: Osn,
        /// Over which connection, and no other.
        connection: ConnectionId,
    },
    /// Send a sync to the peer.
    SendSync {
        /// Which operation.
        op: OpId,
    },
    /// Prepare a metadata operation: ask for its number with [`Event::Sequence`].
    Prepare {
        /// Which operation.
        op: OpId,
    },
    /// The answer to [`Event::Sequence`]: validate, then log and send, or apply alone.
    Sequenced {
        /// Which operation.
        op: OpId,
        /// Its number.
        osn: Osn,
        /// Whether it goes to the peer.
        mirrored: bool,
    },
    /// Send a pending metadata operation again.
    ResendMeta {
        /// Its number.
        osn: Osn,
    },
    /// Apply a metadata operation that is committed.
    Commit {
        /// Its number.
        osn: Osn,
        /// The operation, if a client waits for it.
        op: Option<OpId>,
    },
    /// An operation is over: make it visible and answer.
    Finish {
        /// Which operation.
        op: OpId,
        /// Its outcome.
        result: Result<(), Errno>,
    },
    /// Make "in sync" or "out of sync" durable, then tell with [`Trigger::MarkedInSync`] or
    /// [`Trigger::MarkedOutOfSync`].
    Mark {
        /// Which of the two.
        in_sync: bool,
    },
    /// The peer has let an operation wait for too long, and is given up for it: note why.
    NoteOverdue,
    /// Close the connection.
    DropLink,
    /// Do what takes longer than one message, over this connection and no other: carried out late, over
    /// the next one, it would run beside what was decided for that.
    Transfer(Transfer, ConnectionId),
    /// The state has changed.
    Entered(State),
    /// An event came that leads nowhere in this state, and nothing was done: note it. Is it a fault
    /// ([`Refusal::is_fault`](crate::state::Refusal::is_fault)), then close the connection, too.
    Refused(Refused),
}

/// What the primary does with the secondary outside clients' operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Send the blocks that may differ, then tell with [`Event::RangesRecovered`].
    RecoverRanges,
    /// Distributed recovery is complete: the secondary may forget its waiting writes.
    TellRecovered,
    /// Carry the namespace over, then tell with [`Trigger::ImageSent`].
    SendImage,
    /// Carry the last changes of the namespace over, then tell with [`Trigger::ImageDone`].
    SendTail,
    /// Carry the content over, then tell with [`Trigger::ContentDone`].
    SendContent,
    /// Tell the secondary that it is in sync.
    TellInSync,
}

/// Effects of one event, in order.
pub type Effects = SmallVec<[Effect; 4]>;

/// What an operator decides.
#[derive(Clone, Copy, Debug)]
pub struct CoreConfig {
    /// How long acknowledgements wait for a lost peer, in milliseconds.
    pub pause_limit_ms: u64,
    /// How many beats an operation waits for the answer of a peer that is connected.
    pub answer_limit: u64,
    /// What happens after either.
    pub on_peer_loss: OnPeerLoss,
    /// Most mirrored writes from the oldest in flight on.
    pub writes_max: usize,
    /// Most bytes of mirrored operations in flight. One operation alone may have more.
    pub bytes_max: u64,
}

/// What a core starts from.
#[derive(Clone, Debug)]
pub struct Start {
    /// State as of the last stop.
    pub state: State,
    /// The first number to give out.
    pub first_osn: Osn,
    /// Metadata operations pending since before the last stop, in order.
    pub in_doubt: Vec<Osn>,
    /// The locks of writes that were under way at the last stop, one set for each. Held until both
    /// nodes are known to have the same bytes there, or the other one counts no more (P4): until then
    /// nobody reads what may be on this node only.
    pub under_way: Vec<LockSet>,
}

/// Numbers for status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Mirrored writes not yet done on both sides.
    pub writes: usize,
    /// Mirrored metadata operations not yet applied here.
    pub metadata: usize,
    /// Bytes of the mirrored operations that were admitted and are not over.
    pub bytes: u64,
}

/// Locks, for those who look whether all of them are given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locks {
    /// Held or waited for.
    pub taken: usize,
    /// Those of them that belong to nothing under way: always none.
    pub stray: usize,
}

/// The highest number of an operation: these are for writes of the process before, counted down.
const LAST_OP: u64 = u64::MAX;

/// The protocol core. See the head of this file.
pub struct Core {
    config: CoreConfig,
    /// The time of the event that is being handled, monotonic.
    now_ms: u64,
    state: State,
    /// The connection that stood last.
    connection: ConnectionId,
    locks: LockTable,
    ops: HashMap<OpId, Op>,
    next_osn: Osn,
    /// Mirrored writes that are not done on both sides.
    writes: BTreeMap<Osn, OpId>,
    /// Mirrored writes from the oldest that is not done on both sides on: what the secondary may
    /// still remember. Bounded by the size of its table.
    window: VecDeque<Osn>,
    /// Mirrored metadata operations that are not yet to be applied here, in order.
    metas: VecDeque<MetaFlight>,
    /// Metadata operations being applied here.
    applying: usize,
    /// Operations that have their locks and wait for the state to change, in order.
    held: VecDeque<OpId>,
    /// Operations that have their locks and wait for room on the way to the peer, in order.
    queued: VecDeque<OpId>,
    /// Bytes of the operations that were given room on the way to the peer and are not over.
    bytes: u64,
    paused_since_ms: Option<u64>,
    /// Counts the signs of life that the peer has answered. The age of what it was sent is counted in
    /// these and not in time: so nothing that holds up this node makes it look late.
    beats: u64,
    recovery: Option<Recovery>,
    /// The end of the image is to be sent when no metadata operation is in flight.
    tail_due: bool,
    /// So many changes of the namespace are not sent yet that no more begin.
    names_behind: bool,
    /// Locks held for writes of the process before.
    under_way: Vec<(OpId, LockSet)>,
}

impl Core {
    /// A core in the state a store was left in.
    pub fn new(config: CoreConfig, start: Start, now_ms: u64) -> Self {
        let mut locks = LockTable::default();
        let numbered = (0..=LAST_OP).rev().map(OpId).zip(start.under_way);
        let under_way: Vec<_> = numbered
            .filter(|(op, held)| locks.acquire(*op, held))
            .collect();
        Self {
            config,
            now_ms,
            state: start.state,
            connection: ConnectionId(0),
            locks,
            ops: HashMap::new(),
            next_osn: start.first_osn,
            writes: BTreeMap::new(),
            window: VecDeque::new(),
            metas: start
                .in_doubt
                .into_iter()
                .map(MetaFlight::in_doubt)
                .collect(),
            applying: 0,
            held: VecDeque::new(),
            queued: VecDeque::new(),
            bytes: 0,
            paused_since_ms: (start.state == State::Paused).then_some(now_ms),
            beats: 0,
            recovery: None,
            tail_due: false,
            names_behind: false,
            under_way,
        }
    }

    /// The present state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Every write below this is done on both sides (rule P3). In a recovery too, once the ranges are
    /// alike: or what the secondary still remembers from before would leave no room for the writes that
    /// are sent again.
    pub fn done_below(&self) -> Osn {
        let is_known = match self.recovery {
            Some(recovery) => recovery == Recovery::Writes,
            None => self.state.service() == Service::Mirrored,
        };
        if !is_known {
            return Osn::ZERO;
        }
        if is_on(Bug::WatermarkTooHigh) {
            return self.next_osn;
        }
        self.writes.keys().next().copied().unwrap_or(self.next_osn)
    }

    /// The number the next operation gets.
    pub const fn next_osn(&self) -> Osn {
        self.next_osn
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            writes: self.writes.len(),
            metadata: self.metas.len() + self.applying,
            bytes: self.bytes,
        }
    }

    /// Operations submitted and not finished, whatever they wait for.
    pub fn operations(&self) -> usize {
        self.ops.len()
    }

    /// Those of them that wait for the state, or for room on the way to the peer, to let them begin.
    pub fn held(&self) -> usize {
        self.held.len() + self.queued.len()
    }

    /// Locks, counted one by one: for tests of the whole, not for status.
    pub fn locks(&self) -> Locks {
        let of_ops = self.ops.values().map(|op| op.locks.len());
        let of_before = self.under_way.iter().map(|(_, locks)| locks.len());
        let taken = self.locks.len();
        Locks {
            taken,
            stray: taken.abs_diff(of_ops.chain(of_before).sum()),
        }
    }

    /// Takes in what happened at `now_ms` (monotonic) and appends what is to be done.
    pub fn handle(&mut self, now_ms: u64, event: Event, effects: &mut Effects) {
        self.now_ms = now_ms;
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
            Event::WriteAcked(osn, failed) => self.write_acked(osn, failed, effects),
            Event::MetaAcked(osn, outcome) => self.meta_acked(osn, outcome, effects),
            Event::SyncAcked(op, failed) => self.sync_acked(op, failed, effects),
            Event::Applied(_) => self.applied(effects),
            Event::LinkUp {
                connection,
                in_sync,
                peer_applied,
            } => {
                self.connection = connection;
                self.link_up(in_sync, peer_applied, effects);
            }
            Event::NamesBehind(behind) => self.names_behind(behind, effects),
            Event::RangesRecovered => self.ranges_recovered(effects),
            Event::Happened(trigger) => self.trigger(trigger, effects),
            Event::Beat => self.beat(effects),
            Event::Tick => self.tick(effects),
        }
        self.settle(effects);
    }

    /// Restores what must hold between events.
    fn settle(&mut self, effects: &mut Effects) {
        if self.tail_due && self.metas.is_empty() && self.applying == 0 {
            self.tail_due = false;
            self.transfer(Transfer::SendTail, effects);
        }
        while self
            .window
            .front()
            .is_some_and(|osn| !self.writes.contains_key(osn))
        {
            self.window.pop_front();
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
        self.trigger(trigger, effects);
        if before != State::CatchingUp && self.state == State::CatchingUp {
            self.start_recovery(peer_applied, effects);
        }
    }

    /// Moves along the state table. A trigger that the present state refuses changes nothing.
    fn trigger(&mut self, trigger: Trigger, effects: &mut Effects) {
        probe::came(trigger, self.state);
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
        self.tail_due = false;
        self.names_behind = false;
        if !matches!(next, State::Paused | State::CatchingUp) {
            self.paused_since_ms = None;
        }
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
            Action::StartPause => self.paused_since_ms = Some(self.now_ms),
            Action::Recover => {} // with the peer's watermark at hand, in `link_up`
            Action::MarkInSync => effects.push(Effect::Mark { in_sync: true }),
            Action::MarkOutOfSync => effects.push(Effect::Mark { in_sync: false }),
            Action::DropLink => effects.push(Effect::DropLink),
            Action::FinishAlone => self.finish_alone(effects),
            Action::Admit => self.admit_held(effects),
            Action::SendImage => self.transfer(Transfer::SendImage, effects),
            Action::SendTail => self.tail_due = true,
            Action::SendContent => self.transfer(Transfer::SendContent, effects),
            Action::TellInSync => self.transfer(Transfer::TellInSync, effects),
            Action::RefuseAll => self.refuse_all(effects),
        }
    }

    /// Metadata operations wait while the resync is behind them: or it would never end.
    fn names_behind(&mut self, behind: bool, effects: &mut Effects) {
        let was_behind = self.names_behind;
        self.names_behind = behind && self.state == State::ResyncNamespace;
        if was_behind && !self.names_behind {
            self.admit_held(effects);
        }
    }

    fn transfer(&self, transfer: Transfer, effects: &mut Effects) {
        effects.push(Effect::Transfer(transfer, self.connection));
    }

    fn tick(&mut self, effects: &mut Effects) {
        let is_over = |since: u64| self.now_ms.saturating_sub(since) >= self.config.pause_limit_ms;
        if self.state == State::Paused && self.paused_since_ms.is_some_and(is_over) {
            let trigger = match self.config.on_peer_loss {
                OnPeerLoss::Continue => Trigger::PauseOverContinue,
                OnPeerLoss::Freeze => Trigger::PauseOverFreeze,
            };
            self.trigger(trigger, effects);
        }
    }

    fn beat(&mut self, effects: &mut Effects) {
        self.beats += 1;
        if self.config.on_peer_loss == OnPeerLoss::Continue && self.is_answer_overdue() {
            effects.push(Effect::NoteOverdue);
            self.trigger(Trigger::PeerFailed, effects);
        }
    }

    /// Notes that a message is about to be sent to the peer, and tells the watermark that goes with it
    /// (rule P3).
    pub fn send(&mut self, message: &Message) -> Osn {
        let sent = Some(self.beats);
        match message {
            Message::Write(write) => {
                let id = self.writes.get(&write.osn);
                if let Some(op) = id.and_then(|id| self.ops.get_mut(id)) {
                    op.sent = sent;
                }
            }
            Message::Sync { id, .. } => {
                if let Some(op) = self.ops.get_mut(&OpId(*id)) {
                    op.sent = sent;
                }
            }
            Message::Meta { op, .. } => {
                let mut newest_first = self.metas.iter_mut().rev();
                if let Some(meta) = newest_first.find(|meta| meta.osn == op.osn) {
                    meta.sent = sent;
                }
            }
            _ => {}
        }
        self.done_below()
    }

    /// Whether the peer is connected and lets an operation wait for too long (rule P15).
    fn is_answer_overdue(&self) -> bool {
        let is_connected =
            self.state.service() == Service::Mirrored || self.state == State::CatchingUp;
        let is_over = |sent: u64| self.beats.saturating_sub(sent) >= self.config.answer_limit;
        let is_op_overdue = |op: &Op| op.peer == Side::Waiting && op.sent.is_some_and(is_over);
        let is_meta_overdue = |meta: &MetaFlight| !meta.committed && meta.sent.is_some_and(is_over);
        is_connected
            && (self.heeds_acks() && self.ops.values().any(is_op_overdue)
                || self.metas.iter().any(is_meta_overdue))
    }
}

#[cfg(test)]
mod tests;
