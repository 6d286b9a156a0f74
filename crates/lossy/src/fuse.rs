//! A disk as a FUSE file system.
//!
//! Files are opened through the kernel's page cache: without it they could not be mapped and shared with
//! processes that use `write`. The kernel's write-back is off, so a `write` has reached the disk when it
//! returns. Only writes through a mapping reach the disk later: with a sync of the file, when its last user
//! closes it, or at the unmount.
//!
//! The file system refuses the features that no store needs: links, changes of owners, modes and times,
//! extended attributes, renaming of directories.

mod nodes;

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use lockstep_types::backing::{Backing, BackingFile, BackingStat};
use parking_lot::Mutex;

use crate::disk::{Kind, Mount};
use crate::gate::Gate;
use nodes::{Found, Nodes};

/// Every change of the disk comes through the kernel, so the kernel's caches are always right.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const GENERATION: Generation = Generation(0);
/// Every request names the node.
const NO_HANDLE: FileHandle = FileHandle(0);
const FILE_MODE: u16 = 0o600;
const DIRECTORY_MODE: u16 = 0o700;
const BLOCK_BYTES: u32 = 4096;
const NAME_BYTES_MAX: u32 = 255;

/// Answers the kernel for one mount of a disk.
pub(crate) struct Server {
    disk: Mount,
    gate: Arc<Gate>,
    nodes: Mutex<Nodes>,
}

impl Server {
    /// Answers for a disk until the disk loses power. Syncs pass the gate first.
    pub(crate) fn new(disk: Mount, gate: Arc<Gate>) -> Self {
        Self {
            nodes: Mutex::new(Nodes::new(disk.clone())),
            disk,
            gate,
        }
    }

    /// Syncs `node` and answers: at once, or on a separate thread if the sync has to wait.
    fn sync(
        &self,
        node: INodeNo,
        reply: ReplyEmpty,
        sync: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) {
        let path = self.nodes.lock().path(node.0);
        if !self.gate.is_closed_for(path.as_deref()) {
            return answer_empty(reply, sync());
        }
        let gate = Arc::clone(&self.gate);
        std::thread::spawn(move || {
            gate.pass(path.as_deref());
            answer_empty(reply, sync());
        });
    }

    fn file(&self, node: INodeNo) -> io::Result<Arc<dyn BackingFile>> {
        self.nodes.lock().file(node.0)
    }

    fn attributes(&self, node: INodeNo) -> io::Result<FileAttr> {
        let found = self.nodes.lock().find(node.0)?;
        attributes(&found)
    }

    fn made(&self, parent: INodeNo, name: &OsStr, kind: Kind) -> io::Result<FileAttr> {
        let mut nodes = self.nodes.lock();
        let path = nodes.path_in(parent.0, name)?;
        match kind {
            Kind::File => self.disk.create(&path)?,
            Kind::Directory => self.disk.make_directory(&path)?,
        }
        attributes(&nodes.look_up(&path)?)
    }

