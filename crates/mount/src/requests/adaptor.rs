//! The callbacks for the kernel's requests: each callback turns a request into calls of the service, and the
//! outcome into a reply.
//!
//! Requests that the kernel never sends for such a mount (locks, `access`, `bmap`) keep fuser's defaults. Where
//! fuser's default logs a warning for each request, a callback refuses the request instead.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use lockstep_types::{Errno, Ino, MetaRequest, NodeKind};

use super::attributes::{file_name, ino, is_shown_anywhere, kind_and_mode};
use super::create::NewInode;
use super::inode_flags::{self, FlagsRequest};
use super::names::LookupTarget;
use super::privileges::Caller;
use super::setattr::{self, SetAttrRequest};
use super::write::{self, WriteRequest};
use super::{content, extended, listing, names, reply};
use crate::admission::caller_thread::CallerThread;
use crate::admission::context::Context;
use crate::admission::entrance::Entrance;
use crate::admission::refuse::Refuse;
use crate::admission::request_info::RequestInfo;
use crate::device::init;
use crate::device::reader_start::{NO_NODE, ReaderStart};
use crate::device::request_queue::RequestQueue;

mod answers;

/// Permission bits of a symbolic link. Linux never checks them.
const LINK_MODE: u32 = 0o777;

/// The file system that fuser calls.
pub(crate) struct Adaptor {
    entrance: Arc<Entrance>,
    queue: RequestQueue,
    start: ReaderStart,
}

impl Adaptor {
    pub fn new(entrance: Arc<Entrance>, queue: RequestQueue, start: ReaderStart) -> Self {
        Self {
            entrance,
            queue,
            start,
        }
    }
}

