//! Reads the frames of one segment, one after another.
//!
//! Invariants: the reader returns a frame only after the hash matches and the position proves that the frame
//! is the next one. No content of a file makes the reader panic or read outside the segment.

use crate::error::LogError;
use crate::frame::{
    ALIGN_BYTES, FRAME_HEADER_BYTES, FrameHeader, KIND_MARK, KIND_OPENED, Salt, checks_out,
};
use crate::position::Position;
use crate::segment::{FRAMES_START, SegmentFile, SegmentHeader};

/// Bytes read from the file at a time.
const WINDOW_BYTES: usize = 256 << 10;

/// The item at the reader's place.
pub(crate) enum Next<'a> {
    /// A record, which the reader has stepped over.
    Record {
        position: Position,
        durable: Position,
        kind: u8,
        payload: &'a [u8],
    },
    /// An opening began here; the reader has stepped over its frame. The opening synced every record before
    /// it.
    Opened {
        position: Position,
        /// Known durable when the opening began.
        durable: Position,
    },
    /// A mark, at which the reader stays: the tail.
    Mark { durable: Position },
    /// No valid frame.
    Nothing,
}

/// A place in a segment, and a window of bytes around it.
pub(crate) struct Reader {
    segment: SegmentFile,
    salt: Salt,
    limit: u64,
    /// Offset of the next frame in the file.
    pub(crate) offset: u64,
    /// The position that the next frame must have.
    pub(crate) position: Position,
    window: Vec<u8>,
    window_start: u64,
    scratch: Vec<u8>,
}

impl Reader {
    /// Starts at the first frame of a segment.
    pub(crate) const fn new(segment: SegmentFile, header: &SegmentHeader) -> Self {
        Self {
            segment,
            salt: header.salt,
            limit: header.segment_bytes,
            offset: FRAMES_START,
            position: header.base,
            window: Vec::new(),
            window_start: 0,
            scratch: Vec::new(),
        }
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &str {
        &self.segment.path
    }

    /// Reads the next frame and steps over it.
    pub(crate) fn next(&mut self) -> Result<Next<'_>, LogError> {
        let Some(header) = self.valid_frame(self.offset)? else {
            return Ok(Next::Nothing);
        };
        let durable = header.durable;
        match header.kind {
            KIND_OPENED if self.opened_after(&header)? == Some(self.position) => {
                let position = header.position;
                self.position = position;
                self.step(&header);
                Ok(Next::Opened { position, durable })
            }
            KIND_OPENED => Ok(Next::Nothing),
            _ if header.position != self.position => Ok(Next::Nothing),
            KIND_MARK => Ok(Next::Mark { durable }),
            kind => {
                let payload_at = self.offset + FRAME_HEADER_BYTES as u64;
                self.step(&header);
                let payload = self.bytes(payload_at, header.payload_bytes)?;
                Ok(Next::Record {
                    position: header.position,
                    durable,
                    kind,
                    payload: payload.unwrap_or(&[]),
                })
            }
        }
    }

    /// Searches from the reader's place to the end of the segment for a frame that was written when a
    /// position beyond `position` was durable. Returns that durable position.
    pub(crate) fn durable_beyond(
        &mut self,
        position: Position,
    ) -> Result<Option<Position>, LogError> {
        let beyond = |at: u64, durable: u64| durable > position.get() && durable <= at;
        let found = self.find(&beyond)?;
        Ok(found.map(|header| header.durable))
    }

    /// Searches from the reader's place to the end of the segment for a frame at a position beyond
    /// `position`. Returns its position.
    pub(crate) fn written_beyond(
        &mut self,
        position: Position,
    ) -> Result<Option<Position>, LogError> {
        let beyond = |at: u64, _durable: u64| at > position.get();
        let found = self.find(&beyond)?;
        Ok(found.map(|header| header.position))
    }

