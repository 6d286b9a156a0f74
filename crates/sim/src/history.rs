//! What happened in a world, as its clients and its keeper saw it: the evidence of the checkers.
//!
//! Append-only. Times are numbers of events that the world counts; they never go back. Of two calls,
//! one is *before* the other if it returned at a smaller time than the other was invoked; otherwise
//! they are concurrent, and either may have come first.
//!
//! A call that never returned is *open*: what it asked may have happened at any time since, in part
//! (a write), or not at all. So may one that returned an error which does not say that nothing was
//! done. See [`Fate`].
//!
//! Invariant: nothing here depends on what the nodes think; only on what was asked, what was
//! answered, and what the world did to the nodes.

mod loss;
mod show;

use lockstep_types::{Attr, Errno, FileName, Generation, Ino, NodeKind};

use crate::workload::{Op, Run, mark};
use crate::world::Side;

pub use loss::{Cause, Loss};

/// How a node stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its process ended; its machine and disk cache went on.
    Process,
    /// Its machine lost power: what was not synced may be gone.
    Power,
}

/// The number of a call in its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(usize);

impl CallId {
    /// Its place among all calls, by the time of invocation.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// One entry of a directory, as a client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: FileName,
    /// Where it leads.
    pub ino: Ino,
    /// The kind of inode it leads to.
    pub kind: NodeKind,
}

/// What a call that succeeded brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// Attributes of an inode.
    Attr(Attr),
    /// What was read.
    Data {
        /// Bytes that came, fewer than asked for only at the end of the file.
        length: u64,
        /// The writes they came from.
        runs: Vec<Run>,
    },
    /// All entries of a directory.
    Entries(Vec<Entry>),
    /// Value of an extended attribute, or target of a symbolic link.
    Value(Vec<u8>),
}

impl Answer {
    /// The answer of a read of `ino` at `offset` that brought `bytes`.
    pub fn read(ino: Ino, offset: u64, bytes: &[u8]) -> Self {
        Self::Data {
            length: bytes.len() as u64,
            runs: mark::runs(ino, offset, bytes),
        }
    }
}

/// What a call returned.
pub type Outcome = Result<Answer, Errno>;

/// What is known of the effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It happened, between invocation and return.
    Done,
    /// It changed nothing: refused by the rules of file systems.
    Refused(Errno),
    /// It may have happened, from its invocation on.
    Unsure,
}

/// One operation of a client.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who asked.
    pub client: u32,
    /// What was asked.
    pub op: Op,
    /// When.
    pub invoked: u64,
    /// When it returned, and what. `None` while it is open.
    pub returned: Option<(u64, Outcome)>,
}

impl Call {
    /// What is known of its effect.
    pub const fn fate(&self) -> Fate {
        match &self.returned {
            Some((_, Ok(_))) => Fate::Done,
            Some((_, Err(errno))) if !leaves_doubt(*errno) => Fate::Refused(*errno),
            _ => Fate::Unsure,
        }
    }

    /// When its effect was over: its return, if that says so; else never.
    pub fn over(&self) -> u64 {
        match (&self.returned, self.fate()) {
            (Some((at, _)), Fate::Done | Fate::Refused(_)) => *at,
            _ => u64::MAX,
        }
    }

    /// When its effect came at the latest, if it came at all. What a failed disk has got of it may
    /// show at any time; any other call has no effect after it returned.
    pub const fn latest(&self) -> u64 {
        match &self.returned {
            None | Some((_, Err(Errno::Io))) => u64::MAX,
            Some((at, _)) => *at,
        }
    }

    /// What it brought, if it succeeded.
    pub const fn answer(&self) -> Option<&Answer> {
        match &self.returned {
            Some((_, Ok(answer))) => Some(answer),
            _ => None,
        }
    }
}

/// Whether an error leaves open what has been done: any but the refusals by the rules of file
/// systems, which come before anything is changed.
const fn leaves_doubt(errno: Errno) -> bool {
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

/// What the world did to a node, or saw it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// It stopped.
    Crashed(Stop),
    /// It stopped, however, and its store says that it was closed in order: all it holds is on stable
    /// storage.
    Closed,
    /// It started.
    Started,
    /// A flush of its disk failed: what was not synced may be gone.
    FlushFailed,
}

/// That a node gave clients answers as the primary: from its first answer until another node, or the
/// same one in another generation, gave one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reign {
    /// Time of the first answer.
    pub from: u64,
    /// Who answered.
    pub primary: Side,
    /// In which generation.
    pub generation: Generation,
}

/// All that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    always: bool,
    calls: Vec<Call>,
    reigns: Vec<Reign>,
    events: Vec<(u64, Side, NodeEvent)>,
    last: u64,
}

impl History {
    /// An empty history of an empty datastore. `always`: everything that is answered is durable
    /// (`durability = "always"`).
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

    /// A client asks.
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

    /// A client is answered.
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

    /// Something happened to a node.
    pub fn node(&mut self, node: Side, event: NodeEvent, at: u64) {
        self.advance(at);
        self.events.push((at, node, event));
    }

    /// An operation that some client asked for was done, and `primary` said so.
    pub fn acknowledged(&mut self, primary: Side, generation: Generation, at: u64) {
        self.advance(at);
        let last = self.reigns.last();
        if last.is_none_or(|last| (last.primary, last.generation) != (primary, generation)) {
            self.reigns.push(Reign {
                from: at,
                primary,
                generation,
            });
        }
    }

    /// Who gave answers, in the order of time.
    pub fn reigns(&self) -> &[Reign] {
        &self.reigns
    }

    /// All calls, by the time of invocation.
    pub fn calls(&self) -> impl Iterator<Item = (CallId, &Call)> {
        self.calls
            .iter()
            .enumerate()
            .map(|(index, call)| (CallId(index), call))
    }

    /// A call.
    pub fn call(&self, id: CallId) -> &Call {
        self.calls
            .get(id.0)
            .unwrap_or_else(|| panic!("call {} is of another history", id.0))
    }

    /// What happened to nodes, in order.
    pub fn events(&self) -> &[(u64, Side, NodeEvent)] {
        &self.events
    }

    /// The same, but for what closes make durable: that is so on the node that closed its store, and not
    /// on the other one.
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

    /// When the primary's store was closed in order.
    pub fn closes(&self) -> Vec<u64> {
        let closed = |(_, node, event): &&(u64, Side, NodeEvent)| {
            *node == Side::Primary && *event == NodeEvent::Closed
        };
        self.events.iter().filter(closed).map(|it| it.0).collect()
    }

    /// The time of the last event so far.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// When a node started last; zero if it never did.
    pub fn last_start(&self, node: Side) -> u64 {
        let mut latest = self.events.iter().rev();
        let start = latest.find(|event| event.1 == node && event.2 == NodeEvent::Started);
        start.map_or(0, |event| event.0)
    }

    /// Whether everything answered is durable.
    pub const fn is_always(&self) -> bool {
        self.always
    }
}
