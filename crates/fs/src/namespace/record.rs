//! Values of the namespace in the key-value store, and their encoding.
//!
//! Invariant: equal records encode to equal bytes, so that the two nodes can be compared by hashes
//! of encoded records.

use std::num::TryFromIntError;

use lockstep_types::mode::MODE_BITS;
use lockstep_types::{Attr, BootId, FileName, Ino, InodeFlags, NodeKind, Osn, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};

/// A record to write (`Some`) or to delete (`None`), under its key.
pub type RecordChange = (Vec<u8>, Option<Vec<u8>>);

/// First cookie given to a directory entry: 1 and 2 are for `.` and `..`.
pub const FIRST_COOKIE: u64 = 3;

/// The permission bits and the flags of an inode. In its record they are one number, which has the flags above the twelve bits
/// of the mode: so a record without flags is what it was before there were flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ModeAndFlags {
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Flags.
    pub flags: InodeFlags,
}

impl ModeAndFlags {
    /// Permission bits without flags.
    pub const fn of_mode(mode: u32) -> Self {
        Self {
            mode,
            flags: InodeFlags::NONE,
        }
    }
}

impl TryFrom<u32> for ModeAndFlags {
    type Error = TryFromIntError;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        let flags = u8::try_from(number >> MODE_BITS.count_ones())?;
        Ok(Self {
            mode: number & MODE_BITS,
            flags: InodeFlags::from_bits(flags),
        })
    }
}

impl From<ModeAndFlags> for u32 {
    fn from(access: ModeAndFlags) -> Self {
        access.mode | Self::from(access.flags.bits()) << MODE_BITS.count_ones()
    }
}

/// The record of an inode: everything but its content and extended attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// Permission bits and flags.
    pub bits: ModeAndFlags,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// The last metadata operation that changed this inode (paper, section 5.2).
    pub osn: Osn,
    /// The part of a record that depends on the kind of inode.
    pub body: Body,
    /// The place of the name that the inode has got last: a reader that has the inode finds a name without a search. The name may be
    /// gone: a file with several names may lose that one. `None` for the root, and in the records of earlier builds. An inode in the trash has a
    /// place without an entry ([`Inode::is_in_trash`]).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_end"
    )]
    pub named_at: Option<EntryPlace>,
}

/// The place of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryPlace {
    /// The directory.
    pub directory: Ino,
    /// The cookie of the entry.
    pub cookie: u64,
}

impl EntryPlace {
    /// The cookie in the place of an inode in the trash. No entry has it: it is below [`FIRST_COOKIE`].
    const IN_TRASH: u64 = 0;

    /// The place of an inode in the trash that had its last name in `directory`.
    pub(super) const fn in_trash(directory: Ino) -> Self {
        Self {
            directory,
            cookie: Self::IN_TRASH,
        }
    }
}

/// The mark of an inode without a name that is in the trash, under [`crate::namespace::keys::orphan`]. The mark of any other inode without a name
/// has no bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashMark {
    /// The directory of the last name, which may be in the trash as well.
    pub parent: Ino,
    /// The last name.
    pub name: FileName,
    /// The time of the operation that took the name away.
    pub time: Timestamp,
    /// The number of that operation, which puts the trash in its order.
    pub osn: Osn,
}

/// The last value of a record. A record of an earlier build ends before it.
#[allow(clippy::unnecessary_wraps)] // for serde
fn optional_end<'de, D: Deserializer<'de>>(bytes: D) -> Result<Option<EntryPlace>, D::Error> {
    Ok(Option::deserialize(bytes).unwrap_or_default())
}

/// The part of a record that depends on the kind of inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A regular file.
    File {
        /// Length in bytes. Behind while the file has unflushed writes: then the entry of the open file has the size.
        size: u64,
    },
    /// A directory.
    Directory {
        /// The directory above; the root is above itself.
        parent: Ino,
        /// Cookie for the next new entry; only grows.
        next_cookie: u64,
        /// Number of entries.
        entries: u64,
    },
    /// A symbolic link.
    Symlink {
        /// The path that it points to.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
    /// A character device.
    CharDevice {
        /// Its device number.
        rdev: u32,
    },
    /// A block device.
    BlockDevice {
        /// Its device number.
        rdev: u32,
    },
}

