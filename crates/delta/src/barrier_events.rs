//! The messages, events and effects of the barrier's machine.

use serde::{Deserialize, Serialize};

use crate::columns::Column;
use crate::interval::{BarrierName, BarrierNames, Interval};

/// A message about barriers. It belongs to no connection: it counts whenever it arrives, also twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BarrierMessage {
    /// The primary: make everything stable, and note this name. The barrier `complete` came before and is over.
    Barrier {
        /// The barrier to reach.
        name: BarrierName,
        /// The last barrier that both nodes have reached.
        complete: Option<BarrierName>,
    },
    /// The secondary: this barrier is reached.
    Reached(BarrierName),
    /// The secondary: the disk is too full to reach this barrier.
    Unreached(BarrierName),
    /// The primary: both nodes have reached this barrier.
    Complete(BarrierName),
}

/// An occurrence that the machine is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarrierEvent {
    /// The primary begins to mirror to a secondary: at a new sync, or with the content of a resync. `from` is above the intervals
    /// of which either node has heard.
    MirroringBegun {
        /// The first interval.
        from: Interval,
    },
    /// The node begins to follow. A late word about a barrier of an earlier interval says nothing about the time since.
    FollowingBegun {
        /// The first interval.
        from: Interval,
    },
    /// The secondary reads, in the order of the connection, that the primary is about to open this interval: each operation of it
    /// was sent later.
    Turned {
        /// The interval.
        to: Interval,
    },
    /// The primary mirrors no more: it leaves the sync, or a resync has lost its connection.
    MirroringEnded,
    /// A barrier is due, whose name has these random bytes. Ignored while another one is under way.
    Due {
        /// Sixteen random bytes.
        nonce: [u8; 16],
    },
    /// An operation of this interval begins, or a request of a recovery or a resync; also one that is deferred.
    Begun(Interval),
    /// An operation or a request of this interval is over on both nodes.
    Ended(Interval),
    /// The sync that [`BarrierEffect::Sync`] asked for is over, and its names are on stable storage.
    Synced,
    /// The sync could not be made for want of room.
    SyncFailed,
    /// A message of the other node.
    Received(BarrierMessage),
}

/// An act that the machine asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BarrierEffect {
    /// Send a message. [`BarrierMachine::outgoing`](crate::BarrierMachine::outgoing) says what to send again over the next
    /// connection.
    Send(BarrierMessage),
    /// Put everything that is changed so far on stable storage: content, names of content, a checkpoint; on the primary also the
    /// rest of a resync. Then note these names there.
    Sync(BarrierNames),
    /// Everything up to an interval is stable on both nodes: empty these columns.
    Drop {
        /// The last interval.
        through: Interval,
        /// The columns that have no mark of a later interval.
        columns: Vec<Column>,
        /// The nodes have mirrored since before this barrier. So the primary writes its rest to stable storage anew, and the
        /// secondary gives its own rest up: the primary has it. A late word about an earlier barrier does not say so.
        is_of_this_sync: bool,
    },
}
