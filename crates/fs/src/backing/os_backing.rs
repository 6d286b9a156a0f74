//! The disk below a real store: a directory of the operating system.
//!
//! Every path is resolved from one descriptor of the store's directory, so the store stays the same when a directory
//! above it is renamed or mounted over. No call follows a symbolic link in the last component, and none leaves the
//! directory. Errors keep the operation and the path, see [`BackingFailure`].
//!
//! A store belongs to the process that locks its place, the file `lock` in it, and the directory itself. Versions from before
//! the file lock the directory alone. Only the owner of the store can lock the file: the directory is private.
//!
//! Invariant: after [`Backing::sync_dir`] of a directory its own name and those of the
//! directories above it, up to the store's, are on stable storage too.

mod cache;
mod failure;
mod file;
mod holder;
mod intake;
mod place_lock;
mod reads;
mod reserved;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use lockstep_types::backing::{
    Backing, BackingFile, BackingStat, BackingTable, FileIdentity, Space,
};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FlockOperation, IFlags, Mode, OFlags};
use rustix::io::Errno as OsErrno;

use crate::paths::FORMAT_FILE;
pub(crate) use failure::os_code;
pub use failure::{BackingFailure, errno_of};
use failure::{failed, refused};
use file::{OsFile, retry, to_backing};
pub use holder::{Holder, describe, holders};
pub use intake::MountPlace;
use place_lock::PlaceLock;
use table::OsTable;

/// The file that the process locks which uses the store.
pub const LOCK_FILE: &str = "lock";

/// Mode bits of all users but the owner.
const OTHERS: u32 = 0o077;

/// Most directories that are noted as synced.
const ROOTED_MAX: usize = 16 << 10;
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o700);
const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);
const FILE_FLAGS: OFlags = OFlags::RDWR
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY);
/// A pipe in the place of a file is not waited for.
const READ_FLAGS: OFlags = FILE_FLAGS.difference(OFlags::RDWR).union(OFlags::NONBLOCK);

/// A store's directory.
pub struct OsBacking {
    dir: OwnedFd,
    root: Arc<Path>,
    /// Names of directories that this process has synced.
    rooted: Mutex<Rooted>,
    /// Held while a directory is removed, and while a directory is created with a file in it.
    removing: Mutex<()>,
    /// The locks, while this process has the store.
    lock: Mutex<Option<StoreLock>>,
}

/// The locks of a store, beside that of its directory.
struct StoreLock {
    place: Option<PlaceLock>,
    _file: Option<OwnedFd>,
}

/// Directories whose names are on stable storage, with the names of the directories above.
#[derive(Default)]
struct Rooted {
    directories: HashSet<Box<str>>,
    /// Counts removals of directories, and renames of anything.
    moves: u64,
}

impl Rooted {
    /// The names above were synced; `moves` is from before the directory was seen. If `moves` has changed, a new
    /// directory of that name may have come after the sync.
    fn insert(&mut self, path: &str, moves: u64) {
        if self.moves != moves {
            return;
        }
        if self.directories.len() >= ROOTED_MAX {
            // The set only saves syncs.
            self.directories.clear();
        }
        self.directories.insert(path.into());
    }

    fn removed(&mut self, path: &str) {
        self.directories.remove(path);
        self.moves += 1;
    }

    /// If a directory was renamed, nothing below its new name is known to be durable.
    fn renamed(&mut self) {
        self.directories.clear();
        self.moves += 1;
    }
}

impl OsBacking {
    /// Opens the directory of a store, which must exist.
    pub fn open(dir: impl AsRef<Path>) -> io::Result<Self> {
        let root: Arc<Path> = dir.as_ref().into();
        let dir = retry(|| rustix::fs::open(&*root, DIRECTORY_FLAGS, Mode::empty()))
            .map_err(|errno| failed("open directory", root.display().to_string(), errno.into()))?;
        Ok(Self {
            dir,
            root,
            rooted: Mutex::default(),
            removing: Mutex::default(),
            lock: Mutex::default(),
        })
    }

