//! Operations on the content of files.

use lockstep_types::{AllocateMode, Errno, Ino, InodeFlags, limits};

use super::attributes;
use super::draft::PlanDraft;
use super::flags;
use super::outcome::ContentEffect;
use crate::error::OpError;
use crate::namespace::record::Body;

/// Sets the size of a file.
pub(super) fn truncate(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    size: u64,
    drop_set_id: bool,
) -> Result<(), OpError> {
    if size > limits::FILE_BYTES_MAX {
        return Err(Errno::TooBig.into());
    }
    file(draft, ino)?;
    flags::check(draft, ino, InodeFlags::RESTRICTING)?;
    if drop_set_id {
        attributes::drop_set_id(draft, ino)?;
    }
    attributes::drop_capabilities(draft, ino)?;
    content_changed(draft, ino, size)?;
    draft.content(ContentEffect::Resize(ino, size));
    draft.answer(ino)
}

/// Carries out `fallocate`.
pub(super) fn allocate(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    offset: u64,
    length: u64,
    mode: AllocateMode,
) -> Result<(), OpError> {
    let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
    if length == 0 {
        return Err(Errno::Invalid.into());
    }
    if end > limits::FILE_BYTES_MAX {
        return Err(Errno::TooBig.into());
    }
    let size = file(draft, ino)?;
    let refused = match mode {
        AllocateMode::Allocate | AllocateMode::AllocateKeepSize => InodeFlags::IMMUTABLE,
        _ => InodeFlags::RESTRICTING,
    };
    flags::check(draft, ino, refused)?;
    let grown = match mode {
        AllocateMode::Allocate | AllocateMode::ZeroRange => size.max(end),
        AllocateMode::AllocateKeepSize
        | AllocateMode::PunchHole
        | AllocateMode::ZeroRangeKeepSize => size,
    };
    attributes::drop_capabilities(draft, ino)?;
    content_changed(draft, ino, grown)?;
    draft.content(ContentEffect::Allocate(ino, mode, offset, length));
    draft.answer(ino)
}

/// The size of a file; refuses an inode without a size.
fn file(draft: &mut PlanDraft<'_>, ino: Ino) -> Result<u64, OpError> {
    match &draft.inode(ino)?.body {
        Body::File { size } => Ok(*size),
        Body::Directory { .. } => Err(Errno::IsDirectory.into()),
        _ => Err(Errno::Invalid.into()),
    }
}

/// Records a new size, and a change of content now.
fn content_changed(draft: &mut PlanDraft<'_>, ino: Ino, new_size: u64) -> Result<(), OpError> {
    let time = draft.time();
    let inode = draft.inode_mut(ino)?;
    if let Body::File { size } = &mut inode.body {
        *size = new_size;
    }
    inode.mtime = time;
    inode.ctime = time;
    Ok(())
}
