//! A store with a snapshot, seeds of it on disks and in directories, and their imports.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_fs::adopt::SyncAfter;
use lockstep_fs::export::ExportError;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::seed::{
    ImportOptions, ImportPlaces, ImportProgress, ImportSummary, SeedError, SeedLineage,
    SeedManifest, SeedOrder, SeedOrigin, export_seed, import, write_seed,
};
use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotKind, SnapshotRecord};
use lockstep_fs::store::{Access, AdoptWay, SnapshotAccess};
use lockstep_fs::{Store, StoreView};
use lockstep_lossy::disk::Disk;
use lockstep_types::backing::{Backing, replace};
use lockstep_types::{FileName, Ino, MetaRequest, SnapshotId, StoreId, SyncId, Timestamp};

use crate::durability::Client;
use crate::harness::{Node, UUID, log_options, open_options, osn_and_time, read_view};

pub fn origin() -> SeedOrigin {
    SeedOrigin {
        datastore: UUID,
        name: "data".to_owned(),
        lineage: SeedLineage {
            store: StoreId::from_bytes([8; 16]),
            sync: Some(SyncId::next(None, [9; 16])),
        },
    }
}

pub fn options(way: Option<AdoptWay>) -> ImportOptions {
    ImportOptions {
        seed: "/seed".to_owned(),
        way,
        datastore: UUID,
        log: log_options(),
        sync_after: SyncAfter {
            bytes: 1 << 20,
            files: 2,
        },
    }
}

/// Writes a seed of a snapshot to a disk.
pub fn write(store: &Store, id: SnapshotId, disk: &Disk) -> Result<SeedManifest, ExportError> {
    let view = SnapshotAccess::of(store).view(id).unwrap();
    let mut watch = |_| ControlFlow::Continue(());
    write_seed(&view, origin(), &disk.mount(), &mut watch)
}

/// The lineage stands in for the role file of a node.
pub const LINEAGE: &str = "role.json";

pub fn import_with(
    places: &mut ImportPlaces,
    store: &dyn Backing,
    options: &ImportOptions,
    watch: &mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
) -> Result<ImportSummary, SeedError> {
    let mut settle = |manifest: &SeedManifest| {
        assert_eq!(manifest.origin, origin());
        assert!(!store.exists("format.json")?, "the lineage comes first");
        replace(store, LINEAGE, manifest.sum.as_bytes())
    };
    import(places, options, watch, &mut settle)
}

/// Imports a seed from one disk into another one, by copies.
pub fn copy(seed: &Disk, store: &Disk) -> Result<ImportSummary, SeedError> {
    copy_until(seed, store, usize::MAX)
}

