//! A store on a disk in memory beside a model of it, and the comparison of the two.

use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use lockstep_fs::store::{Access, Applied, OpenOptions};
use lockstep_fs::{OpError, Store};
use lockstep_intentlog::LogOptions;
use lockstep_types::backing::Backing;
use lockstep_types::{
    BootId, DatastoreUuid, Errno, FileName, Generation, Ino, MetaOp, MetaRequest, Osn, Timestamp,
};

use crate::disk::Disk;
use crate::model::{Inside, Model};
use crate::steps::{Change, Known, Step};

pub const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
pub const BOOT: BootId = BootId::from_bytes([1; 16]);

/// Options for a small log, so that it is cut often.
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
    }
}

/// A disk with a store that was never opened.
pub fn new_disk() -> Arc<Disk> {
    static MADE: LazyLock<Arc<Disk>> = LazyLock::new(|| {
        let disk = Arc::new(Disk::default());
        let backing: Arc<dyn Backing> = disk.clone();
        Store::create(&backing, UUID, &log_options()).unwrap();
        disk
    });
    MADE.killed()
}

pub fn open(disk: &Arc<Disk>) -> Store {
    open_in(disk, BOOT)
}

/// In the run `boot` of the machine.
fn open_in(disk: &Arc<Disk>, boot: BootId) -> Store {
    let backing: Arc<dyn Backing> = disk.clone();
    let options = OpenOptions {
        boot,
        ..open_options(Access::Write)
    };
    Store::open(backing, &options).unwrap().store
}

/// The number and time of the operation after `count` others.
pub fn stamp(count: u64) -> (Osn, Timestamp) {
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
    pub disk: Arc<Disk>,
    pub store: Store,
    /// Starts of the machine.
    boots: u8,
}

impl Node {
    pub fn new() -> Self {
        let disk = new_disk();
        let store = open(&disk);
        Self::of(disk, store)
    }

    /// With a store that was opened in the first run of the machine.
    pub fn of(disk: Arc<Disk>, store: Store) -> Self {
        Self {
            disk,
            store,
            boots: 1,
        }
    }

    /// The run of the machine; the first is [`BOOT`].
    fn boot(&self) -> BootId {
        BootId::from_bytes([self.boots; 16])
    }

    /// Opens the store again as a killed process left it.
    pub fn kill(&mut self) {
        self.disk = self.disk.killed();
        self.store = open_in(&self.disk, self.boot());
    }

    /// Opens the store again as the machine left it that lost power, with nothing but what was synced.
    pub fn lose_power(&mut self) {
        self.boots += 1;
        self.disk = self.disk.after_power_loss();
        self.store = open_in(&self.disk, self.boot());
    }

    /// Closes the store and opens it again.
    pub fn restart(&mut self) {
        self.store.close().unwrap();
        self.kill();
    }

    /// Does what the owner of a store does from time to time.
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
            model: Model::new(),
            known: Known { inos: vec![1] },
            count: 0,
        }
    }

    fn tick(&mut self) -> (Osn, Timestamp) {
        self.count += 1;
        stamp(self.count)
    }

    /// A change as an operation.
    pub fn admit(&mut self, change: &Change) -> MetaOp {
        let (osn, time) = self.tick();
        let fresh = || self.node.store.next_ino().unwrap();
        let request = change.request(&self.known, &self.model, fresh);
        if let MetaRequest::Create { ino, .. } = &request {
            assert!(
                !self.known.inos.contains(&ino.get()),
                "{ino} was given out twice"
            );
            self.known.inos.push(ino.get());
        }
        MetaOp { osn, time, request }
    }

    /// Compares an answer with what the model does.
    pub fn expect(&mut self, op: &MetaOp, done: &Result<Applied, OpError>) {
        let lost = |model: &Model| -> Vec<u64> {
            let inos = model.nodes.keys().copied();
            inos.filter(|ino| model.nlink(*ino) == 0).collect()
        };
        let before = lost(&self.model);
        let expected = self.model.apply(op);
        let got = done.as_ref().map(|_| ()).map_err(OpError::errno);
        assert_eq!(got, expected, "{op:?}: {done:?}");
        let Ok(applied) = done else { return };
        let orphaned = applied.orphaned.map(Ino::get);
        let now_lost = lost(&self.model);
        let expected = now_lost.into_iter().find(|ino| !before.contains(ino));
        assert_eq!(orphaned, expected, "{op:?}");
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

    /// A write as `(file, offset, data, number, time)`.
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
        let offset = usize::try_from(write.offset).unwrap();
        let expected = self
            .model
            .write(write.ino.get(), offset, &write.data, write.time);
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

    /// Compares everything there is to see.
    pub fn compare(&self) {
        for &ino in &self.known.inos {
            compare_inode(&self.node.store, &self.model, ino);
        }
        let model = &self.model;
        let lost = model
            .nodes
            .keys()
            .copied()
            .filter(|ino| model.nlink(*ino) == 0);
        let orphans = self.node.store.tree().orphans().unwrap();
        assert_eq!(
            orphans.iter().map(|ino| ino.get()).collect::<Vec<_>>(),
            lost.collect::<Vec<_>>()
        );
    }
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
        store.write(self.ino, self.offset, &self.data, self.osn, self.time)
    }
}

