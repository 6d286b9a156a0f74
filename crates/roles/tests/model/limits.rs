//! The bounds of an exploration, and the rules that it may leave out.

/// A rule that the model leaves out. Then it must find a broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Break {
    /// R1: a primary serves alone before the witness has recorded that.
    AloneUnasked,
    /// R1: a primary takes the word of its secondary that it stops for the word that its copy is not complete.
    StopTrusted,
    /// R2: a copy counts as complete after a power loss.
    PowerLossUnnoticed,
    /// R3: the primary grants its role to a secondary that has not told that it is complete.
    GrantUntold,
    /// R5: the witness compares no record before it grants a claim.
    ClaimUncompared,
    /// R7: a node takes over within the lease of the primary.
    LeaseIgnored,
    /// R8: the witness hears that both are in sync before the secondary has recorded that.
    ProtectEarly,
    /// R9: a primary that lost power serves from its own disk.
    ServeAfterPowerLoss,
    /// R12: a primary gives way although the secondary cannot take over, as far as it knows.
    GiveWayUnprotected,
    /// R12: a primary whose disk hangs asks to serve alone.
    HungAsks,
    /// A forced promotion does not tell the witness.
    ForceUntold,
    /// A demotion opens no new generation.
    DemoteInSame,
    /// The copy of a demoted node counts as complete.
    DemotedComplete,
}

/// The bounds of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    pub has_witness: bool,
    /// Stops, power losses, cuts of the link, operations that the secondary cannot do, disks that hang, and the commands of an
    /// operator who loses operations, together.
    pub failures: u8,
    pub operations: u8,
    /// Planned failovers.
    pub swaps: u8,
    /// Every acknowledged operation is on stable storage on the nodes that have it (`durability = "always"`).
    pub always: bool,
    pub operator: Operator,
    /// Disks may hang.
    pub hangs: bool,
    pub breaks: Option<Break>,
}

/// The commands of the operator, beside the planned failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operator {
    /// A demotion.
    pub demotes: bool,
    /// A promotion by force.
    pub forces: bool,
}

impl Operator {
    /// Whether the generations that a node has heard of decide about a command.
    pub const fn is_any(self) -> bool {
        self.demotes || self.forces
    }
}
