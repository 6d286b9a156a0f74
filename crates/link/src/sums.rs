//! The sums of frames. A sum detects that a frame differs from the sent frame.
//!
//! A connection without encryption has a key for each direction. Its sums are BLAKE3 with the key, bound to the number
//! of the frame: without the key, an attacker cannot alter, repeat, drop or reorder frames unnoticed.
//!
//! Inside TLS, the tag of 128 bits on every record gives the same protection between the nodes. The sum then detects
//! only faults before encryption and after decryption: faulty memory, and bugs of Lockstep. No attacker forges these
//! faults, so the sum is XXH3-128, at a tenth of the cost (docs/adr/0003).

use blake3::Hasher;
use lockstep_types::Hash128;
use twox_hash::XxHash3_128;

/// The secret of one direction of an unencrypted connection.
#[derive(Clone)]
pub struct FrameKey([u8; 32]);

impl FrameKey {
    /// The key with these bytes. Only the two nodes may know them.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// The first byte of a keyed sum's input: a head's sum cannot replace a payload's sum, nor the other way round.
const HEAD: [u8; 1] = [0];
const PAYLOAD: [u8; 1] = [1];

/// Computes the sums of one direction, in order.
pub(crate) struct Sums {
    key: Option<FrameKey>,
    frames: u64,
}

impl Sums {
    /// Sums from the first frame on; without a key inside TLS.
    pub(crate) const fn new(key: Option<FrameKey>) -> Self {
        Self { key, frames: 0 }
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

    /// The hash function for the payloads of this direction.
    pub(crate) const fn hashing(&self) -> Hashing {
        match self.key {
            Some(_) => Hashing::Keyed,
            None => Hashing::Plain,
        }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// BLAKE3. The sum adds the key and the number of the frame later.
    Keyed,
    /// XXH3-128.
    Plain,
}

impl Hashing {
    /// A hasher for a payload in pieces.
    pub fn hasher(self) -> PayloadHasher {
        PayloadHasher(match self {
            Self::Keyed => HasherState::Keyed(Box::default()),
            Self::Plain => HasherState::Plain(Box::default()),
        })
    }

    /// The hash of a payload in one piece.
    pub fn hash(self, payload: &[u8]) -> PayloadHash {
        match self {
            Self::Keyed => PayloadHash(blake3::hash(payload).into()),
            Self::Plain => PayloadHash::plain(XxHash3_128::oneshot(payload)),
        }
    }
}

/// Hashes a payload in pieces.
pub struct PayloadHasher(HasherState);

enum HasherState {
    Keyed(Box<Hasher>),
    Plain(Box<XxHash3_128>),
}

impl PayloadHasher {
    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            HasherState::Keyed(hasher) => {
                hasher.update(piece);
            }
            HasherState::Plain(hasher) => hasher.write(piece),
        }
    }

    /// The hash of all added pieces.
    pub fn finish(&self) -> PayloadHash {
        match &self.0 {
            HasherState::Keyed(hasher) => PayloadHash(hasher.finalize().into()),
            HasherState::Plain(hasher) => PayloadHash::plain(hasher.finish_128()),
        }
    }
}

/// The hash of a payload: 32 bytes of BLAKE3, or 16 bytes of XXH3 and 16 zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadHash([u8; 32]);

impl PayloadHash {
    fn plain(hash: u128) -> Self {
        let mut bytes = [0; 32];
        if let Some(first) = bytes.first_chunk_mut() {
            *first = hash.to_le_bytes();
        }
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_in_pieces_has_the_hash_of_the_whole() {
        let payload: Vec<u8> = (0..=250).cycle().take(300_000).collect();
        for hashing in [Hashing::Keyed, Hashing::Plain] {
            for piece in [1000, 1 << 16, payload.len()] {
                let mut hasher = hashing.hasher();
                for piece in payload.chunks(piece) {
                    hasher.update(piece);
                }
                assert_eq!(hasher.finish(), hashing.hash(&payload), "{hashing:?}");
            }
        }
    }

    #[test]
    fn a_keyed_sum_belongs_to_one_key_frame_and_part() {
        let sums = |key: u8| Sums::new(Some(FrameKey::new([key; 32])));
        let payload = Hashing::Keyed.hash(b"payload");
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
