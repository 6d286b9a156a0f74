//! The requests of clients to a datastore: the one interface between the front ends (FUSE now, NFS later) and the
//! datastore.
//!
//! An operation that may wait, for a lock, the peer or a disk flush, answers through a completion. The completion is
//! called exactly once, from any thread, so a front end never parks a thread on an operation. The one exception is the
//! admission of writes ([`FileService::admit`]): there a thread waits while too many writes wait.
//! A request that only reads the local store returns at once.
//!
//! Permissions are not checked here: the kernel has checked them.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use lockstep_types::backing::Space;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, NodeKind};

pub use write_data::{LoadedData, SpilledBytes, WriteData, in_memory};

pub use crate::service_gate::lease_board::LeaseBoard;
pub use crate::service_gate::{Inside, RequestKind, Standing, Tenure};

mod write_data;

/// Called exactly once with the outcome of an operation, from any thread.
pub type Done<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// Called exactly once with the read bytes, which live only as long as the call.
pub type ReadDone = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// Asks whether the front end still refers to an inode. If it does not, it calls [`FileService::unreferenced`]. May be
/// called from any thread, and does not wait.
pub type AskKernel = Box<dyn Fn(Ino) + Send + Sync>;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Position after this entry; stable for the life of the entry.
    pub cookie: u64,
    /// Inode of the entry.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: NodeKind,
    /// Name of the entry.
    pub name: FileName,
}

/// The requests of clients that a front end has not taken up yet.
pub trait WaitingRequests: fmt::Debug {
    /// Whether there is such a request at this moment.
    fn any(&self) -> bool;

    /// Whether the mount is gone: no client can send a request or get an answer.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions<'a> {
    /// Answer only when the bytes are on stable storage on both nodes (`O_SYNC`, `O_DSYNC`).
    pub durable: bool,
    /// The writer may not keep set-id bits and file capabilities on the file.
    pub drop_set_id: bool,
    /// An append that the kernel has sent again: an earlier process may have done it.
    pub is_resent_append: bool,
    /// The waiting requests of the mount. While there are some, this write may leave for the peer together with the next
    /// one. A caller that sets this calls [`FileService::flush_deferred_writes`] before it begins any request that is no write.
    pub waiting: Option<&'a dyn WaitingRequests>,
}

/// The goal of `lseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Data at or after the offset.
    Data,
    /// A hole at or after the offset.
    Hole,
}

/// Learns of the changes of a node's role. A front end with caches drops them.
pub trait RoleObserver: Send + Sync {
    /// This node is about to give its role away, and still serves. Must return within some seconds.
    fn preparing(&self);

    /// This node gives its role away when this returns. Until then the datastore executes write-backs and changes of size
    /// only. Must return within about 4 s.
    fn retiring(&self);

    /// The standing of this node has changed.
    fn changed(&self, standing: Standing);

    /// An inode has got a name in a directory, by an operation that no program of the mount has asked for.
    fn named(&self, parent: Ino, ino: Ino);

    /// Programs must find all such names when this returns. Must return within some seconds.
    fn names_are_new(&self);

    /// The lease of this node is over, or the witness has made the other node the primary: that node may serve, and this node
    /// may not meet it for long.
    fn lease_expired(&self);
}

