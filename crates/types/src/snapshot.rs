//! Which snapshot: the moment of a datastore that a snapshot shows, its name, and why it was made.

pub mod ino;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Generation, Osn};

/// The moment right after an operation. Orders the snapshots of a store in time.
///
/// A snapshot of the datastore is an operation itself, so its number is never used twice, and both nodes have the same one. A
/// snapshot that one node makes of its own copy is no operation: `local` tells such snapshots from that operation and from each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SnapshotId {
    /// The last operation on records that the snapshot shows.
    pub osn: Osn,
    /// 0 for a snapshot of the datastore; counts from 1 for the snapshots that this node has made of its copy since that operation.
    pub local: u8,
}

impl SnapshotId {
    /// Bytes of [`Self::to_bytes`].
    pub const BYTES: usize = 17;

    /// No snapshot is older.
    pub const FIRST: Self = Self {
        osn: Osn::ZERO,
        local: 0,
    };

    /// No snapshot is younger.
    pub const LAST: Self = Self {
        osn: Osn::LAST,
        local: u8::MAX,
    };

    /// The snapshot of the datastore that an operation makes.
    pub const fn of_operation(osn: Osn) -> Self {
        Self { osn, local: 0 }
    }

    /// Whether one node has made the snapshot of its own copy.
    pub const fn is_local(self) -> bool {
        self.local > 0
    }

    /// Bytes whose order is the order in time.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (generation, rest) = bytes.split_at_mut(8);
        let (sequence, local) = rest.split_at_mut(8);
        generation.copy_from_slice(&self.osn.generation.get().to_be_bytes());
        sequence.copy_from_slice(&self.osn.sequence.to_be_bytes());
        local.copy_from_slice(&[self.local]);
        bytes
    }

    /// The snapshot with these bytes; `None` if no snapshot has them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (generation, rest) = bytes.split_first_chunk()?;
        let (sequence, local) = rest.split_first_chunk()?;
        let &[local] = local else {
            return None;
        };
        let osn = Osn {
            generation: Generation::new(u64::from_be_bytes(*generation))?,
            sequence: u64::from_be_bytes(*sequence),
        };
        Some(Self { osn, local })
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_local() {
            write!(f, "{}+{}", self.osn, self.local)
        } else {
            self.osn.fmt(f)
        }
    }
}

/// Why a snapshot was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotKind {
    /// By an operator.
    User,
    /// By the schedule of the datastore.
    Scheduled,
    /// By this node, of its own copy, before a resync changes that copy.
    Fallback {
        /// Whether the copy was one of a running node: after a loss of power it is only what the disk had.
        is_exact: bool,
        /// The generation in which this node was deposed as the primary, if it may have had something alone.
        own_of: Option<Generation>,
    },
    /// Formerly a fallback: the copy of a deposed node, which may have had something alone.
    Lost {
        /// As that of the fallback.
        is_exact: bool,
        /// The generation in which this node was deposed as the primary.
        generation: Generation,
    },
    /// By the primary, of the datastore, for as long as the values of older snapshots arrive on a node that lacks them (rule P37).
    Arrival,
}

/// The name of a snapshot of the datastore, or of a hold on one: 1 to [`Self::BYTES_MAX`] bytes of UTF-8 without a slash, a control character or a space at
/// either end, and neither `.` nor `..`. So a directory can have each name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotName(String);

/// Why a text is no name of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotNameError {
    /// It has no byte.
    #[error("a name has at least one character")]
    Empty,
    /// It has too many bytes.
    #[error("a name has at most {} bytes", SnapshotName::BYTES_MAX)]
    TooLong,
    /// It has a slash, a control character or a space at an end, or is `.` or `..`.
    #[error(
        "a name has no slash, no control character and no space at its ends, and is neither `.` nor `..`"
    )]
    BadCharacter,
}

impl SnapshotName {
    /// Most bytes of a name.
    pub const BYTES_MAX: usize = 128;

    /// Checks a name.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn new(name: impl Into<String>) -> Result<Self, SnapshotNameError> {
        let name = name.into();
        if name.is_empty() {
            return Err(SnapshotNameError::Empty);
        }
        if name.len() > Self::BYTES_MAX {
            return Err(SnapshotNameError::TooLong);
        }
        let is_bad = |c: char| c == '/' || c.is_control();
        if name.trim() != name || name.chars().any(is_bad) || matches!(&*name, "." | "..") {
            return Err(SnapshotNameError::BadCharacter);
        }
        Ok(Self(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SnapshotName {
    type Error = SnapshotNameError;

    fn try_from(name: String) -> Result<Self, SnapshotNameError> {
        Self::new(name)
    }
}

impl From<SnapshotName> for String {
    fn from(name: SnapshotName) -> Self {
        name.0
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(generation: u64, sequence: u64, local: u8) -> SnapshotId {
        let generation = Generation::new(generation).unwrap();
        let osn = Osn {
            generation,
            sequence,
        };
        SnapshotId { osn, local }
    }

    #[test]
    fn bytes_are_in_the_order_of_time() {
        let ordered = [
            id(1, 0, 0),
            id(1, 255, 0),
            id(1, 255, 1),
            id(1, 256, 0),
            id(2, 3, 255),
            id(300, 0, 0),
        ];
        assert!(ordered.is_sorted());
        let bytes = ordered.map(SnapshotId::to_bytes);
        assert!(bytes.is_sorted());
        assert_eq!(
            bytes.map(|it| SnapshotId::from_bytes(&it).unwrap()),
            ordered
        );
        assert_eq!(SnapshotId::from_bytes(&[0; 17]), None, "no generation is 0");
        assert_eq!(SnapshotId::from_bytes(&bytes[0][..16]), None);
        assert_eq!(
            SnapshotId::from_bytes(&[&bytes[0][..], &[1]].concat()),
            None
        );
    }

    #[test]
    fn a_name_fits_a_directory_and_a_terminal() {
        use SnapshotNameError::{BadCharacter, Empty, TooLong};
        let longest = "n".repeat(SnapshotName::BYTES_MAX);
        for good in [
            "a",
            "before upgrade",
            "@GMT-2026.11.30-12.00.00",
            "é",
            &longest,
        ] {
            assert_eq!(SnapshotName::new(good).unwrap().as_str(), good);
        }
        let too_long = "n".repeat(SnapshotName::BYTES_MAX + 1);
        for (bad, why) in [
            ("", Empty),
            (&*too_long, TooLong),
            (".", BadCharacter),
            ("..", BadCharacter),
            ("a/b", BadCharacter),
            ("a\0", BadCharacter),
            ("a\n", BadCharacter),
            (" a", BadCharacter),
            ("a ", BadCharacter),
        ] {
            assert_eq!(SnapshotName::new(bad), Err(why), "{bad:?}");
        }
    }
}
