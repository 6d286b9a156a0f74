//! The folder of a store in which a repair keeps blocks aside: those that it is about to overwrite with those that it puts in
//! place, and those of which no copy is known to be right.
//!
//! Each file has the bytes of one block, as the disk has returned them. Its name says inode, number of the block, the kind of its version, and the hash of its bytes: a block that is kept twice takes the room of one.
//!
//! Invariant: the folder has at most [`BLOCKS_MAX`] files. Nothing is removed from it: that is for an operator.

use std::io;

use lockstep_types::backing::Backing;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Hash128, Ino};

/// The folder, by its path in the store.
pub const BAD_BLOCKS_DIR: &str = ".lockstep/bad-blocks";
/// Most files in the folder: 16 MiB.
pub const BLOCKS_MAX: usize = 4096;

/// The kind of a block that is kept aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockVersion {
    /// It did not fit its sum, and is overwritten.
    Wrong,
    /// It is put in the place of a wrong one.
    Right,
    /// It stays as it is: no copy is known to be right.
    Undecided,
}

impl BlockVersion {
    const fn word(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Right => "right",
            Self::Undecided => "undecided",
        }
    }
}

/// Keeps blocks of a file aside, from the one at `offset` on. Returns whether the folder has all of them, on stable storage.
///
/// # Errors
/// If the disk does not take them.
pub(crate) fn keep(
    backing: &dyn Backing,
    ino: Ino,
    offset: u64,
    blocks: &[(BlockVersion, &[u8])],
) -> io::Result<bool> {
    let mut known = backing.list(BAD_BLOCKS_DIR)?;
    let mut has_all = true;
    for (version, bytes) in blocks {
        for (number, block) in (offset / BLOCK_BYTES as u64..).zip(bytes.chunks(BLOCK_BYTES)) {
            let hash = u128::from_be_bytes(Hash128::of(block).0);
            let name = format!("{ino}-{number}-{}-{hash:032x}", version.word());
            if known.contains(&name) {
                continue;
            }
            if known.len() >= BLOCKS_MAX {
                has_all = false;
                continue;
            }
            let file = backing.open_or_create(&format!("{BAD_BLOCKS_DIR}/{name}"))?;
            file.write_at(0, block)?;
            file.sync()?;
            known.push(name);
        }
    }
    backing.sync_dir(BAD_BLOCKS_DIR)?;
    Ok(has_all)
}
