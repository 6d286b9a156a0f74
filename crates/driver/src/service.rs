//! A datastore as its clients see it: the [`FileService`] that a mount calls.
//!
//! Each call goes to the present session of the datastore. A node that does not serve answers `EIO`; a front end asks
//! [`FileService::enter`] first.
//!
//! Invariant: a handle of one tenure reaches the sessions of that tenure only, however late its thread is (rule R13). A
//! session that is over takes no operation.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::store::{SeekFor, SnapshotAccess};
use lockstep_fs::{OpError, StoreView};
use lockstep_types::backing::Space;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest, SnapshotIno, limits};

use crate::client::{
    AskKernel, DirEntry, Done, FileService, Inside, LeaseBoard, ReadDone, RequestKind,
    RoleObserver, Seek, Standing, Tenure, WaitingRequests, WriteData, WriteOptions, in_memory,
};
use crate::datastore::Datastore;
use crate::engine::Engine;
use crate::host::Job;
use crate::host::threads;
use crate::ops::space::Admission;
use crate::session::primary::PrimarySession;
use snapshot_files::SnapshotFiles;

mod snapshot_files;
mod writes;

/// See the head of this file.
#[derive(Clone)]
pub struct DatastoreHandle(pub Arc<Datastore>, Option<Tenure>);

impl DatastoreHandle {
    /// The handle of a datastore, in any tenure.
    pub const fn new(datastore: Arc<Datastore>) -> Self {
        Self(datastore, None)
    }

    /// The handle for the requests of a tenure.
    #[must_use]
    pub fn in_tenure(&self, tenure: Tenure) -> Self {
        Self(Arc::clone(&self.0), Some(tenure))
    }

    fn session(&self) -> Result<Arc<PrimarySession>, Errno> {
        let session = self.0.primary()?;
        // The session was found first: if it is one of a later tenure, that has begun before.
        let now = self.0.gate().tenure();
        match self.1 {
            Some(tenure) if !tenure.may_run_in(now) => Err(self.0.engine().unknown_outcome()),
            _ => Ok(session),
        }
    }

    /// Calls the store. An error that is no refusal is logged.
    fn call<T>(&self, f: impl FnOnce(&PrimarySession) -> Result<T, OpError>) -> Result<T, Errno> {
        let session = self.session()?;
        f(&session).map_err(|error| session.engine.log_and_errno(&error))
    }

    /// Looks at an inode: at the root on any node, so that the mount can be looked at.
    fn call_for<T>(
        &self,
        ino: Ino,
        f: impl FnOnce(&Engine) -> Result<T, OpError>,
    ) -> Result<T, Errno> {
        if ino != Ino::ROOT {
            return self.call(|session| f(&session.engine));
        }
        let engine = self.0.engine();
        f(engine).map_err(|error| engine.log_and_errno(&error))
    }

    /// Looks at the files of the snapshots, on any node: they never change.
    fn call_past<T>(
        &self,
        f: impl FnOnce(SnapshotFiles<'_>) -> Result<T, OpError>,
    ) -> Result<T, Errno> {
        let engine = self.0.engine();
        let snapshots = SnapshotAccess::of(&engine.store);
        f(SnapshotFiles::of(snapshots)).map_err(|error| engine.log_and_errno(&error))
    }

    /// Attributes of a file in the root that has the name of the entrance to the snapshots, on any node.
    fn own_entrance(&self, name: &FileName) -> Result<Attr, Errno> {
        let engine = self.0.engine();
        let found = engine.store.tree().lookup(Ino::ROOT, name);
        found.map_err(|error| engine.log_and_errno(&error))
    }

    /// The answer to a change that is refused because it is about a file of a snapshot.
    fn refusal(&self, request: &MetaRequest) -> Option<Errno> {
        SnapshotFiles::refusal(request, |name| self.own_entrance(name).is_ok())
    }
}

impl FileService for DatastoreHandle {
    fn panicked(&self) {
        threads::stop_process();
    }

