//! Reads, writes and syncs of content: this node's part of each, the message to the secondary, and the answer to
//! the client.
//!
//! Invariants:
//! - A write has its PAW entry before its first byte is put anywhere (rule P6).
//! - A thread of a client is inside a change only with a berth; without one the worker pool executes the change.

use std::sync::Arc;

use lockstep_fs::{OpError, StoreView};
use lockstep_paw_saw::Full;
use lockstep_repl::core::{ConnectionId, Event, OpId};
use lockstep_repl::message::{Message, WriteMessage};
use lockstep_repl::state::Trigger;
use lockstep_sums::SummedBytes;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Osn};

use super::announcements::Announcements;
use super::berths::Berths;
use super::checked_reads::{BlockRead, CheckedReads};
use super::paw::PawEntries;
use super::pending::{
    LocalChange, LocalPart, PendingOp, PendingOps, PendingRead, PendingSync, PendingWrite,
    WriteParams,
};
use super::spill::SpillBuffer;
use crate::client::WaitingRequests;
use crate::durable::tables::{WriteRange, entry_of};
use crate::engine::Engine;
use crate::host::ThreadKind;
use crate::peer::connection::Delivery;
use crate::replication::Replication;

/// The write that the calling thread brought, with its bytes in the buffer of that thread.
#[derive(Clone, Copy)]
pub(crate) struct CallerWrite<'a> {
    pub op: OpId,
    /// The bytes, with the sums of their blocks: the link and the store need these both.
    pub data: SummedBytes<'a>,
    pub waiting: Option<&'a dyn WaitingRequests>,
}

/// The causes for which this node's part of a write may wait.
pub(crate) struct WriteWaits {
    berths: Arc<Berths>,
    announcements: Arc<Announcements>,
}

impl WriteWaits {
    /// Both of them.
    pub fn of(berths: &Arc<Berths>, announcements: &Arc<Announcements>) -> Self {
        Self {
            berths: Arc::clone(berths),
            announcements: Arc::clone(announcements),
        }
    }
}

/// Executes the core's effects on content.
pub(crate) struct ContentOps {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    pending: Arc<PendingOps>,
    pub paw: PawEntries,
    waits: WriteWaits,
    spill: Arc<SpillBuffer>,
    /// Reads are compared with the sums of their blocks.
    checks: Option<CheckedReads>,
}

impl ContentOps {
    /// The executor of one session.
    pub const fn new(
        engine: Arc<Engine>,
        replication: Arc<Replication>,
        pending: Arc<PendingOps>,
        paw: PawEntries,
        waits: WriteWaits,
        spill: Arc<SpillBuffer>,
        checks: Option<CheckedReads>,
    ) -> Self {
        Self {
            engine,
            replication,
            pending,
            paw,
            waits,
            spill,
            checks,
        }
    }

    /// The bytes of the writes that the core may have admitted, and that may not have begun.
    pub fn admitted_writes(&self) -> Vec<WriteRange> {
        self.pending.writes()
    }

    /// Executes this node's part of an operation whose locks are held.
    pub fn execute(
        self: &Arc<Self>,
        thread: ThreadKind,
        op: OpId,
        osn: Osn,
        caller: Option<CallerWrite<'_>>,
    ) -> Option<Event> {
        let done = Some(Event::LocalDone(op, Ok(())));
        let change = match self.pending.begin_local_part(op, osn)? {
            LocalPart::Change(change) => change,
            LocalPart::Read(read) => {
                return self.read_now(op, read);
            }
            LocalPart::LocksGranted => return None,
            LocalPart::LocksAbandoned => return done,
        };
        if let LocalChange::Write(write) = change
            && self.waits_for_announcement(op, osn, write, caller)
        {
            return None;
        }
        let berth = (thread == ThreadKind::Client).then(|| self.waits.berths.take());
        if matches!(berth, Some(None)) {
            self.execute_in_pool(op, osn, caller);
            return None;
        }
        let result = match change {
            LocalChange::Write(write) => self.write_here(op, write, caller),
            LocalChange::Sync(ino) => self.engine.store.sync_file(ino, true),
        };
        if let Err(OpError::Store(error)) = &result
            && self.is_mirrored_write(op)
        {
            // The secondary may have executed the write: the sync ends for this reason (rule P15).
            self.engine.notes.set_reason(&format!(
                "this node could not do what the secondary can: {error}"
            ));
        }
        let result = result.map_err(|error| self.engine.log_and_errno(&error));
        Some(Event::LocalDone(op, result))
    }

