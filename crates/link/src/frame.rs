//! Frames: the layout of messages in a stream of bytes. Pure: no socket, no clock, no thread.
//!
//! ```text
//! prefix       20  magic and version "LSF4", header bytes u32, payload bytes u32, place of the payload
//!                  in its block u32, CRC-32 of these sixteen bytes; all little endian
//! header           opaque to this crate
//! sum          16  over prefix and header
//! payload
//! payload sum  16  over the payload; missing when the payload is empty
//! ```
//!
//! The sum of the payload follows the payload. So both ends hash a large payload piece by piece while earlier pieces
//! are on their way. The payload is cut at the borders of the blocks of its file, so the frame says where in its block the
//! first byte lies.
//!
//! `sums.rs` makes the sums, with and without TLS.
//!
//! Invariants: a frame outside the bounds causes no allocation and no wait. The receiver trusts the lengths only after
//! the CRC of the prefix matches, and the other bytes only after their sum matches.

use std::sync::Arc;

use lockstep_sums::{BlockOffset, PieceSums, SumKey, SummedBytes};
use lockstep_types::Hash128;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};

use crate::payload::Payload;
use crate::sums::{Hashing, PayloadHash, PayloadHasher, PayloadSums, SumMethod, Sums};

/// Most header bytes of a frame.
pub const HEADER_BYTES_MAX: usize = 128 << 10;

/// Most payload bytes of a frame: the largest write and one block.
pub const PAYLOAD_BYTES_MAX: usize = WRITE_BYTES_MAX + BLOCK_BYTES;

/// Most bytes of a whole frame.
pub const FRAME_BYTES_MAX: usize =
    PREFIX_BYTES + HEADER_BYTES_MAX + SUM_BYTES + PAYLOAD_BYTES_MAX + SUM_BYTES;

/// First bytes of every frame. The last byte is the version of the layout.
const MAGIC: [u8; 4] = *b"LSF4";
const PREFIX_BYTES: usize = 20;
const PREFIX_FIELD_BYTES: usize = 16;
const SUM_BYTES: usize = 16;

/// A fault of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stream is not at the start of a frame of this version.
    #[error(
        "no frame starts with {found:02x?}: the bytes were altered on the way, or have an unknown version"
    )]
    Magic {
        /// The bytes in place of the magic.
        found: [u8; 4],
    },
    /// The lengths do not match their CRC.
    #[error("the lengths of a frame were altered on the way (their CRC-32 does not match)")]
    Prefix,
    /// The header is above [`HEADER_BYTES_MAX`].
    #[error("a header of {bytes} bytes is above the limit of {HEADER_BYTES_MAX}")]
    HeaderTooLarge {
        /// The length.
        bytes: usize,
    },
    /// The payload is above [`PAYLOAD_BYTES_MAX`].
    #[error("a payload of {bytes} bytes is above the limit of {PAYLOAD_BYTES_MAX}")]
    PayloadTooLarge {
        /// The length.
        bytes: usize,
    },
    /// The payload begins outside a block.
    #[error("a payload cannot begin at byte {place} of a block")]
    PayloadPlace {
        /// The place.
        place: u32,
    },
    /// The header does not match its sum, or the frame is not the next frame.
    #[error("a frame was altered, repeated or reordered on the way (its sum does not match)")]
    Sum,
    /// The payload does not match its sum, or belongs to another frame.
    #[error("a payload was altered on the way (its sum does not match)")]
    Payload,
}

/// Encodes the frames of one direction, in order.
pub struct Sealer(Sums);

impl Sealer {
    /// A sealer at the first frame of a direction.
    pub fn new(method: SumMethod) -> Self {
        Self(Sums::new(method))
    }

    /// The hash function for payloads.
    pub const fn hashing(&self) -> &Hashing {
        self.0.hashing()
    }

    /// Appends the part of a frame before its payload to `out`. The caller must append the payload, and then, unless
    /// the payload is empty, its sum, made by the returned value.
    ///
    /// # Errors
    /// The frame is outside the bounds; `out` is unchanged.
    pub fn seal(
        &mut self,
        out: &mut Vec<u8>,
        header: &[u8],
        payload: Payload<'_>,
    ) -> Result<PayloadSums, FrameError> {
        let span = FrameSpan {
            header_bytes: header.len(),
            payload_bytes: payload.bytes.len(),
            payload_start: payload.start,
        };
        let prefix = span.checked()?.prefix();
        let start = out.len();
        out.reserve(span.head_bytes());
        out.extend_from_slice(&prefix);
        out.extend_from_slice(header);
        let head = out.get(start..).unwrap_or_default();
        let (Hash128(sum), payload) = self.0.next(head);
        out.extend_from_slice(&sum);
        Ok(payload)
    }
}

