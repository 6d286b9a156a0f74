//! Taking files of other directories into a store: by a further name, or by sharing their blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, IFlags, Mode, OFlags, StatxFlags, makedev, statx};
use rustix::io::Errno as OsErrno;

use super::file::retry;
use super::{FILE_FLAGS, FILE_MODE, OsBacking, READ_FLAGS};

/// Where a directory lies: a file can have names in two directories with the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountPlace {
    /// The device.
    pub device: u64,
    /// The mount, as the kernel numbers it; zero if the kernel does not tell.
    pub mount: u64,
}

impl OsBacking {
    /// Where the directory of the store lies, and its inode number there.
    pub(crate) fn mount_place(&self) -> io::Result<(MountPlace, u64)> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let stat = statx(&self.dir, "", AtFlags::EMPTY_PATH, flags)
            .map_err(|errno| self.fail("stat", "", errno))?;
        let place = MountPlace {
            device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
            mount: stat.stx_mnt_id,
        };
        Ok((place, stat.stx_ino))
    }

    /// Gives the file `name` of a directory the further name `to` in the store, where no file may be.
    pub(crate) fn link_in(&self, from: BorrowedFd<'_>, name: &[u8], to: &str) -> io::Result<()> {
        self.check("link", to)?;
        let link = || {
            let flags = AtFlags::empty();
            retry(|| rustix::fs::linkat(from, name, &self.dir, to, flags))
        };
        let mut linked = link();
        if linked == Err(OsErrno::NOENT) {
            let _none_is_removed = self.removing.lock();
            self.make_parents(to)?;
            linked = link();
        }
        linked.map_err(|errno| self.fail("give a file the name", to, errno))
    }

    /// Gives a file that was linked into the store the owner and the mode of all files of the store. `is_locked`: the file may have
    /// flags that let nobody change its attributes and its names. They are cleared.
    pub(crate) fn keep_private(&self, path: &str, is_locked: bool) -> io::Result<()> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let unlock = || {
            let file = self.open_fd(path, FILE_FLAGS.difference(OFlags::RDWR))?;
            let flags = rustix::fs::ioctl_getflags(&file)?;
            let locks = IFlags::IMMUTABLE | IFlags::APPEND;
            rustix::fs::ioctl_setflags(&file, flags.difference(locks))
        };
        let unlocked = if is_locked { unlock() } else { Ok(()) };
        unlocked
            .and_then(|()| rustix::fs::chownat(&self.dir, path, Some(uid), Some(gid), nofollow))
            .and_then(|()| rustix::fs::chmodat(&self.dir, path, FILE_MODE, AtFlags::empty()))
            .map_err(|errno| self.fail("keep private", path, errno))
    }

    /// Makes `to` share all blocks of a file.
    pub(crate) fn clone_in(&self, source: BorrowedFd<'_>, to: &str) -> io::Result<()> {
        let flags = FILE_FLAGS | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.open_fd(to, flags);
        if matches!(file, Err(OsErrno::NOENT)) {
            let _none_is_removed = self.removing.lock();
            self.make_parents(to)?;
            file = self.open_fd(to, flags);
        }
        file.and_then(|file| rustix::fs::ioctl_ficlone(file, source))
            .map_err(|errno| self.fail("share the blocks of a file with", to, errno))
    }

    /// Whether a file of the store can share the blocks of `source`. Leaves no file behind.
    pub(crate) fn can_clone(&self, source: BorrowedFd<'_>) -> bool {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.dir, ".", flags, Mode::from_raw_mode(0o600));
        made.and_then(|file| rustix::fs::ioctl_ficlone(file, source))
            .is_ok()
    }

    /// Gives the file at `path` of another directory the same further path in the store, where no file may be.
    pub(crate) fn link_of(&self, other: &Self, path: &str) -> io::Result<()> {
        self.link_in(other.dir.as_fd(), path.as_bytes(), path)
    }

    /// Makes `path` share all blocks of the file at `path` of another directory.
    pub(crate) fn clone_of(&self, other: &Self, path: &str) -> io::Result<()> {
        let source = other.open_fd(path, READ_FLAGS);
        let source = source.map_err(|errno| other.fail("open", path, errno))?;
        self.clone_in(source.as_fd(), path)
    }

    /// Whether a file of the store can share the blocks of the file at `path` of another directory. Leaves no file behind.
    pub(crate) fn can_clone_of(&self, other: &Self, path: &str) -> bool {
        let source = other.open_fd(path, READ_FLAGS);
        source.is_ok_and(|source| self.can_clone(source.as_fd()))
    }

    /// Number of the names of a file.
    pub(crate) fn names_of(&self, path: &str) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.dir, path, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|errno| self.fail("stat", path, errno))?;
        Ok(stat.st_nlink)
    }
}
