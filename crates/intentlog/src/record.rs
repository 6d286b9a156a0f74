//! The records of the log, and the encoding of each record as a payload.
//!
//! The numbers of the kinds and the encodings of the payloads are part of the format on disk.

use lockstep_types::limits::META_OP_BYTES_MAX;
use lockstep_types::{Ino, MetaOp, Osn, Timestamp};
use postcard::Error;
use serde::{Deserialize, Serialize};

/// Most bytes of a record's payload.
pub const PAYLOAD_BYTES_MAX: usize = META_OP_BYTES_MAX;

/// Size and times of a file, as they were when a snapshot was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldedTimes {
    /// The file.
    pub ino: Ino,
    /// Its size in bytes.
    pub size: u64,
    /// Its time of modification.
    pub mtime: Timestamp,
    /// Its time of change.
    pub ctime: Timestamp,
}

/// Most files in one [`Record::Folded`].
pub const FOLDED_MAX: usize = 1024;

/// One fact that the log remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Primary: this operation is about to be sent to the peer.
    Pending(MetaOp),
    /// Primary: the peer has committed the pending operation. The primary executes it right after.
    Committed {
        /// The operation.
        osn: Osn,
    },
    /// Intent and commit in one: the record of the secondary, and of a primary without a peer.
    CommittedOp(MetaOp),
    /// The peer refused the pending operation, which does not happen.
    RolledBack {
        /// The operation.
        osn: Osn,
    },
    /// The content change (truncate, allocate) of a committed operation is done. Doing it again after a later
    /// write would destroy the written bytes.
    Done {
        /// The operation.
        osn: Osn,
    },
    /// Times of a file whose content was written.
    FileTimes {
        /// The file.
        ino: Ino,
        /// Its time of modification.
        mtime: Timestamp,
        /// Its time of change.
        ctime: Timestamp,
    },
    /// Files that were written since the last checkpoint, at most [`FOLDED_MAX`]: the snapshot of the next operation in the log sees
    /// them so.
    Folded(Vec<FoldedTimes>),
}

impl Record {
    /// The number of the kind of record on disk, from 1 up. 7 is never used again: earlier programs could
    /// read it as another kind.
    pub(crate) const fn kind(&self) -> u8 {
        match self {
            Self::Pending(_) => 1,
            Self::Committed { .. } => 2,
            Self::CommittedOp(_) => 3,
            Self::RolledBack { .. } => 4,
            Self::Done { .. } => 5,
            Self::FileTimes { .. } => 6,
            Self::Folded(_) => 8,
        }
    }

    /// Appends the payload to `to`.
    pub(crate) fn encode(&self, to: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self {
            Self::Pending(op) | Self::CommittedOp(op) => postcard::to_extend(op, to),
            Self::Committed { osn } | Self::RolledBack { osn } | Self::Done { osn } => {
                postcard::to_extend(osn, to)
            }
            Self::FileTimes { ino, mtime, ctime } => postcard::to_extend(&(ino, mtime, ctime), to),
            Self::Folded(files) => postcard::to_extend(files, to),
        }
    }

    /// The record of this kind with this payload.
    pub(crate) fn decode(kind: u8, payload: &[u8]) -> Result<Self, Error> {
        Ok(match kind {
            1 => Self::Pending(whole(payload)?),
            2 => Self::Committed {
                osn: whole(payload)?,
            },
            3 => Self::CommittedOp(whole(payload)?),
            4 => Self::RolledBack {
                osn: whole(payload)?,
            },
            5 => Self::Done {
                osn: whole(payload)?,
            },
            6 => {
                let (ino, mtime, ctime) = whole(payload)?;
                Self::FileTimes { ino, mtime, ctime }
            }
            8 => Self::Folded(whole(payload)?),
            _ => return Err(Error::DeserializeBadEnum),
        })
    }
}

/// Decodes the whole `payload`. Left-over bytes are an error: they mean that another record was written.
fn whole<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(payload)? {
        (value, []) => Ok(value),
        _ => Err(Error::DeserializeBadEncoding),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{FileName, MetaRequest};

    use super::*;

    /// A file whose numbers take the most bytes.
    fn widest() -> FoldedTimes {
        let time = Timestamp {
            secs: i64::MIN,
            nanos: u32::MAX,
        };
        FoldedTimes {
            ino: Ino::new(u64::MAX).unwrap(),
            size: u64::MAX,
            mtime: time,
            ctime: time,
        }
    }

    fn every_kind() -> Vec<Record> {
        let osn = Osn::ZERO.next();
        let op = MetaOp {
            osn,
            time: Timestamp { secs: -1, nanos: 5 },
            request: MetaRequest::Unlink {
                parent: Ino::ROOT,
                name: FileName::new(b"\xff name").unwrap(),
            },
        };
        vec![
            Record::Pending(op.clone()),
            Record::Committed { osn },
            Record::CommittedOp(op),
            Record::RolledBack { osn },
            Record::Done { osn },
            Record::FileTimes {
                ino: Ino::ROOT,
                mtime: Timestamp::default(),
                ctime: Timestamp { secs: 9, nanos: 9 },
            },
            Record::Folded(vec![widest(); FOLDED_MAX]),
        ]
    }

    #[test]
    fn every_kind_round_trips() {
        let kinds = [1, 2, 3, 4, 5, 6, 8];
        for (record, kind) in every_kind().into_iter().zip(kinds) {
            assert_eq!(record.kind(), kind);
            let payload = record.encode(Vec::new()).unwrap();
            assert!(payload.len() <= PAYLOAD_BYTES_MAX);
            assert_eq!(Record::decode(kind, &payload), Ok(record));
        }
    }

    #[test]
    fn what_was_not_written_by_us_is_refused() {
        assert!(Record::decode(0, &[]).is_err());
        assert!(Record::decode(7, &[]).is_err());
        assert!(Record::decode(9, &[]).is_err());
        for record in every_kind() {
            let mut payload = record.encode(Vec::new()).unwrap();
            payload.push(0);
            assert!(Record::decode(record.kind(), &payload).is_err());
            payload.truncate(payload.len() - 2);
            assert!(Record::decode(record.kind(), &payload).is_err());
        }
    }
}
