//! The start of a cluster that does not begin with empty stores.

use crate::disk::Disk;
use crate::history::History;

/// The disks of two stopped nodes, and the history that led to them.
#[derive(Clone)]
pub struct Baseline {
    pub(super) disks: [Disk; 2],
    pub(super) history: History,
}

impl Baseline {
    /// Returns the requests and answers that led to the baseline.
    pub const fn history(&self) -> &History {
        &self.history
    }
}
