//! The names of the two machines.

/// One of the two machines. A machine keeps its name when the roles of the nodes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The machine whose node begins as the primary.
    A,
    /// The machine whose node begins as the secondary.
    B,
}

impl Side {
    /// Both machines.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Returns the other machine.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Returns the element of this machine.
    pub const fn of<T>(self, [a, b]: &[T; 2]) -> &T {
        match self {
            Self::A => a,
            Self::B => b,
        }
    }

    /// Returns the element of this machine.
    pub const fn of_mut<T>(self, [a, b]: &mut [T; 2]) -> &mut T {
        match self {
            Self::A => a,
            Self::B => b,
        }
    }
}