/// The same, up to a number of steps.
pub fn copy_until(seed: &Disk, store: &Disk, steps: usize) -> Result<ImportSummary, SeedError> {
    let store = store.mount();
    let mut places = ImportPlaces::of_disks(Arc::clone(&store), seed.mount());
    let mut left = steps;
    let mut watch = |_: &ImportProgress| {
        left = left.saturating_sub(1);
        if left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    import_with(&mut places, &*store, &options(None), &mut watch)
}

/// A store with files of several kinds, and a snapshot of it that later changes have left.
pub struct Source {
    pub node: Node,
    pub id: SnapshotId,
    /// The files, with their bytes at the snapshot.
    pub files: Vec<(Ino, Vec<u8>)>,
}

pub const SPARSE: u64 = 3 << 20;

impl Source {
    pub fn new() -> Self {
        let (node, mut client) = (Node::new(), Client::new());
        let mut files = Vec::new();
        for number in 0..7_u8 {
            let ino = client.create(&node, &format!("f{number}"));
            let bytes = vec![number + 1; usize::from(number) * 1500];
            if !bytes.is_empty() {
                client.write(&node, ino, &bytes);
            }
            files.push((ino, bytes));
        }
        let sparse = client.create(&node, "sparse");
        let (osn, time) = osn_and_time(100);
        node.store
            .write(sparse, SPARSE - 3, b"end", osn, time)
            .unwrap();
        let mut bytes = vec![0; usize::try_from(SPARSE).unwrap() - 3];
        bytes.extend(b"end");
        files.push((sparse, bytes));
        let unlinked = client.create(&node, "unlinked");
        client.write(&node, unlinked, b"still open");
        client.unlink(&node, "unlinked");
        files.push((unlinked, b"still open".to_vec()));
        let link = MetaRequest::Link {
            ino: files[3].0,
            parent: Ino::ROOT,
            name: FileName::new(b"link").unwrap(),
        };
        node.store.commit(&client.op(link)).unwrap();
        let id = snapshot(&node, 200);
        let (osn, time) = osn_and_time(201);
        for (ino, _) in &files {
            node.store.write(*ino, 0, b"later", osn, time).unwrap();
        }
        Self { node, id, files }
    }

    pub fn seed(&self) -> Disk {
        let disk = Disk::default();
        write(&self.node.store, self.id, &disk).unwrap();
        disk
    }

    pub fn compare(&self, store: &Store) {
        for (ino, bytes) in &self.files {
            let found = read_view(&store.tree(), *ino);
            let at = found
                .iter()
                .zip(bytes)
                .position(|(found, byte)| found != byte);
            assert!(
                found == *bytes,
                "{ino}: {} {} {at:?}",
                found.len(),
                bytes.len()
            );
        }
        let tree = store.tree();
        let lookup = |name: &[u8]| tree.lookup(Ino::ROOT, &FileName::new(name).unwrap());
        assert_eq!(lookup(b"link").unwrap().ino, self.files[3].0);
        assert_eq!(lookup(b"link").unwrap().nlink, 2);
        assert!(lookup(b"unlinked").is_err());
        assert_eq!(tree.orphans().unwrap(), [self.files[8].0]);
        let sparse = lookup(b"sparse").unwrap();
        assert!(sparse.blocks <= 8, "holes stay holes: {}", sparse.blocks);
        assert_eq!(store.applied(), self.id.osn, "the moment of the snapshot");
        assert!(SnapshotAccess::of(store).all().is_empty());
    }
}

pub fn record_of(store: &Store, bytes: SnapshotBytes) -> SnapshotRecord {
    SnapshotRecord {
        name: "before".to_owned(),
        time: Timestamp {
            secs: 1_000_000_000,
            nanos: 0,
        },
        kind: SnapshotKind::User,
        inos_below: store.image().inos_below(),
        is_deleted: false,
        bytes,
        serial: 3,
        holds: Vec::new(),
    }
}

pub fn snapshot(node: &Node, sequence: u64) -> SnapshotId {
    let id = SnapshotId::of_operation(osn_and_time(sequence).0);
    let record = record_of(&node.store, SnapshotBytes::Settled);
    SnapshotAccess::of(&node.store).create(id, record).unwrap();
    id
}

/// A seed in a real directory, and a store beside it.
pub struct RealPlace {
    _directory: tempfile::TempDir,
    pub seed: PathBuf,
    pub store: PathBuf,
}

impl RealPlace {
    pub fn of(source: &Source) -> Self {
        // In memory: a test makes many of these, and syncs are not what it is about.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = |name: &str| directory.path().join(name);
        let (seed, store) = (place("seed"), place("store"));
        let order = SeedOrder {
            at: "before",
            dest: &seed,
            origin: origin(),
        };
        let beside = place("none");
        let of = (beside.as_path(), &source.node.store);
        export_seed(of, order, &mut |_| ControlFlow::Continue(())).unwrap();
        fs::create_dir(&store).unwrap();
        Self {
            seed,
            store,
            _directory: directory,
        }
    }

    pub fn import(
        &self,
        way: Option<AdoptWay>,
        watch: &mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
    ) -> Result<ImportSummary, SeedError> {
        let open = |path: &Path| Arc::new(OsBacking::open(path).unwrap());
        let (store, seed) = (open(&self.store), open(&self.seed));
        let mut places = ImportPlaces::of_directories(Arc::clone(&store), seed).unwrap();
        import_with(&mut places, &*store, &options(way), watch)
    }

    pub fn open(&self) -> Store {
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(&self.store).unwrap());
        Store::open(backing, &open_options(Access::Write))
            .unwrap()
            .store
    }
}
