//! The flags of inodes: the `ioctl` requests that show and set them (`lsattr`, `chattr`), and the forms of `open` that they
//! forbid.
//!
//! The kernel checks who may set a flag, and holds the lock of the inode until the answer. The service enforces the flags at each
//! change ([`lockstep_types::InodeFlags`]): the kernel does not know the flags of a FUSE inode.

use std::sync::Arc;

use fuser::{INodeNo, OpenFlags, ReplyIoctl};
use lockstep_driver::client::FileService;
use lockstep_types::{Errno, Ino, InodeFlags, MetaRequest, SnapshotIno};
use rustix::fs::OFlags;

use super::attributes::ino;
use super::content;
use crate::admission::context::Context;
use crate::admission::refuse::Refuse;
use crate::admission::request_info::RequestInfo;
use crate::kernel_cache::page_cache::ChangeEnd;
use crate::memory::delivery::RequestDelivery;

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`: one number. The kernel gives it four bytes.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`: the flags in other bits, and numbers of which a datastore has none.
const GET_ATTRIBUTES: u32 = 0x801c_581f;
const SET_ATTRIBUTES: u32 = 0x401c_5820;

/// Each flag with its bit in either form.
const FLAGS: [(InodeFlags, u32, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x10, 0x08),
    (InodeFlags::APPEND_ONLY, 0x20, 0x10),
    (InodeFlags::NO_DUMP, 0x40, 0x80),
    (InodeFlags::NO_ATIME, 0x80, 0x40),
];

/// A request about the flags of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagsRequest {
    /// Show the flags.
    Show(FlagsForm),
    /// Set the flags, if a datastore has them.
    Set(Result<InodeFlags, Errno>),
}

/// The form in which flags are shown and set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagsForm {
    /// One number.
    Number,
    /// Flags in other bits, and other numbers.
    Attributes,
}

impl FlagsForm {
    fn bit(self, (_, of_number, of_attributes): (InodeFlags, u32, u32)) -> u32 {
        match self {
            Self::Number => of_number,
            Self::Attributes => of_attributes,
        }
    }

    /// The flags in this form, as the first of some bytes.
    fn encode(self, flags: InodeFlags, bytes: usize) -> Vec<u8> {
        let set = FLAGS.into_iter().filter(|flag| flag.0.intersects(flags));
        let number = set.fold(0, |number, flag| number | self.bit(flag));
        let mut encoded = number.to_ne_bytes().to_vec();
        encoded.resize(bytes, 0);
        encoded
    }

    /// Reads flags in this form.
    fn decode(self, input: &[u8]) -> Result<InodeFlags, Errno> {
        let (number, others) = input.split_first_chunk().ok_or(Errno::Invalid)?;
        let mut left = u32::from_ne_bytes(*number);
        let mut flags = InodeFlags::NONE;
        for flag in FLAGS {
            let bit = self.bit(flag);
            if left & bit != 0 {
                left &= !bit;
                flags = flags.union(flag.0);
            }
        }
        // Other flags, a project, a size of extents.
        if left != 0 || others.iter().any(|byte| *byte != 0) {
            return Err(Errno::NotSupported);
        }
        Ok(flags)
    }
}

impl FlagsRequest {
    /// The request of an `ioctl`, if it is about flags.
    pub fn of(command: u32, input: &[u8]) -> Option<Self> {
        Some(match command {
            GET_FLAGS => Self::Show(FlagsForm::Number),
            GET_ATTRIBUTES => Self::Show(FlagsForm::Attributes),
            SET_FLAGS => Self::Set(FlagsForm::Number.decode(input)),
            SET_ATTRIBUTES => Self::Set(FlagsForm::Attributes.decode(input)),
            _ => return None,
        })
    }

    /// The request, as its admission sees it.
    pub fn info(self, delivery: RequestDelivery) -> RequestInfo {
        match self {
            Self::Show(_) => "lsattr".into(),
            Self::Set(_) => RequestInfo::change("chattr", delivery),
        }
    }

