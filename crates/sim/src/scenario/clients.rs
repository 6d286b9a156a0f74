//! Clients: programs that use the mount. They live and die with the primary's process.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_driver::client::{DirEntry, Done, FileService, Waiting, WriteOptions};
use lockstep_driver::{Datastore, DatastoreHandle};
use lockstep_types::{Attr, Errno, Ino, MetaRequest, XattrMode};
use parking_lot::Mutex;

use super::witness::Witness;
use crate::history::{Answer, Entry, Outcome};
use crate::workload::{Op, WriteOp};
use crate::world::{self, Leaving, Opened, Process, Side, Wait};

/// Whether more requests wait, as guessed for one write: of the writes to a file every other one. Nobody
/// keeps the promise that they come soon.
#[derive(Debug)]
struct Guess<'a>(&'a WriteOp);

impl Waiting for Guess<'_> {
    fn any(&self) -> bool {
        self.0.mark.get().is_multiple_of(2)
    }
}

/// One client.
pub struct Client {
    /// Which.
    pub id: u32,
    /// The process through which it sees the mount.
    pub process: Arc<Process>,
    /// How far that is with a stop in order, which takes the mount away.
    pub leaving: Arc<Leaving>,
    /// The mount.
    pub service: DatastoreHandle,
    /// Who tells it what to ask, and hears the answers.
    pub witness: Arc<Mutex<Witness>>,
    /// Longest pause between two operations.
    pub pause_max: Duration,
    /// It is to ask nothing more.
    pub enough: Arc<AtomicBool>,
}

impl Client {
    /// Works until it has asked everything, has done enough, or its process dies.
    pub fn run(&self) {
        let mut spare = None;
        loop {
            self.pause();
            if self.enough.load(Ordering::Relaxed) || self.leaving.is_unmounted() {
                return;
            }
            let ino = match spare.map_or_else(|| self.ask(DatastoreHandle::next_ino), Ok) {
                Ok(ino) => ino,
                Err(errno) => return self.witness.lock().no_number(self.id, errno),
            };
            let asked = self.witness.lock().ask(self.id, ino);
            let Some((call, op)) = asked else { return };
            spare = op.makes().is_none().then_some(ino);
            let outcome = world::serving(|| self.submit(&op));
            // What a dying process says nobody hears.
            self.process.end_if_dead();
            let mut witness = self.witness.lock();
            if outcome.is_ok() {
                witness.acknowledged(Side::Primary, self.service.0.generation());
            }
            witness.answer(self.id, call, outcome);
        }
    }

    fn pause(&self) {
        let shared = self.process.shared();
        let most = u64::try_from(self.pause_max.as_micros()).unwrap_or(u64::MAX);
        let pause = shared.draw(|chance| chance.below(most.max(1)));
        world::wait(Wait::Until(shared.now() + Duration::from_micros(pause)));
    }

    fn submit(&self, op: &Op) -> Outcome {
        if !matches!(op, Op::Write(_)) {
            self.ask(DatastoreHandle::hurry);
        }
        match op {
            Op::Change(request) => self
                .wait_for(|mount, done| mount.change(request.clone(), done))
                .map(|attr| attr.map_or(Answer::Done, Answer::Attr)),
            Op::Write(write) => self.write(write),
            Op::Read {
                ino,
                offset,
                length,
            } => self.read(*ino, *offset, *length),
            Op::Sync { ino } => self
                .wait_for(|mount, done| mount.sync(*ino, done))
                .map(|()| Answer::Done),
            Op::Lookup { parent, name } => attr(self.ask(|mount| mount.lookup(*parent, name))),
            Op::GetAttr { ino } => attr(self.ask(|mount| mount.getattr(*ino))),
            Op::ReadDir { directory } => self.list(*directory),
            Op::GetXattr { ino, name } => {
                let value = self.ask(|mount| mount.getxattr(*ino, name));
                value.map(Answer::Value)
            }
            Op::ReadLink { ino } => {
                let target = self.ask(|mount| mount.readlink(*ino));
                target.map(Answer::Value)
            }
        }
    }

    /// Gives a request to the mount.
    fn ask<T>(&self, request: impl FnOnce(&DatastoreHandle) -> T) -> T {
        let _inside = self.leaving.enter();
        request(&self.service)
    }

    /// Submits an operation and waits for its answer.
    fn wait_for<T: Send + 'static>(
        &self,
        submit: impl FnOnce(&DatastoreHandle, Done<T>),
    ) -> Result<T, Errno> {
        let answered = Arc::new(Opened::default());
        let answer = Arc::new(Mutex::new(None));
        let (opened, slot) = (Arc::clone(&answered), Arc::clone(&answer));
        let done = Box::new(move |result| {
            *slot.lock() = Some(result);
            opened.open();
        });
        self.ask(|mount| submit(mount, done));
        self.process.wait_for(answered, None);
        let answer = answer.lock().take();
        answer.unwrap_or_else(|| unreachable!("the gate is opened with the answer in place"))
    }

    fn write(&self, write: &WriteOp) -> Outcome {
        let options = WriteOptions {
            durable: write.durable,
            waiting: Some(&Guess(write)),
            ..WriteOptions::default()
        };
        let data = write.bytes();
        let (ino, offset) = (write.ino, write.offset);
        let mut is_let_in = true;
        let written = self.wait_for(|mount, done| {
            let kept = mount.keep_at_door(ino, offset, &data, options);
            is_let_in = kept.is_ok();
            match kept {
                Ok(None) => mount.write(ino, offset, &data, options, done),
                Ok(Some(kept)) => mount.write_kept(ino, offset, kept, options, done),
                Err(errno) => done(Err(errno)),
            }
        });
        if !is_let_in && self.leaving.is_unmounted() {
            // The mount has gone while the write waited for room: nobody hears of the error.
            world::wait(Wait::Dead);
        }
        written.map(|()| Answer::Done)
    }

    fn read(&self, ino: Ino, offset: u64, length: u64) -> Outcome {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let bytes = self.wait_for(|mount, done: Done<Vec<u8>>| {
            let copied = move |read: Result<&[u8], Errno>| done(read.map(<[u8]>::to_vec));
            mount.read(ino, offset, length, Box::new(copied));
        });
        bytes.map(|bytes| Answer::read(ino, offset, &bytes))
    }

    fn list(&self, directory: Ino) -> Outcome {
        let mut entries = Vec::new();
        let mut each = |DirEntry {
                            name, ino, kind, ..
                        }| {
            entries.push(Entry { name, ino, kind });
            ControlFlow::Continue(())
        };
        self.ask(|mount| mount.readdir(directory, 0, &mut each))?;
        Ok(Answer::Entries(entries))
    }
}

/// A client of the wrong node: it asks the secondary for a change, and must never hear that it is done.
pub fn ask_the_secondary(datastore: &Arc<Datastore>, witness: Arc<Mutex<Witness>>) {
    let generation = datastore.generation();
    let change = MetaRequest::SetXattr {
        ino: Ino::ROOT,
        name: b"user.outsider".to_vec(),
        value: Vec::new(),
        mode: XattrMode::Any,
    };
    let told = move |outcome: Result<_, Errno>| {
        if outcome.is_ok() {
            witness.lock().acknowledged(Side::Secondary, generation);
        }
    };
    DatastoreHandle(Arc::clone(datastore)).change(change, Box::new(told));
}

fn attr(found: Result<Attr, Errno>) -> Outcome {
    found.map(Answer::Attr)
}
