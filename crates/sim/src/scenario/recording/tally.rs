//! The number of changes of roles in a schedule, by their cause, and of losses of power.

use std::fmt;
use std::ops::AddAssign;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The other node began to serve.
    pub role_changes: u64,
    /// The witness has made the other node the primary.
    pub takeovers: u64,
    /// Planned failovers that succeeded.
    pub planned: u64,
    /// Nodes that an operator has made the primary, without a loss of operations.
    pub promotions: u64,
    /// Nodes that an operator has made the primary although their copies lacked operations.
    pub forced: u64,
    /// Primaries that an operator has made the secondary.
    pub demotions: u64,
    /// Changes of roles after the disk of the other node has failed.
    pub from_failed_disks: u64,
    /// Machines that have lost power.
    pub power_losses: u64,
    /// Acts on snapshots that were done.
    pub snapshots: u64,
    /// Files and directories that came back from the trash.
    pub restored: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.role_changes += other.role_changes;
        self.takeovers += other.takeovers;
        self.planned += other.planned;
        self.promotions += other.promotions;
        self.forced += other.forced;
        self.demotions += other.demotions;
        self.from_failed_disks += other.from_failed_disks;
        self.power_losses += other.power_losses;
        self.snapshots += other.snapshots;
        self.restored += other.restored;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            role_changes,
            takeovers,
            planned,
            promotions,
            forced,
            demotions,
            from_failed_disks,
            power_losses,
            snapshots,
            restored,
        } = self;
        write!(
            f,
            "{role_changes} changes of roles ({takeovers} takeovers by the witness, {planned} planned failovers, \
             {promotions} promotions, {forced} forced promotions, {demotions} demotions; {from_failed_disks} from a failed disk), {power_losses} losses of power, \
             {snapshots} acts on snapshots, {restored} restored from the trash"
        )
    }
}
