//! The sums of frames. A sum detects that a frame differs from the sent frame.
//!
//! A connection without encryption has a key for each direction. Its sums are BLAKE3 with the key, bound to the number
//! of the frame: without the key, an attacker cannot alter, repeat, drop or reorder frames unnoticed.
//!
//! Inside TLS, the tag of 128 bits on every record gives the same protection between the nodes. The sum then detects
//! only faults before encryption and after decryption: faulty memory, and bugs of Lockstep. No attacker forges these
//! faults, so the sum is XXH3, at a tenth of the cost (docs/adr/0003). The sum of a payload is made of the sums of its
//! blocks, so that a node which needs those sums hashes no byte twice (docs/adr/0017).

use std::sync::Arc;

use blake3::Hasher;
use lockstep_sums::{BlockOffset, PieceHasher, PieceSums, SumBytes, SumKey};
use lockstep_types::Hash128;
use twox_hash::XxHash3_128;

use crate::payload::Payload;

/// The secret of one direction of an unencrypted connection.
#[derive(Clone)]
pub struct FrameKey([u8; 32]);

impl FrameKey {
    /// The key with these bytes. Only the two nodes may know them.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// The function of the sums of one direction.
#[derive(Clone)]
pub enum SumMethod {
    /// In clear: keyed BLAKE3.
    Keyed(FrameKey),
    /// Inside TLS: XXH3, with this key for the blocks of payloads.
    Blocks(Arc<SumKey>),
}

/// The first byte of a keyed sum's input: a head's sum cannot replace a payload's sum, nor the other way round.
const HEAD: [u8; 1] = [0];
const PAYLOAD: [u8; 1] = [1];

/// Step in which BLAKE3 hashes a payload that arrives or leaves in pieces. BLAKE3 is fastest with large pieces that lie at
/// multiples of their size.
pub(crate) const KEYED_STEP_BYTES: usize = 64 << 10;

/// Computes the sums of one direction, in order.
pub(crate) struct Sums {
    key: Option<FrameKey>,
    hashing: Hashing,
    frames: u64,
}

impl Sums {
    /// Sums from the first frame on.
    pub(crate) fn new(method: SumMethod) -> Self {
        let (key, hashing) = match method {
            SumMethod::Keyed(key) => (Some(key), Hashing::Keyed),
            SumMethod::Blocks(key) => (None, Hashing::Blocks(key)),
        };
        Self {
            key,
            hashing,
            frames: 0,
        }
    }

    /// The sum over the head of the next frame, and the maker of the sum over its payload.
    pub(crate) fn next(&mut self, head: &[u8]) -> (Hash128, PayloadSums) {
        let payload = PayloadSums {
            key: self.key.clone(),
            frame: self.frames,
        };
        self.frames = self.frames.wrapping_add(1);
        let sum = payload.keyed(HEAD, head);
        (sum.unwrap_or_else(|| plain(head)), payload)
    }

    /// Has the payloads from now on hashed with this key, if they are cut into blocks at all.
    pub(crate) fn use_key(&mut self, key: &Arc<SumKey>) {
        self.hashing = self.hashing.with_key(key);
    }

    /// The hash function for the payloads of this direction.
    pub(crate) const fn hashing(&self) -> &Hashing {
        &self.hashing
    }
}

fn plain(bytes: &[u8]) -> Hash128 {
    Hash128(XxHash3_128::oneshot(bytes).to_le_bytes())
}

/// Makes the sum of the payload of one frame.
#[derive(Clone)]
pub struct PayloadSums {
    key: Option<FrameKey>,
    frame: u64,
}

impl PayloadSums {
    /// The sum of a payload. The hash must come from the [`Hashing`] of the same direction.
    pub fn sum(&self, PayloadHash(hash): &PayloadHash) -> Hash128 {
        let [plain, _] = hash.as_chunks().0 else {
            unreachable!("32 bytes are twice 16")
        };
        self.keyed(PAYLOAD, hash).unwrap_or(Hash128(*plain))
    }

