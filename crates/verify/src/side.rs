//! The two nodes, as the primary sees them that compares.

use std::fmt;

use serde::Serialize;

/// One of the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The primary, which compares.
    Here,
    /// The secondary.
    There,
}

impl Side {
    /// The other node.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Here => Self::There,
            Self::There => Self::Here,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "this node",
            Self::There => "the peer",
        })
    }
}
