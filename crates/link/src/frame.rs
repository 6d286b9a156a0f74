//! Frames: how messages are laid on a stream of bytes. Pure: no socket, no clock, no thread.
//!
//! ```text
//! prefix       16  magic and version "LSF2", header bytes u32, payload bytes u32, CRC-32 of those
//!                  twelve bytes; all little endian
//! header           opaque to this crate
//! sum          16  BLAKE3 over all of the above
//! payload
//! payload sum  16  BLAKE3 over the payload; missing when there is none
//! ```
//!
//! The sum of the payload comes behind it, so that both ends hash a large payload piece by piece
//! while the pieces before are on their way.
//!
//! With a key (a connection whose encryption is off) both sums are keyed and bound to the number of
//! the frame, so that nobody without the key can alter, repeat, drop or reorder frames unnoticed.
//! Without one (inside TLS) they find what memory and cables alter.
//!
//! Invariants: nothing is allocated or awaited for a frame outside the bounds; lengths are trusted
//! only once the CRC of the prefix fits, the rest only once its sum does.

use blake3::{Hash, Hasher};
use lockstep_types::Hash128;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};

/// Most header bytes of a frame.
pub const HEADER_BYTES_MAX: usize = 128 << 10;

/// Most payload bytes of a frame: the largest write and one block.
pub const PAYLOAD_BYTES_MAX: usize = WRITE_BYTES_MAX + BLOCK_BYTES;

/// Most bytes of a whole frame.
pub const FRAME_BYTES_MAX: usize =
    PREFIX_BYTES + HEADER_BYTES_MAX + SUM_BYTES + PAYLOAD_BYTES_MAX + SUM_BYTES;

/// First bytes of every frame; the last one is the version of the layout.
const MAGIC: [u8; 4] = *b"LSF2";
const PREFIX_BYTES: usize = 16;
const PREFIX_FIELD_BYTES: usize = 12;
const SUM_BYTES: usize = 16;

/// A payload that arrives bit by bit is hashed in steps of this, as BLAKE3 is fastest with large
/// pieces that lie at multiples of their size.
const HASH_STEP_BYTES: usize = 64 << 10;

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stream is not at the start of a frame of this version.
    #[error("no frame starts with {found:02x?}: altered on the way, or an unknown version")]
    Magic {
        /// The bytes in place of the magic.
        found: [u8; 4],
    },
    /// The lengths fail their CRC.
    #[error("the lengths of a frame were altered on the way (CRC-32 does not fit)")]
    Prefix,
    /// The header is over [`HEADER_BYTES_MAX`].
    #[error("a header of {bytes} bytes is over the limit of {HEADER_BYTES_MAX}")]
    HeaderTooLarge {
        /// Its length.
        bytes: usize,
    },
    /// The payload is over [`PAYLOAD_BYTES_MAX`].
    #[error("a payload of {bytes} bytes is over the limit of {PAYLOAD_BYTES_MAX}")]
    PayloadTooLarge {
        /// Its length.
        bytes: usize,
    },
    /// The header fails the sum, or the frame is not the next one.
    #[error("a frame was altered, repeated or reordered on the way (BLAKE3 sum does not fit)")]
    Sum,
    /// The payload fails its sum, or belongs to another frame.
    #[error("a payload was altered on the way (its BLAKE3 sum does not fit)")]
    Payload,
}

/// The secret of one direction of a connection that is not encrypted.
#[derive(Clone)]
pub struct FrameKey(pub(crate) [u8; 32]);

impl FrameKey {
    /// The key made of these bytes, which nobody but the two nodes may know.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Computes the sums of one direction, in order.
struct Sums {
    key: Option<FrameKey>,
    frames: u64,
}

impl Sums {
    const fn new(key: Option<FrameKey>) -> Self {
        Self { key, frames: 0 }
    }

