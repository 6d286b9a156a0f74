//! The way of a write from its call to its begin: whether it would be refused, whether there is room, and with which privileges.

use std::sync::Arc;

use lockstep_repl::message::WriteMessage;
use lockstep_types::backing::Room;
use lockstep_types::{Errno, Ino, MetaRequest, Osn};

use super::DatastoreHandle;
use crate::client::{Done, FileService, WriteData, WriteOptions};
use crate::ops::pending::WriteParams;
use crate::ops::space::{Admission, Begin, Charge};
use crate::session::primary::PrimarySession;

impl DatastoreHandle {
    /// Begins a write, unless this node or the secondary would refuse it.
    pub(super) fn begin_write(
        &self,
        ino: Ino,
        offset: u64,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let session = match self.session() {
            Ok(session) => session,
            Err(errno) => return done(Err(errno)),
        };
        let engine = &session.engine;
        let write = WriteParams {
            message: WriteMessage {
                osn: Osn::ZERO,
                ino,
                offset,
                time: engine.host.time_of_day(),
                durable: options.durable || engine.is_always_durable(),
            },
            length: data.length(),
        };
        if write.length == 0 {
            return done(Ok(()));
        }
        // Before the secondary gets the write. If only this node refused, the good copy would be out of sync; and a refusal
        // by the secondary is treated as its failure.
        let allowed =
            engine
                .store
                .tree()
                .check_write(ino, offset..write.end(), options.is_resent_append);
        if let Err(error) = allowed {
            return done(Err(engine.log_and_errno(&error)));
        }
        match session.space.admit_write(ino, offset, write.length as u64) {
            Admission::Granted(charge) => {
                self.begin_admitted(&session, write, data, options, charge.until_done(done));
            }
            Admission::Refused(errno) => done(Err(errno)),
            Admission::Undecided(room) => {
                self.write_when_admitted(&session, room, write, data, options.drop_set_id, done);
            }
        }
    }

    /// Has another thread decide whether there is room, and call `begin`.
    pub(super) fn when_there_is_room(
        &self,
        session: &PrimarySession,
        room: Room,
        begin: impl FnOnce(Result<(Arc<PrimarySession>, Self, Charge), Errno>) + Send + 'static,
    ) {
        // A request for space must not keep the datastore, which keeps the requests.
        let (datastore, tenure) = (Arc::downgrade(&self.0), self.1);
        let inside = self.0.gate().hold();
        let begin: Begin = Box::new(move |taken| {
            let _inside = inside;
            begin(taken.and_then(|charge| {
                let handle = Self(datastore.upgrade().ok_or(Errno::Io)?, tenure);
                let session = handle.session()?;
                Ok((session, handle, charge))
            }));
        });
        session.space.request(room, begin);
    }

    /// Writes once it is decided that there is room, or ends the write.
    fn write_when_admitted(
        &self,
        session: &PrimarySession,
        room: Room,
        write: WriteParams,
        data: WriteData<'_>,
        drop_set_id: bool,
        done: Done<()>,
    ) {
        self.flush_deferred_writes();
        let data = self.keep_admitted(data);
        self.when_there_is_room(session, room, move |taken| match taken {
            Ok((session, handle, charge)) => {
                let options = WriteOptions {
                    drop_set_id,
                    ..WriteOptions::default()
                };
                let done = charge.until_done(done);
                handle.begin_admitted(&session, write, data, options, done);
            }
            Err(errno) => done(Err(errno)),
        });
    }

    /// Begins a write for which there is room.
    fn begin_admitted(
        &self,
        session: &PrimarySession,
        write: WriteParams,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        if options.drop_set_id {
            match session.backpressure.has_privileges(write.message.ino) {
                Ok(false) => {}
                Ok(true) => return self.write_unprivileged(write, data, done),
                Err(error) => return done(Err(session.engine.log_and_errno(&error))),
            }
        }
        session.submit_write(write, data, options.waiting, done);
    }

    /// Takes set-id bits and capabilities away, then writes.
    fn write_unprivileged(&self, write: WriteParams, data: WriteData<'_>, done: Done<()>) {
        self.flush_deferred_writes();
        let data = self.keep_admitted(data);
        let handle = self.clone();
        let ino = write.message.ino;
        let then = move |dropped: Result<_, Errno>| match dropped.and_then(|_| handle.session()) {
            Ok(session) => session.submit_write(write, data, None, done),
            Err(errno) => done(Err(errno)),
        };
        self.change(MetaRequest::DropPrivileges { ino }, Box::new(then));
    }

    /// Writes on another thread.
    pub(super) fn write_later(&self, to: (Ino, u64), data: &[u8], done: Done<()>) {
        let session = match self.session() {
            Ok(session) => session,
            Err(errno) => return done(Err(errno)),
        };
        let data = self.keep_admitted(WriteData::Borrowed(data));
        let handle = self.clone();
        let inside = self.0.gate().hold();
        session.replication.spawn(move || {
            let _inside = inside;
            handle.write(to.0, to.1, data, WriteOptions::default(), done);
        });
    }
}