    /// Keeps every other process from taking this store, until dropped, and makes the directory private. A directory
    /// without a store is left unchanged. `WouldBlock` if another process (or another [`OsBacking`] of this process)
    /// has the store; the error names that process if it is known.
    pub fn lock(&self) -> io::Result<()> {
        if !self.exists(FORMAT_FILE)? {
            return self.lock_for_reading();
        }
        self.tighten()?;
        let made = self.open_fd(LOCK_FILE, FILE_FLAGS | OFlags::CREATE);
        self.lock_with(made)
    }

    /// The same for a caller that changes nothing in the store, not even the mode of its directory.
    pub fn lock_for_reading(&self) -> io::Result<()> {
        self.lock_with(self.open_fd(LOCK_FILE, FILE_FLAGS))
    }

    /// Makes the directory private to its owner.
    fn tighten(&self) -> io::Result<()> {
        let stat = rustix::fs::fstat(&self.dir).map_err(|errno| self.fail("stat", "", errno))?;
        if stat.st_mode & OTHERS == 0 {
            return Ok(());
        }
        rustix::fs::fchmod(&self.dir, DIRECTORY_MODE).map_err(|errno| {
            let why = format!(
                "others can reach it, and `chmod 700` fails: {}",
                io::Error::from(errno)
            );
            self.fail(
                "keep private",
                "",
                io::Error::new(io::ErrorKind::PermissionDenied, why),
            )
        })?;
        tracing::info!(store = %self.root.display(), "made private: others could reach the directory");
        Ok(())
    }

    fn lock_with(&self, file: Result<OwnedFd, OsErrno>) -> io::Result<()> {
        let held = self.lock.lock().take().and_then(|lock| lock.place);
        let place = match held {
            Some(place) => Some(place),
            None => PlaceLock::take(&self.root)
                .map_err(|source| failed("lock", self.full_path(""), source))?,
        };
        let file = match file {
            Ok(file) => Some(file),
            // On a full or read-only disk, and in a store that never had the file, the lock on the directory must do.
            Err(OsErrno::NOENT | OsErrno::NOSPC | OsErrno::DQUOT | OsErrno::ROFS) => None,
            Err(errno) => return Err(self.fail("open", LOCK_FILE, errno)),
        };
        if let Some(file) = &file {
            self.flock(file.as_fd())?;
        }
        match self.flock(self.dir.as_fd()) {
            Err(error) if file.is_some() && self.only_other_users_lock_it() => {
                tracing::warn!(%error, "going on: only another user holds a lock on the directory");
            }
            locked => locked?,
        }
        *self.lock.lock() = Some(StoreLock { place, _file: file });
        Ok(())
    }

