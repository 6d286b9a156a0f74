//! The steps that the search puts in order: changes of the namespace, sights of it, losses.

use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};

use crate::history::loss::Loss;
use crate::history::{CallId, Entry};

/// The answer to a change.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected<'a> {
    /// The change succeeded.
    Success,
    /// The change succeeded with these attributes.
    Attr(&'a Attr),
    /// The change was refused with this error.
    Refusal(Errno),
    /// The change was not answered, or its error does not tell whether it happened.
    Anything,
}

/// An observation of the namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sight<'a> {
    /// The inode to which a name leads, if it leads anywhere.
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
    /// The inode no longer exists.
    Gone(Ino),
}

/// The kind of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum What<'a> {
    /// A metadata operation.
    Change(&'a MetaRequest, Expected<'a>),
    /// A look.
    Sight(Sight<'a>),
    /// A loss.
    Loss(Loss),
    /// A program is let in, so each uncertain step that was over by now has happened, or does not happen any more.
    Settled,
}

/// A step to be placed in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    /// The call. `None` for a loss, and where a program is let in.
    pub call: Option<CallId>,
    /// Time when the step began.
    pub invoked: u64,
    /// Latest time at which the step was over.
    pub over: u64,
    /// Whether the step must be placed.
    pub is_certain: bool,
    /// Latest time at which the step became durable.
    pub durable: u64,
    /// Time until which the step is known to have lasted.
    pub seen_until: u64,
    /// Time of the loss that is known to have undone the step.
    pub lost_at: Option<u64>,
    /// The kind of the step.
    pub what: What<'a>,
}

impl<'a> Step<'a> {
    /// Returns a step that no call made: it happens at one moment.
    pub const fn at_moment(moment: u64, what: What<'a>) -> Self {
        Self {
            call: None,
            invoked: moment,
            over: moment,
            is_certain: true,
            durable: u64::MAX,
            seen_until: 0,
            lost_at: None,
            what,
        }
    }

    /// Returns whether the step can change nothing at any point of the order, not only at the
    /// present point.
    pub const fn changes_nothing(&self) -> bool {
        match self.what {
            What::Sight(_) | What::Change(_, Expected::Refusal(_)) => true,
            What::Change(request, _) => matches!(
                request,
                MetaRequest::Truncate {
                    drop_set_id: false,
                    ..
                } | MetaRequest::Allocate { .. }
            ),
            What::Loss(_) | What::Settled => false,
        }
    }
}
