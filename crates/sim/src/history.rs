//! The record of a world: the requests and answers of its clients, and the events of its nodes. The
//! checks judge this record.
//!
//! The history is append-only. Times are numbers of events that the world counts. Times never go
//! back. One call is *before* another call if the first call returned at a smaller time than the
//! second call was invoked. Otherwise the two calls are concurrent, and either may have happened
//! first.
//!
//! A call that never returned is *open*. Its operation may have happened at any time since the
//! invocation, in part (a write), or not at all. The same is true of a call whose error does not
//! say that the operation changed nothing. See [`Fate`].
//!
//! Invariant: this history does not depend on the state inside the nodes. It depends only on the
//! requests, the answers, and the faults that the world caused at the nodes.

mod failed_disk;
mod lineage;
pub mod loss;
mod settling;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;

use lockstep_types::{Attr, Errno, FileName, Generation, Ino, NodeKind, WriteVerifier};

use crate::op::{Op, Run, mark};
use crate::world::Side;

/// The way in which a node stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The node's process ended. Its machine and its disk cache continued.
    Process,
    /// The node's machine lost power. Unsynced data may be lost.
    Power,
}

/// The number of a call in its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(usize);

impl CallId {
    /// Returns the position of the call among all calls, by the time of invocation.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// One entry of a directory, as a client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the entry.
    pub name: FileName,
    /// The inode to which the entry leads.
    pub ino: Ino,
    /// The kind of that inode.
    pub kind: NodeKind,
}

/// The result of a call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success, without a value.
    Done,
    /// Attributes of an inode.
    Attr(Attr),
    /// The result of a read.
    Data {
        /// Number of bytes read. Fewer than requested only at the end of the file.
        length: u64,
        /// The writes from which the bytes came.
        runs: Vec<Run>,
    },
    /// All entries of a directory.
    Entries(Vec<Entry>),
    /// Value of an extended attribute, or target of a symbolic link.
    Value(Vec<u8>),
}

impl Answer {
    /// Returns the answer of a read of `ino` at `offset` that returned `bytes`.
    pub fn read(ino: Ino, offset: u64, bytes: &[u8]) -> Self {
        Self::Data {
            length: bytes.len() as u64,
            runs: mark::runs(ino, offset, bytes),
        }
    }
}

/// The return value of a call.
pub type Outcome = Result<Answer, Errno>;

/// The known effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The operation happened, between invocation and return.
    Done,
    /// The operation changed nothing, because a rule of file systems refused it.
    Refused(Errno),
    /// The operation may have happened, at any time from its invocation on.
    Unsure,
}

/// One operation of a client.
#[derive(Clone, Debug)]
pub struct Call {
    /// The client that made the call.
    pub client: u32,
    /// The operation that the client requested.
    pub op: Op,
    /// Time of the invocation.
    pub invoked: u64,
    /// Time and value of the return. `None` while the call is open.
    pub returned: Option<(u64, Outcome)>,
}

impl Call {
    /// Returns the known effect of the call.
    pub const fn fate(&self) -> Fate {
        match &self.returned {
            Some((_, Ok(_))) => Fate::Done,
            Some((_, Err(errno))) if !leaves_doubt(*errno) => Fate::Refused(*errno),
            _ => Fate::Unsure,
        }
    }

    /// Returns the time when the effect of the call was over. This is the time of the return if the
    /// return decides the effect. Otherwise it is `u64::MAX`, for never.
    pub fn over(&self) -> u64 {
        match (&self.returned, self.fate()) {
            (Some((at, _)), Fate::Done | Fate::Refused(_)) => *at,
            _ => u64::MAX,
        }
    }

    /// Returns the latest time at which the effect of the call can happen, if the effect happens at
    /// all. The part of a call that a failed disk received may become visible at any time. Any
    /// other call has no effect after its return.
    pub const fn latest(&self) -> u64 {
        match &self.returned {
            None | Some((_, Err(Errno::Io))) => u64::MAX,
            Some((at, _)) => *at,
        }
    }

