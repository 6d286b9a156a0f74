//! Creation of inodes of every kind: files, directories, symbolic links, devices, pipes and sockets.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{INodeNo, Request};
use lockstep_driver::client::FileService;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode};

use super::attributes::{file_name, ino, permissions};
use crate::admission::context::Context;
use crate::memory::delivery::RequestDelivery;
use crate::resume::resent;

/// The mode of a rename that leaves a whiteout, which belongs to this user and group.
pub(crate) fn whiteout(
    service: &dyn FileService,
    (uid, gid): (u32, u32),
) -> Result<RenameMode, Errno> {
    let ino = service.next_ino()?;
    Ok(RenameMode::Whiteout { ino, uid, gid })
}

/// An inode that a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct NewInode {
    pub parent: INodeNo,
    pub name: Result<FileName, Errno>,
    pub kind: NodeKind,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
    pub target: Vec<u8>,
    /// User and group of the caller.
    pub owner: (u32, u32),
    pub delivery: RequestDelivery,
}

impl NewInode {
    /// An inode without a device number and target, with the name and the caller of a request.
    pub fn new(
        request: &Request,
        delivery: RequestDelivery,
        (parent, name): (INodeNo, &OsStr),
        kind: NodeKind,
    ) -> Self {
        Self {
            parent,
            name: file_name(name),
            kind,
            mode: 0,
            umask: 0,
            rdev: 0,
            target: Vec::new(),
            owner: (request.uid(), request.gid()),
            delivery,
        }
    }

    /// The same inode, with the permission bits of a mode less those of a mask.
    pub fn with_mode(self, mode: u32, umask: u32) -> Self {
        Self {
            mode,
            umask,
            ..self
        }
    }

    /// Submits the creation; `then` receives the attributes of the new inode.
    pub fn submit(
        self,
        context: &Arc<Context>,
        then: impl FnOnce(Result<Attr, Errno>) + Send + 'static,
    ) {
        let delivery = self.delivery;
        let (ino, change) = match self.request(&*context.service) {
            Ok(planned) => planned,
            Err(errno) => return then(Err(errno)),
        };
        let shared = Arc::clone(context);
        let done = move |outcome: Result<Option<Attr>, _>| {
            then(outcome.and_then(|attr| shared.attributes(ino, attr)));
        };
        resent::submit(&context.service, delivery, change, Box::new(done));
    }

    fn request(self, service: &dyn FileService) -> Result<(Ino, MetaRequest), Errno> {
        let parent = ino(self.parent)?;
        let name = self.name?;
        let ino = service.next_ino()?;
        let (uid, gid) = self.owner;
        let change = MetaRequest::creation(parent, name, ino, self.kind)
            .mode(permissions(self.mode))
            .umask(self.umask)
            .owner(uid, gid)
            .rdev(self.rdev)
            .target(self.target);
        Ok((ino, change.request()))
    }
}