    fn enter(&self, kind: RequestKind) -> Result<Inside, Standing> {
        self.0.gate().enter(&*self.0.engine().host, kind)
    }

    fn tenure(&self) -> Tenure {
        self.0.gate().tenure()
    }

    fn within(&self, tenure: Tenure) -> Option<Arc<dyn FileService>> {
        Some(Arc::new(self.in_tenure(tenure)))
    }

    fn when_serving(&self, job: Job) {
        self.0.gate().when_serving(&*self.0.engine().host, job);
    }

    fn note_waiting(&self, requests: u64) {
        self.0.gate().note_waiting(requests);
    }

    fn standing(&self) -> Standing {
        self.0.gate().standing()
    }

    fn serves(&self) -> bool {
        self.0.gate().serves(&*self.0.engine().host)
    }

    fn serves_for(&self) -> Duration {
        self.0.gate().serves_for(&*self.0.engine().host)
    }

    fn observe(&self, observer: Arc<dyn RoleObserver>) {
        self.0.role().current().observe(observer);
    }

    fn show_lease(&self, board: Arc<dyn LeaseBoard>) {
        self.0.gate().show_lease(&*self.0.engine().host, board);
    }

    fn flush_deferred_writes(&self) {
        if let Ok(session) = self.session() {
            session.replication.peer.flush_deferred();
        }
    }

    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        if let Some(parent) = SnapshotIno::of(parent) {
            return self.call_past(|files| files.lookup(parent, name));
        }
        if !SnapshotIno::is_entrance(parent, name) {
            return self.call(|session| session.engine.store.tree().lookup(parent, name));
        }
        match self.own_entrance(name) {
            Err(Errno::NoEntry) => self.call_past(|files| Ok(files.entrance())),
            _ => self.call(|session| session.engine.store.tree().lookup(parent, name)),
        }
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        if let Some(directory) = SnapshotIno::of(directory) {
            return if directory == SnapshotIno::LOCKSTEP {
                self.getattr(Ino::ROOT)
            } else {
                self.call_past(|files| files.lookup_parent(directory))
            };
        }
        let parent = self.call(|session| session.engine.store.tree().parent(directory))?;
        self.getattr(parent)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        match SnapshotIno::of(ino) {
            Some(at) => self.call_past(|files| files.getattr(at)),
            None => self.call_for(ino, |engine| engine.store.tree().getattr(ino)),
        }
    }

    fn revive(&self, ino: Ino) -> Result<Attr, Errno> {
        if !is_counted(ino) {
            return self.getattr(ino);
        }
        let references = &self.0.engine().references;
        let was_used = references.has(ino);
        self.remembered(ino, 1);
        let found = self.getattr(ino);
        self.forgotten(ino, 1);
        let is_unnamed = found.as_ref().is_ok_and(|attr| attr.nlink == 0);
        if is_unnamed && !was_used {
            // To clients, an inode in the trash is gone.
            let mark = self.call(|session| session.engine.store.tree().trash_mark(ino))?;
            return mark.map_or(found, |_| Err(Errno::Stale));
        }
        found
    }

    fn generation(&self, ino: Ino) -> Result<u64, Errno> {
        match SnapshotIno::of(ino) {
            Some(at) => self.call_past(|files| files.generation(at)),
            None => Ok(0),
        }
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        if let Some(at) = SnapshotIno::of(ino) {
            return self.call_past(|files| files.readlink(at));
        }
        self.call(|session| session.engine.store.tree().readlink(ino))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match SnapshotIno::of(ino) {
            Some(at) => self.call_past(|files| files.getxattr(at, name)),
            None => self.call_for(ino, |engine| engine.store.tree().getxattr(ino, name)),
        }
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let names = match SnapshotIno::of(ino) {
            Some(at) => self.call_past(|files| files.listxattr(at)),
            None => self.call_for(ino, |engine| engine.store.tree().listxattr(ino)),
        }?;
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
        if let Some(directory) = SnapshotIno::of(directory) {
            return self.call_past(|files| files.readdir(directory, after, each));
        }
        self.call(|session| {
            let store = &session.engine.store;
            store
                .tree()
                .readdir(directory, after, &mut |cookie, entry| {
                    each(DirEntry {
                        cookie,
                        ino: entry.ino,
                        kind: entry.kind,
                        name: entry.name,
                    })
                })
        })
    }

