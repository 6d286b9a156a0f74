//! Translation between fuser's types and those of Lockstep. Pure functions.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, OpenFlags, RenameFlags, TimeOrNow};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mode::MODE_BITS;
use lockstep_types::{
    AllocateMode, Attr, Errno, FileName, Ino, NodeKind, RenameMode, SnapshotIno, Timestamp,
    XattrMode,
};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};

/// The inode of a request.
pub(crate) fn ino(node: INodeNo) -> Result<Ino, Errno> {
    Ino::new(node.0).ok_or(Errno::Stale)
}

/// Whether a request is about a file of a snapshot, or a directory above the snapshots.
pub(crate) fn is_of_snapshot(node: INodeNo) -> bool {
    ino(node).is_ok_and(|ino| SnapshotIno::of(ino).is_some())
}

/// Whether each node shows the extended attributes of an inode: also those of the root, which the kernel needs for each path into a snapshot.
pub(crate) fn is_shown_anywhere(node: INodeNo) -> bool {
    node.0 == Ino::ROOT.get() || is_of_snapshot(node)
}

/// The name of a request.
pub(crate) fn file_name(name: &OsStr) -> Result<FileName, Errno> {
    FileName::new(name.as_bytes())
}

/// The kind of an inode as fuser's.
pub(crate) fn file_type(kind: NodeKind) -> FileType {
    match kind {
        NodeKind::File => FileType::RegularFile,
        NodeKind::Directory => FileType::Directory,
        NodeKind::Symlink => FileType::Symlink,
        NodeKind::Fifo => FileType::NamedPipe,
        NodeKind::Socket => FileType::Socket,
        NodeKind::CharDevice => FileType::CharDevice,
        NodeKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind and permission bits in the mode of `mknod`; a mode without a kind means a regular file.
pub(crate) fn kind_and_mode(mode: u32) -> Result<(NodeKind, u32), Errno> {
    let permissions = mode & MODE_BITS;
    if mode == permissions {
        return Ok((NodeKind::File, permissions));
    }
    let kind = NodeKind::from_mode(mode).ok_or(Errno::Invalid)?;
    Ok((kind, permissions))
}

/// The permission bits of a mode.
pub(crate) fn permissions(mode: u32) -> u32 {
    mode & MODE_BITS
}

/// Attributes as fuser's.
pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.get()),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: u16::try_from(permissions(attr.mode)).unwrap_or_default(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: u32::try_from(BLOCK_BYTES).unwrap_or_default(),
        flags: 0,
    }
}

/// The attributes of a name without an inode: node zero.
pub(crate) fn no_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The time that a request sets.
pub(crate) fn timestamp(time: TimeOrNow) -> Timestamp {
    match time {
        TimeOrNow::Now => SystemTime::now().into(),
        TimeOrNow::SpecificTime(time) => specific(time),
    }
}

/// Undoes an error of fuser 0.18, which reads the kernel's (-3 s, +5 ns) as 3.000000005 s before the epoch.
fn specific(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => time.into(),
        Err(error) => Timestamp {
            secs: 0_i64.saturating_sub_unsigned(error.duration().as_secs()),
            nanos: error.duration().subsec_nanos(),
        },
    }
}

/// Whether a write through a file with these open flags must be on stable storage before its answer.
pub(crate) fn is_durable(flags: OpenFlags) -> bool {
    let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
    flags.intersects(OFlags::SYNC | OFlags::DSYNC)
}

/// Whether a write through a file with these open flags goes behind the end of the file.
pub(crate) fn appends(flags: OpenFlags) -> bool {
    let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
    flags.contains(OFlags::APPEND)
}

