//! The free space of a store, and the space that changes take.

use lockstep_types::backing::{Room, Space, gaps};
use lockstep_types::{AllocateMode, Ino, MetaRequest, RenameMode, limits};

use super::facade::Store;
use crate::error::StoreError;
use crate::tree::Tree;

/// The most that the first bytes of a file take besides their blocks: a content file, a directory for it, and a block
/// of names in each of the two directories above.
const FILE_MADE: Room = Room {
    bytes: 2 * limits::BLOCK_BYTES as u64,
    files: 2,
};

/// Space that a record of the namespace takes besides its bytes.
const RECORD_BYTES: u64 = limits::BLOCK_BYTES as u64;

/// The space of one store. Changes nothing.
#[derive(Clone, Copy)]
pub struct Capacity<'a> {
    tree: Tree<'a>,
}

impl Store {
    /// The free space, and the space that changes take.
    pub fn capacity(&self) -> Capacity<'_> {
        Capacity { tree: self.tree() }
    }
}

impl Capacity<'_> {
    /// Total and free space of this node's disk.
    pub fn space(self) -> Result<Space, StoreError> {
        self.tree.disk().space()
    }

    /// Room that is left for clients on this node's disk, once the records in memory have found theirs.
    pub fn room(self) -> Result<Room, StoreError> {
        let names = Room {
            bytes: self.tree.namespace.bytes() as u64,
            files: 0,
        };
        Ok(Room::of(&self.space()?).minus(names))
    }

    /// Bytes that the content of removed files takes until it is removed, of as many files as can be measured quickly.
    pub fn garbage_bytes(self) -> u64 {
        self.tree.content.removal().freed_bytes(self.tree.disk())
    }

    /// The room that a write takes, as its file is now. None for a write beyond the longest file, which is refused.
    pub fn room_for_write(self, ino: Ino, offset: u64, length: u64) -> Result<Room, StoreError> {
        let range = offset..offset.saturating_add(length);
        if range.end > limits::FILE_BYTES_MAX {
            return Ok(Room::NONE);
        }
        let Some(content) = self.tree.content.open_content(ino)? else {
            let bytes = length.saturating_add(limits::BLOCK_BYTES as u64);
            return Ok(FILE_MADE.plus(Room { bytes, files: 0 }));
        };
        let gaps = gaps(&*content, &range).map_err(StoreError::content("seek", ino))?;
        let bytes = gaps.iter().map(|gap| gap.end - gap.start).sum();
        Ok(Room { bytes, files: 0 })
    }

    /// The room that a metadata operation takes. None for an operation that may give room back, or that replaces
    /// existing records.
    pub fn room_for_request(self, request: &MetaRequest) -> Result<Room, StoreError> {
        let record = |bytes: usize| Room {
            bytes: RECORD_BYTES + bytes as u64,
            files: 0,
        };
        Ok(match request {
            MetaRequest::Create { target, .. } => Room {
                files: FILE_MADE.files,
                ..record(target.len())
            },
            MetaRequest::Link { .. }
            | MetaRequest::Rename {
                mode: RenameMode::Whiteout { .. },
                ..
            } => record(0),
            MetaRequest::SetXattr { value, .. } => record(value.len()),
            MetaRequest::Allocate {
                ino,
                offset,
                length,
                mode,
                ..
            } if *mode != AllocateMode::PunchHole => self.room_for_write(*ino, *offset, *length)?,
            _ => Room::NONE,
        })
    }
}