    /// The sum over the head of the next frame, and what its payload's sum will be made with.
    fn next(&mut self, head: &[u8]) -> (Hash128, PayloadSums) {
        let payload = PayloadSums {
            key: self.key.clone(),
            frame: self.frames,
        };
        self.frames = self.frames.wrapping_add(1);
        let sum = payload.keyed(HEAD, head);
        (sum.unwrap_or_else(|| Hash128::of(head)), payload)
    }
}

/// What keyed sums begin with, so that none can stand in for the other.
const HEAD: [u8; 1] = [0];
const PAYLOAD: [u8; 1] = [1];

/// Makes the sum of the payload of one frame.
#[derive(Clone)]
pub struct PayloadSums {
    key: Option<FrameKey>,
    frame: u64,
}

impl PayloadSums {
    /// The sum of a payload whose BLAKE3 is `hash`.
    pub fn sum(&self, hash: &Hash) -> Hash128 {
        self.keyed(PAYLOAD, hash.as_bytes())
            .unwrap_or_else(|| Hash128::from(*hash))
    }

    fn keyed(&self, kind: [u8; 1], bytes: &[u8]) -> Option<Hash128> {
        let FrameKey(key) = self.key.as_ref()?;
        let mut hasher = Hasher::new_keyed(key);
        hasher.update(&kind).update(&self.frame.to_le_bytes());
        Some(Hash128::from(hasher.update(bytes).finalize()))
    }
}

/// Lays the frames of one direction on the wire, in order.
pub struct Sealer(Sums);

impl Sealer {
    /// A sealer at the first frame of a direction.
    pub const fn new(key: Option<FrameKey>) -> Self {
        Self(Sums::new(key))
    }

    /// Appends what goes before the payload of a frame to `out`. The payload must follow and then,
    /// unless it is empty, its sum, made by what this returns.
    ///
    /// # Errors
    /// When the frame is outside the bounds; then `out` is as it was.
    pub fn seal(
        &mut self,
        out: &mut Vec<u8>,
        header: &[u8],
        payload_bytes: usize,
    ) -> Result<PayloadSums, FrameError> {
        let span = FrameSpan {
            header_bytes: header.len(),
            payload_bytes,
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

/// How far a frame has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least so many bytes, from the start of the frame, are needed to go on.
    Need(usize),
    /// All of it is there and verified.
    Frame(FrameSpan),
}

/// Takes the frames of one direction off the wire, in order.
pub struct Opener {
    sums: Sums,
    /// The frame whose head was verified and whose payload is still arriving.
    arriving: Option<Arriving>,
    /// Of the payload that is arriving.
    hasher: Hasher,
}

/// A frame on its way in.
struct Arriving {
    span: FrameSpan,
    sums: PayloadSums,
    /// Bytes of the payload that were hashed.
    hashed: usize,
}

impl Opener {
    /// An opener at the first frame of a direction.
    pub fn new(key: Option<FrameKey>) -> Self {
        Self {
            sums: Sums::new(key),
            arriving: None,
            hasher: Hasher::new(),
        }
    }

    /// Examines `bytes`, which start where the last frame ended (at the first, at the start of the
    /// stream). Each byte is hashed once, however often this is called for one frame.
    ///
    /// # Errors
    /// When these bytes are no right frame. The direction is unusable then.
    pub fn open(&mut self, bytes: &[u8]) -> Result<Progress, FrameError> {
        let mut arriving = match self.arriving.take() {
            Some(arriving) => arriving,
            None => match self.open_head(bytes)? {
                Head::Whole(arriving) => arriving,
                Head::Need(bytes) => return Ok(Progress::Need(bytes)),
            },
        };
        let span = arriving.span;
        if self.advance(&mut arriving, bytes)? {
            return Ok(Progress::Frame(span));
        }
        self.arriving = Some(arriving);
        Ok(Progress::Need(span.frame_bytes()))
    }

    fn open_head(&mut self, bytes: &[u8]) -> Result<Head, FrameError> {
        let Some(prefix) = bytes.first_chunk() else {
            return Ok(Head::Need(PREFIX_BYTES));
        };
        let span = FrameSpan::parse(prefix)?;
        let Some((head, found)) = span.head(bytes) else {
            return Ok(Head::Need(span.head_bytes()));
        };
        let (sum, sums) = self.sums.next(head);
        if sum != Hash128(*found) {
            return Err(FrameError::Sum);
        }
        self.hasher.reset();
        let hashed = 0;
        Ok(Head::Whole(Arriving { span, sums, hashed }))
    }

    /// Takes in what there is of the payload. True when all of it is there, and as it was sent.
    fn advance(&mut self, frame: &mut Arriving, bytes: &[u8]) -> Result<bool, FrameError> {
        let body = bytes.get(frame.span.head_bytes()..).unwrap_or_default();
        let Some((payload, rest)) = body.split_at_checked(frame.span.payload_bytes) else {
            self.hash_up_to(frame, body, body.len() / HASH_STEP_BYTES * HASH_STEP_BYTES);
            return Ok(false);
        };
        if payload.is_empty() {
            return Ok(true);
        }
        self.hash_up_to(frame, payload, payload.len());
        match rest.first_chunk() {
            None => Ok(false),
            Some(sum) if frame.sums.sum(&self.hasher.finalize()) == Hash128(*sum) => Ok(true),
            Some(_) => Err(FrameError::Payload),
        }
    }

    fn hash_up_to(&mut self, frame: &mut Arriving, payload: &[u8], end: usize) {
        if let Some(piece) = payload.get(frame.hashed..end) {
            self.hasher.update(piece);
            frame.hashed = end;
        }
    }
}

/// What is known of the head of a frame.
enum Head {
    /// It is there and verified.
    Whole(Arriving),
    /// At least so many bytes are needed.
    Need(usize),
}

/// The lengths of a frame, within the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    header_bytes: usize,
    payload_bytes: usize,
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

    /// The parts of the frame at the start of `bytes`; `None` if there are too few.
    pub fn split<'a>(&self, bytes: &'a [u8]) -> Option<FrameRef<'a>> {
        let (_, rest) = bytes.split_at_checked(PREFIX_BYTES)?;
        let (header, rest) = rest.split_at_checked(self.header_bytes)?;
        let (_, rest) = rest.split_at_checked(SUM_BYTES)?;
        Some(FrameRef {
            header,
            payload: rest.get(..self.payload_bytes)?,
        })
    }

