//! What a client may ask of a datastore: the one interface between the ways in (FUSE now, NFS
//! later) and the datastore behind.
//!
//! Whatever may have to wait (for a lock, the peer, a disk flush) answers through a completion
//! called exactly once, from any thread, so that a way in never parks a thread on an operation. At the door of
//! writes alone ([`FileService::keep_at_door`]) a thread waits while too many wait already.
//! What only looks at the local store returns at once.
//!
//! Permissions are not checked here: the kernel does that before it asks.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_types::backing::Space;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, NodeKind};

/// Called exactly once with the outcome of an operation, from any thread.
pub type Done<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// Called exactly once with the bytes read, which live only as long as the call.
pub type ReadDone = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// The bytes of a write that begins later, kept by the service. Dropped, they are given back.
pub trait KeptBytes: Send + Sync {
    /// How many.
    fn length(&self) -> usize;

    /// The bytes. May wait for the disk.
    ///
    /// # Errors
    /// `Io` when they cannot be read again; then it stays so.
    fn load(&self) -> Result<Arc<[u8]>, Errno>;
}

/// Kept in memory.
impl KeptBytes for Arc<[u8]> {
    fn length(&self) -> usize {
        self.len()
    }

    fn load(&self) -> Result<Self, Errno> {
        Ok(Self::clone(self))
    }
}

/// One entry of a directory, as `readdir` gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Position to go on after this entry; stable for the life of the entry.
    pub cookie: u64,
    /// Inode of the entry.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: NodeKind,
    /// Name of the entry.
    pub name: FileName,
}

/// The requests of clients that a way in has not taken up yet.
pub trait Waiting: fmt::Debug {
    /// Whether there are any at this moment.
    fn any(&self) -> bool;

    /// Whether nobody can ask anything any more, or hear an answer.
    fn is_gone(&self) -> bool {
        false
    }
}

/// How a write is to be done.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions<'a> {
    /// Answer only when the bytes are on stable storage on both nodes (`O_SYNC`, `O_DSYNC`).
    pub durable: bool,
    /// The writer may not keep set-id bits and file capabilities on the file.
    pub drop_set_id: bool,
    /// Where more requests wait, this write may go to the peer together with the next. Who gives this calls
    /// [`FileService::hurry`] for every request that is no write, before it is begun.
    pub waiting: Option<&'a dyn Waiting>,
}

/// Where `lseek` looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// For data at or after the offset.
    Data,
    /// For a hole at or after the offset.
    Hole,
}

/// One datastore, as its clients see it. All calls may come from many threads at once.
pub trait FileService: Send + Sync + 'static {
    /// A panic came out of a call, or out of what answers it. It may have left something half done.
    fn panicked(&self) {}

    /// A request was taken up that is no write: none that was left for the next one waits any longer
    /// ([`WriteOptions::waiting`]).
    fn hurry(&self) {}

    /// No more requests come, and whoever is held up inside a call as there is no room goes on with an error.
    fn closing(&self) {}

    /// The door of each write of a mount, before [`Self::write`]: keeps the bytes, for [`Self::write_kept`], if the
    /// write would have to wait and memory has as many of such bytes as it may. Where there is no room for them, the
    /// thread waits, and so does every write that waits for something that the thread holds: it must hold nothing.
    /// No thread that the service needs for its answers may call this.
    ///
    /// # Errors
    /// `Io` when they cannot be kept, as the disk fails or the mount goes.
    fn keep_at_door(
        &self,
        _ino: Ino,
        _offset: u64,
        _data: &[u8],
        _options: WriteOptions<'_>,
    ) -> Result<Option<Arc<dyn KeptBytes>>, Errno> {
        Ok(None)
    }

    /// Keeps the bytes of a write that the caller begins later. The same holds for the thread as at the door, which
    /// this is part of.
    ///
    /// # Errors
    /// `Io` when they cannot be kept, as the disk fails or the mount goes.
    fn keep(
        &self,
        data: &[u8],
        _waiting: Option<&dyn Waiting>,
    ) -> Result<Arc<dyn KeptBytes>, Errno> {
        Ok(self.keep_past_door(data))
    }

    /// Keeps the bytes of a write that is past the door: in memory, and waits for nothing.
    fn keep_past_door(&self, data: &[u8]) -> Arc<dyn KeptBytes> {
        let bytes: Arc<[u8]> = data.into();
        Arc::new(bytes)
    }

    /// Attributes of the inode that `name` in `parent` leads to, `NoEntry` if nothing does.
    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno>;

    /// Attributes of the directory above `directory`; the root is above itself.
    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno>;

    /// Attributes of an inode; `Stale` if it no longer exists.
    fn getattr(&self, ino: Ino) -> Result<Attr, Errno>;

    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno>;

    /// Value of an extended attribute, `NoData` if it is not set.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// Names of all extended attributes, each ended by a NUL byte.
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno>;

    /// Calls `each` for the entries after position `after` (0: from the start) until it breaks or
    /// there are no more. The newest entry comes first, so cookies fall: an entry that is made or renamed
    /// during a listing is behind its reader, and every listing ends. `.` and `..` are not among them, and
    /// cookies start at 3 so that a way in can give those two the cookies 1 and 2.
    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), Errno>;

    /// Room for data and files.
    fn space(&self) -> Result<Space, Errno>;

    /// Next data or hole of a file; `NoDevice` (`ENXIO`) when there is none.
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno>;

    /// Counts one more open handle, which keeps the inode alive when its last name goes.
    fn opened(&self, ino: Ino) -> Result<(), Errno>;

    /// Counts one open handle less.
    fn closed(&self, ino: Ino);

    /// Counts `count` more references from the kernel's cache, which keep the inode alive too.
    fn remembered(&self, ino: Ino, count: u64);

    /// Counts `count` references less.
    fn forgotten(&self, ino: Ino, count: u64);

    /// A number for a new inode, to put in [`MetaRequest::Create`]. Never given twice.
    fn next_ino(&self) -> Result<Ino, Errno>;

    /// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone);

    /// Writes all of `data` (at most `limits::WRITE_BYTES_MAX`) at `offset`.
    fn write(&self, ino: Ino, offset: u64, data: &[u8], options: WriteOptions<'_>, done: Done<()>);

    /// Writes all of the bytes that were kept.
    fn write_kept(
        &self,
        ino: Ino,
        offset: u64,
        kept: Arc<dyn KeptBytes>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        match kept.load() {
            Ok(data) => self.write(ino, offset, &data, options, done),
            Err(errno) => done(Err(errno)),
        }
    }

    /// Does a metadata operation; the answer is the attributes of the inode made, linked or
    /// changed, where there is exactly one such inode.
    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>);

    /// Copies up to `length` bytes from one file to another; the answer is how many were copied,
    /// which may be fewer than asked, and is zero only at the end of the source. At most
    /// `limits::WRITE_BYTES_MAX` are, as a copy is one write: whoever asks asks again for the rest, and
    /// others do not wait long.
    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>);

    /// Answers when everything acknowledged on this file, and the names that lead to it, are on
    /// stable storage on both nodes.
    fn sync(&self, ino: Ino, done: Done<()>);
}
