//! One frame: the bytes of a record in a segment. The crate page has the table of fields.
//!
//! Invariant: this log wrote each valid frame as a whole, at the position that the frame names.

use lockstep_types::Hash128;

use crate::error::LogError;
use crate::position::Position;
use crate::record::{PAYLOAD_BYTES_MAX, Record};

/// Bytes of a frame before its payload.
pub(crate) const FRAME_HEADER_BYTES: usize = 40;

/// Frames start at multiples of this, within the segment and within the positions.
pub(crate) const ALIGN_BYTES: usize = 8;

/// Bytes of a mark: a frame without payload.
pub(crate) const MARK_BYTES: u64 = FRAME_HEADER_BYTES as u64;

/// Kind of the first frame of an opening. Its payload is the position where the previous opening ended.
pub(crate) const KIND_OPENED: u8 = 254;

/// Kind of a mark: only a `durable` position, at the tail, to be overwritten.
pub(crate) const KIND_MARK: u8 = 255;

/// Bytes of the hash at the start of a frame.
const HASH_BYTES: usize = 16;

/// Random bytes of one log.
pub(crate) type Salt = [u8; HASH_BYTES];

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) position: Position,
    pub(crate) durable: Position,
    pub(crate) payload_bytes: usize,
    pub(crate) kind: u8,
}

impl FrameHeader {
    /// Reads a header. The bytes may be no header at all.
    pub(crate) fn parse(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<Self> {
        let [_, _, position, durable, last] = bytes.as_chunks::<8>().0 else {
            return None;
        };
        let [l0, l1, l2, l3, kind, 0, 0, 0] = *last else {
            return None;
        };
        let payload_bytes = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).ok()?;
        (payload_bytes <= PAYLOAD_BYTES_MAX).then_some(Self {
            position: Position::new(u64::from_le_bytes(*position)),
            durable: Position::new(u64::from_le_bytes(*durable)),
            payload_bytes,
            kind,
        })
    }

    /// Bytes of the whole frame.
    pub(crate) const fn frame_bytes(&self) -> usize {
        (FRAME_HEADER_BYTES + self.payload_bytes).next_multiple_of(ALIGN_BYTES)
    }
}

/// An unfinished frame: complete but for position, durable position and hash.
pub(crate) struct Draft {
    bytes: Vec<u8>,
    payload_bytes: u32,
    kind: u8,
}

impl Draft {
    /// A frame for this record.
    pub(crate) fn of(record: &Record) -> Result<Self, LogError> {
        let mut bytes = Vec::with_capacity(256);
        bytes.resize(FRAME_HEADER_BYTES, 0);
        let bytes = record.encode(bytes).map_err(LogError::Encode)?;
        Self::padded(record.kind(), bytes)
    }

    /// The first frame of an opening. The previous opening ended at `before`.
    pub(crate) fn opened(before: Position) -> Result<Self, LogError> {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        bytes.extend_from_slice(&before.get().to_le_bytes());
        Self::padded(KIND_OPENED, bytes)
    }

    /// A mark.
    pub(crate) fn mark() -> Result<Self, LogError> {
        Self::padded(KIND_MARK, vec![0; FRAME_HEADER_BYTES])
    }

    fn padded(kind: u8, mut bytes: Vec<u8>) -> Result<Self, LogError> {
        let payload = bytes.len() - FRAME_HEADER_BYTES;
        let too_large = LogError::TooLarge {
            bytes: payload,
            max: PAYLOAD_BYTES_MAX,
        };
        let Ok(payload_bytes) = u32::try_from(payload) else {
            return Err(too_large);
        };
        if payload > PAYLOAD_BYTES_MAX {
            return Err(too_large);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGN_BYTES), 0);
        Ok(Self {
            bytes,
            payload_bytes,
            kind,
        })
    }

    /// Bytes of the whole frame.
    pub(crate) const fn frame_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of the payload.
    pub(crate) const fn payload_bytes(&self) -> usize {
        self.payload_bytes as usize
    }

    /// Fills in the fields that depend on the place in the log, and returns the bytes to write.
    pub(crate) fn finish(&mut self, salt: &Salt, position: Position, durable: Position) -> &[u8] {
        let fields = salt
            .iter()
            .copied()
            .chain(position.get().to_le_bytes())
            .chain(durable.get().to_le_bytes())
            .chain(self.payload_bytes.to_le_bytes())
            .chain([self.kind]);
        put(&mut self.bytes, fields);
        let hash = Hash128::of(&self.bytes);
        put(&mut self.bytes, hash.0);
        &self.bytes
    }
}

/// Whether these bytes are a whole frame of the log with this salt. `scratch` is working space.
pub(crate) fn checks_out(frame: &[u8], salt: &Salt, scratch: &mut Vec<u8>) -> bool {
    scratch.clear();
    scratch.extend_from_slice(frame);
    put(scratch, salt.iter().copied());
    frame.starts_with(&Hash128::of(scratch).0)
}

fn put(into: &mut [u8], bytes: impl IntoIterator<Item = u8>) {
    for (place, byte) in into.iter_mut().zip(bytes) {
        *place = byte;
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{Generation, Ino, MetaOp, MetaRequest, Osn, Timestamp, XattrMode};

    use super::*;

    const SALT: Salt = [9; 16];

    /// A record with a payload of `bytes` bytes.
    fn long(bytes: usize) -> Record {
        let value = |bytes: usize| {
            Record::CommittedOp(MetaOp {
                osn: Osn::ZERO,
                time: Timestamp::default(),
                request: MetaRequest::SetXattr {
                    ino: Ino::ROOT,
                    name: b"user.a".to_vec(),
                    value: vec![7; bytes],
                    mode: XattrMode::Any,
                },
            })
        };
        let around = value(bytes).encode(Vec::new()).unwrap().len() - bytes;
        value(bytes - around)
    }

    #[test]
    fn the_room_left_for_an_outcome_is_enough() {
        let osn = Osn {
            generation: Generation::new(u64::MAX).unwrap(),
            sequence: u64::MAX,
        };
        for outcome in [Record::Done { osn }, Record::RolledBack { osn }] {
            let frame = Draft::of(&outcome).unwrap().frame_bytes();
            assert!(
                frame <= crate::log::OUTCOME_BYTES_MAX,
                "{outcome:?}: {frame}"
            );
        }
    }

    #[test]
    fn what_was_written_is_read_and_checked() {
        let mut draft = Draft::of(&long(197)).unwrap();
        let bytes = draft
            .finish(&SALT, Position::new(640), Position::new(64))
            .to_vec();
        assert_eq!(bytes.len(), 240);
        let header = FrameHeader::parse(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.frame_bytes(), 240);
        assert_eq!((header.payload_bytes, header.kind), (197, 3));
        assert_eq!(header.position, Position::new(640));
        assert_eq!(header.durable, Position::new(64));
        let mut scratch = Vec::new();
        assert!(checks_out(&bytes, &SALT, &mut scratch));
        assert!(!checks_out(&bytes, &[8; 16], &mut scratch));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(!checks_out(&flipped, &SALT, &mut scratch), "byte {at}");
        }
    }

    #[test]
    fn a_payload_over_the_limit_is_refused() {
        let draft = Draft::of(&long(PAYLOAD_BYTES_MAX + 1));
        assert!(matches!(draft, Err(LogError::TooLarge { .. })));
        let largest = Draft::of(&long(PAYLOAD_BYTES_MAX)).unwrap();
        assert_eq!(largest.payload_bytes(), PAYLOAD_BYTES_MAX);
    }
}
