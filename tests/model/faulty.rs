//! The model with faults: writes that wait, and operations that panic or never answer. It remembers how
//! it was asked.

#![allow(dead_code)] // no test uses all of it
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_driver::client::{DirEntry, Done, FileService, ReadDone, Seek, WriteOptions};
use lockstep_types::backing::Space;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};
use parking_lot::Mutex;

use crate::model::ModelFs;

/// What has not come by then does not come.
const NEVER: Duration = Duration::from_secs(30);

/// A write that waits: it is done, or fails.
type Waiting = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Reading a symbolic link panics, syncing never answers, writes wait while told to, and the attributes of
/// one inode cannot be read.
pub struct Faulty {
    model: Arc<ModelFs>,
    stalls: AtomicBool,
    waiting: Mutex<Vec<Waiting>>,
    durable: AtomicUsize,
    hurried: AtomicUsize,
    looks: AtomicBool,
    alone: AtomicBool,
    unreadable: Mutex<Option<Ino>>,
}

impl Faulty {
    pub fn new(model: Arc<ModelFs>) -> Arc<Self> {
        Arc::new(Self {
            model,
            stalls: AtomicBool::new(false),
            waiting: Mutex::default(),
            durable: AtomicUsize::new(0),
            hurried: AtomicUsize::new(0),
            looks: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            unreadable: Mutex::default(),
        })
    }

    /// How many writes had to be durable.
    pub fn durable(&self) -> usize {
        self.durable.load(Ordering::SeqCst)
    }

    /// How many requests were no writes.
    pub fn hurried(&self) -> usize {
        self.hurried.load(Ordering::SeqCst)
    }

    /// From now on writes are done only when one of them has seen that requests wait behind it.
    pub fn look(&self) {
        self.looks.store(true, Ordering::SeqCst);
    }

    /// Whether a write has seen, since this was asked last, that nothing waits behind it.
    pub fn was_alone(&self) -> bool {
        self.alone.swap(false, Ordering::SeqCst)
    }

    /// Looks for requests that no thread of the mount has taken up, until a write has seen some.
    fn look_behind(&self, options: WriteOptions<'_>) {
        // A write that waited for another one has no requests of its own behind it.
        let Some(queue) = options.waiting else { return };
        let any = || queue.any();
        self.alone.fetch_or(!any(), Ordering::SeqCst);
        let start = Instant::now();
        while self.looks.load(Ordering::SeqCst) {
            if any() {
                self.looks.store(false, Ordering::SeqCst);
            }
            assert!(start.elapsed() < NEVER, "nothing waits");
            thread::yield_now();
        }
    }

    /// From now on the attributes of this inode cannot be read.
    pub fn lose_attributes(&self, ino: Ino) {
        *self.unreadable.lock() = Some(ino);
    }

    /// From now on writes wait.
    pub fn stall(&self) {
        self.stalls.store(true, Ordering::SeqCst);
    }

    /// How many writes wait.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Does the writes that wait, the last first, and lets others through.
    pub fn go_on(&self) {
        self.stalls.store(false, Ordering::SeqCst);
        self.end_waiting(Ok(()));
    }

    /// Lets the writes fail that wait, and lets others through.
    pub fn fail_waiting(&self) {
        self.stalls.store(false, Ordering::SeqCst);
        self.end_waiting(Err(Errno::NoSpace));
    }

    fn end_waiting(&self, outcome: Result<(), Errno>) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for write in waiting.into_iter().rev() {
            write(outcome);
        }
    }
}

impl FileService for Faulty {
    fn hurry(&self) {
        self.hurried.fetch_add(1, Ordering::SeqCst);
    }

    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        self.model.lookup(parent, name)
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        self.model.lookup_parent(directory)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        if *self.unreadable.lock() == Some(ino) {
            return Err(Errno::Io);
        }
        self.model.getattr(ino)
    }

    fn readlink(&self, _ino: Ino) -> Result<Vec<u8>, Errno> {
        panic!("a fault made on purpose")
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.model.getxattr(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.model.listxattr(ino)
    }

    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        self.model.readdir(directory, after, each)
    }

    fn space(&self) -> Result<Space, Errno> {
        self.model.space()
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.model.seek(ino, offset, what)
    }

    fn opened(&self, ino: Ino) -> Result<(), Errno> {
        self.model.opened(ino)
    }

    fn closed(&self, ino: Ino) {
        self.model.closed(ino);
    }

    fn remembered(&self, ino: Ino, count: u64) {
        self.model.remembered(ino, count);
    }

    fn forgotten(&self, ino: Ino, count: u64) {
        self.model.forgotten(ino, count);
    }

    fn next_ino(&self) -> Result<Ino, Errno> {
        self.model.next_ino()
    }

    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        self.model.read(ino, offset, length, done);
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], options: WriteOptions<'_>, done: Done<()>) {
        self.durable
            .fetch_add(usize::from(options.durable), Ordering::SeqCst);
        self.look_behind(options);
        let (model, data) = (Arc::clone(&self.model), data.to_vec());
        let (durable, drop_set_id) = (options.durable, options.drop_set_id);
        let write = move |outcome| {
            if let Err(errno) = outcome {
                return done(Err(errno));
            }
            let options = WriteOptions {
                durable,
                drop_set_id,
                waiting: None,
            };
            model.write(ino, offset, &data, options, done);
        };
        if self.stalls.load(Ordering::SeqCst) {
            self.waiting.lock().push(Box::new(write));
        } else {
            write(Ok(()));
        }
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        self.model.change(request, done);
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        self.model.copy(from, to, length, done);
    }

    fn sync(&self, _ino: Ino, done: Done<()>) {
        drop(done);
    }
}