    fn flock(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        retry(|| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)).map_err(|errno| {
            let source = match errno {
                OsErrno::WOULDBLOCK => {
                    let who = describe(&holders(fd));
                    let why = format!("another process is using this store{who}; stop it first");
                    io::Error::new(io::ErrorKind::WouldBlock, why)
                }
                other => other.into(),
            };
            failed("lock", self.full_path(""), source)
        })
    }

    /// Whether only processes of other users lock the directory, which opened it before it was private. None of them is
    /// a node: a node runs as the owner of its store.
    fn only_other_users_lock_it(&self) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        let is_stranger = |holder: &Holder| holder.uid.is_some_and(|uid| uid != ours && uid != 0);
        let holders = holders(self.dir.as_fd());
        !holders.is_empty() && holders.iter().all(is_stranger)
    }

    fn full_path(&self, path: &str) -> String {
        if path.is_empty() {
            return self.root.display().to_string();
        }
        self.root.join(path).display().to_string()
    }

    fn fail(&self, operation: &'static str, path: &str, source: impl Into<io::Error>) -> io::Error {
        failed(operation, self.full_path(path), source.into())
    }

    /// Refuses a path that would lead out of the store.
    fn check(&self, operation: &'static str, path: &str) -> io::Result<()> {
        let leaves = path.split('/').any(|part| part == "..");
        if path.is_empty() || path.starts_with('/') || leaves {
            let why = "a path in a store is relative and has no `..`";
            return Err(refused(operation, self.full_path(path), why));
        }
        Ok(())
    }

    /// Opens without touching access times if that is permitted (the owner may).
    fn open_fd(&self, path: &str, flags: OFlags) -> Result<OwnedFd, OsErrno> {
        let open = |flags| retry(|| rustix::fs::openat(&self.dir, path, flags, FILE_MODE));
        match open(flags | OFlags::NOATIME) {
            Err(OsErrno::PERM) => open(flags),
            done => done,
        }
    }

    fn open_file(&self, path: &str, flags: OFlags) -> io::Result<OsFile> {
        self.check("open", path)?;
        let mut fd = self.open_fd(path, flags);
        if flags.contains(OFlags::CREATE) && matches!(fd, Err(OsErrno::NOENT)) {
            let _none_is_removed = self.removing.lock();
            self.make_parents(path)?;
            fd = self.open_fd(path, flags);
        }
        let fd = fd.map_err(|errno| self.fail("open", path, errno))?;
        Ok(OsFile::new(fd, Arc::clone(&self.root), path))
    }

    /// Makes the directories above `path` that are missing.
    fn make_parents(&self, path: &str) -> io::Result<()> {
        for (end, _) in path.match_indices('/') {
            let parent = path.get(..end).unwrap_or_default();
            match retry(|| rustix::fs::mkdirat(&self.dir, parent, DIRECTORY_MODE)) {
                Ok(()) | Err(OsErrno::EXIST) => {}
                Err(errno) => return Err(self.fail("make directory", parent, errno)),
            }
        }
        Ok(())
    }

    fn open_directory(&self, path: &str) -> Result<OwnedFd, OsErrno> {
        let path = if path.is_empty() { "." } else { path };
        retry(|| rustix::fs::openat(&self.dir, path, DIRECTORY_FLAGS, Mode::empty()))
    }

    fn sync_one(&self, path: &str) -> io::Result<()> {
        self.open_directory(path)
            .and_then(rustix::fs::fsync)
            .map_err(|errno| self.fail("sync directory", path, errno))
    }

    /// Makes the names of `path` and of the directories above it durable, once per process: an earlier process may have
    /// made them and stopped before it synced them. The directory existed after `moves`.
    fn root_directory(&self, path: &str, moves: u64) -> io::Result<()> {
        if path.is_empty() || self.rooted.lock().directories.contains(path) {
            return Ok(());
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.root_directory(parent, moves)?;
        self.sync_one(parent)?;
        self.rooted.lock().insert(path, moves);
        Ok(())
    }

    fn entries(&self, path: &str, fd: OwnedFd) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::new(fd).map_err(|errno| self.fail("list", path, errno))? {
            let entry = entry.map_err(|errno| self.fail("list", path, errno))?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(self.readable(path, name)?),
            }
        }
        Ok(names)
    }

    fn readable(&self, path: &str, name: &[u8]) -> io::Result<String> {
        String::from_utf8(name.to_vec()).map_err(|_| {
            let why = format!(
                "the name {:?} in it is not of this store; move it away",
                String::from_utf8_lossy(name)
            );
            let source = io::Error::new(io::ErrorKind::InvalidData, why);
            self.fail("list", path, source)
        })
    }
}

