//! What clients ask: the datastore as a [`FileService`].

use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_fs::OpError;
use lockstep_fs::plan::View;
use lockstep_fs::store::SeekFor;
use lockstep_repl::core::{Effect, Effects, Event, LockSet, OpId, OpKind};
use lockstep_types::backing::{Room, Space};
use lockstep_types::settings::Durability;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, limits};

use super::door::write_locks;
use super::effects::Inline;
use super::flight::{MetaWork, ReadWork, SyncWork, Work, WriteFacts, WriteWork};
use super::host::{Awaited, promise};
use super::room::Charge;
use super::{Datastore, Thread, lockset};
use crate::client::{
    DirEntry, Done, FileService, KeptBytes, ReadDone, Seek, Waiting, WriteOptions,
};
use crate::threads;

/// The set-id bits of a mode.
const SET_ID: u32 = 0o6000;
/// Attribute that a write by an unprivileged program removes.
const CAPABILITIES: &[u8] = b"security.capability";

/// What a message takes besides its bytes, two names included.
const MESSAGE_BYTES: u64 = 1024;

/// The bytes of a write.
enum Bytes<'a> {
    /// In the buffer of the thread that submits it.
    Here(&'a [u8]),
    /// Kept.
    Kept(Arc<dyn KeptBytes>),
}

impl Bytes<'_> {
    fn length(&self) -> usize {
        match self {
            Self::Here(data) => data.len(),
            Self::Kept(kept) => kept.length(),
        }
    }
}

/// A datastore as the ways in hold it.
#[derive(Clone)]
pub struct Service(pub Arc<Datastore>);

impl Datastore {
    /// The thread that asks: one that serves clients, or the reader, which answers one of them and is asked
    /// for more at once.
    fn asking(&self) -> Thread {
        if self.host.is_reading() {
            Thread::Reader
        } else {
            Thread::Client
        }
    }

    fn submit(self: &Arc<Self>, kind: OpKind, locks: LockSet, bytes: u64, work: Work) {
        let op = self.next_op();
        self.works.lock().insert(op, work);
        let submit = Event::Submit {
            op,
            kind,
            locks,
            bytes,
        };
        self.drive(self.asking(), submit);
    }

    /// Submits a write. Bytes that lie in this thread's buffer are kept if it cannot start at once, before
    /// anyone else could start it.
    fn submit_write(
        self: &Arc<Self>,
        facts: WriteFacts,
        bytes: Bytes<'_>,
        waiting: Option<&dyn Waiting>,
        done: Done<()>,
    ) {
        let (here, kept) = match bytes {
            Bytes::Here(data) => (Some(data), None),
            Bytes::Kept(kept) => (None, Some(kept)),
        };
        let op = self.next_op();
        let covered = || self.store.sync_point(facts.ino, self.state_version());
        let work = WriteWork {
            facts,
            data: kept,
            ticket: None,
            osn: None,
            slot: None,
            synced: facts.durable.then(covered).flatten(),
            done,
        };
        self.works.lock().insert(op, Work::Write(work));
        let thread = self.asking();
        let submit = Event::Submit {
            op,
            kind: OpKind::Write,
            locks: write_locks(facts.ino, facts.offset, facts.length),
            bytes: write_message_bytes(facts.length),
        };
        let (effects, inline) = {
            let mut core = self.core.lock();
            let effects = self.decide_with(&mut core, submit);
            let starts = thread == Thread::Client && starts(&effects, op);
            if let Some(data) = here.filter(|_| !starts)
                && let Some(Work::Write(write)) = self.works.lock().get_mut(&op)
            {
                write.data = Some(self.keeper.keep_here(data));
            }
            (effects, here.filter(|_| starts))
        };
        let inline = inline.map(|data| Inline { op, data, waiting });
        self.carry_out_all(thread, effects, inline);
        if inline.is_none() {
            self.send_left();
        }
    }

    /// Submits a metadata operation.
    pub(super) fn submit_meta(self: &Arc<Self>, request: MetaRequest, done: Done<Option<Attr>>) {
        let targets = lockset::targets(&self.store, &request);
        let locks = lockset::metadata(&request, &targets);
        let bytes = message_bytes(&request);
        let work = MetaWork {
            request,
            time: self.host.time_of_day(),
            targets,
            again: false,
            applied: None,
            done,
        };
        self.submit(OpKind::Meta, locks, bytes, Work::Meta(work));
    }

    /// Frees an inode without a name.
    pub(super) fn reap(self: &Arc<Self>, ino: Ino) {
        if self.is_stopping() {
            return;
        }
        let name = self.name().to_owned();
        let done = move |result: Result<_, Errno>| {
            if let Err(error) = result {
                tracing::debug!(datastore = name, %ino, %error, "inode not freed");
            }
        };
        self.submit_meta(MetaRequest::Reap { ino }, Box::new(done));
    }

