//! The sums of frames: what finds that a frame is not as it was sent.
//!
//! A connection whose encryption is off has a key for each direction: sums are BLAKE3 with that key, bound
//! to the number of the frame, so that nobody without the key can alter, repeat, drop or reorder
//! frames unnoticed.
//!
//! Inside TLS every record has a tag of 128 bits that does the same for the way between the nodes. What
//! is left for a sum is what happens before the one end encrypts and after the other has decrypted:
//! memory, and mistakes of ours. Nobody forges those, so the sum is XXH3-128, at a tenth of the
//! price (docs/adr/0003).

use blake3::Hasher;
use lockstep_types::Hash128;
use twox_hash::XxHash3_128;

/// The secret of one direction of a connection that is not encrypted.
#[derive(Clone)]
pub struct FrameKey([u8; 32]);

impl FrameKey {
    /// The key made of these bytes, which nobody but the two nodes may know.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// What keyed sums begin with, so that none can stand in for the other.
const HEAD: [u8; 1] = [0];
const PAYLOAD: [u8; 1] = [1];

/// Computes the sums of one direction, in order.
pub(crate) struct Sums {
    key: Option<FrameKey>,
    frames: u64,
}

impl Sums {
    /// Sums from the first frame on; inside TLS without a key.
    pub(crate) const fn new(key: Option<FrameKey>) -> Self {
        Self { key, frames: 0 }
    }

    /// The sum over the head of the next frame, and what its payload's sum will be made with.
    pub(crate) fn next(&mut self, head: &[u8]) -> (Hash128, PayloadSums) {
        let payload = PayloadSums {
            key: self.key.clone(),
            frame: self.frames,
        };
        self.frames = self.frames.wrapping_add(1);
        let sum = payload.keyed(HEAD, head);
        (sum.unwrap_or_else(|| plain(head)), payload)
    }

    /// What hashes the payloads of this direction.
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
    /// The sum of a payload with this hash, which a [`PayloadHasher`] of the same direction made.
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

/// By which function the payloads of a direction are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// BLAKE3; the key comes in when the sum is made, and with it the number of the frame.
    Keyed,
    /// XXH3-128.
    Plain,
}

impl Hashing {
    /// What hashes a payload that comes in pieces.
    pub fn hasher(self) -> PayloadHasher {
        PayloadHasher(match self {
            Self::Keyed => State::Keyed(Box::default()),
            Self::Plain => State::Plain(Box::default()),
        })
    }

    /// The hash of a payload that lies in one piece.
    pub fn hash(self, payload: &[u8]) -> PayloadHash {
        match self {
            Self::Keyed => PayloadHash(blake3::hash(payload).into()),
            Self::Plain => PayloadHash::plain(XxHash3_128::oneshot(payload)),
        }
    }
}

/// Takes in a payload, in pieces.
pub struct PayloadHasher(State);

enum State {
    Keyed(Box<Hasher>),
    Plain(Box<XxHash3_128>),
}

impl PayloadHasher {
    /// Takes in the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            State::Keyed(hasher) => {
                hasher.update(piece);
            }
            State::Plain(hasher) => hasher.write(piece),
        }
    }

    /// The hash of all that was taken in.
    pub fn finish(&self) -> PayloadHash {
        match &self.0 {
            State::Keyed(hasher) => PayloadHash(hasher.finalize().into()),
            State::Plain(hasher) => PayloadHash::plain(hasher.finish_128()),
        }
    }
}

/// The hash of a payload: 32 bytes of BLAKE3, or 16 of XXH3 and as many zeros.
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
    fn a_keyed_sum_is_of_one_key_frame_and_place() {
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
