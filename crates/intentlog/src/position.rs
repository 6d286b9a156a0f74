//! Places in the log.

use std::fmt;

/// The place of a record in the order of all records ever appended to one log. The crate page says how
/// positions grow. Positions order records. They tell neither the number nor the size of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(u64);

impl Position {
    /// Before every record.
    pub const START: Self = Self(0);

    /// The position with this stored number.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The number to store.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `bytes` further on. Saturates at `u64::MAX`, which a log that is opened a million times a
    /// day does not reach in a hundred years.
    pub(crate) const fn plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
