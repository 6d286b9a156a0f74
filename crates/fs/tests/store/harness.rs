//! A store on a disk in memory beside a model, and the comparison of the two.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use lockstep_fs::record::TrashMark;
use lockstep_fs::store::{Access, Applied, MarkTableSizes, OpenOptions, make_delta_table};
use lockstep_fs::{OpError, Store, StoreError, StoreView};
use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::{Disk, DiskOptions, Survivors};
use lockstep_model::{Body, Model, Names};
use lockstep_types::{
    Attr, BootId, DatastoreUuid, Errno, Generation, Ino, MetaOp, MetaRequest, Osn, Timestamp,
};

use crate::steps::{Change, Known, Step};

pub const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
pub const BOOT: BootId = BootId::from_bytes([1; 16]);

/// The generation in which both copies were equal.
pub const BASE: Generation = Generation::FIRST;
/// After every operation of that generation.
pub const LAST: Osn = Osn {
    generation: BASE,
    sequence: u64::MAX,
};
/// A disk that is full no more.
pub const AMPLE: DiskOptions = DiskOptions {
    capacity_bytes: 1 << 40,
    capacity_files: 1 << 20,
};
/// Each kind of loss of power.
pub const SURVIVORS: [Survivors; 3] = [
    Survivors::Nothing,
    Survivors::Everything,
    Survivors::Mixed { percent: 40 },
];

/// Options for a small log, which is cut often.
pub fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: 64 << 10,
        salt: [9; 16],
        keep_from: None,
        is_whole: false,
    }
}

pub fn open_options(access: Access) -> OpenOptions {
    OpenOptions {
        datastore: Some(UUID),
        boot: BOOT,
        access,
        log: log_options(),
        marks: MarkTableSizes::of(64),
    }
}

/// A disk with a store that was never opened.
pub fn new_disk() -> Disk {
    static CREATED: LazyLock<Disk> = LazyLock::new(|| {
        let disk = Disk::default();
        let backing = disk.mount();
        Store::create(&backing, UUID, &log_options()).unwrap();
        // A small one: a test copies disks often.
        make_delta_table(backing.as_ref(), 64).unwrap();
        disk
    });
    CREATED.fork()
}

/// The disk after a power loss that no unsynced change survives.
pub fn after_power_loss(disk: &Disk) -> Disk {
    disk.after_power_loss(Survivors::Nothing, 0)
}

pub fn open(disk: &Disk) -> Store {
    open_in(disk, BOOT)
}

/// Opens the store in the run `boot` of the machine.
pub fn open_in(disk: &Disk, boot: BootId) -> Store {
    try_open_in(disk, boot).unwrap()
}

/// The same, on a disk that may stop.
pub fn try_open_in(disk: &Disk, boot: BootId) -> Result<Store, StoreError> {
    let options = OpenOptions {
        boot,
        ..open_options(Access::Write)
    };
    Ok(Store::open(disk.mount(), &options)?.store)
}

/// The number and time of the operation after `count` others.
pub fn osn_and_time(count: u64) -> (Osn, Timestamp) {
    let osn = Osn {
        generation: Generation::FIRST,
        sequence: count,
    };
    let time = Timestamp {
        secs: 1_000 + i64::try_from(count).unwrap(),
        nanos: 999_999_999,
    };
    (osn, time)
}

/// A node: its disk, and the store on it.
pub struct Node {
    pub disk: Disk,
    pub store: Store,
    /// Number of starts of the machine.
    boots: u8,
}

impl Node {
    pub fn new() -> Self {
        let disk = new_disk();
        let store = open(&disk);
        Self::of(disk, store)
    }

    /// A node with a store that was opened in the first run of the machine.
    pub fn of(disk: Disk, store: Store) -> Self {
        Self {
            disk,
            store,
            boots: 1,
        }
    }

    /// The run of the machine. The first run is [`BOOT`].
    fn boot(&self) -> BootId {
        BootId::from_bytes([self.boots; 16])
    }

    /// Kills the process and opens the store again.
    pub fn kill(&mut self) {
        self.disk = self.disk.fork();
        self.store = open_in(&self.disk, self.boot());
    }

    /// Loses power with all unsynced changes, and opens the store again.
    pub fn lose_power(&mut self) {
        self.boots += 1;
        self.disk = after_power_loss(&self.disk);
        self.store = open_in(&self.disk, self.boot());
    }

