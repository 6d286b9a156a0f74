//! One hash over all data of an inode.
//!
//! The digest covers the record with unflushed size and times, the records in every other table
//! that both nodes have, the length of the content on the disk, and the content itself if it is
//! short. Longer content is compared range by range. The length of each part precedes the part, so that
//! no two different inodes give the same bytes to hash.

use std::ops::ControlFlow;

use lockstep_fs::record::{self, Body};
use lockstep_fs::{OpError, StoreView, keys};
use lockstep_resync::limits::HASHED_FILE_BYTES_MAX;
use lockstep_resync::pieces::whole_file_hash;
use lockstep_types::{Hash128, Ino};

use crate::own_sums::OwnSums;

/// Longest content that is part of the digest.
pub const CONTENT_BYTES_MAX: u64 = HASHED_FILE_BYTES_MAX;

/// The tables besides the table of inodes.
const TABLES: [u8; 4] = [keys::ENTRIES, keys::COOKIES, keys::XATTRS, keys::ORPHANS];

/// Bounds of one list of digests.
#[derive(Clone, Copy, Debug)]
pub struct DigestLimits {
    /// Most inodes.
    pub inodes: usize,
    /// Bytes of content after which no further inode is begun.
    pub bytes: u64,
}

/// The inodes that are compared under one set of locks. Both nodes must have the same bounds to compare a batch by one hash.
pub(crate) const BATCH: DigestLimits = DigestLimits {
    inodes: 256,
    bytes: 4 << 20,
};

/// Digests of the inodes in a range of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// First inode number beyond the covered ones.
    pub to: u64,
    /// Numbers and digests, in order.
    pub list: Vec<(u64, Hash128)>,
    /// Bytes of content in the digests.
    pub bytes: u64,
}

impl Digests {
    /// One hash of all numbers and digests.
    pub fn hash(&self) -> Hash128 {
        let mut hasher = Hasher::default();
        for (number, digest) in &self.list {
            hasher.add(&number.to_le_bytes());
            hasher.add(&digest.0);
        }
        hasher.finish()
    }
}

/// What stands for the content of a file in its digest.
#[derive(Clone, Copy)]
pub enum ContentPart<'a> {
    /// Its bytes, if they are few. Longer content is compared range by range.
    Bytes,
    /// Its sum, which costs no read of the content.
    Sum {
        /// The sums of this node.
        sums: &'a dyn OwnSums,
        /// Stands for a sum that says nothing. The other node has another word, so that the digests differ then.
        void: &'a [u8],
    },
    /// The word for a sum that says nothing.
    Void(&'a [u8]),
}

/// The word of the primary for a sum that says nothing.
pub(crate) const VOID_HERE: &[u8] = b"void on the primary";
/// The word of the secondary for a sum that says nothing.
pub(crate) const VOID_THERE: &[u8] = b"void on the secondary";

/// The digests of the inodes from `from` up to but not including `to`, as many as `limits` allow.
pub fn digests(
    view: &dyn StoreView,
    from: u64,
    to: u64,
    limits: DigestLimits,
) -> Result<Digests, OpError> {
    digests_by(view, from, to, limits, ContentPart::Bytes)
}

/// The same, with this part for content.
pub(crate) fn digests_by(
    view: &dyn StoreView,
    from: u64,
    to: u64,
    limits: DigestLimits,
    content: ContentPart<'_>,
) -> Result<Digests, OpError> {
    let mut found = Digests {
        to,
        ..Digests::default()
    };
    for (number, (ino, _)) in view
        .inodes(from, to, limits.inodes.saturating_add(1))?
        .into_iter()
        .enumerate()
    {
        if number == limits.inodes || found.bytes > limits.bytes {
            found.to = ino.get();
            break;
        }
        if let Some((digest, bytes)) = digest_and_bytes(view, ino, content)? {
            found.list.push((ino.get(), digest));
            found.bytes = found.bytes.saturating_add(bytes);
        }
    }
    Ok(found)
}

/// The digest of one inode; `None` if there is no such inode.
pub fn digest(view: &dyn StoreView, ino: Ino) -> Result<Option<Hash128>, OpError> {
    let digest = digest_and_bytes(view, ino, ContentPart::Bytes)?;
    Ok(digest.map(|(digest, _)| digest))
}

/// The digest of one inode on a node whose sum of the content says nothing; `None` if there is no such inode. `void`: the word of that
/// node.
pub(crate) fn digest_with_void(
    view: &dyn StoreView,
    ino: Ino,
    void: &[u8],
) -> Result<Option<Hash128>, OpError> {
    let digest = digest_and_bytes(view, ino, ContentPart::Void(void))?;
    Ok(digest.map(|(digest, _)| digest))
}

fn digest_and_bytes(
    view: &dyn StoreView,
    ino: Ino,
    content: ContentPart<'_>,
) -> Result<Option<(Hash128, u64)>, OpError> {
    let Some(inode) = view.inode(ino)? else {
        return Ok(None);
    };
    let mut hasher = Hasher::default();
    hasher.add(&record::encode(&inode));
    for table in TABLES {
        hasher.add(&[table]);
        view.each_record(table, ino, &[], &mut |key, value| {
            hasher.add(key);
            hasher.add(value);
            ControlFlow::Continue(())
        })?;
    }
    let bytes = match inode.body {
        Body::File { size } => hasher.add_content(view, ino, size, content)?,
        _ => 0,
    };
    Ok(Some((hasher.finish(), bytes)))
}

/// Hashes parts with their lengths.
#[derive(Default)]
struct Hasher(blake3::Hasher);

impl Hasher {
    fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds length and content; returns the number of bytes of content that were read.
    fn add_content(
        &mut self,
        view: &dyn StoreView,
        ino: Ino,
        size: u64,
        content: ContentPart<'_>,
    ) -> Result<u64, OpError> {
        self.add(&view.content_bytes(ino)?.to_le_bytes());
        match content {
            ContentPart::Sum { sums, void } => match sums.file(ino)? {
                Some(sum) => self.add(&sum.to_bytes()),
                None => self.add(void),
            },
            ContentPart::Void(void) => self.add(void),
            ContentPart::Bytes if size > CONTENT_BYTES_MAX => {}
            ContentPart::Bytes => {
                self.add(&whole_file_hash(view, ino, size)?.0);
                return Ok(size);
            }
        }
        Ok(0)
    }

    fn finish(&self) -> Hash128 {
        self.0.finalize().into()
    }
}
