//! Operations on extended attributes, access control lists among them.

use lockstep_types::{Errno, Ino, InodeFlags, NodeKind, XattrMode, limits};

use super::draft::PlanDraft;
use super::flags;
use crate::error::OpError;
use crate::namespace::acl::{self, Acl};
use crate::namespace::keys;

/// Sets an extended attribute.
pub(super) fn set_xattr(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<(), OpError> {
    if name.is_empty() || name.len() > limits::XATTR_NAME_BYTES_MAX {
        return Err(Errno::Range.into());
    }
    if value.len() > limits::XATTR_VALUE_BYTES_MAX {
        return Err(Errno::NoSpace.into());
    }
    flags::check(draft, ino, InodeFlags::RESTRICTING)?;
    let key = keys::xattr(ino, name);
    let exists = draft.get(&key)?.is_some();
    match mode {
        XattrMode::Create if exists => return Err(Errno::Exists.into()),
        XattrMode::Replace if !exists => return Err(Errno::NoData.into()),
        _ => {}
    }
    let kept = match name {
        acl::ACCESS => set_access_acl(draft, ino, value)?,
        acl::DEFAULT => set_default_acl(draft, ino, value)?,
        _ => Some(value.to_vec()),
    };
    if kept.is_some() && !exists {
        check_names_fit(draft, ino, name)?;
    }
    draft.put(key, kept);
    draft.touch(ino)?;
    draft.answer(ino)
}

/// Shows an access list in the mode bits; keeps the list only if it says more than the bits.
fn set_access_acl(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    value: &[u8],
) -> Result<Option<Vec<u8>>, OpError> {
    if draft.inode(ino)?.kind() == NodeKind::Symlink {
        return Err(Errno::NotSupported.into());
    }
    let Some(list) = Acl::parse(value)? else {
        return Ok(None);
    };
    let inode = draft.inode_mut(ino)?;
    inode.bits.mode = inode.bits.mode & 0o7000 | list.mode_bits();
    Ok((!list.is_only_mode()).then(|| list.to_bytes()))
}

fn set_default_acl(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    value: &[u8],
) -> Result<Option<Vec<u8>>, OpError> {
    if draft.inode(ino)?.kind() != NodeKind::Directory {
        return Err(Errno::Access.into());
    }
    Ok(Acl::parse(value)?.map(|list| list.to_bytes()))
}

/// All names of an inode together must fit what the kernel can list.
fn check_names_fit(draft: &mut PlanDraft<'_>, ino: Ino, name: &[u8]) -> Result<(), OpError> {
    let listed: usize = draft
        .stored_keys(&keys::of_ino(keys::XATTRS, ino))?
        .iter()
        .map(|key| keys::rest_of(key).len() + 1)
        .sum();
    if listed + name.len() + 1 > limits::XATTR_LIST_BYTES_MAX {
        return Err(Errno::NoSpace.into());
    }
    Ok(())
}

/// Removes an extended attribute.
pub(super) fn remove_xattr(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    name: &[u8],
) -> Result<(), OpError> {
    flags::check(draft, ino, InodeFlags::RESTRICTING)?;
    let key = keys::xattr(ino, name);
    if draft.get(&key)?.is_none() {
        return Err(Errno::NoData.into());
    }
    draft.put(key, None);
    draft.touch(ino)?;
    draft.answer(ino)
}
