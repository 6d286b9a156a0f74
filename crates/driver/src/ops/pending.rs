//! Operations in flight: the work of each, and the client that waits for the answer.
//!
//! Invariant: an operation is here from before the core hears of it until the core finishes it. The lock of the
//! map is held for a moment only, never while a disk, the peer or a client is called.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_fs::Store;
use lockstep_fs::store::SyncPoint;
use lockstep_fs::store::{Applied, WriteTicket};
use lockstep_paw_saw::EntryHandle;
use lockstep_repl::core::OpId;
use lockstep_repl::message::WriteMessage;
use lockstep_types::{Attr, Errno, Ino, MetaRequest, NameRemoval, Osn, Timestamp};
use parking_lot::Mutex;

use super::lock_plan::Targets;
use crate::client::{Done, Inside, ReadDone, SpilledBytes};
use crate::durable::tables::WriteRange;
use crate::engine::Engine;
use crate::host::oneshot::Promise;

/// The work of an operation, and the client that waits for it.
pub(crate) enum PendingOp {
    /// A read of content.
    Read(PendingRead),
    /// A write of content.
    Write(PendingWrite),
    /// A metadata operation.
    Meta(PendingMetadata),
    /// A sync of a file.
    Sync(PendingSync),
    /// A resync or a comparison waits for locks, and works while it holds them. `None` once it was told that it
    /// gets none.
    Locks(Option<Promise<()>>),
}

/// A read of content.
pub(crate) struct PendingRead {
    pub ino: Ino,
    pub offset: u64,
    pub length: usize,
    pub done: ReadDone,
    /// Dropped when the client is answered.
    #[allow(dead_code)] // its drop is its use
    pub inside: Inside,
}

/// A write of content.
pub(crate) struct PendingWrite {
    pub write: WriteParams,
    /// The bytes, if the operation could not start at once on the thread that brought them.
    pub data: Option<Arc<dyn SpilledBytes>>,
    /// The store's part of the write, once the bytes are in the file.
    pub ticket: Option<WriteTicket>,
    /// The slot of the PAW entry.
    pub slot: Option<EntryHandle>,
    /// For a durable write: the changes that the syncs of both nodes cover. They begin after this was taken.
    pub synced: Option<SyncPoint>,
    pub done: Done<()>,
    /// Dropped when the client is answered.
    #[allow(dead_code)] // its drop is its use
    pub inside: Inside,
}

/// A write without its bytes: the message to the secondary, and the number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteParams {
    /// The number is [`Osn::ZERO`] until the core gives one.
    pub message: WriteMessage,
    pub length: usize,
}

impl WriteParams {
    /// First byte after the write.
    pub const fn end(&self) -> u64 {
        self.message.offset.saturating_add(self.length as u64)
    }

    /// The write with the number that the core gave.
    pub const fn numbered(mut self, osn: Osn) -> Self {
        self.message.osn = osn;
        self
    }
}

impl PendingWrite {
    /// The file, the first byte and the number of bytes.
    const fn range(&self) -> WriteRange {
        let WriteMessage { ino, offset, .. } = self.write.message;
        (ino, offset, self.write.length as u64)
    }

    /// Makes the new size and times visible.
    fn publish(&mut self, store: &Store) {
        if let Some(ticket) = self.ticket.take() {
            let WriteMessage { osn, time, .. } = self.write.message;
            store.complete_write(&ticket, self.write.end(), osn, time);
        }
    }
}

/// A metadata operation.
pub(crate) struct PendingMetadata {
    pub request: MetaRequest,
    pub time: Timestamp,
    /// When it was submitted, by the clock of the host.
    pub begun: Duration,
    /// The inodes that the names in the request led to when the locks were chosen.
    pub targets: Targets,
    /// The names lead elsewhere now: the locks must be chosen again.
    pub is_stale: bool,
    pub applied: Option<Applied>,
    pub done: Done<Option<Attr>>,
    /// Dropped when the client is answered.
    #[allow(dead_code)] // its drop is its use
    pub inside: Inside,
}

impl PendingMetadata {
    /// The request of an operation that has its number. No inode is made between the number of a snapshot and the snapshot. A removal puts the inode into
    /// the trash that loses its last name, if the datastore keeps one (rule P38).
    pub fn complete(&self, engine: &Engine) -> MetaRequest {
        let mut request = self.request.clone();
        if let MetaRequest::SnapshotCreate { inos_below, .. } = &mut request {
            *inos_below = engine.store.image().inos_below();
        }
        let takes_name = match request {
            MetaRequest::Unlink { .. } | MetaRequest::Rmdir { .. } => true,
            MetaRequest::Rename { .. } => self.targets.iter().all(Option::is_some),
            _ => false,
        };
        if takes_name
            && !engine.config.current().policies.trash.age.is_off()
            && let Some(removal) = NameRemoval::of(&request)
        {
            return MetaRequest::IntoTrash { removal };
        }
        request
    }
}