    /// Closes the store and opens it again.
    pub fn restart(&mut self) {
        self.store.close().unwrap();
        self.kill();
    }

    /// Does the periodic work of a store's owner.
    pub fn tend(&self) {
        if self.store.needs_checkpoint() {
            self.store.checkpoint().unwrap();
        }
    }
}

/// A store and a model of it.
pub struct World {
    pub node: Node,
    pub model: Model,
    known: Known,
    count: u64,
}

impl World {
    pub fn new() -> Self {
        Self {
            node: Node::new(),
            model: Model::default(),
            known: Known {
                inos: vec![Ino::ROOT],
            },
            count: 0,
        }
    }

    /// Gives out higher numbers of operations than another world from now on, with one that changes nothing.
    pub fn begin_behind(&mut self, other: &Self) {
        self.count = self.count.max(other.count);
        self.commit(MetaRequest::ReapAll { inos: Vec::new() });
    }

    /// The names and attributes of the store are those of another world's store now, by a resync.
    pub fn follow(&mut self, other: &Self) {
        self.model = other.model.clone();
        self.known.inos.extend(&other.known.inos);
        self.known.inos.sort_unstable();
        self.known.inos.dedup();
        self.count = other.count;
    }

    fn tick(&mut self) -> (Osn, Timestamp) {
        self.count += 1;
        osn_and_time(self.count)
    }

    /// The number of an operation that changes nothing.
    pub fn next_osn(&mut self) -> Osn {
        self.tick().0
    }

    /// Turns a change into an operation.
    pub fn admit(&mut self, change: &Change) -> MetaOp {
        let (osn, time) = self.tick();
        let fresh = || self.node.store.next_ino().unwrap();
        let request = change.request(&self.known, &self.model, fresh);
        if let MetaRequest::Create { ino, .. } = &request {
            assert!(!self.known.inos.contains(ino), "{ino} was given out twice");
            self.known.inos.push(*ino);
        }
        MetaOp { osn, time, request }
    }

    /// Compares an answer with the effect on the model.
    pub fn expect(&mut self, op: &MetaOp, done: &Result<Applied, OpError>) {
        let effect = self.model.apply_op(op);
        let expected = effect.map(|effect| effect.orphaned);
        let got = done.as_ref().map(|applied| applied.orphaned);
        assert_eq!(got.map_err(OpError::errno), expected, "{op:?}: {done:?}");
        let Ok(applied) = done else { return };
        if let Some(attr) = applied.attr {
            let mut found = self.node.store.tree().getattr(attr.ino).unwrap();
            found.blocks = attr.blocks;
            assert_eq!(attr, found, "{op:?}");
        }
    }

    pub fn meta(&mut self, change: &Change) {
        let op = self.admit(change);
        let done = self.node.store.commit(&op);
        self.expect(&op, &done);
    }

    /// Commits an operation on snapshots.
    pub fn commit(&mut self, request: MetaRequest) {
        let (osn, time) = self.tick();
        let op = MetaOp { osn, time, request };
        let done = self.node.store.commit(&op);
        self.expect(&op, &done);
    }

    /// Turns a write into a [`Write`] with the next number and time.
    pub fn admit_write(&mut self, file: u8, offset: u16, length: u16, byte: u8) -> Write {
        let (osn, time) = self.tick();
        Write {
            ino: self.known.file(&self.model, file),
            offset: offset.into(),
            data: vec![byte; length.into()],
            osn,
            time,
        }
    }

    pub fn expect_write(&mut self, write: &Write, done: &Result<(), OpError>) {
        let expected = self
            .model
            .write(write.time, write.ino, write.offset, &write.data);
        let got = done.as_ref().copied().map_err(OpError::errno);
        assert_eq!(got, expected, "{done:?}");
    }

    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Meta(ref change) => self.meta(change),
            Step::Write {
                file,
                offset,
                length,
                fill,
            } => {
                let write = self.admit_write(file, offset, length, fill);
                let done = write.to(&self.node.store);
                self.expect_write(&write, &done);
            }
            Step::Checkpoint => self.node.store.checkpoint().unwrap(),
            Step::Garbage => drop(self.node.store.collect_garbage().unwrap()),
            Step::Restart => self.node.restart(),
            Step::Kill => self.node.kill(),
        }
        self.node.tend();
    }

    /// Compares all inodes of the store with the model.
    pub fn compare(&self) {
        let store = &self.node.store;
        compare_view(&store.tree(), &self.model, &self.known.inos, &|ino| {
            read_all(store, ino)
        });
    }

    /// Compares a view of an earlier moment with the model of that moment.
    pub fn compare_past(&self, view: &dyn StoreView, model: &Model) {
        compare_view(view, model, &self.known.inos, &|ino| read_view(view, ino));
    }
}

