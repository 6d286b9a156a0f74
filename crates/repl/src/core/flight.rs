//! Operations in flight, as the core remembers them.

use lockstep_types::{Errno, Osn};

use super::{Kind, LockSet, OpId};

/// One operation from submission to finish.
pub(super) struct Op {
    /// What it is.
    pub kind: Kind,
    /// Locks it holds or waits for.
    pub locks: LockSet,
    /// Its number, once it has one.
    pub osn: Option<Osn>,
    /// Its part on this node.
    pub local: Side,
    /// Its part on the peer.
    pub peer: Side,
    /// The beat at which it was sent to the peer over the present connection, if it was.
    pub sent: Option<u64>,
    /// About how many bytes of it go to the peer.
    pub bytes: u64,
    /// It was given room on the way to the peer.
    pub has_room: bool,
}

/// One node's part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// There is none, or it has been given up.
    Unneeded,
    /// Not yet done.
    Waiting,
    /// Done.
    Done(Result<(), Errno>),
}

impl Op {
    /// An operation that has just been submitted.
    pub const fn new(kind: Kind, locks: LockSet, bytes: u64) -> Self {
        Self {
            kind,
            locks,
            osn: None,
            local: Side::Waiting,
            peer: Side::Unneeded,
            sent: None,
            bytes,
            has_room: false,
        }
    }

    /// Its outcome, once neither side has anything left to do.
    pub fn outcome(&self) -> Option<Result<(), Errno>> {
        match (self.local, self.peer) {
            (Side::Done(local), Side::Unneeded | Side::Done(Ok(()))) => Some(local),
            _ => None,
        }
    }
}

/// A mirrored metadata operation that is not yet applied here.
pub(super) struct MetaFlight {
    /// Its number.
    pub osn: Osn,
    /// The operation, if a client waits for it.
    pub op: Option<OpId>,
    /// The peer has committed it.
    pub committed: bool,
    /// The beat at which it was sent to the peer over the present connection, if it was.
    pub sent: Option<u64>,
}

impl MetaFlight {
    /// One left over from before a restart.
    pub const fn in_doubt(osn: Osn) -> Self {
        Self {
            osn,
            op: None,
            committed: false,
            sent: None,
        }
    }
}