    /// Reads, and answers the client. A block that does not fit its sum goes to the worker pool.
    fn read_now(self: &Arc<Self>, op: OpId, read: PendingRead) -> Option<Event> {
        let done = Some(Event::LocalDone(op, Ok(())));
        let Some(checks) = &self.checks else {
            self.read_unchecked(read);
            return done;
        };
        let found = match checks.read(read.ino, read.offset, read.length) {
            Ok(found) => found,
            Err(error) => {
                (read.done)(Err(self.engine.log_and_errno(&error)));
                return done;
            }
        };
        if let Some(bytes) = found.checked() {
            (read.done)(Ok(bytes));
            return done;
        }
        self.heal_in_pool(op, read, found);
        None
    }

    /// Has the worker pool heal the blocks of a read, and answer the client.
    fn heal_in_pool(self: &Arc<Self>, op: OpId, read: PendingRead, wrong: BlockRead) {
        let ops = Arc::clone(self);
        self.replication.spawn(move || {
            let healed = ops.checks.as_ref().ok_or(OpError::Refused(Errno::Io));
            let healed =
                healed.and_then(|checks| checks.heal_and_read(read.ino, read.offset, &wrong));
            match &healed {
                Ok(found) => (read.done)(Ok(found.checked().unwrap_or_default())),
                Err(error) => (read.done)(Err(ops.engine.log_and_errno(error))),
            }
            let done = Event::LocalDone(op, Ok(()));
            ops.replication.handle_event(ThreadKind::MayWait, done);
        });
    }

    fn read_unchecked(&self, read: PendingRead) {
        let mut buffer = vec![0; read.length];
        match self.engine.store.read(read.ino, read.offset, &mut buffer) {
            Ok(length) => (read.done)(Ok(buffer.get(..length).unwrap_or_default())),
            Err(error) => (read.done)(Err(self.engine.log_and_errno(&error))),
        }
    }

    /// Has the worker pool execute an operation of a client's thread without a berth.
    fn execute_in_pool(self: &Arc<Self>, op: OpId, osn: Osn, caller: Option<CallerWrite<'_>>) {
        self.keep_begun(op, caller);
        let ops = Arc::clone(self);
        self.replication.spawn(move || {
            if let Some(event) = ops.execute(ThreadKind::MayWait, op, osn, None) {
                ops.replication.handle_event(ThreadKind::MayWait, event);
            }
        });
    }

    /// Keeps the bytes of a write that this thread cannot make. They stay in memory, because other operations wait for the locks of
    /// this write. While memory is full, write admission lets no write pass that would find no berth.
    fn keep_begun(&self, op: OpId, caller: Option<CallerWrite<'_>>) {
        if let Some(caller) = caller.filter(|caller| caller.op == op) {
            let keep = || self.spill.put_begun(&caller.data);
            self.pending
                .with_write(op, |write| write.data = Some(keep()));
        }
    }

    /// Whether this node's part of a write has to wait until the secondary has marked its regions (rule P26). Then its bytes are kept,
    /// and another thread begins it.
    fn waits_for_announcement(
        &self,
        op: OpId,
        osn: Osn,
        WriteParams { message, length }: WriteParams,
        caller: Option<CallerWrite<'_>>,
    ) -> bool {
        let announcements = &self.waits.announcements;
        let (ino, offset) = (message.ino, message.offset);
        if !self.is_mirrored_write(op) || announcements.may_begin(op, ino, offset, length) {
            return false;
        }
        self.keep_begun(op, caller);
        announcements.wait(op, osn, ino, offset, length)
    }