impl Filesystem for Adaptor {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        init::negotiate(config)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let target = LookupTarget::of(name);
        if target.as_ref().is_ok_and(|it| it.is_entrance(parent)) {
            return self.look_anywhere("lookup", reply, |context, reply| {
                names::look_up(context, parent, target, reply);
            });
        }
        self.look(request, parent, "lookup", reply, move |context, reply| {
            names::look_up(context, parent, target, reply);
        });
    }

    /// fuser calls this for each inode of a `batch_forget`, too.
    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.forget_one(node, count);
    }

    fn getattr(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        if node.0 == Ino::ROOT.get() {
            return reply::root_attributes(&self.entrance, reply);
        }
        let info = RequestInfo::look("getattr", request);
        self.look(request, node, info, reply, move |context, reply| {
            let attr = ino(node).and_then(|ino| context.service.getattr(ino));
            reply::attributes(context, reply, attr);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let attributes = SetAttrRequest::new((mode, uid, gid), size, (atime, mtime));
        let caller = Caller::of(request);
        let info = attributes.info(self.entrance.delivery(request));
        self.answer(request, info, reply, move |context, reply| {
            setattr::set_attr(context, node, attributes, caller, reply);
        });
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        self.look(
            request,
            node,
            "readlink",
            reply,
            move |context, reply| match ino(node).and_then(|ino| context.service.readlink(ino)) {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.refuse(errno),
            },
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (kind, mode) = match kind_and_mode(mode) {
            Ok(parts) => parts,
            Err(errno) => return reply.refuse(errno),
        };
        let new = NewInode {
            rdev,
            ..self
                .new_inode(request, (parent, name), kind)
                .with_mode(mode, umask)
        };
        self.create_inode(request, "mknod", new, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = self.new_inode(request, (parent, name), NodeKind::Directory);
        self.create_inode(request, "mkdir", new.with_mode(mode, umask), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = NewInode {
            mode: LINK_MODE,
            target: target.as_os_str().as_bytes().to_vec(),
            ..self.new_inode(request, (parent, name), NodeKind::Symlink)
        };
        self.create_inode(request, "symlink", new, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let new = self
            .new_inode(request, (parent, name), NodeKind::File)
            .with_mode(mode, umask);
        let info = RequestInfo::change("create", new.delivery);
        self.answer(request, info, reply, move |context, reply| {
            let shared = Arc::clone(context);
            new.submit(context, move |outcome| {
                reply::created(&shared, reply, outcome);
            });
        });
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (delivery, name) = (self.entrance.delivery(request), file_name(name));
        let info = RequestInfo::change("link", delivery);
        self.answer(request, info, reply, move |context, reply| {
            names::link(context, delivery, node, (parent, name), reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let entry = names::entry(parent, name);
        self.change("unlink", request, reply, move |_| {
            let (parent, name) = entry?;
            Ok(MetaRequest::Unlink { parent, name })
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let entry = names::entry(parent, name);
        self.change("rmdir", request, reply, move |_| {
            let (parent, name) = entry?;
            Ok(MetaRequest::Rmdir { parent, name })
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (
            names::entry(parent, name),
            names::entry(new_parent, new_name),
        );
        let owner = (request.uid(), request.gid());
        self.change("rename", request, reply, move |service| {
            names::rename(service, from?, to?, flags, owner)
        });
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.look(
            request,
            node,
            "open",
            reply,
            move |context, reply| match inode_flags::check_open(&*context.service, node, flags) {
                Ok(ino) => reply::open(context, reply, ino),
                Err(errno) => reply.refuse(errno),
            },
        );
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let entrance = &self.entrance;
        entrance.answer_counting("release", reply, |context, reply| {
            context.service.flush_deferred_writes();
            let outcome = ino(node).map(|ino| context.close(ino));
            reply::empty(reply, outcome);
        });
    }

    /// A close has nothing to flush: every write is answered when it is done.
    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.flush_deferred_for("flush");
        reply.ok();
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let info = content::read_info(node, offset, size, owner);
        self.look(request, node, info, reply, move |context, reply| {
            content::read(context, (node, handle), (offset, size), owner, reply);
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (caller, delivery) = (Caller::of(request), self.entrance.delivery(request));
        let thread = CallerThread::new(request.pid());
        let request = WriteRequest::new(caller, delivery, write_flags, flags, &self.queue);
        self.entrance.answer_or_keep(
            request.info().by(thread),
            reply,
            |context, reply| write::write(context, request, node, offset, data, reply),
            || {
                let (request, data_bytes, data) = (request.delayed(), data.len(), data.to_vec());
                let body = move |context: &Arc<Context>, reply| {
                    write::write(context, request, node, offset, &data, reply);
                };
                (data_bytes, body)
            },
        );
    }

    fn fsync(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.sync("fsync", request, node, reply);
    }

    fn fsyncdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.sync("fsyncdir", request, node, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let by = (Caller::of(request), self.entrance.delivery(request));
        let info = RequestInfo::change("fallocate", by.1);
        self.answer(request, info, reply, move |context, reply| {
            content::allocate(context, by, node, (offset, length), mode, reply);
        });
    }

    fn lseek(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.look(request, node, "lseek", reply, move |context, reply| {
            content::seek(&*context.service, node, offset, whence, reply);
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let by = (Caller::of(request), self.entrance.delivery(request));
        let info = RequestInfo::change("copy_file_range", by.1);
        self.answer(request, info, reply, move |context, reply| {
            let (from, to) = ((from, from_offset), (to, to_offset));
            content::copy(context, by, from, to, length, reply);
        });
    }

    /// Directories need no opening. After this answer the kernel sends no further `opendir`, and caches names; at
    /// every change through the mount it drops them itself.
    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.flush_deferred_for("opendir");
        reply.refuse(Errno::NotImplemented);
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.look(request, node, "readdir", reply, move |context, reply| {
            listing::names(&*context.service, node, offset, reply);
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.look(
            request,
            node,
            "readdirplus",
            reply,
            move |context, reply| {
                listing::names_with_attributes(context, node, offset, reply);
            },
        );
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let entrance = &self.entrance;
        entrance.answer_counting("statfs", reply, |context, reply| {
            context.service.flush_deferred_writes();
            reply::space(reply, context.service.space());
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let caller = Caller::of(request);
        let delivery = self.entrance.delivery(request);
        let attribute = (name.as_bytes().to_vec(), value.to_vec());
        let info = RequestInfo::change("setxattr", delivery);
        self.answer(request, info, reply, move |context, reply| {
            let changes = extended::set_changes(&*context.service, caller, node, attribute, flags);
            extended::submit(context, delivery, changes, reply);
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        room: u32,
        reply: ReplyXattr,
    ) {
        let name = name.as_bytes();
        if is_shown_anywhere(node) {
            return self.look_anywhere("getxattr", reply, |context, reply| {
                extended::answer(&*context.service, node, name, room, reply);
            });
        }
        self.entrance.answer_or_keep(
            RequestInfo::look("getxattr", request).of(request),
            reply,
            |context, reply| extended::answer(&*context.service, node, name, room, reply),
            || {
                let name = name.to_vec();
                let body = move |context: &Arc<Context>, reply| {
                    extended::answer(&*context.service, node, &name, room, reply);
                };
                (0, body)
            },
        );
    }

    fn listxattr(&self, request: &Request, node: INodeNo, room: u32, reply: ReplyXattr) {
        let caller = Caller::of(request);
        let list = move |context: &Arc<Context>, reply| {
            let list = ino(node).and_then(|ino| context.service.listxattr(ino));
            let visible = list.map(|list| extended::visible(&list, caller));
            reply::sized(reply, room, visible);
        };
        if is_shown_anywhere(node) {
            return self.look_anywhere("listxattr", reply, list);
        }
        self.answer(request, "listxattr", reply, list);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (delivery, name) = (self.entrance.delivery(request), name.as_bytes().to_vec());
        let info = RequestInfo::change("removexattr", delivery);
        self.answer(request, info, reply, move |context, reply| {
            let changes = extended::remove_change(node, name);
            extended::submit(context, delivery, changes, reply);
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        input: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        let Some(about_flags) = FlagsRequest::of(command, input) else {
            self.flush_deferred_for("ioctl");
            reply.error(fuser::Errno::ENOTTY);
            if node == NO_NODE {
                self.start.run(input);
            }
            return;
        };
        let delivery = self.entrance.delivery(request);
        let info = about_flags.info(delivery);
        self.look(request, node, info, reply, move |context, reply| {
            about_flags.run(context, delivery, node, room, reply);
        });
    }

    /// Files are always ready. After this answer the kernel sends no further `poll`.
    fn poll(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.flush_deferred_for("poll");
        reply.refuse(Errno::NotImplemented);
    }
}