    /// Runs `body` while `locks` are held.
    pub(super) fn inspect<T>(
        self: &Arc<Self>,
        locks: LockSet,
        body: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut inspection = self.ask_for(locks);
        inspection.wait().then(body)
    }

    /// Asks for `locks`. A node that is stopping gives none.
    pub(super) fn ask_for(self: &Arc<Self>, locks: LockSet) -> Inspection<'_> {
        let op = self.next_op();
        let (ready, wait) = promise(&*self.host);
        self.works.lock().insert(op, Work::Inspect(Some(ready)));
        if self.is_stopping() {
            // The stop may have looked for requests before this one was there.
            self.abandon_inspections();
        }
        let kind = OpKind::Read;
        let submit = Event::Submit {
            op,
            kind,
            locks,
            bytes: 0,
        };
        self.drive(Thread::MayWait, submit);
        Inspection {
            datastore: self,
            op,
            wait: Some(wait),
            held: false,
        }
    }

    /// Tells all threads that wait for locks that they get none. Of an operation that holds these locks, a part
    /// may never be done: the threads that do such parts take no more jobs when the node stops.
    pub(super) fn abandon_inspections(&self) {
        for work in self.works.lock().values_mut() {
            if let Work::Inspect(ready) = work {
                drop(ready.take());
            }
        }
    }

    /// Reads and answers.
    pub(super) fn read_now(&self, read: ReadWork) {
        let mut buffer = vec![0; read.length];
        match self.store.read(read.ino, read.offset, &mut buffer) {
            Ok(length) => (read.done)(Ok(buffer.get(..length).unwrap_or_default())),
            Err(error) => (read.done)(Err(self.told(&error))),
        }
    }

    /// Whether a write by somebody unprivileged must take set-id bits or capabilities away first.
    pub(super) fn has_privileges(&self, ino: Ino) -> Result<bool, OpError> {
        let Some(inode) = self.store.inode(ino)? else {
            return Err(Errno::Stale.into());
        };
        let capabilities = match self.store.getxattr(ino, CAPABILITIES) {
            Ok(_) => true,
            Err(OpError::Refused(_)) => false,
            Err(error) => return Err(error),
        };
        Ok(inode.mode & SET_ID != 0 || capabilities)
    }

    fn ask<T>(&self, result: Result<T, OpError>) -> Result<T, Errno> {
        result.map_err(|error| self.told(&error))
    }
}

/// Locks that were asked for, for work of our own. Dropped, they are given back.
pub(super) struct Inspection<'a> {
    datastore: &'a Arc<Datastore>,
    op: OpId,
    wait: Option<Awaited<()>>,
    held: bool,
}

impl Inspection<'_> {
    /// Whether the locks are held, or will be without anybody else's doing.
    pub(super) fn is_held(&self) -> bool {
        self.held || self.wait.as_ref().is_some_and(Awaited::is_kept)
    }

    /// Waits until they are held; `false` when they never will be, as the node is stopping.
    pub(super) fn wait(&mut self) -> bool {
        if let Some(wait) = self.wait.take() {
            self.held = wait.get().is_some();
        }
        self.held
    }
}

impl Drop for Inspection<'_> {
    fn drop(&mut self) {
        // A thread that panics waits for nobody; the process ends.
        if !std::thread::panicking() && self.wait() {
            let done = Event::LocalDone(self.op, Ok(()));
            self.datastore.drive(Thread::MayWait, done);
        }
    }
}

/// About how many bytes of a write go to the peer.
pub(super) const fn write_message_bytes(length: usize) -> u64 {
    MESSAGE_BYTES + length as u64
}

/// About how many bytes of a metadata operation go to the peer.
fn message_bytes(request: &MetaRequest) -> u64 {
    let more = match request {
        MetaRequest::Create { target, .. } => target.len(),
        MetaRequest::SetXattr { value, .. } => value.len(),
        _ => 0,
    };
    MESSAGE_BYTES + more as u64
}

fn starts(effects: &Effects, id: OpId) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Execute { op, .. } if *op == id))
}

impl FileService for Service {
    fn panicked(&self) {
        threads::stop_process();
    }

