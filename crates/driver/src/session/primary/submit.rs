//! The operations of clients on their way to the core, and the holds that keep clients out.

use lockstep_fs::StoreView;
use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::core::{Effect, Effects, Event, LockSet, OpId, OpKind};
use lockstep_repl::message::WriteMessage;
use lockstep_sums::{BlockOffset, PieceSums};
use lockstep_types::Ino;

use super::PrimarySession;
use crate::client::{Done, ReadDone, WaitingRequests, WriteData};
use crate::host::ThreadKind;
use crate::ops::content::CallerWrite;
use crate::ops::lock_plan;
use crate::ops::pending::{PendingOp, PendingRead, PendingSync, PendingWrite, WriteParams};
use crate::ops::write_backpressure::{write_locks, write_message_bytes};
use crate::replication::CoreDriver;
use crate::service_gate::{Inside, Tenure, VisibilityHold};

impl PrimarySession {
    fn submit(&self, kind: OpKind, locks: LockSet, op: PendingOp) {
        let op = self.pending.insert(op);
        let submit = Event::Submit {
            op,
            kind,
            locks,
            bytes: 0,
        };
        self.handle_event(self.engine.calling_thread(), submit);
    }

    /// Submits a read.
    pub fn submit_read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        let locks = lock_plan::read(ino, offset, length as u64);
        let read = PendingRead {
            ino,
            offset,
            length,
            done,
            inside: self.engine.gate.hold(),
        };
        self.submit(OpKind::Read, locks, PendingOp::Read(read));
    }

    /// Lets no client in until both nodes have the writes of the previous process that may have made a file longer, or until
    /// the other node counts no more: this node's disk shows the new size already (rule P4).
    pub fn hide_sizes_in_doubt(&self) {
        for entry in self.content.paw.old_entries() {
            let Ok(attr) = self.engine.store.tree().getattr(entry.ino) else {
                continue; // no client finds the file
            };
            if entry.offset < attr.size && attr.size <= entry.offset + u64::from(entry.length) {
                self.hide_until_equal(&entry);
            }
        }
    }

    /// Lets no client in until both nodes are equal, or the other node counts no more. A loss of power has taken the table of the
    /// writes under way, so this node's disk may show any of them (rule P12). Or metadata operations of the previous process are in
    /// doubt: an operation would take effect after clients had seen that it had not (rule P4).
    pub fn hide_everything(&self) {
        *self.visibility_hold.lock() =
            Some(VisibilityHold::of(&self.engine.gate, &self.engine.host));
    }

    /// Lets no client in until a read of the write's range gets its locks.
    fn hide_until_equal(&self, entry: &InFlightEntry) {
        let hold = VisibilityHold::of(&self.engine.gate, &self.engine.host);
        let read = PendingRead {
            ino: entry.ino,
            offset: entry.offset,
            length: 1,
            done: Box::new(move |_| drop(hold)),
            inside: Inside::ungated(Tenure::FIRST),
        };
        let locks = lock_plan::read(entry.ino, entry.offset, u64::from(entry.length));
        self.submit(OpKind::Read, locks, PendingOp::Read(read));
    }

    /// Submits a sync of a file.
    pub fn submit_sync(&self, ino: Ino, done: Done<()>) {
        let (store, version) = (&self.engine.store, self.replication.state_version());
        if store.is_synced(ino, version) {
            return done(Ok(()));
        }
        let point = store.sync_point(ino, version);
        let inside = self.engine.gate.hold();
        let sync = PendingSync {
            ino,
            point,
            done,
            inside,
        };
        self.submit(OpKind::Sync, LockSet::new(), PendingOp::Sync(sync));
    }

    /// Submits a write. If the write cannot start at once, bytes in this thread's buffer are kept before another thread
    /// can start it.
    pub fn submit_write(
        &self,
        write: WriteParams,
        data: WriteData<'_>,
        waiting: Option<&dyn WaitingRequests>,
        done: Done<()>,
    ) {
        let (here, spilled) = match data {
            WriteData::Borrowed(data) => (Some(data), None),
            WriteData::Spilled(spilled) => (None, Some(spilled)),
        };
        let WriteMessage { ino, durable, .. } = write.message;
        let sync_point = || {
            let version = self.replication.state_version();
            self.engine.store.sync_point(ino, version)
        };
        let op = self.pending.insert(PendingOp::Write(PendingWrite {
            write,
            data: spilled,
            ticket: None,
            slot: None,
            synced: durable.then(sync_point).flatten(),
            done,
            inside: self.engine.gate.hold(),
        }));
        let thread = self.engine.calling_thread();
        let submit = Event::Submit {
            op,
            kind: OpKind::Write,
            locks: write_locks(ino, write.message.offset, write.length),
            bytes: write_message_bytes(write.length),
        };
        let (effects, caller) = {
            let mut core = self.replication.core.lock();
            let effects = self.step_locked(&mut core, submit);
            let starts = thread == ThreadKind::Client && starts(&effects, op);
            if let Some(data) = here.filter(|_| !starts) {
                let keep = || self.spill.put_in_memory(data);
                self.pending
                    .with_write(op, |write| write.data = Some(keep()));
            }
            (effects, here.filter(|_| starts))
        };
        let key = caller.and_then(|_| self.engine.store.sums().key());
        let start = BlockOffset::of(write.message.offset);
        let sums = caller
            .zip(key)
            .map(|(data, key)| PieceSums::of(&key, start, data));
        let caller = caller.map(|data| CallerWrite {
            op,
            data: match &sums {
                Some(sums) => sums.with(data),
                None => data.into(),
            },
            waiting,
        });
        self.run_effects_with(thread, effects, caller);
        if caller.is_none() {
            self.replication.peer.flush_deferred();
        }
    }
}

/// Whether the core lets an operation start now.
fn starts(effects: &Effects, id: OpId) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Execute { op, .. } if *op == id))
}