    fn looked_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let mut nodes = self.nodes.lock();
        let path = nodes.path_in(parent.0, name)?;
        attributes(&nodes.look_up(&path)?)
    }

    fn removed(&self, parent: INodeNo, name: &OsStr, kind: Kind) -> io::Result<()> {
        let mut nodes = self.nodes.lock();
        let path = nodes.path_in(parent.0, name)?;
        match kind {
            Kind::File => self.disk.remove(&path)?,
            Kind::Directory => self.disk.remove_directory(&path)?,
        }
        nodes.removed(&path);
        Ok(())
    }

    fn renamed(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr)) -> io::Result<()> {
        let mut nodes = self.nodes.lock();
        let from = nodes.path_in(from.0.0, from.1)?;
        let to = nodes.path_in(to.0.0, to.1)?;
        self.disk.rename(&from, &to)?;
        nodes.renamed(&from, &to);
        Ok(())
    }

    fn listed(&self, node: INodeNo) -> io::Result<Vec<(FileType, String)>> {
        let path = self.nodes.lock().directory(node.0)?;
        let own = [".", ".."].map(|name| (FileType::Directory, name.to_owned()));
        let mut entries = own.to_vec();
        for name in self.disk.list(&path)? {
            let kind = self.disk.kind(&nodes::join(&path, &name))?;
            entries.push((file_type(kind), name));
        }
        Ok(entries)
    }

    fn allocated(&self, node: INodeNo, offset: u64, length: u64, mode: i32) -> io::Result<()> {
        let file = self.file(node)?;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => file.allocate(offset, length, keep_size),
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => file.punch_hole(offset, length),
            libc::FALLOC_FL_ZERO_RANGE => file.zero_range(offset, length, keep_size),
            _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    fn sought(&self, node: INodeNo, offset: i64, whence: i32) -> io::Result<i64> {
        let nowhere = || io::Error::from_raw_os_error(libc::ENXIO);
        let offset = u64::try_from(offset).map_err(|_| nowhere())?;
        let file = self.file(node)?;
        let found = match whence {
            libc::SEEK_DATA => file.seek_data(offset)?,
            libc::SEEK_HOLE => file.seek_hole(offset)?,
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        let found = found.and_then(|found| i64::try_from(found).ok());
        found.ok_or_else(nowhere)
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
    }
}

fn attributes(found: &Found) -> io::Result<FileAttr> {
    let (kind, perm, stat) = match &found.file {
        Some(file) => (Kind::File, FILE_MODE, file.stat()?),
        None => (Kind::Directory, DIRECTORY_MODE, BackingStat::default()),
    };
    Ok(FileAttr {
        ino: INodeNo(found.number),
        size: stat.length,
        blocks: stat.blocks,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(kind),
        perm,
        nlink: u32::from(found.has_name),
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    })
}

fn answer_empty(reply: ReplyEmpty, outcome: io::Result<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn answer_entry(reply: ReplyEntry, outcome: io::Result<FileAttr>) {
    match outcome {
        Ok(attr) => reply.entry(&LIFETIME, &attr, GENERATION),
        Err(error) => reply.error(error.into()),
    }
}

fn answer_attributes(reply: ReplyAttr, outcome: io::Result<FileAttr>) {
    match outcome {
        Ok(attr) => reply.attr(&LIFETIME, &attr),
        Err(error) => reply.error(error.into()),
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Faster. A kernel without it works too.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(reply, self.looked_up(parent, name));
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.nodes.lock().forget(node.0, count);
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        answer_attributes(reply, self.attributes(node));
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let cut = size.map_or(Ok(()), |size| {
            self.file(node).and_then(|file| file.set_len(size))
        });
        answer_attributes(reply, cut.and_then(|()| self.attributes(node)));
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        answer_entry(reply, self.made(parent, name, Kind::Directory));
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.made(parent, name, Kind::File) {
            Ok(attr) => {
                let flags = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&LIFETIME, &attr, GENERATION, NO_HANDLE, flags);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(reply, self.removed(parent, name, Kind::File));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(reply, self.removed(parent, name, Kind::Directory));
    }

    fn rename(
        &self,
        _request: &Request,
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
        answer_empty(reply, self.renamed((parent, name), (new_parent, new_name)));
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(NO_HANDLE, FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        let read = self
            .file(node)
            .and_then(|file| file.read_at(offset, &mut bytes));
        match read {
            Ok(count) => reply.data(bytes.get(..count).unwrap_or_default()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.file(node).and_then(|file| file.write_at(offset, data));
        match written {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error.into()),
        }
    }

    /// Closing saves nothing.
    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// The kernel has written back all writes through mappings before this call.
    fn fsync(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        match self.file(node) {
            Ok(file) => self.sync(node, reply, move || file.sync()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let path = self.nodes.lock().synced_directory(node.0);
        match path {
            Ok(Some(path)) => {
                let disk = self.disk.clone();
                self.sync(node, reply, move || disk.sync_dir(&path));
            }
            Ok(None) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.listed(node) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error.into()),
        };
        // The kernel does not know the inode yet, so its number is not told.
        let unknown = INodeNo(u64::MAX);
        for (next, (kind, name)) in (1..)
            .zip(&entries)
            .skip(usize::try_from(offset).unwrap_or(0))
        {
            if reply.add(unknown, next, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        match self.disk.space() {
            Ok(space) => reply.statfs(
                space.total_bytes / u64::from(BLOCK_BYTES),
                space.free_bytes / u64::from(BLOCK_BYTES),
                space.available_bytes / u64::from(BLOCK_BYTES),
                space.total_files,
                space.free_files,
                BLOCK_BYTES,
                NAME_BYTES_MAX,
                BLOCK_BYTES,
            ),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer_empty(reply, self.allocated(node, offset, length, mode));
    }

    fn lseek(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.sought(node, offset, whence) {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(error.into()),
        }
    }

    fn getxattr(
        &self,
        _request: &Request,
        _node: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        // The kernel does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