    fn hurry(&self) {
        self.0.send_left();
    }

    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        self.0.ask(self.0.store.lookup(parent, name))
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        let parent = self.0.ask(self.0.store.parent(directory))?;
        self.getattr(parent)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.0.ask(self.0.store.getattr(ino))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.0.ask(self.0.store.readlink(ino))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.0.ask(self.0.store.getxattr(ino, name))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let names = self.0.ask(self.0.store.listxattr(ino))?;
        Ok(names
            .into_iter()
            .flat_map(|name| [name, vec![0]].concat())
            .collect())
    }

    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let listed = self
            .0
            .store
            .readdir(directory, after, &mut |cookie, entry| {
                each(DirEntry {
                    cookie,
                    ino: entry.ino,
                    kind: entry.kind,
                    name: entry.name,
                })
            });
        self.0.ask(listed)
    }

    fn space(&self) -> Result<Space, Errno> {
        let space = self.0.space_on_both();
        space.map_err(|error| self.0.told(&error.into()))
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let what = match what {
            Seek::Data => SeekFor::Data,
            Seek::Hole => SeekFor::Hole,
        };
        self.0.ask(self.0.store.seek(ino, offset, what))
    }

    fn opened(&self, ino: Ino) -> Result<(), Errno> {
        self.0.references.opened(ino);
        Ok(())
    }

    fn closed(&self, ino: Ino) {
        if self.0.references.closed(ino) {
            self.0.reap(ino);
        }
    }

    fn remembered(&self, ino: Ino, count: u64) {
        self.0.references.remembered(ino, count);
    }

    fn forgotten(&self, ino: Ino, count: u64) {
        if self.0.references.forgotten(ino, count) {
            self.0.reap(ino);
        }
    }

    fn next_ino(&self) -> Result<Ino, Errno> {
        self.0
            .store
            .next_ino()
            .map_err(|error| self.0.told(&error.into()))
    }

    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        let locks = lockset::read(ino, offset, length as u64);
        let work = ReadWork {
            ino,
            offset,
            length,
            done,
        };
        self.0.submit(OpKind::Read, locks, 0, Work::Read(work));
    }

    fn closing(&self) {
        self.0.keeper.close();
    }

    fn keep_at_door(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        options: WriteOptions<'_>,
    ) -> Result<Option<Arc<dyn KeptBytes>>, Errno> {
        if !self.0.keeper.is_full() {
            return Ok(None);
        }
        let starts = || {
            let drop_set_id = options.drop_set_id;
            self.0.would_start(ino, offset, data.len(), drop_set_id)
        };
        let kept = self.0.keep_at_door(data, options.waiting, starts)?;
        Ok(kept.map(|kept| kept as _))
    }

    fn keep(
        &self,
        data: &[u8],
        waiting: Option<&dyn Waiting>,
    ) -> Result<Arc<dyn KeptBytes>, Errno> {
        let kept = self.0.keep_at_door(data, waiting, || false)?;
        Ok(kept.unwrap_or_else(|| self.0.keeper.keep_here(data)))
    }

    fn keep_past_door(&self, data: &[u8]) -> Arc<dyn KeptBytes> {
        self.0.keeper.keep_here(data)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], options: WriteOptions<'_>, done: Done<()>) {
        self.begin_write(ino, offset, Bytes::Here(data), options, done);
    }

    fn write_kept(
        &self,
        ino: Ino,
        offset: u64,
        kept: Arc<dyn KeptBytes>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        self.begin_write(ino, offset, Bytes::Kept(kept), options, done);
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        self.0
            .admit_request(request, move |datastore, request, taken| match taken {
                Ok(charge) => datastore.submit_meta(request, charge.until_done(done)),
                Err(errno) => done(Err(errno)),
            });
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        let length = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(limits::WRITE_BYTES_MAX);
        let service = self.clone();
        let copy_on = move |read: Result<&[u8], Errno>| match read {
            Err(errno) => done(Err(errno)),
            Ok([]) => done(Ok(0)),
            Ok(data) => {
                let count = data.len() as u64;
                let told = move |written: Result<(), Errno>| done(written.map(|()| count));
                // The read's locks are held until this returns: the write must wait elsewhere.
                service.write_later(to, data, Box::new(told));
            }
        };
        self.read(from.0, from.1, length, Box::new(copy_on));
    }

    fn sync(&self, ino: Ino, done: Done<()>) {
        if self.0.store.is_synced(ino, self.0.state_version()) {
            return done(Ok(()));
        }
        let work = Work::Sync(SyncWork {
            ino,
            point: self.0.store.sync_point(ino, self.0.state_version()),
            done,
        });
        self.0.submit(OpKind::Sync, LockSet::new(), 0, work);
    }
}

