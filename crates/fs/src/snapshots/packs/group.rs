//! The form of a group of touches in a pack, and of the pack's own header.
//!
//! A group is a header of whole blocks, and the kept blocks behind it. The header has the sum of each kept block, and a
//! hash of its own with the salt of the pack and with its place. So a group whose header and whose blocks fit is whole, and bytes
//! that a program wrote into a file are never taken for a group.

use lockstep_sums::{SumKey, SumSecret};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Hash128, SnapshotId};
use serde::{Deserialize, Serialize};

use super::touch::{Blocks, FileChunk, NewTouch, PackPlace, Touch};
use crate::namespace::record;

const PACK_MAGIC: [u8; 8] = *b"lspackF1";
const GROUP_MAGIC: [u8; 8] = *b"lspackG1";
/// Magic, length of the body, hash.
const PREFIX_BYTES: usize = 8 + 8 + 16;

/// The salt of one pack, which all its sums and hashes depend on.
pub struct PackKey {
    salt: [u8; 16],
    sums: SumKey,
}

impl PackKey {
    /// The key of a new pack: another one for each number and snapshot, and the same in each run of the same calls. A reader looks for a
    /// header only where a group has ended, so bytes of a program are never taken for one.
    pub fn of(number: u64, label: SnapshotId) -> Self {
        let name = [&number.to_le_bytes()[..], &label.to_bytes()].concat();
        Self::new(Hash128::of(&name).0)
    }

    fn new(salt: [u8; 16]) -> Self {
        let mut secret = [0; 32];
        secret
            .iter_mut()
            .zip(salt.iter().cycle())
            .for_each(|(to, from)| *to = *from);
        Self {
            salt,
            sums: SumKey::new(&SumSecret::new(secret)),
        }
    }

    /// The sum of a kept block.
    pub fn sum(&self, block: &[u8]) -> u64 {
        self.sums.piece(block)
    }

    fn hash(&self, magic: [u8; 8], block: u32, body: &[u8]) -> Hash128 {
        let place = u64::from(block).to_le_bytes();
        Hash128::of(&[&magic[..], &self.salt, &place, body].concat())
    }

    /// The first block of a pack that keeps blocks for snapshot `label`.
    pub fn pack_header(&self, label: SnapshotId) -> Vec<u8> {
        let body = record::encode(&(label, self.salt));
        let hash = Self::new([0; 16]).hash(PACK_MAGIC, 0, &body);
        framed(PACK_MAGIC, hash, &body)
    }

    /// Reads the first block of a pack; `None` if it is none.
    pub fn of_pack(header: &[u8]) -> Option<(SnapshotId, Self)> {
        let (hash, body) = unframed(PACK_MAGIC, header)?;
        let (label, salt) = record::decode(body)?;
        let is_whole = Self::new([0; 16]).hash(PACK_MAGIC, 0, body) == hash;
        is_whole.then(|| (label, Self::new(salt)))
    }
}

/// A touch, as the header of its group has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GroupEntry {
    chunk: FileChunk,
    kept: Blocks,
    dense: Blocks,
    sums: Vec<u64>,
}

/// A group: its header, and the touches with their places.
pub struct Group {
    /// The bytes of the header, whole blocks.
    pub header: Vec<u8>,
    /// The touches, with their chunks.
    pub touches: Vec<(FileChunk, Touch)>,
}

impl Group {
    /// The group of these touches at a place.
    pub fn new<'a>(
        key: &PackKey,
        at: PackPlace,
        touches: impl Iterator<Item = &'a NewTouch>,
    ) -> Self {
        let entries: Vec<GroupEntry> = touches.map(|touch| entry(key, touch)).collect();
        let body = record::encode(&entries);
        let header = framed(GROUP_MAGIC, key.hash(GROUP_MAGIC, at.block, &body), &body);
        let touches = placed(at, header.len(), entries);
        Self { header, touches }
    }

    /// The touches of the group that begins with these blocks at a place, if its header is whole. The blocks may go on behind
    /// the header.
    pub fn read(key: &PackKey, at: PackPlace, bytes: &[u8]) -> Option<Self> {
        let (hash, body) = unframed(GROUP_MAGIC, bytes)?;
        if key.hash(GROUP_MAGIC, at.block, body) != hash {
            return None;
        }
        let entries: Vec<GroupEntry> = record::decode(body)?;
        let header = bytes
            .get(..whole_blocks(PREFIX_BYTES + body.len()))?
            .to_vec();
        let touches = placed(at, header.len(), entries);
        Some(Self { header, touches })
    }

    /// Blocks of the group: header and kept blocks.
    pub fn blocks(&self) -> u32 {
        let dense: usize = self.touches.iter().map(|(_, touch)| touch.sums.len()).sum();
        let blocks = self.header.len() / BLOCK_BYTES + dense;
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }
}