/// One datastore, as its clients see it. All calls may come from many threads at once.
pub trait FileService: Send + Sync + 'static {
    /// A call or its completion has panicked. It may have left an operation half done.
    fn panicked(&self) {}

    /// Lets a request in. The front end drops the [`Inside`] when it has handed the request to the service: the
    /// operations that the request has begun count by themselves. A completion may begin further operations of the same
    /// request without another call of this.
    ///
    /// # Errors
    /// The standing of a node that does not serve. The request then waits ([`Self::when_serving`]) or fails, and no other
    /// function of this trait may be called for it, except those that count references.
    fn enter(&self, _kind: RequestKind) -> Result<Inside, Standing> {
        Ok(Inside::ungated(Tenure::FIRST))
    }

    /// The tenure of this moment. A change that a program asks now runs only in this tenure (rule R13): the front end compares
    /// [`Inside::tenure`].
    fn tenure(&self) -> Tenure {
        Tenure::FIRST
    }

    /// The same service for the requests of one tenure: in any other one, each operation that they begin fails. `None` if the
    /// service has one tenure only.
    fn within(&self, _tenure: Tenure) -> Option<Arc<dyn FileService>> {
        None
    }

    /// Runs a job, which must not wait, once this node serves. The job is dropped if the datastore is stopped before.
    fn when_serving(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }

    /// Notes how many requests of programs wait for the service, for the status.
    fn note_waiting(&self, _requests: u64) {}

    /// The standing of this node at this moment.
    fn standing(&self) -> Standing {
        Standing::Serving
    }

    /// Whether this node serves at this moment, so that no other node can: the kernel may keep what it is answered until it
    /// hears of a change.
    fn serves(&self) -> bool {
        self.standing() == Standing::Serving
    }

    /// Time for which this node serves without asking the other one: until the end of its lease, [`Duration::MAX`] without a lease,
    /// and zero if it does not serve.
    fn serves_for(&self) -> Duration {
        if self.serves() {
            Duration::MAX
        } else {
            Duration::ZERO
        }
    }

    /// Has an observer learn of the changes of the role, from now on.
    fn observe(&self, _observer: Arc<dyn RoleObserver>) {}

    /// Shows the end of each lease under which this node serves, from now on.
    fn show_lease(&self, _board: Arc<dyn LeaseBoard>) {}

    /// Sends the deferred write: the next request is no write ([`WriteOptions::waiting`]).
    fn flush_deferred_writes(&self) {}

    /// No more requests come. A thread that waits for room inside a call continues with an error.
    fn closing(&self) {}

    /// Admits a write of a mount, before [`Self::write`]. If the write would have to wait, and memory holds as many bytes
    /// of waiting writes as it may, the write owns its bytes from now on. While there is no room for the bytes, the thread
    /// waits. The thread must hold nothing that another write may wait for. No thread that completes operations may call
    /// this.
    ///
    /// # Errors
    /// `Io` when the bytes cannot be kept, because the disk fails or the mount is gone.
    fn admit<'a>(
        &self,
        _ino: Ino,
        _offset: u64,
        data: &'a [u8],
        _options: WriteOptions<'_>,
    ) -> Result<WriteData<'a>, Errno> {
        Ok(WriteData::Borrowed(data))
    }

    /// Keeps the bytes of a write that the caller begins later, as part of its admission. The same holds for the thread
    /// as in [`Self::admit`].
    ///
    /// # Errors
    /// `Io` when the bytes cannot be kept, because the disk fails or the mount is gone.
    fn keep(
        &self,
        data: WriteData<'_>,
        _waiting: Option<&dyn WaitingRequests>,
    ) -> Result<WriteData<'static>, Errno> {
        Ok(self.keep_admitted(data))
    }

    /// Keeps the bytes of an admitted write in memory. Never waits.
    fn keep_admitted(&self, data: WriteData<'_>) -> WriteData<'static> {
        data.owned_by(in_memory)
    }

    /// Attributes of the inode that `name` in `parent` leads to; `NoEntry` if there is no such name.
    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno>;

    /// Attributes of the directory above `directory`; the root is above itself.
    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno>;

    /// Attributes of an inode; `Stale` if it no longer exists.
    fn getattr(&self, ino: Ino) -> Result<Attr, Errno>;

    /// Attributes of an inode that the kernel has forgotten, and that a file handle names. No directory is locked, so the inode could be removed at any
    /// moment: a reference keeps it alive meanwhile. `Stale` also if the inode is in the trash and no program has it open.
    fn revive(&self, ino: Ino) -> Result<Attr, Errno> {
        self.remembered(ino, 1);
        let found = self.getattr(ino);
        self.forgotten(ino, 1);
        found
    }

    /// Tells the file of an inode number from those that have had the number before: zero for each file of the present, whose number is never
    /// used again.
    fn generation(&self, _ino: Ino) -> Result<u64, Errno> {
        Ok(0)
    }

    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno>;

    /// Value of an extended attribute, `NoData` if it is not set.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// Names of all extended attributes, each ended by a NUL byte.
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno>;

    /// Calls `each` for the entries after position `after` (0: from the start) until it breaks or
    /// there are no more. The newest entry comes first, so cookies fall: an entry that is made or renamed
    /// during a listing is behind its reader, and every listing ends. `.` and `..` are not listed. Cookies
    /// start at 3, so that a front end can give those two the cookies 1 and 2.
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

    /// The parts in which a change of a range is best made, one after the other: a change of many pieces of a file holds other
    /// changes up for as long as it lasts.
    fn parts(&self, _ino: Ino, range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    /// Counts one more open handle, which keeps the inode alive when its last name goes.
    fn opened(&self, ino: Ino) -> Result<(), Errno>;

    /// Counts one open handle fewer.
    fn closed(&self, ino: Ino);

    /// Counts `count` more references from the kernel's cache. They keep the inode alive, too.
    fn remembered(&self, ino: Ino, count: u64);

    /// Counts `count` references fewer.
    fn forgotten(&self, ino: Ino, count: u64);

    /// Continues what an earlier process has served. The counts of its references are lost, so an inode without a name
    /// stays until the answer to `ask` says that nothing refers to it. Call it before the first request.
    fn inherit(&self, _ask: AskKernel) {}

    /// Nothing refers to an inode that `ask` was called with ([`Self::inherit`]).
    fn unreferenced(&self, _ino: Ino) {}

    /// A number above those of all inodes that this node has ever answered with.
    fn inos_below(&self) -> Ino {
        self.next_ino().unwrap_or(Ino::LAST)
    }

    /// A number for a new inode, for [`MetaRequest::Create`]. No number is given twice.
    fn next_ino(&self) -> Result<Ino, Errno>;

    /// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone);

    /// Writes all of `data` (at most `limits::WRITE_BYTES_MAX`) at `offset`.
    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    );

    /// Executes a metadata operation. The answer is the attributes of the inode that was made, linked or
    /// changed, if there is exactly one.
    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>);

    /// Copies up to `length` bytes from one file to another. The answer is the number of copied bytes, which may be
    /// smaller and is zero only at the end of the source. A copy is one write, of `limits::WRITE_BYTES_MAX` bytes at
    /// most, so that other operations do not wait long. The caller asks again for the rest.
    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>);

    /// Answers when all acknowledged changes of this file, and the names that lead to the file, are on stable storage on
    /// both nodes.
    fn sync(&self, ino: Ino, done: Done<()>);
}
