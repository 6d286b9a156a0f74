//! The calls of the clients, and their known effects.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_types::{Attr, Errno, FileName, Ino, NodeKind};

use crate::op::{Op, Run, mark};
use crate::world::Side;

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

/// The record of all calls of the clients of a world.
#[derive(Clone, Debug, Default)]
pub struct CallRecord {
    pub(super) all: Vec<Call>,
    /// The calls that happened in a copy that was given up only, and the looks at a failed disk before a takeover.
    pub(super) gone: BTreeSet<usize>,
    /// The nodes at which the calls were made, as far as they are known.
    pub(super) asked_at: BTreeMap<usize, Side>,
    /// The calls whose programs were killed, and the nodes at which the requests wait.
    pub(super) killed: BTreeMap<usize, Side>,
}

impl CallRecord {
    /// Returns the calls that count, by the time of invocation: without those in a copy that was given up, and without the
    /// looks that a failed disk has answered before the other node took over.
    pub fn iter(&self) -> impl Iterator<Item = (CallId, &Call)> {
        self.every()
            .filter(|(id, _)| !self.gone.contains(&id.index()))
    }

    /// Returns all calls, also those that [`Self::iter`] leaves out.
    pub fn every(&self) -> impl Iterator<Item = (CallId, &Call)> {
        let calls = self.all.iter().enumerate();
        calls.map(|(index, call)| (CallId(index), call))
    }

    /// Returns a call.
    pub fn get(&self, id: CallId) -> &Call {
        self.all
            .get(id.0)
            .unwrap_or_else(|| panic!("call {} is of another history", id.0))
    }

    /// Returns the number of calls whose programs were killed.
    pub fn killed_count(&self) -> usize {
        self.killed.len()
    }

    /// Adds a call that begins.
    pub(super) fn begin(&mut self, client: u32, op: Op, at: u64) -> CallId {
        self.all.push(Call {
            client,
            op,
            invoked: at,
            returned: None,
        });
        CallId(self.all.len() - 1)
    }

    /// Ends an open call.
    pub(super) fn end(&mut self, id: CallId, outcome: Outcome, at: u64) {
        let call = self.all.get_mut(id.0);
        let Some(call) = call.filter(|call| call.returned.is_none()) else {
            panic!("call {} returned that is not open", id.0);
        };
        call.returned = Some((at, outcome));
    }
}
