//! Which of the two nodes.

/// One of the two nodes. Roles do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one that serves clients, and dials.
    Primary,
    /// The one that follows, and listens.
    Secondary,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Primary, Self::Secondary];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Primary => Self::Secondary,
            Self::Secondary => Self::Primary,
        }
    }

    /// Of what there is for each, its own.
    pub const fn of<T>(self, [primary, secondary]: &[T; 2]) -> &T {
        match self {
            Self::Primary => primary,
            Self::Secondary => secondary,
        }
    }

    /// Of what there is for each, its own.
    pub const fn of_mut<T>(self, [primary, secondary]: &mut [T; 2]) -> &mut T {
        match self {
            Self::Primary => primary,
            Self::Secondary => secondary,
        }
    }
}
