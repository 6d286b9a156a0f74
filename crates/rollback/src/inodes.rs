//! The inodes of a mounted datastore by their numbers, without a path: the kernel opens them by file handles.
//!
//! A handle of such a mount has the inode number and the generation. So the handle of one inode of a snapshot gives those of all
//! others: the numbers differ in the part that is the file's own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;

/// The flags by which an inode is opened for nothing but its place.
pub(crate) const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The type of a FUSE handle: the inode number and the generation.
const FUSE_HANDLE: i32 = 0x81;

/// The number of the root of a datastore.
pub(crate) const ROOT: u64 = 1;

/// Bits of the number of a file in that of a file of a snapshot.
const SNAPSHOT_BITS: u32 = 48;

/// A handle, as the kernel reads and writes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    /// The upper and the lower half of the inode number, and the generation.
    words: [u32; 3],
}

/// The inodes of the present of a datastore, or those of one of its snapshots.
pub(crate) struct InodeTable {
    /// A directory of the mount.
    root: OwnedFd,
    handle: FileHandle,
    /// The number of the root in the mount, without the part that is the file's own.
    base: u64,
    /// The device of the mount.
    device: u64,
}

impl InodeTable {
    /// The inodes below the root of a mount, or of a snapshot in the mount.
    ///
    /// # Errors
    /// The directory is no such root.
    pub fn of(root: OwnedFd) -> io::Result<Self> {
        let handle = handle_of(&root)?;
        let [upper, lower, _] = handle.words;
        let number = u64::from(upper) << 32 | u64::from(lower);
        let stat = rustix::fs::fstat(&root)?;
        if handle.kind != FUSE_HANDLE || number != stat.st_ino {
            return Err(io::Error::other("this is no mount of Lockstep"));
        }
        let base = number.checked_sub(ROOT);
        Ok(Self {
            root,
            handle,
            base: base.ok_or_else(|| io::Error::other("an inode number of zero"))?,
            device: stat.st_dev,
        })
    }

    /// The device of the mount, by which a file of another file system is told that is mounted somewhere inside.
    pub const fn device(&self) -> u64 {
        self.device
    }

    /// The number in the datastore of an open inode of this table.
    pub fn ino_of(&self, fd: &OwnedFd) -> io::Result<u64> {
        let number = rustix::fs::fstat(fd)?.st_ino;
        let ino = number.checked_sub(self.base);
        ino.ok_or_else(|| io::Error::other("an inode of another place"))
    }

    /// The root.
    pub const fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens the inode with this number in the datastore; `None` if there is no such inode.
    pub fn open(&self, ino: u64, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        if self.base != 0 && ino >> SNAPSHOT_BITS != 0 {
            return Err(io::Error::other("a mount shows no such file of a snapshot"));
        }
        let number = self.base + ino;
        #[allow(clippy::cast_possible_truncation)] // the halves
        let halves = [(number >> 32) as u32, number as u32];
        let [_, _, generation] = self.handle.words;
        let mut handle = self.handle;
        handle.words = [halves[0], halves[1], generation];
        #[allow(clippy::cast_possible_wrap)] // flags are bits
        let flags = (flags | OFlags::CLOEXEC).bits() as i32;
        let root = self.root.as_fd().as_raw_fd();
        // SAFETY: `FileHandle` has the layout of `file_handle`; no other code owns the returned descriptor.
        let opened = unsafe {
            let fd = libc::open_by_handle_at(root, (&raw mut handle).cast(), flags);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        match opened {
            Some(opened) => Ok(Some(opened)),
            None => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::StaleNetworkFileHandle => Ok(None),
                error => Err(error),
            },
        }
    }
}

fn handle_of(directory: &OwnedFd) -> io::Result<FileHandle> {
    let words = [0; 3];
    let mut handle = FileHandle {
        #[allow(clippy::cast_possible_truncation)] // 12
        bytes: size_of_val(&words) as u32,
        kind: 0,
        words,
    };
    let mut mount = 0;
    // SAFETY: `FileHandle` has the layout of `file_handle`, and says how many bytes it has.
    let done = unsafe {
        libc::name_to_handle_at(
            directory.as_fd().as_raw_fd(),
            c"".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if done == 0 {
        Ok(handle)
    } else {
        Err(io::Error::last_os_error())
    }
}
