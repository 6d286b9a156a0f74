//! Notes on changes whose refusal leaves the store as their success would: `removexattr`, `setxattr` with `XATTR_CREATE`, and
//! `rename` with `RENAME_WHITEOUT`.
//!
//! The kernel does not look whether an attribute is there, or whether a name leads to a whiteout, before it asks. So a request of
//! this kind may fail at its first execution, and the store then looks as if the request had succeeded. If the store is as the
//! request needs, that is noted in the memory of the mount before the execution (`mount_memory`). If the kernel sends the request
//! again, only a noted request may be explained by its own effect (`resent`). One without a note has changed nothing: either the
//! earlier process was killed before the note, or the request failed.
//!
//! That is exact: the kernel holds the locks of the inodes until the answer, so nothing else changes the attribute or the name
//! between the look and the execution.

use std::sync::Arc;

use lockstep_driver::client::{Done, FileService};
use lockstep_types::{Attr, Errno, MetaRequest, RenameMode, XattrMode};

use super::resent;
use crate::admission::context::Context;
use crate::memory::delivery::RequestDelivery;
use crate::memory::mount_memory::ChangeNote;

/// Submits the changes of a request one after the other. The last one is noted first if it needs a note.
pub(crate) fn submit(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    changes: Vec<MetaRequest>,
    done: Done<Option<Attr>>,
) {
    let Some(change) = changes.last() else {
        return done(Ok(None));
    };
    let memory = &context.memory;
    let done = match memory.find(delivery) {
        Some((_note, slot)) => {
            let own_effect = resent::wrap(&context.service, change, done);
            memory.forgetting(slot, own_effect)
        }
        None if will_change(&*context.service, change) => {
            match memory.note(delivery.unique, ChangeNote::Succeeds) {
                Ok(slot) => memory.forgetting(slot, done),
                Err(error) => {
                    tracing::error!(%error, "the memory of the mount cannot be written");
                    return done(Err(Errno::Io));
                }
            }
        }
        None => done,
    };
    context.change_in_order(changes, done);
}

/// Whether the store is as the change needs. `false` for all changes that need nothing.
fn will_change(service: &dyn FileService, change: &MetaRequest) -> bool {
    match change {
        MetaRequest::SetXattr {
            ino,
            name,
            mode: XattrMode::Create,
            ..
        } => service.getxattr(*ino, name) == Err(Errno::NoData),
        MetaRequest::RemoveXattr { ino, name } => service.getxattr(*ino, name).is_ok(),
        MetaRequest::Rename {
            parent,
            name,
            mode: RenameMode::Whiteout { .. },
            ..
        } => {
            let moved = service.lookup(*parent, name);
            moved.is_ok_and(|moved| !resent::is_whiteout(&moved))
        }
        _ => false,
    }
}