/// The treatment of an existing target by a rename.
pub(crate) fn rename_mode(
    flags: RenameFlags,
    whiteout: impl FnOnce() -> Result<RenameMode, Errno>,
) -> Result<RenameMode, Errno> {
    match flags {
        _ if flags.is_empty() => Ok(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        RenameFlags::RENAME_WHITEOUT => whiteout(),
        // NOREPLACE and EXCHANGE exclude each other. Nothing combines another one with WHITEOUT.
        _ => Err(Errno::Invalid),
    }
}

/// The mode of a `fallocate`.
pub(crate) fn allocate_mode(mode: i32) -> Result<AllocateMode, Errno> {
    let (keep, punch) = (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE);
    let zero = FallocateFlags::ZERO_RANGE;
    match FallocateFlags::from_bits_retain(mode.cast_unsigned()) {
        flags if flags.is_empty() => Ok(AllocateMode::Allocate),
        flags if flags == keep => Ok(AllocateMode::AllocateKeepSize),
        flags if flags == punch | keep => Ok(AllocateMode::PunchHole),
        flags if flags == zero => Ok(AllocateMode::ZeroRange),
        flags if flags == zero | keep => Ok(AllocateMode::ZeroRangeKeepSize),
        _ => Err(Errno::NotSupported),
    }
}

/// The condition that `setxattr` puts on an existing attribute.
pub(crate) fn xattr_mode(flags: i32) -> Result<XattrMode, Errno> {
    match XattrFlags::from_bits_retain(flags.cast_unsigned()) {
        flags if flags.is_empty() => Ok(XattrMode::Any),
        XattrFlags::CREATE => Ok(XattrMode::Create),
        XattrFlags::REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn undoes_the_reading_of_times_before_the_epoch() {
        let as_fuser_reads = |secs: i64, nanos| {
            let time = UNIX_EPOCH - Duration::new(secs.unsigned_abs(), nanos);
            timestamp(TimeOrNow::SpecificTime(time))
        };
        for (secs, nanos) in [(-1, 999_999_999), (-3, 0), (-3, 5)] {
            assert_eq!(as_fuser_reads(secs, nanos), Timestamp { secs, nanos });
        }
        let after = UNIX_EPOCH + Duration::new(7, 9);
        let read = timestamp(TimeOrNow::SpecificTime(after));
        assert_eq!(read, Timestamp { secs: 7, nanos: 9 });
    }

    #[test]
    fn knows_the_modes_of_fallocate() {
        assert_eq!(allocate_mode(0), Ok(AllocateMode::Allocate));
        assert_eq!(allocate_mode(1), Ok(AllocateMode::AllocateKeepSize));
        assert_eq!(allocate_mode(3), Ok(AllocateMode::PunchHole));
        assert_eq!(allocate_mode(0x10), Ok(AllocateMode::ZeroRange));
        assert_eq!(allocate_mode(0x11), Ok(AllocateMode::ZeroRangeKeepSize));
        // a hole that grows the file; collapse range; insert range
        for refused in [2, 8, 0x20] {
            assert_eq!(allocate_mode(refused), Err(Errno::NotSupported));
        }
    }

    #[test]
    fn knows_the_modes_of_rename_and_setxattr() {
        let rename = |bits| rename_mode(RenameFlags::from_bits_retain(bits), || Err(Errno::Busy));
        assert_eq!(rename(0), Ok(RenameMode::Replace));
        assert_eq!(rename(1), Ok(RenameMode::NoReplace));
        assert_eq!(rename(2), Ok(RenameMode::Exchange));
        assert_eq!(rename(4), Err(Errno::Busy), "by the caller");
        assert_eq!(rename(5), Err(Errno::Invalid));
        assert_eq!(rename(3), Err(Errno::Invalid));
        assert_eq!(xattr_mode(1), Ok(XattrMode::Create));
        assert_eq!(xattr_mode(2), Ok(XattrMode::Replace));
        assert_eq!(xattr_mode(3), Err(Errno::Invalid));
    }

    #[test]
    fn reads_the_kind_of_mknod() {
        assert_eq!(kind_and_mode(0o644), Ok((NodeKind::File, 0o644)));
        assert_eq!(kind_and_mode(0o010_600), Ok((NodeKind::Fifo, 0o600)));
        assert_eq!(kind_and_mode(0o070_600), Err(Errno::Invalid));
    }

    #[test]
    fn sees_synchronous_files() {
        let durable = |flags: OFlags| is_durable(OpenFlags(flags.bits().cast_signed()));
        assert!(durable(OFlags::DSYNC));
        assert!(durable(OFlags::SYNC | OFlags::APPEND));
        assert!(!durable(OFlags::APPEND));
    }
}
