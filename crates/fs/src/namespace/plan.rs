//! The changes of a metadata operation, planned before anything is changed.
//!
//! [`plan`] is a pure function of the operation and of the content of the store: it either refuses, or gives exactly
//! the records to write and the change of content. So equal stores get equal changes from equal operations, and
//! replication relies on this (paper, section 5). Nothing in this module writes, reads a clock, or checks permissions
//! (the kernel did); the flags of inodes are checked here.

mod attributes;
mod content;
mod directories;
mod draft;
mod extended;
mod flags;
mod outcome;
mod snapshots;
mod trash;
mod view;

use lockstep_types::{Errno, MetaOp, MetaRequest, XattrNamespace, limits};

use self::draft::PlanDraft;
use crate::error::OpError;

pub use self::outcome::{ContentEffect, Plan, SnapshotChange};
pub use self::snapshots::last_serial;
pub use self::view::View;

/// Plans `op` on the store behind `view`.
///
/// # Errors
/// [`OpError::Refused`] when the rules of file systems forbid it: nothing is to be changed.
pub fn plan(view: &dyn View, op: &MetaOp) -> Result<Plan, OpError> {
    let mut draft = PlanDraft::new(view, op);
    match &op.request {
        MetaRequest::IntoTrash { removal } => plan_request(&removal.request(), &mut draft)?,
        request => plan_request(request, &mut draft)?,
    }
    Ok(Plan {
        snapshot: snapshots::plan(view, op)?,
        ..draft.finish()
    })
}

fn plan_request(request: &MetaRequest, draft: &mut PlanDraft<'_>) -> Result<(), OpError> {
    match request {
        MetaRequest::Create { .. } => directories::create(draft, request)?,
        MetaRequest::Link { ino, parent, name } => {
            directories::link(draft, *ino, *parent, name)?;
        }
        MetaRequest::Unlink { parent, name } => directories::unlink(draft, *parent, name)?,
        MetaRequest::Rmdir { parent, name } => directories::rmdir(draft, *parent, name)?,
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        } => directories::rename(draft, (*parent, name), (*new_parent, new_name), *mode)?,
        MetaRequest::SetAttr {
            ino,
            mode,
            uid,
            gid,
            atime,
            mtime,
        } => attributes::set_attr(draft, *ino, *mode, (*uid, *gid), (*atime, *mtime))?,
        MetaRequest::Truncate {
            ino,
            size,
            drop_set_id,
        } => content::truncate(draft, *ino, *size, *drop_set_id)?,
        MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        } => content::allocate(draft, *ino, *offset, *length, *mode)?,
        MetaRequest::DropPrivileges { ino } => attributes::drop_privileges(draft, *ino)?,
        MetaRequest::SetXattr {
            ino,
            name,
            value,
            mode,
        } => extended::set_xattr(draft, *ino, name, value, *mode)?,
        MetaRequest::RemoveXattr { ino, name } => extended::remove_xattr(draft, *ino, name)?,
        MetaRequest::Reap { ino } => directories::reap(draft, *ino)?,
        MetaRequest::ReapAll { inos } => directories::reap_all(draft, inos)?,
        MetaRequest::SetFlags { ino, flags } => flags::set_flags(draft, *ino, *flags)?,
        MetaRequest::SnapshotCreate { .. }
        | MetaRequest::SnapshotRename { .. }
        | MetaRequest::SnapshotDelete { .. }
        | MetaRequest::SnapshotHold { .. }
        | MetaRequest::SnapshotRelease { .. } => {}
        MetaRequest::TrashRestore { ino, parent, name } => {
            trash::restore(*ino, (*parent, name), draft)?;
        }
        MetaRequest::TrashDrop { inos } => trash::drop_all(inos, draft)?,
        // An operation has one removal, which is no such request itself.
        MetaRequest::IntoTrash { .. } => return Err(Errno::Invalid.into()),
    }
    Ok(())
}

/// Refuses a request that no new operation may make. An operation from the log is not checked: it has happened, and a
/// store that refused to repeat it would not open.
///
/// # Errors The reason, by the rules of file systems.
pub fn check_new(request: &MetaRequest) -> Result<(), Errno> {
    match request {
        MetaRequest::SetXattr { name, .. } | MetaRequest::RemoveXattr { name, .. } => {
            XattrNamespace::of(name).map(drop)
        }
        MetaRequest::ReapAll { inos } | MetaRequest::TrashDrop { inos }
            if inos.len() > limits::REAPED_MAX =>
        {
            Err(Errno::Invalid)
        }
        _ => Ok(()),
    }
}
