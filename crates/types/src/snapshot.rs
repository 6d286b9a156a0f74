//! Which snapshot: the moment of a datastore that a snapshot shows.

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
}
