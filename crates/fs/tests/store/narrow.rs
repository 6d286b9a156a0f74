//! A destination that takes less than a store holds, like the file systems of memory sticks: it ignores case
//! in names, refuses some names, and takes no file of 4 GiB or more.
//!
//! Invariant: a dropped destination is unmounted.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyEmpty, ReplyEntry, ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use rustix::io::Errno as Sys;
use tempfile::TempDir;

/// Size limit of every file.
pub const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// A name may lead to another file at any time.
const LIFETIME: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);

/// The destination, mounted. Needs root and `/dev/fuse`.
pub struct Narrow {
    temp: TempDir,
    session: Option<BackgroundSession>,
}

impl Narrow {
    pub fn mount() -> Self {
        let mut narrow = Self {
            temp: tempfile::tempdir().unwrap(),
            session: None,
        };
        fs::create_dir(narrow.holds()).unwrap();
        fs::create_dir(narrow.root()).unwrap();
        let server = Server {
            nodes: Mutex::new(Nodes::new(narrow.holds())),
        };
        let session = Session::new(server, narrow.root(), &Config::default()).unwrap();
        narrow.session = Some(session.spawn().unwrap());
        narrow
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.temp.path().join("mounted")
    }

    /// The directory with the content, to read it without the mount.
    pub fn holds(&self) -> PathBuf {
        self.temp.path().join("holds")
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = rustix::mount::unmount(self.root(), rustix::mount::UnmountFlags::DETACH);
            drop(session);
        }
    }
}

/// The paths that belong to the kernel's inode numbers.
struct Nodes {
    numbers: HashMap<PathBuf, u64>,
    paths: HashMap<u64, PathBuf>,
    last: u64,
}

impl Nodes {
    fn new(root: PathBuf) -> Self {
        Self {
            numbers: HashMap::from([(root.clone(), INodeNo::ROOT.0)]),
            paths: HashMap::from([(INodeNo::ROOT.0, root)]),
            last: INodeNo::ROOT.0,
        }
    }

    fn number(&mut self, path: &Path) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        self.last += 1;
        self.numbers.insert(path.to_owned(), self.last);
        self.paths.insert(self.last, path.to_owned());
        self.last
    }

    /// The name leads nowhere from now on, or to another file.
    fn forget(&mut self, path: &Path) {
        self.numbers.remove(path);
    }
}

struct Server {
    nodes: Mutex<Nodes>,
}

impl Server {
    fn path(&self, node: INodeNo) -> PathBuf {
        self.nodes.lock().unwrap().paths[&node.0].clone()
    }

    /// Returns the entry with that name in a directory, in upper or lower case.
    fn found(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        for entry in fs::read_dir(self.path(parent))? {
            let entry = entry?;
            if entry.file_name().eq_ignore_ascii_case(name) {
                return Ok(entry.path());
            }
        }
        Err(Sys::NOENT.into())
    }

    /// Returns the path for a new name, if the name is free and allowed.
    fn vacant(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        let bytes = name.as_encoded_bytes();
        if bytes.iter().all(|byte| *byte == b'.') {
            return Err(Sys::NOENT.into());
        }
        let refused = |byte: &u8| byte.is_ascii_control() || b"\"*:<>?|\\".contains(byte);
        if bytes.iter().any(refused) || name.to_str().is_none() {
            return Err(Sys::INVAL.into());
        }
        match self.found(parent, name) {
            Ok(_) => Err(Sys::EXIST.into()),
            Err(_) => Ok(self.path(parent).join(name)),
        }
    }

    fn attributes(&self, path: &Path) -> io::Result<FileAttr> {
        let found = fs::symlink_metadata(path)?;
        let is_directory = found.is_dir();
        let time = SystemTime::UNIX_EPOCH;
        Ok(FileAttr {
            ino: INodeNo(self.nodes.lock().unwrap().number(path)),
            size: found.len(),
            blocks: found.blocks(),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if is_directory {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: 0o755,
            nlink: u32::try_from(found.nlink()).unwrap(),
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn made(
        &self,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<FileAttr> {
        let path = self.vacant(parent, name)?;
        make(&path)?;
        self.attributes(&path)
    }

    fn removed(
        &self,
        parent: INodeNo,
        name: &OsStr,
        remove: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.found(parent, name)?;
        remove(&path)?;
        self.nodes.lock().unwrap().forget(&path);
        Ok(())
    }

    fn resized(&self, node: INodeNo, size: u64) -> io::Result<()> {
        check_size(size)?;
        let file = OpenOptions::new().write(true).open(self.path(node))?;
        file.set_len(size)
    }
}

fn check_size(size: u64) -> io::Result<()> {
    if size > FILE_BYTES_MAX {
        return Err(Sys::FBIG.into());
    }
    Ok(())
}

fn answer(reply: ReplyEmpty, done: io::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn answer_entry(reply: ReplyEntry, made: io::Result<FileAttr>) {
    match made {
        Ok(attr) => reply.entry(&LIFETIME, &attr, GENERATION),
        Err(error) => reply.error(error.into()),
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.found(parent, name);
        answer_entry(reply, found.and_then(|path| self.attributes(&path)));
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(&self.path(node)) {
            Ok(attr) => reply.attr(&LIFETIME, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        let done = size.map_or(Ok(()), |size| self.resized(node, size));
        match done.and_then(|()| self.attributes(&self.path(node))) {
            Ok(attr) => reply.attr(&LIFETIME, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        answer_entry(reply, self.made(parent, name, |path| fs::create_dir(path)));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let made = self.made(parent, name, |path| File::create_new(path).map(drop));
        match made {
            Ok(attr) => {
                let (handle, flags) = (FileHandle(0), FopenFlags::empty());
                reply.created(&LIFETIME, &attr, GENERATION, handle, flags);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let from = self.path(node);
        let made = self.made(parent, name, |path| fs::hard_link(from, path));
        answer_entry(reply, made);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(
            reply,
            self.removed(parent, name, |path| fs::remove_file(path)),
        );
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(
            reply,
            self.removed(parent, name, |path| fs::remove_dir(path)),
        );
    }

    /// Supports no flags. Replaces an existing entry with the new name.
    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let to = self.found(new_parent, new_name);
        let to = to.or_else(|_| self.vacant(new_parent, new_name));
        let renamed = to.and_then(|to| {
            self.nodes.lock().unwrap().forget(&to);
            self.removed(parent, name, |path| fs::rename(path, to))
        });
        answer(reply, renamed);
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = check_size(offset + data.len() as u64).and_then(|()| {
            let file = OpenOptions::new().write(true).open(self.path(node))?;
            file.write_all_at(data, offset)
        });
        match written {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap()),
            Err(error) => reply.error(error.into()),
        }
    }
}
