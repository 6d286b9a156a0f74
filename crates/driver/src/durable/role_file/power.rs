//! The effect of a loss of power on a copy (rule P12).
//!
//! Where every acknowledged operation is durable, a copy that was complete is complete after a loss of power, too: it lacks
//! nothing but operations that were under way and not acknowledged. But it may differ in them from the other copy, and
//! the tables that name them are lost. So the copies are compared as a whole before they are in sync again.

use super::RoleState;
use super::state::{CopyLineage, PowerMarks};
use lockstep_types::BootId;
use lockstep_types::mutants::{Mutant, is_active};

impl RoleState {
    const fn with_power(self, power: PowerMarks) -> Self {
        self.of_lineage(CopyLineage {
            power,
            ..self.lineage
        })
    }

    /// The state of a copy that was complete when the machine lost power.
    pub fn after_power_loss(self) -> Self {
        let power = PowerMarks {
            has_lost_power: !is_active(Mutant::ForgetLostPower),
            ..self.lineage.power
        };
        self.with_power(power).without_base()
    }

    /// Whether a loss of power has left this copy as complete as it was.
    pub const fn keeps_complete(&self) -> bool {
        self.lineage.power.all_synced
    }

    /// Whether the copies are equal but for the operations that the tables name, as far as this node knows.
    pub const fn has_kept_sync(&self) -> bool {
        self.is_in_sync() && !self.lineage.power.has_lost_power
    }

    /// The state at a start in the run `boot` of the machine, whose node acknowledges durable operations only if `is_always`
    /// says so. Everything in a store after a clean shutdown or a loss of power is on stable storage.
    pub fn started(self, boot: BootId, is_always: bool) -> Self {
        let is_all_stable = self.boot.is_none() || self.went_down(boot);
        let all_synced = is_always && (is_all_stable || self.lineage.power.all_synced);
        let power = PowerMarks {
            all_synced,
            ..self.lineage.power
        };
        self.with_power(power)
    }

    /// The state of a copy that acknowledges operations which are not durable from now on.
    pub fn unsynced(self) -> Self {
        let power = PowerMarks {
            all_synced: false,
            ..self.lineage.power
        };
        self.with_power(power)
    }

    /// The state of a copy that has been made equal, or is about to be. `all_synced`: the whole store is on stable storage, and
    /// so is each operation before its acknowledgement; `None`: as before.
    pub(super) fn made_equal(self, all_synced: Option<bool>) -> Self {
        let power = PowerMarks {
            all_synced: all_synced.unwrap_or(self.lineage.power.all_synced),
            has_lost_power: false,
        };
        self.with_power(power)
    }
}
