//! Mutants: deliberate bugs in the product's code, which the tests of the simulator must find.
//!
//! While a mutant is active, its place in the product's code does the wrong thing. Mutants exist only with the
//! feature `mutants`, which only the simulator enables. Without the feature, [`is_active`] is the constant `false`,
//! and the compiler removes the wrong code.
//!
//! Invariant: a mutant is active on one thread only, the thread that activates it. Simulated worlds on different
//! threads share no mutant.

macro_rules! mutants {
    ($($(#[doc = $text:literal])+ $name:ident,)*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[doc = $text])+ $name,)*
        }

        /// Every mutant.
        pub const ALL: [Mutant; [$(Mutant::$name),*].len()] = [$(Mutant::$name),*];
    };
}

mutants! {
    /// The primary makes no PAW entry (P6).
    NoPawEntry,
    /// The secondary makes no SAW entry (P7).
    NoSawEntry,
    /// The watermark covers writes that are still in flight (P3).
    WatermarkTooHigh,
    /// The primary answers a write when its own disk is done, without regard to the secondary (P1).
    AnswerBeforePeer,
    /// The primary finishes waiting operations alone before the mark is durable (P1).
    FinishAloneUnmarked,
    /// The primary sends operations again that the secondary has acknowledged, and the secondary applies them
    /// again (P5).
    RepeatMetadata,
    /// The primary sends metadata operations again in another order, and the secondary applies them in any
    /// order (P2).
    MetadataOutOfOrder,
    /// Distributed recovery sends the ranges without waiting for the metadata operations.
    RangesBeforeMetadata,
    /// The next start forgets an operation in doubt.
    ForgetInDoubt,
    /// The next start lets clients in while metadata operations are in doubt (P4).
    ShowNamesInDoubt,
    /// The epoch does not grow when a store is opened: OSNs are given out twice (P13).
    NumbersAgain,
    /// The log has no record that a change of content was carried out (P5).
    NoOutcomeLogged,
    /// `fsync` syncs this node only (P11).
    SyncHereOnly,
    /// A write takes no range lock (P4).
    NoRangeLock,
    /// The primary admits new operations before distributed recovery has sent the ranges (P8).
    AdmitBeforeRanges,
    /// Distributed recovery ignores the entries of PAW.
    IgnorePawInRecovery,
    /// A reconnect does not send again the writes that clients wait for.
    NoResend,
    /// The copy of a secondary is treated as in sync during its resync (P10).
    ResyncUnmarked,
    /// A copy is treated as in sync after the machine lost power while the store was open (P12).
    TrustAfterPowerLoss,
    /// A copy that always syncs, and lost power, is brought up to date by tables that are lost (P12).
    ForgetLostPower,
    /// A copy is treated as in sync although another copy has replaced it since (P17).
    TrustOldCopy,
    /// A copy of the present sync is trusted although its machine has answered more (P17).
    TrustLaterCopy,
    /// A recovery keeps the name of the sync, and its count is not compared (P17).
    KeepNameOfSync,
    /// The primary acknowledges a durable write without a sync of its own disk (P11).
    NoLocalSync,
    /// The secondary acknowledges a durable write without a sync of its own disk (P11).
    NoRemoteSync,
    /// A sync of a new file's content does not sync the file's name (P11).
    NoNameSync,
    /// A truncation is acknowledged as durable as soon as its record is durable (P5, P11).
    NoContentSync,
    /// The secondary sets the mark "in sync" before it syncs its store (P10).
    MarkBeforeSync,
    /// A checkpoint cuts the log before the namespace is synced.
    CutLogUnsynced,
    /// A secondary acknowledges a write that failed on its disk (P15).
    HideFailure,
    /// Resync does not send again the changes that an operation makes to the namespace meanwhile (P18).
    ForgetChange,
    /// Resync takes files of equal size as equal.
    ResyncBySize,
    /// A secondary serves its clients itself, without the primary.
    SecondaryServes,
    /// An operation that ends with an error keeps its locks (P4).
    KeepLock,
    /// The PAW entry of a write stays when both nodes are done with the write (P6).
    KeepPawEntry,
    /// The watermark removes no SAW entries (P7).
    KeepSawEntry,
    /// The draft of the role file stays beside the role file.
    LeaveDraft,
    /// A store is closed without a sync of PAW and SAW (P6, P12).
    NoTablesSync,
    /// A store is closed without a sync of the data that a killed process left (P12).
    ClosedTooEarly,
    /// A directory of content stays when its last file is removed.
    KeepDirectory,
    /// The attempt to remove a directory of content marks its names as synced, although the directory is not
    /// empty (P11).
    ForgetNames,
    /// The primary sends operations without room in flight for them (P19).
    SendWithoutRoom,
    /// A thread that serves clients waits until the secondary reads (P19).
    WaitToSend,
    /// All waiting writes store their bytes at the same place of the spill file (P19).
    OneSlot,
    /// All waiting writes keep their bytes in memory (P19).
    KeepWithoutLimit,
    /// A change begins without a check of the room on the secondary's disk (P20).
    IgnorePeerRoom,
    /// A node that is alone does not note its writes for the other copy (P21).
    DeltaForgetsWrites,
    /// A new primary does not note the operations that the old one may not have applied (P21).
    DeltaForgetsUnapplied,
    /// A resync that goes on leaves out the files that it had begun when it lost its connection (P24).
    ResumeTooFar,
    /// A full table of the delta drops what it has no room for (P21).
    FullTableForgets,
    /// The delta of a node that is alone outlives the process without the changes since it began (P21).
    MarksDieWithProcess,
    /// The inodes that a resync of the changes has touched are not compared after the resync (P21).
    TrustResync,
    /// The secondary acknowledges content that a resync sends, and does not write it (P33).
    ResyncDropsPiece,
    /// The same, and the nodes are in sync without a comparison of the places that the resync has touched (P33).
    InSyncUnproved,
    /// A deposed node does not name its writes in flight (P21).
    RejoinWithoutPaw,
    /// A deposed node that lost power, or had served alone, is brought up to date like one that was in sync (P21).
    RejoinFromAnyCopy,
    /// The primary makes a write beside its announcement.
    AnnounceAfterWrite,
    /// The secondary answers an announcement, and marks nothing.
    AnnouncedUnmarked,
    /// The creation of a file does not mark its content.
    NewFileUnmarked,
    /// A write to a new file needs no announcement in the intervals after that of the creation, either.
    NewFileUnannouncedForever,
    /// A primary that starts serves at once, although its peer may have been promoted (R11).
    ServeUndecided,
    /// The gate lets programs in while this node does not serve.
    AdmitInAnyStanding,
    /// A primary serves although its lease is over (R7).
    ServeWithoutLease,
    /// A primary serves alone without the answer of the witness (R1).
    GoAloneUnasked,
    /// A secondary takes over before the lease of its primary is over (R7).
    TakeOverEarly,
    /// A secondary counts the silence of its primary from the last look of a thread (R7).
    SilenceFromLook,
    /// A secondary becomes complete by a mark of a resync from before its word that it is not (R1).
    MarkAfterWord,
    /// A primary serves alone by a word of its secondary from before the last sync (R1).
    TrustOldWord,
    /// The end of the lease that the guard of the kernel's caches reads is later than that of the lease (R7).
    CachesOutliveLease,
    /// A secondary stands for the next generation, and still follows the earlier primary (R4).
    StandUnrecorded,
    /// A planned failover does not wait for operations in flight.
    HandOverBusy,
    /// A planned failover does not check that the nodes are in sync (R2).
    HandOverUnsynced,
    /// The copy of a deposed primary stays complete.
    KeepLoserComplete,
    /// A primary that lost power serves without the peer, which may hold more (R9).
    LeadAfterPowerLoss,
    /// A node acts on a new role record that is not on its disk (R3).
    RecordUnwritten,
    /// A promoted node stays in the generation of its primary (R2).
    PromoteInSameGeneration,
    /// A new secondary keeps the operations in doubt of its time as the primary.
    KeepInDoubt,
    /// The session of an earlier role does not end.
    KeepSession,
    /// The requests that wait for the service are forgotten when the node serves.
    ForgetWaiting,
    /// A change that has waited runs although another node has served since it was asked (R13).
    RunOvertaken,
    /// A copy that lacks operations is promoted without the consent of the operator (R2).
    PromoteUnasked,
    /// A node that is forced to lead takes the next generation, which the other node may have taken, too.
    ForceIntoNextGeneration,
    /// The secondary does not sync recovered bytes where each acknowledged operation is durable (P8).
    RecoverUnsynced,
    /// A node that is forced to lead does not tell the witness.
    ForceUntold,
    /// A process that starts does not know that the witness must still know of a promotion by force.
    ForgetUnrecorded,
    /// The secondary makes an inode without a durable note of its number (P13).
    ForgetNumbers,
    /// A power loss leaves the write verifier as it was (P22).
    KeepVerifierOfLostMemory,
    /// A node that leads because the other one was demoted keeps its write verifier (P22).
    KeepVerifierOfDemoted,
    /// A copy enters the sync with the write verifier that it had before (P22).
    KeepOwnVerifier,
    /// A promotion leaves the write verifier as it was (P22).
    PromoteWithOldVerifier,
    /// A demotion keeps the generation, so that a peer of an earlier one leads the generation again.
    DemoteInSameGeneration,
    /// The copy of a demoted primary stays complete.
    KeepDemotedComplete,
    /// A node that has served alone follows a later primary without the word of an operator.
    FollowAfterAlone,
    /// A primary trusts the finished parts of a resync although an older copy of the secondary was put back (P17, P24).
    FinishedOfOtherCopy,
    /// A primary that starts out of sync takes back what its secondary may have executed, and its delta goes on (P21).
    RollBackExecuted,
    /// A block that is written in part keeps its sum (P32).
    SumNotRecomputed,
    /// The sum of a block that is written whole is that of its old bytes (P32).
    SumOfOldBlock,
    /// A deep comparison makes a void sum of bytes that the other node does not have (P32).
    AdoptUncompared,
    /// A block of a write that begins within a block gets the sum of the piece before it (P32).
    SumOfOtherBytes,
    /// The sums of a store count after a loss of power (P32).
    VoidForgotten,
    /// The store does not note the blocks whose bytes change (P32).
    ChangingUnnoted,
    /// A repair takes the copy that does not fit its sum for the right one.
    RepairFromBad,
    /// A repair takes a copy for the right one although it fits another sum than that of the wrong copy.
    RepairOtherSum,
    /// A sum is made anew of bytes that differ from those of the other node.
    RemakeUncompared,
    /// A repair tells the observers of changes of the bytes that it puts back.
    HealAsWrite,
    /// A complete barrier drops the marks of later intervals, too (P27).
    BarrierDropsNewMarks,
    /// A node notes the name of a barrier before its store is on stable storage (P27).
    BarrierBeforeSync,
    /// A primary that takes a barrier as the base of a resync takes the marks of the youngest column alone (P29).
    AdoptForgetsColumn,
    /// The columns lack what a resync has finished (P27).
    ColumnsLackRest,
    /// The marks beside an older copy of the store count (P29).
    MarksOfOldCopy,
    /// The source of a resync does not ask the other node for its marks (P29).
    MarksUnasked,
    /// A node that serves alone makes a change before the trace has its region on stable storage (P28).
    MarkUndurableAlone,
    /// A checkpoint cuts operations from the log whose keys the trace lacks (P28).
    KeysCutWithLog,
    /// The trace lacks the marks from before (P28).
    ColumnsUnsyncedAlone,
    /// The trace takes new inodes for such that were there before, and does not mark them (P28).
    NewInodeBelowLimit,
    /// The source of a resync keeps its trace (P28).
    TraceOutlivesAlone,
    /// The rest beside the name of a barrier in a resync lacks the content that is left (P30).
    RestLacksContent,
    /// It counts before the rest is on stable storage (P30).
    RestUnsyncedAtBarrier,
    /// It counts when the source of the resync serves alone again (P30).
    NamesOutliveResync,
    /// The source of a resync makes a mirrored write beside its announcement (P30).
    ResyncUnannounced,
    /// The keys of mirrored operations are not in the columns (P27).
    KeysNotInColumns,
    /// A change reader that confirms a point loses the marks of later changes, too (P34).
    ReaderTurnDropsMarks,
    /// A change reader gets its answer while changes from before are under way (P34).
    ReaderTurnUndrained,
    /// The names that change are not marked for the change readers (P34).
    ReaderForgetsKeys,
    /// The records of a resync are not marked for the change readers (P34).
    ReaderForgetsImage,
    /// A change reader may name the point of another node, or of an older copy (P34).
    ReaderTrustsAnyPoint,
    /// The old bytes of a block are kept after the change.
    KeepAfterWrite,
    /// Kept blocks are not synced before the change.
    KeepUnsynced,
    /// A block counts as kept before it is in a pack.
    TouchedBeforeSync,
    /// A block is kept again at each change.
    KeepTwice,
    /// Blocks of zeros are not kept.
    KeepNoHole,
    /// Of a file, only the blocks that the newest snapshot sees are kept.
    KeepForNewestOnly,
    /// The opening of a store does not look for bodies whose records are lost.
    BodyUnrecovered,
    /// The blocks of a file are kept for a snapshot that sees an earlier file of the same number.
    KeepOfSuccessor,
    /// A snapshot that gives way on a full disk gets no mark.
    GivenUpUnmarked,
    /// A node that an operator has promoted serves a copy that a resync has changed in part.
    ServeMixture,
    /// A resync that goes on makes another fallback in the place of the first one.
    FallbackOverwritten,
    /// The deletion of a snapshot takes kept values that an older snapshot sees.
    DeleteTakesNeighbours,
    /// The deletion of a snapshot gives what stays of it the label of the older snapshot.
    DeleteRelabels,
    /// A checkpoint takes sizes and times into the records without regard to snapshots.
    HistoryMissesFold,
    /// The kept "absent" of a record outlives the record.
    AbsentLeavesHistory,
    /// The log does not get the sizes and times that a snapshot sees.
    FoldUnlogged,
    /// Writes go through the gate while a snapshot is being made.
    GateLetsWriteThrough,
    /// The gate opens once a snapshot has its number.
    GateOpensEarly,
    /// A loss of power before a snapshot is settled is not noted.
    TornUnnoted,
    /// A snapshot counts as settled before its bytes are synced.
    SettledUnsynced,
    /// A snapshot is deleted although a hold keeps it.
    DeleteHeld,
    /// An inode in the trash is freed like any inode without a name (P38).
    ReapFromTrash,
    /// The primary sends a removal without the decision that the inode goes into the trash (P38).
    TrashUnsent,
    /// An inode that leaves the trash stays without a name for ever after a stop of its node (P38).
    DropUnreaped,
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether the code must do the wrong thing.
#[cfg(feature = "mutants")]
pub fn is_active(mutant: Mutant) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// Whether the code must do the wrong thing: never.
#[cfg(not(feature = "mutants"))]
pub const fn is_active(_mutant: Mutant) -> bool {
    false
}

/// Activates `mutant` on this thread in place of the previously active mutant; `None` activates none.
#[cfg(feature = "mutants")]
pub fn activate(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}