/// The progress of opening a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenProgress {
    /// The opener needs at least so many bytes, counted from the start of the frame.
    Need(usize),
    /// The whole frame is available and verified.
    Frame(FrameSpan),
}

/// Decodes and verifies the frames of one direction, in order.
pub struct Opener {
    sums: Sums,
    /// The frame whose head is verified and whose payload is still arriving.
    arriving: Option<Arriving>,
    /// The sums of the pieces of the last payload.
    pieces: Option<PieceSums>,
}

/// A frame that is arriving.
struct Arriving {
    span: FrameSpan,
    sums: PayloadSums,
    /// A payload that arrives at once needs no hasher.
    hasher: Option<PayloadHasher>,
}

impl Opener {
    /// An opener at the first frame of a direction.
    pub fn new(method: SumMethod) -> Self {
        Self {
            sums: Sums::new(method),
            arriving: None,
            pieces: None,
        }
    }

    /// Has the payloads of the next frames hashed with this key. Without effect on a connection in clear.
    pub fn use_key(&mut self, key: &Arc<SumKey>) {
        self.sums.use_key(key);
    }

    /// Examines `bytes`, which begin at the end of the previous frame, or at the start of the stream. Repeated calls
    /// for one frame hash each byte once.
    ///
    /// # Errors
    /// The bytes are not a valid frame. The direction is unusable from now on.
    pub fn open(&mut self, bytes: &[u8]) -> Result<OpenProgress, FrameError> {
        let mut arriving = match self.arriving.take() {
            Some(arriving) => arriving,
            None => match self.open_head(bytes)? {
                OpenHead::Whole(arriving) => arriving,
                OpenHead::Need(bytes) => return Ok(OpenProgress::Need(bytes)),
            },
        };
        let span = arriving.span;
        if self.advance(&mut arriving, bytes)? {
            return Ok(OpenProgress::Frame(span));
        }
        self.arriving = Some(arriving);
        Ok(OpenProgress::Need(span.frame_bytes()))
    }

    fn open_head(&mut self, bytes: &[u8]) -> Result<OpenHead, FrameError> {
        let Some(prefix) = bytes.first_chunk() else {
            return Ok(OpenHead::Need(PREFIX_BYTES));
        };
        let span = FrameSpan::parse(prefix)?;
        let Some((head, found)) = span.head(bytes) else {
            return Ok(OpenHead::Need(span.head_bytes()));
        };
        let (sum, sums) = self.sums.next(head);
        if sum != Hash128(*found) {
            return Err(FrameError::Sum);
        }
        Ok(OpenHead::Whole(Arriving {
            span,
            sums,
            hasher: None,
        }))
    }

    /// Hashes the available part of the payload. Returns true when the whole payload is available and matches its sum.
    fn advance(&mut self, frame: &mut Arriving, bytes: &[u8]) -> Result<bool, FrameError> {
        let body = bytes.get(frame.span.head_bytes()..).unwrap_or_default();
        let whole = body.split_at_checked(frame.span.payload_bytes);
        let (payload, sum) = match whole.map(|(payload, rest)| (payload, rest.first_chunk())) {
            Some(([], _)) => {
                self.pieces = None;
                return Ok(true);
            }
            Some((payload, Some(sum))) => (payload, sum),
            _ => {
                frame.hash_arrived(self.sums.hashing(), body);
                return Ok(false);
            }
        };
        let (hash, pieces) = frame.hash_rest(self.sums.hashing(), payload);
        self.pieces = pieces;
        if frame.sums.sum(&hash) == Hash128(*sum) {
            return Ok(true);
        }
        Err(FrameError::Payload)
    }

    /// The frame that [`Self::open`] has returned last, at the start of the same bytes; `None` if `bytes` is too short.
    pub fn frame<'a>(&'a self, span: &FrameSpan, bytes: &'a [u8]) -> Option<FrameRef<'a>> {
        let (header, payload) = span.split(bytes)?;
        let payload = match &self.pieces {
            Some(pieces) => pieces.with(payload),
            None => SummedBytes::without(payload),
        };
        Some(FrameRef { header, payload })
    }
}