    fn is_mirrored_write(&self, op: OpId) -> bool {
        let has_entry = |write: &mut PendingWrite| write.slot.is_some();
        self.pending.with_write(op, has_entry).unwrap_or(false)
    }

    fn write_here(
        &self,
        op: OpId,
        WriteParams { message, length }: WriteParams,
        caller: Option<CallerWrite<'_>>,
    ) -> Result<(), OpError> {
        let store = &self.engine.store;
        let (ino, offset) = (message.ino, message.offset);
        let mut loaded = None;
        let data = self.bytes_of(op, caller, &mut loaded)?;
        let ticket = store.begin_write(ino, offset, length as u64, message.durable)?;
        if let Err(error) = store.write_begun(&ticket, offset, data) {
            ticket.abandon();
            return Err(error.into());
        }
        // Rule P11; the secondary does the same before its acknowledgement.
        if message.durable
            && !is_active(Mutant::NoLocalSync)
            && let Err(error) = store.sync_file(ino, false)
        {
            ticket.abandon();
            return Err(error);
        }
        self.pending
            .with_write(op, |write| write.ticket = Some(ticket));
        Ok(())
    }

    /// The bytes of a write: in the buffer of this thread, or kept. Spilled bytes are read into `loaded`. A write
    /// that is over has none.
    fn bytes_of<'a>(
        &self,
        op: OpId,
        caller: Option<CallerWrite<'a>>,
        loaded: &'a mut Option<Arc<[u8]>>,
    ) -> Result<SummedBytes<'a>, Errno> {
        if let Some(caller) = caller.filter(|caller| caller.op == op) {
            return Ok(caller.data);
        }
        let kept = self.pending.with_write(op, |write| write.data.clone());
        *loaded = kept.flatten().map(|kept| kept.load()).transpose()?;
        Ok(loaded.as_deref().unwrap_or_default().into())
    }

    /// Makes the PAW entry of a write (rule P6). Returns the numbered write, unless it is over.
    pub fn enter_write(&self, op: OpId, osn: Osn) -> Option<WriteParams> {
        let entered = self.pending.with_write(op, |pending| {
            let write = pending.write.numbered(osn);
            if pending.slot.is_some() || is_active(Mutant::NoPawEntry) {
                return Ok::<_, Full>(write);
            }
            let entry = entry_of(&write.message, write.length);
            pending.slot = Some(self.paw.insert(entry)?);
            Ok(write)
        })?;
        match entered {
            Ok(write) => Some(write),
            // The core admits no more writes than the table has slots. Without an entry, nothing would say after
            // a crash where the nodes may differ: so the sync ends.
            Err(full) => {
                self.replication
                    .spawn_trigger(Trigger::PeerFailed, &full.to_string());
                self.pending
                    .with_write(op, |pending| pending.write.numbered(osn))
            }
        }
    }

    /// Sends a write to the secondary, or refuses a write that this node cannot execute.
    pub fn send_write(
        &self,
        op: OpId,
        osn: Osn,
        connection: ConnectionId,
        caller: Option<CallerWrite<'_>>,
    ) -> Option<Event> {
        let WriteParams { message, length } = self.enter_write(op, osn)?;
        if let Err(error) = self.engine.store.check_file(message.ino) {
            // The locks are held, so the file stays gone; the secondary has no such file either (P2, P4).
            self.withdraw_entry(op);
            let errno = self.engine.log_and_errno(&error);
            return Some(Event::Refused(op, errno));
        }
        let own = caller.filter(|caller| caller.op == op);
        let waiting = own.and_then(|caller| caller.waiting);
        let waiting = waiting.filter(|_| !message.durable);
        let mut loaded = None;
        match self.bytes_of(op, caller, &mut loaded) {
            Ok(data) if data.len() == length => {
                self.mark(&message, length);
                let delivery = Delivery::Coalesce(waiting);
                self.replication
                    .send(connection, Message::Write(message), data, delivery);
                None
            }
            // A write that is over has no bytes any more. It was given up, and the connection with it.
            Ok(_) => None,
            Err(errno) => {
                // This node cannot read the bytes for its own part either.
                self.withdraw_entry(op);
                Some(Event::Refused(op, errno))
            }
        }
    }

    /// Marks the bytes of a write, which the secondary is about to get: it may lose them with its power (rule P27).
    fn mark(&self, write: &WriteMessage, length: usize) {
        let barriers = self.engine.store.barriers();
        barriers.mark_write(write.ino, write.offset, length as u64);
    }

    /// Removes the PAW entry of a write that neither node has begun.
    fn withdraw_entry(&self, op: OpId) {
        let slot = self.pending.with_write(op, |write| write.slot.take());
        if let Some(slot) = slot.flatten() {
            self.paw.withdraw(slot);
        }
    }

    /// Sends a write again, with the bytes in the file: the client's buffer is gone. The locks of the write are
    /// still held, so no other write has changed these bytes.
    pub fn resend_write(&self, op: OpId, osn: Osn, connection: ConnectionId) {
        let found = self.pending.with_write(op, |pending| pending.write);
        let Some(mut write) = found.map(|write| write.numbered(osn)) else {
            return;
        };
        let message = &mut write.message;
        if let Ok(Some(seen)) = self.engine.store.tree().file_times(message.ino)
            && seen.last_write.is_some_and(|last| last > osn)
        {
            // A later write to the file is over already: its times stay on both nodes.
            message.time = seen.mtime;
        }
        let mut data = vec![0; write.length];
        let read = self
            .engine
            .store
            .tree()
            .read_raw(message.ino, message.offset, &mut data);
        match read {
            Ok(()) => {
                self.mark(message, write.length);
                let message = Message::Write(*message);
                let delivery = Delivery::Coalesce(None);
                let data = (&data).into();
                self.replication.send(connection, message, data, delivery);
            }
            Err(error) => {
                self.engine.log_and_errno(&error.into());
                self.replication
                    .peer
                    .close("a write that is to be sent again cannot be read");
            }
        }
    }

    /// Sends a sync to the secondary.
    pub fn send_sync(&self, op: OpId) {
        let ino = self.pending.with(op, |pending| match pending {
            PendingOp::Sync(sync) => Some(sync.ino),
            _ => None,
        });
        if let Some(ino) = ino.flatten() {
            self.replication
                .send_current(Message::Sync { id: op.0, ino });
        }
    }

    /// Ends a sync and answers the client.
    pub fn finish_sync(&self, sync: PendingSync, result: Result<(), Errno>) {
        if let (Ok(()), Some(point)) = (result, sync.point) {
            self.engine.store.note_synced(sync.ino, point);
        }
        (sync.done)(result);
    }

    /// Ends a write and answers the client.
    pub fn finish_write(&self, write: PendingWrite, result: Result<(), Errno>) {
        match write.slot {
            // The secondary has the bytes: the core is leaving sync (rules P6, P15).
            Some(slot) if result.is_err() && self.engine.role_file.state().is_in_sync() => {
                self.paw.keep_failed(slot);
            }
            Some(slot) => self.paw.remove(slot),
            None => {}
        }
        if let Some(ticket) = &write.ticket {
            ticket.abandon();
        }
        if let (Ok(()), Some(point)) = (result, write.synced) {
            let ino = write.write.message.ino;
            self.engine.store.note_synced(ino, point);
        }
        (write.done)(result);
    }
}
