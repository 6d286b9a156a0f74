//! What a history asks to be put in order: changes of the namespace, sights of it, losses.

use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};

use crate::history::{CallId, Entry, Loss};

/// How a change was answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected<'a> {
    /// With success.
    Success,
    /// With success and these attributes.
    Attr(&'a Attr),
    /// With this error.
    Refusal(Errno),
    /// Not, or with an error that says nothing.
    Anything,
}

/// Something that was seen of the namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sight<'a> {
    /// Where a name leads, if it leads anywhere.
    Entry(Ino, &'a FileName, Option<Ino>),
    /// The attributes of an inode.
    Attr(&'a Attr),
    /// All entries of a directory.
    Entries(Ino, &'a [Entry]),
    /// The value of an extended attribute, if it is set.
    Xattr(Ino, &'a [u8], Option<&'a [u8]>),
    /// The target of a symbolic link.
    Target(Ino, &'a [u8]),
    /// The inode is a file.
    File(Ino),
    /// The inode is gone.
    Gone(Ino),
}

/// What a step is.
#[derive(Clone, Copy, Debug)]
pub(super) enum What<'a> {
    /// A metadata operation.
    Change(&'a MetaRequest, Expected<'a>),
    /// A look.
    Sight(Sight<'a>),
    /// A loss.
    Loss(Loss),
}

/// Something to be placed in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    /// The call; `None` for a loss.
    pub call: Option<CallId>,
    /// When it began.
    pub invoked: u64,
    /// When it was over at the latest.
    pub over: u64,
    /// Whether it has to be placed.
    pub is_certain: bool,
    /// When at the latest it was durable.
    pub durable: u64,
    /// Until when it is known to have lasted.
    pub seen_until: u64,
    /// The loss that is known to have taken it.
    pub lost_at: Option<u64>,
    /// What it is.
    pub what: What<'a>,
}

impl Step<'_> {
    /// Whether it can change nothing, whenever it came: not merely that it does not now.
    pub const fn is_still(&self) -> bool {
        match self.what {
            What::Sight(_) | What::Change(_, Expected::Refusal(_)) => true,
            What::Change(request, _) => matches!(
                request,
                MetaRequest::Truncate {
                    drop_set_id: false,
                    ..
                } | MetaRequest::Allocate { .. }
            ),
            What::Loss(_) => false,
        }
    }
}