    fn space(&self) -> Result<Space, Errno> {
        let engine = self.0.engine();
        let space = match self.session() {
            Ok(session) => session.space.shown_space(),
            Err(_) => engine.store.capacity().space(),
        };
        space.map_err(|error| engine.log_and_errno(&error.into()))
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let what = match what {
            Seek::Data => SeekFor::Data,
            Seek::Hole => SeekFor::Hole,
        };
        match SnapshotIno::of(ino) {
            Some(at) => self.call_past(|files| files.seek(at, offset, what)),
            None => self.call(|session| session.engine.store.seek(ino, offset, what)),
        }
    }

    fn parts(&self, ino: Ino, range: Range<u64>) -> Vec<Range<u64>> {
        let parts = self.call(|session| session.engine.store.tree().parts(ino, range.clone()));
        // The change itself tells the error.
        parts
            .ok()
            .filter(|parts| !parts.is_empty())
            .unwrap_or_else(|| vec![range])
    }

    fn opened(&self, ino: Ino) -> Result<(), Errno> {
        if is_counted(ino) {
            self.0.engine().references.opened(ino);
        }
        Ok(())
    }

    fn closed(&self, ino: Ino) {
        if is_counted(ino) && self.0.engine().references.closed(ino) {
            self.reap(ino);
        }
    }

    fn remembered(&self, ino: Ino, count: u64) {
        if is_counted(ino) {
            self.0.engine().references.remembered(ino, count);
        }
    }

    fn forgotten(&self, ino: Ino, count: u64) {
        if is_counted(ino) && self.0.engine().references.forgotten(ino, count) {
            self.reap(ino);
        }
    }

    fn inherit(&self, ask: AskKernel) {
        self.0.engine().references.inherit(ask);
    }

    fn unreferenced(&self, ino: Ino) {
        if self.0.engine().references.unreferenced(ino) {
            self.reap(ino);
        }
    }

    fn inos_below(&self) -> Ino {
        let below = self.0.engine().store.image().inos_below();
        Ino::new(below).unwrap_or(Ino::LAST)
    }

