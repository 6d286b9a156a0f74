//! Requests of the kernel that are several operations of ours, done one after the other.
//!
//! The kernel holds the lock of the inode meanwhile, so nothing comes in between.

use std::sync::Arc;
use std::vec;

use fuser::{INodeNo, ReplyAttr};
use lockstep_driver::client::{Done, FileService};
use lockstep_types::{Attr, Errno, Ino, MetaRequest, Timestamp};

use super::attributes::ino;
use super::context::Context;
use super::privileges::{self, Caller};
use super::reply::{self, Refuse};

/// What one `setattr` request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
}

impl Wish {
    /// The operations that fulfil it: the size first, because times that are set explicitly count
    /// more than those the truncation sets.
    pub fn steps(
        self,
        service: &dyn FileService,
        ino: Ino,
        caller: Caller,
    ) -> Result<Vec<MetaRequest>, Errno> {
        let mut steps = Vec::new();
        if let Some(size) = self.size {
            let attr = service.getattr(ino)?;
            steps.extend(privileges::truncation(caller, &attr, size));
        }
        let rest = self.with_chown_rule(service, ino, caller)?;
        steps.extend(rest.set_attr(ino));
        Ok(steps)
    }

    /// A new owner without a new mode costs the set-id bits.
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

/// Fulfils the wish of a `setattr` request.
pub(super) fn set_attr(
    context: &Arc<Context>,
    node: INodeNo,
    wish: Wish,
    caller: Caller,
    reply: ReplyAttr,
) {
    let plan = || {
        let ino = ino(node)?;
        Ok((ino, wish.steps(context.service(), ino, caller)?))
    };
    let (ino, steps) = match plan() {
        Ok(plan) => plan,
        Err(errno) => return Refuse::refuse(reply, errno),
    };
    let shared = Arc::clone(context);
    let done = Box::new(move |outcome: Result<_, Errno>| {
        let attr = outcome.and_then(|attr| shared.attributes(ino, attr));
        reply::attributes(reply, attr);
    });
    run(context, steps, done);
}

/// Does `steps` in order and stops at the first that fails; the answer is that of the last.
pub(super) fn run(context: &Arc<Context>, steps: Vec<MetaRequest>, done: Done<Option<Attr>>) {
    advance(context, steps.into_iter(), None, done);
}

fn advance(
    context: &Arc<Context>,
    mut steps: vec::IntoIter<MetaRequest>,
    last: Option<Attr>,
    done: Done<Option<Attr>>,
) {
    let Some(step) = steps.next() else {
        return done(Ok(last));
    };
    let next = Arc::clone(context);
    context.change(Ok(step), move |outcome| match outcome {
        Ok(attr) => advance(&next, steps, attr, done),
        Err(errno) => done(Err(errno)),
    });
}