    /// Returns the answer of the call, if it succeeded.
    pub const fn answer(&self) -> Option<&Answer> {
        match &self.returned {
            Some((_, Ok(answer))) => Some(answer),
            _ => None,
        }
    }
}

/// Returns whether an error leaves the effect of the call uncertain. Every error does, except the
/// refusals by the rules of file systems. Those refusals are given before any change.
pub const fn leaves_doubt(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NoEntry
            | Errno::Exists
            | Errno::NotDirectory
            | Errno::IsDirectory
            | Errno::NotEmpty
            | Errno::Invalid
            | Errno::NoData
            | Errno::Stale
            | Errno::NotPermitted
            | Errno::NotSupported
            | Errno::NameTooLong
            | Errno::TooBig
            | Errno::TooManyLinks
            | Errno::Range
    )
}

/// An event of a node that the world caused or observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The node stopped.
    Crashed(Stop),
    /// The node stopped in some way, but its store says that the node closed it cleanly. All data
    /// in the store is on stable storage.
    Closed,
    /// The node started.
    Started,
    /// An operator begins to promote the node, or the witness has made the node the primary.
    Promoted,
    /// The node serves clients from now on: before, another process served, or none.
    Serves,
    /// The same, and the disk of the node has failed: it serves looks only.
    ServesReads,
    /// The node is the secondary, and its copy is now equal to that of the primary.
    Equal,
    /// A flush of the node's disk failed. Unsynced data may be lost.
    FlushFailed,
}

impl NodeEvent {
    /// Returns whether the node serves clients from then on.
    pub const fn is_service(self) -> bool {
        matches!(self, Self::Serves | Self::ServesReads)
    }
}

/// A period in which a node answered clients as the primary. The period lasts from the node's first
/// answer to the first answer of another node, or of the same node in another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Time of the first answer.
    pub from: u64,
    /// The latest time at which a client requested one of the operations that were answered.
    pub requested: u64,
    /// The node that answered.
    pub primary: Side,
    /// The generation in which the node answered.
    pub generation: Generation,
}

/// A node that began to serve, and its write verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Time at which the node began to serve.
    pub from: u64,
    /// The node.
    pub side: Side,
    /// Its write verifier.
    pub verifier: WriteVerifier,
    /// The node has served with a copy that was given up.
    pub is_given_up: bool,
}

/// Everything that happened in a world.
#[derive(Clone, Debug, Default)]
pub struct History {
    always: bool,
    calls: Vec<Call>,
    /// The calls that happened in a copy that was given up only, and the looks at a failed disk before a takeover.
    gone: BTreeSet<usize>,
    /// The nodes at which the calls were made, as far as they are known.
    asked_at: BTreeMap<usize, Side>,
    /// The looks at failed disks that count until the other node serves, and the machines that have answered them.
    at_failed_disks: Vec<(CallId, Side)>,
    /// The calls whose programs were killed, and the nodes at which the requests wait.
    killed: BTreeMap<usize, Side>,
    terms: Vec<Term>,
    events: Vec<(u64, Side, NodeEvent)>,
    services: Vec<Service>,
    /// Times at which an operator has asked a node to become the primary or the secondary.
    operator_acts: Vec<u64>,
    /// Times at which the datastore has gone on with a copy while the other node had served alone.
    accepted: Vec<u64>,
    last: u64,
}

impl History {
    /// Returns an empty history of an empty datastore. `always`: every answered operation is
    /// durable (`durability = "always"`).
    pub fn new(always: bool) -> Self {
        Self {
            always,
            ..Self::default()
        }
    }

    fn advance(&mut self, at: u64) {
        assert!(at >= self.last, "time went back to {at}");
        self.last = at;
    }

    /// Records that a client invokes an operation.
    pub fn invoked(&mut self, client: u32, op: Op, at: u64) -> CallId {
        self.advance(at);
        self.calls.push(Call {
            client,
            op,
            invoked: at,
            returned: None,
        });
        CallId(self.calls.len() - 1)
    }

