//! The ways in which the adaptor answers most requests: through the entrance, after the deferred writes.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{INodeNo, ReplyEmpty, ReplyEntry, Request};
use lockstep_driver::client::FileService;
use lockstep_types::{Errno, MetaRequest, NodeKind};

use super::Adaptor;
use crate::admission::context::Context;
use crate::admission::refuse::Refuse;
use crate::admission::request_info::RequestInfo;
use crate::requests::attributes::{ino, is_of_snapshot};
use crate::requests::content;
use crate::requests::create::NewInode;
use crate::requests::reply;
use crate::resume::exchange;

impl Adaptor {
    /// Answers one request other than a write; see [`Entrance::answer`](crate::admission::entrance::Entrance::answer).
    pub fn answer<R: Refuse + Send + 'static>(
        &self,
        request: &Request,
        info: impl Into<RequestInfo>,
        reply: R,
        body: impl FnOnce(&Arc<Context>, R) + Send + 'static,
    ) {
        let info = info.into().of(request);
        self.entrance.answer(info, reply, |context, reply| {
            context.service.flush_deferred_writes();
            body(context, reply);
        });
    }

    /// Answers one request that only looks at the file of a node: on any node of the datastore if the file is one of a snapshot, which never
    /// changes.
    pub fn look<R: Refuse + Send + 'static>(
        &self,
        request: &Request,
        node: INodeNo,
        info: impl Into<RequestInfo>,
        reply: R,
        body: impl FnOnce(&Arc<Context>, R) + Send + 'static,
    ) {
        if !is_of_snapshot(node) {
            return self.answer(request, info, reply, body);
        }
        self.look_anywhere(info.into().operation, reply, body);
    }

    /// Answers one request that looks at a snapshot, whether this node serves or not.
    pub fn look_anywhere<R: Refuse>(
        &self,
        operation: &'static str,
        reply: R,
        body: impl FnOnce(&Arc<Context>, R),
    ) {
        self.entrance
            .answer_counting(operation, reply, |context, reply| {
                context.service.flush_deferred_writes();
                body(context, reply);
            });
    }

    /// The inode that a request asks for, without the device number and target that some kinds have.
    pub fn new_inode(&self, by: &Request, place: (INodeNo, &OsStr), kind: NodeKind) -> NewInode {
        NewInode::new(by, self.entrance.delivery(by), place, kind)
    }

    /// Answers one request to create an inode.
    pub fn create_inode(&self, by: &Request, name: &'static str, new: NewInode, reply: ReplyEntry) {
        let info = RequestInfo::change(name, new.delivery);
        self.answer(by, info, reply, |context, reply| {
            let (shared, directory) = (Arc::clone(context), new.parent);
            new.submit(context, move |outcome| {
                reply::entry(&shared, directory, reply, outcome);
            });
        });
    }

    /// Answers one request to change names. A request that waits is made when this node serves: a whiteout needs a number.
    pub fn change(
        &self,
        operation: &'static str,
        request: &Request,
        reply: ReplyEmpty,
        change: impl FnOnce(&dyn FileService) -> Result<MetaRequest, Errno> + Send + 'static,
    ) {
        let delivery = self.entrance.delivery(request);
        let info = RequestInfo::change(operation, delivery);
        self.answer(request, info, reply, move |context, reply| {
            match change(&*context.service) {
                Ok(change) => {
                    let done = |outcome| reply::empty(reply, outcome);
                    exchange::submit(context, delivery, change, Box::new(done));
                }
                Err(errno) => reply.refuse(errno),
            }
        });
    }

    /// Puts a file or a directory on stable storage.
    pub fn sync(
        &self,
        operation: &'static str,
        request: &Request,
        node: INodeNo,
        reply: ReplyEmpty,
    ) {
        self.look(request, node, operation, reply, move |context, reply| {
            content::sync(&*context.service, node, reply);
        });
    }

    /// Flushes deferred writes for a request that needs nothing else of the service.
    pub fn flush_deferred_for(&self, operation: &'static str) {
        self.entrance.run_without_reply(operation, |context| {
            context.service.flush_deferred_writes();
        });
    }

    /// Subtracts references that the kernel has dropped. A `forget` request has no reply.
    pub fn forget_one(&self, node: INodeNo, count: u64) {
        self.entrance.run_without_reply("forget", |context| {
            context.service.flush_deferred_writes();
            if let Ok(ino) = ino(node) {
                context.page_cache.changes().forgotten(ino);
                context.forget(ino, count);
            }
        });
    }
}