/// Compares all inodes of a view with a model.
fn compare_view(view: &dyn StoreView, model: &Model, inos: &[Ino], read: &dyn Fn(Ino) -> Vec<u8>) {
    for &ino in inos {
        compare_inode(view, model, ino, read);
    }
    assert!(view.orphans().unwrap().into_iter().eq(model.orphans()));
    let mut trash = Vec::new();
    let each = &mut |ino, mark: TrashMark| {
        assert_eq!(view.trash_mark(ino).unwrap().as_ref(), Some(&mark));
        trash.push((ino, (mark.parent, mark.name, mark.time)));
        ControlFlow::Continue(())
    };
    view.each_in_trash(Ino::ROOT, each).unwrap();
    let expected = model
        .nodes()
        .filter_map(|(ino, node)| Some((ino, node.trashed.clone()?)));
    assert!(trash.into_iter().eq(expected), "the trash");
}

/// The content of a file as a view shows it.
pub fn read_view(view: &dyn StoreView, ino: Ino) -> Vec<u8> {
    let size = view.file_times(ino).unwrap().unwrap().size;
    let mut bytes = vec![0xee; usize::try_from(size).unwrap()];
    view.read_raw(ino, 0, &mut bytes).unwrap();
    bytes
}

/// A write to one or two stores.
pub struct Write {
    pub ino: Ino,
    pub offset: u64,
    pub data: Vec<u8>,
    pub osn: Osn,
    pub time: Timestamp,
}

impl Write {
    pub fn to(&self, store: &Store) -> Result<(), OpError> {
        let bytes = self.offset..self.offset + self.data.len() as u64;
        store.tree().check_write(self.ino, bytes, false)?;
        store.write(self.ino, self.offset, &self.data, self.osn, self.time)
    }
}

fn compare_inode(view: &dyn StoreView, model: &Model, ino: Ino, read: &dyn Fn(Ino) -> Vec<u8>) {
    let (attr, node) = match (view.getattr(ino), model.node(ino)) {
        (Err(error), Err(_)) => return assert_eq!(error.errno(), Errno::Stale),
        (attr, Ok(node)) => (attr.unwrap(), node),
        (Ok(_), Err(_)) => panic!("inode {ino} still exists"),
    };
    let expected = Attr {
        blocks: attr.blocks,
        ..model.attr(ino).unwrap()
    };
    assert_eq!(attr, expected, "attributes of {ino}");
    let names = view.listxattr(ino).unwrap();
    assert!(
        names.iter().eq(node.xattrs.keys()),
        "attribute names of {ino}"
    );
    for (name, value) in &node.xattrs {
        assert_eq!(&view.getxattr(ino, name).unwrap(), value);
    }
    match &node.body {
        Body::File(content) => {
            assert!(read(ino) == content.bytes(), "content of {ino}");
        }
        Body::Directory(names) => compare_directory(view, model, ino, names),
        Body::Symlink(target) => assert_eq!(&view.readlink(ino).unwrap(), target),
        Body::Nothing => {}
    }
}

pub fn read_all(store: &Store, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; 64 << 10];
    let count = store.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn compare_directory(view: &dyn StoreView, model: &Model, ino: Ino, names: &Names) {
    let mut listed = Vec::new();
    let mut last = u64::MAX;
    let mut each = |cookie, entry: lockstep_fs::record::NamedEntry| {
        assert!(
            cookie < last && cookie > 2,
            "cookies fall, and leave room for . and .."
        );
        last = cookie;
        assert_eq!(entry.kind, model.node(entry.ino).unwrap().kind);
        listed.push((entry.name, entry.ino));
        ControlFlow::Continue(())
    };
    view.readdir(ino, 0, &mut each).unwrap();
    let expected = names.after(0).map(|(_, name, ino)| (name.clone(), ino));
    assert_eq!(listed, expected.collect::<Vec<_>>(), "names in {ino}");
    for (name, ino_of_name) in &listed {
        assert_eq!(view.lookup(ino, name).unwrap().ino, *ino_of_name);
    }
    if let Some(above) = model.parent(ino) {
        assert_eq!(view.parent(ino).unwrap(), above, "above {ino}");
    }
}
