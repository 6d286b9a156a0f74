//! A client of a datastore of this process, without a mount: sends operations and waits for the answers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lockstep_driver::client::{Done, FileService, WriteData, WriteOptions};
use lockstep_driver::{Datastore, DatastoreHandle};
use lockstep_types::{Errno, FileName, Ino, MetaRequest, NodeKind};

/// Longest wait for an expected event.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// An answer that has yet to come.
pub struct Answer<T>(Receiver<Result<T, Errno>>);

impl<T: Send + 'static> Answer<T> {
    fn new() -> (Done<T>, Self) {
        let (sender, receiver) = channel();
        let done = move |result| {
            // The caller may have gone.
            let _sent = sender.send(result);
        };
        (Box::new(done), Self(receiver))
    }

    /// Waits for the answer.
    pub fn get(self) -> Result<T, Errno> {
        let answer = self.0.recv_timeout(WAIT_LIMIT);
        answer.expect("an operation is never answered")
    }
}

/// The client.
#[derive(Clone)]
pub struct Client(DatastoreHandle);

impl Client {
    pub fn of(datastore: &Arc<Datastore>) -> Self {
        Self(DatastoreHandle::new(Arc::clone(datastore)))
    }

    /// Begins to make an inode in the root directory.
    pub fn begin_create(&self, name: &str, kind: NodeKind, target: &[u8]) -> (Ino, Answer<()>) {
        let ino = self.0.next_ino().unwrap();
        let request = MetaRequest::creation(
            Ino::ROOT,
            FileName::new(name.as_bytes()).unwrap(),
            ino,
            kind,
        )
        .mode(0o640)
        .umask(0o022)
        .owner(7, 8)
        .target(target.to_vec())
        .request();
        (ino, self.begin_change(request))
    }

    /// Makes a file in the root directory.
    pub fn create(&self, name: &str) -> Ino {
        let (ino, made) = self.begin_create(name, NodeKind::File, &[]);
        made.get().unwrap();
        ino
    }

    /// Begins a metadata operation.
    pub fn begin_change(&self, request: MetaRequest) -> Answer<()> {
        let (done, answer) = Answer::new();
        let done = move |result: Result<_, Errno>| done(result.map(drop));
        self.0.change(request, Box::new(done));
        answer
    }

    /// Begins a write.
    pub fn begin_write(&self, ino: Ino, offset: u64, data: &[u8], durable: bool) -> Answer<()> {
        let (done, answer) = Answer::new();
        let options = WriteOptions {
            durable,
            ..WriteOptions::default()
        };
        let data = WriteData::Borrowed(data);
        self.0.write(ino, offset, data, options, done);
        answer
    }

    /// Writes, and waits for the answer.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        self.begin_write(ino, offset, data, false).get().unwrap();
    }

    /// Begins to put a file on stable storage.
    pub fn begin_sync(&self, ino: Ino) -> Answer<()> {
        let (done, answer) = Answer::new();
        self.0.sync(ino, done);
        answer
    }

    /// Fills a new datastore with inodes of every kind.
    pub fn fill(&self) {
        for (number, length) in [0, 1, 4096, 10_000, 70_000, 1_100_000].iter().enumerate() {
            let ino = self.create(&format!("f{number}"));
            let bytes: Vec<u8> = (0..*length)
                .map(|at: usize| at.to_le_bytes()[0] | 1)
                .collect();
            for (piece, bytes) in bytes.chunks(1 << 20).enumerate() {
                self.write(ino, (piece << 20) as u64, bytes);
            }
            let (name, value) = (b"user.a".to_vec(), vec![7; 100 * number]);
            let mode = lockstep_types::XattrMode::Any;
            let set = MetaRequest::SetXattr {
                ino,
                name,
                value,
                mode,
            };
            self.begin_change(set).get().unwrap();
        }
        let others = [
            ("dir", NodeKind::Directory),
            ("link", NodeKind::Symlink),
            ("pipe", NodeKind::Fifo),
        ];
        for (name, kind) in others {
            let target: &[u8] = if kind == NodeKind::Symlink {
                b"f1"
            } else {
                b""
            };
            self.begin_create(name, kind, target).1.get().unwrap();
        }
        let sparse = self.create("sparse");
        self.write(sparse, 5 << 20, &[9; 5000]);
    }
}
