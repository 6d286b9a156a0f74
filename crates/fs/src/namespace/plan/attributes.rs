//! Operations on permission bits, owners and times.

use lockstep_types::mode::{GROUP_EXECUTE, MODE_BITS, SET_GROUP_ID, SET_USER_ID};
use lockstep_types::xattr::CAPABILITIES;
use lockstep_types::{Errno, Ino, InodeFlags, NodeKind, Timestamp};

use super::draft::PlanDraft;
use super::flags;
use crate::error::OpError;
use crate::namespace::acl::{self, Acl};
use crate::namespace::keys;

/// Changes permission bits, owner and times.
pub(super) fn set_attr(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    mode: Option<u32>,
    (uid, gid): (Option<u32>, Option<u32>),
    (atime, mtime): (Option<Timestamp>, Option<Timestamp>),
) -> Result<(), OpError> {
    let owner_changes = uid.is_some() || gid.is_some();
    let refused = if owner_changes || mode.is_some() {
        InodeFlags::RESTRICTING
    } else {
        InodeFlags::IMMUTABLE
    };
    flags::check(draft, ino, refused)?;
    let inode = draft.touch(ino)?;
    inode.uid = uid.unwrap_or(inode.uid);
    inode.gid = gid.unwrap_or(inode.gid);
    inode.atime = atime.unwrap_or(inode.atime);
    inode.mtime = mtime.unwrap_or(inode.mtime);
    if owner_changes && inode.kind() != NodeKind::Directory {
        drop_set_id(draft, ino)?;
        drop_capabilities(draft, ino)?;
    }
    if let Some(mode) = mode {
        chmod(draft, ino, mode)?;
    }
    draft.answer(ino)
}

/// Sets the permission bits, in the access control list too.
fn chmod(draft: &mut PlanDraft<'_>, ino: Ino, mode: u32) -> Result<(), OpError> {
    let inode = draft.inode_mut(ino)?;
    if inode.kind() == NodeKind::Symlink {
        return Err(Errno::NotSupported.into());
    }
    inode.bits.mode = mode & MODE_BITS;
    let key = keys::xattr(ino, acl::ACCESS);
    if let Some(bytes) = draft.get(&key)?
        && let Some(mut list) = Acl::parse(&bytes)?
    {
        list.chmod(mode);
        draft.put(key, Some(list.to_bytes()));
    }
    Ok(())
}

/// Clears set-user-id, and set-group-id if the group may execute: without that the bit means something else.
pub(super) fn drop_set_id(draft: &mut PlanDraft<'_>, ino: Ino) -> Result<(), OpError> {
    let mode = draft.inode(ino)?.bits.mode;
    let mut kept = mode & !SET_USER_ID;
    if mode & GROUP_EXECUTE != 0 {
        kept &= !SET_GROUP_ID;
    }
    if kept != mode {
        draft.inode_mut(ino)?.bits.mode = kept;
    }
    Ok(())
}

/// Removes file capabilities.
pub(super) fn drop_capabilities(draft: &mut PlanDraft<'_>, ino: Ino) -> Result<(), OpError> {
    let key = keys::xattr(ino, CAPABILITIES);
    if draft.get(&key)?.is_some() {
        draft.put(key, None);
    }
    Ok(())
}

/// Clears set-id bits and capabilities before a write.
pub(super) fn drop_privileges(draft: &mut PlanDraft<'_>, ino: Ino) -> Result<(), OpError> {
    flags::check(draft, ino, InodeFlags::IMMUTABLE)?;
    draft.touch(ino)?;
    drop_set_id(draft, ino)?;
    drop_capabilities(draft, ino)?;
    draft.answer(ino)
}
