//! Carrying out what the core decides. Metadata operations are in `commit`, the mark of the sync state
//! in `marking`.

use std::collections::VecDeque;
use std::sync::Arc;

use lockstep_fs::{OpError, Store};
use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::core::{ConnectionId, Effect, Effects, Event, OpId};
use lockstep_repl::message::Message;
use lockstep_repl::state::{Refused, Trigger};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Osn};

use super::flight::{MetaWork, Work, WriteFacts};
use super::{Datastore, Thread};
use crate::client::Waiting;

/// What only the thread knows that brought a write.
#[derive(Clone, Copy)]
pub(super) struct Inline<'a> {
    pub op: OpId,
    /// The bytes, in the buffer of that thread.
    pub data: &'a [u8],
    pub waiting: Option<&'a dyn Waiting>,
}

impl Datastore {
    /// Carries out effects, and the effects of what that brings about.
    pub(super) fn carry_out_all(
        self: &Arc<Self>,
        thread: Thread,
        effects: Effects,
        inline: Option<Inline<'_>>,
    ) {
        let mut todo: VecDeque<Effect> = effects.into_iter().collect();
        while let Some(effect) = todo.pop_front() {
            self.host.step();
            if let Some(event) = self.carry_out(thread, effect, inline) {
                todo.extend(self.decide(event));
            }
        }
    }

    /// Carries out one effect. Returns what came of it, where that is known at once.
    fn carry_out(
        self: &Arc<Self>,
        thread: Thread,
        effect: Effect,
        inline: Option<Inline<'_>>,
    ) -> Option<Event> {
        if thread == Thread::Reader && self.defer(effect) {
            return None;
        }
        match effect {
            Effect::Execute { op, osn } => self.execute(thread, op, osn, inline),
            Effect::SendWrite {
                op,
                osn,
                connection,
            } => self.send_write(op, osn, connection, inline),
            Effect::ResendWrite {
                op,
                osn,
                connection,
            } => self.resend_write(op, osn, connection),
            Effect::SendSync { op } => self.send_sync(op),
            Effect::Prepare { op } => self.prepare_on(thread, op),
            Effect::Sequenced { op, osn, mirrored } => self.begin_meta(op, osn, mirrored),
            Effect::ResendMeta { osn } => self.resend_meta(osn),
            Effect::Commit { .. } => self.commit(thread),
            Effect::Finish { op, result } => self.finish(op, result),
            Effect::Mark { in_sync } => self.mark_later(in_sync),
            Effect::NoteOverdue => {
                self.note_overdue();
                None
            }
            Effect::DropLink => {
                self.drop_link(self.why_dropped());
                None
            }
            Effect::Transfer(transfer, connection) => {
                self.transfer_over(connection, transfer);
                None
            }
            Effect::Entered(state) => {
                self.entered(state);
                None
            }
            Effect::Refused(refused) => {
                self.note_refused(refused);
                None
            }
        }
    }

    fn note_overdue(&self) {
        let limit = self.config.answer_limit.as_millis();
        self.set_reason(&format!(
            "the secondary is connected, but has not answered an operation for {limit} ms: its disk \
             may hang"
        ));
    }

    /// Hands an effect that might wait, for a disk or for the sequencer, from the reader to a thread that
    /// may. What is to stay in order goes to the courier. A write's own part is not deferred with it: so its entry is made
    /// here.
    fn defer(self: &Arc<Self>, effect: Effect) -> bool {
        if let Effect::SendWrite { op, osn, .. } = effect {
            self.enter_write(op, osn);
        }
        let ordered = match effect {
            Effect::SendWrite { .. }
            | Effect::ResendWrite { .. }
            | Effect::SendSync { .. }
            | Effect::Prepare { .. }
            | Effect::ResendMeta { .. } => true,
            Effect::Execute { op, .. } if self.may_wait_for_disk(op) => false,
            _ => return false,
        };
        let datastore = Arc::clone(self);
        let job = move || {
            if let Some(event) = datastore.carry_out(Thread::MayWait, effect, None) {
                datastore.drive(Thread::MayWait, event);
            }
        };
        if ordered {
            self.host.in_order(Box::new(job));
        } else {
            self.host.spawn(Box::new(job));
        }
        true
    }

