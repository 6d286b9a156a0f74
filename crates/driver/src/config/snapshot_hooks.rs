//! The commands of the operator before and after each snapshot.

use std::time::Duration;

use super::settings;

/// See the head of this file. Without words there is no command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHooks {
    /// The program and its arguments before a snapshot. The program is an absolute path.
    pub before: Vec<String>,
    /// The same after a snapshot.
    pub after: Vec<String>,
    /// The longest time for each of the two ([`settings::HOOK_LIMIT`]).
    pub limit: Duration,
}

impl Default for SnapshotHooks {
    fn default() -> Self {
        Self {
            before: Vec::new(),
            after: Vec::new(),
            limit: settings::HOOK_LIMIT.default_time(),
        }
    }
}

impl SnapshotHooks {
    /// Whether there is no command.
    pub const fn is_off(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}