impl Service {
    fn begin_write(
        &self,
        ino: Ino,
        offset: u64,
        bytes: Bytes<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let always = self.0.config.durability == Durability::Always;
        let facts = WriteFacts {
            ino,
            offset,
            length: bytes.length(),
            time: self.0.host.time_of_day(),
            durable: options.durable || always,
        };
        if facts.length == 0 {
            return done(Ok(()));
        }
        // The secondary would have it and this node not, and the good copy count as out of sync.
        if self.0.store.is_poisoned() {
            return done(Err(Errno::Io));
        }
        // Both nodes would refuse it, and a refusal by the secondary counts as its failure.
        if facts.end() > limits::FILE_BYTES_MAX {
            return done(Err(Errno::TooBig));
        }
        if self.0.has_ample_room() {
            return self.begin_admitted(facts, bytes, options, done);
        }
        let length = facts.length as u64;
        match self.0.store.room_for_write(ino, offset, length) {
            Ok(room) => match self.0.take_room(room) {
                Some(charge) => {
                    self.begin_admitted(facts, bytes, options, charge.until_done(done));
                }
                None => self.write_when_admitted(room, facts, bytes, options, done),
            },
            Err(error) => done(Err(self.0.told(&error.into()))),
        }
    }

    /// Writes once it is decided that there is room, or ends the write.
    fn write_when_admitted(
        &self,
        room: Room,
        facts: WriteFacts,
        bytes: Bytes<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        self.hurry();
        let kept = match bytes {
            Bytes::Kept(kept) => kept,
            Bytes::Here(data) => self.keep_past_door(data),
        };
        let drop_set_id = options.drop_set_id;
        let begin = move |datastore: &Arc<Datastore>, taken: Result<Charge, Errno>| match taken {
            Ok(charge) => {
                let options = WriteOptions {
                    drop_set_id,
                    ..WriteOptions::default()
                };
                let service = Self(Arc::clone(datastore));
                let done = charge.until_done(done);
                service.begin_admitted(facts, Bytes::Kept(kept), options, done);
            }
            Err(errno) => done(Err(errno)),
        };
        self.0.apply_for_room(room, Box::new(begin));
    }

    /// Begins a write for which there is room.
    fn begin_admitted(
        &self,
        facts: WriteFacts,
        bytes: Bytes<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        if options.drop_set_id {
            match self.0.has_privileges(facts.ino) {
                Ok(false) => {}
                Ok(true) => return self.write_unprivileged(facts, bytes, done),
                Err(error) => return done(Err(self.0.told(&error))),
            }
        }
        self.0.submit_write(facts, bytes, options.waiting, done);
    }

    /// Takes set-id bits and capabilities away, then writes.
    fn write_unprivileged(&self, facts: WriteFacts, bytes: Bytes<'_>, done: Done<()>) {
        self.hurry();
        let kept = match bytes {
            Bytes::Kept(kept) => kept,
            Bytes::Here(data) => self.keep_past_door(data),
        };
        let service = self.clone();
        let ino = facts.ino;
        let then = move |dropped: Result<_, Errno>| match dropped {
            Ok(_) => service.0.submit_write(facts, Bytes::Kept(kept), None, done),
            Err(errno) => done(Err(errno)),
        };
        self.change(MetaRequest::DropPrivileges { ino }, Box::new(then));
    }

    /// Writes on another thread.
    fn write_later(&self, to: (Ino, u64), data: &[u8], done: Done<()>) {
        let kept = self.keep_past_door(data);
        let service = self.clone();
        self.0.host.spawn(Box::new(move || {
            service.write_kept(to.0, to.1, kept, WriteOptions::default(), done);
        }));
    }
}

impl Datastore {
    /// Frees what lost its last name before a restart: nobody can have it open any more.
    pub fn reap_orphans(self: &Arc<Self>) {
        match self.store.orphans() {
            Ok(orphans) => {
                for ino in orphans {
                    self.orphaned(ino);
                }
            }
            Err(error) => {
                self.told(&error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockstep_repl::lock::{LockKey, LockMode};
    use smallvec::smallvec;

    use super::super::start::tests::Place;
    use super::*;

    /// After so long a thread that still waits waits for ever.
    const LONG_ENOUGH: Duration = Duration::from_secs(60);

    /// An operation may hold its locks for ever once the threads that do parts of it take no more jobs.
    #[test]
    fn a_stop_waits_for_no_thread_that_waits_for_locks() {
        let place = Place::in_sync();
        let datastore = place.start_out_of_sync();
        let locks = || smallvec![(LockKey::File(Ino::ROOT), LockMode::Exclusive)];
        let mut held = datastore.ask_for(locks());
        assert!(held.wait());
        let waiting = Arc::clone(&datastore);
        let (told, outcome) = std::sync::mpsc::channel();
        datastore.host.spawn(Box::new(move || {
            told.send(waiting.inspect(locks(), || ()).is_some())
                .unwrap();
        }));
        let stopping = Arc::clone(&datastore);
        let stop = std::thread::spawn(move || stopping.stop());
        let granted = outcome.recv_timeout(LONG_ENOUGH);
        assert_eq!(granted, Ok(false));
        stop.join().unwrap();
        assert!(!datastore.ask_for(locks()).wait(), "after the stop");
        drop(held);
        assert_eq!(datastore.core.lock().operations(), 0);
        datastore.close();
    }
}
