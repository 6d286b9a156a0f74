//! The names of the two nodes.

/// One of the two nodes. The roles never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The node that serves clients and dials its peer.
    Primary,
    /// The node that mirrors the primary and listens for connections.
    Secondary,
}

impl Side {
    /// Both sides, the primary first.
    pub const BOTH: [Self; 2] = [Self::Primary, Self::Secondary];

    /// Returns the peer of this side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Primary => Self::Secondary,
            Self::Secondary => Self::Primary,
        }
    }

    /// Returns the element of this side.
    pub const fn of<T>(self, [primary, secondary]: &[T; 2]) -> &T {
        match self {
            Self::Primary => primary,
            Self::Secondary => secondary,
        }
    }

    /// Returns the element of this side.
    pub const fn of_mut<T>(self, [primary, secondary]: &mut [T; 2]) -> &mut T {
        match self {
            Self::Primary => primary,
            Self::Secondary => secondary,
        }
    }
}