    fn keyed(&self, kind: [u8; 1], bytes: &[u8]) -> Option<Hash128> {
        let FrameKey(key) = self.key.as_ref()?;
        let mut hasher = Hasher::new_keyed(key);
        hasher.update(&kind).update(&self.frame.to_le_bytes());
        Some(Hash128::from(hasher.update(bytes).finalize()))
    }
}

/// The hash function for the payloads of a direction.
#[derive(Clone)]
pub enum Hashing {
    /// BLAKE3. The sum adds the key and the number of the frame later.
    Keyed,
    /// XXH3-128 over the XXH3-64 of each piece of the payload. The payload is cut at the borders of the blocks of its file.
    Blocks(Arc<SumKey>),
}

impl Hashing {
    /// The same function with this key, if it has one for blocks.
    #[must_use]
    pub fn with_key(&self, key: &Arc<SumKey>) -> Self {
        match self {
            Self::Keyed => Self::Keyed,
            Self::Blocks(_) => Self::Blocks(Arc::clone(key)),
        }
    }

    /// A hasher for a payload that is not there as a whole yet, or leaves in pieces. The payload begins at `start` in its
    /// block.
    pub fn hasher(&self, start: BlockOffset) -> PayloadHasher {
        match self {
            Self::Keyed => PayloadHasher::Keyed {
                hashed: 0,
                hasher: Box::default(),
            },
            Self::Blocks(key) => PayloadHasher::Blocks(PieceHasher::new(key, start)),
        }
    }

    /// The hash of a payload in one piece. A payload that has the sums of its pieces with it is not hashed again.
    pub fn hash(&self, payload: Payload<'_>) -> PayloadHash {
        match self {
            Self::Keyed => PayloadHash(blake3::hash(payload.bytes.bytes()).into()),
            Self::Blocks(key) => match payload.bytes.sums(key, payload.start) {
                Some(known) => PayloadHash::of_pieces(known),
                None => PayloadHash::of_pieces(
                    PieceSums::of(key, payload.start, payload.bytes.bytes()).sums(),
                ),
            },
        }
    }

    /// Whether a payload has the sums with it of which its hash is made.
    pub(crate) fn knows(&self, payload: &Payload<'_>) -> bool {
        match self {
            Self::Keyed => false,
            Self::Blocks(key) => payload.bytes.sums(key, payload.start).is_some(),
        }
    }
}

/// Hashes a payload as it arrives or leaves. Each byte is hashed once.
#[expect(clippy::large_enum_variant, reason = "a frame costs no allocation")]
pub enum PayloadHasher {
    /// With BLAKE3.
    Keyed {
        /// Bytes at the start of the payload that are hashed.
        hashed: usize,
        /// The state of the function.
        hasher: Box<Hasher>,
    },
    /// By its pieces.
    Blocks(PieceHasher),
}

impl PayloadHasher {
    /// Hashes the part of the payload that is there, `arrived` from its first byte on, as far as the function can go.
    pub fn advance(&mut self, arrived: &[u8]) {
        match self {
            Self::Keyed { hashed, hasher } => {
                let end = arrived.len() / KEYED_STEP_BYTES * KEYED_STEP_BYTES;
                if let Some(piece @ [_, ..]) = arrived.get(*hashed..end) {
                    hasher.update(piece);
                    *hashed = end;
                }
            }
            Self::Blocks(hasher) => hasher.advance(arrived),
        }
    }

