//! The record of a world: the requests and answers of its clients, and the events of its nodes. The
//! checks judge this record.
//!
//! The history has the clock, and records. What is recorded stands in two records: of the calls of the clients
//! (`history/calls.rs`), and of the events of the nodes (`history/nodes.rs`).
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

mod calls;
mod failed_disk;
mod lineage;
pub mod loss;
mod nodes;
mod settling;
mod show;

use lockstep_types::{Generation, WriteVerifier};

pub use calls::{Answer, Call, CallId, CallRecord, Entry, Fate, Outcome, leaves_doubt};
pub use nodes::{AnswerPeriod, NodeEvent, NodeRecord, Service, Stop};

use crate::op::Op;
use crate::world::Side;

/// Everything that happened in a world.
#[derive(Clone, Debug, Default)]
pub struct History {
    always: bool,
    calls: CallRecord,
    nodes: NodeRecord,
    /// The looks at failed disks that count until the other node serves, and the machines that have answered them.
    at_failed_disks: Vec<(CallId, Side)>,
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

    /// Returns the calls of the clients.
    pub const fn calls(&self) -> &CallRecord {
        &self.calls
    }

    /// Returns the events of the nodes.
    pub const fn nodes(&self) -> &NodeRecord {
        &self.nodes
    }

    /// Returns the time of the last event so far.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Returns whether every answered operation is durable.
    pub const fn is_always(&self) -> bool {
        self.always
    }

    fn advance(&mut self, at: u64) {
        assert!(at >= self.last, "time went back to {at}");
        self.last = at;
    }

    /// Records that a client invokes an operation.
    pub fn invoked(&mut self, client: u32, op: Op, at: u64) -> CallId {
        self.advance(at);
        self.calls.begin(client, op, at)
    }

    /// Records the node at which a call is made.
    pub fn asked_at(&mut self, id: CallId, side: Side) {
        self.calls.asked_at.insert(id.index(), side);
    }

    /// Records that a client receives an answer.
    pub fn returned(&mut self, id: CallId, outcome: Outcome, at: u64) {
        self.advance(at);
        self.calls.end(id, outcome, at);
    }

    /// Records that the program of an open call is killed, and that the request waits at a node.
    pub fn killed(&mut self, id: CallId, at: Side) {
        self.calls.killed.insert(id.index(), at);
    }

    /// Records an event of a node.
    pub fn node(&mut self, node: Side, event: NodeEvent, at: u64) {
        self.advance(at);
        if event.is_service() {
            self.leave_looks_out(node, event);
        }
        self.nodes.events.push((at, node, event));
    }

    /// Records the write verifier of a node that has begun to serve.
    pub fn serves_with(&mut self, side: Side, verifier: WriteVerifier, from: u64) {
        self.advance(from);
        self.nodes.services.push(Service {
            from,
            side,
            verifier,
            is_given_up: false,
        });
    }

    /// Records that an operator asks a node to become the primary or the secondary, or exchanges a disk.
    pub fn operator_acts(&mut self, at: u64) {
        self.advance(at);
        self.nodes.operator_acts.push(at);
    }

    /// Records that the datastore goes on with a copy, while the other node has served alone.
    pub fn accepted_loss(&mut self, at: u64) {
        self.advance(at);
        self.nodes.accepted_losses.push(at);
    }

    /// Records that `primary` acknowledged an operation that a client had requested at a time.
    pub fn acknowledged(&mut self, primary: Side, generation: Generation, requested: u64, at: u64) {
        self.advance(at);
        self.nodes.acknowledged(primary, generation, requested, at);
    }

    /// Returns the same history, with each clean close replaced by a crash of the process. The
    /// result does not say that a close made data durable. A close makes data durable only on the
    /// node that closed its store, not on the other node.
    #[must_use]
    pub fn without_closes(&self) -> Self {
        let mut without = self.clone();
        let crashed = NodeEvent::Crashed(Stop::Process);
        for (_, _, event) in &mut without.nodes.events {
            if *event == NodeEvent::Closed {
                *event = crashed;
            }
        }
        without
    }
}