/// A sync of a file.
pub(crate) struct PendingSync {
    pub ino: Ino,
    /// The changes that the syncs of both nodes cover. They begin after this was taken.
    pub point: Option<SyncPoint>,
    pub done: Done<()>,
    /// Dropped when the client is answered.
    #[allow(dead_code)] // its drop is its use
    pub inside: Inside,
}

/// The part of this node in an operation.
pub(crate) enum LocalPart {
    /// A read, which is not in flight any more.
    Read(PendingRead),
    /// A change that may wait for the disk.
    Change(LocalChange),
    /// The thread that waited for the locks works now, and reports the end itself.
    LocksGranted,
    /// The thread that waited for the locks was told that it gets none.
    LocksAbandoned,
}

/// A change by an operation on content.
pub(crate) enum LocalChange {
    Write(WriteParams),
    Sync(Ino),
}

/// The operations in flight of one session.
pub(crate) struct PendingOps {
    ops: Mutex<HashMap<OpId, PendingOp>>,
    /// Set under the lock of the map: the session is over, and takes no operation any more.
    is_over: AtomicBool,
    next: AtomicU64,
    /// The answer to an operation whose outcome is not known.
    unknown: Errno,
}

impl PendingOps {
    /// No operations. At the end of the session, those in flight get the answer `unknown`.
    pub fn new(unknown: Errno) -> Self {
        Self {
            ops: Mutex::default(),
            is_over: AtomicBool::new(false),
            next: AtomicU64::new(1),
            unknown,
        }
    }

    /// Adds an operation and returns its number. Once the session is over, the operation ends at once.
    pub fn insert(&self, op: PendingOp) -> OpId {
        let id = OpId(self.next.fetch_add(1, Ordering::Relaxed));
        let mut ops = self.ops.lock();
        if self.is_over.load(Ordering::Relaxed) {
            drop(ops);
            end_without_outcome(op, self.unknown);
        } else {
            ops.insert(id, op);
        }
        id
    }

    /// Removes an operation.
    pub fn remove(&self, id: OpId) -> Option<PendingOp> {
        self.ops.lock().remove(&id)
    }

    /// The bytes of all writes in flight, those that have not begun included.
    pub fn writes(&self) -> Vec<WriteRange> {
        let ops = self.ops.lock();
        let range = |op: &PendingOp| match op {
            PendingOp::Write(write) => Some(write.range()),
            _ => None,
        };
        ops.values().filter_map(range).collect()
    }

    /// The metadata operation that was submitted first: its request, and the time since.
    pub fn oldest_metadata(&self, now: Duration) -> Option<(&'static str, Option<Ino>, Duration)> {
        let ops = self.ops.lock();
        let metadata = ops.values().filter_map(|op| match op {
            PendingOp::Meta(metadata) => Some(metadata),
            _ => None,
        });
        let oldest = metadata.min_by_key(|metadata| metadata.begun)?;
        let (name, ino) = oldest.request.describe();
        Some((name, ino, now.saturating_sub(oldest.begun)))
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops.lock().len()
    }

    /// Calls `f` with an operation, if it is in flight.
    pub fn with<T>(&self, id: OpId, f: impl FnOnce(&mut PendingOp) -> T) -> Option<T> {
        self.ops.lock().get_mut(&id).map(f)
    }

    /// Calls `f` with a write, if it is in flight.
    pub fn with_write<T>(&self, id: OpId, f: impl FnOnce(&mut PendingWrite) -> T) -> Option<T> {
        match self.ops.lock().get_mut(&id) {
            Some(PendingOp::Write(write)) => Some(f(write)),
            _ => None,
        }
    }

    /// Calls `f` with a metadata operation, if it is in flight.
    pub fn with_meta<T>(&self, id: OpId, f: impl FnOnce(&mut PendingMetadata) -> T) -> Option<T> {
        match self.ops.lock().get_mut(&id) {
            Some(PendingOp::Meta(meta)) => Some(f(meta)),
            _ => None,
        }
    }

