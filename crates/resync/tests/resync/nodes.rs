//! Two stores on real directories, a peer that answers at once, and locks without contention.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_fs::Store;
use lockstep_fs::keys::REPLICATED;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::{Access, ImageChunk, MarkTableSizes, OpenOptions, make_delta_table};
use lockstep_intentlog::LogOptions;
use lockstep_repl::core::LockSet;
use lockstep_repl::message::{Request, Response};
use lockstep_resync::{
    LockClaim, Locks, NewResync, Operations, Peer, PeerBase, PeerError, ResyncError, ResyncSource,
    ResyncStart, send_image, send_tail,
};
use lockstep_types::backing::Backing;
use lockstep_types::{
    BootId, DatastoreUuid, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind, Osn, SyncId,
    Timestamp, XattrMode,
};
use lockstep_verify::DeepCopy;
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::secondary::is_deep;
use tempfile::TempDir;

/// Most bytes of a frame's header.
const HEADER_BYTES_MAX: usize = 128 << 10;

pub fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: 256 << 10,
        ..LogOptions::default()
    }
}

pub struct Node {
    dir: TempDir,
    store: Option<Store>,
    clock: AtomicU64,
}

impl Node {
    pub fn new() -> Self {
        Self::with_delta_slots(4096)
    }

    /// A node whose table of the delta has this number of slots.
    pub fn with_delta_slots(slots: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(dir.path()).unwrap());
        Store::create(&backing, DatastoreUuid::from_bytes([7; 16]), &log_options()).unwrap();
        make_delta_table(backing.as_ref(), slots).unwrap();
        let mut node = Self {
            dir,
            store: None,
            clock: AtomicU64::new(1),
        };
        node.restart();
        node
    }

    /// Opens the store again without closing it, as after the death of the process.
    pub fn restart(&mut self) {
        self.store = None;
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(self.dir.path()).unwrap());
        let options = OpenOptions {
            datastore: None,
            boot: BootId::from_bytes([1; 16]),
            access: Access::Write,
            log: log_options(),
            marks: MarkTableSizes::of(64),
        };
        self.store = Some(Store::open(backing, &options).unwrap().store);
    }

    /// The process of a primary that is alone dies, and the node leads again.
    #[allow(dead_code)] // not every test program has such a primary
    pub fn lead_again(&mut self) {
        self.restart();
        self.store().delta().lead_alone(Generation::FIRST, false);
    }

    pub fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Path of an inode's content, for a test that damages the content.
    #[allow(dead_code)] // not every test program damages content
    pub fn content_path(&self, ino: Ino) -> PathBuf {
        self.dir.path().join(lockstep_fs::paths::content_path(ino))
    }

    /// A path in the directory of the store.
    #[allow(dead_code)]
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn stamp(&self) -> (Osn, Timestamp) {
        stamp(self.clock.fetch_add(1, Ordering::Relaxed))
    }

    #[allow(dead_code)]
    pub fn later_than(&self, sequence: u64) {
        self.clock.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Applies an operation; a refused operation changes nothing.
    pub fn meta(&self, request: MetaRequest) -> bool {
        let (osn, time) = self.stamp();
        let op = MetaOp { osn, time, request };
        self.store().commit(&op).is_ok()
    }

    pub fn create(&self, parent: Ino, name: &str, kind: NodeKind) -> Option<Ino> {
        let ino = self.store().next_ino().unwrap();
        self.meta(create(parent, name, kind, ino)).then_some(ino)
    }

    pub fn file(&self, name: &str, content: &[u8]) -> Ino {
        let ino = self.create(Ino::ROOT, name, NodeKind::File).unwrap();
        self.write(ino, 0, content);
        ino
    }

    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> bool {
        let (osn, time) = self.stamp();
        self.store().write(ino, offset, data, osn, time).is_ok()
    }

    #[allow(dead_code)]
    pub fn xattr(&self, ino: Ino, name: &str, value: &[u8]) -> bool {
        self.meta(MetaRequest::SetXattr {
            ino,
            name: name.as_bytes().to_vec(),
            value: value.to_vec(),
            mode: XattrMode::Any,
        })
    }
}

