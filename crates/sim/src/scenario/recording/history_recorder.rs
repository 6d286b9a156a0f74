//! The recorder of a schedule: it records the requests and answers of the clients and the events of
//! the nodes, and gives each a number in one order. The checks judge this record.

use lockstep_types::{Errno, Generation, Ino, WriteVerifier};

use super::tally::Tally;
use crate::history::{Call, CallId, Fate, History, NodeEvent, Outcome};
use crate::op::Op;
use crate::workload::Source;
use crate::world::Side;

/// Records everything that clients and nodes do, and gives the clients their requests.
pub struct HistoryRecorder {
    history: History,
    source: Box<dyn Source>,
    clock: u64,
    answered: u64,
    /// The machines whose disks were made to fail, so clients may receive their errors.
    disk_failed: [bool; 2],
    /// The disks have little room, so clients may receive `ENOSPC`.
    may_be_full: bool,
    /// Number of operations at each machine whose outcome is unknown, because the role of the node
    /// changed.
    doubts: [u64; 2],
    wrong: Option<String>,
    /// The machine that has acknowledged a change since the last look.
    changed_at: Option<Side>,
    /// Numbers of changes of roles.
    pub tally: Tally,
}

impl HistoryRecorder {
    /// Returns the recorder of a schedule with the requests of `source`. `always`: every answered
    /// operation is durable.
    pub fn new(source: Box<dyn Source>, always: bool) -> Self {
        Self {
            history: History::new(always),
            source,
            clock: 0,
            answered: 0,
            disk_failed: [false; 2],
            may_be_full: false,
            doubts: [0; 2],
            wrong: None,
            changed_at: None,
            tally: Tally::default(),
        }
    }

    /// Continues after a history without open operations.
    pub fn continue_after(&mut self, history: History) {
        self.clock = history.last();
        self.history = history;
    }

    /// Returns the number of events so far.
    pub const fn now(&self) -> u64 {
        self.clock
    }

    const fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Returns the next request of `client` at a node, or `None` if the client has made all its requests.
    /// `spare` is an unused number for a new inode.
    pub fn next_request(&mut self, at: Side, client: u32, spare: Ino) -> Option<(CallId, Op)> {
        let op = self.source.next(client, spare)?;
        Some((self.invoked(at, client, op.clone()), op))
    }

    /// Records that a program requests an operation at a node.
    pub fn invoked(&mut self, at: Side, client: u32, op: Op) -> CallId {
        let now = self.tick();
        let call = self.history.invoked(client, op, now);
        self.history.asked_at(call, at);
        call
    }

    /// Records the answer of a node to a request of `client`.
    pub fn answer(&mut self, from: Side, client: u32, call: CallId, outcome: Outcome) {
        self.answered += 1;
        let op = self.history.calls().get(call).op.clone();
        self.source.observe(client, &op, &outcome);
        let is_full = self.may_be_full && outcome == Err(Errno::NoSpace);
        let is_excused = is_full || *from.of(&self.disk_failed);
        let at = self.tick();
        self.history.returned(call, outcome, at);
        if self.history.calls().get(call).fate() == Fate::Unsure && !is_excused {
            self.wrong(format!(
                "a client saw an error: {}",
                self.history.calls().show(call)
            ));
        }
    }

    /// Records that the disk of a machine had failed when its node answered a call.
    pub fn answered_by_failed_disk(&mut self, from: Side, call: CallId) {
        self.history.answered_by_failed_disk(call, from);
    }

    /// Records that the program of a call is killed. The request waits at a node.
    pub fn killed(&mut self, call: CallId, at: Side) {
        self.history.killed(call, at);
    }

    /// Records that the outcome of an operation is unknown, because the role of the node changed.
    pub const fn in_doubt(&mut self, from: Side) {
        *from.of_mut(&mut self.doubts) += 1;
    }

    /// Returns the number of such operations at a machine.
    pub const fn doubts(&self, from: Side) -> u64 {
        *from.of(&self.doubts)
    }

    /// Records that `primary` acknowledged a call.
    pub fn acknowledged(&mut self, primary: Side, generation: Generation, call: CallId) {
        let Call {
            op,
            invoked: requested,
            ..
        } = self.history.calls().get(call);
        let requested = *requested;
        if matches!(op, Op::Change(_) | Op::Write(_)) {
            self.changed_at = Some(primary);
        }
        let at = self.tick();
        self.history
            .acknowledged(primary, generation, requested, at);
    }

    /// Returns the machine that has acknowledged a change since the last call.
    pub const fn take_changed(&mut self) -> Option<Side> {
        self.changed_at.take()
    }

    /// Records that a node acknowledged an operation of a misdirected client, which is no call.
    pub fn acknowledged_misdirected(&mut self, node: Side, generation: Generation) {
        let at = self.tick();
        self.history.acknowledged(node, generation, at, at);
    }

    /// Records that `client` got no number for a new inode from a node. The reservation of numbers
    /// writes to the disk.
    pub fn no_number(&mut self, from: Side, client: u32, errno: Errno) {
        if !from.of(&self.disk_failed) {
            self.wrong(format!(
                "client {client} got no number for an inode: {errno}"
            ));
        }
    }

    /// Records an event of a node.
    pub fn node(&mut self, side: Side, event: NodeEvent) {
        let at = self.tick();
        self.history.node(side, event, at);
    }

    /// Records the write verifier of a node that has begun to serve.
    pub fn serves_with(&mut self, side: Side, verifier: WriteVerifier) {
        let at = self.tick();
        self.history.serves_with(side, verifier, at);
    }

    /// Records that an operator asks a node to become the primary or the secondary.
    pub fn operator_acts(&mut self) {
        let at = self.tick();
        self.history.operator_acts(at);
    }

    /// Goes on with the copy of a machine. The other copy is lost. `behind_since`: the other node has served alone since this moment,
    /// and its operations are lost. Otherwise the two copies are equal but for what is under way.
    pub fn go_on_with(&mut self, side: Side, behind_since: Option<u64>, generation: Generation) {
        let since = behind_since.unwrap_or(self.clock);
        let at = self.tick();
        if behind_since.is_some() {
            self.history.accepted_loss(at);
        }
        self.history.go_on_with(side, generation, since, at);
    }

    /// Allows clients to receive errors of a machine's disk.
    pub const fn expect_disk_errors(&mut self, side: Side) {
        *side.of_mut(&mut self.disk_failed) = true;
    }

    /// Allows clients to receive `ENOSPC`.
    pub const fn expect_full_disks(&mut self) {
        self.may_be_full = true;
    }

    /// Records a violation that the history does not show.
    pub fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// Returns the first violation so far.
    pub fn verdict(&self) -> Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// Returns the record so far.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Returns the number of times that a process of a node has started.
    pub fn starts(&self) -> usize {
        let events = self.history.nodes().events().iter();
        events.filter(|event| event.2 == NodeEvent::Started).count()
    }

    /// Returns the number of answers to clients.
    pub const fn answered(&self) -> u64 {
        self.answered
    }
}
