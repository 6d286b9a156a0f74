//! Operations on the trash (rule P38): an inode gets a name again, or is to be freed.

use lockstep_types::{Errno, FileName, Ino};

use super::directories::{add_entry, check_new_entry};
use super::draft::PlanDraft;
use crate::error::OpError;
use crate::namespace::keys;
use crate::namespace::record::Body;

/// Links of a directory without subdirectories: its name and its `.`.
const LINKS_OF_EMPTY_DIRECTORY: u32 = 2;

/// Gives an inode of the trash a name. Nothing else of the inode changes, but for the time of its last change.
pub(super) fn restore(
    ino: Ino,
    (parent, name): (Ino, &FileName),
    draft: &mut PlanDraft<'_>,
) -> Result<(), OpError> {
    let inode = draft.inode(ino)?;
    let kind = inode.kind();
    if !inode.is_in_trash() {
        return Err(Errno::NoData.into());
    }
    check_new_entry(draft, parent, name, kind)?;
    draft.left_trash(ino);
    add_entry(draft, parent, name, ino, kind)?;
    let inode = draft.touch(ino)?;
    inode.nlink = 1;
    if let Body::Directory { parent: above, .. } = &mut inode.body {
        *above = parent;
        inode.nlink = LINKS_OF_EMPTY_DIRECTORY;
    }
    draft.answer(ino)
}

/// Takes those of `inos` out of the trash that are in it. The others stay as they are: one of them may have a name again.
pub(super) fn drop_all(inos: &[Ino], draft: &mut PlanDraft<'_>) -> Result<(), OpError> {
    for ino in inos {
        match draft.inode(*ino) {
            Ok(inode) if inode.is_in_trash() => {}
            Ok(_) | Err(OpError::Refused(Errno::Stale)) => continue,
            Err(error) => return Err(error),
        }
        draft.inode_mut(*ino)?.named_at = None;
        draft.put(keys::orphan(*ino), Some(Vec::new()));
    }
    Ok(())
}
