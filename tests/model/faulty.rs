//! The model with faults: writes that wait, and operations that panic or never answer. It counts the requests
//! that it gets.

#![allow(dead_code)] // No test uses all of it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_driver::client::{Done, FileService, WriteData, WriteOptions};
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};
use parking_lot::Mutex;

use crate::forward::forward_to_model;
use crate::model::ModelFs;

/// An event that has not come by then never comes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A waiting write: the call does it, or lets it fail.
type WaitingWrite = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Reading a symbolic link panics, syncing never answers, writes can be held, and the attributes of one inode
/// can be made unreadable.
pub struct Faulty {
    model: Arc<ModelFs>,
    holds_writes: AtomicBool,
    waiting: Mutex<Vec<WaitingWrite>>,
    durable: AtomicUsize,
    non_writes: AtomicUsize,
    awaits_followers: AtomicBool,
    no_follower: AtomicBool,
    unreadable: Mutex<Option<Ino>>,
    answers: Arc<AnswerGate>,
    attributes: AnswerGate,
}

/// Holds answers to requests that are done.
#[derive(Default)]
struct AnswerGate {
    is_closed: AtomicBool,
    held: AtomicUsize,
}

impl AnswerGate {
    /// Waits while the gate is closed.
    fn pass(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while self.is_closed.load(Ordering::SeqCst) {
            assert!(start.elapsed() < TIMEOUT, "nobody opens the gate");
            thread::yield_now();
        }
        self.held.fetch_sub(1, Ordering::SeqCst);
    }

    /// Closes the gate, runs `ask`, and waits until the gate holds the answer to it.
    fn hold(&self, ask: impl FnOnce()) {
        self.is_closed.store(true, Ordering::SeqCst);
        ask();
        let start = Instant::now();
        while self.held.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < TIMEOUT, "no answer comes");
            thread::yield_now();
        }
    }

    fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }
}

impl Faulty {
    pub fn new(model: Arc<ModelFs>) -> Arc<Self> {
        Arc::new(Self {
            model,
            holds_writes: AtomicBool::new(false),
            waiting: Mutex::default(),
            durable: AtomicUsize::new(0),
            non_writes: AtomicUsize::new(0),
            awaits_followers: AtomicBool::new(false),
            no_follower: AtomicBool::new(false),
            unreadable: Mutex::default(),
            answers: Arc::default(),
            attributes: AnswerGate::default(),
        })
    }

    /// Number of writes that had to be durable.
    pub fn durable(&self) -> usize {
        self.durable.load(Ordering::SeqCst)
    }

    /// Number of requests that were no writes.
    pub fn non_writes(&self) -> usize {
        self.non_writes.load(Ordering::SeqCst)
    }

    /// From now on a write ends only when a write has seen that requests wait behind it.
    pub fn await_followers(&self) {
        self.awaits_followers.store(true, Ordering::SeqCst);
    }

    /// Whether, since the last call of this function, a write has seen that no request waits behind it.
    pub fn saw_no_follower(&self) -> bool {
        self.no_follower.swap(false, Ordering::SeqCst)
    }

    /// Polls for requests that no thread of the mount has taken yet, until a write has seen some.
    fn poll_for_followers(&self, options: WriteOptions<'_>) {
        // A write that waited for another write has no requests of its own behind it.
        let Some(queue) = options.waiting else { return };
        let any = || queue.any();
        self.no_follower.fetch_or(!any(), Ordering::SeqCst);
        let start = Instant::now();
        while self.awaits_followers.load(Ordering::SeqCst) {
            if any() {
                self.awaits_followers.store(false, Ordering::SeqCst);
            }
            assert!(start.elapsed() < TIMEOUT, "nothing waits");
            thread::yield_now();
        }
    }

    /// From now on the attributes of this inode cannot be read.
    pub fn lose_attributes(&self, ino: Ino) {
        *self.unreadable.lock() = Some(ino);
    }

    /// Has `ask` ask for attributes, and holds the answer, and all further ones.
    pub fn hold_attributes(&self, ask: impl FnOnce()) {
        self.attributes.hold(ask);
    }

    /// Gives the held attributes.
    pub fn give_attributes(&self) {
        self.attributes.open();
    }

    /// Has `ask` write, does the write, and holds its answer, and all further ones.
    pub fn hold_answers(&self, ask: impl FnOnce()) {
        self.answers.hold(ask);
    }

    /// Gives the held answers to writes.
    pub fn give_answers(&self) {
        self.answers.open();
    }

    /// From now on writes wait.
    pub fn hold_writes(&self) {
        self.holds_writes.store(true, Ordering::SeqCst);
    }

    /// Number of waiting writes.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Does the waiting writes, the last first, and ends the waiting of writes.
    pub fn resume(&self) {
        self.holds_writes.store(false, Ordering::SeqCst);
        self.end_waiting_writes(Ok(()));
    }

    /// Lets the waiting writes fail, and ends the waiting of writes.
    pub fn fail_waiting(&self) {
        self.holds_writes.store(false, Ordering::SeqCst);
        self.end_waiting_writes(Err(Errno::NoSpace));
    }

    fn end_waiting_writes(&self, outcome: Result<(), Errno>) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for write in waiting.into_iter().rev() {
            write(outcome);
        }
    }
}

impl FileService for Faulty {
    fn flush_deferred_writes(&self) {
        self.non_writes.fetch_add(1, Ordering::SeqCst);
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
        let attr = self.model.getattr(ino);
        self.attributes.pass();
        attr
    }

    fn readlink(&self, _ino: Ino) -> Result<Vec<u8>, Errno> {
        panic!("a fault made on purpose")
    }

    forward_to_model!();

    fn next_ino(&self) -> Result<Ino, Errno> {
        self.model.next_ino()
    }

    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        self.durable
            .fetch_add(usize::from(options.durable), Ordering::SeqCst);
        self.poll_for_followers(options);
        let (model, data) = (Arc::clone(&self.model), self.keep_admitted(data));
        let (durable, drop_set_id) = (options.durable, options.drop_set_id);
        let answers = Arc::clone(&self.answers);
        let done: Done<()> = Box::new(move |outcome| {
            answers.pass();
            done(outcome);
        });
        let write = move |outcome| {
            if let Err(errno) = outcome {
                return done(Err(errno));
            }
            let options = WriteOptions {
                durable,
                drop_set_id,
                ..WriteOptions::default()
            };
            model.write(ino, offset, data, options, done);
        };
        if self.holds_writes.load(Ordering::SeqCst) {
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
