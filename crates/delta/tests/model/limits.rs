//! The bounds of an exploration, and the rules that it may leave out.

/// The bounds of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Kills, losses of power, lost connections, old copies put back and takeovers by force, together.
    pub failures: u8,
    pub writes: u8,
    pub operations: u8,
    pub barriers: u8,
    /// Each announcement names both regions (announce ahead).
    pub ahead: bool,
    /// The operation is the creation of the file, and announces both regions.
    pub creates: bool,
    pub alone: MarksAlone,
    /// The secondary is not asked for its marks, and tells no name if it has served alone.
    pub is_unasked: bool,
    pub hands: Hands,
    pub breaks: Option<Break>,
}

/// The marks of a node that serves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarksAlone {
    /// On stable storage from the first change on.
    Durable,
    /// In memory only. So the node has no name on stable storage. Barriers run in sync only.
    InMemory,
    /// The same, until the node begins a trace. From then on its marks are on stable storage, up to the next resync. In a resync, barriers
    /// run once the namespace is across. The rest goes to stable storage with their names, and both count until the node serves alone.
    Traced,
}

impl Limits {
    /// Whether the marks of a node that serves alone are in memory, at least at first.
    pub fn in_memory(self) -> bool {
        self.alone != MarksAlone::Durable
    }

    /// Whether a node that serves alone begins a trace.
    pub fn traces(self) -> bool {
        self.alone == MarksAlone::Traced
    }
}

/// The acts of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hands {
    Nothing,
    /// An operator makes nodes lead although the other one may serve.
    Force,
    /// An old copy may be put back.
    PutBack,
}

/// A rule that the model leaves out. Then it must find a broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Break {
    /// A node that serves alone marks after the bytes.
    MarkAfterWrite,
    /// The primary marks a mirrored write after its end.
    MarkAfterSend,
    /// The primary makes a write beside its announcement.
    WriteBeforeAnnouncement,
    /// An announcement counts for later intervals, too.
    AnnouncedForOldInterval,
    /// An announcement counts over the next connection, and the interval goes on with that connection.
    AnnouncementsOutliveLink,
    /// The secondary answers an announcement, and does not mark the region.
    AnnouncedUnmarked,
    /// The secondary commits the creation of a file, and does not mark its regions.
    NewFileUnmarked,
    /// The primary opens an interval before the secondary is told.
    TurnAfterOperation,
    /// A connection begins without a word about the open interval.
    LinkWithoutTurn,
    /// A barrier drops the marks of both intervals.
    BarrierDropsNewMarks,
    /// The secondary answers before its sync.
    BarrierBeforeSync,
    /// The primary does not wait for its own sync.
    BarrierBeforeOwnSync,
    /// The drain does not wait for writes that wait for an announcement.
    BarrierSkipsWaiting,
    /// The marks of a younger interval take the place of older ones.
    LaterIntervalClears,
    /// A new session forgets the older of two intervals.
    JoinForgetsOlder,
    /// A node that serves alone marks in memory only, and keeps its names on stable storage.
    MarkUndurableAlone,
    /// Stable storage says that it has the older marks before it has them.
    DurableTooEarly,
    /// One interval that is covered somewhere is enough for a base.
    OneIntactAnywhere,
    /// The marks of the secondary are not asked for.
    UnionForgetsSecondary,
    /// The marks that were asked for are kept in memory.
    UnionInMemory,
    /// A primary that was killed out of sync rolls back its operation in doubt.
    RollBackExecuted,
    /// A node that rolls an operation back does not note its key.
    RollBackUnnoted,
    /// The old marks on stable storage go before the new ones are there.
    ProgressUndurable,
    /// The primary reaches a barrier without the rest of the resync on stable storage.
    RestUndurable,
    /// A node that takes over does not add the operations of the open intervals to its rest.
    SoftBaseForgetsOperations,
    /// A late word about a barrier before the resync ends the rest of the secondary.
    LateWordEndsRest,
    /// A finished part leaves the marks before a barrier.
    ResyncForgetsFinishedEarly,
    /// Finished parts count for a copy that lost power.
    FinishedOfOtherCopy,
    /// A primary that starts out of sync does not add its PAW entries to its rest.
    StartForgetsPaw,
    /// A session begins with the interval that its node has open.
    NumbersReused,
    /// The names of the last two attempts are kept.
    AttemptPushesOut,
    /// A node that serves alone with marks in memory only keeps its names on stable storage.
    NamesOutliveAlone,
    /// The sync of a barrier goes on when a node has begun to serve alone, and notes its names.
    AttemptOutlivesSync,
    /// A trace lacks the marks of the columns.
    TraceLacksColumns,
    /// A trace begins while an operation waits that the secondary may have done.
    TraceWithPending,
    /// A trace counts in the resync, too.
    TraceOutlivesAlone,
    /// The name of a barrier in a resync counts when its source serves alone again.
    NamesOutliveResync,
    /// The source of a resync makes a write before the secondary has marked its region.
    ResyncUnannounced,
    /// Operations wait for a barrier under way.
    BarrierHoldsClients,
}
