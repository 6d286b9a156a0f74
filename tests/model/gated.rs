//! The model behind a gate: the test says whether the node serves. The service counts the requests that it refuses.

#![allow(dead_code)] // No test uses all of it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_driver::client::{
    Done, FileService, Inside, RequestKind, RoleObserver, Standing, Tenure, WriteData, WriteOptions,
};
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};
use parking_lot::Mutex;

use crate::forward::forward_to_model;
use crate::model::ModelFs;

/// An event that has not come by then never comes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The numbers below may belong to inodes.
const INOS_BELOW: u64 = 1 << 40;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// The model behind a gate.
pub struct Gated {
    model: Arc<ModelFs>,
    gate: Mutex<TestGate>,
    /// Writes that wait for the end of [`Gated::hold_writes`].
    held: Mutex<Option<Vec<HeldWrite>>>,
}

type HeldWrite = Box<dyn FnOnce() + Send>;

struct TestGate {
    standing: Standing,
    tenure: Tenure,
    waiting: Vec<Box<dyn FnOnce() + Send>>,
    observers: Vec<Arc<dyn RoleObserver>>,
    /// So many requests of programs are let in, with any standing.
    admitted_programs: usize,
    refused_programs: usize,
    refused_write_backs: usize,
    admitted_write_backs: usize,
}

impl Gated {
    /// A node that serves.
    pub fn new(model: Arc<ModelFs>) -> Arc<Self> {
        Arc::new(Self {
            model,
            gate: Mutex::new(TestGate {
                standing: Standing::Serving,
                tenure: Tenure::FIRST,
                waiting: Vec::new(),
                observers: Vec::new(),
                admitted_programs: 0,
                refused_programs: 0,
                refused_write_backs: 0,
                admitted_write_backs: 0,
            }),
            held: Mutex::default(),
        })
    }

    /// Changes the standing, tells the observers, and runs the jobs that wait for the service.
    pub fn stand(&self, standing: Standing) {
        let (jobs, observers) = {
            let mut gate = self.gate.lock();
            let is_following = |standing| standing == Standing::Following;
            if is_following(standing) != is_following(gate.standing) {
                gate.tenure = gate.tenure.next();
            }
            gate.standing = standing;
            let serves = standing == Standing::Serving;
            let jobs = if serves {
                std::mem::take(&mut gate.waiting)
            } else {
                Vec::new()
            };
            (jobs, gate.observers.clone())
        };
        for observer in observers {
            observer.changed(standing);
        }
        for job in jobs {
            job();
        }
    }

    /// Gives the role away: from serving to following.
    pub fn retire(&self) {
        self.stand(Standing::Retiring);
        let observers = self.gate.lock().observers.clone();
        for observer in observers {
            observer.retiring();
        }
        self.stand(Standing::Following);
    }

    /// Lets the next requests of programs in, with any standing.
    pub fn admit_programs(&self, count: usize) {
        self.gate.lock().admitted_programs = count;
    }

    /// Waits until so many requests of programs were refused in all.
    pub fn await_refused_programs(&self, count: usize) {
        await_true(|| self.gate.lock().refused_programs >= count);
    }

    /// Waits until so many write-backs were refused in all.
    pub fn await_refused_write_backs(&self, count: usize) {
        await_true(|| self.gate.lock().refused_write_backs >= count);
    }

    /// Waits until so many write-backs were admitted in all, and their threads have gone on.
    pub fn await_admitted_write_backs(&self, count: usize) {
        await_true(|| self.gate.lock().admitted_write_backs >= count);
        thread::sleep(LOOK * 25);
    }

    /// From now on writes wait.
    pub fn hold_writes(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    /// Waits until so many writes wait.
    pub fn await_held_writes(&self, count: usize) {
        await_true(|| {
            self.held
                .lock()
                .as_ref()
                .is_some_and(|held| held.len() >= count)
        });
    }

    /// Does the waiting writes, and ends the waiting.
    pub fn resume_writes(&self) {
        let held = self.held.lock().take();
        for write in held.into_iter().flatten() {
            write();
        }
    }
}

/// Waits until something holds.
pub fn await_true(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "the event does not come");
        thread::sleep(LOOK);
    }
}

impl FileService for Gated {
    fn enter(&self, kind: RequestKind) -> Result<Inside, Standing> {
        let mut gate = self.gate.lock();
        match (gate.standing, kind) {
            (Standing::Serving, _)
            | (Standing::Retiring, RequestKind::WriteBack | RequestKind::SizeChange) => {
                gate.admitted_write_backs += usize::from(kind == RequestKind::WriteBack);
                Ok(Inside::ungated(gate.tenure))
            }
            (_, RequestKind::Program) if gate.admitted_programs > 0 => {
                gate.admitted_programs -= 1;
                Ok(Inside::ungated(gate.tenure))
            }
            (standing, RequestKind::Program | RequestKind::SizeChange) => {
                gate.refused_programs += 1;
                Err(standing)
            }
            (standing, RequestKind::WriteBack) => {
                gate.refused_write_backs += 1;
                Err(standing)
            }
        }
    }

    fn tenure(&self) -> Tenure {
        self.gate.lock().tenure
    }

    fn when_serving(&self, job: Box<dyn FnOnce() + Send>) {
        let mut gate = self.gate.lock();
        if gate.standing == Standing::Serving {
            drop(gate);
            job();
        } else {
            gate.waiting.push(job);
        }
    }

    fn standing(&self) -> Standing {
        self.gate.lock().standing
    }

    /// As after many promotions, each of which leaves numbers out.
    fn inos_below(&self) -> Ino {
        Ino::new(INOS_BELOW).unwrap()
    }

    fn observe(&self, observer: Arc<dyn RoleObserver>) {
        self.gate.lock().observers.push(observer);
    }

    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        self.model.lookup(parent, name)
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        self.model.lookup_parent(directory)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.model.getattr(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.model.readlink(ino)
    }

    forward_to_model!();

    fn next_ino(&self) -> Result<Ino, Errno> {
        let gate = self.gate.lock();
        if gate.standing != Standing::Serving && gate.admitted_programs == 0 {
            return Err(Errno::Io);
        }
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
        let (model, data) = (Arc::clone(&self.model), self.keep_admitted(data));
        let (durable, drop_set_id) = (options.durable, options.drop_set_id);
        let write = move || {
            let options = WriteOptions {
                durable,
                drop_set_id,
                ..WriteOptions::default()
            };
            model.write(ino, offset, data, options, done);
        };
        let mut held = self.held.lock();
        if let Some(held) = held.as_mut() {
            held.push(Box::new(write));
        } else {
            drop(held);
            write();
        }
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        self.model.change(request, done);
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        self.model.copy(from, to, length, done);
    }

    fn sync(&self, ino: Ino, done: Done<()>) {
        self.model.sync(ino, done);
    }
}
