//! Requests that the kernel sends again after the process that had read them was killed.
//!
//! The killed process may have executed such a request. So it is executed again, and if that fails because its effect is
//! there already, the first execution has succeeded. That is exact, not a guess: as long as a request is unanswered, the
//! kernel holds the locks of the directories and inodes that the request changes names or attributes of, so no other
//! request can have made that effect, and this mount is the only one that changes the datastore. Once the other node may have
//! served, such a request fails instead. A request that the killed process had only parked is not executed yet (`standby_queue`).
//!
//! | request | second execution |
//! |---|---|
//! | `write`, `fallocate`, `setattr`, `copy_file_range` | the same bytes and attributes again: an append has its offset in the request |
//! | `create`, `mkdir`, `mknod`, `symlink`, `link` | finds the name, and the same kind of inode behind it |
//! | `unlink`, `rmdir` | finds no name |
//! | `rename` | finds no source, and a target |
//! | `rename` with exchange | see `exchange` |
//! | `setxattr` that must create, `removexattr` | see `change_note`: finds the attribute with the value, or no attribute |
//! | `rename` that leaves a whiteout | see `change_note`: finds the whiteout, and a target |
//! | all others | change nothing, or only counts, which the new process begins anew |

use std::sync::Arc;

use lockstep_driver::client::{Done, FileService};
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, XattrMode};

use crate::memory::delivery::RequestDelivery;

/// The outcome of a request that was executed twice, perhaps.
pub(crate) fn outcome(
    service: &dyn FileService,
    request: &MetaRequest,
    outcome: Result<Option<Attr>, Errno>,
) -> Result<Option<Attr>, Errno> {
    let errno = match outcome {
        Ok(attr) => return Ok(attr),
        Err(errno) => errno,
    };
    // On a full disk, or with as many links as an inode may have, a request is refused before the names are looked at.
    let may_be_own = matches!(
        errno,
        Errno::Exists | Errno::NoEntry | Errno::NoData | Errno::NoSpace | Errno::TooManyLinks
    );
    match own_effect(service, request) {
        Some(effect) if may_be_own => {
            tracing::debug!(?errno, "a request was executed before the restart");
            Ok(effect.attr)
        }
        _ => Err(errno),
    }
}

/// The effect of a request, found in the store.
#[derive(Clone, Copy, Debug)]
struct OwnEffect {
    /// The attributes for the answer, if the answer has some.
    attr: Option<Attr>,
}

const NO_ATTR: OwnEffect = OwnEffect { attr: None };

impl OwnEffect {
    const fn with(attr: Attr) -> Self {
        Self { attr: Some(attr) }
    }
}

/// Returns the effect of the request, if the store is as the request leaves it.
fn own_effect(service: &dyn FileService, request: &MetaRequest) -> Option<OwnEffect> {
    let find = |parent: &Ino, name: &FileName| service.lookup(*parent, name);
    let is_missing = |parent, name| find(parent, name) == Err(Errno::NoEntry);
    match request {
        MetaRequest::Create {
            parent,
            name,
            kind,
            target,
            ..
        } => {
            let attr = find(parent, name).ok()?;
            let is_same = attr.kind == *kind
                && (*kind != NodeKind::Symlink
                    || service.readlink(attr.ino).as_ref() == Ok(target));
            is_same.then_some(OwnEffect::with(attr))
        }
        MetaRequest::Link { ino, parent, name } => {
            let attr = find(parent, name).ok()?;
            (attr.ino == *ino).then_some(OwnEffect::with(attr))
        }
        MetaRequest::Unlink { parent, name } | MetaRequest::Rmdir { parent, name } => {
            is_missing(parent, name).then_some(NO_ATTR)
        }
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode: RenameMode::Replace | RenameMode::NoReplace,
        } => {
            let is_done = is_missing(parent, name) && find(new_parent, new_name).is_ok();
            is_done.then_some(NO_ATTR)
        }
        // The datastore refuses to move the whiteout. It was left by this request (`change_note`).
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode: RenameMode::Whiteout { .. },
        } => {
            let left = find(parent, name).ok()?;
            let is_done = is_whiteout(&left) && find(new_parent, new_name).is_ok();
            is_done.then_some(NO_ATTR)
        }
        MetaRequest::SetXattr {
            ino,
            name,
            value,
            mode: XattrMode::Create,
        } => (service.getxattr(*ino, name).as_ref() == Ok(value)).then_some(NO_ATTR),
        MetaRequest::RemoveXattr { ino, name } => {
            (service.getxattr(*ino, name) == Err(Errno::NoData)).then_some(NO_ATTR)
        }
        _ => None,
    }
}

/// Whether an inode is a whiteout, by its attributes.
pub(crate) fn is_whiteout(attr: &Attr) -> bool {
    attr.kind == NodeKind::CharDevice && attr.rdev == 0
}

/// Wraps the completion of a request that the kernel has sent again.
pub(crate) fn wrap(
    service: &Arc<dyn FileService>,
    request: &MetaRequest,
    done: Done<Option<Attr>>,
) -> Done<Option<Attr>> {
    let (service, request) = (Arc::clone(service), request.clone());
    Box::new(move |result| done(outcome(&*service, &request, result)))
}

/// Submits a change, which an earlier process may have executed.
pub(crate) fn submit(
    service: &Arc<dyn FileService>,
    delivery: RequestDelivery,
    request: MetaRequest,
    done: Done<Option<Attr>>,
) {
    let done = if delivery.is_resent {
        wrap(service, &request, done)
    } else {
        done
    };
    service.change(request, done);
}
