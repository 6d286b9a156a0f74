//! Tests of the sums.

mod changes;
mod crashes;
mod model;

use std::sync::LazyLock;

use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::{Disk, Survivors};
use lockstep_sums::{BlockSum, FileSum, SumKey, SumSecret};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{BootId, DatastoreUuid, FileName, Generation, Ino, MetaOp, MetaRequest};
use lockstep_types::{NodeKind, Osn, Timestamp};

use crate::store::{Access, MarkTableSizes, OpenOptions, Store, make_delta_table};

pub(super) fn secret() -> SumSecret {
    SumSecret::new([5; 32])
}

/// Options for a small log: a test opens a store often.
fn log_options() -> LogOptions {
    LogOptions {
        segment_bytes: 64 << 10,
        ..LogOptions::default()
    }
}

/// A store with a secret, on a disk in memory.
pub(super) struct TestStore {
    pub disk: Disk,
    pub store: Store,
    /// Number of starts of the machine.
    pub boots: u8,
    sequence: u64,
}

fn open(disk: &Disk, boots: u8) -> Store {
    let options = OpenOptions {
        datastore: None,
        boot: BootId::from_bytes([boots; 16]),
        access: Access::Write,
        log: log_options(),
        marks: MarkTableSizes::of(64),
    };
    Store::open(disk.mount(), &options).unwrap().store
}

impl TestStore {
    pub fn new() -> Self {
        static CREATED: LazyLock<Disk> = LazyLock::new(|| {
            let disk = Disk::default();
            let (backing, uuid) = (disk.mount(), DatastoreUuid::from_bytes([7; 16]));
            Store::create(&backing, uuid, &log_options()).unwrap();
            // A small one: a test copies disks often.
            make_delta_table(backing.as_ref(), 64).unwrap();
            disk
        });
        let test = Self::on(CREATED.fork(), 1);
        test.store.sums().take_secret(&secret()).unwrap();
        test
    }

    /// Opens the store of a disk.
    pub fn on(disk: Disk, boots: u8) -> Self {
        let store = open(&disk, boots);
        Self {
            sequence: store.first_sequence(),
            disk,
            store,
            boots,
        }
    }

    /// Kills the process, and opens the store again.
    pub fn kill(&mut self) {
        *self = Self::on(self.disk.fork(), self.boots);
    }

    pub fn restart(&mut self) {
        self.store.close().unwrap();
        self.kill();
    }

    /// Loses power with all unsynced changes, and opens the store again.
    pub fn lose_power(&mut self, survivors: Survivors) {
        *self = Self::on(self.disk.after_power_loss(survivors, 1), self.boots + 1);
    }

    pub fn stamp(&mut self) -> (Osn, Timestamp) {
        self.sequence += 1;
        let osn = Osn {
            generation: Generation::FIRST,
            sequence: self.sequence,
        };
        let time = Timestamp { secs: 1, nanos: 0 };
        (osn, time)
    }

    pub fn commit(&mut self, request: MetaRequest) {
        let (osn, time) = self.stamp();
        self.store.commit(&MetaOp { osn, time, request }).unwrap();
    }

    pub fn make(&mut self, name: &str) -> Ino {
        let ino = self.store.next_ino().unwrap();
        let name = FileName::new(name.as_bytes()).unwrap();
        self.commit(MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File).request());
        ino
    }

    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) {
        let (osn, time) = self.stamp();
        self.store.write(ino, offset, data, osn, time).unwrap();
    }

    pub fn fill(&mut self, ino: Ino, offset: u64, length: usize, byte: u8) {
        self.write(ino, offset, &vec![byte; length]);
    }

    /// The bytes of a file on the disk.
    pub fn bytes(&self, ino: Ino) -> Vec<u8> {
        let content = self.store.tree().content.open_content(ino).unwrap();
        let Some(content) = content else {
            return Vec::new();
        };
        let mut bytes = vec![0; usize::try_from(content.stat().unwrap().length).unwrap()];
        content.read_at(0, &mut bytes).unwrap();
        bytes
    }

    /// Each known sum fits the bytes, and the sum of the file fits the known ones. Returns the number of void blocks.
    pub fn check(&self, ino: Ino) -> u32 {
        let bytes = self.bytes(ino);
        let key = SumKey::new(&secret());
        let blocks = bytes.len().div_ceil(BLOCK_BYTES) as u64;
        let sums = self.store.sums();
        let kept = sums.blocks(ino, 0, blocks + 3).unwrap();
        let file = sums.file(ino).unwrap();
        let mut known = Vec::new();
        for (number, kept) in kept.iter().enumerate() {
            let at = (number * BLOCK_BYTES).min(bytes.len());
            let block = &bytes[at..bytes.len().min(at + BLOCK_BYTES)];
            if let Some(kept) = kept {
                assert_eq!(*kept, key.block(block), "block {number} of {ino}");
                known.push((number as u64, *kept));
            }
        }
        let void = kept.iter().filter(|kept| kept.is_none()).count();
        let sum = FileSum::of(&key, known);
        assert_eq!(
            (file.known, file.void_blocks),
            (sum, u32::try_from(void).unwrap())
        );
        assert!(
            kept.iter()
                .skip(bytes.len().div_ceil(BLOCK_BYTES))
                .all(|kept| *kept == Some(BlockSum::ZEROS))
        );
        file.void_blocks
    }
}
