//! A place in a difference, and the cursor that names one: a reader goes on there after a stop, also on the other node.
//!
//! A difference is told inode by inode, by number. Both nodes have the same numbers, cookies and names, so a place is the same on both.

use std::fmt;
use std::str::FromStr;

use lockstep_types::{Hash128, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::namespace::record;

/// Bytes of the check of a cursor.
const CHECK_BYTES: usize = 4;

/// How far an inode is told. The stages come in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DiffStage {
    /// Nothing is told.
    Inode,
    /// Kept names of a directory up to this one are told.
    #[serde(with = "serde_bytes")]
    Names(Vec<u8>),
    /// New names of a directory up to this cookie are told.
    Cookies(u64),
    /// Chunks of a file before this number are told.
    Chunks(u64),
    /// Bytes of a file before this offset are told.
    Beyond(u64),
}

/// A place: everything before is told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DiffPlace {
    /// The number of an inode. There may be no such inode.
    pub ino: u64,
    /// How far this inode is told.
    pub stage: DiffStage,
}

impl DiffPlace {
    /// The begin.
    pub const BEGIN: Self = Self::before(0);

    /// The place before an inode.
    pub const fn before(ino: u64) -> Self {
        Self {
            ino,
            stage: DiffStage::Inode,
        }
    }

    /// The stage of an inode from here on.
    pub fn stage_of(&self, ino: u64) -> DiffStage {
        if ino == self.ino {
            self.stage.clone()
        } else {
            DiffStage::Inode
        }
    }
}

/// A snapshot that is told from others of the same number: the number of a snapshot of one copy is given out again after its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMark {
    /// The snapshot.
    pub id: SnapshotId,
    /// When it was made.
    pub time: Timestamp,
}

/// A place in the difference of two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffCursor {
    /// The older snapshot.
    pub from: SnapshotMark,
    /// The newer snapshot; `None` for the present.
    pub to: Option<SnapshotMark>,
    /// The place.
    pub place: DiffPlace,
}

/// A text that is no cursor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no cursor of `lockstep snapshot diff`")]
pub struct NotACursor(String);

fn check_of(body: &[u8]) -> [u8; CHECK_BYTES] {
    let Hash128(hash) = Hash128::of(body);
    let mut check = [0; CHECK_BYTES];
    let parts = check.iter_mut().zip(hash);
    parts.for_each(|(to, from)| *to = from);
    check
}

impl fmt::Display for DiffCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = record::encode(self);
        let check = check_of(&body);
        let mut bytes = check.iter().chain(&body);
        bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for DiffCursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        read(text.trim()).ok_or_else(|| NotACursor(text.to_owned()))
    }
}

fn read(text: &str) -> Option<DiffCursor> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let digits = pair.iter().all(u8::is_ascii_hexdigit).then_some(pair)?;
        u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    let bytes = bytes.filter(|_| rest.is_empty())?;
    let (check, body) = bytes.split_first_chunk::<CHECK_BYTES>()?;
    if *check != check_of(body) {
        return None;
    }
    record::decode(body)
}

#[cfg(test)]
mod tests {
    use lockstep_types::Osn;

    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written_and_a_damaged_one_is_none() {
        let mark = |sequence| SnapshotMark {
            id: SnapshotId::of_operation(Osn {
                sequence,
                ..Osn::ZERO.next()
            }),
            time: Timestamp::default(),
        };
        let stages = [
            DiffStage::Inode,
            DiffStage::Names(b"a\xff".to_vec()),
            DiffStage::Cookies(7),
            DiffStage::Chunks(u64::MAX),
            DiffStage::Beyond(4096),
        ];
        assert!(stages.is_sorted());
        for (to, stage) in [None, Some(mark(9))].into_iter().cycle().zip(stages) {
            let cursor = DiffCursor {
                from: mark(5),
                to,
                place: DiffPlace { ino: 300, stage },
            };
            let text = cursor.to_string();
            assert_eq!(text.parse(), Ok(cursor));
            for at in 0..text.len() {
                let mut other = text.clone().into_bytes();
                other[at] = if other[at] == b'0' { b'1' } else { b'0' };
                let other = String::from_utf8(other).unwrap();
                assert!(other.parse::<DiffCursor>().is_err());
            }
        }
        for bad in ["", "0", "zz", "é", "00000000", "+1+1+1+1+1"] {
            assert!(bad.parse::<DiffCursor>().is_err());
        }
    }
}