    /// The part of this node in an operation whose locks are held, and which has the number `osn`. A metadata
    /// operation has none here.
    pub fn begin_local_part(&self, id: OpId, osn: Osn) -> Option<LocalPart> {
        let mut ops = self.ops.lock();
        match ops.get_mut(&id)? {
            PendingOp::Write(write) => {
                write.write = write.write.numbered(osn);
                Some(LocalPart::Change(LocalChange::Write(write.write)))
            }
            PendingOp::Sync(sync) => Some(LocalPart::Change(LocalChange::Sync(sync.ino))),
            PendingOp::Locks(ready) => Some(match ready.take() {
                Some(ready) => {
                    ready.keep(());
                    LocalPart::LocksGranted
                }
                None => LocalPart::LocksAbandoned,
            }),
            PendingOp::Meta(_) => None,
            PendingOp::Read(_) => match ops.remove(&id)? {
                PendingOp::Read(read) => Some(LocalPart::Read(read)),
                _ => None,
            },
        }
    }

    /// Makes the new size and times of a finished write visible.
    pub fn publish_write(&self, id: OpId, store: &Store) {
        self.with_write(id, |write| write.publish(store));
    }

    /// Whether the part of an operation on this node may wait for the disk: for a flush, for a checkpoint that
    /// frees a slot for a file, or for bytes that are not in memory.
    pub fn may_wait_for_disk(&self, id: OpId) -> bool {
        matches!(
            self.ops.lock().get(&id),
            Some(PendingOp::Read(_) | PendingOp::Write(_) | PendingOp::Sync(_))
        )
    }

    /// Ends all operations, and each that is added later: the session is over.
    pub fn abandon(&self) {
        let ops = {
            let mut ops = self.ops.lock();
            self.is_over.store(true, Ordering::Relaxed);
            std::mem::take(&mut *ops)
        };
        for op in ops.into_values() {
            end_without_outcome(op, self.unknown);
        }
    }

    /// Tells all threads that wait for locks that they get none. An operation that holds these locks may never
    /// end, because the threads that execute its parts take no more jobs when the node stops.
    pub fn abandon_locks(&self) {
        for op in self.ops.lock().values_mut() {
            if let PendingOp::Locks(ready) = op {
                drop(ready.take());
            }
        }
    }
}

/// Answers the client of an operation. Whether either node has done the operation is not known.
fn end_without_outcome(op: PendingOp, errno: Errno) {
    match op {
        PendingOp::Read(read) => (read.done)(Err(errno)),
        PendingOp::Sync(sync) => (sync.done)(Err(errno)),
        PendingOp::Write(write) => {
            if let Some(ticket) = &write.ticket {
                ticket.abandon();
            }
            (write.done)(Err(errno));
        }
        PendingOp::Meta(meta) => (meta.done)(Err(errno)),
        PendingOp::Locks(ready) => drop(ready),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Tenure;
    use crate::host::oneshot::promise;
    use crate::host::{Host, OsHost};

    #[test]
    fn an_operation_is_found_by_its_number_until_it_is_removed() {
        let pending = PendingOps::new(Errno::Io);
        let sync = |ino| {
            PendingOp::Sync(PendingSync {
                ino,
                point: None,
                done: Box::new(|_| ()),
                inside: Inside::ungated(Tenure::FIRST),
            })
        };
        let (first, second) = (
            pending.insert(sync(Ino::ROOT)),
            pending.insert(sync(Ino::ROOT)),
        );
        assert_ne!(first, second);
        assert!(pending.may_wait_for_disk(first));
        assert!(pending.with_write(first, |_| ()).is_none(), "it is a sync");
        assert!(pending.remove(first).is_some() && pending.remove(first).is_none());
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn an_operation_that_comes_after_the_end_of_the_session_is_answered() {
        let pending = PendingOps::new(Errno::Again);
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let sync = || {
            let outcomes = Arc::clone(&outcomes);
            PendingOp::Sync(PendingSync {
                ino: Ino::ROOT,
                point: None,
                done: Box::new(move |outcome| outcomes.lock().push(outcome)),
                inside: Inside::ungated(Tenure::FIRST),
            })
        };
        pending.insert(sync());
        pending.abandon();
        pending.insert(sync());
        assert_eq!(*outcomes.lock(), [Err(Errno::Again); 2]);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn abandoned_locks_wake_their_thread() {
        let host = OsHost::start("test").unwrap();
        let pending = PendingOps::new(Errno::Io);
        let (ready, wait) = promise(&host);
        pending.insert(PendingOp::Locks(Some(ready)));
        pending.abandon_locks();
        assert_eq!(wait.get(), None);
        assert_eq!(pending.len(), 1, "the core has not finished it");
        host.stop();
    }
}
