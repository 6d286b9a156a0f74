//! Answers to the kernel: how each kind of reply is sent, and for how long the kernel may rely on
//! what it says.

use std::time::Duration;

use fuser::{
    FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr,
};
use lockstep_types::backing::Space;
use lockstep_types::limits::{BLOCK_BYTES, NAME_BYTES_MAX};
use lockstep_types::{Attr, Errno};

use super::attributes::{file_attr, kernel_errno, no_attr};
use super::context::Context;

/// How long names and attributes may be cached. Everything that changes them comes through this
/// mount, so the kernel knows when they change; the one case where it does not is told to it by
/// [`Context::expire`].
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Inode numbers are never reused, so none needs a generation: handles are equal on both nodes.
pub(super) const GENERATION: Generation = Generation(0);

/// Files need no handle: every request names the inode.
const NO_HANDLE: FileHandle = FileHandle(0);

/// Files bypass the page cache, so that writes to one file run in parallel (measured: three times
/// as many); shared mappings work all the same. Closing has nothing to flush.
const FILE_FLAGS: FopenFlags = FopenFlags::FOPEN_DIRECT_IO
    .union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
    .union(FopenFlags::FOPEN_NOFLUSH);

/// A reply that can say no.
pub(super) trait Refuse {
    /// Answers with an error.
    fn refuse(self, errno: Errno);
}

macro_rules! can_refuse {
    ($($reply:ty),* $(,)?) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: Errno) {
                self.error(kernel_errno(errno));
            }
        })*
    };
}

can_refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyLseek,
    ReplyOpen,
    ReplyPoll,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr,
);

/// Done, or not.
pub(super) fn empty<T>(reply: ReplyEmpty, outcome: Result<T, Errno>) {
    match outcome.map(drop) {
        Ok(()) => reply.ok(),
        Err(errno) => reply.refuse(errno),
    }
}

/// A name and what it leads to. The kernel now counts one reference more.
pub(super) fn entry(context: &Context, reply: ReplyEntry, outcome: Result<Attr, Errno>) {
    match outcome {
        Ok(attr) => {
            context.service().remembered(attr.ino, 1);
            reply.entry(&LIFETIME, &file_attr(&attr), GENERATION);
        }
        Err(errno) => reply.refuse(errno),
    }
}

/// The name leads nowhere, and the kernel may remember that: names come by this mount only.
pub(super) fn no_entry(reply: ReplyEntry) {
    reply.entry(&LIFETIME, &no_attr(), GENERATION);
}

/// Attributes.
pub(super) fn attributes(reply: ReplyAttr, outcome: Result<Attr, Errno>) {
    match outcome {
        Ok(attr) => reply.attr(&LIFETIME, &file_attr(&attr)),
        Err(errno) => reply.refuse(errno),
    }
}

/// A file is open.
pub(super) fn opened(reply: ReplyOpen, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.opened(NO_HANDLE, FILE_FLAGS),
        Err(errno) => reply.refuse(errno),
    }
}

/// A file is made and open. The kernel now counts one reference more.
pub(super) fn created(context: &Context, reply: ReplyCreate, outcome: Result<Attr, Errno>) {
    match outcome.and_then(|attr| open_new(context, attr)) {
        Ok(attr) => reply.created(
            &LIFETIME,
            &file_attr(&attr),
            GENERATION,
            NO_HANDLE,
            FILE_FLAGS,
        ),
        Err(errno) => reply.refuse(errno),
    }
}

fn open_new(context: &Context, attr: Attr) -> Result<Attr, Errno> {
    context.open(attr.ino)?;
    context.service().remembered(attr.ino, 1);
    Ok(attr)
}

/// So many bytes were written or copied; the service cuts a copy to much less than 4 GiB.
pub(super) fn written(reply: ReplyWrite, outcome: Result<u64, Errno>) {
    match outcome {
        Ok(count) => reply.written(u32::try_from(count).unwrap_or(u32::MAX)),
        Err(errno) => reply.refuse(errno),
    }
}

/// A value whose size is asked first: size zero asks, any other is the room there is.
pub(super) fn sized(reply: ReplyXattr, room: u32, outcome: Result<Vec<u8>, Errno>) {
    match outcome {
        Ok(value) if room == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > room as usize => reply.refuse(Errno::Range),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.refuse(errno),
    }
}

/// Room on both nodes, in blocks.
pub(super) fn space(reply: ReplyStatfs, outcome: Result<Space, Errno>) {
    let space = match outcome {
        Ok(space) => space,
        Err(errno) => return reply.refuse(errno),
    };
    let block = BLOCK_BYTES as u64;
    let size = u32::try_from(BLOCK_BYTES).unwrap_or_default();
    let name_max = u32::try_from(NAME_BYTES_MAX).unwrap_or_default();
    reply.statfs(
        space.total_bytes / block,
        space.free_bytes / block,
        space.available_bytes / block,
        space.total_files,
        space.free_files,
        size,
        name_max,
        size,
    );
}