    /// Bytes of the frame before its payload.
    const fn head_bytes(&self) -> usize {
        PREFIX_BYTES + self.header_bytes + SUM_BYTES
    }

    /// What the sum covers, and the sum.
    fn head<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8; SUM_BYTES])> {
        bytes.get(..self.head_bytes())?.split_last_chunk()
    }

    fn prefix(&self) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        let lengths = [self.header_bytes, self.payload_bytes];
        let words = std::iter::once(MAGIC).chain(lengths.map(length_word));
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
        let [magic, header, payload, crc] = prefix.as_chunks::<4>().0 else {
            return Err(FrameError::Prefix);
        };
        if *magic != MAGIC {
            return Err(FrameError::Magic { found: *magic });
        }
        let fields = prefix.get(..PREFIX_FIELD_BYTES).unwrap_or_default();
        if crc32fast::hash(fields) != u32::from_le_bytes(*crc) {
            return Err(FrameError::Prefix);
        }
        let span = Self {
            header_bytes: length_of(*header),
            payload_bytes: length_of(*payload),
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

/// A length as it is written; lengths are checked to be far below 2³² before.
fn length_word(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn length_of(word: [u8; 4]) -> usize {
    usize::try_from(u32::from_le_bytes(word)).unwrap_or(usize::MAX)
}

/// A received frame, verified, borrowed from the buffer it arrived in.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// What the sender gave as header.
    pub header: &'a [u8],
    /// What the sender gave as payload.
    pub payload: &'a [u8],
}

#[cfg(test)]
#[path = "frame/tests.rs"]
mod tests;
