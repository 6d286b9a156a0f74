//! [`LastUse`]: the words of the last checkpoint about the run of the machine in which the store was in use.
//!
//! Tables and sums that outlive the process, but no loss of power, count or are void by it.

use lockstep_types::BootId;

/// The last use of the store, and this start.
#[derive(Clone, Copy, Debug)]
pub struct LastUse {
    /// The run of the machine of this start.
    pub boot: BootId,
    /// The run of the machine in which the store was in use; `None` after a clean shutdown.
    pub last_boot: Option<BootId>,
    /// How often the store was opened before.
    pub epoch: u32,
}

#[cfg(test)]
impl LastUse {
    /// The use of a store in a test.
    pub fn of_test() -> Self {
        Self {
            boot: BootId::from_bytes([1; 16]),
            last_boot: Some(BootId::from_bytes([1; 16])),
            epoch: 1,
        }
    }
}