fn compare_inode(store: &Store, model: &Model, number: u64) {
    let ino = Ino::new(number).unwrap();
    let attr = match (store.tree().getattr(ino), model.nodes.get(&number)) {
        (Err(error), None) => return assert_eq!(error.errno(), Errno::Stale),
        (attr, Some(_)) => attr.unwrap(),
        (Ok(_), None) => panic!("inode {number} is still there"),
    };
    let node = &model.nodes[&number];
    let size = match &node.inside {
        Inside::Bytes(bytes) => bytes.len(),
        Inside::Target(target) => target.len(),
        Inside::Names(_) => 4096,
        Inside::Nothing => 0,
    };
    let shown = (
        attr.kind, attr.mode, attr.uid, attr.gid, attr.nlink, attr.rdev, attr.size,
    );
    let nlink = model.nlink(number);
    let expected = (
        node.kind,
        node.mode,
        node.uid,
        node.gid,
        nlink,
        node.rdev,
        size as u64,
    );
    assert_eq!(shown, expected, "attributes of {number}");
    let times = (attr.atime, attr.mtime, attr.ctime);
    assert_eq!(
        times,
        (node.atime, node.mtime, node.ctime),
        "times of {number}"
    );
    let names = store.tree().listxattr(ino).unwrap();
    assert!(
        names.iter().eq(node.xattrs.keys()),
        "attribute names of {number}"
    );
    for (name, value) in &node.xattrs {
        assert_eq!(&store.tree().getxattr(ino, name).unwrap(), value);
    }
    match &node.inside {
        Inside::Bytes(bytes) => assert!(read_all(store, ino) == *bytes, "content of {number}"),
        Inside::Names(names) => compare_directory(store, model, ino, names),
        Inside::Target(target) => assert_eq!(&store.tree().readlink(ino).unwrap(), target),
        Inside::Nothing => {}
    }
}

pub fn read_all(store: &Store, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; 64 << 10];
    let count = store.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn compare_directory(store: &Store, model: &Model, ino: Ino, names: &[(Vec<u8>, u64)]) {
    let mut listed = Vec::new();
    let mut last = u64::MAX;
    let mut each = |cookie, entry: lockstep_fs::record::NamedEntry| {
        assert!(
            cookie < last && cookie > 2,
            "cookies fall, and leave room for . and .."
        );
        last = cookie;
        assert_eq!(entry.kind, model.nodes[&entry.ino.get()].kind);
        listed.push((entry.name.as_bytes().to_vec(), entry.ino.get()));
        ControlFlow::Continue(())
    };
    store.tree().readdir(ino, 0, &mut each).unwrap();
    listed.reverse();
    assert_eq!(listed, names, "names in {ino}");
    for (name, expected) in names {
        let found = store
            .tree()
            .lookup(ino, &FileName::new(name).unwrap())
            .unwrap();
        assert_eq!(found.ino.get(), *expected);
    }
    if let Some(above) = model.parent(ino.get()) {
        assert_eq!(
            store.tree().parent(ino).unwrap().get(),
            above,
            "above {ino}"
        );
    }
}
