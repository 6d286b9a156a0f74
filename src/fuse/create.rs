//! Creation of inodes of every kind: files, directories, symbolic links, devices, pipes and sockets.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{INodeNo, Request};
use lockstep_types::{Attr, Errno, Ino, MetaRequest, NodeKind};

use super::attributes::{file_name, ino, permissions};
use super::context::Context;
use super::resent::RequestDelivery;

/// An inode that a request asks for.
#[derive(Clone, Copy)]
pub(super) struct NewInode<'a> {
    pub parent: INodeNo,
    pub name: &'a OsStr,
    pub kind: NodeKind,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
    pub target: &'a [u8],
}

impl NewInode<'_> {
    /// Submits the creation; `then` receives the attributes of the new inode.
    pub fn submit(
        &self,
        context: &Arc<Context>,
        request: &Request,
        then: impl FnOnce(Result<Attr, Errno>) + Send + 'static,
    ) {
        let (ino, change) = match self.request(context, request) {
            Ok(planned) => planned,
            Err(errno) => return then(Err(errno)),
        };
        let shared = Arc::clone(context);
        let done = move |outcome: Result<Option<Attr>, _>| {
            then(outcome.and_then(|attr| shared.attributes(ino, attr)));
        };
        context.change_delivered(RequestDelivery::of(request), change, Box::new(done));
    }

    fn request(&self, context: &Context, request: &Request) -> Result<(Ino, MetaRequest), Errno> {
        let parent = ino(self.parent)?;
        let name = file_name(self.name)?;
        let ino = context.service().next_ino()?;
        let change = MetaRequest::Create {
            parent,
            name,
            ino,
            kind: self.kind,
            mode: permissions(self.mode),
            umask: self.umask,
            uid: request.uid(),
            gid: request.gid(),
            rdev: self.rdev,
            target: self.target.to_vec(),
        };
        Ok((ino, change))
    }
}
