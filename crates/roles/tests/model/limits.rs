//! The bounds of an exploration.

use crate::breaks::Break;

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