pub fn stamp(sequence: u64) -> (Osn, Timestamp) {
    let osn = Osn {
        generation: Generation::FIRST,
        sequence,
    };
    let time = Timestamp {
        secs: i64::try_from(sequence).unwrap(),
        nanos: 5,
    };
    (osn, time)
}

pub fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

pub fn create(parent: Ino, text: &str, kind: NodeKind, ino: Ino) -> MetaRequest {
    MetaRequest::creation(parent, name(text), ino, kind)
        .mode(0o644)
        .owner(3, 4)
        .target(match kind {
            NodeKind::Symlink => b"target".to_vec(),
            _ => Vec::new(),
        })
        .request()
}

/// The other node, without a network. Stops answering at a chosen request.
pub struct LocalPeer<'a> {
    pub store: &'a Store,
    pub asked: AtomicU64,
    pub lost_at: u64,
}

impl<'a> LocalPeer<'a> {
    pub fn new(node: &'a Node) -> Self {
        Self {
            store: node.store(),
            asked: AtomicU64::new(0),
            lost_at: u64::MAX,
        }
    }
}

impl Peer for LocalPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= self.lost_at {
            return Err(PeerError::Lost);
        }
        let request = postcard::to_allocvec(&request).unwrap();
        assert!(request.len() < HEADER_BYTES_MAX && payload.len() <= 1 << 20);
        let request: Request = postcard::from_bytes(&request).unwrap();
        if is_deep(&request) {
            let sums = &StoreSums::of(self.store);
            let copy = DeepCopy {
                store: self.store,
                sums,
            };
            let answered = lockstep_verify::answer_deep(copy, &request, payload);
            return answered.map_err(|reason| PeerError::Failed {
                what: "answer",
                reason,
            });
        }
        let answered = match request {
            Request::DigestOfBatch { .. }
            | Request::Digests { .. }
            | Request::Inspect { .. }
            | Request::Records { .. } => lockstep_verify::answer(&self.store.tree(), &request),
            request if lockstep_resync::arrival::is_of_arrival(&request) => {
                lockstep_resync::arrival::answer(self.store, &request, payload)
            }
            _ => lockstep_resync::answer(self.store, &request, payload),
        };
        let response = answered.map_err(|error| PeerError::Failed {
            what: "answer",
            reason: error.into(),
        })?;
        assert!(postcard::to_allocvec(&response).unwrap().len() < HEADER_BYTES_MAX);
        Ok(response)
    }
}

/// A primary without client operations.
pub struct NoOperations;

impl Operations for NoOperations {
    fn caught_up(&self) {}
}

/// Carries the namespace over while no operation changes it.
pub fn send_namespace(store: &Store, peer: &dyn Peer) -> Result<(), ResyncError> {
    let view = store.tree();
    let source = ResyncSource::new(&view, store);
    let image = send_image(source, peer, new_resync(None, store), &NoOperations)?;
    send_tail(source, peer, &image)
}

/// A resync of a copy with this base: of everything without one, and without a delta of the primary since then.
pub fn new_resync(base: Option<PeerBase>, primary: &Store) -> NewResync {
    let base = base.filter(|base| base.has_delta(primary.delta()));
    NewResync {
        sync: SyncId::next(None, [1; 16]),
        generation: Generation::FIRST,
        start: base.map_or(ResyncStart::Everything, ResyncStart::Changes),
    }
}

/// A claim on free locks.
pub struct HeldClaim;

impl LockClaim for HeldClaim {
    fn is_held(&self) -> bool {
        true
    }

    fn wait(&mut self) -> Result<(), ResyncError> {
        Ok(())
    }
}

/// Locks that are always free.
pub struct FreeLocks;

impl Locks for FreeLocks {
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        for (number, (key, _)) in locks.iter().enumerate() {
            assert!(locks.iter().skip(number + 1).all(|(other, _)| other != key));
        }
        body()
    }

    fn claim(&self, _: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError> {
        Ok(Box::new(HeldClaim))
    }

    /// No operation is under way.
    fn pause(&self, _: Duration) {}
}

#[allow(dead_code)]
/// All records that both nodes must have.
pub fn records(store: &Store) -> Vec<ImageChunk> {
    store.checkpoint().unwrap();
    REPLICATED
        .iter()
        .map(|table| ImageChunk::read(&store.tree(), *table, &[], usize::MAX).unwrap())
        .collect()
}
