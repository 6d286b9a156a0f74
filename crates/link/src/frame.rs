//! Frames: how messages are laid on a stream of bytes. Pure: no socket, no clock, no thread.
//!
//! ```text
//! prefix  20  magic and version "LSF1", header bytes u32, hashes u32, payload bytes u32,
//!             CRC-32 of those sixteen bytes; all little endian
//! header      opaque to this crate
//! hashes      16 bytes each: one for each 4 KiB block that the payload touches
//! sum     16  BLAKE3 over all of the above
//! payload     covered by the hashes
//! ```
//!
//! So each byte of a payload is hashed once, by the caller, who needs those hashes anyway; the
//! receiver hashes it once, by [`FrameRef::verify_payload`], when and where it suits. A payload
//! without that call is not verified.
//!
//! With a key (a connection whose encryption is off) the sum is keyed and starts with the number of
//! the frame, so that nobody without the key can alter, repeat, drop or reorder frames unnoticed.
//! Without one (inside TLS) it finds what memory and cables alter.
//!
//! Invariants: nothing is allocated or awaited for a frame outside the bounds; lengths are trusted
//! only once the CRC of the prefix fits, header and hashes only once the sum does.

use blake3::Hasher;
use lockstep_types::hash::block_pieces;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use lockstep_types::{BlockHash, FrameHash};

/// Most header bytes of a frame.
pub const HEADER_BYTES_MAX: usize = 128 << 10;

/// Most payload bytes of a frame: the largest write and one block.
pub const PAYLOAD_BYTES_MAX: usize = WRITE_BYTES_MAX + BLOCK_BYTES;

/// Most block hashes of a frame: a payload may touch one block more than it fills.
pub const HASHES_MAX: usize = PAYLOAD_BYTES_MAX.div_ceil(BLOCK_BYTES) + 1;

/// Most bytes of a whole frame.
pub const FRAME_BYTES_MAX: usize =
    PREFIX_BYTES + HEADER_BYTES_MAX + HASHES_MAX * HASH_BYTES + HASH_BYTES + PAYLOAD_BYTES_MAX;

/// First bytes of every frame; the last one is the version of the layout.
const MAGIC: [u8; 4] = *b"LSF1";
const PREFIX_BYTES: usize = 20;
const PREFIX_FIELD_BYTES: usize = 16;
const HASH_BYTES: usize = 16;

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
    /// No placement of the payload in a file touches that many blocks.
    #[error("{hashes} block hashes cannot cover a payload of {payload_bytes} bytes")]
    HashCount {
        /// Hashes given.
        hashes: usize,
        /// Bytes of the payload.
        payload_bytes: usize,
    },
    /// Header or hashes fail the sum, or the frame is not the next one.
    #[error("a frame was altered, repeated or reordered on the way (BLAKE3 sum does not fit)")]
    Sum,
    /// A block of the payload fails its hash.
    #[error("block {block} of a payload was altered on the way (its BLAKE3 hash does not fit)")]
    Payload {
        /// Which, counted from the start of the payload.
        block: usize,
    },
}

/// The secret of one direction of a connection that is not encrypted.
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
    fn next(&mut self, head: &[u8]) -> FrameHash {
        let Some(FrameKey(key)) = &self.key else {
            return FrameHash::of(head);
        };
        let mut hasher = Hasher::new_keyed(key);
        hasher.update(&self.frames.to_le_bytes()).update(head);
        self.frames = self.frames.wrapping_add(1);
        let mut sum = [0; HASH_BYTES];
        hasher.finalize_xof().fill(&mut sum);
        FrameHash(sum)
    }
}

/// Lays the frames of one direction on the wire, in order.
pub struct Sealer(Sums);

impl Sealer {
    /// A sealer at the first frame of a direction.
    pub const fn new(key: Option<FrameKey>) -> Self {
        Self(Sums { key, frames: 0 })
    }

    /// Appends everything of a frame but its payload to `out`; the payload must follow.
    ///
    /// # Errors
    /// When the frame is outside the bounds; then `out` is as it was.
    pub fn seal(
        &mut self,
        out: &mut Vec<u8>,
        header: &[u8],
        hashes: &[BlockHash],
        payload: &[u8],
    ) -> Result<(), FrameError> {
        let span = FrameSpan {
            header_bytes: header.len(),
            hashes: hashes.len(),
            payload_bytes: payload.len(),
        };
        let prefix = span.checked()?.prefix();
        let start = out.len();
        out.reserve(span.head_bytes());
        out.extend_from_slice(&prefix);
        out.extend_from_slice(header);
        for BlockHash(hash) in hashes {
            out.extend_from_slice(hash);
        }
        let FrameHash(sum) = self.0.next(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&sum);
        Ok(())
    }
}

/// How far a frame has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least so many bytes, from the start of the frame, are needed to go on.
    Need(usize),
    /// All of it is there, header and hashes verified.
    Frame(FrameSpan),
}

/// Takes the frames of one direction off the wire, in order.
pub struct Opener {
    sums: Sums,
    verified: Option<FrameSpan>,
}

impl Opener {
    /// An opener at the first frame of a direction.
    pub const fn new(key: Option<FrameKey>) -> Self {
        Self {
            sums: Sums { key, frames: 0 },
            verified: None,
        }
    }

    /// Examines `bytes`, which start where the last frame ended (at the first, at the start of the
    /// stream). Each sum is computed once, however often this is called for one frame.
    ///
    /// # Errors
    /// When these bytes are no right frame. The direction is unusable then.
    pub fn open(&mut self, bytes: &[u8]) -> Result<Progress, FrameError> {
        let span = match self.verified {
            Some(span) => span,
            None => match self.open_head(bytes)? {
                Progress::Frame(span) => span,
                need @ Progress::Need(_) => return Ok(need),
            },
        };
        if bytes.len() < span.frame_bytes() {
            self.verified = Some(span);
            return Ok(Progress::Need(span.frame_bytes()));
        }
        self.verified = None;
        Ok(Progress::Frame(span))
    }

