//! The vocabulary of the role machine: the events that the driver brings, and the effects that the driver carries out.

use lockstep_types::{Generation, SyncNames};

use crate::change::RoleChange;
use crate::conflict::{CommandRefusal, RoleConflict};
use crate::facts::LocalCopy;
use crate::offer::RoleOffer;
use crate::promotion::UnrecordedPromotion;
use crate::solo::SoloEnds;
use crate::witness::{Claim, WitnessRecord};

/// An occurrence that a machine decides on, together with the facts of the moment.
#[derive(Clone, Copy, Debug)]
pub enum RoleEvent {
    /// The other node offers its record in a role exchange.
    Offered(Offered),
    /// The disk of this node has failed, and the other node offers its record.
    OfferedToFailedDisk(Offered),
    /// It is time to see whether there is something to ask the witness.
    Due(QuestionTimes),
    /// The witness has answered the last call.
    Answered(Answered),
    /// The last call of the witness has no answer. A claim may have been granted, or may be granted later.
    Silent(Asker),
    /// A question to the witness is over, and no other thread changes the role.
    Settle(Settle),
    /// The disk of this node has not answered for its limit (rule R12). `may_peer_hang`: the disk of the other node may not
    /// answer either.
    DiskHangs {
        /// See above.
        may_peer_hang: bool,
    },
    /// An operator wants the other node as the primary. Operations of clients have ended.
    HandOver,
    /// An operator makes this primary the secondary, and gives up what only this node has.
    Demote,
    /// An operator makes this node the primary, and vouches that the other node does not serve. `accepts_loss`: the operator
    /// accepts that this copy may lack acknowledged operations, and that the witness is not asked.
    Promote {
        /// See above.
        accepts_loss: bool,
    },
    /// The change that a command has asked for is durable.
    Changed,
}

impl RoleEvent {
    /// Whether the event is a step of a question of the thread that watches the other node.
    pub const fn is_of_watch(&self) -> bool {
        match self {
            Self::Due(_) | Self::Settle(_) => true,
            Self::Answered(answered) => matches!(answered.asker, Asker::Watch),
            Self::Silent(asker) => matches!(asker, Asker::Watch),
            _ => false,
        }
    }
}

/// The offer of the other node, with the facts on which the decision depends.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The offer.
    pub theirs: RoleOffer,
    /// The copy of this node.
    pub copy: LocalCopy,
    /// The moment of this node before the first message of the role exchange.
    pub since: SoloEnds,
    /// No other node can have served by now.
    pub excludes_other: bool,
}

/// An answer of the witness.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The thread that has asked.
    pub asker: Asker,
    /// The record of the witness after the call; `None` if it has none.
    pub now: Option<WitnessRecord>,
    /// The names of this node's copy at the moment of the answer.
    pub names: SyncNames,
}

/// The thread that asks the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asker {
    /// The thread that watches the other node.
    Watch,
    /// The command of an operator.
    Command,
}

/// The times of a moment at which a question to the witness may be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is a time of its own
pub struct QuestionTimes {
    /// Primary: changes have waited for the secondary for as long as they may. Undecided: the peer has had the time to meet
    /// this node.
    pub has_waited: bool,
    /// Secondary: this node has been without a primary for long enough, and each promise that it has given is over (rule R7).
    pub may_take_over: bool,
    /// It is time to look at the record of the witness without a need.
    pub look_is_due: bool,
    /// The witness does not keep the name of the sync, and is not asked for that again yet.
    pub cannot_protect: bool,
}

/// The facts at the end of a question to the witness.
#[derive(Clone, Copy, Debug)]
pub struct Settle {
    /// The copy of this node.
    pub copy: LocalCopy,
    /// Each promise of this secondary not to take over is over (rule R7).
    pub is_released: bool,
    /// No primary has been connected since the question.
    pub is_silent: bool,
}

/// An occurrence in the replication of this node that a later decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session begins: what the witness protects is that of an earlier one.
    Begins,
    /// Primary: the nodes are in sync from now on, and the secondary may become complete.
    EntersSync,
    /// Primary: the secondary has followed a resync of this generation, so its own record says that it is not complete.
    SecondaryFollows(Generation),
    /// The sync has another name, of which the witness has not heard.
    Renamed,
}

/// A call of the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WitnessCall {
    /// Reads the record.
    Read,
    /// Makes a claim.
    Claim(Claim),
}

/// The end of a question to the witness, for the status and the time of the next question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionOver {
    /// The witness has no record of the datastore.
    pub is_empty: bool,
    /// The witness knows of a later sync than the copy of this node (rule P17).
    pub is_older_copy: bool,
    /// The witness was asked to let the secondary take over, and does not keep the name of the sync: its version is too old.
    /// `None`: it was not asked for that.
    pub forgets_names: Option<bool>,
    /// The answer has an effect, or was asked without a need. Any other question is asked again, but not at once.
    pub is_settled: bool,
}

/// A task for the driver. The tasks of one event are carried out in their order, and end with the first one that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleEffect {
    /// Call the witness, then report the answer to the same machine.
    Call(WitnessCall),
    /// The question is over: wait until no other thread changes the role, then report [`RoleEvent::Settle`].
    Settle(QuestionOver),
    /// Carry this change out.
    Change(RoleChange),
    /// Let the session of this primary go on without the secondary: it waits for that.
    ServeAlone,
    /// Record that this secondary's copy is not complete, and tell the session (rule R1).
    MarkIncomplete,
    /// Make durable that what this node gives out it has not given out before, and that unsynced operations may be lost: the
    /// other node may have served (rules P13, P22). What programs have asked before does not run any more (rule R13).
    SkipNumbersAndRenewVerifier,
    /// What programs have asked before does not run any more (rule R13).
    EndTenure,
    /// The kernel keeps nothing of what this node has answered.
    DropCaches,
    /// Tell the operator of a conflict that only an operator can end.
    Report(RoleConflict),
    /// Make durable that the witness does not know of a promotion by force.
    NoteUnrecorded(UnrecordedPromotion),
    /// Make durable that the witness knows of the last promotion by force.
    ClearUnrecorded,
    /// The disk hangs, and the other node can serve: end the connection (rule R12).
    GiveWay,
    /// The disk has failed, and no other node serves: serve reads.
    ServeReads,
    /// The disk has failed, and the other node may serve: serve nothing.
    ServeNothing,
    /// Refuse the other node.
    Conflict(RoleConflict),
    /// Refuse the command of the operator.
    Refuse(CommandRefusal),
}
