//! The vocabulary of the core: the events that the driver brings, and the effects that the driver carries out.
//!
//! Holds types only. `docs/protocol/rules.md` numbers the rules cited here.

use lockstep_types::{Errno, Osn};
use smallvec::SmallVec;

use crate::lock::{LockSet, OpId};
use crate::state::{RefusedTrigger, State, Trigger};

/// Identity of a connection with the peer. No two connections of a process have the same identity, so a late message of
/// a lost connection is recognized. Zero stands for no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub u64);

/// The kinds of client operations that the protocol tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Looks at content; needs only its locks.
    Read,
    /// Writes bytes.
    Write,
    /// A metadata operation.
    Meta,
    /// The metadata operation that makes a snapshot: no other one, and no write, is under way beside it (rule P35).
    Snapshot,
    /// Makes a file durable.
    Sync,
}

impl OpKind {
    /// Whether operations of this kind are numbered, sent, committed and applied as metadata operations.
    pub const fn is_metadata(self) -> bool {
        matches!(self, Self::Meta | Self::Snapshot)
    }
}

/// An event that the driver brings to the core.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client, a resync or a comparison wants to do something.
    Submit {
        /// Identity of the operation from now on; never used before.
        op: OpId,
        /// The kind of operation.
        kind: OpKind,
        /// The locks that the operation needs.
        locks: LockSet,
        /// About how many bytes of the operation go to the peer, if it is mirrored.
        bytes: u64,
    },
    /// A metadata operation is about to be validated and wants its OSN. The driver lets one
    /// metadata operation at a time be numbered, validated, logged and sent.
    Sequence(OpId),
    /// The local part of an operation is done, or was refused.
    LocalDone(OpId, Result<(), Errno>),
    /// This node refused a write before any part of the write was done or sent: the file is gone.
    Refused(OpId, Errno),
    /// The peer has done its part of a write, or failed.
    WriteAcked(Osn, Option<Errno>),
    /// The peer has committed a metadata operation, or rolled it back.
    MetaAcked(Osn, Result<(), Errno>),
    /// The peer has done its part of a sync, or failed.
    SyncAcked(OpId, Option<Errno>),
    /// A committed metadata operation without a waiting client has been applied.
    Applied(Osn),
    /// A connection stands; both sides have introduced themselves.
    LinkUp {
        /// Identity of the connection.
        connection: ConnectionId,
        /// Whether both sides are in sync.
        in_sync: bool,
        /// Highest metadata operation that the peer has committed.
        peer_applied: Osn,
    },
    /// Whether the namespace changes faster than a resync sends the changes.
    NamesBehind(bool),
    /// The blocks that may differ were sent and acknowledged (distributed recovery).
    RangesRecovered,
    /// The secondary has said over the present connection that it stops. The loss of the connection follows.
    PeerStops,
    /// Any other event that changes the state.
    Trigger(Trigger),
    /// The peer has answered a sign of life: the peer has received every earlier message, and this node has taken in
    /// every earlier answer.
    Beat,
    /// Time passes.
    Tick,
}

impl Event {
    /// Whether the event says only that the peer lives, or that time passes.
    pub const fn is_sign_of_life(&self) -> bool {
        matches!(self, Self::Beat | Self::Tick)
    }
}

/// A task for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Do the local part of an operation: read, write or sync.
    Execute {
        /// The operation.
        op: OpId,
        /// OSN of the operation; zero for a read or a sync.
        osn: Osn,
    },
    /// Send a write to the peer.
    SendWrite {
        /// The operation.
        op: OpId,
        /// OSN of the write.
        osn: Osn,
        /// The only connection over which the write may go.
        connection: ConnectionId,
    },
    /// Send a write again, with the bytes that are on this node.
    ResendWrite {
        /// The operation.
        op: OpId,
        /// OSN of the write.
        osn: Osn,
        /// The only connection over which the write may go.
        connection: ConnectionId,
    },
    /// Send a sync to the peer.
    SendSync {
        /// The operation.
        op: OpId,
    },
    /// Prepare a metadata operation: ask for its OSN with [`Event::Sequence`].
    Prepare {
        /// The operation.
        op: OpId,
    },
    /// The answer to [`Event::Sequence`]: validate, then log and send, or apply alone.
    Sequenced {
        /// The operation.
        op: OpId,
        /// OSN of the operation.
        osn: Osn,
        /// Whether the operation goes to the peer.
        mirrored: bool,
    },
    /// Send a pending metadata operation again.
    ResendMeta {
        /// OSN of the operation.
        osn: Osn,
    },
    /// Apply a committed metadata operation.
    Commit {
        /// OSN of the operation.
        osn: Osn,
        /// The operation, if a client waits for it.
        op: Option<OpId>,
    },
    /// An operation is over: make it visible and answer.
    Finish {
        /// The operation.
        op: OpId,
        /// Outcome of the operation.
        result: Result<(), Errno>,
    },
    /// Make "in sync" or "out of sync" durable, then report with [`Trigger::MarkedInSync`] or
    /// [`Trigger::MarkedOutOfSync`].
    Mark {
        /// Whether the mark says in sync.
        in_sync: bool,
    },
    /// The peer has let an operation wait for too long, and is given up for it: note why.
    NoteOverdue,
    /// This node serves alone until the connection has stood for a time, because connections were lost one after the
    /// other (rule P23): note why.
    AwaitSteadyLink {
        /// Number of the losses.
        losses: u32,
        /// The time, in milliseconds.
        wait_ms: u64,
    },
    /// Close the connection.
    DropLink,
    /// Do a task of more than one message, over the given connection only. A late transfer over the next connection
    /// would run beside the transfers that were decided for that connection.
    Transfer(Transfer, ConnectionId),
    /// The state has changed.
    Entered(State),
    /// A trigger leads nowhere in the present state, and nothing was done: note it. If the trigger is a fault
    /// ([`RefusalReason::is_fault`](crate::state::RefusalReason::is_fault)), close the connection, too.
    Refused(RefusedTrigger),
}

/// A task of the primary for the secondary, outside client operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Send the blocks that may differ, then report with [`Event::RangesRecovered`].
    RecoverRanges,
    /// Distributed recovery is complete: the secondary may forget its waiting writes.
    TellRecovered,
    /// Carry the namespace over, then report with [`Trigger::ImageSent`].
    SendImage,
    /// Carry the last changes of the namespace over, then report with [`Trigger::ImageDone`].
    SendTail,
    /// Carry the content over, then report with [`Trigger::ContentDone`].
    SendContent,
    /// Tell the secondary that it is in sync.
    TellInSync,
}

/// Effects of one event, in order.
pub type Effects = SmallVec<[Effect; 4]>;