impl Arriving {
    /// Hashes the arrived part of a payload.
    fn hash_arrived(&mut self, hashing: &Hashing, body: &[u8]) {
        let available = body.len().min(self.span.payload_bytes);
        let arrived = body.get(..available).unwrap_or_default();
        if arrived.len() >= BLOCK_BYTES {
            let hasher = self
                .hasher
                .get_or_insert_with(|| hashing.hasher(self.span.payload_start));
            hasher.advance(arrived);
        }
    }

    fn hash_rest(&mut self, hashing: &Hashing, bytes: &[u8]) -> (PayloadHash, Option<PieceSums>) {
        let start = self.span.payload_start;
        let hasher = self.hasher.take();
        hasher
            .unwrap_or_else(|| hashing.hasher(start))
            .finish(bytes)
    }
}

/// The progress of opening the head of a frame.
#[expect(clippy::large_enum_variant, reason = "a frame costs no allocation")]
enum OpenHead {
    /// The head is available and verified.
    Whole(Arriving),
    /// The opener needs at least so many bytes.
    Need(usize),
}

/// The lengths of a frame, within the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    header_bytes: usize,
    payload_bytes: usize,
    payload_start: BlockOffset,
}

impl FrameSpan {
    /// Bytes of the whole frame.
    pub const fn frame_bytes(&self) -> usize {
        let payload_sum = if self.payload_bytes == 0 {
            0
        } else {
            SUM_BYTES
        };
        self.head_bytes() + self.payload_bytes + payload_sum
    }

    /// Header and payload of the frame at the start of `bytes`; `None` if `bytes` is too short.
    fn split<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let (_, rest) = bytes.split_at_checked(PREFIX_BYTES)?;
        let (header, rest) = rest.split_at_checked(self.header_bytes)?;
        let (_, rest) = rest.split_at_checked(SUM_BYTES)?;
        Some((header, rest.get(..self.payload_bytes)?))
    }

    /// Bytes of the frame before its payload.
    const fn head_bytes(&self) -> usize {
        PREFIX_BYTES + self.header_bytes + SUM_BYTES
    }

    /// The bytes that the sum covers, and the sum.
    fn head<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8; SUM_BYTES])> {
        bytes.get(..self.head_bytes())?.split_last_chunk()
    }

    fn prefix(&self) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        let place = u32::from(self.payload_start.get());
        let lengths = [self.header_bytes, self.payload_bytes];
        let words = std::iter::once(MAGIC)
            .chain(lengths.map(length_word))
            .chain([place.to_le_bytes()]);
        let (slots, _) = prefix.as_chunks_mut();
        for (slot, word) in slots.iter_mut().zip(words) {
            *slot = word;
        }
        let [fields @ .., _, _, _, _] = &prefix;
        let crc = crc32fast::hash(fields).to_le_bytes();
        if let Some(slot) = prefix.last_chunk_mut() {
            *slot = crc;
        }
        prefix
    }

    fn parse(prefix: &[u8; PREFIX_BYTES]) -> Result<Self, FrameError> {
        let [magic, header, payload, place, crc] = prefix.as_chunks::<4>().0 else {
            return Err(FrameError::Prefix);
        };
        if *magic != MAGIC {
            return Err(FrameError::Magic { found: *magic });
        }
        let fields = prefix.get(..PREFIX_FIELD_BYTES).unwrap_or_default();
        if crc32fast::hash(fields) != u32::from_le_bytes(*crc) {
            return Err(FrameError::Prefix);
        }
        let place = u32::from_le_bytes(*place);
        let span = Self {
            header_bytes: length_of(*header),
            payload_bytes: length_of(*payload),
            payload_start: BlockOffset::new(place).ok_or(FrameError::PayloadPlace { place })?,
        };
        span.checked()
    }

    /// The lengths, if they are within the bounds.
    const fn checked(self) -> Result<Self, FrameError> {
        if self.header_bytes > HEADER_BYTES_MAX {
            return Err(FrameError::HeaderTooLarge {
                bytes: self.header_bytes,
            });
        }
        if self.payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameError::PayloadTooLarge {
                bytes: self.payload_bytes,
            });
        }
        Ok(self)
    }
}

/// The encoding of a length. The caller has checked that the length is far below 2³².
fn length_word(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn length_of(word: [u8; 4]) -> usize {
    usize::try_from(u32::from_le_bytes(word)).unwrap_or(usize::MAX)
}

/// A received and verified frame, borrowed from the receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// The sender's header.
    pub header: &'a [u8],
    /// The sender's payload, with the sums of its pieces if the link has made them.
    pub payload: SummedBytes<'a>,
}

#[cfg(test)]
#[path = "frame/tests.rs"]
mod tests;