    /// Records the node at which a call is made.
    pub fn asked_at(&mut self, id: CallId, side: Side) {
        self.asked_at.insert(id.0, side);
    }

    /// Records that a client receives an answer.
    pub fn returned(&mut self, id: CallId, outcome: Outcome, at: u64) {
        self.advance(at);
        let call = self
            .calls
            .get_mut(id.0)
            .filter(|call| call.returned.is_none());
        let Some(call) = call else {
            panic!("call {} returned that is not open", id.0);
        };
        call.returned = Some((at, outcome));
    }

    /// Records that the program of an open call is killed, and that the request waits at a node.
    pub fn killed(&mut self, id: CallId, at: Side) {
        self.killed.insert(id.0, at);
    }

    /// Returns the number of calls whose programs were killed.
    pub fn killed_count(&self) -> usize {
        self.killed.len()
    }

    /// Records an event of a node.
    pub fn node(&mut self, node: Side, event: NodeEvent, at: u64) {
        self.advance(at);
        if event.is_service() {
            self.leave_looks_out(node, event);
        }
        self.events.push((at, node, event));
    }

    /// Records the write verifier of a node that has begun to serve.
    pub fn serves_with(&mut self, side: Side, verifier: WriteVerifier, from: u64) {
        self.advance(from);
        self.services.push(Service {
            from,
            side,
            verifier,
            is_given_up: false,
        });
    }

    /// Returns the nodes that have begun to serve, by time.
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// Records that an operator asks a node to become the primary or the secondary, or exchanges a disk.
    pub fn operator_acts(&mut self, at: u64) {
        self.advance(at);
        self.operator_acts.push(at);
    }

    /// Returns whether an operator has asked a node to become the primary or the secondary, or has exchanged a disk, after
    /// `from`, up to `to`.
    pub fn has_operator_acted(&self, from: u64, to: u64) -> bool {
        self.operator_acts.iter().any(|at| from < *at && *at <= to)
    }

    /// Records that the datastore goes on with a copy, while the other node has served alone.
    pub fn accepted_loss(&mut self, at: u64) {
        self.advance(at);
        self.accepted.push(at);
    }

    /// Returns the times of these losses, which an operator has accepted.
    pub fn accepted_losses(&self) -> &[u64] {
        &self.accepted
    }

    /// Records that `primary` acknowledged an operation that a client had requested at a time.
    pub fn acknowledged(&mut self, primary: Side, generation: Generation, requested: u64, at: u64) {
        self.advance(at);
        match self.terms.last_mut() {
            Some(last) if (last.primary, last.generation) == (primary, generation) => {
                last.requested = last.requested.max(requested);
            }
            _ => self.terms.push(Term {
                from: at,
                requested,
                primary,
                generation,
            }),
        }
    }

    /// Returns the periods in which a node answered as the primary, by time.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns all calls, by the time of invocation, without those in a copy that was given up, and without the looks that a
    /// failed disk has answered before the other node took over.
    pub fn calls(&self) -> impl Iterator<Item = (CallId, &Call)> {
        self.every_call()
            .filter(|(id, _)| !self.gone.contains(&id.index()))
    }

    /// Returns all calls, also those that [`Self::calls`] leaves out.
    pub fn every_call(&self) -> impl Iterator<Item = (CallId, &Call)> {
        let calls = self.calls.iter().enumerate();
        calls.map(|(index, call)| (CallId(index), call))
    }

    /// Returns a call.
    pub fn call(&self, id: CallId) -> &Call {
        self.calls
            .get(id.0)
            .unwrap_or_else(|| panic!("call {} is of another history", id.0))
    }

    /// Returns the events of the nodes, by time.
    pub fn events(&self) -> &[(u64, Side, NodeEvent)] {
        &self.events
    }