    fn open_head(&mut self, bytes: &[u8]) -> Result<Progress, FrameError> {
        let Some(prefix) = bytes.first_chunk() else {
            return Ok(Progress::Need(PREFIX_BYTES));
        };
        let span = FrameSpan::parse(prefix)?;
        let Some((head, sum)) = span.head(bytes) else {
            return Ok(Progress::Need(span.head_bytes()));
        };
        if self.sums.next(head) != FrameHash(*sum) {
            return Err(FrameError::Sum);
        }
        Ok(Progress::Frame(span))
    }
}

/// The lengths of a frame, within the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    header_bytes: usize,
    hashes: usize,
    payload_bytes: usize,
}

impl FrameSpan {
    /// Bytes of the whole frame.
    pub const fn frame_bytes(&self) -> usize {
        self.head_bytes() + self.payload_bytes
    }

    /// The parts of the frame at the start of `bytes`; `None` if there are too few.
    pub fn split<'a>(&self, bytes: &'a [u8]) -> Option<FrameRef<'a>> {
        let (_, rest) = bytes.split_at_checked(PREFIX_BYTES)?;
        let (header, rest) = rest.split_at_checked(self.header_bytes)?;
        let (hashes, rest) = rest.split_at_checked(self.hashes * HASH_BYTES)?;
        let (_, rest) = rest.split_at_checked(HASH_BYTES)?;
        Some(FrameRef {
            header,
            hashes: HashList(hashes.as_chunks().0),
            payload: rest.get(..self.payload_bytes)?,
        })
    }

    /// Bytes of the frame before its payload.
    const fn head_bytes(&self) -> usize {
        PREFIX_BYTES + self.header_bytes + self.hashes * HASH_BYTES + HASH_BYTES
    }

    /// What the sum covers, and the sum.
    fn head<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8; HASH_BYTES])> {
        bytes.get(..self.head_bytes())?.split_last_chunk()
    }

    fn prefix(&self) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        let lengths = [self.header_bytes, self.hashes, self.payload_bytes];
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
        let [magic, header, hashes, payload, crc] = prefix.as_chunks::<4>().0 else {
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
            hashes: length_of(*hashes),
            payload_bytes: length_of(*payload),
        };
        span.checked()
    }

    /// The lengths, if they are within the bounds.
    fn checked(self) -> Result<Self, FrameError> {
        let Self {
            header_bytes,
            hashes,
            payload_bytes,
        } = self;
        if header_bytes > HEADER_BYTES_MAX {
            return Err(FrameError::HeaderTooLarge {
                bytes: header_bytes,
            });
        }
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameError::PayloadTooLarge {
                bytes: payload_bytes,
            });
        }
        if !may_cover(hashes, payload_bytes) {
            return Err(FrameError::HashCount {
                hashes,
                payload_bytes,
            });
        }
        Ok(self)
    }
}

/// Whether some placement of the payload touches that many blocks. Hashes without a payload are
/// welcome: they say what the other side should hold.
fn may_cover(hashes: usize, payload_bytes: usize) -> bool {
    if payload_bytes == 0 {
        return hashes <= HASHES_MAX;
    }
    let fewest = payload_bytes.div_ceil(BLOCK_BYTES);
    let most = (payload_bytes - 1).div_ceil(BLOCK_BYTES) + 1;
    (fewest..=most).contains(&hashes)
}

/// A length as it is written; lengths are checked to be far below 2³² before.
fn length_word(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn length_of(word: [u8; 4]) -> usize {
    usize::try_from(u32::from_le_bytes(word)).unwrap_or(usize::MAX)
}

/// A received frame, borrowed from the buffer it arrived in.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// The sender's header, verified.
    pub header: &'a [u8],
    /// The sender's block hashes, verified.
    pub hashes: HashList<'a>,
    /// The payload, **not** verified until [`FrameRef::verify_payload`] is called.
    pub payload: &'a [u8],
}

impl FrameRef<'_> {
    /// Verifies the payload, which belongs at file offset `offset`, against the hashes.
    ///
    /// # Errors
    /// [`FrameError::Payload`] or [`FrameError::HashCount`]; the connection is to be given up.
    pub fn verify_payload(&self, offset: u64) -> Result<(), FrameError> {
        verify_payload(offset, self.payload, self.hashes)
    }
}

/// The block hashes of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashList<'a>(&'a [[u8; HASH_BYTES]]);

impl HashList<'_> {
    /// How many there are.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hashes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = BlockHash> + '_ {
        self.0.iter().map(|hash| BlockHash(*hash))
    }
}

/// Verifies `payload`, which belongs at file offset `offset`, against the hashes sent with it: all
/// of it, each block once.
///
/// # Errors
/// [`FrameError::Payload`] names the first block that differs, [`FrameError::HashCount`] says that
/// there is not one hash for each block.
pub fn verify_payload(offset: u64, payload: &[u8], hashes: HashList<'_>) -> Result<(), FrameError> {
    let mut blocks = 0;
    for (piece, expected) in block_pieces(offset, payload).zip(hashes.iter()) {
        if BlockHash::of(piece) != expected {
            return Err(FrameError::Payload { block: blocks });
        }
        blocks += 1;
    }
    if blocks == hashes.len() && blocks == block_pieces(offset, payload).count() {
        return Ok(());
    }
    Err(FrameError::HashCount {
        hashes: hashes.len(),
        payload_bytes: payload.len(),
    })
}

#[cfg(test)]
#[path = "frame/tests.rs"]
mod tests;
