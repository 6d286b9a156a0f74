//! `setattr` requests of the kernel: one request may need several operations of the datastore.

use std::sync::Arc;

use fuser::{INodeNo, ReplyAttr, TimeOrNow};
use lockstep_driver::client::{FileService, RequestKind};
use lockstep_types::{Errno, Ino, InodeFlags, MetaRequest, Timestamp};

use super::attributes::{ino, permissions, timestamp};
use super::privileges::{self, Caller};
use super::reply;
use crate::admission::context::Context;
use crate::admission::refuse::Refuse;
use crate::admission::request_info::RequestInfo;
use crate::memory::delivery::RequestDelivery;

/// The attributes that one `setattr` request sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetAttrRequest {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    /// The times are not both that of the request: an append-only inode refuses others.
    has_own_times: bool,
}

impl SetAttrRequest {
    /// The request of the kernel, with mode and owner, size, and times of access and modification.
    pub fn new(
        (mode, uid, gid): (Option<u32>, Option<u32>, Option<u32>),
        size: Option<u64>,
        (atime, mtime): (Option<TimeOrNow>, Option<TimeOrNow>),
    ) -> Self {
        let is_touch = matches!((atime, mtime), (Some(TimeOrNow::Now), Some(TimeOrNow::Now)));
        Self {
            mode: mode.map(permissions),
            uid,
            gid,
            size,
            atime: atime.map(timestamp),
            mtime: mtime.map(timestamp),
            has_own_times: !is_touch && (atime.is_some() || mtime.is_some()),
        }
    }

    /// The request, as its admission sees it.
    pub fn info(self, delivery: RequestDelivery) -> RequestInfo {
        let kind = match self.size {
            Some(_) => RequestKind::SizeChange,
            None => RequestKind::Program,
        };
        RequestInfo {
            kind,
            ..RequestInfo::change("setattr", delivery)
        }
    }

    /// The operations of the request. The size comes first: a truncation sets times too, and times that the
    /// request sets explicitly override them.
    fn operations(
        self,
        service: &dyn FileService,
        ino: Ino,
        caller: Caller,
    ) -> Result<Vec<MetaRequest>, Errno> {
        let mut operations = Vec::new();
        if let Some(size) = self.size {
            let attr = service.getattr(ino)?;
            operations.extend(privileges::truncation(caller, &attr, size));
        }
        if self.has_own_times
            && service
                .getattr(ino)?
                .flags
                .intersects(InodeFlags::RESTRICTING)
        {
            return Err(Errno::NotPermitted);
        }
        let rest = self.with_chown_rule(service, ino, caller)?;
        operations.extend(rest.set_attr(ino));
        Ok(operations)
    }

    /// A new owner without a new mode clears the set-id bits.
    fn with_chown_rule(
        self,
        service: &dyn FileService,
        ino: Ino,
        caller: Caller,
    ) -> Result<Self, Errno> {
        let is_chown = self.uid.is_some() || self.gid.is_some();
        if !is_chown || self.mode.is_some() {
            return Ok(self);
        }
        let mode = caller.mode_after_chown(&service.getattr(ino)?);
        Ok(Self { mode, ..self })
    }

    fn set_attr(self, ino: Ino) -> Option<MetaRequest> {
        let nothing = Self {
            size: self.size,
            has_own_times: self.has_own_times,
            ..Self::default()
        };
        (self != nothing).then_some(MetaRequest::SetAttr {
            ino,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            atime: self.atime,
            mtime: self.mtime,
        })
    }
}

/// Carries out a `setattr` request.
pub(crate) fn set_attr(
    context: &Arc<Context>,
    node: INodeNo,
    request: SetAttrRequest,
    caller: Caller,
    reply: ReplyAttr,
) {
    let plan = || {
        let ino = ino(node)?;
        Ok((ino, request.operations(&*context.service, ino, caller)?))
    };
    let (ino, operations) = match plan() {
        Ok(plan) => plan,
        Err(errno) => return Refuse::refuse(reply, errno),
    };
    let shared = Arc::clone(context);
    let done = Box::new(move |outcome: Result<_, Errno>| {
        if request.size.is_some() {
            shared.page_cache.changes().resized(ino);
        }
        let attr = outcome.and_then(|attr| shared.attributes(ino, attr));
        reply::uncached_attributes(reply, attr);
    });
    context.change_in_order(operations, done);
}