    fn next_ino(&self) -> Result<Ino, Errno> {
        self.call(|session| Ok(session.engine.store.next_ino()?))
    }

    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        if let Some(at) = SnapshotIno::of(ino) {
            let read = self.call_past(|files| files.read(at, offset, length));
            return done(read.as_deref().map_err(|errno| *errno));
        }
        match self.session() {
            Ok(session) => session.submit_read(ino, offset, length, done),
            Err(errno) => done(Err(errno)),
        }
    }

    fn closing(&self) {
        if let Ok(session) = self.session() {
            session.spill.room.close();
        }
    }

    fn admit<'a>(
        &self,
        ino: Ino,
        offset: u64,
        data: &'a [u8],
        options: WriteOptions<'_>,
    ) -> Result<WriteData<'a>, Errno> {
        let session = self.session()?;
        if !session.spill.is_full() {
            return Ok(WriteData::Borrowed(data));
        }
        let backpressure = &session.backpressure;
        let starts = || backpressure.would_start(ino, offset, data.len(), options.drop_set_id);
        let spilled = backpressure.admit(data, options.waiting, starts)?;
        Ok(spilled.map_or(WriteData::Borrowed(data), |it| WriteData::Spilled(it)))
    }

    fn keep(
        &self,
        data: WriteData<'_>,
        waiting: Option<&dyn WaitingRequests>,
    ) -> Result<WriteData<'static>, Errno> {
        let data = match data {
            WriteData::Borrowed(data) => data,
            WriteData::Spilled(spilled) => return Ok(WriteData::Spilled(spilled)),
        };
        let session = self.session()?;
        let spilled = session.backpressure.admit(data, waiting, || false)?;
        let spilled = spilled.unwrap_or_else(|| session.spill.put_in_memory(data));
        Ok(WriteData::Spilled(spilled))
    }

    fn keep_admitted(&self, data: WriteData<'_>) -> WriteData<'static> {
        data.owned_by(|data| match self.session() {
            Ok(session) => session.spill.put_in_memory(data),
            Err(_) => in_memory(data),
        })
    }

    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        self.begin_write(ino, offset, data, options, done);
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        if let Some(errno) = self.refusal(&request) {
            return done(Err(errno));
        }
        let session = match self.session() {
            Ok(session) => session,
            Err(errno) => return done(Err(errno)),
        };
        match session.space.admit_request(&request) {
            Admission::Granted(charge) => {
                session.pipeline.submit(request, charge.until_done(done));
            }
            Admission::Refused(errno) => done(Err(errno)),
            Admission::Undecided(room) => {
                self.when_there_is_room(&session, room, move |taken| match taken {
                    Ok((session, _, charge)) => {
                        session.pipeline.submit(request, charge.until_done(done));
                    }
                    Err(errno) => done(Err(errno)),
                });
            }
        }
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        let length = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(limits::WRITE_BYTES_MAX);
        if SnapshotIno::of(to.0).is_some() {
            return done(Err(Errno::ReadOnly));
        }
        let handle = self.clone();
        let write_copy = move |read: Result<&[u8], Errno>| match read {
            Err(errno) => done(Err(errno)),
            Ok([]) => done(Ok(0)),
            Ok(data) => {
                let count = data.len() as u64;
                let written = move |written: Result<(), Errno>| done(written.map(|()| count));
                // The locks of the read are held until this returns: the write must wait on another thread.
                handle.write_later(to, data, Box::new(written));
            }
        };
        self.read(from.0, from.1, length, Box::new(write_copy));
    }

    fn sync(&self, ino: Ino, done: Done<()>) {
        if SnapshotIno::of(ino).is_some() {
            return done(Ok(()));
        }
        match self.session() {
            Ok(session) => session.submit_sync(ino, done),
            Err(errno) => done(Err(errno)),
        }
    }
}

/// Whether references keep an inode: a file of a snapshot goes with the snapshot.
const fn is_counted(ino: Ino) -> bool {
    SnapshotIno::of(ino).is_none()
}

impl DatastoreHandle {
    /// Frees an inode that nothing refers to. On a node that does not serve, the inode stays until a node begins to serve.
    fn reap(&self, ino: Ino) {
        if let Ok(session) = self.session() {
            session.pipeline.reap(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::open::tests::Place;

    const FILE: Ino = Ino::ROOT;

    fn written(service: &dyn FileService) -> Result<(), Errno> {
        let (send, receive) = channel();
        let done = Box::new(move |outcome: Result<_, Errno>| send.send(outcome.map(drop)).unwrap());
        let attributes = MetaRequest::SetAttr {
            ino: FILE,
            mode: Some(0o700),
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
        };
        service.change(attributes, done);
        receive.recv().unwrap()
    }

    /// A thread was let in, stands still, and goes on when the node serves again after the other one.
    #[test]
    fn a_handle_of_an_earlier_tenure_reaches_no_later_session() {
        let place = Place::in_sync();
        let datastore = place.start_out_of_sync();
        let handle = DatastoreHandle::new(Arc::clone(&datastore));
        let inside = handle.enter(RequestKind::Program).unwrap();
        let within = handle.within(inside.tenure()).unwrap();
        assert_eq!(written(&*within), Ok(()));
        let (gate, host) = (datastore.gate(), &*datastore.engine().host);
        gate.set(host, Standing::Following);
        gate.set(host, Standing::Serving);
        assert_eq!(written(&*within), Err(Errno::Io));
        assert_eq!(within.readlink(FILE), Err(Errno::Io));
        let next = handle.within(handle.tenure()).unwrap();
        assert_eq!(written(&*next), Ok(()));
        drop(inside);
        datastore.stop();
    }
}
