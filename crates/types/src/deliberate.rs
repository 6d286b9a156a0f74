//! Bugs put in on purpose, to see whether the simulator finds them.
//!
//! Each is a place in the real code that does the wrong thing while its switch is on. The switches
//! exist only with the feature `deliberate-bugs`, which only the simulator asks for; without it
//! [`is_on`] is a constant and the wrong code is not compiled. A switch belongs to the thread that
//! sets it, so that worlds beside each other do not share their bugs.

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// No PAW entry is made (P6).
    NoPawEntry,
    /// No SAW entry is made (P7).
    NoSawEntry,
    /// The watermark says that writes still in flight are done (P3).
    WatermarkTooHigh,
    /// A write is answered when this node is done, whatever the peer is (P1).
    AnswerBeforePeer,
    /// What waited is finished alone before the mark is durable (P1).
    FinishAloneUnmarked,
    /// What the secondary has said it did is sent again, and done again (P5).
    RepeatMetadata,
    /// Metadata operations are sent again in another order, and taken in any (P2).
    MetadataOutOfOrder,
    /// Distributed recovery sends the ranges without waiting for the metadata operations.
    RangesBeforeMetadata,
    /// An operation in doubt is forgotten at the next start.
    ForgetInDoubt,
    /// The count of openings stays as it is: numbers are given out again (P13).
    NumbersAgain,
    /// A change of content is not followed by a record that it was carried out (P5).
    NoOutcomeLogged,
    /// `fsync` syncs this node only (P11).
    SyncHereOnly,
    /// A write takes no range lock (P4).
    NoRangeLock,
    /// New operations are admitted before the ranges are recovered (P8).
    AdmitBeforeRanges,
    /// Distributed recovery forgets what the primary's table says.
    IgnorePawInRecovery,
    /// Writes that clients wait for are not sent again after a reconnect.
    NoResend,
    /// The copy of a secondary that is being resynced still counts as in sync (P10).
    ResyncUnmarked,
    /// A machine that lost power while the store was open counts as in sync (P12).
    TrustAfterPowerLoss,
    /// A copy in whose place another was in sync since counts as in sync (P17).
    TrustOldCopy,
    /// A durable write is acknowledged without a sync on the primary (P11).
    NoLocalSync,
    /// A durable write is acknowledged without a sync on the secondary (P11).
    NoRemoteSync,
    /// A new file's name is not synced with its content (P11).
    NoNameSync,
    /// A truncation is acknowledged as durable when its record is (P5, P11).
    NoContentSync,
    /// The mark "in sync" is made on the secondary before its store is synced (P10).
    MarkBeforeSync,
    /// A checkpoint cuts the log before the namespace is synced.
    CutLogUnsynced,
    /// A secondary that failed a write says that it did it (P15).
    HideFailure,
    /// What an operation changes of the namespace during a resync is not sent again (P18).
    ForgetChange,
    /// Resync takes files as equal when their sizes are.
    ResyncBySize,
    /// A secondary does what clients ask it for, without the primary.
    SecondaryServes,
    /// An operation that ends with an error does not give its locks back (P4).
    KeepLock,
    /// The PAW entry of a write stays when both nodes are done with it (P6).
    KeepPawEntry,
    /// The watermark removes no SAW entries (P7).
    KeepSawEntry,
    /// The draft of the role file is left beside it.
    LeaveDraft,
    /// A store is closed without a sync of PAW and SAW (P6, P12).
    NoTablesSync,
    /// A store is closed without a sync of what a process that was killed had left (P12).
    ClosedTooEarly,
    /// A directory of content stays when the last content in it was removed.
    KeepDirectory,
    /// A directory of content is looked at whether it is empty, and names in it count as synced though it is not
    /// (P11).
    ForgetNames,
    /// Operations are sent whether or not there is room for them on the way to the secondary (P19).
    SendWithoutRoom,
    /// A thread that serves clients waits until the secondary reads (P19).
    WaitToSend,
    /// The bytes of every write that waits are put into the same place on the disk (P19).
    OneSlot,
    /// The bytes of every write that waits are kept in memory (P19).
    KeepWithoutLimit,
    /// A change begins without a look at the room on the secondary's disk (P20).
    IgnorePeerRoom,
}

/// Every bug there is.
pub const ALL: [Bug; 42] = [
    Bug::NoPawEntry,
    Bug::NoSawEntry,
    Bug::WatermarkTooHigh,
    Bug::AnswerBeforePeer,
    Bug::FinishAloneUnmarked,
    Bug::RepeatMetadata,
    Bug::MetadataOutOfOrder,
    Bug::RangesBeforeMetadata,
    Bug::ForgetInDoubt,
    Bug::NumbersAgain,
    Bug::NoOutcomeLogged,
    Bug::SyncHereOnly,
    Bug::NoRangeLock,
    Bug::AdmitBeforeRanges,
    Bug::IgnorePawInRecovery,
    Bug::NoResend,
    Bug::ResyncUnmarked,
    Bug::TrustAfterPowerLoss,
    Bug::TrustOldCopy,
    Bug::NoLocalSync,
    Bug::NoRemoteSync,
    Bug::NoNameSync,
    Bug::NoContentSync,
    Bug::MarkBeforeSync,
    Bug::CutLogUnsynced,
    Bug::HideFailure,
    Bug::ForgetChange,
    Bug::ResyncBySize,
    Bug::SecondaryServes,
    Bug::KeepLock,
    Bug::KeepPawEntry,
    Bug::KeepSawEntry,
    Bug::LeaveDraft,
    Bug::NoTablesSync,
    Bug::ClosedTooEarly,
    Bug::KeepDirectory,
    Bug::ForgetNames,
    Bug::SendWithoutRoom,
    Bug::WaitToSend,
    Bug::OneSlot,
    Bug::KeepWithoutLimit,
    Bug::IgnorePeerRoom,
];

#[cfg(feature = "deliberate-bugs")]
thread_local! {
    static ON: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether the code is to do this wrong.
#[cfg(feature = "deliberate-bugs")]
pub fn is_on(bug: Bug) -> bool {
    ON.get() == Some(bug)
}

/// Whether the code is to do this wrong: never.
#[cfg(not(feature = "deliberate-bugs"))]
pub const fn is_on(_bug: Bug) -> bool {
    false
}

/// Puts a bug in on this thread, or takes the last one out.
#[cfg(feature = "deliberate-bugs")]
pub fn put_in(bug: Option<Bug>) {
    ON.set(bug);
}