    /// Returns the same history, with each clean close replaced by a crash of the process. The
    /// result does not say that a close made data durable. A close makes data durable only on the
    /// node that closed its store, not on the other node.
    #[must_use]
    pub fn without_closes(&self) -> Self {
        let mut without = self.clone();
        let crashed = NodeEvent::Crashed(Stop::Process);
        for (_, _, event) in &mut without.events {
            if *event == NodeEvent::Closed {
                *event = crashed;
            }
        }
        without
    }

    /// Returns the times when the store of the machine that served was closed cleanly. A close makes
    /// operations durable on this machine only. So a close before a loss of the other machine is left
    /// out, if it is the next loss, or if the copy of the other machine has not become equal before it.
    /// A close of a machine that has lost operations and has not served since is left out, too.
    pub fn closes(&self) -> Vec<u64> {
        let losses: Vec<_> = self
            .losses()
            .iter()
            .map(|loss| (loss.at, loss.side))
            .collect();
        let counts = |closed, side| {
            let mut later = losses.iter().filter(|(at, _)| *at > closed);
            let is_other = |(_, of): &&(u64, Side)| *of != side;
            let is_next = later.clone().next().is_some_and(|loss| is_other(&loss));
            let of_other = later.find(is_other);
            !is_next
                && of_other.is_none_or(|(at, other)| self.has_become_equal(*other, closed..*at))
        };
        let mut serving = Side::A;
        let mut lacks_operations = [false; 2];
        let mut closes = Vec::new();
        for &(at, side, event) in &self.events {
            let lacks_operations = side.of_mut(&mut lacks_operations);
            match event {
                NodeEvent::Serves => (serving, *lacks_operations) = (side, false),
                NodeEvent::ServesReads => serving = side,
                NodeEvent::Equal => *lacks_operations = false,
                NodeEvent::Crashed(Stop::Power) => *lacks_operations = true,
                NodeEvent::Closed if side == serving && !*lacks_operations && counts(at, side) => {
                    closes.push(at);
                }
                _ => {}
            }
        }
        closes
    }

    /// Returns whether the copy of a machine has become equal within some time.
    fn has_become_equal(&self, side: Side, within: impl RangeBounds<u64>) -> bool {
        let is_mark = |event: &(u64, Side, NodeEvent)| {
            within.contains(&event.0) && (event.1, event.2) == (side, NodeEvent::Equal)
        };
        self.events.iter().any(is_mark)
    }

    /// Returns the time of the last event so far.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Returns the time since which the present process serves, or the last one did. Returns zero if
    /// no process has served.
    pub fn serving_since(&self) -> u64 {
        let mut latest = self.events.iter().rev();
        let serves = latest.find(|event| event.2.is_service());
        serves.map_or(0, |event| event.0)
    }

    /// Returns whether every answered operation is durable.
    pub const fn is_always(&self) -> bool {
        self.always
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POWER: NodeEvent = NodeEvent::Crashed(Stop::Power);

    /// Returns the closes that count in a history with these events, which are numbered from 1.
    fn closes(events: &[(Side, NodeEvent)]) -> Vec<u64> {
        let mut history = History::new(false);
        for (at, (side, event)) in (1..).zip(events) {
            history.node(*side, *event, at);
        }
        history.closes()
    }

    #[test]
    fn a_close_makes_nothing_durable_on_the_other_machine() {
        use NodeEvent::{Closed, Equal, Promoted, Serves};
        let lost_by_both = [
            (Side::A, Serves),
            (Side::A, Closed),
            (Side::A, POWER),
            (Side::B, POWER),
            (Side::A, Serves),
            (Side::A, POWER),
            (Side::B, Promoted),
            (Side::B, Serves),
        ];
        assert_eq!(closes(&lost_by_both), [0_u64; 0]);
        let (until_then, after) = lost_by_both.split_at(4);
        assert_eq!(closes(until_then), [2]);
        let equal_then_lost = [(Side::A, Serves), (Side::B, Equal), (Side::B, POWER)];
        let made_equal = [until_then, &equal_then_lost, after];
        assert_eq!(closes(&made_equal.concat()), [2]);
    }
}
