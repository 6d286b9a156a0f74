//! `rename` with exchange: the one request whose second execution would undo the first.
//!
//! The inodes behind both names are noted in the memory of the mount before the exchange begins
//! ([`MountMemory`](crate::memory::mount_memory::MountMemory)). If the kernel sends the request again after a restart, the note
//! says which inode was behind which name. First a barrier goes through the datastore: a `rename` that is refused in any case,
//! also on a full disk. When it is refused, each operation of the killed process has either happened on both nodes, or will never
//! happen. Then the names show whether the exchange has happened.

use std::sync::Arc;

use lockstep_driver::client::{Done, FileService};
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, RenameMode};

use super::{change_note, resent};
use crate::admission::context::Context;
use crate::memory::delivery::RequestDelivery;
use crate::memory::mount_memory::{ChangeNote, NoteSlot};

/// The inodes behind the first and the second name.
type Behind = (Ino, Ino);

/// The two names of an exchange.
#[derive(Clone, Debug)]
struct Names {
    from: (Ino, FileName),
    to: (Ino, FileName),
}

impl Names {
    /// The names of a request; `None` if it is no exchange.
    fn of(request: &MetaRequest) -> Option<Self> {
        match request {
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode: RenameMode::Exchange,
            } => Some(Self {
                from: (*parent, name.clone()),
                to: (*new_parent, new_name.clone()),
            }),
            _ => None,
        }
    }

    /// The inodes behind the names now.
    fn look_up(&self, service: &dyn FileService) -> Result<Behind, Errno> {
        let find = |(parent, name): &(Ino, FileName)| service.lookup(*parent, name);
        Ok((find(&self.from)?.ino, find(&self.to)?.ino))
    }

    /// An operation that the datastore takes up like any other and refuses: the second name exists. An operation that needs
    /// room would be refused on a full disk before it is taken up.
    fn barrier(&self) -> MetaRequest {
        let ((parent, name), (new_parent, new_name)) = (self.from.clone(), self.to.clone());
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode: RenameMode::NoReplace,
        }
    }
}

/// Submits a change of names. An exchange is noted first, and so is a rename that leaves a whiteout.
pub(crate) fn submit(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    request: MetaRequest,
    done: Done<Option<Attr>>,
) {
    if let MetaRequest::Rename {
        mode: RenameMode::Whiteout { .. },
        ..
    } = request
    {
        return change_note::submit(context, delivery, vec![request], done);
    }
    let Some(names) = Names::of(&request) else {
        return resent::submit(&context.service, delivery, request, done);
    };
    match context.memory.find(delivery) {
        Some((ChangeNote::Exchange { from, to }, slot)) => {
            repeat(context, names, (from, to), slot, request, done);
        }
        // The earlier process was killed before the note, and so before the exchange.
        _ => begin(context, &names, delivery, request, done),
    }
}

/// Notes an exchange, and executes it.
fn begin(
    context: &Arc<Context>,
    names: &Names,
    delivery: RequestDelivery,
    request: MetaRequest,
    done: Done<Option<Attr>>,
) {
    let (from, to) = match names.look_up(&*context.service) {
        Ok(behind) => behind,
        Err(errno) => return done(Err(errno)),
    };
    let slot = match context
        .memory
        .note(delivery.unique, ChangeNote::Exchange { from, to })
    {
        Ok(slot) => slot,
        Err(error) => {
            tracing::error!(%error, "the memory of the mount cannot be written");
            return done(Err(Errno::Io));
        }
    };
    let done = context.memory.forgetting(slot, done);
    context.service.change(request, done);
}

/// Executes an exchange that the earlier process had noted, unless it has happened.
fn repeat(
    context: &Arc<Context>,
    names: Names,
    (from, to): Behind,
    slot: NoteSlot,
    request: MetaRequest,
    done: Done<Option<Attr>>,
) {
    let service = Arc::clone(&context.service);
    let done = context.memory.forgetting(slot, done);
    let barrier = names.barrier();
    let after_barrier = move |_refused| match names.look_up(&*service) {
        Ok(now) if now == (to, from) => done(Ok(None)),
        Ok(_) => service.change(request, done),
        Err(errno) => done(Err(errno)),
    };
    context.service.change(barrier, Box::new(after_barrier));
}