    /// Whether the part of an operation on this node may wait for the disk: for a flush, for a checkpoint that
    /// frees a slot for a file, or for bytes that are not in memory.
    fn may_wait_for_disk(&self, op: OpId) -> bool {
        let works = self.works.lock();
        matches!(
            works.get(&op),
            Some(Work::Read(_) | Work::Write(_) | Work::Sync(_))
        )
    }

    /// Has the pool execute what a thread of a client finds no berth for.
    fn execute_elsewhere(self: &Arc<Self>, op: OpId, osn: Osn, inline: Option<Inline<'_>>) {
        // In memory, as others wait for the locks of this write. While memory is full, the door lets no write
        // through that would find no berth.
        if let Some(inline) = inline.filter(|inline| inline.op == op)
            && let Some(Work::Write(write)) = self.works.lock().get_mut(&op)
        {
            write.data = Some(self.keeper.keep_begun(inline.data));
        }
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || {
            if let Some(event) = datastore.execute(Thread::MayWait, op, osn, None) {
                datastore.drive(Thread::MayWait, event);
            }
        }));
    }

    fn execute(
        self: &Arc<Self>,
        thread: Thread,
        op: OpId,
        osn: Osn,
        inline: Option<Inline<'_>>,
    ) -> Option<Event> {
        enum Job {
            Write(WriteFacts),
            Sync(lockstep_types::Ino),
        }
        let job = {
            let mut works = self.works.lock();
            match works.get_mut(&op)? {
                Work::Write(write) => {
                    write.osn = Some(osn);
                    Job::Write(write.facts)
                }
                Work::Sync(sync) => Job::Sync(sync.ino),
                Work::Inspect(ready) => {
                    let Some(ready) = ready.take() else {
                        // The thread that asked was told that it gets no locks.
                        return Some(Event::LocalDone(op, Ok(())));
                    };
                    // The thread that waits does its work now and tells when it is done.
                    ready.keep(());
                    return None;
                }
                Work::Meta(_) => return None,
                Work::Read(_) => {
                    let Some(Work::Read(read)) = works.remove(&op) else {
                        return None;
                    };
                    drop(works);
                    self.read_now(read);
                    return Some(Event::LocalDone(op, Ok(())));
                }
            }
        };
        let _berth = match thread {
            Thread::Client => match self.berths.take() {
                None => {
                    self.execute_elsewhere(op, osn, inline);
                    return None;
                }
                taken => taken,
            },
            Thread::MayWait | Thread::Reader => None,
        };
        let result = match job {
            Job::Write(facts) => self.write_here(op, facts, inline),
            Job::Sync(ino) => self.store.sync_file(ino, true),
        };
        if let Err(OpError::Store(error)) = &result
            && self.is_mirrored_write(op)
        {
            // The secondary may have done it: that is why the sync ends (P15).
            self.set_reason(&format!(
                "this node could not do what the secondary can: {error}"
            ));
        }
        Some(Event::LocalDone(
            op,
            result.map_err(|error| self.told(&error)),
        ))
    }

    fn is_mirrored_write(&self, op: OpId) -> bool {
        matches!(self.works.lock().get(&op), Some(Work::Write(write)) if write.slot.is_some())
    }

    /// The error a client sees; what is not its own doing is logged.
    pub(super) fn told(&self, error: &OpError) -> Errno {
        if let OpError::Store(error) = error {
            tracing::error!(datastore = self.name(), %error, "the store failed");
        }
        error.errno()
    }

    fn write_here(
        &self,
        op: OpId,
        facts: WriteFacts,
        inline: Option<Inline<'_>>,
    ) -> Result<(), OpError> {
        let length = facts.length as u64;
        let mut kept = None;
        let data = self.bytes_of(op, inline, &mut kept)?;
        let ticket = self
            .store
            .begin_write(facts.ino, facts.offset, length, facts.durable)?;
        if let Err(error) = self.store.write_begun(&ticket, facts.offset, data) {
            Store::abandon_write(&ticket);
            return Err(error.into());
        }
        // Rule P11; the other side does the same before its acknowledgement.
        if facts.durable
            && !is_active(Mutant::NoLocalSync)
            && let Err(error) = self.store.sync_file(facts.ino, false)
        {
            Store::abandon_write(&ticket);
            return Err(error);
        }
        if let Some(Work::Write(write)) = self.works.lock().get_mut(&op) {
            write.ticket = Some(ticket);
        }
        Ok(())
    }

    /// The bytes of a write: in the buffer of this thread, or kept, and read into `loaded`. None are left of one
    /// that is over.
    fn bytes_of<'a>(
        &self,
        op: OpId,
        inline: Option<Inline<'a>>,
        loaded: &'a mut Option<Arc<[u8]>>,
    ) -> Result<&'a [u8], Errno> {
        if let Some(inline) = inline.filter(|inline| inline.op == op) {
            return Ok(inline.data);
        }
        let kept = match self.works.lock().get(&op) {
            Some(Work::Write(write)) => write.data.clone(),
            _ => None,
        };
        *loaded = kept.map(|kept| kept.load()).transpose()?;
        Ok(loaded.as_deref().unwrap_or_default())
    }

    /// Makes the PAW entry of a write, before its first byte is put anywhere (rule P6). Returns what is
    /// known of the write, unless it is over.
    fn enter_write(self: &Arc<Self>, op: OpId, osn: Osn) -> Option<WriteFacts> {
        let mut works = self.works.lock();
        let Some(Work::Write(write)) = works.get_mut(&op) else {
            return None;
        };
        let facts = write.facts;
        if write.slot.is_none() && !is_active(Mutant::NoPawEntry) {
            let entry = InFlightEntry {
                ino: write.facts.ino,
                osn,
                offset: write.facts.offset,
                length: u32::try_from(write.facts.length).unwrap_or(u32::MAX),
            };
            // The core lets no more writes in flight than the table has slots; should it be full all the
            // same, nothing would say after a crash where the nodes may differ.
            match self.paw.insert(entry) {
                Ok(slot) => write.slot = Some(slot),
                Err(full) => {
                    drop(works);
                    self.happened_later(Trigger::PeerFailed, &full.to_string());
                }
            }
        }
        Some(facts)
    }

    fn send_write(
        self: &Arc<Self>,
        op: OpId,
        osn: Osn,
        connection: ConnectionId,
        inline: Option<Inline<'_>>,
    ) -> Option<Event> {
        let facts = self.enter_write(op, osn)?;
        if let Err(error) = self.store.check_file(facts.ino) {
            // Its locks are held, so it stays gone; the peer has not got it either (P2, P4).
            self.withdraw_entry(op);
            return Some(Event::Refused(op, self.told(&error)));
        }
        let own = inline.filter(|inline| inline.op == op);
        let waiting = own.and_then(|inline| inline.waiting);
        let mut kept = None;
        match self.bytes_of(op, inline, &mut kept) {
            // None are left of a write that is over: it was given up, and so was the connection.
            Ok(data) if data.len() == facts.length => {
                self.send_write_over(connection, facts.message(osn), data, waiting);
                None
            }
            Ok(_) => None,
            Err(errno) => {
                // This node cannot read them for its own part either.
                self.withdraw_entry(op);
                Some(Event::Refused(op, errno))
            }
        }
    }

    /// Takes back the PAW entry of a write that neither node has begun.
    fn withdraw_entry(&self, op: OpId) {
        if let Some(Work::Write(write)) = self.works.lock().get_mut(&op)
            && let Some(slot) = write.slot.take()
        {
            self.paw.remove(slot);
        }
    }

    /// Sends a write again with the bytes that are in the file: the client's are long gone, and
    /// nobody else can have written there, for its locks are still held.
    fn resend_write(&self, op: OpId, osn: Osn, connection: ConnectionId) -> Option<Event> {
        let mut facts = match self.works.lock().get(&op) {
            Some(Work::Write(write)) => write.facts,
            _ => return None,
        };
        if let Ok(Some(seen)) = self.store.facts(facts.ino)
            && seen.last_write.is_some_and(|last| last > osn)
        {
            // A later write to the file is over already: its times stay on both nodes.
            facts.time = seen.mtime;
        }
        let mut data = vec![0; facts.length];
        match self.store.read_raw(facts.ino, facts.offset, &mut data) {
            Ok(()) => self.send_write_over(connection, facts.message(osn), &data, None),
            Err(error) => {
                self.told(&error.into());
                self.drop_link("a write that is to be sent again cannot be read");
            }
        }
        None
    }

    fn send_sync(&self, op: OpId) -> Option<Event> {
        let ino = match self.works.lock().get(&op) {
            Some(Work::Sync(sync)) => sync.ino,
            _ => return None,
        };
        self.send(Message::Sync { id: op.0, ino }, &[]);
        None
    }

    /// Answers whoever waits for an operation.
    fn finish(self: &Arc<Self>, op: OpId, result: Result<(), Errno>) -> Option<Event> {
        let work = self.works.lock().remove(&op)?;
        match work {
            Work::Read(read) => (read.done)(result.map(|()| &[][..])),
            Work::Inspect(_) => {}
            Work::Sync(sync) => {
                if let (Ok(()), Some(point)) = (result, sync.point) {
                    self.store.note_synced(sync.ino, point);
                }
                (sync.done)(result);
            }
            Work::Write(write) => {
                match write.slot {
                    // The peer has its bytes: the core is leaving sync (rules P6, P15).
                    Some(slot) if result.is_err() && self.role.state().in_sync => {
                        self.failed.lock().push(slot);
                    }
                    Some(_) if is_active(Mutant::KeepPawEntry) => {}
                    Some(slot) => self.paw.remove(slot),
                    None => {}
                }
                if let Some(ticket) = &write.ticket {
                    Store::abandon_write(ticket);
                }
                if let (Ok(()), Some(point)) = (result, write.synced) {
                    self.store.note_synced(write.facts.ino, point);
                }
                (write.done)(result);
            }
            Work::Meta(meta) if meta.again => self.submit_meta(meta.request, meta.done),
            Work::Meta(meta) => self.finish_meta(meta, result),
        }
        None
    }

    fn finish_meta(self: &Arc<Self>, meta: MetaWork, result: Result<(), Errno>) {
        let applied = meta.applied;
        (meta.done)(result.map(|()| applied.and_then(|applied| applied.attr)));
        if let Some(ino) = applied.and_then(|applied| applied.orphaned) {
            self.orphaned(ino);
        }
    }

    /// Frees an inode that lost its last name, if nobody needs it.
    pub(super) fn orphaned(self: &Arc<Self>, ino: lockstep_types::Ino) {
        if self.references.orphaned(ino) {
            self.reap(ino);
        }
    }

    /// An event led nowhere. After a fault the connection is made anew: both nodes then find out how
    /// they stand.
    fn note_refused(&self, refused: Refused) {
        let datastore = self.name();
        if refused.why.is_fault() {
            tracing::error!(datastore, %refused, "a fault of lockstep: please report it");
            self.drop_link(&format!("a fault of lockstep: {refused}"));
        } else {
            tracing::debug!(datastore, %refused, "dropped");
        }
    }

    /// Tells the core of a trigger from a thread of its own, with the reason for status.
    pub(super) fn happened_later(self: &Arc<Self>, trigger: Trigger, reason: &str) {
        self.set_reason(reason);
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || {
            datastore.drive(Thread::MayWait, Event::Happened(trigger));
        }));
    }
}
