//! Changes of content besides writes: the content part of a metadata operation, and the fitting of a length.

use std::sync::Arc;

use lockstep_types::backing::BackingFile;
use lockstep_types::{AllocateMode, Ino};

use super::ContentStore;
use super::before_change::{ByteChange, ByteEdit};
use crate::error::StoreError;
use crate::namespace::plan::ContentEffect;
use crate::paths::content_path;

/// Changes of content besides writes.
impl ContentStore {
    /// Changes the content file of an inode, which is created if it does not exist.
    pub fn change(&self, change: &ByteChange<'_>) -> Result<(), StoreError> {
        let content = self.content_to_change(change.ino)?;
        let changed = self.observers.carry_out(change, &*content);
        self.sync.dirty().content_changed(change.ino);
        changed
    }

    fn content_to_change(&self, ino: Ino) -> Result<Arc<dyn BackingFile>, StoreError> {
        if let Some(file) = self.files.get(ino) {
            return self.content_file_to_write(&file);
        }
        if let Some(content) = self.open_content(ino)? {
            return Ok(content);
        }
        let path = content_path(ino);
        let created = self.disk.backing().open_or_create(&path);
        let created = created.map_err(StoreError::disk("create", path));
        let content = created.inspect_err(|_| self.removal.may_be_empty(ino))?;
        self.sync.dirty().name_made(ino);
        Ok(content)
    }

    /// Carries out the content part of a metadata operation.
    pub fn apply(&self, effect: ContentEffect) -> Result<(), StoreError> {
        let ino = effect.ino();
        if let ContentEffect::Resize(_, 0) = effect
            && self.open_content(ino)?.is_none()
        {
            return Ok(());
        }
        self.change(&ByteChange {
            ino,
            edit: edit_of(effect),
        })
    }

    /// Gives the content of a file the length that the record of the other node says.
    pub fn fit_length(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        if self.length(ino)? == size {
            return Ok(());
        }
        self.change(&ByteChange {
            ino,
            edit: ByteEdit::Resize { size },
        })
    }

    /// Takes back the bytes that a failed change of content has left beyond the size of its file.
    pub fn take_back(&self, ino: Ino, size: u64) -> Result<(), StoreError> {
        if self.length(ino)? == size {
            return Ok(());
        }
        self.change(&ByteChange {
            ino,
            edit: ByteEdit::TakeBack { size },
        })
    }
}

/// The content part of a metadata operation, as a change of bytes. A reservation is taken whole or not at all.
const fn edit_of(effect: ContentEffect) -> ByteEdit<'static> {
    let (mode, offset, length) = match effect {
        ContentEffect::Resize(_, size) => return ByteEdit::Resize { size },
        ContentEffect::Allocate(_, mode, offset, length) => (mode, offset, length),
    };
    let keep_size = matches!(
        mode,
        AllocateMode::AllocateKeepSize | AllocateMode::ZeroRangeKeepSize
    );
    match mode {
        AllocateMode::PunchHole => ByteEdit::Punch { offset, length },
        AllocateMode::ZeroRange | AllocateMode::ZeroRangeKeepSize => ByteEdit::Zero {
            offset,
            length,
            keep_size,
        },
        AllocateMode::Allocate | AllocateMode::AllocateKeepSize => ByteEdit::Reserve {
            offset,
            length,
            keep_size,
        },
    }
}
