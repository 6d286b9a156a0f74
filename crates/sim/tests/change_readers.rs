//! The mutants of change readers (P34), each found by a reader that copies what it is told.

// Clippy knows test functions by their attribute. These helpers are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use lockstep_fs::store::{
    Access, ChangeAccess, ChangePoint, ChangeQuestion, ImageChunk, MarkTableSizes, OpenOptions,
};
use lockstep_fs::{Store, keys};
use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::Disk;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::{
    BootId, DatastoreUuid, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind, Osn, Timestamp,
};

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);

fn open(disk: &Disk) -> Store {
    let options = OpenOptions {
        datastore: Some(UUID),
        boot: BootId::from_bytes([1; 16]),
        access: Access::Write,
        log: LogOptions::default(),
        marks: MarkTableSizes::of(64),
    };
    Store::open(disk.mount(), &options).unwrap().store
}

/// A store with one file, and a reader that has a copy.
struct Copied {
    disk: Disk,
    store: Store,
    file: Ino,
    count: u64,
    drawn: u8,
    point: Option<ChangePoint>,
}

impl Copied {
    fn new() -> Self {
        let disk = Disk::default();
        Store::create(&disk.mount(), UUID, &LogOptions::default()).unwrap();
        let store = open(&disk);
        let mut copied = Self {
            disk,
            store,
            file: Ino::ROOT,
            count: 0,
            drawn: 0,
            point: None,
        };
        copied.file = copied.create("file");
        copied.update();
        copied
    }

    fn number(&mut self) -> (Osn, Timestamp) {
        self.count += 1;
        let osn = Osn {
            generation: Generation::FIRST,
            sequence: self.count,
        };
        (osn, Timestamp::default())
    }

    /// Makes a file. Its process may end meanwhile.
    fn create(&mut self, name: &str) -> Ino {
        let ino = self.store.next_ino().unwrap();
        let name = FileName::new(name.as_bytes()).unwrap();
        let request = MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File).request();
        let (osn, time) = self.number();
        let _stopped = self.store.commit(&MetaOp { osn, time, request });
        ino
    }

    fn write(&mut self) {
        let (osn, time) = self.number();
        let written = self.store.write(self.file, 0, b"bytes", osn, time);
        written.unwrap();
    }

    fn ask(&mut self) -> ChangeQuestion {
        self.drawn += 1;
        let (drawn, now) = ([self.drawn; 16], Timestamp::default());
        let asked = ChangeAccess::of(&self.store).ask("reader", self.point, drawn, now);
        asked.unwrap().unwrap()
    }

    /// The paths of an answer; `None` for everything.
    fn told(&self, asked: &ChangeQuestion) -> Option<Vec<String>> {
        let mut walk = ChangeAccess::of(&self.store).walk(asked).unwrap().ok()?;
        let mut paths = Vec::new();
        while let Some(page) = ChangeAccess::of(&self.store)
            .next_page(&mut walk)
            .unwrap()
            .unwrap()
        {
            let told = page.into_iter().map(|entry| entry.path);
            paths.extend(told.map(|path| String::from_utf8(path).unwrap()));
        }
        Some(paths)
    }

    fn update(&mut self) -> Option<Vec<String>> {
        let asked = self.ask();
        let told = self.told(&asked);
        self.point = Some(asked.point);
        told
    }

    fn is_told_of(&mut self, path: &str) -> bool {
        let told = self.update();
        told.is_none_or(|told| told.iter().any(|it| it == path))
    }
}

/// Changes after a question are in the next answer.
fn keeps_marks_of_later_changes() -> bool {
    let mut copied = Copied::new();
    let asked = copied.ask();
    copied.write();
    copied.point = Some(asked.point);
    copied.is_told_of("file")
}

/// A write that has begun before the question shows to each later reading, or is in the next answer.
fn waits_for_changes() -> bool {
    let mut copied = Copied::new();
    let ticket = copied.store.begin_write(copied.file, 0, 5, false).unwrap();
    copied.store.write_begun(&ticket, 0, b"bytes").unwrap();
    let asked = copied.ask();
    !ChangeAccess::of(&copied.store).is_settled(&asked)
}

fn keeps_names() -> bool {
    let mut copied = Copied::new();
    copied.create("made");
    copied.is_told_of("made")
}

/// A copy that was made of the other node, or of an older copy of the store.
fn knows_its_points() -> bool {
    let mut copied = Copied::new();
    copied.update();
    let nonce = 12345;
    copied.point = copied.point.map(|point| ChangePoint { nonce, ..point });
    copied.update().is_none()
}

/// A resync brings records.
fn marks_an_image() -> bool {
    let mut copied = Copied::new();
    let other = Copied::new();
    let mut other = Copied {
        store: open(&copied.disk.fork()),
        count: 100,
        ..other
    };
    other.create("brought");
    other.store.image().settle_records().unwrap();
    copied.store.image().begin().unwrap();
    for table in keys::REPLICATED {
        let chunk = ImageChunk::read(&other.store.tree(), table, &[], 1 << 20).unwrap();
        copied.store.image().load_chunk(&chunk).unwrap();
    }
    copied.is_told_of("brought")
}

#[test]
fn each_mutant_of_the_change_readers_is_found() {
    let scenarios: [(Mutant, fn() -> bool); 5] = [
        (Mutant::ReaderTurnDropsMarks, keeps_marks_of_later_changes),
        (Mutant::ReaderTurnUndrained, waits_for_changes),
        (Mutant::ReaderForgetsKeys, keeps_names),
        (Mutant::ReaderTrustsAnyPoint, knows_its_points),
        (Mutant::ReaderForgetsImage, marks_an_image),
    ];
    for (mutant, is_right) in scenarios {
        assert!(is_right(), "without {mutant:?}");
        activate(Some(mutant));
        let is_found = !is_right();
        activate(None);
        assert!(is_found, "{mutant:?} is not found");
    }
}