impl Backing for OsBacking {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(Arc::new(self.open_file(path, FILE_FLAGS)?))
    }

    fn open_to_read(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(Arc::new(self.open_file(path, READ_FLAGS)?))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(Arc::new(self.open_file(path, FILE_FLAGS | OFlags::CREATE)?))
    }

    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        let file = self.open_file(path, FILE_FLAGS | OFlags::CREATE)?;
        Ok(Arc::new(OsTable::map(&file, length)?))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.check("remove", path)?;
        retry(|| rustix::fs::unlinkat(&self.dir, path, AtFlags::empty()))
            .map_err(|errno| self.fail("remove", path, errno))
    }

    /// No directory is created meanwhile: a later directory of the same name must not be taken for synced.
    fn remove_empty_dir(&self, path: &str) -> io::Result<bool> {
        self.check("remove directory", path)?;
        let _none_is_made = self.removing.lock();
        match retry(|| rustix::fs::unlinkat(&self.dir, path, AtFlags::REMOVEDIR)) {
            Ok(()) => self.rooted.lock().removed(path),
            Err(OsErrno::NOTEMPTY | OsErrno::EXIST | OsErrno::NOENT | OsErrno::NOTDIR) => {
                return Ok(false);
            }
            Err(errno) => return Err(self.fail("remove directory", path, errno)),
        }
        Ok(true)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check("rename", from)?;
        self.check("rename", to)?;
        retry(|| rustix::fs::renameat(&self.dir, from, &self.dir, to))
            .map_err(|errno| self.fail("rename", from, errno))?;
        self.rooted.lock().renamed();
        Ok(())
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(false),
                _ => Err(error),
            },
        }
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.check("stat", path)?;
        retry(|| rustix::fs::statat(&self.dir, path, AtFlags::SYMLINK_NOFOLLOW))
            .map(|stat| to_backing(&stat))
            .map_err(|errno| self.fail("stat", path, errno))
    }

    fn identity(&self, path: &str) -> io::Result<Option<FileIdentity>> {
        self.check("stat", path)?;
        match retry(|| rustix::fs::statat(&self.dir, path, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(stat) => Ok(Some(FileIdentity::File(stat.st_dev, stat.st_ino))),
            Err(OsErrno::NOENT | OsErrno::NOTDIR) => Ok(Some(FileIdentity::Missing)),
            Err(errno) => Err(self.fail("stat", path, errno)),
        }
    }

    fn is_in_place(&self) -> io::Result<Option<bool>> {
        let own = rustix::fs::fstat(&self.dir).map_err(|errno| self.fail("stat", "", errno))?;
        match retry(|| rustix::fs::stat(&*self.root)) {
            Ok(found) => Ok(Some(
                (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino),
            )),
            Err(OsErrno::NOENT | OsErrno::NOTDIR) => Ok(Some(false)),
            Err(errno) => Err(self.fail("stat", "", errno)),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        if !path.is_empty() {
            self.check("list", path)?;
        }
        match self.open_directory(path) {
            Ok(fd) => self.entries(path, fd),
            Err(OsErrno::NOENT) => Ok(Vec::new()),
            Err(errno) => Err(self.fail("list", path, errno)),
        }
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let path = path.trim_end_matches('/');
        if !path.is_empty() {
            self.check("sync directory", path)?;
        }
        let moves = self.rooted.lock().moves;
        let fd = match (self.open_directory(path), path.rsplit_once('/')) {
            // The directory was removed: the removal must survive.
            (Err(OsErrno::NOENT), Some((above, _))) => return self.sync_dir(above),
            (opened, _) => opened.map_err(|errno| self.fail("sync directory", path, errno))?,
        };
        self.root_directory(path, moves)?;
        rustix::fs::fsync(fd).map_err(|errno| self.fail("sync directory", path, errno))
    }

    fn sync_all(&self) -> io::Result<()> {
        retry(|| rustix::fs::syncfs(&self.dir))
            .map_err(|errno| self.fail("sync the file system of", "", errno))
    }

    fn space(&self) -> io::Result<Space> {
        let stat = retry(|| rustix::fs::fstatvfs(&self.dir))
            .map_err(|errno| self.fail("read the free space of", "", errno))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space {
            total_bytes: bytes(stat.f_blocks),
            free_bytes: bytes(stat.f_bfree),
            available_bytes: bytes(stat.f_bavail),
            total_files: stat.f_files,
            free_files: stat.f_ffree,
        })
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.drop_cached()
    }

    /// Marks the directory as the top of unrelated hierarchies, if the file system knows such a mark (ext4 does).
    fn scatter(&self, directory: &str) {
        let marked = self
            .make_parents(&format!("{directory}/"))
            .and_then(|()| Ok(self.open_directory(directory)?))
            .and_then(|fd| {
                let flags = rustix::fs::ioctl_getflags(&fd)?;
                Ok(rustix::fs::ioctl_setflags(&fd, flags | IFlags::TOPDIR)?)
            });
        if let Err(error) = marked {
            tracing::debug!(%error, directory, "the file system places the directories in it as it chooses");
        }
    }
}
