//! One operation in flight, as the core remembers it.

use lockstep_types::{Errno, Osn};

use super::OpKind;
use super::link_pace::Dispatch;
use crate::lock::{LockSet, OpId};

/// One operation from submission to finish.
pub(super) struct Op {
    /// The kind of operation.
    pub kind: OpKind,
    /// Locks that the operation holds or waits for.
    pub locks: LockSet,
    /// OSN of the operation, once it has one.
    pub osn: Option<Osn>,
    /// The part of the operation on this node.
    pub local: NodePart,
    /// The part of the operation on the peer.
    pub peer: NodePart,
    /// The beat at which the operation was sent to the peer over the present connection, if it was.
    pub sent: Option<u64>,
    /// About how many bytes of the operation go to the peer.
    pub bytes: u64,
    /// When the operation was given room on the way to the peer, if it was.
    pub dispatch: Option<Dispatch>,
}

/// One node's part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePart {
    /// The node has no part in the operation, or its part has been given up.
    NotNeeded,
    /// Not yet done.
    Pending,
    /// Done.
    Done(Result<(), Errno>),
}

/// The part of an operation that a failed disk refuses.
pub(super) const REFUSED: NodePart = NodePart::Done(Err(Errno::Io));

impl Op {
    /// A newly submitted operation.
    pub const fn new(kind: OpKind, locks: LockSet, bytes: u64) -> Self {
        Self {
            kind,
            locks,
            osn: None,
            local: NodePart::Pending,
            peer: NodePart::NotNeeded,
            sent: None,
            bytes,
            dispatch: None,
        }
    }

    /// Outcome of the operation, once neither node has anything left to do.
    pub fn outcome(&self) -> Option<Result<(), Errno>> {
        match (self.local, self.peer) {
            (NodePart::Done(local), NodePart::NotNeeded | NodePart::Done(Ok(()))) => Some(local),
            _ => None,
        }
    }
}

/// A mirrored metadata operation that is not yet applied here.
pub(super) struct PendingMeta {
    /// OSN of the operation.
    pub osn: Osn,
    /// The operation, if a client waits for it.
    pub op: Option<OpId>,
    /// The peer has committed the operation.
    pub committed: bool,
    /// The beat at which the operation was sent to the peer over the present connection, if it was.
    pub sent: Option<u64>,
}

impl PendingMeta {
    /// An operation that the peer has not committed yet.
    pub const fn new(osn: Osn, op: Option<OpId>) -> Self {
        Self {
            osn,
            op,
            committed: false,
            sent: None,
        }
    }
}