    /// Carries the request out, with an answer of so many bytes.
    pub fn run(
        self,
        context: &Arc<Context>,
        delivery: RequestDelivery,
        node: INodeNo,
        room: u32,
        reply: ReplyIoctl,
    ) {
        let ino = match ino(node) {
            Ok(ino) => ino,
            Err(errno) => return reply.refuse(errno),
        };
        match self {
            Self::Show(form) => match context.service.getattr(ino) {
                Ok(attr) => reply.ioctl(0, &form.encode(attr.flags, room as usize)),
                Err(errno) => reply.refuse(errno),
            },
            Self::Set(Ok(flags)) => set(context, delivery, ino, flags, reply),
            Self::Set(Err(errno)) => reply.refuse(errno),
        }
    }
}

/// Sets the flags of an inode. The stores of mappings are written back before the flags forbid that.
fn set(
    context: &Arc<Context>,
    delivery: RequestDelivery,
    ino: Ino,
    flags: InodeFlags,
    reply: ReplyIoctl,
) {
    let restricts = flags.intersects(InodeFlags::RESTRICTING);
    if !restricts || !context.page_cache.changes().is_cached(ino) {
        return submit(context, ino, flags, reply);
    }
    let all = (ino, 0..u64::MAX);
    content::change_directly(context, delivery, all, move |context, change| {
        let change = match change {
            Ok(change) => change,
            Err(errno) => return reply.refuse(errno),
        };
        let shared = Arc::clone(context);
        let then = move || submit(&shared, ino, flags, reply);
        let cache = &context.page_cache;
        cache.finish(change, ChangeEnd::Failed, then);
    });
}

fn submit(context: &Arc<Context>, ino: Ino, flags: InodeFlags, reply: ReplyIoctl) {
    let shared = Arc::clone(context);
    let done = move |outcome| {
        // The kernel does not know that `ctime` has changed.
        shared.kernel_cache.expire(ino);
        match outcome {
            Ok(_) => reply.ioctl(0, &[]),
            Err(errno) => reply.refuse(errno),
        }
    };
    let change = MetaRequest::SetFlags { ino, flags };
    context.service.change(change, Box::new(done));
}

/// The file of an `open`. Refuses to open a file in a way that its flags forbid.
pub(crate) fn check_open(
    service: &dyn FileService,
    node: INodeNo,
    flags: OpenFlags,
) -> Result<Ino, Errno> {
    let ino = ino(node)?;
    let opened = OFlags::from_bits_retain(flags.0.cast_unsigned());
    if opened & OFlags::RWMODE == OFlags::RDONLY {
        return Ok(ino);
    }
    if SnapshotIno::of(ino).is_some() {
        return Err(Errno::ReadOnly);
    }
    let forbidding = if opened.contains(OFlags::APPEND) {
        InodeFlags::IMMUTABLE
    } else {
        InodeFlags::RESTRICTING
    };
    let is_forbidden = service.getattr(ino)?.flags.intersects(forbidding);
    (!is_forbidden).then_some(ino).ok_or(Errno::NotPermitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_other_bits_in_either_form() {
        let two = InodeFlags::IMMUTABLE.union(InodeFlags::NO_ATIME);
        for (form, number) in [(FlagsForm::Number, 0x90_u32), (FlagsForm::Attributes, 0x48)] {
            let encoded = form.encode(two, 28);
            assert_eq!(encoded.len(), 28);
            assert_eq!(encoded.first_chunk(), Some(&number.to_ne_bytes()));
            assert_eq!(form.decode(&encoded), Ok(two));
        }
    }

    #[test]
    fn flags_and_numbers_that_a_datastore_does_not_have_are_refused() {
        let synchronous = 8_u32.to_ne_bytes();
        let decode = |input: &[u8]| FlagsForm::Number.decode(input);
        assert_eq!(decode(&synchronous), Err(Errno::NotSupported));
        assert_eq!(decode(&[0; 4]), Ok(InodeFlags::NONE));
        assert_eq!(decode(&[0; 3]), Err(Errno::Invalid));
        let project = [[0; 12], [1; 12]].concat();
        let refused = FlagsForm::Attributes.decode(&project);
        assert_eq!(refused, Err(Errno::NotSupported));
    }
}
