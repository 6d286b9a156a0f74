//! The flags of an inode, as `chattr` sets them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of flags. Only files and directories have flags of their own; a new inode of any kind inherits some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InodeFlags(u8);

impl InodeFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Nothing about the inode changes (`chattr +i`).
    pub const IMMUTABLE: Self = Self(1);
    /// A file grows only at its end, and a directory only gets names (`chattr +a`).
    pub const APPEND_ONLY: Self = Self(2);
    /// Backups leave the file out (`chattr +d`). Kept and shown only.
    pub const NO_DUMP: Self = Self(4);
    /// Reading changes no access time (`chattr +A`): so it is for every inode. Kept and shown only.
    pub const NO_ATIME: Self = Self(8);
    /// The flags that restrict what a program may do.
    pub const RESTRICTING: Self = Self(Self::IMMUTABLE.0 | Self::APPEND_ONLY.0);
    /// The flags that a new inode takes from its directory.
    pub const INHERITED: Self = Self(Self::NO_DUMP.0 | Self::NO_ATIME.0);

    /// The set of these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bits of the set.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The flags of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags that both sets have.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether both sets have a flag in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The letters of `lsattr`, or "none".
impl fmt::Display for InodeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [
            (Self::IMMUTABLE, "i"),
            (Self::APPEND_ONLY, "a"),
            (Self::NO_ATIME, "A"),
            (Self::NO_DUMP, "d"),
        ];
        if *self == Self::NONE {
            return f.write_str("none");
        }
        let mut set = letters.iter().filter(|(flag, _)| self.intersects(*flag));
        set.try_for_each(|(_, letter)| f.write_str(letter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_letters_of_lsattr() {
        assert_eq!(InodeFlags::NONE.to_string(), "none");
        let two = InodeFlags::NO_DUMP.union(InodeFlags::IMMUTABLE);
        assert_eq!(two.to_string(), "id");
    }
}
