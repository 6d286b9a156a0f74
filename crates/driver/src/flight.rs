//! Operations under way, as their driver remembers them.

use std::sync::Arc;

use lockstep_fs::Store;
use lockstep_fs::files::SyncPoint;
use lockstep_fs::store::{Applied, WriteTicket};
use lockstep_paw_saw::EntryHandle;
use lockstep_repl::message::WriteMessage;
use lockstep_types::{Attr, Ino, MetaRequest, Osn, Timestamp};

use super::host::Promise;
use super::lockset::Targets;
use crate::client::{Done, KeptBytes, ReadDone};

/// What has to be done for an operation, and who waits for it.
pub(super) enum Work {
    /// A read of content.
    Read(ReadWork),
    /// A write of content.
    Write(WriteWork),
    /// A metadata operation.
    Meta(MetaWork),
    /// A sync of a file.
    Sync(SyncWork),
    /// Somebody of ours (resync, verify) waits for locks, and does its work while it holds them.
    Inspect(Option<Promise<()>>),
}

/// A read of content.
pub(super) struct ReadWork {
    pub ino: Ino,
    pub offset: u64,
    pub length: usize,
    pub done: ReadDone,
}

/// A write of content.
pub(super) struct WriteWork {
    pub facts: WriteFacts,
    /// The bytes, where the operation could not start at once on the thread that brought them.
    pub data: Option<Arc<dyn KeptBytes>>,
    pub ticket: Option<WriteTicket>,
    pub osn: Option<Osn>,
    pub slot: Option<EntryHandle>,
    /// What the syncs of a durable write cover on both nodes: they begin after this was taken.
    pub synced: Option<SyncPoint>,
    pub done: Done<()>,
}

/// What is known of a write besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteFacts {
    pub ino: Ino,
    pub offset: u64,
    pub length: usize,
    pub time: Timestamp,
    pub durable: bool,
}

impl WriteFacts {
    /// First byte after the write.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length as u64)
    }

    /// What the secondary is told of it.
    pub const fn message(&self, osn: Osn) -> WriteMessage {
        WriteMessage {
            osn,
            ino: self.ino,
            offset: self.offset,
            time: self.time,
            durable: self.durable,
        }
    }
}

impl WriteWork {
    /// Makes the new size and time visible.
    pub fn publish(&mut self, store: &Store) {
        if let (Some(ticket), Some(osn)) = (self.ticket.take(), self.osn) {
            store.complete_write(&ticket, self.facts.end(), osn, self.facts.time);
        }
    }
}

/// A metadata operation.
pub(super) struct MetaWork {
    pub request: MetaRequest,
    pub time: Timestamp,
    /// The inodes that the names in the request led to when its locks were chosen.
    pub targets: Targets,
    /// The names have come to lead elsewhere: choose the locks again.
    pub again: bool,
    pub applied: Option<Applied>,
    pub done: Done<Option<Attr>>,
}

/// A sync of a file.
pub(super) struct SyncWork {
    pub ino: Ino,
    /// What the syncs cover on both nodes: they begin after this was taken.
    pub point: Option<SyncPoint>,
    pub done: Done<()>,
}
