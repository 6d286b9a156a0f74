//! The witness of a schedule: it hears what clients ask and are answered, and what happens to the
//! nodes, and gives each a number in one order. What it wrote down is what is judged.

use lockstep_types::{Errno, Generation, Ino};

use crate::history::{CallId, Fate, History, NodeEvent, Outcome};
use crate::op::Op;
use crate::workload::Source;
use crate::world::Side;

/// Writes down what happens, and asks for clients.
pub struct Witness {
    history: History,
    source: Box<dyn Source>,
    clock: u64,
    answered: u64,
    /// A disk of the primary was made to fail: clients may hear of it.
    disk_failed: bool,
    /// Disks have little room: clients may hear of that.
    may_be_full: bool,
    wrong: Option<String>,
}

impl Witness {
    /// The witness of a schedule in which clients ask what `source` says. `always`: everything that
    /// is answered is durable.
    pub fn new(source: Box<dyn Source>, always: bool) -> Self {
        Self {
            history: History::new(always),
            source,
            clock: 0,
            answered: 0,
            disk_failed: false,
            may_be_full: false,
            wrong: None,
        }
    }

    /// What happens from now on comes after a history that has come to rest.
    pub fn continue_after(&mut self, history: History) {
        self.clock = history.last();
        self.history = history;
    }

    /// Events so far.
    pub const fn now(&self) -> u64 {
        self.clock
    }

    const fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// What `client` asks next, now; nothing if it has asked all it wanted. `spare` is a number for a
    /// new inode that nobody has used.
    pub fn next_request(&mut self, client: u32, spare: Ino) -> Option<(CallId, Op)> {
        let op = self.source.next(client, spare)?;
        let at = self.tick();
        Some((self.history.invoked(client, op.clone(), at), op))
    }

    /// `client` is answered.
    pub fn answer(&mut self, client: u32, call: CallId, outcome: Outcome) {
        self.answered += 1;
        let asked = self.history.call(call).op.clone();
        self.source.observe(client, &asked, &outcome);
        let is_full = self.may_be_full && outcome == Err(Errno::NoSpace);
        let at = self.tick();
        self.history.returned(call, outcome, at);
        if self.history.call(call).fate() == Fate::Unsure && !self.disk_failed && !is_full {
            self.wrong(format!(
                "a client saw an error: {}",
                self.history.show(call)
            ));
        }
    }

    /// A client was told by `primary` that an operation was done.
    pub fn acknowledged(&mut self, primary: Side, generation: Generation) {
        let at = self.tick();
        self.history.acknowledged(primary, generation, at);
    }

    /// `client` got no number for a new inode: to reserve numbers is to write.
    pub fn no_number(&mut self, client: u32, errno: Errno) {
        if !self.disk_failed {
            self.wrong(format!(
                "client {client} got no number for an inode: {errno}"
            ));
        }
    }

    /// Something happens to a node.
    pub fn node(&mut self, side: Side, event: NodeEvent) {
        let at = self.tick();
        self.history.node(side, event, at);
    }

    /// From now on clients may see errors of the primary's disk.
    pub const fn expect_disk_errors(&mut self) {
        self.disk_failed = true;
    }

    /// Clients may be told that there is no room.
    pub const fn expect_full_disks(&mut self) {
        self.may_be_full = true;
    }

    /// Something is wrong that no history tells.
    pub fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// The first thing that was wrong on the way.
    pub fn verdict(&self) -> Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// What has happened so far.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Answers given to clients.
    pub const fn answered(&self) -> u64 {
        self.answered
    }
}
