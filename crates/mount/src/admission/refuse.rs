//! Replies that can carry an error to the kernel.

use fuser::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use lockstep_types::Errno;

/// A reply to a request that may fail.
pub(crate) trait Refuse {
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

/// An error as fuser's.
fn kernel_errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.code())
}
