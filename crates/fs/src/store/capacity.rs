//! The free space of a store, and the space that changes take.

use std::ops::Range;

use lockstep_types::backing::{Room, Space, gaps};
use lockstep_types::{AllocateMode, Ino, MetaRequest, RenameMode, limits};

use super::facade::Store;
use crate::error::StoreError;
use crate::snapshots::keeper::BlockKeeper;
use crate::tree::Tree;
use crate::view::StoreView;

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
    keeper: &'a BlockKeeper,
}

impl Store {
    /// The free space, and the space that changes take.
    pub fn capacity(&self) -> Capacity<'_> {
        Capacity {
            tree: self.tree(),
            keeper: &self.keeper,
        }
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

    /// The room that a write takes, as its file is now, with that of the old bytes that snapshots see. None for a write beyond the longest
    /// file, which is refused.
    pub fn room_for_write(self, ino: Ino, offset: u64, length: u64) -> Result<Room, StoreError> {
        let new = self.room_for_blocks(ino, offset, length)?;
        let range = offset..offset.saturating_add(length);
        let bytes = self.keeper.room_to_keep(ino, &range)?;
        Ok(new.plus(Room { bytes, files: 0 }))
    }

    /// The room for the blocks of a range that the file does not have yet.
    fn room_for_blocks(self, ino: Ino, offset: u64, length: u64) -> Result<Room, StoreError> {
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

    /// Whether a request may have old bytes of any number kept for a snapshot: it is counted also where no single change is.
    pub fn may_keep_much(self, request: &MetaRequest) -> bool {
        vanishing_bytes(request).is_some() && self.tree.namespace.snapshots().has_shared()
    }

    /// The room for the bytes that a request takes away, and that snapshots see.
    fn room_for_vanishing(self, request: &MetaRequest) -> Result<Room, StoreError> {
        let Some((ino, bytes)) = vanishing_bytes(request) else {
            return Ok(Room::NONE);
        };
        let kept = self.keeper.room_to_keep(ino, &bytes)?;
        if kept == 0 {
            return Ok(Room::NONE);
        }
        // Holes are not kept. Each chunk has a header of one block beside its 16 at most.
        let data = self.tree.content_stat(ino)?.blocks.saturating_mul(512);
        let bytes = kept.min(data.saturating_add(data / 8).saturating_add(RECORD_BYTES));
        Ok(Room { bytes, files: 0 })
    }

    /// The room that a metadata operation takes. None for an operation that may give room back, unless snapshots see the
    /// bytes, or that replaces existing records.
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
            } if *mode != AllocateMode::PunchHole => {
                let new = self.room_for_blocks(*ino, *offset, *length)?;
                new.plus(self.room_for_vanishing(request)?)
            }
            _ => self.room_for_vanishing(request)?,
        })
    }
}

/// The bytes that a request takes away from a file.
fn vanishing_bytes(request: &MetaRequest) -> Option<(Ino, Range<u64>)> {
    match request {
        MetaRequest::Truncate { ino, size, .. } => Some((*ino, *size..u64::MAX)),
        MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode:
                AllocateMode::PunchHole | AllocateMode::ZeroRange | AllocateMode::ZeroRangeKeepSize,
        } => Some((*ino, *offset..offset.saturating_add(*length))),
        _ => None,
    }
}