    /// Searches from the reader's place to the end of the segment for a frame for which `is_sought` is true.
    /// The arguments of `is_sought` are the frame's position and its durable position.
    fn find(
        &mut self,
        is_sought: &impl Fn(u64, u64) -> bool,
    ) -> Result<Option<FrameHeader>, LogError> {
        let mut from = self.offset;
        while from + FRAME_HEADER_BYTES as u64 <= self.limit {
            let room = usize::try_from(self.limit - from).unwrap_or(WINDOW_BYTES);
            let length = room.min(WINDOW_BYTES);
            let bytes = self.bytes(from, length)?.unwrap_or(&[]);
            for at in candidates(bytes, is_sought) {
                if let Some(header) = self.valid_frame(from + at)? {
                    return Ok(Some(header));
                }
            }
            // The next window begins with the last places whose header did not fit in this window.
            from += (length - FRAME_HEADER_BYTES + ALIGN_BYTES) as u64;
        }
        Ok(None)
    }

    /// Bytes of the file; `None` if they do not lie in the segment.
    pub(crate) fn bytes(&mut self, offset: u64, length: usize) -> Result<Option<&[u8]>, LogError> {
        let end = offset.saturating_add(length as u64);
        if end > self.limit {
            return Ok(None);
        }
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || end > window_end {
            self.fill(offset, length)?;
        }
        let at = usize::try_from(offset - self.window_start).unwrap_or(usize::MAX);
        Ok(self.window.get(at..).and_then(|rest| rest.get(..length)))
    }

    fn fill(&mut self, offset: u64, length: usize) -> Result<(), LogError> {
        let room = usize::try_from(self.limit - offset).unwrap_or(usize::MAX);
        self.window.resize(length.max(WINDOW_BYTES).min(room), 0);
        self.window_start = offset;
        let read = self.segment.file.read_at(offset, &mut self.window);
        match read {
            Ok(read) if read == self.window.len() => Ok(()),
            Ok(read) => {
                self.window.clear();
                Err(self.segment.truncated(offset + read as u64, self.limit))
            }
            Err(error) => {
                self.window.clear();
                Err(LogError::io("read", &self.segment.path)(error))
            }
        }
    }

    /// The header of the frame at `offset`, if it is a frame of this log at any position.
    fn valid_frame(&mut self, offset: u64) -> Result<Option<FrameHeader>, LogError> {
        let header = self.bytes(offset, FRAME_HEADER_BYTES)?;
        let header = header.and_then(<[u8]>::first_chunk);
        let Some(header) = header.and_then(FrameHeader::parse) else {
            return Ok(None);
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        let salt = self.salt;
        let frame = self.bytes(offset, header.frame_bytes())?;
        let valid = frame.is_some_and(|frame| checks_out(frame, &salt, &mut scratch));
        self.scratch = scratch;
        Ok(valid.then_some(header))
    }

    /// The end of the previous opening, from the `Opened` frame at the reader's place.
    fn opened_after(&mut self, header: &FrameHeader) -> Result<Option<Position>, LogError> {
        let payload_at = self.offset + FRAME_HEADER_BYTES as u64;
        let payload = self.bytes(payload_at, header.payload_bytes)?;
        let before = payload.and_then(|payload| payload.try_into().ok());
        Ok(before.map(|before| Position::new(u64::from_le_bytes(before))))
    }

    fn step(&mut self, header: &FrameHeader) {
        let bytes = header.frame_bytes() as u64;
        self.offset += bytes;
        self.position = self.position.plus(bytes);
    }
}

/// Places in `bytes` where a sought frame might begin: a cheap check of two words, which zeros and leftovers
/// of earlier uses of the space do not pass.
fn candidates(bytes: &[u8], is_sought: &impl Fn(u64, u64) -> bool) -> Vec<u64> {
    let number = |word: &[u8; 8]| u64::from_le_bytes(*word);
    let words = bytes.as_chunks::<8>().0.windows(FRAME_HEADER_BYTES / 8);
    let sought = |words: &[[u8; 8]]| match words {
        [_, _, at, durable, _] => is_sought(number(at), number(durable)),
        _ => false,
    };
    (0..)
        .step_by(ALIGN_BYTES)
        .zip(words)
        .filter(|(_, words)| sought(words))
        .map(|(at, _)| at)
        .collect()
}
