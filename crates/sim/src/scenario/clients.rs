//! Clients: programs with files open on the mount. They live and die with the primary's process.

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::{Errno, FileName, Ino, MetaRequest, NodeKind};
use lockstepfs::client::{Done, FileService, WriteOptions};
use lockstepfs::datastore::Service;
use parking_lot::Mutex;

use super::ledger::{ClientId, Ledger};
use crate::world::{self, Opened, Process, Wait};

/// The file in which every client has a block.
pub const SHARED_FILE: &[u8] = b"shared";
/// The block.
pub const BLOCK_BYTES: usize = 4096;
/// Names of a client.
const NAMES: u64 = 4;
/// Longest pause of a client between two operations, in microseconds.
const PAUSE_MAX_US: u64 = 20_000;

/// One client.
pub struct Client {
    /// Which.
    pub id: ClientId,
    /// The process through which it sees the mount.
    pub process: Arc<Process>,
    /// The mount.
    pub service: Service,
    /// What it was told.
    pub ledger: Arc<Mutex<Ledger>>,
}

impl Client {
    /// Works until its process dies.
    pub fn run(&self) {
        let file = self.open_shared();
        loop {
            self.pause();
            match self.draw(10) {
                0 => self.write(file, true),
                1..=4 => self.write(file, false),
                5 | 6 => self.make_or_remove(),
                7 => self.sync(file),
                _ => self.read(file),
            }
        }
    }

    /// What it may find in its block, looked at once.
    pub fn look(&self) {
        let file = self.open_shared();
        self.read(file);
    }

    fn draw(&self, bound: u64) -> u64 {
        self.process.shared().draw(|chance| chance.below(bound))
    }

    fn pause(&self) {
        let shared = self.process.shared();
        let pause = Duration::from_micros(self.draw(PAUSE_MAX_US));
        world::wait(Wait::Until(shared.now() + pause));
    }

    /// Submits an operation and waits for its answer.
    fn ask<T: Send + 'static>(&self, submit: impl FnOnce(Done<T>)) -> Result<T, Errno> {
        let answered = Arc::new(Opened::default());
        let answer = Arc::new(Mutex::new(None));
        let (opened, slot) = (Arc::clone(&answered), Arc::clone(&answer));
        submit(Box::new(move |result| {
            *slot.lock() = Some(result);
            opened.open();
        }));
        self.process.wait_for(answered, None);
        // What a dying process says nobody hears.
        self.process.end_if_dead();
        let answer = answer.lock().take();
        answer.unwrap_or_else(|| unreachable!("the gate is opened with the answer in place"))
    }

    fn open_shared(&self) -> Ino {
        let name = self.file_name(SHARED_FILE);
        loop {
            if let Ok(attr) = self.service.lookup(Ino::ROOT, &name) {
                return attr.ino;
            }
            // Another client may make it first.
            let _made = self.create(name.clone());
        }
    }

    fn file_name(&self, name: &[u8]) -> FileName {
        FileName::new(name).unwrap_or_else(|_| unreachable!("the name of client {}", self.id))
    }

    fn create(&self, name: FileName) -> Result<(), Errno> {
        let request = MetaRequest::Create {
            parent: Ino::ROOT,
            name,
            ino: self.service.next_ino()?,
            kind: NodeKind::File,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
        };
        self.ask(|done| self.service.change(request, done))
            .map(drop)
    }

    fn write(&self, file: Ino, durable: bool) {
        let write = self.ledger.lock().begin_write(self.id);
        let data = write.to_le_bytes().repeat(BLOCK_BYTES / 8);
        let options = WriteOptions {
            durable,
            drop_set_id: false,
        };
        let offset = self.id * BLOCK_BYTES as u64;
        let answer = self.ask(|done| self.service.write(file, offset, &data, options, done));
        let mut ledger = self.ledger.lock();
        match answer {
            Ok(()) => ledger.wrote(self.id, write, durable),
            Err(errno) => ledger.wrong(format!("a write of client {} failed: {errno}", self.id)),
        }
    }

    fn sync(&self, file: Ino) {
        let covered = self.ledger.lock().firm(self.id);
        let answer = self.ask(|done| self.service.sync(file, done));
        let mut ledger = self.ledger.lock();
        match answer {
            Ok(()) => ledger.synced(self.id, covered),
            Err(errno) => ledger.wrong(format!("a sync of client {} failed: {errno}", self.id)),
        }
    }

    fn read(&self, file: Ino) {
        let offset = self.id * BLOCK_BYTES as u64;
        let answer = self.ask(|done: Done<Vec<u8>>| {
            let copied = move |read: Result<&[u8], Errno>| done(read.map(<[u8]>::to_vec));
            self.service
                .read(file, offset, BLOCK_BYTES, Box::new(copied));
        });
        let mut ledger = self.ledger.lock();
        match answer {
            Ok(bytes) => ledger.found(self.id, &bytes),
            Err(errno) => ledger.wrong(format!("a read of client {} failed: {errno}", self.id)),
        }
    }

    fn make_or_remove(&self) {
        let number = self.draw(NAMES);
        let made = self.draw(2) == 0;
        let name = self.file_name(format!("client-{}-{number}", self.id).as_bytes());
        let known = self.ledger.lock().begin_naming(self.id, number);
        let answer = if made {
            self.create(name)
        } else {
            let parent = Ino::ROOT;
            let request = MetaRequest::Unlink { parent, name };
            self.ask(|done| self.service.change(request, done))
                .map(drop)
        };
        let mut ledger = self.ledger.lock();
        ledger.recall(self.id, number, known);
        match answer {
            Ok(()) => ledger.named(self.id, number, made, true),
            Err(Errno::Exists | Errno::NoEntry) => ledger.named(self.id, number, made, false),
            Err(errno) => ledger.wrong(format!("a name of client {} failed: {errno}", self.id)),
        }
    }
}