impl Body {
    /// The kind of inode this is the body of.
    pub const fn kind(&self) -> NodeKind {
        match self {
            Self::File { .. } => NodeKind::File,
            Self::Directory { .. } => NodeKind::Directory,
            Self::Symlink { .. } => NodeKind::Symlink,
            Self::Fifo => NodeKind::Fifo,
            Self::Socket => NodeKind::Socket,
            Self::CharDevice { .. } => NodeKind::CharDevice,
            Self::BlockDevice { .. } => NodeKind::BlockDevice,
        }
    }

    /// Length of a regular file in bytes; `None` for other kinds.
    pub const fn file_size(&self) -> Option<u64> {
        match self {
            Self::File { size } => Some(*size),
            _ => None,
        }
    }

    const fn rdev(&self) -> u32 {
        match self {
            Self::CharDevice { rdev } | Self::BlockDevice { rdev } => *rdev,
            _ => 0,
        }
    }

    /// Size as `stat` shows it. A directory shows one block, as ext4 does for a small one.
    fn size(&self) -> u64 {
        match self {
            Self::File { size } => *size,
            Self::Directory { .. } => 4096,
            Self::Symlink { target } => target.len() as u64,
            _ => 0,
        }
    }
}

impl Inode {
    /// The kind of this inode.
    pub const fn kind(&self) -> NodeKind {
        self.body.kind()
    }

    /// Whether it is a directory.
    pub const fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// Whether it is in the trash (rule P38).
    pub const fn is_in_trash(&self) -> bool {
        matches!(self.named_at, Some(place) if self.nlink == 0 && place.cookie == EntryPlace::IN_TRASH)
    }

    /// The attributes `stat` shows, with no space allocated.
    pub fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind(),
            mode: self.bits.mode,
            flags: self.bits.flags,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            rdev: self.body.rdev(),
            size: self.body.size(),
            blocks: 0,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }
}

/// A directory entry, found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord {
    /// The inode that it leads to.
    pub ino: Ino,
    /// The kind of inode it leads to.
    pub kind: NodeKind,
    /// Its place in `readdir` order.
    pub cookie: u64,
}

/// A directory entry, found by cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedEntry {
    /// The inode that it leads to.
    pub ino: Ino,
    /// The kind of inode it leads to.
    pub kind: NodeKind,
    /// Its name.
    pub name: FileName,
}

/// This node's own record of its last checkpoint, under [`crate::namespace::keys::CHECKPOINT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Everything in the intent log before this position is in the key-value store.
    pub log_position: u64,
    /// The log is needed from here on, for intents that were pending at the checkpoint.
    pub log_keep_from: u64,
    /// Highest OSN of a metadata operation applied.
    pub applied: Osn,
    /// Inode numbers below this may have been given out.
    pub ino_limit: u64,
    /// How often the store was opened. Sequence numbers of operations start higher each time.
    pub epoch: u32,
    /// The run of the machine in which the store is in use; `None` after a clean shutdown.
    pub boot: Option<BootId>,
}

/// Encodes a record.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    postcard::to_allocvec(record).unwrap_or_else(|error| {
        unreachable!("records have no parts that postcard cannot encode: {error}")
    })
}

/// Decodes a record; `None` for bytes that are not one.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_flags_above_the_bits_of_the_mode() {
        let access = ModeAndFlags {
            mode: 0o4755,
            flags: InodeFlags::RESTRICTING,
        };
        assert_eq!(encode(&access), encode(&(0o4755_u32 | 3 << 12)));
        assert_eq!(decode(&encode(&access)), Some(access));
        let plain = ModeAndFlags::of_mode(0o4755);
        assert_eq!(
            encode(&plain),
            encode(&0o4755_u32),
            "as before there were flags"
        );
        assert_eq!(
            decode::<ModeAndFlags>(&encode(&(1_u32 << 20))),
            None,
            "no flag has this bit"
        );
    }
    #[test]
    fn a_record_without_the_place_of_its_name_is_what_it_was_before_there_were_places() {
        let mut inode = Inode {
            bits: ModeAndFlags::of_mode(0o644),
            uid: 1,
            gid: 2,
            nlink: 1,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            osn: Osn::ZERO,
            body: Body::File { size: 300 },
            named_at: None,
        };
        let before = encode(&inode);
        assert_eq!(decode(&before).as_ref(), Some(&inode));
        inode.named_at = Some(EntryPlace {
            directory: Ino::ROOT,
            cookie: 3,
        });
        let now = encode(&inode);
        assert!(now.starts_with(&before));
        assert_eq!(decode(&now), Some(inode));
    }
}
