//! The changes that the flags of inodes forbid, as on Linux's own file systems. The kernel does not know the flags of a mount.
//!
//! The kernel decides before the operation whether a program may set a flag.

use lockstep_types::{Errno, Ino, InodeFlags, NodeKind};

use super::draft::PlanDraft;
use crate::error::OpError;
use crate::namespace::record::EntryRecord;

/// Refuses a change of an inode that has one of some flags.
pub(super) fn check(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    forbidding: InodeFlags,
) -> Result<(), OpError> {
    if draft.inode(ino)?.bits.flags.intersects(forbidding) {
        return Err(Errno::NotPermitted.into());
    }
    Ok(())
}

/// Refuses to take a name from a directory that keeps its names, and from an inode that keeps its own.
pub(super) fn check_removal(
    draft: &mut PlanDraft<'_>,
    directory: Ino,
    entry: EntryRecord,
) -> Result<(), OpError> {
    check(draft, directory, InodeFlags::RESTRICTING)?;
    check(draft, entry.ino, InodeFlags::RESTRICTING)
}

/// Refuses to move a name, in place of another one or not.
pub(super) fn check_rename(
    draft: &mut PlanDraft<'_>,
    (from, moved): (Ino, EntryRecord),
    (to, target): (Ino, Option<EntryRecord>),
) -> Result<(), OpError> {
    check_removal(draft, from, moved)?;
    match target {
        Some(target) => check_removal(draft, to, target),
        None => check(draft, to, InodeFlags::IMMUTABLE),
    }
}

/// Sets the flags of a file or a directory.
pub(super) fn set_flags(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    flags: InodeFlags,
) -> Result<(), OpError> {
    let inode = draft.touch(ino)?;
    if !matches!(inode.kind(), NodeKind::File | NodeKind::Directory) {
        return Err(Errno::NotSupported.into());
    }
    inode.bits.flags = flags;
    draft.answer(ino)
}