    /// The hash of the whole payload, and the sums of its pieces if the function makes them.
    pub fn finish(self, payload: &[u8]) -> (PayloadHash, Option<PieceSums>) {
        match self {
            Self::Keyed { hashed, mut hasher } => {
                hasher.update(payload.get(hashed..).unwrap_or_default());
                (PayloadHash(hasher.finalize().into()), None)
            }
            Self::Blocks(hasher) => {
                let sums = hasher.finish(payload);
                (PayloadHash::of_pieces(sums.sums()), Some(sums))
            }
        }
    }
}

/// The hash of a payload: 32 bytes of BLAKE3, or 16 bytes of XXH3 and 16 zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadHash([u8; 32]);

impl PayloadHash {
    fn of_pieces(sums: &[SumBytes]) -> Self {
        let mut bytes = [0; 32];
        if let Some(first) = bytes.first_chunk_mut() {
            *first = XxHash3_128::oneshot(sums.as_flattened()).to_le_bytes();
        }
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use lockstep_sums::SumSecret;
    use lockstep_types::limits::BLOCK_BYTES;

    use super::*;

    fn blocks() -> Hashing {
        Hashing::Blocks(Arc::new(SumKey::new(&SumSecret::new([1; 32]))))
    }

    #[test]
    fn a_payload_in_pieces_has_the_hash_of_the_whole() {
        let bytes: Vec<u8> = (0..=250).cycle().take(300_000).collect();
        for hashing in [Hashing::Keyed, blocks()] {
            for (offset, step) in [(0, 1000), (512, 1 << 16), (4095, 5000), (1, bytes.len())] {
                let payload = Payload::at(offset, &bytes);
                let mut hasher = hashing.hasher(payload.start);
                for end in (0..bytes.len()).step_by(step) {
                    hasher.advance(&bytes[..end]);
                }
                assert_eq!(hasher.finish(&bytes).0, hashing.hash(payload), "{offset}");
            }
        }
    }

    /// The sums of whole blocks are those that a store keeps, wherever the payload begins.
    #[test]
    fn a_payload_is_cut_at_the_blocks_of_its_file() {
        let Hashing::Blocks(key) = blocks() else {
            unreachable!("block sums")
        };
        let bytes: Vec<u8> = (0..=250).cycle().take(2 * BLOCK_BYTES).collect();
        let (head, rest) = bytes.split_at(BLOCK_BYTES - 100);
        let (block, tail) = rest.split_at(BLOCK_BYTES);
        let sums = [head, block, tail].map(|piece| key.piece(piece).to_le_bytes());
        assert_eq!(sums[1], key.block(block).get().to_le_bytes());
        let made = Hashing::Blocks(key).hash(Payload::at(4096 * 7 + 100, &bytes));
        assert_eq!(made, PayloadHash::of_pieces(&sums));
    }

    /// A payload that has sums of another secret with it gets a hash of its own.
    #[test]
    fn known_sums_count_for_their_secret_only() {
        let bytes = vec![9; 2 * BLOCK_BYTES];
        let other = Arc::new(SumKey::new(&SumSecret::new([2; 32])));
        let right = blocks().hash(Payload::at(100, &bytes));
        let Hashing::Blocks(key) = blocks() else {
            unreachable!("block sums")
        };
        for (of, is_known) in [(&key, true), (&other, false)] {
            let sums = PieceSums::of(of, BlockOffset::of(100), &bytes);
            let payload = Payload::at(100, sums.with(&bytes));
            assert_eq!(blocks().knows(&payload), is_known);
            assert_eq!(blocks().hash(payload), right);
        }
    }

    #[test]
    fn a_keyed_sum_belongs_to_one_key_frame_and_part() {
        let sums = |key: u8| Sums::new(SumMethod::Keyed(FrameKey::new([key; 32])));
        let payload = Hashing::Keyed.hash(Payload::of(b"payload"));
        let (mut ours, mut theirs) = (sums(1), sums(2));
        let (head, first) = ours.next(b"head");
        let (again, second) = ours.next(b"head");
        let (foreign, other) = theirs.next(b"head");
        let made = [
            head,
            again,
            foreign,
            first.sum(&payload),
            second.sum(&payload),
            other.sum(&payload),
        ];
        for (at, one) in made.iter().enumerate() {
            assert!(!made[..at].contains(one), "sum {at} is that of another");
        }
    }
}
