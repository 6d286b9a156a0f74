//! Answers to the kernel: how each kind of reply is sent, and how long the kernel may cache it.

use fuser::{
    FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use lockstep_types::backing::Space;
use lockstep_types::limits::{BLOCK_BYTES, NAME_BYTES_MAX};
use lockstep_types::{Attr, Errno, Ino, SnapshotIno};

use super::attributes::{file_attr, no_attr};
use crate::admission::context::Context;
use crate::admission::entrance::Entrance;
use crate::admission::refuse::Refuse;
use crate::kernel_cache::lifetimes::NOT_AT_ALL;

/// The generation of each inode of the present: its number is never reused, and file handles are equal on both nodes.
pub(crate) const OF_PRESENT: Generation = Generation(0);

/// Open files need no handle: every request names the inode.
const NO_HANDLE: FileHandle = FileHandle(0);

/// Open files bypass the page cache, so that writes to one file run in parallel (measured: three times
/// as many); shared mappings still work. Closing has nothing to flush.
const FILE_FLAGS: FopenFlags = FopenFlags::FOPEN_DIRECT_IO
    .union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
    .union(FopenFlags::FOPEN_NOFLUSH);

/// A file of a snapshot never changes: the kernel reads ahead, and keeps its pages.
const SNAPSHOT_FLAGS: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_NOFLUSH);

/// Success without a value, or an error.
pub(crate) fn empty<T>(reply: ReplyEmpty, outcome: Result<T, Errno>) {
    match outcome.map(drop) {
        Ok(()) => reply.ok(),
        Err(errno) => reply.refuse(errno),
    }
}

/// The inode of a name in a directory. The kernel counts one more reference from now on.
pub(crate) fn entry(
    context: &Context,
    directory: INodeNo,
    reply: ReplyEntry,
    outcome: Result<Attr, Errno>,
) {
    let found = outcome.and_then(|attr| Ok((attr, context.service.generation(attr.ino)?)));
    match found {
        Ok((attr, generation)) => {
            context.remember(attr.ino);
            let of_name = context.lifetimes.of_names_in(directory);
            reply.entry_with_ttls(
                &NOT_AT_ALL,
                &of_name,
                &file_attr(&attr),
                Generation(generation),
            );
        }
        Err(errno) => reply.refuse(errno),
    }
}

/// The name does not exist. The kernel may cache that: names appear through this mount only.
pub(crate) fn no_entry(context: &Context, directory: INodeNo, reply: ReplyEntry) {
    reply.entry(
        &context.lifetimes.of_names_in(directory),
        &no_attr(),
        OF_PRESENT,
    );
}

/// The attributes of an inode.
pub(crate) fn attributes(context: &Context, reply: ReplyAttr, outcome: Result<Attr, Errno>) {
    match outcome {
        Ok(attr) if context.page_cache.changes().grows(attr.ino) => {
            reply.attr(&NOT_AT_ALL, &file_attr(&attr));
        }
        Ok(attr) => {
            let lifetime = context.lifetimes.of_names_in(INodeNo(attr.ino.get()));
            reply.attr(&lifetime, &file_attr(&attr));
        }
        Err(errno) => reply.refuse(errno),
    }
}

/// The attributes of an inode after a change, or on a node that does not serve.
pub(crate) fn uncached_attributes(reply: ReplyAttr, outcome: Result<Attr, Errno>) {
    match outcome {
        Ok(attr) => reply.attr(&NOT_AT_ALL, &file_attr(&attr)),
        Err(errno) => reply.refuse(errno),
    }
}

/// The attributes of the root, which each node answers: so the mount point can be looked at.
pub(crate) fn root_attributes(entrance: &Entrance, reply: ReplyAttr) {
    entrance.answer_anywhere("getattr", reply, |context, reply, is_serving| {
        context.service.flush_deferred_writes();
        let attr = context.service.getattr(Ino::ROOT);
        if is_serving {
            attributes(context, reply, attr);
        } else {
            uncached_attributes(reply, attr);
        }
    });
}

/// Opens a file. The handle of a file of a snapshot is the generation of its inode: the inode number may be that of another file later.
pub(crate) fn open(context: &Context, reply: ReplyOpen, ino: Ino) {
    let flags = match SnapshotIno::of(ino) {
        Some(_) => SNAPSHOT_FLAGS,
        None => FILE_FLAGS,
    };
    let generation = context.service.generation(ino);
    match generation.and_then(|it| context.open(ino).map(|()| FileHandle(it))) {
        Ok(handle) => reply.opened(handle, flags),
        Err(errno) => reply.refuse(errno),
    }
}

/// A created and opened file. The kernel counts one more reference from now on.
pub(crate) fn created(context: &Context, reply: ReplyCreate, outcome: Result<Attr, Errno>) {
    match outcome.and_then(|attr| open_new(context, attr)) {
        Ok(attr) => reply.created(
            &context.lifetimes.of_new_inode(),
            &file_attr(&attr),
            OF_PRESENT,
            NO_HANDLE,
            FILE_FLAGS,
        ),
        Err(errno) => reply.refuse(errno),
    }
}

fn open_new(context: &Context, attr: Attr) -> Result<Attr, Errno> {
    context.open(attr.ino)?;
    context.remember(attr.ino);
    Ok(attr)
}

/// The number of bytes written or copied; the service limits a copy to much less than 4 GiB.
pub(crate) fn written(reply: ReplyWrite, outcome: Result<u64, Errno>) {
    match outcome {
        Ok(count) => reply.written(u32::try_from(count).unwrap_or(u32::MAX)),
        Err(errno) => reply.refuse(errno),
    }
}

/// A value for a buffer of `room` bytes. With a `room` of zero the kernel asks for the size of the value.
pub(crate) fn sized(reply: ReplyXattr, room: u32, outcome: Result<Vec<u8>, Errno>) {
    match outcome {
        Ok(value) if room == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > room as usize => reply.refuse(Errno::Range),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.refuse(errno),
    }
}

/// Space on both nodes, in blocks.
pub(crate) fn space(reply: ReplyStatfs, outcome: Result<Space, Errno>) {
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