/// Bytes of the header that begins so; `None` if these bytes begin no header.
pub fn header_bytes(begin: &[u8]) -> Option<usize> {
    let (magic, rest) = begin.split_first_chunk::<8>()?;
    let (length, _) = rest.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let bytes = length.checked_add(PREFIX_BYTES)?;
    (*magic == GROUP_MAGIC).then(|| whole_blocks(bytes))
}

const fn whole_blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}

fn entry(key: &PackKey, touch: &NewTouch) -> GroupEntry {
    GroupEntry {
        chunk: touch.chunk,
        kept: touch.kept,
        dense: touch.dense,
        sums: touch
            .bytes
            .chunks(BLOCK_BYTES)
            .map(|block| key.sum(block))
            .collect(),
    }
}

/// The touches with their places: the blocks of each behind those of the one before.
fn placed(at: PackPlace, header_bytes: usize, entries: Vec<GroupEntry>) -> Vec<(FileChunk, Touch)> {
    let header = u32::try_from(header_bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
    let mut block = at.block.saturating_add(header);
    let mut touches = Vec::with_capacity(entries.len());
    for entry in entries {
        let place = PackPlace {
            block,
            pack: at.pack,
        };
        block = block.saturating_add(entry.dense.count());
        let GroupEntry {
            chunk,
            kept,
            dense,
            sums,
        } = entry;
        touches.push((
            chunk,
            Touch {
                kept,
                dense,
                place,
                sums,
            },
        ));
    }
    touches
}

/// Magic, length, hash and body, filled up to whole blocks.
fn framed(magic: [u8; 8], hash: Hash128, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    let mut bytes = [&magic[..], &length, &hash.0, body].concat();
    bytes.resize(whole_blocks(bytes.len()), 0);
    bytes
}

fn unframed(magic: [u8; 8], bytes: &[u8]) -> Option<(Hash128, &[u8])> {
    let (found, rest) = bytes.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (hash, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let body = rest.get(..length)?;
    (*found == magic).then_some((Hash128(*hash), body))
}

#[cfg(test)]
mod tests {
    use lockstep_types::{Ino, Osn};

    use super::*;

    fn touch(ino: u64, number: u64, dense: Blocks) -> NewTouch {
        NewTouch {
            chunk: FileChunk {
                ino: Ino::new(ino).unwrap(),
                number,
            },
            kept: Blocks::ALL,
            dense,
            bytes: vec![7; dense.count() as usize * BLOCK_BYTES],
        }
    }

    #[test]
    fn a_group_is_read_as_it_was_written_and_in_its_place_only() {
        let key = PackKey::of(1, SnapshotId::FIRST);
        let at = PackPlace { pack: 3, block: 9 };
        let touches = [
            touch(5, 0, Blocks::range(0, 3)),
            touch(5, 1, Blocks::NONE),
            touch(9, 1 << 40, Blocks::range(4, 5)),
        ];
        let group = Group::new(&key, at, touches.iter());
        assert_eq!(group.blocks(), 1 + 3 + 1);
        let places: Vec<u32> = group.touches.iter().map(|(_, it)| it.place.block).collect();
        assert_eq!(places, [10, 13, 13]);
        let read = |key: &PackKey, at, bytes: &[u8]| {
            let group = Group::read(key, at, bytes);
            group.map(|group| group.touches)
        };
        assert_eq!(header_bytes(&group.header), Some(BLOCK_BYTES));
        assert_eq!(read(&key, at, &group.header), Some(group.touches.clone()));
        assert_eq!(
            read(&PackKey::of(2, SnapshotId::FIRST), at, &group.header),
            None
        );
        assert_eq!(
            read(&key, PackPlace { block: 10, ..at }, &group.header),
            None
        );
        let mut torn = group.header.clone();
        torn[70] ^= 1;
        assert_eq!(read(&key, at, &torn), None);
        assert_eq!(read(&key, at, &group.header[..40]), None);
        assert_eq!(header_bytes(&[0; BLOCK_BYTES]), None);
    }

    #[test]
    fn the_header_of_a_pack_has_its_snapshot_and_its_key() {
        let key = PackKey::of(1, SnapshotId::FIRST);
        let label = SnapshotId::of_operation(Osn::ZERO.next());
        let header = key.pack_header(label);
        let (found, read) = PackKey::of_pack(&header).unwrap();
        assert_eq!((found, read.sum(b"x")), (label, key.sum(b"x")));
        let mut torn = header;
        torn[40] ^= 1;
        assert!(PackKey::of_pack(&torn).is_none());
    }
}
